"""Counts what a loader has done, and where the time went: as values, words, a table, or Prometheus text.

Skipped and dropped samples are counted with the batch that they belong to (:mod:`webdataset.core.error_handlers`), so
the counts after a batch are those of its state. Counting costs two clock readings a window; stage times are estimated
from a few samples (:mod:`webdataset.flow.timing`).
"""

from dataclasses import dataclass, field, fields, replace
from typing import Self

from webdataset.flow.timing import StageTime, format_losses, format_table, stage_times
from webdataset.loading.worker import RowCounts, WindowPart, sum_counts

_MEANINGS = {
    "epochs": "Epochs begun",
    "batches": "Batches delivered",
    "samples": "Samples delivered",
    "bytes": "Bytes of the batches delivered",
    "failures": "Errors raised to the consumer",
    "restarts": "Times that all workers were started again, since one had died or hung",
    "overtakes": "Samples that came while some of an earlier batch were still being made",
    "skipped": "Failures that handlers let pass",
    "dropped": "Samples that functions dropped by returning None",
    "running_seconds": "Seconds since the loader began its first epoch, while an epoch ran",
    "waiting_seconds": "Seconds that the consumer waited for batches",
    "worker_busy_seconds": "Seconds that a worker spent on samples",
    "worker_waiting_seconds": "Seconds that a worker waited for leave to continue",
    "ready_windows": "Windows of samples that are at least partly made and not delivered",
    "memory_bytes": "Bytes of the blocks that batches are made in",
    "workers": "Workers",
}
_BY_STAGE = {
    "seconds": "Seconds that a stage took for itself, estimated",
    "samples": "Samples that a stage gave, estimated",
    "skipped": "Failures in a stage that handlers let pass",
    "dropped": "Samples that a stage's function dropped by returning None",
}
# gauges; all else only grows
_LEVELS = {"ready_windows", "memory_bytes", "workers"}


