"""Streams of bytes to samples: the tar scanner and the grouper, fed.

Flows in: opened shards, ``{"url", "stream"}``. Flows out: samples; where they stand is in the :class:`Position`. Each
stream is closed when its shard ends, fails or is left. Never gives a sample that an error interrupted, and never joins
two shards.
"""

import functools
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from webdataset.ground.errors import Truncated, UsageError, WebDatasetError
from webdataset.ground.policies import Handler, located, reraise_exception
from webdataset.ground.seeds import fold
from webdataset.sources.profiles import storage_options
from webdataset.sources.profiles.travel import CarriesProfiles
from webdataset.sources.stream import length_known, length_of
from webdataset.tar.assembly import Member
from webdataset.tar.compression import Decompressor, compression_of
from webdataset.tar.header import Limits
from webdataset.tar.scan import TarScanner

from .address import Address
from .endings import judge_missing_end, tell_doubt
from .grouping import Grouper, Keys, Sample
from .names import base_plus_ext, is_meta
from .rules import Rules

SEEK_WORTHWHILE = 1 << 20
ENDS = ("warn", "error", "ignore")


class Watch(Protocol):
    """What looks on while one shard is read."""

    def feed(self, piece: bytes, offset: int) -> None:
        """Take bytes of the tar stream, and where they start; bytes that nobody read are left out."""
        ...

    def finish(self, length: int | None, compression: str | None) -> None:
        """Take note that the shard has been read to its end, without fault.

        Args:
            length: bytes of the shard as it is stored, or None where nobody knows.
            compression: how it is compressed, or None.
        """
        ...


@dataclass(frozen=True)
class Reading(CarriesProfiles):
    """How shards are read.

    Args:
        handler: asked when a shard or sample fails; true goes on with the next shard.
        select_files: full member name to bool; members for which it is false are stepped over.
        rename_files: full member name to full member name; applied before ``select_files``.
        keys: splits a name into key and extension.
        lcase: lower-case extensions.
        suffixes: keep only these full extensions; None keeps all.
        duplicates: ``error``, ``first``, ``last`` or ``new``; see :class:`~webdataset.samples.grouping.Grouper`.
        missing_end: ``warn``, ``error`` or ``ignore`` a tar stream without its end mark; None warns where the source's
            length is known and is an error elsewhere.
        addresses: add ``__address__`` (:class:`Address`) to every sample.
        trust: trust level under which shards are opened; None is the process's.
        limits: bounds on headers and sparse members.
        cache: a :class:`webdataset.caching.shards.ShardCache` to open shards through; None opens their sources.
        observer: called with the url and these rules for each shard that is read from its start; what it returns sees
            the shard's bytes. See :class:`webdataset.index.recording.IndexWhileReading`.
        storage_options: what S3 urls are opened with: ``{"profile": NAME}``, or fields of a profile.
    """

    handler: Handler = reraise_exception
    select_files: Callable[[str], bool] | None = None
    rename_files: Callable[[str], str] | None = None
    keys: Keys = base_plus_ext
    lcase: bool = True
    suffixes: Container[str] | None = None
    duplicates: str = "error"
    missing_end: str | None = None
    addresses: bool = False
    trust: str | None = None
    limits: Limits = field(default_factory=Limits)
    cache: Any = None
    observer: Callable[[str, Any], Watch] | None = None
    storage_options: Any = None

    def __post_init__(self) -> None:
        if self.missing_end is not None and self.missing_end not in ENDS:
            raise UsageError(f"missing_end={self.missing_end!r} is not one of {', '.join(ENDS)}")
        object.__setattr__(self, "storage_options", storage_options(self.storage_options))

    def reader(self, shard: dict[str, Any], start: Address | None = None) -> "ShardReader":
        """Return the reader of one shard, which begins at the sample at ``start``."""
        return ShardReader(shard, self, start)

    def grouper(self) -> Grouper:
        """Return a grouper under these rules."""
        return Grouper(keys=self.keys, lcase=self.lcase, suffixes=self.suffixes, duplicates=self.duplicates)

    def admit(self) -> Callable[[str], str | None] | None:
        """Return the rule that names or leaves out a member, or None where all keep their names."""
        rename, select = self.rename_files, self.select_files
        if rename is None and select is None:
            return None

        def admitted(name: str) -> str | None:
            if rename is not None:
                if is_meta(name):  # metadata is known by the name in the archive
                    return None
                name = rename(name)
            return name if select is None or select(name) else None

        return admitted


