"""Forecasts a training job over many hosts: speed, requests, memory, states, start-up, resuming, failures.

Theory. Which worker reads what is computed by the rule by which datasets are split; only time is modelled. In steady
state each resource (processors, a worker, the rank's own thread, connections, network, store, the trainer) allows a
number of samples a second, and the smallest one is the job's: a fluid model. Processors and workers allow what they do
in the share of their time in which they were busy when rates were measured. The end of an epoch comes when the worker
with the most to read is done. Start and resuming are transients, and consist of steps that follow each other; bursts of
requests are simulated one by one (:mod:`webdataset.cluster.request_bursts`).

Processors and input overlap: workers read ahead. Hosts are alike.
"""

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Final

from webdataset.cluster.reader_shares import ShardTable, share_shards
from webdataset.cluster.request_bursts import RequestBurst, simulate_burst
from webdataset.cluster.training_job import TrainingJob
from webdataset.cluster.training_rates import TrainingRates
from webdataset.core.errors import UsageError
from webdataset.storage.prefetch import FEWEST, MOST, STARVING_BUFFER_BYTES

_PAGE_NAMES: Final = 1000
_RANGE_BYTES: Final = 16 << 20
_UNEVEN: Final = 1.1
_FEW_SHARDS: Final = 10
_BUSY_PREFIX: Final = 0.8
_SMALL_BUFFER: Final = 10
_WORTH_BOUNDING: Final = 0.8