@dataclass
class LoaderStats:
    """A loader's counters.

    Args:
        epochs: begun.
        batches: delivered (samples, where the loader makes no batches).
        samples: delivered.
        bytes: of the batches delivered; long lists of containers (decoded JSON) are weighed by some of them.
        failures: errors raised to the consumer.
        restarts: times that all workers were started again, since one had died or hung.
        overtakes: of ``order="ready"``, samples that came while some of an earlier batch were still being made.
        skipped: failures that handlers let pass on the way to what was delivered: samples, or the rest of a shard.
        dropped: samples that functions dropped by returning None, on the same way, and those of batches left out.
        running_seconds: from the beginning of each epoch to its end or now.
        waiting_seconds: of these, how long the consumer waited.
        worker_busy_seconds: for each worker, spent on samples.
        worker_waiting_seconds: for each worker, spent waiting for leave to continue: the consumer is slower.
        ready_windows: windows that are at least partly made and not delivered.
        memory_bytes: of the blocks that batches are made in.
        workers: how many there are.
        stage_rows: for each stage, samples and seconds so far, estimated.
        skips: failures that handlers let pass, by stage.
        drops: samples that functions dropped, by stage.
    """

    epochs: int = 0
    batches: int = 0
    samples: int = 0
    bytes: int = 0
    failures: int = 0
    restarts: int = 0
    overtakes: int = 0
    skipped: int = 0
    dropped: int = 0
    running_seconds: float = 0.0
    waiting_seconds: float = 0.0
    worker_busy_seconds: list[float] = field(default_factory=list)
    worker_waiting_seconds: list[float] = field(default_factory=list)
    ready_windows: int = 0
    memory_bytes: int = 0
    workers: int = 0
    stage_rows: dict[str, tuple[int, float]] = field(default_factory=dict)
    skips: dict[str, int] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)

    @property
    def stages(self) -> list[StageTime]:
        """What each stage of the dataset took, all workers together: estimated from samples that were timed."""
        return stage_times([(name, *found) for name, found in self.stage_rows.items()], self.skips, self.drops)

    @property
    def waiting_share(self) -> float:
        """Part of the time that the consumer waited, from 0 (never) to 1."""
        return self.waiting_seconds / self.running_seconds if self.running_seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples delivered in a second of an epoch."""
        return self.samples / self.running_seconds if self.running_seconds else 0.0

    def postfix(self) -> dict[str, str]:
        """Return a few words for a progress bar: ``bar.set_postfix(loader.stats().postfix())``."""
        return {
            "samples/s": f"{self.samples_per_second:.0f}",
            "MB/s": f"{self._megabytes_per_second:.0f}",
            "wait": f"{self.waiting_share:.0%}",
        }

    def report(self) -> str:
        """Return a table: what each stage took, then waiting, speed, failures.

        Seconds are those of the clock on the wall, in which a thread also waits for others to let it run.
        """
        restarts = f"restarts {self.restarts}, " if self.restarts else ""
        overtakes = f"overtakes {self.overtakes}, " if self.overtakes else ""
        speed = f"{self.samples_per_second:.0f} samples/s, {self._megabytes_per_second:.1f} MB/s"
        return format_table(
            self.stages,
            f"{self.samples} samples in {self.running_seconds:.1f} s: {speed}",
            f"waited for batches {self.waiting_share:.0%} of the time; workers waited "
            f"{_divide(sum(self.worker_waiting_seconds), sum(self.worker_busy_seconds)):.0%} of theirs",
            f"failures {self.failures}, {restarts}{overtakes}{format_losses(self.skipped, self.dropped)}",
            estimated=True,
        )

    @property
    def _megabytes_per_second(self) -> float:
        return self.bytes / 1e6 / self.running_seconds if self.running_seconds else 0.0

    def prometheus(self, prefix: str = "webdataset_loader", **labels: str) -> str:
        """Return the counters in the text format that Prometheus reads.

        Args:
            prefix: of the metrics' names.
            **labels: put on every metric, such as ``rank="0"``.

        Source: https://prometheus.io/docs/instrumenting/exposition_formats/
        """
        lines = []
        for each in fields(self):
            if each.name not in _MEANINGS:
                continue
            level = each.name in _LEVELS
            name = f"{prefix}_{each.name}" if level else f"{prefix}_{each.name}_total"
            lines.append(f"# HELP {name} {_MEANINGS[each.name]}.")
            lines.append(f"# TYPE {name} {'gauge' if level else 'counter'}")
            found = getattr(self, each.name)
            if isinstance(found, list):
                lines += [
                    f"{name}{_format_labels({**labels, 'worker': str(n)})} {value}" for n, value in enumerate(found)
                ]
            else:
                lines.append(f"{name}{_format_labels(labels)} {found}")
        lines += self._stage_lines(f"{prefix}_stage", labels)
        return "\n".join(lines) + "\n"

    def _stage_lines(self, prefix: str, labels: dict[str, str]) -> list[str]:
        lines = []
        stages = self.stages
        for what, meaning in _BY_STAGE.items() if stages else ():
            name = f"{prefix}_{what}_total"
            lines += [f"# HELP {name} {meaning}.", f"# TYPE {name} counter"]
            lines += [
                f"{name}{_format_labels({**labels, 'stage': each.name})} {getattr(each, what)}" for each in stages
            ]
        return lines

    def copy(self) -> Self:
        """Return a snapshot: it stays as it is."""
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: found.copy() for name, found in held.items() if hasattr(found, "copy")})

    def count(self, part: WindowPart) -> None:
        """Count a worker's part.

        Args:
            part: as received.
        """
        while len(self.worker_busy_seconds) <= part.worker:
            self.worker_busy_seconds.append(0.0)
            self.worker_waiting_seconds.append(0.0)
        self.worker_busy_seconds[part.worker] += part.timings[0]
        self.worker_waiting_seconds[part.worker] += part.timings[1]
        if part.findings is not None:
            for name, samples, seconds in part.findings.stages:
                before = self.stage_rows.get(name, (0, 0.0))
                self.stage_rows[name] = before[0] + samples, before[1] + seconds

    def receive(self, counted: list[RowCounts]) -> None:
        """Count what was skipped.

        Args:
            counted: what belongs to the batch that was received.
        """
        for totals, found in zip((self.skips, self.drops), sum_counts(counted), strict=True):
            for name, count in found.items():
                totals[name] = totals.get(name, 0) + count
        self.skipped, self.dropped = sum(self.skips.values()), sum(self.drops.values())


def _divide(some: float, others: float) -> float:
    return some / (some + others) if some else 0.0


def _format_labels(labels: dict[str, str]) -> str:
    quoted = (f'{name}="{_escape(str(value))}"' for name, value in labels.items())
    return f"{{{','.join(quoted)}}}" if labels else ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
