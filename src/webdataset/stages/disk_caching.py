"""Samples kept in an LMDB file after the first complete pass.

Flows in: samples. Flows out: the same samples, in the same order, from the file once it is complete. The file holds one
record a sample, numbered in the order in which they came, and a last record that says that all are there; a pass that
is broken off leaves a file without it, which the next pass writes anew.
"""

import os
import pickle
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

from webdataset.ground.errors import UnsafeContent
from webdataset.ground.extras import require
from webdataset.ground.iteration import PipelineStage
from webdataset.ground.topology import place
from webdataset.ground.trust import level

from .base import Stage

_COMPLETE = b"_"  # upstream's mark: files of its making are read too


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
        """
        with closing(self._opened()) as store, store.begin() as reading:
            return reading.get(_COMPLETE) is not None

    def flow(self, upstream: Iterator[Any], memory: Any) -> Iterator[Any]:  # noqa: ARG002
        """Yield samples from the file where it is complete, else from upstream, writing them down.

        Raises:
            MissingExtra: lmdb is not installed.
            UnsafeContent: samples would be unpickled at trust level ``strict``.
        """
        if self.loads is pickle.loads and level() == "strict":
            raise UnsafeContent(f"{self.fname}: a cache of pickled samples is refused at trust level 'strict'")
        yield from self._read() if self.is_complete() else self._written(upstream)

    def _opened(self) -> Any:
        lmdb = require("lmdb", extra="lmdb", purpose="LMDBCached")
        return lmdb.open(self.path(), map_size=self.map_size, subdir=False)

    def _read(self) -> Iterator[Any]:
        with closing(self._opened()) as store, store.begin() as reading, closing(reading.cursor()) as cursor:
            for key, record in cursor:
                if key != _COMPLETE:
                    yield self.loads(record)

    def _written(self, upstream: Iterator[Any]) -> Iterator[Any]:
        with closing(self._opened()) as store:
            with store.begin(write=True) as writing:
                writing.drop(store.open_db(None, txn=writing), delete=False)  # what a broken-off pass left
            written = 0
            while chunk := list(islice(upstream, self.chunksize)):
                with store.begin(write=True) as writing:
                    for number, sample in enumerate(chunk, written):
                        writing.put(number.to_bytes(8, "big"), self.dumps(sample))
                written += len(chunk)
                yield from chunk
            with store.begin(write=True) as writing:
                writing.put(_COMPLETE, b"")

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        """Run this stage alone over ``source``."""
        return self(source)

    def __repr__(self) -> str:
        return f"LMDBCached({self.fname!r})"
