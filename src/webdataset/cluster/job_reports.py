"""The report of a job: how each output ended, how many samples went in and came out, and how long it took."""

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from webdataset.cluster.shard_jobs import ShardJob
from webdataset.cluster.shard_tasks import TaskResult
from webdataset.cluster.stored_files import format_record, write_small_file
from webdataset.core.errors import JobFailed

KIND = "wds-map-report"
VERSION = 1
_SHOWN = 3


@dataclass(frozen=True)
class JobReport:
    """How a job ended.

    Args:
        key: of the job.
        manifest: folder of its records.
        outputs: number to url.
        results: of the outputs, by number.
        unseen: what the digests of the function cannot see.
    """

    key: str
    manifest: str
    outputs: dict[int, str]
    results: dict[int, TaskResult] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()

    def _select(self, state: str) -> list[TaskResult]:
        return [result for _, result in sorted(self.results.items()) if result.state == state]

    @property
    def done(self) -> list[TaskResult]:
        """Outputs that were made."""
        return self._select("done")

    @property
    def skipped(self) -> list[TaskResult]:
        """Outputs that were done already."""
        return self._select("skipped")

    @property
    def failed(self) -> list[TaskResult]:
        """Outputs that could not be made."""
        return self._select("failed")

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

    def to_json(self) -> dict[str, Any]:
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
        lines = [
            f"{len(self.done)} outputs made, {len(self.skipped)} were done, {len(self.failed)} failed; "
            f"{counts['in']} samples in, {counts['out']} out, {counts['dropped']} dropped, {counts['errors']} errors"
        ]
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
            named = "; ".join(f"{self.outputs[each.number]}: {each.reason}" for each in failed[:_SHOWN])
            more = f"; and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
            error = JobFailed(
                f"{len(failed)} of {len(self.results)} outputs failed, and the others are done; run the job again when "
                f"the cause is gone. {named}{more}",
                key=failed[0].key,
            )
            error.report = self
            raise error


def make_report(job: ShardJob, results: Iterable[TaskResult] = ()) -> JobReport:
    """Return the report of a job.

    Args:
        job: the job.
        results: of its outputs.
    """
    urls = {number: shard.url for number, shard in job.outputs.items()}
    return JobReport(job.key, job.manifest, urls, {each.number: each for each in results}, job.unseen)


def write_report(report: JobReport, name: str = "report") -> None:
    """Write a report into the manifest.

    Args:
        report: of a job.
        name: of the file.

    Raises:
        SourceError: it cannot be written.
    """
    write_small_file(f"{report.manifest}/{name}.json", format_record(report.to_json()) + b"\n")