class Position:
    """Where a reader is: the shard, and how far its present list of samples has been given.

    Attributes:
        shard: index of the present shard.
        ordinal: index in the shard of the first sample of the present list.
        offsets: where the samples of the present list start.
        pending: samples of the present list that have not been given, the next one last; how many are left tells which
            one was given last, so that nothing has to be counted. Given samples are let go at once.
        failures: errors that a handler stepped over so far.
    """

    def __init__(self) -> None:
        self.shard = 0
        self.ordinal = 0
        self.offsets: list[int] = []
        self.pending: list[Sample] = []
        self.failures = 0
        self._url = ""

    def address(self) -> Address:
        """Return the address of the sample given last."""
        index = len(self.offsets) - len(self.pending) - 1
        return Address(self.shard, self.ordinal + index, self.offsets[index])

    @property
    def url(self) -> int:
        """A hash of the present shard's url, for snapshots (a url may hold secrets)."""
        return url_hash(self._url)

    def begin(self, shard: int, url: str) -> None:
        """Enter a shard."""
        self._url = url
        self.shard, self.ordinal, self.offsets, self.pending = shard, 0, [], []

    def present(self, samples: list[Sample], offsets: list[int]) -> list[Sample]:
        """Take the next list of samples of the shard; return it in the order in which to pop them."""
        self.ordinal += len(self.offsets)
        self.offsets = offsets
        samples.reverse()
        self.pending = samples
        return samples


def url_hash(url: str) -> int:
    """Return a number that tells shards apart (53 bits, exact in JSON everywhere); signatures do not enter it."""
    return fold("url", url.partition("?")[0]) >> 11


@functools.cache
def settle_allocator() -> None:
    """Let malloc keep blocks of up to 16 MB for reuse instead of returning each to the system.

    glibc raises its thresholds once a large block has been freed. Until then every large chunk is mapped, faulted in
    page by page and unmapped again, which takes longer than reading it. The block is never touched, so this costs
    nothing.
    """
    bytearray(16 << 20)


class _Stop(Exception):
    """A handler chose to end the stage."""


def read_samples(
    shards: Iterable[dict[str, Any]], reading: Rules, position: Position | None = None, start: Address | None = None
) -> Iterator[Sample]:
    """Read opened shards one after the other.

    Args:
        shards: dicts with ``url`` and ``stream`` (an object with ``read(n)`` and ``close()``).
        reading: how to read.
        position: kept up to date for the caller.
        start: the address of the sample to start at; ``shards`` begins with its shard.

    Yields:
        Samples: ``__key__``, ``__url__``, and one field of bytes for each member.

    Raises:
        WebDatasetError: what ``reading.handler`` does not step over, with url, key and offset.
    """
    settle_allocator()
    position = position or Position()
    first = start.shard if start is not None else 0
    for index, shard in enumerate(shards, first):
        position.begin(index, str(shard["url"]))
        reader = reading.reader(shard, start if index == first else None)
        if start is not None and index == first:
            position.ordinal = start.ordinal
        try:
            for samples, offsets in reader.lists():
                if reading.addresses:
                    _stamp_addresses(samples, offsets, position)
                pending = position.present(samples, offsets)
                pop = pending.pop
                while pending:
                    yield pop()
        except _Stop:
            return
        except Exception as error:  # noqa: BLE001  the handler decides, whatever a source or a user's function raised
            position.failures += 1
            if not reading.handler(reader.explained(error)):
                return
        finally:
            reader.close()


def _stamp_addresses(samples: list[Sample], offsets: list[int], position: Position) -> None:
    ordinal = position.ordinal + len(position.offsets)
    for index, (sample, offset) in enumerate(zip(samples, offsets, strict=True)):
        sample["__address__"] = Address(position.shard, ordinal + index, offset)


