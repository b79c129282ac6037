"""The writer of a series of shards: samples in, numbered tar files out.

Flows in: samples. Flows out: shards of bounded count and size, each complete under its name or not there. Never has
more than one shard open.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from webdataset.ground.errors import UsageError
from webdataset.ground.logs import log

from .existing import ExistingShards
from .keys import KeyRules
from .numbering import Namer, shard_namer
from .outputs import Owned
from .tarwriter import TarWriter


class ShardWriter:
    """Write samples to a series of shards.

    A shard is opened by the first sample that goes into it, so an unused writer leaves no file. A full shard is
    completed when the next sample comes. After an exception inside ``with`` the completed shards stay, and the one in
    progress is not there. Names are logged at INFO level, not printed.

    Args:
        pattern: name of the shards, with ``%06d`` or ``{shard:06d}`` where the number goes, and ``{rank}`` or
            ``{worker}`` where several processes write; or a function of the number.
        maxcount: samples per shard at most.
        maxsize: payload bytes per shard; the sample that reaches it is the shard's last.
        post: called with each completed shard's name.
        start_shard: number of the first shard.
        verbose: 0 logs nothing.
        opener: called with a shard's name, gives the file object to write to; it is closed with the shard.
        exist: what to do about shards of this pattern that are there already. ``"error"`` refuses, here, those with
            ``start_shard`` or a higher number. ``"warn"`` warns, on closing, of higher numbers than this run wrote that
            are older: those of a longer series, which readers would mix with the new ones. ``"ignore"`` does neither.
            None warns of local files that a pattern names; the others list an object store, too (one listing), and
            ask a function for names.
        **kw: as for :class:`TarWriter`. ``index`` may name "wids", too (one ``shardindex.json``); with "energon" the
            folder ``.nv-meta`` is written when the series is complete. ``overwrite=False`` raises AlreadyExists where a
            shard is there already; by default it is replaced. In either case a shard that another writer completes
            during the writing of the same name is an error, not a loss.

    Attributes:
        fname: name of the shard in progress, else of the last one (at first, of the first).
        shard: number that the next shard gets; may be set.
        total: samples so far.
        count: samples in the shard in progress, else in the last one.
        size: payload bytes in it.
        tarstream: its TarWriter; None before the first.

    Raises:
        UsageError: a pattern or bound that cannot mean anything; or ``exist="error"`` where nothing can be listed.
        AlreadyExists: shards that ``exist="error"`` refuses.
    """

    def __init__(  # noqa: PLR0917  upstream's order
        self,
        pattern: str | os.PathLike[str] | Namer,
        maxcount: int = 100000,
        maxsize: float = 3e9,
        post: Callable[[str], Any] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], Any] | None = None,
        *,
        exist: str | None = None,
        **kw: Any,
    ) -> None:
        if maxcount < 1 or maxsize <= 0:
            raise UsageError(f"maxcount={maxcount} and maxsize={maxsize} leave no room for a sample")
        self.pattern, self.maxcount, self.maxsize = pattern, maxcount, maxsize
        self.post, self.verbose, self.opener, self.kw = post, verbose, opener, kw
        self._name, self._start = shard_namer(pattern), start_shard
        called = self._name is pattern
        self._existing = ExistingShards(self._name, start_shard, exist, opened=opener is not None, called=called)
        self._rules = KeyRules(kw.pop("check_keys", "warn"))
        index = kw.pop("index", None)
        self._indexing = None if index is None else _series(index, opener)
        self.shard = start_shard
        self.fname = self._name(start_shard)
        self.total = self.count = self.size = 0
        self.tarstream: TarWriter | None = None
        self._closed = False

    def write(self, obj: Mapping[str, Any]) -> int:
        """Write one sample, into a new shard if the present one is full.

        Args:
            obj: fields by extension, and ``__key__``.

        Returns:
            Bytes of payload.

        Raises:
            UsageError: the writer is closed.
            WebDatasetError: as for :meth:`TarWriter.write`.
        """
        writer = self.tarstream
        if writer is None or writer.closed or self.count >= self.maxcount or self.size >= self.maxsize:
            writer = self.next_stream()
        size = writer.write(obj)
        self.count += 1
        self.total += 1
        self.size += size
        return size

    def next_stream(self) -> TarWriter:
        """Complete the present shard and open the next one.

        Returns:
            Its TarWriter.

        Raises:
            UsageError: the writer is closed.
            SourceError: either shard fails.
        """
        if self._closed:
            raise UsageError("this ShardWriter is closed: no sample can be added", url=self.fname)
        self.finish()
        if self.tarstream is not None or self.shard != self._start:
            self.fname = self._name(self.shard)
        if self.verbose:
            log.info("writing %s (%d samples so far)", self.fname, self.total)
        target = self.fname if self.opener is None else Owned(self.opener(self.fname))
        writer: TarWriter = self._writer(target)
        self.tarstream = writer
        self.shard += 1
        self.count = self.size = 0
        return writer

    def _writer(self, target: Any) -> Any:
        """Return the writer of the next shard."""
        index = {} if self._indexing is None else {"index": self._indexing.formats}
        return TarWriter(target, check_keys=self._rules, **index, **self.kw)

    def finish(self) -> None:
        """Complete the present shard, if there is one; one without samples is given up instead.

        Raises:
            SourceError: it cannot be completed.
        """
        if self.tarstream is None or self.tarstream.closed:
            return
        if not self.count:
            self.tarstream.abort()
            return
        self.tarstream.close()
        if self._indexing is not None:
            self._indexing.completed(self.tarstream.shard_index)
        self._existing.completed(self.fname)
        if self.post is not None:
            self.post(self.fname)

    def close(self) -> None:
        """Complete the last shard. Closing again does nothing.

        Raises:
            SourceError: it cannot be completed.
        """
        closed, self._closed = self._closed, True
        try:
            self.finish()
            if self._indexing is not None and not closed:
                self._indexing.close()
            if not closed:
                self._existing.warn(self.shard)
        finally:
            if self._indexing is not None:
                self._indexing.abort()  # does nothing to what is complete

    def abort(self) -> None:
        """Give up the shard in progress; completed shards stay, and no more are written."""
        self._closed = True
        if self._indexing is not None:
            self._indexing.abort()
        if self.tarstream is not None:
            self.tarstream.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the last shard, or give it up if an exception passes."""
        if kind is None:
            self.close()
        else:
            self.abort()


def _series(index: Any, opener: Any) -> Any:
    if opener is not None:
        raise UsageError("index= puts files beside local shards: it cannot be combined with opener=")
    room = importlib.import_module("webdataset.writing.indexing")  # only writers that index pay for it
    return room.SeriesIndexing(index)
