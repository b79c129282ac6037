"""Caches samples after the first complete pass, in memory or in an LMDB file.

Later passes give the same samples, in the same order, without reading upstream.

The file holds one record a sample, numbered in the order in which they came, and a last record that marks it
complete. It is written under a hidden name and renamed when it is complete: a pass that is interrupted leaves no
file, and passes that write at the same time, in this process or another, do not mix.
"""

import contextlib
import os
import pickle
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from webdataset.caching.locks import sweep_downloads
from webdataset.core.distributed import WorkerContext, worker_context
from webdataset.core.errors import FlowError, FormatError, SourceError, UnsafeContent, UsageError
from webdataset.core.fork_safety import ForkSafeLock
from webdataset.core.optional_imports import require
from webdataset.core.trust import trust_level
from webdataset.core.upstream_utils import PipelineStage
from webdataset.stages.base import Item, Stage


class Pickler(Protocol):
    """A module, such as ``pickle``, that turns samples into bytes and back."""

    def dumps(self, obj: Any, /) -> bytes:
        """Return the bytes of a sample."""

    def loads(self, data: bytes, /) -> Any:
        """Return the sample that some bytes are of."""


class Cached(Stage, PipelineStage):
    """Keep all samples of the first complete pass in memory, and give them again in every later one.

    Stages after it may put other fields into a sample: what is kept stays as it came (fields themselves are not
    copied, so arrays should not be changed in place). A pass that is broken off keeps nothing. Where a job has several
    ranks or workers, each keeps the samples that it sees, as a thread, too, or after a fork. Pickled copies are empty.

    Flow: in order; holds all samples; resumes by replay.
    """

    state_name = "Cached"

    def __init__(self) -> None:
        self._kept: dict[WorkerContext, list[object]] = {}  # by worker: each sees other samples
        self._marks: dict[WorkerContext, str] = {}

    def kept_samples(self) -> list[object] | None:
        """Return the samples that this worker keeps; None before the first complete pass."""
        return self._kept.get(worker_context())

    # the published name
    cached = property(kept_samples)

    @property
    def mark(self) -> str | None:
        """A text once this worker's samples come from memory; part of snapshots."""
        return self._marks.get(worker_context())

    def flow(self, upstream: Iterator[Item], state: object) -> Iterator[Item]:  # noqa: ARG002
        """Yield samples from memory where there are any, else from upstream."""
        where = worker_context()
        known = self._kept.get(where)
        if known is not None:
            self._marks[where] = "kept"
            for sample in known:
                yield _copy_sample(sample)
            return
        kept = []
        for sample in upstream:
            kept.append(_copy_sample(sample))
            yield sample
        self._kept[where] = kept

    def recall(self, mark: str) -> None:
        """Take up a snapshot that was taken while samples came from memory.

        Args:
            mark: what ``mark`` was.

        Raises:
            FlowError: the memory is empty: the order in which it was filled cannot be brought back.
        """
        if mark == "kept" and self.cached is None:
            raise FlowError(
                "the snapshot was taken while mcached() gave samples from memory, in the order of an earlier pass; "
                "that memory is gone: take snapshots in the first pass"
            )

    def run(self, source: Iterable[Item]) -> Iterator[Item]:
        """Run this stage alone over ``source``."""
        return self(source)

    def __getstate__(self) -> dict[str, object]:
        """Pickle without the samples."""
        return {"_kept": {}, "_marks": {}}

    def __repr__(self) -> str:
        return "Cached()" if (kept := self.kept_samples()) is None else f"Cached({len(kept)} samples)"


def _copy_sample(sample: Any) -> Any:
    """Return a sample that may be given other fields without changing this one."""
    return sample.copy() if type(sample) in (dict, list) else sample


_COMPLETE = b"_"  # upstream's mark: files of its making are read too
_open: dict[tuple[int, int], list[Any]] = {}  # device and inode to the open file and its readers: LMDB opens it once
_opening = ForkSafeLock()


def _lmdb() -> ModuleType:
    return require("lmdb", extra="lmdb", purpose="LMDBCached")


@contextlib.contextmanager
def _open_for_reading(path: str) -> Iterator[Any]:
    """Open a file for reading; None where there is none. What is open already is shared, also in a forked child."""
    lmdb = _lmdb()
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        status = None
    if status is None or not status.st_size:
        yield None
        return
    inode = status.st_dev, status.st_ino
    with _opening:
        if inode not in _open:
            try:
                opened = lmdb.open(path, subdir=False, readonly=True, lock=False)
            except lmdb.Error as error:
                raise FormatError(
                    f"no LMDB file ({error}): delete it, and the next pass writes it anew", url=path
                ) from error
            # it is mapped: the system would end a process that looks for the rest of a file that was cut
            whole = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
            if status.st_size < whole:
                opened.close()
                raise FormatError(
                    f"the LMDB file has {status.st_size} of {whole} bytes, so it was cut: delete it, and the next pass "
                    "writes it anew",
                    url=path,
                )
            _open[inode] = [opened, 0]
        store = _open[inode][0]
        _open[inode][1] += 1
    try:
        yield store
    finally:
        with _opening:
            _open[inode][1] -= 1
            if not _open[inode][1]:
                _open.pop(inode)[0].close()


