"""Measures how fast shards are read here: their bytes, their samples, decoded, in batches, by a loader with workers.

Each step does what the one before it does, and one thing more. All steps run in turns, so that what else the machine
does hits them alike; the first turn only warms up. The figures are medians. A step stops at the end of the shards, or
when its time is over. Processor time is that of this process and of the worker processes that it waited for.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from webdataset.core.errors import NoSamples, UsageError
from webdataset.flow.pipeline import DataPipeline
from webdataset.samples.sample_reader import Reading
from webdataset.shards.lists import SimpleShardList
from webdataset.shards.split import split_by_worker
from webdataset.stages.read_shards import ReadShards
from webdataset.storage.open_url import open_stream

STEPS = ("raw", "samples", "decode", "batch", "loader")
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class StepRound:
    """One turn of a step.

    Args:
        samples: that came; 0 of raw reading.
        size_bytes: that were read; of raw reading alone.
        seconds: that it took.
        cpu_seconds: of processors.
    """

    samples: int
    size_bytes: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class StepSpeed:
    """The speed of a step, in medians.

    Args:
        step: one of :data:`STEPS`.
        megabytes_per_second: of the shards' payloads; of raw reading, of their bytes.
        samples_per_second: None of raw reading.
        cpu_seconds_per_gigabyte: of processors.
        workers: of the loader.
        rounds: the turns that were measured.
    """

    step: str
    megabytes_per_second: float
    samples_per_second: float | None
    cpu_seconds_per_gigabyte: float
    workers: int
    rounds: list[StepRound] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return asdict(self)


def _processor_seconds() -> float:
    """Return the processor time of this process, which is finer than a clock tick, and of those that it has ended."""
    return time.process_time() + sum(os.times()[2:4])


@dataclass(frozen=True)
class ReadSpeedTest:
    """What is measured.

    Args:
        urls: the shards.
        storage_options: what they are opened with.
        decoders: arguments of ``decode``.
        fields: fields of a sample; none: all.
        batch_size: samples in a batch.
        workers: of the loader.
        mode: of its workers: ``threads`` or ``processes``.
        rounds: turns that count.
        seconds: after which a step stops.
        steps: which ones.
    """

    urls: Sequence[str]
    storage_options: Any = None
    decoders: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    batch_size: int = 32
    workers: int = 2
    mode: str = "threads"
    rounds: int = 3
    seconds: float = 3.0
    steps: tuple[str, ...] = STEPS

    def measure(self, advance: Callable[[str], None] = lambda _: None) -> list[StepSpeed]:
        """Return the speed of each step.

        Args:
            advance: is told which step begins.

        Raises:
            UsageError: numbers that cannot be, or an unknown step.
            NoSamples: the shards hold none.
            WebDatasetError: a shard cannot be read, or a sample not be decoded or batched.
        """
        unknown = [step for step in self.steps if step not in STEPS]
        if unknown or self.rounds < 1 or self.seconds <= 0:
            raise UsageError(f"steps are {', '.join(STEPS)}; at least one round, of more than 0 seconds")
        found: dict[str, list[StepRound]] = {step: [] for step in STEPS if step in self.steps}
        payload_bytes = self._find_payload_bytes() if set(found) - {"raw"} else 0.0
        for turn in range(self.rounds + 1):
            for step, rounds in found.items():
                advance(step)
                measured = self._run(step)
                if turn:
                    rounds.append(measured)
        return [self._summarize(step, rounds, payload_bytes) for step, rounds in found.items()]

    def _run(self, step: str) -> StepRound:
        before, began = _processor_seconds(), time.perf_counter()
        samples, size_bytes = self._read_bytes(began) if step == "raw" else self._read_samples(step, began)
        seconds = time.perf_counter() - began
        return StepRound(samples, size_bytes, seconds, _processor_seconds() - before)

    def _read_bytes(self, began: float) -> tuple[int, int]:
        total = 0
        for url in self.urls:
            stream: Any = open_stream(url, storage_options=self.storage_options)
            try:
                while piece := stream.read(_PIECE_BYTES):
                    total += len(piece)
                    if time.perf_counter() - began > self.seconds:
                        return 0, total
            finally:
                stream.close()
        return 0, total

    def _read_samples(self, step: str, began: float) -> tuple[int, int]:
        samples = 0
        source = self._source(step)
        items = iter(source)
        try:
            for item in items:
                samples += _count_samples(item) if step in ("batch", "loader") else 1
                if time.perf_counter() - began > self.seconds:
                    break
        finally:
            for closing in (items, source):
                close = getattr(closing, "close", None)
                if close is not None:
                    close()
        if not samples:
            raise NoSamples("the shards hold no samples: there is nothing to measure")
        return samples, 0

    def _source(self, step: str) -> Any:
        """Return what gives the items of a step."""
        if step == "samples":
            return self._dataset()
        from webdataset.stages.fields import to_tuple  # noqa: PLC0415  the codecs, for the steps that need them
        from webdataset.stages.map import decode  # noqa: PLC0415

        dataset = self._dataset(decode(*self.decoders), to_tuple(*self.fields) if self.fields else None)
        if step == "decode":
            return dataset
        from webdataset.loading.loader import Loader  # noqa: PLC0415  numpy, likewise

        workers = self.workers if step == "loader" else 0
        shared = dataset.elastic(streams=workers) if workers > 1 else dataset
        return Loader(shared, self.batch_size, workers=workers, mode=self.mode, timings=False)

    def _dataset(self, *stages: Any) -> DataPipeline:
        reader = ReadShards(Reading(storage_options=self.storage_options))
        return DataPipeline(SimpleShardList(list(self.urls)), split_by_worker, reader, *stages)

    def _find_payload_bytes(self) -> float:
        """Return the mean size of the payloads of the first samples."""
        sizes = [_measure_sample(sample) for sample in _take_for(self._dataset(), self.seconds)]
        if not sizes:
            raise NoSamples("the shards hold no samples: there is nothing to measure")
        return statistics.fmean(sizes)

    def _summarize(self, step: str, rounds: list[StepRound], payload_bytes: float) -> StepSpeed:
        sizes = [each.size_bytes or each.samples * payload_bytes for each in rounds]
        pairs = list(zip(sizes, rounds, strict=True))
        speed = statistics.median(size / each.seconds for size, each in pairs) / 1e6
        cost = statistics.median(each.cpu_seconds / max(size, 1) for size, each in pairs) * 1e9
        samples = None if step == "raw" else statistics.median(each.samples / each.seconds for each in rounds)
        return StepSpeed(step, speed, samples, cost, self.workers if step == "loader" else 0, rounds)


def _count_samples(batch: Any) -> int:
    """Return the number of samples in a batch."""
    return len(next(iter(batch.values())) if isinstance(batch, dict) else batch[0])


def _measure_sample(sample: dict[str, Any]) -> int:
    return sum(len(value) for value in sample.values() if isinstance(value, bytes | memoryview))


def _take_for(items: Any, seconds: float) -> Iterator[Any]:
    """Yield items until some seconds are over, at least one."""
    began = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - began > seconds:
            return
