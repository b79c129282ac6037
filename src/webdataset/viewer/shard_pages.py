"""One shard in pages of samples, read no farther than it is looked at.

Theory. With an index beside the shard, any page is known at once, and each header is compared with the index when a
field is read; a large index is loaded while the first pages are shown without it. Without one, the headers are walked
from the start, by the same code that builds indexes and in the same steps, so that sample *i* of a page is sample *i*
of the stream; what was walked is remembered. The walk continues past a field that stands twice and past parts of
samples, as the stream reader does with a handler that continues, and stops where the archive is damaged. ``problem``
says what was met first, or where it stopped.

Never gives a sample that the stream reader would not give, and never bytes that an index claims without proof.
"""

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from webdataset.core.errors import (
    FlowError,
    NoSuchSample,
    SampleError,
    ShardChanged,
    SourceError,
    StaleIndex,
    UsageError,
)
from webdataset.core.redaction import redact
from webdataset.index.build import RangeWalk
from webdataset.index.convert import stale_error
from webdataset.index.entries import FieldEntry, SampleEntry, ShardIndex
from webdataset.index.lookup import find_index, find_index_beside
from webdataset.index.sample_fetch import UnprovenHeader, check_header, fetch_sample
from webdataset.samples.sample_reader import Reading
from webdataset.tar.header import BLOCK
from webdataset.viewer.shard_bytes import BlockCache, ByteSource, ReadStatistics, open_source

_PATIENCE_SECONDS: Final = 0.5
_NEAR: Final = 1000
_MOST_PLACES: Final = 1 << 16
_HEAD_BYTES: Final = 64 * 1024
_PREFETCHED: Final = 16 << 20
_PREFETCH_RUN: Final = 4 << 20
_LARGEST_UNPROVEN: Final = 64 << 20


class HeadersPending(FlowError):
    """A sample far in a shard without an index: this request has read headers for its time, the next one continues."""

    http_status = 202


class Problem(NamedTuple):
    """What is wrong with a shard.

    Args:
        message: secrets removed.
        offset: in bytes of the tar stream, or None.
        stops: no sample after it is shown.
    """

    message: str
    offset: int | None
    stops: bool = False


class Page(NamedTuple):
    """Some samples of a shard.

    Args:
        entries: in the order of the stream.
        end: whether no sample comes after them.
        problem: what is wrong with the shard, as far as it was read, or None.
    """

    entries: list[SampleEntry]
    end: bool
    problem: Problem | None


class _IndexLoad:
    """Loads the index that is named, or looks for one beside the shard, in a thread.

    Attributes:
        index: what was found, or None.
        error: why an index cannot be used, or None.
    """

    def __init__(self, url: str, source: ByteSource, reading: Reading, named: str | None) -> None:
        self._named = named
        self.index: ShardIndex | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._load, args=(url, source, reading), name="index", daemon=True)
        self._thread.start()

    def _load(self, url: str, source: ByteSource, reading: Reading) -> None:
        try:
            beside = self._named is None
            self.index = (
                find_index_beside(url, source, reading) if beside else find_index(url, source, self._named, reading)
            )
        except StaleIndex as error:
            self.error = error
        except Exception:  # noqa: BLE001  damage, or a store that refuses: the walk meets the same
            self.index = None

    def is_over(self, patience_seconds: float | None) -> bool:
        """Tell whether it has ended, after some time at most.

        Args:
            patience_seconds: None waits for the end.
        """
        self._thread.join(patience_seconds)
        return not self._thread.is_alive()


