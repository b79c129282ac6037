"""Builds the index of a shard: from its headers alone where the source allows it, else from all of its bytes.

Theory. Headers are chained: each says where the next one is. Where payloads are large, one short read a member finds
them all; where payloads are small, whole stretches are read instead. The next read is chosen from what the last one
showed. Members are grouped by the reader's own grouper, so that sample *i* of the
:class:`~webdataset.index.entries.ShardIndex` is sample *i* of the stream.

Never takes a member that is not whole, and never gives an index of a shard whose headers the stream reader would call
damaged (the map that lies in some sparse payloads is not read).
"""

import dataclasses
import hashlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from webdataset.core.error_handlers import Handler, reraise_exception, with_location
from webdataset.core.errors import NoRandomAccess, UsageError, WebDatasetError, check_keywords
from webdataset.index.entries import FieldEntry, SampleEntries, SampleEntry, ShardIndex
from webdataset.index.plain_members import NativeWalker, PlainRun
from webdataset.samples.links import LinkResolver, ReadAt, open_random_access
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_reader import check_end_mark, warn_trailing, warn_unusual_join
from webdataset.samples.split_samples import track_keys
from webdataset.shards.expand import expand_urls
from webdataset.shards.lists import ShardList
from webdataset.storage.open_url import open_stream
from webdataset.storage.random_access import LocalRanges, RandomAccess, open_ranges
from webdataset.storage.streams import Stream
from webdataset.tar.compression import Decompressor, detect_compression
from webdataset.tar.member_assembly import PayloadlessMember
from webdataset.tar.walker import MemberPosition


