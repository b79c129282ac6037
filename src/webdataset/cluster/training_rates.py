"""Measures on this machine what a forecast of a training job needs to know: costs of samples, shards, batches, states.

Theory. A cost per sample, one per batch and one per shard are told apart by runs that differ in these numbers: the
dataset alone, a loader with batches of one size and of four times that size, and shards that hold one sample. The
loader has a worker for each processor, since a processor does less where its neighbours are busy. Turns of all runs
follow each other, and medians are taken, since other programs share the machine. Processor time is that of all
processes. Negative differences are noise, and count as 0.
"""

import io
import json
import math
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from webdataset.core.errors import NoSamples, UsageError
from webdataset.core.process_pool import count_processors
from webdataset.flow.elastic_pipeline import ElasticMixin, ElasticPipeline
from webdataset.flow.pipeline import DataPipeline
from webdataset.flow.run import expand_stages
from webdataset.loading.loader import Loader
from webdataset.loading.states import plan_delivery
from webdataset.samples.sample_reader import Reading
from webdataset.shards.lists import SimpleShardList
from webdataset.stages.batch import Batched
from webdataset.stages.bucketing import Bucketed
from webdataset.stages.read_shards import ReadShards
from webdataset.stages.shuffle import Shuffle
from webdataset.stages.shuffle_blocks import BlockShuffle
from webdataset.storage.open_url import local_path, open_stream, open_url
from webdataset.storage.streams import Stream

T = TypeVar("T")

VERSION: Final = 1
_PIECE_BYTES: Final = 1 << 20
_OPENED: Final = 20
_MOST_READ_BYTES: Final = 256 << 20
_TINY_SHARDS: Final = 100
_BUFFER: Final = 500
_MOST_WORKERS: Final = 8
_FEWEST_BATCHES: Final = 3
_FEWEST_ROWS: Final = 20
_PATIENCE: Final = 10


