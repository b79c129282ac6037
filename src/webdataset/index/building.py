"""Shards to indexes: by reading headers alone where the source allows it, else by streaming.

Theory. Headers are chained: each says where the next one is. Where payloads are large, one short read a member finds
them all and leaves out the rest; where payloads are small, that would be a request each, so that whole stretches are
read instead. What to do next is decided after each read from what it showed.

Flows in: urls. Flows out: :class:`~webdataset.index.entries.ShardIndex`. Members are grouped by the reader's own
grouper, so that sample *i* of the index is sample *i* of the stream. Never gives an index of a shard whose headers the
stream reader would call damaged (the map that lies in some sparse payloads is not read).
"""

import hashlib
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from webdataset.ground.errors import NoRandomAccess, UsageError, WebDatasetError
from webdataset.ground.policies import Handler, located, reraise_exception
from webdataset.samples.endings import warn_trailing
from webdataset.samples.links import random_access
from webdataset.samples.reading import Reading
from webdataset.shards.expand import expand_urls
from webdataset.shards.lists import ShardList
from webdataset.sources.open import open_stream
from webdataset.sources.ranges import LocalRanges, Ranges, open_ranges
from webdataset.tar.compression import Decompressor, compression_of

from .builder import IndexBuilder
from .entries import ShardIndex

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
        **rules: fields of :class:`~webdataset.samples.reading.Reading` in place of ``reading``: ``keys``, ``lcase``,
            ``suffixes``, ``select_files``, ``rename_files``, ``duplicates``, ``split_samples``, ``missing_end``,
            ``limits``, ``trust``.

    Raises:
        SourceError: the shard cannot be read.
        TarError: it is damaged: the same verdict as that of the stream reader.
        DuplicateField: a field stands twice in a sample.
        SplitSample: the members of a sample do not stand next to each other.
        UsageError: an argument that cannot mean anything.
    """
    wanted = tuple(hashes)
    if not isinstance(url, (str, os.PathLike)):
        raise UsageError(f"an index is about a url or a path, not {type(url).__name__}")
    if not set(wanted) <= set(HASHES):
        raise UsageError(f"hashes={wanted!r}: there are {', '.join(HASHES)}")
    reading = reading_of(reading, rules)
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
        return _streamed(url, reading, wanted)
    except WebDatasetError as error:
        raise error.locate(url=name, stage="index_shard")  # noqa: B904  the same error, with its place


def reading_of(reading: Reading | None, rules: dict[str, Any]) -> Reading:
    """Return the rules of reading that a caller gave, whole or one by one.

    Args:
        reading: all of them, or None.
        rules: fields of a ``Reading``.

    Raises:
        UsageError: both were given.
    """
    if reading is not None and rules:
        raise UsageError(f"pass either reading= or {', '.join(rules)}")
    return reading or Reading(**rules)


def walk_ranges(url: str, ranges: Ranges, reading: Reading) -> ShardIndex | None:
    """Index a shard by reading its headers.

    Args:
        url: the shard.
        ranges: the shard, open for positioned reads.
        reading: the rules of reading.

    Returns:
        The index, or None where the shard is compressed.

    Raises:
        TarError: the shard is damaged.
    """
    builder = IndexBuilder(url, reading, lambda: ranges.read_at)
    wants, latency = builder.walk, ranges.latency_bytes
    size = _FIRST
    while True:
        offset, least = wants.wants
        chunk = ranges.read_at(offset, max(size, least))
        if offset == 0 and compression_of(chunk) is not None:
            return None
        places = builder.feed(chunk, offset)
        behind = offset + len(chunk)
        if len(chunk) < least or behind >= ranges.length:
            break
        if wants.wants[0] >= ranges.length:
            break
        walked = wants.wants[0] - offset
        large = sum(place.size for place in places if place.size > latency)
        jumps = size <= _SMALL and wants.wants[0] - behind > latency
        size = _SMALL if jumps or large * 2 > walked else min(size * 2, _LARGEST)
    length = max(behind, ranges.length) if len(chunk) >= least else behind
    index = builder.finish(length, stored=ranges.length)
    if isinstance(ranges, LocalRanges):
        ranges.walked = True
    return index


class _Tally:
    """A stream that counts and digests what is read from it."""

    def __init__(self, stream: Any, hashes: tuple[str, ...]) -> None:
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


def _streamed(url: str | os.PathLike[str], reading: Reading, hashes: tuple[str, ...]) -> ShardIndex:
    """Index a shard by reading all of it, front to back."""
    builder = IndexBuilder(os.fsdecode(url), reading, lambda: random_access(url, reading))
    stream = open_stream(url, level=reading.trust, storage_options=reading.storage_options)
    try:
        tally = _Tally(stream, hashes)
        start = tally.read(_PIECE)
        while 0 < len(start) < 512 and (more := tally.read(512)):
            start += more
        kind = compression_of(start)
        length = 0
        for piece in _decompressed(url, kind, start, tally) if kind is not None else _plain(start, tally):
            builder.feed(piece, length)
            length += len(piece)
    finally:
        stream.close()
    return builder.finish(length, stored=tally.taken, compression=kind, hashes=tally.hashes())


def _plain(piece: bytes, tally: _Tally) -> Iterator[bytes]:
    while piece:
        yield piece
        piece = tally.read(_PIECE)


def _decompressed(url: str | os.PathLike[str], kind: str, piece: bytes, tally: _Tally) -> Iterator[bytes]:
    decompressor = Decompressor(kind, ignore_trailing=True)
    while piece:
        yield from decompressor.feed(piece)
        piece = tally.read(_PIECE)
    decompressor.finish()
    warn_trailing(os.fsdecode(url), decompressor)


def shard_urls(shards: Any, storage_options: Any = None) -> list[Any]:
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
    urls: Any,
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
        handler: asked where a shard fails; true leaves it out and goes on.
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
    wanted = tuple(hashes)
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
                    if not handler(located(error, url=name, stage="index_shards")):
                        return
                else:
                    yield found
        finally:
            for _, future in waiting:
                future.cancel()
