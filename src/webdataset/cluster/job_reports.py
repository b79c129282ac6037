"""The report of a job: how each output ended, how many samples went in and came out, and how long it took."""

import statistics
from collections import Counter
from collections.abc import Iterable

from webdataset.cluster.shard_jobs import ShardJob
from webdataset.cluster.stored_files import Record, format_record, write_small_file
from webdataset.cluster.task_results import TaskResult
from webdataset.core.errors import JobFailed

KIND = "wds-map-report"
VERSION = 1
_SHOWN = 3
_LONGEST = 160


class JobReport:
    """How a job ended.

    Args:
        job: the job.
        results: of its outputs.

    Attributes:
        key: of the job.
        manifest: folder of its records.
        outputs: number to url, of all outputs of the job.
        results: number to result, of the outputs that were asked for.
        done: results of the outputs that were made.
        skipped: of those that were done already.
        failed: of those that could not be made.
        unseen: what the digests of the function cannot see.
    """

    def __init__(self, job: ShardJob, results: Iterable[TaskResult] = ()) -> None:
        self.key, self.manifest, self.unseen = job.key, job.manifest, job.unseen
        self.outputs = {number: shard.url for number, shard in job.outputs.items()}
        self.results = {result.number: result for result in sorted(results, key=lambda result: result.number)}
        ordered = self.results.values()
        self.done = [result for result in ordered if result.state == "done"]
        self.skipped = [result for result in ordered if result.state == "skipped"]
        self.failed = [result for result in ordered if result.state == "failed"]

    @property
    def counts(self) -> dict[str, int]:
        """Samples in, out, dropped and failed, and files of no sample, of all outputs that are done."""
        total: Counter[str] = Counter({"in": 0, "out": 0, "dropped": 0, "errors": 0, "loose": 0})
        for result in self.results.values():
            total.update(result.counts)
        return dict(total)

    @property
    def reasons(self) -> dict[str, int]:
        """Why outputs were made, and of how many that holds."""
        return dict(Counter(result.reason for result in self.done))

    def to_json(self) -> Record:
        """Return the report as JSON."""
        seconds = sorted(result.seconds for result in self.done)
        return {
            "kind": KIND,
            "version": VERSION,
            "key": self.key,
            "outputs": len(self.outputs),
            "done": len(self.done),
            "skipped": len(self.skipped),
            "failed": [{"url": self.outputs[result.number], **result.to_json()} for result in self.failed],
            "reasons": self.reasons,
            "counts": self.counts,
            "seconds": {
                "median": statistics.median(seconds) if seconds else 0.0,
                "p99": seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)] if seconds else 0.0,
                "sum": round(sum(seconds), 3),
            },
            "hosts": dict(Counter(result.host for result in self.done)),
            "unseen": list(self.unseen),
        }

    def __str__(self) -> str:
        """Lines for people: what was done, and the first failures."""
        counts = self.counts
        made = f"outputs: {len(self.done)} made, {len(self.skipped)} done before, {len(self.failed)} failed"
        samples = f"{counts['in']} in, {counts['out']} out, {counts['dropped']} dropped, {counts['errors']} errors"
        lines = [f"{made}; samples: {samples}"]
        if counts["dropped"] == counts["in"] > 0:
            lines.append("the function gave nothing for any sample, and the outputs are empty: does it lack a return?")
        if self.reasons:
            lines.append("made because of: " + ", ".join(f"{word} ({n})" for word, n in sorted(self.reasons.items())))
        lines += [f"failed: {self.outputs[each.number]}: {each.reason}" for each in self.failed[:_SHOWN]]
        return "\n".join(lines)

    def raise_failures(self) -> None:
        """Raise where an output failed.

        Raises:
            JobFailed: it names the first ones; ``report`` is this.
        """
        failed = self.failed
        if failed:
            named = "; ".join(f"{self.outputs[each.number]}: {each.reason[:_LONGEST]}" for each in failed[:_SHOWN])
            more = f"; and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
            error = JobFailed(
                f"{len(failed)} of {len(self.results)} outputs failed, and the others are done; run the job again when "
                f"the cause is gone. {named}{more}",
                key=failed[0].key,
            )
            error.report = self
            raise error


def failure_url(job: ShardJob, number: int) -> str:
    """Return where a failure of an output is told, for as long as it is not done."""
    return f"{job.manifest}/failed/{number:06d}.json"


def note_failure(job: ShardJob, result: TaskResult) -> None:
    """Leave word of an output that failed, for ``wds map --status``; it never counts as done.

    Args:
        job: the job.
        result: of the output.

    Raises:
        SourceError: it cannot be written.
    """
    write_small_file(failure_url(job, result.number), format_record(result.to_json()) + b"\n")


def write_report(report: JobReport, name: str = "report") -> None:
    """Write a report into the manifest.

    Args:
        report: of a job.
        name: of the file.

    Raises:
        SourceError: it cannot be written.
    """
    write_small_file(f"{report.manifest}/{name}.json", format_record(report.to_json()) + b"\n")