@contextlib.contextmanager
def _explain_damage(path: str) -> Iterator[None]:
    """Say what to do about a file that cannot be read.

    Raises:
        FormatError: it is damaged.
    """
    try:
        yield
    except _lmdb().Error as error:
        raise FormatError(
            f"the LMDB file is damaged ({error}): delete it, and the next pass writes it anew", url=path
        ) from error


class LMDBCached(Stage, PipelineStage):
    """Keep all samples of the first complete pass in an LMDB file, and read them from there in every later one.

    Where a job has several ranks or workers, each keeps the samples that it sees in a file of its own, named after it.

    Args:
        fname: the file; made where it is not there.
        map_size: largest size of the file in bytes.
        pickler: what turns samples into bytes and back: ``dumps`` and ``loads``.
        chunksize: number of samples written at once.

    Flow: in order; holds ``chunksize`` samples; resumes by replay.
    """

    state_name = "LMDBCached"

    def __init__(
        self, fname: str | os.PathLike[str], map_size: float = 1e12, pickler: Pickler = pickle, chunksize: int = 500
    ) -> None:
        if not isinstance(fname, str | os.PathLike):
            raise UsageError(f"the path of an LMDB file is a str or a pathlib.Path, not {fname!r:.60}")
        self.fname = os.fspath(fname)
        self.map_size = int(map_size)
        self.dumps, self.loads = pickler.dumps, pickler.loads
        self.chunksize = chunksize

    def path(self) -> str:
        """Return the file of this process: ``fname``, with rank and worker after it where there are several."""
        where = worker_context()
        if where.world_size * where.num_workers == 1:
            return self.fname
        return f"{self.fname}.{where.rank}of{where.world_size}-{where.worker}of{where.num_workers}"

    def is_complete(self) -> bool:
        """Tell whether the file holds a whole pass.

        Raises:
            MissingExtra: lmdb is not installed.
            FormatError: the file is no LMDB file.
        """
        with _open_for_reading(self.path()) as store:
            return _holds_whole_pass(store, self.path())

    def flow(self, upstream: Iterator[Item], state: object) -> Iterator[Item]:  # noqa: ARG002
        """Yield samples from the file where it is complete, else from upstream, writing them down.

        Raises:
            MissingExtra: lmdb is not installed.
            FormatError: the file is no LMDB file, or damaged.
            UsageError: ``map_size`` is too small.
            SourceError: the file cannot be written.
            UnsafeContent: samples would be unpickled at trust level ``strict``.
        """
        if self.loads is pickle.loads and trust_level() == "strict":
            raise UnsafeContent(f"{self.fname}: a cache of pickled samples is refused at trust level 'strict'")
        with _open_for_reading(self.path()) as store:
            complete = _holds_whole_pass(store, self.path())
            if complete:
                yield from self._read_samples(store)
        if not complete:
            yield from self._write_through(upstream)

    def _read_samples(self, store: Any) -> Iterator[Any]:
        with _explain_damage(self.path()), store.begin() as reading, closing(reading.cursor()) as cursor:
            for key, record in cursor:
                if key != _COMPLETE:
                    yield self.loads(record)

    def _write_through(self, upstream: Iterator[Item]) -> Iterator[Item]:
        final = Path(self.path()).absolute()
        sweep_downloads(final.parent)
        part = final.parent / f".wds-{os.getpid()}-{os.urandom(6).hex()}.part"
        try:
            with contextlib.ExitStack() as opened:
                with self._explain_writing():
                    store = _lmdb().open(str(part), map_size=self.map_size, subdir=False, lock=False, sync=False)
                opened.callback(store.close)
                written = 0
                while chunk := list(islice(upstream, self.chunksize)):
                    with self._explain_writing(), store.begin(write=True) as writing:
                        for number, sample in enumerate(chunk, written):
                            writing.put(number.to_bytes(8, "big"), self.dumps(sample))
                    written += len(chunk)
                    yield from chunk
                with self._explain_writing():
                    with store.begin(write=True) as writing:
                        writing.put(_COMPLETE, b"")
                    store.sync(True)
            part.replace(final)
        finally:
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _explain_writing(self) -> Iterator[None]:
        """Say what to do where the file cannot be written.

        Raises:
            UsageError: ``map_size`` is too small.
            SourceError: the system refuses.
        """
        lmdb = _lmdb()
        try:
            yield
        except lmdb.MapFullError as error:
            raise UsageError(
                f"{self.fname}: more samples than map_size={self.map_size} bytes: pass a larger one"
            ) from error
        except lmdb.Error as error:
            raise SourceError(
                f"the samples cannot be cached ({error}): see to the space and the rights of the folder",
                url=self.path(),
            ) from error

    def run(self, source: Iterable[Item]) -> Iterator[Item]:
        """Run this stage alone over ``source``."""
        return self(source)

    def __repr__(self) -> str:
        return f"LMDBCached({self.fname!r})"


def _holds_whole_pass(store: Any, path: str) -> bool:
    """Tell whether an open file holds a whole pass."""
    if store is None:
        return False
    with _explain_damage(path), store.begin() as reading:
        return reading.get(_COMPLETE) is not None
