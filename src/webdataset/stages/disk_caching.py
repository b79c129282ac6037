"""Samples kept in an LMDB file after the first complete pass.

Flows in: samples. Flows out: the same samples, in the same order, from the file once it is complete. The file holds one
record a sample, numbered in the order in which they came, and a last record that says that all are there. It is written
under a hidden name and renamed when it is complete: a pass that is broken off leaves none, and passes that write at the
same time, in this process or another, do not mix.
"""

import contextlib
import os
import pickle
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from webdataset.caching.files import sweep
from webdataset.ground.errors import FormatError, UnsafeContent, UsageError
from webdataset.ground.extras import require
from webdataset.ground.iteration import PipelineStage
from webdataset.ground.locks import ForkSafeLock
from webdataset.ground.topology import place
from webdataset.ground.trust import level

from .base import Stage

_COMPLETE = b"_"  # upstream's mark: files of its making are read too
_open: dict[tuple[int, int], list[Any]] = {}  # device and inode to the open file and its readers: LMDB opens it once
_opening = ForkSafeLock()


def _lmdb() -> Any:
    return require("lmdb", extra="lmdb", purpose="LMDBCached")


@contextlib.contextmanager
def _reading(path: str) -> Iterator[Any]:
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
                _open[inode] = [lmdb.open(path, subdir=False, readonly=True, lock=False), 0]
            except lmdb.Error as error:
                raise FormatError(
                    f"no LMDB file ({error}): delete it, and the next pass writes it anew", url=path
                ) from error
        store = _open[inode][0]
        _open[inode][1] += 1
    try:
        yield store
    finally:
        with _opening:
            _open[inode][1] -= 1
            if not _open[inode][1]:
                _open.pop(inode)[0].close()


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

    def __init__(
        self, fname: str | os.PathLike[str], map_size: float = 1e12, pickler: Any = pickle, chunksize: int = 500
    ) -> None:
        self.fname = os.fspath(fname)
        self.map_size = int(map_size)
        self.dumps, self.loads = pickler.dumps, pickler.loads
        self.chunksize = chunksize

    def path(self) -> str:
        """Return the file of this process: ``fname``, with rank and worker behind it where there are several."""
        where = place()
        if where.world_size * where.num_workers == 1:
            return self.fname
        return f"{self.fname}.{where.rank}of{where.world_size}-{where.worker}of{where.num_workers}"

    def is_complete(self) -> bool:
        """Tell whether the file holds a whole pass.

        Raises:
            MissingExtra: lmdb is not installed.
            FormatError: the file is no LMDB file.
        """
        with _reading(self.path()) as store:
            return _marked(store)

    def flow(self, upstream: Iterator[Any], memory: Any) -> Iterator[Any]:  # noqa: ARG002
        """Yield samples from the file where it is complete, else from upstream, writing them down.

        Raises:
            MissingExtra: lmdb is not installed.
            FormatError: the file is no LMDB file.
            UsageError: ``map_size`` is too small.
            UnsafeContent: samples would be unpickled at trust level ``strict``.
        """
        if self.loads is pickle.loads and level() == "strict":
            raise UnsafeContent(f"{self.fname}: a cache of pickled samples is refused at trust level 'strict'")
        with _reading(self.path()) as store:
            complete = _marked(store)
            if complete:
                yield from self._read(store)
        if not complete:
            yield from self._written(upstream)

    def _read(self, store: Any) -> Iterator[Any]:
        with store.begin() as reading, closing(reading.cursor()) as cursor:
            for key, record in cursor:
                if key != _COMPLETE:
                    yield self.loads(record)

    def _written(self, upstream: Iterator[Any]) -> Iterator[Any]:
        lmdb, final = _lmdb(), Path(self.path()).absolute()
        sweep(final.parent)
        part = final.parent / f".wds-{os.getpid()}-{os.urandom(6).hex()}.part"
        try:
            with closing(lmdb.open(str(part), map_size=self.map_size, subdir=False, lock=False, sync=False)) as store:
                written = 0
                while chunk := list(islice(upstream, self.chunksize)):
                    with store.begin(write=True) as writing:
                        for number, sample in enumerate(chunk, written):
                            writing.put(number.to_bytes(8, "big"), self.dumps(sample))
                    written += len(chunk)
                    yield from chunk
                with store.begin(write=True) as writing:
                    writing.put(_COMPLETE, b"")
                store.sync(True)
            part.replace(final)
        except lmdb.MapFullError as error:
            raise UsageError(
                f"{self.fname}: more samples than map_size={self.map_size} bytes: pass a larger one"
            ) from error
        finally:
            part.unlink(missing_ok=True)

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        """Run this stage alone over ``source``."""
        return self(source)

    def __repr__(self) -> str:
        return f"LMDBCached({self.fname!r})"


def _marked(store: Any) -> bool:
    """Tell whether an open file holds a whole pass."""
    if store is None:
        return False
    with store.begin() as reading:
        return reading.get(_COMPLETE) is not None