class IndexBuilder:
    """One shard's bytes to its index, without reading anything.

    Args:
        url: the shard.
        reading: the rules of reading: which members, which names, what to do about duplicates.
        source: gives what reads the shard anywhere, for the targets of hard links; None: they cannot be read again.

    Attributes:
        entries: the samples that are complete so far.
        sparse: ordinals of those with a sparse member.
    """

    def __init__(self, url: str, reading: Reading, source: Callable[[], ReadAt | None] = lambda: None) -> None:
        self.url = url
        self.reading = reading
        self.entries = SampleEntries()
        self.quiet = False
        self.sparse: set[int] = set()
        # the last member: it may not be whole yet
        self._held: list[MemberPosition] = []
        self.links = LinkResolver(url, reading.limits, source, reading.rename_files, places=True)
        self._grouper = reading.grouper()
        self._grouper.open({"__url__": url})
        self.walk = NativeWalker(reading.admit(), reading.limits, self._grouper)
        self.finished = track_keys(url, reading, self._grouper)

    def feed(self, chunk: bytes, offset: int) -> list[int]:
        """Take some bytes of the tar stream, and return the sizes of the members found in them, or of the largest.

        Args:
            chunk: the bytes; payloads may be left out.
            offset: where they start; at most ``walk.wants[0]``.

        Raises:
            TarError: the shard is damaged.
            DuplicateField: a field stands twice in a sample, and ``reading`` calls that an error.
            SplitSample: the members of a sample do not stand next to each other, and ``reading`` calls that an error.
        """
        largest = self._feed_run(chunk, offset) if self.walk.may_take(chunk, offset) else 0
        places = self.walk.walk(chunk, offset)
        ready = self._held + places
        payloadless = [entry._replace(place=entry.place + len(self._held)) for entry in self.walk.payloadless]
        # a link after the last member says that it is whole
        alone = self.walk.error is None and not (payloadless and payloadless[-1].place == len(ready))
        self._held = ready[-1:] if alone else []
        self.group(ready[: len(ready) - len(self._held)], payloadless)
        if self.walk.error is not None:
            raise self._explain_error(self.walk.error)
        return [largest, *(place.size for place in places)]

    def _feed_run(self, chunk: bytes, offset: int) -> int:
        """Take a run of plain members, if there is one; return the size of the largest."""
        # bytes come after it
        held, self._held = self._held, []
        self.group(held)
        run = self.walk.take_run(chunk, offset)
        if run is None:
            return 0
        if run.continued is not None:
            self._add([run.continued[0]], [run.continued[1]])
        if run.samples:
            self._add_run(run)
        return run.largest

    def _add_run(self, run: PlainRun) -> None:
        """Add samples whose fields are located already."""
        keys, skip = [sample["__key__"] for sample in run.samples], len(self._grouper.stamped)
        parts = self._judge(run.samples, run.starts)
        if not parts:
            self.entries.extend(keys, run.starts, run.shapes, run.offsets, run.sizes, skip=skip)
            return
        row = 0
        for index, shape in enumerate(run.shapes):
            stop = row + len(shape) - skip
            if index not in parts:
                places = run.offsets[row:stop], run.sizes[row:stop]
                self.entries.extend([keys[index]], [run.starts[index]], [shape], *places, skip=skip)
            row = stop

    def group(self, places: list[MemberPosition], payloadless: Sequence[PayloadlessMember] = ()) -> None:
        """Take the next members.

        Raises:
            DuplicateField: a field stands twice in a sample, and ``reading`` calls that an error.
        """
        members: list[Any] = [(place.name, place, place.offset) for place in places]
        for some in self.links.resolve(members, payloadless, self._grouper) if payloadless else (members,):
            self._group(some)

    def _group(self, members: list[Any]) -> None:
        grouper = self._grouper
        self._add(grouper.add(members), grouper.offsets)
        while grouper.fault is not None:
            fault = grouper.fault
            if not self.reading.handler(fault):
                raise fault
            self._add(grouper.add(members, grouper.taken), grouper.offsets)

    def _judge(self, samples: list[dict[str, Any]], offsets: list[int]) -> set[int]:
        """Return which samples are parts of others and are left out.

        Raises:
            SplitSample: the first that the handler does not step over.
        """
        parts = set()
        if self.finished is not None and samples:
            for index, part in self.finished.add(samples, offsets):
                if not self.reading.handler(part):
                    raise part
                parts.add(index)
        return parts

    def _add(self, samples: list[dict[str, Any]], offsets: list[int]) -> None:
        parts = self._judge(samples, offsets)
        for index, (sample, offset) in enumerate(zip(samples, offsets, strict=True)):
            if index in parts:
                continue
            fields = []
            for name, place in sample.items():
                if place.__class__ is MemberPosition:
                    fields.append(FieldEntry(name, place.name, place.payload, place.size))
                    if place.sparse:
                        self.sparse.add(len(self.entries))
            self.entries.append(SampleEntry(sample["__key__"], offset, tuple(fields)))

    def _explain_error(self, error: Exception) -> Exception:
        key = self._grouper.abandon()
        return with_location(error, url=self.url, key=key, stage="index_shard")

    def finish(
        self,
        length: int,
        *,
        stored: int | None,
        compression: str | None = None,
        hashes: dict[str, str] | None = None,
    ) -> ShardIndex:
        """Take note that the shard has ended.

        Args:
            length: bytes of the tar stream.
            stored: bytes of the shard as it is stored, or None.
            compression: how it is compressed, or None.
            hashes: digests of the shard as it is stored.

        Raises:
            Truncated: it ended too early, or without an end mark where one is needed.
        """
        ended = self.walk.end_at(length)
        if self.walk.error is not None:
            self.take_last(length)
            raise self._explain_error(self.walk.error)
        if not self.quiet:
            self.links.tell()
        chosen = self.reading.missing_end
        warn_unusual_join(self.url, self.walk, chosen=chosen)
        if not ended:
            # what is wrong with the last member is told first, as the reader tells it
            self.group(self._held)
            self._held = []
            check_end_mark(self.url, length, chosen=chosen)
        return self.close(self.walk.end, stored=stored, compression=compression, hashes=hashes)

    def take_last(self, length: int) -> None:
        """Take the last member of a shard that broke off: as one of its sample if it is whole, else as the next one's.

        Args:
            length: bytes of the tar stream that came.
        """
        last, self._held = self._held, []
        whole = [place for place in last if self.walk.whole(place, length)]
        self.group(whole)
        for place in last[len(whole) :]:
            done: list[dict[str, Any]] = []
            self._grouper.offsets = []
            self._grouper.announce(place.name, done)
            self._add(done, self._grouper.offsets)

    def close(
        self, end: int, *, stored: int | None, compression: str | None = None, hashes: dict[str, str] | None = None
    ) -> ShardIndex:
        """Return the index of the members taken so far, however the shard ends.

        Args:
            end: where the end mark starts.
            stored: bytes of the shard as it is stored, or None.
            compression: how it is compressed, or None.
            hashes: digests of the shard as it is stored.
        """
        self.group(self._held)
        done = self._grouper.close()
        self._add(done, self._grouper.offsets)
        if self.finished is not None:
            self.finished.tell()
        return ShardIndex(
            url=self.url,
            size_bytes=stored,
            end=end,
            entries=self.entries,
            compression=compression,
            sparse=frozenset(self.sparse),
            joins=tuple(self.walk.joins),
            hashes=dict(hashes or {}),
        )


HASHES: Final = ("md5", "sha1", "sha256")
_SMALL = 4096
_FIRST = 64 * 1024
_LARGEST = 1 << 20
_PIECE = 1 << 18