class ShardView:
    """One shard that is looked at. Its methods may be called by several threads.

    Args:
        number: of the shard among the inputs.
        url: of the shard; it never leaves the server as it is.
        reading: the rules of reading.
        cache: of the blocks of remote shards.
        index: path of its index; None looks for one beside it.

    Attributes:
        number: as given.
        name: the url without its secrets.
        url: as given.
    """

    def __init__(self, number: int, url: str, reading: Reading, cache: BlockCache, index: str | None = None) -> None:
        self.number = number
        self._index_file = index
        self.url = url
        self.name = redact(url)
        self._reading = Reading(**{**_fields_of(reading), "handler": self._note})
        self._cache = cache
        self._lock = threading.RLock()
        self._source: ByteSource | None = None
        self._index: ShardIndex | None = None
        self._walk: RangeWalk | None = None
        self._done = False
        self._problem: Problem | None = None
        self._loading: _IndexLoad | None = None
        # where payloads start, to the numbers of their samples
        self._places: OrderedDict[int, int] = OrderedDict()

    @property
    def indexed(self) -> bool:
        """Whether an index lies beside the shard; known once the shard was opened."""
        return self._index is not None

    @property
    def sequential(self) -> bool:
        """Whether the shard is read front to back; known once the shard was opened."""
        return self._source is not None and self._source.sequential

    @property
    def count(self) -> int | None:
        """Number of its samples, where that is known."""
        if self._index is not None:
            return len(self._index.entries)
        return len(self._walk.builder.entries) if self._walk is not None and self._done else None

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the shard as it is stored, where that is known."""
        return None if self._source is None else self._source.stored_bytes

    @property
    def problem(self) -> Problem | None:
        """What is wrong with it, as far as it was read."""
        return self._problem

    @property
    def read_statistics(self) -> ReadStatistics:
        """What was read of it so far."""
        return ReadStatistics(0, 0) if self._source is None else self._source.statistics()

    def open(self) -> ByteSource:
        """Open the shard, if it is not open yet, and look for an index beside it.

        Raises:
            SourceError: it cannot be opened.
        """
        with self._lock:
            if self._source is None:
                source = open_source(self.url, self._reading, self._cache)
                if not source.sequential:
                    self._loading = _IndexLoad(self.url, source, self._reading, self._index_file)
                self._walk = RangeWalk(self.url, source, self._reading, follow_links=not source.sequential)
                self._walk.builder.quiet = True
                self._source = source
            return self._source

    def await_index(self) -> None:
        """Wait until it is known whether an index lies beside the shard, and use it.

        Raises:
            SourceError: the shard cannot be opened.
        """
        with self._lock:
            self.open()
            self._adopt_index(None)

    def _adopt_index(self, patience_seconds: float | None) -> None:
        """Use the index beside the shard once it is loaded."""
        loading = self._loading
        if loading is None or not loading.is_over(patience_seconds):
            return
        self._loading = None
        self._index = loading.index
        if loading.error is not None:
            self._note(loading.error)

    def _note(self, error: BaseException, *, stops: bool = False) -> bool:
        """Remember what is wrong first, or what ends the shard; else the reader continues."""
        if self._problem is None or stops:
            offset = getattr(error, "offset", None)
            message = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
            self._problem = Problem(redact(str(message)), offset, stops)
        return True

    def page(self, start: int, count: int, walk_seconds: float | None = None) -> Page:
        """Return some samples; headers are read no farther than they need.

        Args:
            start: number of the first.
            count: how many.
            walk_seconds: read headers no longer than that; None: as long as it takes.

        Raises:
            UsageError: a negative number.
            SourceError: the shard cannot be opened.
            HeadersPending: the time is over; what was read is remembered.
        """
        if start < 0 or count < 0:
            raise UsageError(f"samples are numbered from 0: start={start}, count={count}")
        with self._lock, self._forgetting():
            entries = self._reach(start + count, walk_seconds)
            stop = min(start + count, len(entries))
            found = [entries[ordinal] for ordinal in range(start, stop)]
            for ordinal, entry in enumerate(found, start):
                self._remember(ordinal, entry)
            end = start + count >= len(entries) and (self._index is not None or self._done)
            return Page(found, end, self._problem)

    @contextlib.contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Forget a shard that has changed, so that the next request opens it anew."""
        try:
            yield
        except ShardChanged:
            self.close()
            raise

    def entry(self, ordinal: int, walk_seconds: float | None = None) -> SampleEntry:
        """Return where a sample is.

        Args:
            ordinal: its number in the shard.
            walk_seconds: as for :meth:`page`.

        Raises:
            NoSuchSample: there is no such number.
            SourceError: the shard cannot be opened.
            HeadersPending: the time is over.
        """
        found = self.page(ordinal, 1, walk_seconds).entries
        if not found:
            raise NoSuchSample(f"the shard has no sample {ordinal}", url=self.url)
        return found[0]

    def samples(self, start: int = 0) -> Iterator[tuple[int, SampleEntry]]:
        """Yield numbers and places of the samples from one on; the shard is read as they are asked for.

        Args:
            start: number of the first.
        """
        while True:
            page = self.page(start, 64)
            yield from enumerate(page.entries, start)
            start += len(page.entries)
            if page.end or not page.entries:
                return

    def _reach(self, wanted: int, walk_seconds: float | None = None) -> Sequence[SampleEntry]:
        """Walk until so many samples are known, or the shard ends; return all that are known.

        Raises:
            HeadersPending: the time is over before that.
        """
        deadline = None if walk_seconds is None else time.monotonic() + walk_seconds
        source = self.open()
        walk = self._walk
        known = 0 if walk is None else len(walk.builder.entries)
        if known < wanted and not self._done:
            # a large index takes its time: pages near those that were walked do without it
            self._adopt_index(_PATIENCE_SECONDS if wanted <= known + _NEAR else None)
        else:
            self._adopt_index(0)
        if self._index is not None:
            return self._index.entries
        if walk is None:
            return ()
        entries = walk.builder.entries
        while len(entries) < wanted and not self._done:
            try:
                if not walk.step():
                    self._finish(walk, source)
            except SourceError as error:
                # a store may answer when it is asked again; a stream that broke off is over
                if not source.sequential:
                    raise
                self._break_off(walk, source, error)
            except Exception as error:  # noqa: BLE001  damage: the samples before it are shown
                self._break_off(walk, source, error)
            # after a step: each request comes farther than the one before
            if deadline is not None and time.monotonic() > deadline and len(entries) < wanted and not self._done:
                raise HeadersPending(
                    f"{len(entries)} samples of the shard are known so far, and sample {wanted - 1} is asked for: ask "
                    "again, or write an index beside the shard (wds.write_indexes)",
                    url=self.url,
                )
        return entries

    def _break_off(self, walk: RangeWalk, source: ByteSource, error: Exception) -> None:
        """Take what is whole before damage."""
        self._done = True
        if source.failure is not None:
            walk.builder.take_last(source.position)
        self._note(error, stops=True)

    def _finish(self, walk: RangeWalk, source: ByteSource) -> None:
        if source.failure is not None:
            raise source.failure
        walk.builder.finish(walk.length, stored=source.stored_bytes)
        self._done = True

    def _remember(self, ordinal: int, entry: SampleEntry) -> None:
        """Keep the number of a sample by the places of its payloads: of those alone that need more than a read."""
        if self._index is None and (self._walk is None or ordinal not in self._walk.builder.sparse):
            return
        for field in entry.fields:
            self._places[field.offset] = ordinal
            self._places.move_to_end(field.offset)
        while len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)

    def read_field(self, field: FieldEntry, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes of a field.

        Args:
            field: of an entry of this shard.
            start: first byte.
            stop: byte to stop before; None is the end.

        Raises:
            StaleIndex: the index beside the shard does not describe it.
            SourceError: the shard cannot be read.
        """
        with self._forgetting():
            return self._read_field(self.open(), field, start, stop)

    def _read_field(self, source: ByteSource, field: FieldEntry, start: int, stop: int | None) -> bytes:
        stop = field.size if stop is None else min(stop, field.size)
        start = max(start, 0)
        if stop <= start:
            return b""
        ordinal = self._places.get(field.offset)
        if ordinal is not None and self._is_unproven(source, field, ordinal):
            return self._read_proven(source, field, ordinal)[start:stop]
        content = source.read_at(field.offset + start, stop - start)
        while len(content) < stop - start:
            more = source.read_at(field.offset + start + len(content), stop - start - len(content))
            if not more:
                raise SourceError(f"the shard ends before the end of {field.member!r}", offset=field.offset)
            content += more
        return content

    def _is_unproven(self, source: ByteSource, field: FieldEntry, ordinal: int) -> bool:
        """Tell whether a field's bytes have to be read with its sample, as the stream reader does."""
        if self._index is None or ordinal in self._index.sparse:
            return True
        if field.offset < BLOCK:
            raise stale_error("a payload cannot stand before its header", field=field.member, offset=field.offset)
        try:
            check_header(source.read_at(field.offset - BLOCK, BLOCK), field)
        except UnprovenHeader:
            return True
        return False

    def _read_proven(self, source: ByteSource, field: FieldEntry, ordinal: int) -> bytes:
        if field.size > _LARGEST_UNPROVEN:
            raise SampleError(
                f"{field.member!r} has {field.size} bytes and is stored in pieces: the viewer shows such fields up to "
                f"{_LARGEST_UNPROVEN} bytes; 'wds cat --field' writes it",
                offset=field.offset,
            )
        index = self._index
        if index is None and self._walk is not None:
            builder = self._walk.builder
            end = min(source.length, builder.walk.end)
            index = ShardIndex(self.url, None, end, builder.entries, sparse=frozenset(builder.sparse))
        if index is None:
            raise NoSuchSample(f"the shard has no sample {ordinal}", url=self.url)
        payload: bytes = fetch_sample(index, ordinal, source, self._reading, (field.name,))[field.name]
        return payload

    def payloads(self, entry: SampleEntry, limit_bytes: int | None = None) -> dict[str, bytes]:
        """Return the bytes of a sample's fields.

        Args:
            entry: of this shard.
            limit_bytes: fields of more bytes are left out.

        Raises:
            WebDatasetError: as for :meth:`read_field`.
        """
        chosen = [field for field in entry.fields if limit_bytes is None or field.size <= limit_bytes]
        return {field.name: self.read_field(field) for field in chosen}

    def prefetch(self, entries: Sequence[SampleEntry], head_bytes: int = _HEAD_BYTES) -> None:
        """Read what a page of a remote shard needs, with what lies near each other in one request.

        Args:
            entries: of this shard.
            head_bytes: how much of each field is needed.
        """
        source = self.open()
        if source.sequential or source.latency_bytes < _HEAD_BYTES:
            return
        left, start, stop = _PREFETCHED, 0, 0
        for field in sorted((field for entry in entries for field in entry.fields), key=_offset_of):
            first, last = field.offset - BLOCK, field.offset + min(field.size, head_bytes)
            if stop and first - stop <= source.latency_bytes and last - start <= _PREFETCH_RUN:
                stop = max(stop, last)
                continue
            if stop > start:
                source.read_at(start, stop - start)
                left -= stop - start
            start, stop = max(0, first), last
            if left <= 0:
                return
        if stop > start:
            source.read_at(start, stop - start)

    def read_bytes(self, offset: int, count: int) -> bytes:
        """Return bytes of the tar stream.

        Args:
            offset: of the first.
            count: how many; fewer come at the end.

        Raises:
            SourceError: the shard cannot be read.
        """
        with self._forgetting():
            return self.open().read_at(offset, count)

    def close(self) -> None:
        """Let go of the shard, and forget what was found; it is opened again when it is asked again.

        A shard that another thread is reading is left to it.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            source, self._source = self._source, None
            self._index = self._walk = self._problem = self._loading = None
            self._done = False
            self._places.clear()
            if source is not None:
                source.close()
        finally:
            self._lock.release()


def _offset_of(field: FieldEntry) -> int:
    return field.offset


def _fields_of(reading: Reading) -> dict[str, Any]:
    return {name: getattr(reading, name) for name in reading.__dataclass_fields__}
