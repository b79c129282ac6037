"""The bytes of shards as the viewer reads them: anywhere by ranges, through one bounded cache, or front to back.

Theory. A remote shard is read in blocks of 64 KiB; missing blocks that lie next to each other are one request, and two
threads that miss the same block send one request together. The cache is shared by all shards of a viewer and bounded in
bytes. Local files are read as they are: the system caches them.

A source that can only be read front to back (a compressed shard, a pipe, standard input) passes once. What passed last
is kept in a temporary file without a name; of standard input all is kept, for it cannot be read again. What lies before
is reached by reading the source from its start once more.

No method here decides what the bytes mean.
"""

import itertools
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple, Protocol

from webdataset.core.errors import LimitExceeded, NoRandomAccess, SourceError, WebDatasetError
from webdataset.index.build import read_tar_pieces
from webdataset.samples.member_sizes import FREE_BYTES, MOST_GROWTH
from webdataset.samples.sample_reader import Reading
from webdataset.storage.open_url import open_stream
from webdataset.storage.random_access import LocalRanges, ObjectRanges, open_ranges
from webdataset.tar.compression import detect_compression
from webdataset.tar.scanner import FIRST_CHUNK

BLOCK_BYTES: Final = 64 * 1024
CACHE_BYTES: Final = 64 << 20
SPOOL_BYTES: Final = 1 << 30
_PIECE: Final = 1 << 18
# someone waits for the page, and can ask again
_ATTEMPTS: Final = 4
_LEAST_SPOOL: Final = 4 << 20
_UNKNOWN: Final = sys.maxsize


# of remote sources: two never share blocks
_numbers = itertools.count()


class ReadStatistics(NamedTuple):
    """What was read of a shard so far.

    Args:
        requests: sent to the store; reads of a local file; 1 for each time a stream was opened.
        bytes: received.
    """

    requests: int
    bytes: int


class ByteSource(Protocol):
    """A shard that is read; all methods may be called by several threads.

    Attributes:
        url: what is read.
        sequential: whether it is read front to back.
        length: bytes of the tar stream; ``sys.maxsize`` while that is not known.
        latency_bytes: a gap smaller than this is read rather than left out.
        stored_bytes: bytes as it is stored, or None.
        failure: what ended the source early, or None.
    """

    url: str
    sequential: bool
    length: int
    latency_bytes: int
    stored_bytes: int | None
    failure: Exception | None

    @property
    def position(self) -> int:
        """Where a source that is read front to back stands."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on; fewer only at the end."""
        ...

    def statistics(self) -> ReadStatistics:
        """Return what was read so far."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


class BlockCache:
    """Blocks of several sources, the ones used last.

    Args:
        limit_bytes: of all blocks together.
    """

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit = limit_bytes
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._lock = threading.Lock()
        self.size_bytes = 0

    def get(self, source: int, number: int) -> bytes | None:
        """Return a block, or None where it is not there.

        Args:
            source: who asks.
            number: of the block.
        """
        with self._lock:
            block = self._blocks.get((source, number))
            if block is not None:
                self._blocks.move_to_end((source, number))
            return block

    def put(self, source: int, number: int, block: bytes) -> None:
        """Keep a block; others may have to go.

        Args:
            source: who asks.
            number: of the block.
            block: its bytes.
        """
        with self._lock:
            before = self._blocks.pop((source, number), b"")
            self._blocks[source, number] = block
            self.size_bytes += len(block) - len(before)
            while self.size_bytes > self._limit:
                self.size_bytes -= len(self._blocks.popitem(last=False)[1])

    def drop(self, source: int) -> None:
        """Forget all blocks of a source.

        Args:
            source: whose.
        """
        with self._lock:
            for place in [place for place in self._blocks if place[0] == source]:
                self.size_bytes -= len(self._blocks.pop(place))


class LocalSource:
    """A local file.

    Args:
        ranges: the file.
    """

    sequential = False
    position = 0
    failure: Exception | None = None

    def __init__(self, ranges: LocalRanges) -> None:
        self.url, self.length, self.latency_bytes = ranges.url, ranges.length, ranges.latency_bytes
        self.stored_bytes: int | None = ranges.length
        self._ranges = ranges
        self._lock = threading.Lock()
        self._read = ReadStatistics(0, 0)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on; fewer only at the end of the file."""
        content = self._ranges.read_at(offset, size)
        with self._lock:
            self._read = ReadStatistics(self._read.requests + 1, self._read.bytes + len(content))
        return content

    def statistics(self) -> ReadStatistics:
        """Return what was read so far."""
        return self._read

    def close(self) -> None:
        """Let go of the file; a read in progress still ends well."""