def index_shard(
    url: str | os.PathLike[str], *, hashes: Iterable[str] = (), reading: Reading | None = None, **rules: Any
) -> ShardIndex:
    """Find out where the samples of a shard lie.

    Only headers are read where the source can be read anywhere (local files, http servers that know ranges) and the
    shard is not compressed; otherwise, and where digests are asked for, all of it is streamed.

    Args:
        url: the shard.
        hashes: digests to compute of the shard as it is stored: ``md5``, ``sha1``, ``sha256``.
        reading: the rules of reading.
        **rules: fields of :class:`~webdataset.samples.sample_reader.Reading` in place of ``reading``: ``keys``,
            ``lcase``,
            ``suffixes``, ``select_files``, ``rename_files``, ``duplicates``, ``split_samples``, ``missing_end``,
            ``limits``, ``trust``.

    Raises:
        SourceError: the shard cannot be read.
        TarError: it is damaged: the same verdict as that of the stream reader.
        DuplicateField: a field stands twice in a sample.
        SplitSample: the members of a sample do not stand next to each other.
        UsageError: an argument that cannot mean anything.
    """
    wanted = (hashes,) if isinstance(hashes, str) else tuple(hashes)
    if not isinstance(url, (str, os.PathLike)):
        raise UsageError(f"an index is about a url or a path, not {type(url).__name__}")
    if not set(wanted) <= set(HASHES):
        raise UsageError(f"hashes={wanted!r}: there are {', '.join(HASHES)}")
    # the rules of a dataset count all samples: what plans by the counts refuses an expression itself
    given = reading if reading is None else dataclasses.replace(reading, where=None)
    reading = choose_reading("index_shard", given, rules)
    name = os.fsdecode(url)
    try:
        if not wanted:
            try:
                with open_ranges(url, level=reading.trust, storage_options=reading.storage_options) as ranges:
                    found = walk_ranges(name, ranges, reading)
            except NoRandomAccess:
                found = None
            if found is not None:
                return found
        return _index_by_streaming(url, reading, wanted)
    except WebDatasetError as error:
        raise error.locate(url=name, stage="index_shard")  # noqa: B904  the same error, with its place


def choose_reading(call: str, reading: Reading | None, rules: dict[str, Any]) -> Reading:
    """Return the rules of reading that a caller gave, whole or one by one.

    Args:
        call: the name of what was called.
        reading: all of them, or None.
        rules: fields of a ``Reading``.

    Raises:
        UsageError: both were given, or ``where``, which leaves out samples of a stream alone.
        TypeError: a rule that there is not.
    """
    check_keywords(call, rules, (field.name for field in dataclasses.fields(Reading)))
    if reading is not None and rules:
        raise UsageError(f"pass either reading= or {', '.join(rules)}")
    if rules.get("where") is not None or (reading is not None and reading.where is not None):
        raise UsageError(f"{call} is about all samples of its shards: where= is for WebDataset")
    return reading or Reading(**rules)


class RangeWalk:
    """Reads the headers of a shard, no farther than it is asked to.

    Args:
        url: the shard.
        ranges: the shard, open for positioned reads; its ``length`` may become known (smaller) while it is read.
        reading: the rules of reading.
        follow_links: whether what hard links lead to may be looked up in the shard.

    Attributes:
        builder: what has been found so far.
        compressed: whether the shard turned out to be compressed: then nothing can be found.
        length: bytes of the shard, as far as is known after the last step.
    """

    def __init__(self, url: str, ranges: RandomAccess, reading: Reading, *, follow_links: bool = True) -> None:
        self.builder = IndexBuilder(url, reading, lambda: ranges.read_at if follow_links else None)
        self.compressed = False
        self.length = 0
        self._ranges = ranges
        self._size = _FIRST

    def step(self) -> bool:
        """Read once; tell whether there is more to read.

        Raises:
            TarError: the shard is damaged.
            SourceError: it cannot be read.
        """
        ranges, wants = self._ranges, self.builder.walk
        latency = ranges.latency_bytes
        offset, least = wants.wants
        chunk = ranges.read_at(offset, max(self._size, least))
        if offset == 0 and detect_compression(chunk) is not None:
            self.compressed = True
            return False
        behind = offset + len(chunk)
        self.length = max(behind, ranges.length) if len(chunk) >= least else min(behind, ranges.length)
        sizes = self.builder.feed(chunk, offset)
        if len(chunk) < least or behind >= ranges.length or wants.wants[0] >= ranges.length:
            return False
        walked = wants.wants[0] - offset
        large = sum(size for size in sizes if size > latency)
        jumps = self._size <= _SMALL and wants.wants[0] - behind > latency
        self._size = _SMALL if jumps or large * 2 > walked else min(self._size * 2, _LARGEST)
        return True


def walk_ranges(url: str, ranges: RandomAccess, reading: Reading) -> ShardIndex | None:
    """Index a shard by reading its headers; return None where it is compressed.

    Raises:
        TarError: the shard is damaged.
    """
    walk = RangeWalk(url, ranges, reading)
    while walk.step():
        pass
    if walk.compressed:
        return None
    index = walk.builder.finish(walk.length, stored=ranges.length)
    if isinstance(ranges, LocalRanges):
        ranges.walked = True
    return index