@dataclass(frozen=True)
class TrainingForecast:
    """What a job will do.

    Args:
        bottleneck: the resource that limits the speed.
        samples_per_second: of all ranks; samples of the shards.
        rows_per_second: the same in what the dataset gives: rows, where it packs several samples into one.
        allowed: resource to samples a second of all ranks that it allows.
        trainer_waits: share of the time that a trainer waits for samples, 0 to 1; None without its speed.
        bytes_per_second: that are read, by all hosts.
        requests_per_second: that are sent, by all hosts.
        requests_per_prefix: of these, for one prefix.
        epoch_seconds: of an epoch, without start-up.
        epoch_bytes: that an epoch reads.
        uneven: samples of the process that reads most, over the mean.
        memory_bytes: of a host: buffers, what is read ahead, batches; without the interpreters.
        state_bytes: of all streams together; 0 of a dataset that is not elastic.
        start_seconds: until all ranks have a first batch.
        start_steps: step to seconds of the start.
        start_refused: requests that the store refuses then.
        start_failed: of these, requests that are given up, each of which ends a run.
        resume_seconds: as ``start_seconds``, from a state.
        failures_per_day: of all hosts.
        goodput: share of the time in which the job makes progress that is kept, 0 to 1.
        advice: what limits the job, or will, and what to do.
    """

    bottleneck: str
    samples_per_second: float
    rows_per_second: float
    allowed: dict[str, float]
    trainer_waits: float | None
    bytes_per_second: float
    requests_per_second: float
    requests_per_prefix: float
    epoch_seconds: float
    epoch_bytes: int
    uneven: float
    memory_bytes: float
    state_bytes: float
    start_seconds: float
    start_steps: dict[str, float]
    start_refused: int
    start_failed: int
    resume_seconds: float
    failures_per_day: float
    goodput: float
    advice: list[str]

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON value."""
        return asdict(self)


def forecast_training(table: ShardTable, job: TrainingJob, rates: TrainingRates) -> TrainingForecast:
    """Return what a job will do.

    Args:
        table: the shards.
        job: the job.
        rates: measured on some machine like those of the job.

    Raises:
        UsageError: there are no samples.
    """
    return _Forecaster(table, job, rates).forecast()


class _Forecaster:
    """Holds what the steps of a forecast have in common."""

    def __init__(self, table: ShardTable, job: TrainingJob, rates: TrainingRates) -> None:
        self.job, self.rates = job, rates
        self.start_advice: list[str] = []
        self.shards, self.samples = len(table.samples), int(table.samples.sum())
        if not self.samples:
            raise UsageError("the shards hold no samples: there is nothing to forecast")
        self.shares = share_shards(table, job)
        self.shard_bytes = float(table.size_bytes.mean())
        self.cores = job.cores or rates.cores
        self.processes_of_host = min(job.ranks_per_host, job.ranks) * max(1, job.workers)
        # of the reader that has most of them
        self.streams_of_reader = -(-job.streams // job.readers) if job.streams else 1
        # the buffers of all streams together are as large as the dataset says
        self.stream_buffer = -(-job.shuffle // max(1, job.streams))
        # of a sample that is given: what is read of shards that several processes share counts for each
        self.bytes_read = float(self.shares.size_bytes.sum()) / self.samples
        self.bytes_held = float(table.size_bytes.sum()) / self.samples
        self.shards_read = float(self.shares.shards.sum()) / self.samples
        self.requests = self.shards_read * (1 if self._is_small() else math.ceil(self.shard_bytes / _RANGE_BYTES))

    @property
    def batch_samples(self) -> float:
        """Return how many samples of the shards are in a batch of a rank."""
        return self.job.batch_size * self.rates.samples_per_row

    def _is_small(self) -> bool:
        return self.shard_bytes <= STARVING_BUFFER_BYTES

    @property
    def shards_ahead(self) -> int:
        """Return how many shards a worker that waits opens ahead."""
        held = min(self.shard_bytes, STARVING_BUFFER_BYTES if self._is_small() else _RANGE_BYTES)
        return max(0, min(MOST, int(self.job.prefetch_bytes / max(held, 1))))

    def reader_cpu_seconds(self) -> float:
        """Return processor time of a worker for a sample that it gives."""
        rates = self.rates
        left_to_others = max(0.0, self.bytes_read - self.bytes_held) * rates.cpu_seconds_per_byte
        batch = rates.batch_cpu_seconds / self.batch_samples
        return rates.cpu_seconds_per_sample + self.shards_read * rates.cpu_seconds_per_shard + batch + left_to_others

    def main_cpu_seconds(self) -> float:
        """Return processor time of the rank's own thread for a sample."""
        rates = self.rates
        return rates.main_cpu_seconds_per_sample + rates.main_cpu_seconds_per_batch / self.batch_samples

    def input_seconds(self) -> float:
        """Return the time that a worker's connections take for a sample, all of them busy."""
        rates = self.rates
        transfer = 0.0 if rates.connection_bytes_per_second is None else 1 / rates.connection_bytes_per_second
        lanes = min(self.job.connections, 1 + self.shards_ahead) if self._is_small() else self.job.connections
        return (self.shards_read * rates.mean_first_byte() + self.bytes_read * transfer) / lanes

    def find_speeds(self) -> dict[str, float]:
        """Return resource to samples a second that it allows, of all ranks."""
        job, ranks = self.job, self.job.ranks
        reader, main = self.reader_cpu_seconds(), self.main_cpu_seconds()
        on_host = min(job.ranks_per_host, ranks)
        found = {"processors": self.cores * self.rates.processors_busy / on_host / (reader + main) * ranks}
        busy = self.rates.worker_busy
        if job.workers:
            found["workers"] = job.workers * busy / reader * ranks
            found["rank's thread"] = ranks / main if main else math.inf
        else:
            found["rank's thread"] = ranks * busy / (reader + main)
        if self.input_seconds():
            found["connections"] = max(1, job.workers) / self.input_seconds() * ranks
        if job.host_bytes_per_second is not None:
            found["network of a host"] = job.host_bytes_per_second / on_host / self.bytes_read * ranks
        if job.store_bytes_per_second is not None:
            found["bytes of the store"] = job.store_bytes_per_second / self.bytes_read
        if job.requests_per_second is not None:
            found["requests of the store"] = job.requests_per_second * job.prefixes / self.requests
        if job.host_requests_per_second is not None:
            found["requests of a host"] = job.host_requests_per_second / on_host / self.requests * ranks
        if job.samples_per_second is not None:
            found["trainer"] = job.samples_per_second * self.rates.samples_per_row * ranks
        return {name: speed for name, speed in found.items() if math.isfinite(speed)}

    def forecast(self) -> TrainingForecast:
        """Return what the job will do."""
        job = self.job
        allowed = self.find_speeds()
        bottleneck = min(allowed, key=allowed.__getitem__)
        speed = allowed[bottleneck]
        uneven = float(self.shares.samples.max() / self.shares.samples.mean())
        epoch = self._find_epoch_seconds(speed)
        first, refused, failed = self._find_opening()
        begin = {"processes": self._find_spawn_seconds(), "list of shards": self._find_list_seconds()}
        steps = {**begin, "first bytes": first, "first batch": self._find_fill_seconds(self._count_first_samples())}
        buffered = self.streams_of_reader * self.stream_buffer
        restored = self._find_fill_seconds(self.batch_samples + (0 if job.streams else buffered))
        resume = sum(begin.values()) + first + restored + self._find_restore_seconds(buffered)
        streams = job.streams
        rates = self.rates
        state = streams * (rates.state_bytes_per_stream + self.stream_buffer * rates.state_bytes_per_buffered_sample)
        failures = 0.0 if job.hours_between_failures is None else 24 * job.hosts / max(job.hours_between_failures, 1e-9)
        found = TrainingForecast(
            bottleneck=bottleneck,
            samples_per_second=speed,
            rows_per_second=speed / rates.samples_per_row,
            allowed=allowed,
            trainer_waits=None if "trainer" not in allowed else 1 - speed / allowed["trainer"],
            bytes_per_second=speed * self.bytes_read,
            requests_per_second=speed * self.requests,
            requests_per_prefix=speed * self.requests / job.prefixes,
            epoch_seconds=epoch,
            epoch_bytes=int(self.shares.size_bytes.sum()),
            uneven=uneven,
            memory_bytes=self._find_memory_bytes(),
            state_bytes=state,
            start_seconds=sum(steps.values()),
            start_steps=steps,
            start_refused=refused,
            start_failed=failed,
            resume_seconds=resume,
            failures_per_day=failures,
            goodput=_find_goodput(job, failures, resume),
            advice=[],
        )
        found.advice.extend(self._advise(found))
        return found

    def _find_epoch_seconds(self, speed: float) -> float:
        """Return the time until the process with the most to read is done."""
        job = self.job
        by_rank = self.shares.samples.reshape(job.ranks, -1).sum(axis=1)
        alone = max(self.reader_cpu_seconds() / self.rates.worker_busy, self.input_seconds()) * float(
            self.shares.samples.max()
        )
        # all ranks step together: the one with the most samples says how many steps there are
        return max(float(by_rank.max()) * job.ranks / speed, alone)

    def _find_spawn_seconds(self) -> float:
        job, rates = self.job, self.rates
        if not job.workers:
            return 0.0
        return max(rates.start_seconds, rates.start_cpu_seconds * self.processes_of_host / self.cores)

    def _find_list_seconds(self) -> float:
        """Return the time of a host's list; hosts list at once, and pages follow each other."""
        job = self.job
        if not job.listed:
            return 0.0
        pages = -(-self.shards // _PAGE_NAMES)
        alone = pages * self.rates.mean_first_byte()
        if job.requests_per_second is None:
            return alone
        return max(alone, job.hosts * pages / max(job.requests_per_second, 1e-9))

    def _find_opening(self) -> tuple[float, int, int]:
        """Return the time until the slowest first byte, and how many requests were refused and given up."""
        job, rates = self.job, self.rates
        wait = refused = failed = 0.0
        if job.requests_per_second is not None and rates.connection_bytes_per_second is not None:
            requests = self.processes_of_host * (self.streams_of_reader + FEWEST)
            limit = job.requests_per_second * job.prefixes
            burst = simulate_burst(job.hosts, requests, limit, bound=job.host_requests_per_second)
            self._advise_start(burst, requests, limit)
            wait, refused, failed = burst.seconds, burst.refused, burst.failed
        slowest = rates.first_byte_seconds
        if rates.first_byte_spread:
            slowest *= math.exp(rates.first_byte_spread * NormalDist().inv_cdf(job.readers / (job.readers + 1)))
        return wait + slowest, int(refused), int(failed)

    def _advise_start(self, burst: RequestBurst, requests: int, limit: float) -> None:
        """Say what a bound of each host's requests would save, where the store refuses some of them."""
        if not burst.refused:
            return
        share = limit / self.job.hosts
        bounded = simulate_burst(self.job.hosts, requests, limit, bound=share)
        if bounded.seconds < _WORTH_BOUNDING * burst.seconds:
            self.start_advice.append(
                "when all hosts start at once, the store refuses requests, and hosts that were refused recover slowly: "
                f"the last first byte comes after {_show_number(burst.seconds)} s. With WDS_REQUESTS_PER_SECOND="
                f"{share:.2g} on each host (the store's limit, shared out) it comes after "
                f"{_show_number(bounded.seconds)} s; lift the bound when training runs"
            )

    def _count_first_samples(self) -> int:
        """Return how many samples a process reads before the first batch can be given."""
        job = self.job
        initial = -(-min(job.shuffle, job.shuffle_initial) // max(1, job.streams))
        return self.streams_of_reader * initial + math.ceil(self.batch_samples / max(1, job.workers))

    def _find_fill_seconds(self, samples: float) -> float:
        """Return the time in which all processes read so many samples each, with nothing read ahead."""
        job, rates = self.job, self.rates
        processes = self.processes_of_host
        speeds = [rates.connection_bytes_per_second, _divide(job.host_bytes_per_second, processes)]
        speeds.append(_divide(job.store_bytes_per_second, job.readers))
        slowest = min((speed for speed in speeds if speed is not None), default=math.inf)
        transfer = samples * self.bytes_held / max(slowest, 1e-9)
        cpu = samples * rates.cpu_seconds_per_sample * max(1.0, processes / self.cores)
        return max(transfer, cpu)

    def _find_restore_seconds(self, buffered: int) -> float:
        """Return the time in which a process restores its streams."""
        job, rates = self.job, self.rates
        if not job.streams:
            return 0.0
        seconds = (
            self.streams_of_reader * rates.resume_seconds_per_stream
            + buffered * rates.resume_seconds_per_buffered_sample
        )
        return seconds * max(1.0, self.processes_of_host / self.cores)

    def _find_memory_bytes(self) -> float:
        job, rates = self.job, self.rates
        ahead = min(job.prefetch_bytes, MOST * min(self.shard_bytes, STARVING_BUFFER_BYTES))
        if rates.connection_bytes_per_second is None:
            ahead = 0
        per_process = self.streams_of_reader * self.stream_buffer * self.bytes_held + ahead
        per_rank = (1 + job.batches_ahead) * job.batch_size * rates.decoded_bytes
        return min(job.ranks_per_host, job.ranks) * (max(1, job.workers) * per_process + per_rank)

    def _advise(self, found: TrainingForecast) -> list[str]:
        job, advice = self.job, []
        if found.bottleneck != "trainer":
            advice.append(_ADVICE[found.bottleneck])
        mean = self.shards / (job.streams or job.readers)
        if mean < _FEW_SHARDS:
            what = "stream" if job.streams else "process"
            advice.append(
                f"there are {mean:.3g} shards for each {what}: samples that a shuffle buffer holds together come from "
                f"few shards. Make more and smaller shards, or use fewer {'streams' if job.streams else 'workers'}"
            )
        if found.uneven > _UNEVEN:
            advice.append(
                f"one process reads {found.uneven:.2f} times the mean, so that others wait at the end of an epoch: use "
                "equal_epochs(), split_by_sample, or a number of shards that is a multiple of the processes"
            )
        extra = found.epoch_bytes / (self.bytes_held * self.samples) - 1
        if extra > _UNEVEN - 1:
            advice.append(
                f"an epoch reads {extra:.0%} more bytes than the shards have: several processes read the last shards, "
                "and each keeps some of the samples. Make more shards, or use fewer processes"
            )
        limit = job.requests_per_second
        if limit is not None and found.requests_per_prefix > _BUSY_PREFIX * limit:
            prefixes = math.ceil(found.requests_per_second / (_BUSY_PREFIX * limit))
            advice.append(f"requests reach the limit of a prefix: spread the shards over {prefixes} prefixes")
        advice += self.start_advice
        if found.start_failed:
            advice.append(
                f"about {found.start_failed} requests are given up when all processes open shards at once, and each "
                "ends a run: start hosts one after the other, use more prefixes, or set WDS_REQUESTS_PER_SECOND"
            )
        if job.streams and job.streams % job.readers:
            advice.append(f"{job.streams} streams are no multiple of {job.readers} processes: some have one more")
        if job.streams and job.shuffle and self.stream_buffer < _SMALL_BUFFER:
            advice.append(
                f"shuffle({job.shuffle}) is shared by {job.streams} streams, which leaves {self.stream_buffer} samples "
                f"for each: use shuffle({_SMALL_BUFFER * job.streams}), or fewer streams"
            )
        if job.hours_between_failures is not None and job.checkpoint_seconds:
            best = math.sqrt(2 * job.checkpoint_seconds * 86400 / max(found.failures_per_day, 1e-9)) / 60
            advice.append(f"the best time between two checkpoints is about {best:.0f} minutes")
        return advice


_ADVICE: Final = {
    "processors": "processors are the limit: decode less in training (smaller images, wds map beforehand), or use wds "
    "serve on further machines",
    "workers": "workers are the limit, and processors are free: use more workers",
    "rank's thread": "the thread that trains also takes batches from workers, and is the limit: use larger batches, "
    "smaller samples, or workers where there are none",
    "connections": "workers' connections are the limit: use more workers, larger shards, or more WDS_CONNECTIONS",
    "network of a host": "a host's network is the limit: make samples smaller (resize, recompress), or use more hosts",
    "bytes of the store": "the store's bytes a second are the limit: make samples smaller, or cache shards on hosts",
    "requests of a host": "WDS_REQUESTS_PER_SECOND is the limit: raise it once all hosts have started, or make "
    "larger shards",
    "requests of the store": "the store's requests a second are the limit: make larger shards, or use more prefixes",
}


def _divide(value: float | None, by: int) -> float | None:
    return None if value is None else value / by


def _find_goodput(job: TrainingJob, failures_per_day: float, resume_seconds: float) -> float:
    """Return the share of time that is kept: a failure costs half the time between checkpoints, and the resuming."""
    between = job.checkpoint_minutes * 60
    saving = between / (between + job.checkpoint_seconds) if between else 1.0
    lost = failures_per_day / 86400 * (between / 2 + resume_seconds)
    return max(0.0, saving * (1 - lost))


def _show_number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def describe_forecast(found: TrainingForecast, job: TrainingJob) -> list[tuple[str, str]]:
    """Return a forecast as names and texts.

    Args:
        found: the forecast.
        job: of which job.
    """
    wait = "" if found.trainer_waits is None else f", trainers wait {found.trainer_waits:.0%} of the time"
    packed = not 0.99 < found.rows_per_second / found.samples_per_second < 1.01
    rows_told = f" in {_show_number(found.rows_per_second)} rows/s" if packed else ""
    prefixes = f" ({_show_number(found.requests_per_prefix)} for each prefix)" if job.prefixes > 1 else ""
    steps = ", ".join(f"{step} {seconds:.2g} s" for step, seconds in found.start_steps.items() if seconds)
    hosts = f"{job.hosts} {'host' if job.hosts == 1 else 'hosts'}"
    megabytes, gigabytes = _show_number(found.bytes_per_second / 1e6), _show_number(found.epoch_bytes / 1e9)
    rows = [
        ("job", f"{job.ranks} ranks on {hosts}, {job.readers} processes that read"),
        ("speed", f"{_show_number(found.samples_per_second)} samples/s{rows_told}; limit: {found.bottleneck}{wait}"),
        ("reads", f"{megabytes} MB/s, {_show_number(found.requests_per_second)} requests/s{prefixes}"),
        ("epoch", f"{_show_number(found.epoch_seconds)} s, {gigabytes} GB; largest share {found.uneven:.2f}"),
        ("memory", f"{found.memory_bytes / 1e9:.3g} GB on each host, and the interpreters"),
        ("state", f"{found.state_bytes / 1e6:.3g} MB" if found.state_bytes else "none: the dataset is not elastic"),
        ("start", f"{found.start_seconds:.3g} s ({steps})"),
        ("resume", f"{found.resume_seconds:.3g} s"),
    ]  # fmt: skip
    if found.start_refused:
        rows.append(("refused", f"{found.start_refused} requests at the start, {found.start_failed} of them for good"))
    if found.failures_per_day:
        rows.append(("failures", f"{found.failures_per_day:.3g} a day; {found.goodput:.1%} of the work is kept"))
    return rows