class RemoteSource:
    """An object of a store, read in blocks.

    Args:
        ranges: the object.
        cache: shared with other sources.
    """

    sequential = False
    position = 0
    failure: Exception | None = None

    def __init__(self, ranges: ObjectRanges, cache: BlockCache) -> None:
        self.url, self.length, self.latency_bytes = ranges.url, ranges.length, ranges.latency_bytes
        self.stored_bytes: int | None = ranges.length
        self._ranges = ranges
        self._cache = cache
        self._number = next(_numbers)
        self._lock = threading.Lock()
        # blocks that some thread is reading
        self._coming: dict[int, threading.Event] = {}

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on; fewer only at the end of the object."""
        size = min(size, self.length - offset)
        if size <= 0:
            return b""
        numbers = range(offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES + 1)
        have: dict[int, bytes] = {}
        # a block after them may be there, too
        while not have.keys() >= set(numbers):
            mine, others = self._claim(numbers, have)
            if mine:
                self._fetch(mine, have)
            elif others is not None:
                others.wait()
        content = b"".join(have[number] for number in numbers)
        start = offset - numbers[0] * BLOCK_BYTES
        return content[start : start + size]

    def _claim(self, numbers: range, have: dict[int, bytes]) -> tuple[list[int], threading.Event | None]:
        """Take what is there; return the first run of blocks that this thread is to read, or the event to wait for."""
        mine: list[int] = []
        others = None
        with self._lock:
            for number in numbers:
                if number in have:
                    continue
                block = self._cache.get(self._number, number)
                if block is not None:
                    have[number] = block
                elif number in self._coming:
                    others = self._coming[number]
                elif not mine or mine[-1] == number - 1:
                    mine.append(number)
            # a request that continues where the last one ended takes a block more: most often it is asked for next
            if len(mine) == 1 and self._cache.get(self._number, mine[0] - 1) is not None:
                after = mine[0] + 1
                absent = after not in self._coming and self._cache.get(self._number, after) is None
                if absent and after * BLOCK_BYTES < self.length:
                    mine.append(after)
            coming = threading.Event()
            self._coming.update(dict.fromkeys(mine, coming))
        return mine, others

    def _fetch(self, numbers: list[int], have: dict[int, bytes]) -> None:
        """Read blocks that stand next to each other, in one request."""
        start = numbers[0] * BLOCK_BYTES
        try:
            content = self._ranges.read_at(start, len(numbers) * BLOCK_BYTES)
            for place, number in enumerate(numbers):
                block = content[place * BLOCK_BYTES : (place + 1) * BLOCK_BYTES]
                have[number] = block
                self._cache.put(self._number, number, block)
        finally:
            with self._lock:
                coming = self._coming[numbers[0]]
                for number in numbers:
                    del self._coming[number]
            coming.set()

    def statistics(self) -> ReadStatistics:
        """Return what was read so far."""
        return ReadStatistics(self._ranges.requests, self._ranges.received)

    def close(self) -> None:
        """Forget the blocks."""
        self._cache.drop(self._number)


class StreamSource:
    """A shard that is read front to back, after decompression.

    Args:
        url: the shard; ``-`` is standard input.
        reading: the rules of reading.
        spool_bytes: how much of what passed is kept in a temporary file, at least 4 MiB; of standard input all is.
    """

    sequential = True
    latency_bytes = _UNKNOWN

    def __init__(self, url: str, reading: Reading, spool_bytes: int = SPOOL_BYTES) -> None:
        self.url = url
        self.length = _UNKNOWN
        self.stored_bytes: int | None = None
        self.failure: Exception | None = None
        self._reading = reading
        self._spool_bytes = None if url == "-" else max(spool_bytes, _LEAST_SPOOL)
        self._lock = threading.Lock()
        self._pieces: Iterator[bytes] | None = None
        self._stream: Any = None
        self._spool: IO[bytes] | None = None
        self._position = 0
        self._opened = self._received = 0

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on; fewer only where the stream ends.

        Raises:
            SourceError: the stream broke off, or passed and cannot be read again.
            BadCompression: it is damaged, at or before ``offset``.
        """
        with self._lock:
            if size <= 0 or offset >= self.length:
                return b""
            if offset < self._kept_from():
                self._restart()
            stop = offset + size
            if self._spool_bytes is not None:
                stop = min(stop, offset + self._spool_bytes // 2)
            self._advance_to(stop)
            stop = min(stop, self._position)
            if stop <= offset and self.failure is not None:
                raise self.failure
            return self._read_spool(offset, stop)

    @property
    def position(self) -> int:
        """Number of bytes that have come, of the present pass."""
        return self._position

    def _kept_from(self) -> int:
        """Return the offset of the first byte that is kept."""
        return 0 if self._spool_bytes is None else max(0, self._position - self._spool_bytes)

    def _advance_to(self, stop: int) -> None:
        """Read on; a gap that grows out of all proportion to what is read of a compressed shard ends it."""
        start, received = self._position, self._received
        while self._position < stop and self._advance():
            grown = self._position - start
            if grown > max(FREE_BYTES, MOST_GROWTH * (self._received - received)):
                self.failure = LimitExceeded(
                    f"{grown} bytes grow from {self._received - received} compressed ones; the viewer reads no farther",
                    url=self.url,
                    offset=start,
                )

    def _restart(self) -> None:
        """Read from the start again."""
        self._close_stream()
        self._position = 0

    def _advance(self) -> bool:
        """Read the next piece; False where there is none."""
        if self.failure is not None or self._position >= self.length:
            return False
        try:
            if self._pieces is None:
                self._pieces = self._open()
            piece = next(self._pieces, b"")
        except (WebDatasetError, OSError) as error:
            self.failure = error
            return False
        if not piece:
            self.length = self._position
            self.stored_bytes = self._received if self._opened == 1 else self.stored_bytes
            self._close_stream()
            return False
        self._keep(piece)
        return True

    def _open(self) -> Iterator[bytes]:
        reading = self._reading
        self._stream = open_stream(self.url, level=reading.trust, storage_options=reading.storage_options)
        self._opened += 1
        start = self._read(FIRST_CHUNK)
        while 0 < len(start) < 512 and (more := self._read(512)):
            start += more
        return read_tar_pieces(self.url, detect_compression(start), start, self._read)

    def _read(self, size: int) -> bytes:
        piece: bytes = self._stream.read(size)
        self._received += len(piece)
        return piece

    def _keep(self, piece: bytes) -> None:
        """Write a piece after the others; the temporary file is a ring where it is bounded."""
        try:
            if self._spool is None:
                self._spool = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as this source
            place = self._position
            for start in range(0, len(piece), _PIECE):
                part = piece[start : start + _PIECE]
                self._write(place, part)
                place += len(part)
        except OSError as error:
            raise SourceError(
                f"no room for what was read of the stream in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to "
                "another folder, or copy the shard to a file",
                url=self.url,
            ) from error
        self._position = place

    def _write(self, place: int, part: bytes) -> None:
        spool = self._spool
        if spool is None:
            return
        ring = self._spool_bytes
        at = place if ring is None else place % ring
        first = part if ring is None else part[: ring - at]
        spool.seek(at)
        spool.write(first)
        if len(first) < len(part):
            spool.seek(0)
            spool.write(part[len(first) :])

    def _read_spool(self, start: int, stop: int) -> bytes:
        spool = self._spool
        if spool is None or stop <= start:
            return b""
        ring = self._spool_bytes
        at = start if ring is None else start % ring
        size = stop - start
        spool.seek(at)
        if ring is None or at + size <= ring:
            return spool.read(size)
        head = spool.read(ring - at)
        spool.seek(0)
        return head + spool.read(size - len(head))

    def statistics(self) -> ReadStatistics:
        """Return what was read so far."""
        return ReadStatistics(self._opened, self._received)

    def _close_stream(self) -> None:
        stream, self._stream, self._pieces = self._stream, None, None
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """Close the stream, and forget what was kept; one that another thread waits for is left to it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._close_stream()
            spool, self._spool, self._position = self._spool, None, 0
            if spool is not None:
                spool.close()
        finally:
            self._lock.release()


def open_source(url: str, reading: Reading, cache: BlockCache) -> ByteSource:
    """Open a shard, for random access where its source allows that and it is not compressed.

    Args:
        url: the shard; ``-`` is standard input.
        reading: the rules of reading.
        cache: for remote shards.

    Raises:
        SourceError: it cannot be opened.
    """
    if url == "-":
        return StreamSource(url, reading)
    try:
        ranges = open_ranges(url, level=reading.trust, storage_options=reading.storage_options, attempts=_ATTEMPTS)
    except NoRandomAccess:
        return StreamSource(url, reading)
    source = LocalSource(ranges) if isinstance(ranges, LocalRanges) else RemoteSource(ranges, cache)
    if detect_compression(source.read_at(0, 512)) is not None:
        source.close()
        stream = StreamSource(url, reading)
        stream.stored_bytes = ranges.length
        return stream
    return source
