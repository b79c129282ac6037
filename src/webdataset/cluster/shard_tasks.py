"""Makes one output of a job: what every engine runs, in any process, any number of times.

Theory. A task looks whether its output is done. If not, it reads the output's parts, calls the function for each
sample, writes the output under a partial name, and gives it its name when it is complete; the receipt comes last. So a
task that is killed at any point leaves either a done output or one that is made again, of the same bytes. Two tasks may
make one output at once: the first one's stays, the other compares its digest.

A task returns a :class:`TaskResult` of at most a kilobyte; it raises only what is not an error (``KeyboardInterrupt``).
"""

import contextlib
import errno
import os
import time
from collections.abc import Generator, Sequence
from datetime import UTC, datetime

from webdataset.cluster.death_records import DeathRecord, forget_deaths
from webdataset.cluster.mapped_functions import MappedFunction, open_function
from webdataset.cluster.receipts import (
    decide,
    has_too_many_errors,
    make_receipt,
    read_receipt,
    receipt_url,
    write_receipt,
)
from webdataset.cluster.sample_errors import SampleErrors
from webdataset.cluster.shard_jobs import InputShard, ShardJob
from webdataset.cluster.stored_files import (
    Record,
    StoredIdentity,
    file_name,
    hash_object,
    identify_object,
    make_folder,
    remove_partial_files,
)
from webdataset.cluster.task_files import DigestedOutput, InputReader, make_changed_error
from webdataset.cluster.task_results import TaskResult, fail_result, host_name
from webdataset.core.errors import (
    AlreadyExists,
    FlowError,
    SampleError,
    SourceError,
    WorkerDied,
)
from webdataset.core.logs import log
from webdataset.core.redaction import redact
from webdataset.reshaping.raw_writer import RawShardWriter
from webdataset.samples.raw_samples import RawSample
from webdataset.storage.open_url import local_path

_SHOWN = 400
_LONGEST_PAUSE_SECONDS = 5.0
_LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
_PIECE_BYTES = 1 << 20


def run_task(job: ShardJob, number: int, attempt: int = 1) -> TaskResult:
    """Make an output unless it is done.

    Args:
        job: with this output; :meth:`ShardJob.only` is enough.
        number: of the output.
        attempt: which one this is, from 1; before a later one a task waits a little.
    """
    started = time.monotonic()
    if attempt > 1:
        time.sleep(min(_LONGEST_PAUSE_SECONDS, 0.1 * 2 ** (attempt - 2)))
    result = TaskResult(number, "failed", host=host_name(), pid=os.getpid(), attempt=attempt)
    try:
        state, reason, counts = _make_if_needed(job.only(number), number, attempt)
        result = result._replace(state=state, reason=reason, counts=counts)
    except Exception as error:  # noqa: BLE001  the result says it, and the driver decides
        log.debug("output %d failed", number, exc_info=True)
        result = fail_result(result, error)
    return result._replace(seconds=round(time.monotonic() - started, 6))


def _make_if_needed(job: ShardJob, number: int, attempt: int) -> tuple[str, str, dict[str, int]]:
    decision = decide(job, number)
    if decision.done and decision.receipt is not None and not job.recompute:
        return "skipped", "", decision.receipt["counts"]
    with DeathRecord(job, number) as deaths:
        counts = _OutputTask(job, number, attempt, deaths).run()
    forget_deaths(job, (number,))
    return "done", decision.reason or "asked for", counts


def remove_task_files(job: ShardJob, number: int, *, again: bool = False) -> None:
    """Remove the unfinished files of tasks of an output that were killed on this host.

    Args:
        job: the job.
        number: of the output.
        again: list the folders anew: a task of this run was killed.
    """
    url, errors = job.outputs[number].url, SampleErrors(job, number)
    for each in (url, receipt_url(url), errors.lines_url, errors.samples_url):
        remove_partial_files(each, again=again)