class ShardReader:
    """One shard being read.

    Args:
        shard: dict with ``url`` and ``stream``; ``__local_path__`` and other ``__…__`` entries go into every sample.
        reading: how to read.
        start: address of the sample to start at.
    """

    def __init__(self, shard: dict[str, Any], reading: Reading, start: Address | None = None) -> None:
        self.url = str(shard["url"])
        self.stream = shard["stream"]
        self.reading = reading
        self.scanner = TarScanner(reading.admit(), reading.limits)
        self.grouper = reading.grouper()
        stamp = {name: value for name, value in shard.items() if name.startswith("__")}
        self.grouper.open({"__url__": self.url, **stamp})
        self._start = start.offset if start is not None else 0
        self._complete = False
        self._compression: str | None = None
        self._watch: Watch | None = None
        if reading.observer is not None and not self._start:  # one that is resumed cannot be observed whole
            try:
                self._watch = reading.observer(self.url, reading)
            except BaseException:  # whatever it is: nobody else would close the stream
                self.close()
                raise

    def lists(self) -> Iterator[tuple[list[Sample], list[int]]]:
        """Yield lists of complete samples with their offsets, about one list a chunk."""
        grouper = self.grouper
        for members in self.member_lists():
            samples = grouper.add(members)
            while grouper.fault is not None:
                if samples:
                    yield samples, grouper.offsets
                self._ask(grouper.fault)
                samples = grouper.add(members, grouper.taken)
            del members
            coming = self.scanner.coming
            if coming is not None:
                grouper.announce(coming, samples)
            if samples:
                yield samples, grouper.offsets
            del samples
        samples = grouper.close()
        if samples:
            yield samples, grouper.offsets

    def member_lists(self) -> Iterator[list[Member]]:
        """Yield lists of members, about one list a chunk.

        Raises:
            WebDatasetError: the stream is not a whole tar archive; members before the fault have been yielded.
        """
        scanner = self.scanner
        watch = self._watch
        for piece in self._pieces():
            if watch is not None:
                watch.feed(piece, scanner.offset)
            members = scanner.feed(piece)
            del piece
            if members or scanner.coming is not None:
                yield members
            del members
            if scanner.error is not None:
                raise scanner.error
        ended = scanner.finish()
        if scanner.error is not None:
            raise scanner.error
        chosen = self.reading.missing_end
        if scanner.doubt is not None:
            tell_doubt(self.url, *scanner.doubt, chosen=chosen)
        if not ended:
            known = self._complete or length_known(self.stream)
            judge_missing_end(self.url, scanner.offset, chosen=chosen, known=known)
        if watch is not None:
            watch.finish(length_of(self.stream), self._compression)

    def _ask(self, error: Exception) -> None:
        if not self.reading.handler(error):
            raise _Stop

    def _pieces(self) -> Iterator[bytes]:
        """Yield the tar stream's bytes, decompressed, from the start offset on."""
        read = self.stream.read
        scanner = self.scanner
        if self._start and self._seek_start():
            piece = read(scanner.want)
            if not piece:
                raise Truncated("the shard ends before the sample to resume at: it has changed", offset=self._start)
        else:
            piece = read(scanner.want)
            while 0 < len(piece) < 512:  # enough to tell a compression from a tar header
                more = read(512 - len(piece))
                if not more:
                    break
                piece += more
            self._compression = kind = compression_of(piece)
            if kind is not None:
                yield from self._behind(self._decompressed(kind, piece))
                return
        pieces = self._plain(piece)
        yield from self._behind(pieces) if self._start > scanner.offset else pieces

    def _plain(self, piece: bytes) -> Iterator[bytes]:
        read = self.stream.read
        scanner = self.scanner
        while piece:
            yield piece
            del piece  # large payloads: what is not held can be used again
            if scanner.admit is not None and scanner.skippable > SEEK_WORTHWHILE:
                self._step_over(scanner.skippable - 1)
            piece = read(scanner.want)

    def _decompressed(self, kind: str, piece: bytes) -> Iterator[bytes]:
        decompressor = Decompressor(kind)
        while piece:
            yield from decompressor.feed(piece)
            piece = self.stream.read(decompressor.appetite)
        decompressor.finish()
        self._complete = True

    def _behind(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Leave out the bytes before the start offset."""
        left = self._start
        self.scanner.offset = self._start
        for piece in pieces:
            if left < len(piece):
                yield piece[left:] if left else piece
            left = max(0, left - len(piece))
        if left:
            raise Truncated(f"the shard ends {left} bytes before the sample to resume at", offset=self._start)

    def _seek_start(self) -> bool:
        """Go to the start offset if the source can, and if what stands there is a tar header."""
        if not _can_seek(self.stream):
            return False
        magic = self.stream.read(512)
        if compression_of(magic) is not None:
            self.stream.seek(0)
            return False
        self.stream.seek(self._start)
        self.scanner.offset = self._start
        return True

    def _step_over(self, count: int) -> None:
        if _can_seek(self.stream):
            self.stream.seek(count, 1)
            self.scanner.skipped(count)

    def explained(self, error: Exception) -> Exception:
        """Say where an error struck, and which sample it interrupted."""
        key = self.grouper.abandon()
        if isinstance(error, WebDatasetError) and key is not None and error.key is None:
            error.message += f"; sample {key!r}, in progress, was not delivered"
        offset = self.scanner.offset if not isinstance(error, WebDatasetError) else None
        return located(error, url=self.url, key=key, offset=offset, stage="tarfile_samples")

    def close(self) -> None:
        """Close the stream."""
        close = getattr(self.stream, "close", None)
        if close is not None:
            close()


def _can_seek(stream: Any) -> bool:
    seekable = getattr(stream, "seekable", None)
    return seekable is not None and bool(seekable())