@dataclass(frozen=True)
class TrainingRates:
    """Costs on one machine. Times are seconds, sizes bytes.

    Args:
        cores: processors of the machine.
        samples_per_shard: mean of the shards that were read.
        samples_per_row: samples of the shards for each one that the dataset gives: above 1 where it packs several into
            a row, or leaves some out. The costs below are of a sample of the shards.
        sample_bytes: of a sample in a shard, with headers.
        decoded_bytes: of what the dataset gives for a batch: a sample, or a row.
        cpu_seconds_per_sample: processor time of reading and decoding one, and of giving it to the rank.
        cpu_seconds_per_shard: of opening one.
        cpu_seconds_per_byte: of reading, nothing decoded.
        batch_cpu_seconds: of the worker, for a batch of the rank.
        main_cpu_seconds_per_sample: of the rank's own thread.
        main_cpu_seconds_per_batch: of the rank's own thread.
        start_seconds: until a worker has its first sample.
        start_cpu_seconds: processor time of starting a worker.
        first_byte_seconds: median time from asking for a shard to its first byte.
        first_byte_spread: standard deviation of its logarithm.
        connection_bytes_per_second: of one connection; None of local files.
        worker_busy: share of its time, 0 to 1, in which a worker by itself is on a processor; the rest waits for the
            disk, or for other programs. 1 of remote shards, whose waiting is that of connections.
        processors_busy: the same of all processors, where each has a worker: processes also wait for each other.
        state_bytes_per_stream: of a virtual stream, as JSON.
        state_bytes_per_buffered_sample: of a sample that waits in a shuffle buffer, as JSON.
        resume_seconds_per_stream: of a virtual stream, with nothing in a buffer.
        resume_seconds_per_buffered_sample: of reading such a sample again.
    """

    cores: int
    samples_per_shard: float
    sample_bytes: float
    decoded_bytes: float
    cpu_seconds_per_sample: float
    cpu_seconds_per_shard: float
    cpu_seconds_per_byte: float
    batch_cpu_seconds: float = 0.0
    main_cpu_seconds_per_sample: float = 0.0
    main_cpu_seconds_per_batch: float = 0.0
    start_seconds: float = 0.0
    start_cpu_seconds: float = 0.0
    first_byte_seconds: float = 0.0
    first_byte_spread: float = 0.0
    connection_bytes_per_second: float | None = None
    worker_busy: float = 1.0
    processors_busy: float = 1.0
    state_bytes_per_stream: float = 0.0
    state_bytes_per_buffered_sample: float = 0.0
    resume_seconds_per_stream: float = 0.0
    resume_seconds_per_buffered_sample: float = 0.0
    samples_per_row: float = 1.0

    def mean_first_byte(self) -> float:
        """Return the mean of a log-normal distribution with this median and spread."""
        return self.first_byte_seconds * math.exp(self.first_byte_spread**2 / 2)

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON value, with the version of its form."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, record: object) -> "TrainingRates":
        """Return what :meth:`to_json` returned.

        Raises:
            UsageError: it is none, of another version, or holds what is no rate.
        """
        if not isinstance(record, dict) or record.get("version") != VERSION:
            raise UsageError(
                f"no rates of version {VERSION}: measure them with 'wds simulate DATASET --save-rates FILE'"
            )
        values = {name: value for name, value in record.items() if name != "version"}
        known = {each.name: each for each in fields(cls)}
        for name, value in values.items():
            missing = value is None and name == "connection_bytes_per_second"
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            share = name in ("worker_busy", "processors_busy")
            wrong = (share and not 0 < value <= 1) or (name == "samples_per_row" and value == 0)
            if name not in known or not (missing or (number and value >= 0 and not wrong)):
                raise UsageError(
                    f"rates hold {name}={value!r}: they are numbers of at least 0 (shares above 0, to 1; "
                    f"samples_per_row above 0), named {', '.join(known)}"
                )
        try:
            return cls(**values)
        except TypeError as error:
            raise UsageError(f"the rates are not complete: {error}") from None

    @classmethod
    def load(cls, path: str) -> "TrainingRates":
        """Read a file of :meth:`save`.

        Raises:
            UsageError: it holds no rates.
            SourceError: it cannot be read.
        """
        with open_url(path) as stream:
            content = stream.read()
        try:
            record = json.loads(content)
        except ValueError as error:
            raise UsageError(f"the rates are no JSON: {error}", url=path) from None
        return cls.from_json(record)

    def save(self, path: str) -> None:
        """Write it to a file as JSON."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n", "utf-8")


class _Costs(NamedTuple):
    """Of a run: of how many samples of the shards what came was made, and what it took."""

    samples: float
    batches: int
    seconds: float
    cpu_seconds: float
    main_cpu_seconds: float


def measure_rates(
    source: object,
    *,
    batch_size: int = 32,
    seconds: float = 1.0,
    rounds: int = 3,
    advance: Callable[[str], None] | None = None,
) -> TrainingRates:
    """Measure a dataset on this machine.

    Args:
        source: a dataset that reads shards and gives single samples, or rows of several; or a loader over one.
        batch_size: of the loader that is measured.
        seconds: of a turn.
        rounds: turns, whose medians count.
        advance: is told which step begins.

    Raises:
        UsageError: the dataset does not read shards, or gives batches itself.
        NoSamples: the shards hold none.
        WebDatasetError: a shard cannot be read, or a sample not be decoded.
    """
    return _Measurement(source, batch_size, seconds, rounds, advance or (lambda _: None)).measure()


class _Measurement:
    """Runs the turns, and tells costs apart."""

    def __init__(
        self, source: object, batch_size: int, seconds: float, rounds: int, advance: Callable[[str], None]
    ) -> None:
        dataset = plan_delivery(source).dataset
        self._stages = expand_stages(dataset.pipeline)
        # streams cost a little more, since they know the address of each sample
        self._elastic = isinstance(dataset, ElasticMixin)
        self._workers = min(count_processors(), _MOST_WORKERS)
        self._batch_size, self._seconds, self._rounds, self._advance = batch_size, seconds, rounds, advance
        self._reader = next((n for n, stage in enumerate(self._stages) if isinstance(stage, ReadShards)), 0)
        if not self._reader:
            raise UsageError("rates are of a dataset that reads shards: give one, or its shards")
        if any(isinstance(stage, Batched | Bucketed) for stage in self._stages):
            raise UsageError(
                "the dataset makes batches itself: give it without batched() or bucket(), and the size of a batch"
            )
        self._urls = [str(url) for url in getattr(self._stages[0], "urls", [])]
        if not self._urls:
            raise UsageError("the shards are not known before they are read: give a dataset with a list of shards")
        reading = getattr(self._stages[self._reader], "reading", None)
        self._reading: Reading = reading if isinstance(reading, Reading) else Reading()
        self._options = self._reading.storage_options
        self._samples_per_row = 1.0

    def measure(self) -> TrainingRates:
        """Return the rates."""
        self._advance("bytes")
        latencies, bandwidth, open_cpu, size = self._measure_connections()
        self._advance("samples")
        per_shard, payload, raw_cpu = self._measure_raw()
        shard_cpu = open_cpu + self._measure_tiny_shards()
        decoded = self._measure_decoded_size()
        self._samples_per_row = self._count_samples_per_row()
        self._advance("dataset and loader")
        alone, single, small, large, start = self._measure_runs()
        dataset_cpu = statistics.median(
            max(0.0, each.cpu_seconds / each.samples - shard_cpu / max(per_shard, 1)) for each in alone
        )
        sample_cpu, batch_cpu = _tell_apart(small, large, lambda run: run.cpu_seconds - run.main_cpu_seconds)
        main_sample, main_batch = _tell_apart(small, large, lambda run: run.main_cpu_seconds)
        self._advance("states")
        states = self._measure_states(int(per_shard * len(self._urls)))
        local = local_path(self._urls[0]) is not None
        shared_cpu = shard_cpu / max(per_shard, 1)
        sample_cpu = max(dataset_cpu, sample_cpu - shared_cpu)
        worker_busy = _find_busy(single, sample_cpu + shared_cpu, batch_cpu, 1)
        processors_busy = _find_busy(
            small + large, sample_cpu + shared_cpu + main_sample, batch_cpu + main_batch, self._workers
        )
        return TrainingRates(
            cores=count_processors(),
            samples_per_shard=per_shard,
            sample_bytes=size / per_shard if per_shard else payload,
            decoded_bytes=decoded,
            cpu_seconds_per_sample=sample_cpu,
            cpu_seconds_per_shard=shard_cpu,
            cpu_seconds_per_byte=raw_cpu,
            batch_cpu_seconds=batch_cpu,
            main_cpu_seconds_per_sample=main_sample,
            main_cpu_seconds_per_batch=main_batch,
            start_seconds=start.seconds,
            start_cpu_seconds=start.cpu_seconds,
            first_byte_seconds=0.0 if local else statistics.median(latencies),
            first_byte_spread=0.0 if local else _find_spread(latencies),
            connection_bytes_per_second=None if local else bandwidth,
            worker_busy=worker_busy if local else 1.0,
            processors_busy=processors_busy if local else 1.0,
            samples_per_row=self._samples_per_row,
            **states,
        )

    def _measure_connections(self) -> tuple[list[float], float, float, float]:
        """Return times to first bytes, bytes a second of a connection, processor time of opening, size of shards."""
        latencies, total, seconds, sizes = [], 0, 0.0, []
        cpu = 0.0
        for url in self._urls[:_OPENED]:
            before, began = time.process_time(), time.perf_counter()
            stream: Stream = open_stream(url, storage_options=self._options)
            try:
                piece = stream.read(1)
                first = time.perf_counter()
                latencies.append(first - began)
                cpu += time.process_time() - before
                length = len(piece)
                while total + length < _MOST_READ_BYTES and (piece := stream.read(_PIECE_BYTES)):
                    length += len(piece)
                seconds += time.perf_counter() - first
                known = getattr(stream, "length", None)
                sizes.append(known if isinstance(known, int) else length)
                total += length
            finally:
                stream.close()
            if total >= _MOST_READ_BYTES:
                break
        if not total:
            raise NoSamples("the shards are empty: there is nothing to measure")
        return latencies, total / max(seconds, 1e-9), cpu / len(latencies), statistics.fmean(sizes)

    def _measure_raw(self) -> tuple[float, float, float]:
        """Return samples of a shard, payload bytes of a sample, processor time of reading a byte."""
        counts: dict[str, int] = {}
        payload, before = 0, time.process_time()
        dataset = DataPipeline(*self._stages[: self._reader + 1])
        last = ""
        for sample in _take_for(dataset, self._seconds, again=False):
            last = sample["__url__"]
            counts[last] = counts.get(last, 0) + 1
            payload += sum(len(value) for value in sample.values() if isinstance(value, bytes))
        cpu = time.process_time() - before
        if not counts:
            raise NoSamples("the shards hold no samples: there is nothing to measure")
        samples = sum(counts.values())
        whole = [count for url, count in counts.items() if url != last or len(counts) == 1]
        if len(counts) == 1:  # perhaps not read to its end
            whole = [sum(1 for _ in DataPipeline(SimpleShardList([last]), ReadShards(self._reading)))]
        return statistics.fmean(whole), payload / samples, cpu / max(payload, 1)

    def _measure_tiny_shards(self) -> float:
        """Return processor time of a local shard beside that of its sample."""
        with tempfile.TemporaryDirectory() as folder:
            one, many = Path(folder, "one.tar"), Path(folder, "many.tar")
            for path, count in ((one, 1), (many, _TINY_SHARDS)):
                with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
                    for number in range(count):
                        info = tarfile.TarInfo(f"{number:06d}.txt")
                        info.size = 4
                        tar.addfile(info, io.BytesIO(b"text"))
            runs: list[list[float]] = [[], []]
            for _ in range(self._rounds + 1):
                for costs, urls in zip(runs, ([str(one)] * _TINY_SHARDS, [str(many)]), strict=True):
                    before = time.process_time()
                    for _sample in DataPipeline(SimpleShardList(urls), ReadShards(Reading())):
                        pass
                    costs.append(time.process_time() - before)
        shards, samples = (statistics.median(costs[1:]) for costs in runs)
        return max(0.0, shards - samples) / _TINY_SHARDS

    def _measure_decoded_size(self) -> float:
        """Return the bytes of a sample in a batch."""
        first = next(iter(DataPipeline(*self._stages)), None)
        if first is None:
            raise NoSamples("the dataset gives no samples: there is nothing to measure")
        return float(_count_bytes(first))

    def _count_samples_per_row(self) -> float:
        """Return how many samples are read for each row that is given; what a shuffle holds is none of either."""
        read = given = first = 0

        def count(samples: Iterable[object]) -> Iterator[object]:
            nonlocal read
            for sample in samples:
                read += 1
                yield sample

        after = [stage for stage in self._stages[self._reader + 1 :] if not isinstance(stage, Shuffle | BlockShuffle)]
        began = time.perf_counter()
        for _ in DataPipeline(*self._stages[: self._reader + 1], count, *after):
            given += 1
            first = first or read
            spent = time.perf_counter() - began
            enough = read >= 2 * first and spent > self._seconds
            if given > _FEWEST_ROWS and read > first and (enough or spent > _PATIENCE * self._seconds):
                # what a window held before the first row, it holds now
                return (read - first) / (given - 1)
        return read / max(1, given)

    def _measure_runs(self) -> tuple[list[_Costs], list[_Costs], list[_Costs], list[_Costs], _Costs]:
        """Return costs of the dataset alone, of loaders with one worker, small and large batches, and of a start."""
        alone: list[_Costs] = []
        single: list[_Costs] = []
        small: list[_Costs] = []
        large: list[_Costs] = []
        starts: list[_Costs] = []
        for turn in range(self._rounds + 1):
            first = self._run_loader(self._batch_size, 1, least=True)
            runs = (
                self._run_alone(),
                self._run_loader(self._batch_size, 1),
                self._run_loader(self._batch_size, self._workers),
                self._run_loader(4 * self._batch_size, self._workers),
            )
            if turn:
                starts.append(first)
                for kept, run in zip((alone, single, small, large), runs, strict=True):
                    kept.append(run)
        start = _Costs(
            0,
            0,
            statistics.median(run.seconds for run in starts),
            statistics.median(run.cpu_seconds for run in starts),
            0,
        )
        started = self._workers * start.cpu_seconds
        for kept in (small, large):
            kept[:] = [run._replace(cpu_seconds=max(0.0, run.cpu_seconds - started)) for run in kept]
        return alone, single, small, large, start

    def _make_dataset(self, workers: int = 1) -> DataPipeline:
        dataset = DataPipeline(*self._stages)
        return dataset.elastic(streams=workers) if self._elastic or workers > 1 else dataset

    def _run_alone(self) -> _Costs:
        before, began = time.process_time(), time.perf_counter()
        samples = sum(1 for _ in _take_for(self._make_dataset(), self._seconds))
        cpu = time.process_time() - before
        return _Costs(max(1, samples) * self._samples_per_row, 0, time.perf_counter() - began, cpu, 0.0)

    def _run_loader(self, batch_size: int, workers: int, *, least: bool = False) -> _Costs:
        """Return the costs of a loader; ``least`` is until its first batch."""
        before, began = os.times(), time.perf_counter()
        loader = Loader(self._make_dataset(workers), batch_size, workers=workers, mode="processes", timings=False)
        samples = batches = 0
        first = 0.0
        try:
            for batch in _take_for(loader, 0 if least else self._seconds):
                if not batches:
                    first = time.perf_counter() - began
                batches += 1
                samples += _count_samples(batch)
        finally:
            ended = time.perf_counter()
            loader.close()
        after = os.times()
        cpu, main = sum(after[:4]) - sum(before[:4]), sum(after[:2]) - sum(before[:2])
        seconds = first if least else ended - began - first
        return _Costs(max(1, samples) * self._samples_per_row, batches, seconds, cpu, main)

    def _measure_states(self, samples: int) -> dict[str, float]:
        """Return sizes of states, and times of resuming, of a stream with and without a shuffle buffer."""
        from webdataset.stages.shuffle import shuffle  # noqa: PLC0415  numpy

        reading = self._stages[: self._reader + 1]
        found = []
        for buffered in (0, _BUFFER):
            stages = [*reading, shuffle(buffered, initial=buffered)] if buffered else reading
            dataset = DataPipeline(*stages).elastic(streams=1)
            found.append(self._resume(dataset))
        (size, seconds), (larger, longer) = found
        waiting = max(1, min(_BUFFER, samples) - 1)
        return {
            "state_bytes_per_stream": size,
            "state_bytes_per_buffered_sample": max(0.0, larger - size) / waiting,
            "resume_seconds_per_stream": seconds,
            "resume_seconds_per_buffered_sample": max(0.0, longer - seconds) / waiting,
        }

    def _resume(self, dataset: ElasticPipeline) -> tuple[float, float]:
        """Return the bytes of a state, and the seconds from it to the next sample."""
        times = []
        size = 0
        for _ in range(self._rounds):
            run = iter(dataset)
            next(run, None)
            state = run.state_dict()
            run.close()
            size = len(json.dumps(state))
            began = time.perf_counter()
            again = iter(dataset)
            again.load_state_dict(state)
            next(again, None)
            times.append(time.perf_counter() - began)
            again.close()
        return float(size), statistics.median(times)


def _tell_apart(small: list[_Costs], large: list[_Costs], cost: Callable[[_Costs], float]) -> tuple[float, float]:
    """Return the cost of a sample and that of a batch, from runs with batches of two sizes."""
    costs = [statistics.median(cost(run) / run.samples for run in runs) for runs in (small, large)]
    shares = [statistics.median(run.batches / run.samples for run in runs) for runs in (small, large)]
    per_batch = max(0.0, (costs[0] - costs[1]) / (shares[0] - shares[1])) if shares[0] > shares[1] else 0.0
    return max(0.0, min(cost - per_batch * share for cost, share in zip(costs, shares, strict=True))), per_batch


def _find_busy(runs: list[_Costs], sample_cpu: float, batch_cpu: float, processors: int) -> float:
    """Return the share of their time in which processors worked, 0 to 1: the median of some runs.

    Args:
        runs: their speeds count, from the first batch on.
        sample_cpu: processor time of a sample.
        batch_cpu: the same of a batch.
        processors: that the runs had.
    """
    shares = []
    for run in runs:
        # of two batches one came before the clock began
        if run.batches >= _FEWEST_BATCHES:
            used = (run.batches - 1) / run.batches * (run.samples * sample_cpu + run.batches * batch_cpu)
            shares.append(used / max(run.seconds * processors, 1e-9))
    return min(1.0, statistics.median(shares)) or 1.0 if shares else 1.0


def _find_spread(seconds: list[float]) -> float:
    return statistics.pstdev(math.log(max(each, 1e-6)) for each in seconds) if len(seconds) > 1 else 0.0


def _count_samples(batch: Mapping[str, Sized] | Sequence[Sized]) -> int:
    return len(next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0])


def _count_bytes(value: object) -> int:
    """Return the bytes of a sample's values."""
    if isinstance(value, dict):
        return sum(_count_bytes(each) for name, each in value.items() if not str(name).startswith("__"))
    if isinstance(value, list | tuple):
        return sum(map(_count_bytes, value))
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    return len(value) if isinstance(value, bytes | bytearray | str) else 8


def _take_for(items: Iterable[T], seconds: float, *, again: bool = True) -> Iterator[T]:
    """Yield items until some seconds are over, at least one; begin ``again`` where they end before."""
    began = time.perf_counter()
    empty = False
    while not empty:
        empty = True
        for item in items:
            empty = not again
            yield item
            if time.perf_counter() - began > seconds:
                return
