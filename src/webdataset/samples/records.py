"""Reads record shards: whole samples in sequence, without tar, possibly compressed.

The ``cut`` that the caller passes defines what an item is. A shard that ends inside an item is an error, never a
normal end; the items before a fault are delivered.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from webdataset.core.error_handlers import Handler, reraise_exception, with_location
from webdataset.core.errors import FormatError, Truncated, UsageError, WebDatasetError
from webdataset.samples.address import Address
from webdataset.samples.grouping import Shard
from webdataset.samples.shard_reader import warn_trailing
from webdataset.storage.profile_pickling import PicklesProfiles
from webdataset.storage.storage_options import check_storage_options
from webdataset.tar.compression import Decompressor, detect_compression
from webdataset.tar.header import BLOCK, is_checksum_right

# reading takes about three times as much memory
LIMIT_BYTES = 128 << 20
_CHUNK = 256 * 1024
_BZIP2 = (b"1AY&SY", b"\x17rE8P\x90")


class RecordSplitter(Protocol):
    """What cuts a stream into items."""

    error: Exception | None
    start: int

    def feed(self, piece: bytes) -> tuple[list[Any], list[int]]:
        """Take bytes; return the items that they complete, and where these start."""
        ...

    def finish(self) -> tuple[list[Any], list[int]]:
        """Take note that no more bytes come; return the items that had waited for them."""
        ...


@dataclass(frozen=True)
class RecordReading(PicklesProfiles):
    """How record shards are read.

    Args:
        cut: makes what cuts a stream into items, given the offset of its first byte and ``limit_bytes``.
        name: what the stage is called in messages.
        handler: asked when a shard fails; true continues with the next shard.
        items: ``samples`` takes dicts only, ``any`` whatever an item is. Dicts get ``__url__``.
        addresses: add ``__address__`` (:class:`Address`) to every sample.
        limit_bytes: size of the largest item that is read.
        trust: trust level under which shards are opened; None is the process's.
        cache: a :class:`webdataset.caching.shard_cache.ShardCache` to open shards through; None opens their sources.
        storage_options: what urls are opened with: ``{"profile": NAME}``, or fields of a profile.
        prefetch: bytes of the next shards that may be read ahead, where they are not local; 0 for none, None is
            ``WDS_PREFETCH_BYTES``.

    Raises:
        UsageError: another word for ``items``, no room for an item, or storage options that cannot be read.
    """

    cut: Callable[[int, int], RecordSplitter]
    name: str = "records"
    handler: Handler = reraise_exception
    items: str = "any"
    addresses: bool = False
    limit_bytes: int = LIMIT_BYTES
    trust: str | None = None
    cache: Any = None
    storage_options: Any = None
    prefetch: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "storage_options", check_storage_options(self.storage_options))
        if self.items not in ("any", "samples") or self.limit_bytes < 1:
            raise UsageError(
                f"items={self.items!r} must be 'samples' or 'any', and limit_bytes={self.limit_bytes} more than 0"
            )

    def reader(self, shard: Shard, start: Address | None = None) -> "RecordReader":
        """Return the reader of one opened shard, which begins at the item at ``start``."""
        return RecordReader(shard, self, start)


class RecordReader:
    """One record shard being read; arguments as for :class:`~webdataset.samples.shard_reader.ShardReader`."""

    def __init__(self, shard: Shard, reading: RecordReading, start: Address | None = None) -> None:
        self.url = str(shard["url"])
        self.path = shard.get("__local_path__")
        self.stream = shard["stream"]
        self.reading = reading
        self._stamp = {name: value for name, value in shard.items() if name.startswith("__")} | {"__url__": self.url}
        self._start = start.offset if start is not None else 0
        self._cut = reading.cut(self._start, reading.limit_bytes)
        self._count = start.ordinal if start is not None else 0

    def lists(self) -> Iterator[tuple[list[Any], list[int]]]:
        """Yield lists of items with their offsets, about one list a chunk.

        Raises:
            FormatError: bytes that are no items, or items that are no samples; those before have been yielded.
        """
        cut = self._cut
        begins = not self._start
        for piece in self._pieces():
            if begins and piece[257:262] == b"ustar" and is_checksum_right(piece[:BLOCK]):
                # letters are items too
                raise FormatError("its content is a tar archive; read it with wds.WebDataset()", offset=0)
            begins = False
            yield from self._check_items(*cut.feed(piece))
        yield from self._check_items(*cut.finish())

    def _check_items(self, items: list[Any], offsets: list[int]) -> Iterator[tuple[list[Any], list[int]]]:
        stamp, fault = self._stamp, self._cut.error
        only_samples = self.reading.items == "samples"
        for index, item in enumerate(items):
            if type(item) is dict:
                item.update(stamp)
            elif only_samples:
                fault = _item_type_error(item, offsets[index])
                items, offsets = items[:index], offsets[:index]
                break
        self._count += len(items)
        if items:
            yield items, offsets
        if fault is not None:
            raise fault

    def _pieces(self) -> Iterator[bytes]:
        """Yield the shard's bytes, decompressed, from the start offset on."""
        read = self.stream.read
        piece = read(_CHUNK)
        # enough to tell a compression
        while 0 < len(piece) < 16:
            more = read(_CHUNK)
            if not more:
                break
            piece += more
        kind = detect_compression(piece)
        if kind == "bz2" and piece[4:10] not in _BZIP2:
            # an item may start with these three letters
            kind = None
        if kind is not None:
            pieces = self._decompress(kind, piece)
        elif self._start and self._seek_start():
            piece = read(_CHUNK)
            if not piece:
                raise Truncated("the shard ends before the item to resume at: it has changed", offset=self._start)
            yield from self._plain(piece)
            return
        else:
            pieces = self._plain(piece)
        yield from self._drop_before_start(pieces) if self._start else pieces

    def _plain(self, piece: bytes) -> Iterator[bytes]:
        read = self.stream.read
        while piece:
            yield piece
            piece = read(_CHUNK)

    def _decompress(self, kind: str, piece: bytes) -> Iterator[bytes]:
        decompressor = Decompressor(kind, ignore_trailing=True)
        while piece:
            yield from decompressor.feed(piece)
            piece = self.stream.read(decompressor.appetite)
        decompressor.finish()
        warn_trailing(self.url, decompressor)

    def _seek_start(self) -> bool:
        seekable = getattr(self.stream, "seekable", None)
        if seekable is None or not seekable():
            return False
        self.stream.seek(self._start)
        return True

    def _drop_before_start(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Leave out the bytes before the start offset."""
        left = self._start
        for piece in pieces:
            if left < len(piece):
                yield piece[left:] if left else piece
            left = max(0, left - len(piece))
        if left:
            raise Truncated(f"the shard ends {left} bytes before the item to resume at", offset=self._start)

    def explain_error(self, error: Exception) -> Exception:
        """Say where an error struck, and how many items came before it."""
        offset = None
        if isinstance(error, WebDatasetError):
            error.message += f"; {self._count} whole items stand before it"
        else:
            offset = self._cut.start
        return with_location(error, url=self.url, path=self.path, offset=offset, stage=self.reading.name)

    def close(self) -> None:
        """Close the stream."""
        close = getattr(self.stream, "close", None)
        if close is not None:
            close()


def _item_type_error(item: object, offset: int) -> FormatError:
    return FormatError(
        f"the item at byte {offset} is of type {type(item).__name__}, and samples are dicts; pass items='any' to read "
        "such items too",
        offset=offset,
    )