class _HashingStream:
    """A stream that counts and digests what is read from it."""

    def __init__(self, stream: Stream, hashes: tuple[str, ...]) -> None:
        self._stream = stream
        self._digests = {name: hashlib.new(name, usedforsecurity=False) for name in hashes}
        self.taken = 0

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes."""
        piece: bytes = self._stream.read(size)
        self.taken += len(piece)
        for digest in self._digests.values():
            digest.update(piece)
        return piece

    def hashes(self) -> dict[str, str]:
        """Return the digests of everything read so far."""
        return {name: digest.hexdigest() for name, digest in self._digests.items()}


def _index_by_streaming(url: str | os.PathLike[str], reading: Reading, hashes: tuple[str, ...]) -> ShardIndex:
    """Index a shard by reading all of it, front to back."""
    builder = IndexBuilder(os.fsdecode(url), reading, lambda: open_random_access(url, reading))
    stream = open_stream(url, level=reading.trust, storage_options=reading.storage_options)
    try:
        tally = _HashingStream(stream, hashes)
        start = tally.read(_PIECE)
        while 0 < len(start) < 512 and (more := tally.read(512)):
            start += more
        kind = detect_compression(start)
        length = 0
        for piece in read_tar_pieces(os.fsdecode(url), kind, start, tally.read):
            builder.feed(piece, length)
            length += len(piece)
    finally:
        stream.close()
    return builder.finish(length, stored=tally.taken, compression=kind, hashes=tally.hashes())


def read_tar_pieces(url: str, kind: str | None, piece: bytes, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the bytes of a tar stream, in pieces, after decompression.

    Args:
        url: the shard, for messages.
        kind: how it is compressed, or None.
        piece: its first bytes.
        read: gives the bytes after them.

    Raises:
        BadCompression: the compressed stream is damaged.
        Truncated: it was cut.
    """
    if kind is None:
        while piece:
            yield piece
            piece = read(_PIECE)
        return
    decompressor = Decompressor(kind, ignore_trailing=True)
    while piece:
        yield from decompressor.feed(piece)
        piece = read(decompressor.appetite)
    decompressor.finish()
    warn_trailing(url, decompressor)


def shard_urls(shards: object, storage_options: object = None) -> list[Any]:
    """Return the urls of some shards, given as ``WebDataset`` takes them.

    Args:
        shards: one text (braces, ``::`` and wildcards expand), a path, a list of urls, or a shard list object such as
            ``wds.SimpleShardList``.
        storage_options: what objects at stores are listed with.

    Raises:
        UsageError: none of these.
        NotFound: wildcards that match nothing.
    """
    listed = getattr(shards, "urls", shards) if isinstance(shards, ShardList) else shards
    return expand_urls(listed, storage_options=storage_options)


def index_shards(
    urls: object,
    *,
    threads: int = 4,
    handler: Handler = reraise_exception,
    hashes: Iterable[str] = (),
    reading: Reading | None = None,
    **rules: Any,
) -> Iterator[ShardIndex]:
    """Index many shards, several at a time.

    Args:
        urls: as ``WebDataset`` takes them; see :func:`shard_urls`.
        threads: shards indexed at the same time; useful where a server's answer takes time.
        handler: asked where a shard fails; true leaves it out and continues.
        hashes: as for :func:`index_shard`.
        reading: as for :func:`index_shard`.
        **rules: as for :func:`index_shard`.

    Yields:
        Indexes, in the order of the urls; at most ``2 * threads`` of them wait at any time.

    Raises:
        WebDatasetError: what the handler does not step over.
    """
    if threads < 1:
        raise UsageError(f"threads={threads}: at least one is needed")
    wanted = (hashes,) if isinstance(hashes, str) else tuple(hashes)
    left = iter(shard_urls(urls, reading.storage_options if reading else rules.get("storage_options")))
    waiting: deque[tuple[Any, Future[ShardIndex]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="index") as pool:
        try:
            while True:
                for url in itertools.islice(left, 2 * threads - len(waiting)):
                    waiting.append((url, pool.submit(index_shard, url, hashes=wanted, reading=reading, **rules)))
                if not waiting:
                    return
                url, future = waiting.popleft()
                try:
                    found = future.result()
                except Exception as error:  # noqa: BLE001  the handler decides, whatever a user's function raised
                    name = os.fsdecode(url) if isinstance(url, (str, bytes, os.PathLike)) else repr(url)
                    if not handler(with_location(error, url=name, stage="index_shards")):
                        return
                else:
                    yield found
        finally:
            for _, future in waiting:
                future.cancel()