class _OutputTask:
    """Makes one output."""

    def __init__(self, job: ShardJob, number: int, attempt: int, deaths: DeathRecord) -> None:
        self._job, self._number, self._attempt, self._deaths = job, number, attempt, deaths
        self._url = job.outputs[number].url
        self._errors = SampleErrors(job, number)
        self._counts = {"in": 0, "out": 0, "dropped": 0, "errors": 0, "loose": 0}
        self._digests: dict[int, str] = {}
        self._keys: set[str] = set()
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._clock = time.monotonic()

    def run(self) -> dict[str, int]:
        """Make it; return the counts of its samples."""
        function = open_function(self._job)
        make_folder(self._url)
        path = local_path(self._url)
        remove_task_files(self._job, self._number, again=self._attempt > 1)
        target = DigestedOutput(self._url, overwrite=path is None or os.path.lexists(path))
        writer = RawShardWriter(target, compress=self._job.compress or False, level=self._job.level)
        try:
            self._write(function, writer)
            self._counts["errors"] = self._errors.count
            if has_too_many_errors(self._job, self._counts):
                raise SampleError(
                    f"{self._errors.count} of {self._counts['in']} samples failed, and "
                    f"max_errors={self._job.max_errors:g} allows no more: the function may be wrong"
                )
            quarantine = self._errors.finish()
            self._complete(writer, target)
        finally:
            # nothing happens to what is complete
            writer.abort()
            self._errors.abort()
        self._check_inputs()
        self._write_receipt(target, quarantine)
        return self._counts

    def _write(self, function: MappedFunction, writer: RawShardWriter) -> None:
        samples = self._read()
        with contextlib.closing(samples):
            if function.streams:
                # what is taken from the iterator is counted where it is read
                for made in function.map_stream(sample for _, sample in samples):
                    self._check_keys([made])
                    writer.write(made)
                    self._counts["out"] += 1
                # a function may stop early: what it did not take was dropped
                return
            for ordinal, sample in samples:
                try:
                    several = self._map(function, ordinal, sample)
                    self._check_keys(several)
                except Exception as error:  # noqa: BLE001  raised again, or kept, as the job says
                    self._errors.add(ordinal, sample, error)
                    continue
                self._counts["dropped"] += not several
                for made in several:
                    writer.write(made)
                self._counts["out"] += len(several)

    def _map(self, function: MappedFunction, ordinal: int, sample: RawSample) -> list[RawSample]:
        if ordinal in self._deaths.fatal:
            raise WorkerDied(
                "the sample killed the process that worked on it, again and again", key=sample.key, url=sample.url
            )
        return function.map_sample(sample)

    def _check_keys(self, made: Sequence[RawSample]) -> None:
        """Take note of keys.

        Raises:
            SampleError: a key that the output has already.
        """
        keys = [sample.key for sample in made]
        for place, key in enumerate(keys):
            if key in self._keys or key in keys[:place]:
                raise SampleError(
                    "the output would have two samples of this key, which are read as parts of one: give '__key__' "
                    "distinct values",
                    key=key,
                    url=made[place].url,
                )
        self._keys.update(keys)

    def _read(self) -> Generator[tuple[int, RawSample], None, None]:
        """Yield the samples of the output's parts, and their ordinals."""
        ordinal = 0
        for part in self._job.outputs[self._number].parts:
            if part.stop is not None and part.stop <= part.start:
                continue
            shard = self._job.inputs[part.number]
            with contextlib.closing(InputReader(shard, part, self._job.storage_options)) as reader:
                for sample in reader:
                    self._deaths.begin(ordinal)
                    self._counts["in"] += 1
                    yield ordinal, sample
                    ordinal += 1
                digest = reader.finish()
            self._counts["loose"] += reader.loose_count
            if digest is not None:
                self._digests[part.number] = digest

    def _complete(self, writer: RawShardWriter, target: DigestedOutput) -> None:
        """Give the output its name; one that another task completed meanwhile stays, if it is the same.

        Raises:
            FlowError: it is another: the function is not deterministic.
        """
        try:
            writer.close()
        except AlreadyExists as error:
            target.remove_partial()
            if hash_object(self._url) == target.hexdigest():
                return
            raise self._make_difference_error() from error

    def _make_difference_error(self) -> FlowError:
        other = (read_receipt(self._url) or {}).get("run", {}).get("host", "another task")
        return FlowError(
            f"two tasks made different outputs: one on {other}, and this one on {host_name()}. The function gives "
            "something else each time (unseeded random numbers, time, order of a set), or it was changed during the "
            "run. Take wds.sample_rng(key) for random numbers, and run again",
            url=self._url,
        )

    def _check_other(self, stored: StoredIdentity, digest: str, receipt: Record) -> None:
        """Raise where another task has described what is stored now, and it is not what this task wrote.

        A store keeps the later of two objects, and the earlier task may describe it for its own: such a receipt is
        replaced, since a later run would take what is stored for the output of another function.

        Raises:
            FlowError: it is not what this task wrote.
        """
        described = (read_receipt(self._url) or {}).get("output", {})
        if StoredIdentity.from_json(described) == stored and described.get("blake2b") != digest:
            if hash_object(self._url) == digest:
                write_receipt(self._url, receipt)
            raise self._make_difference_error()

    def _check_inputs(self) -> None:
        """Raise where an input is no longer the one that was planned, so that no receipt says that it was."""
        for shard in self._job.inputs.values():
            if shard.identity.mtime_ns is not None:
                _compare_identity(shard, identify_object(shard.url))

    def _write_receipt(self, target: DigestedOutput, quarantine: Record | None) -> None:
        stored = identify_object(self._url)
        if stored.size is not None and stored.size != target.size:
            raise SourceError(
                f"the output has {stored.size} bytes, and {target.size} were written: another writer replaced it",
                url=self._url,
            )
        output = {"name": redact(file_name(self._url)), "size": target.size, "blake2b": target.hexdigest()}
        from webdataset import __version__  # noqa: PLC0415  the root package

        run = {
            "engine": self._job.engine,
            "host": host_name(),
            "pid": os.getpid(),
            "attempt": self._attempt,
            "started": self._started,
            "seconds": round(time.monotonic() - self._clock, 3),
            "wds": __version__,
        }
        receipt = make_receipt(
            self._job,
            self._number,
            output={**stored.to_json(), **output},
            counts=self._counts,
            digests=self._digests,
            quarantine=quarantine,
            run=run,
        )
        self._check_other(stored, target.hexdigest(), receipt)
        write_receipt(self._url, receipt)


def _compare_identity(shard: InputShard, now: StoredIdentity) -> None:
    if now[:2] != shard.identity[:2] or now.mtime_ns != shard.identity.mtime_ns:
        raise make_changed_error(shard.url)
