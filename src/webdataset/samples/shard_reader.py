"""One shard: the tar scanner and the grouper, fed by a stream.

Flows in: an opened shard, ``{"url", "stream"}``, and rules. Flows out: lists of complete samples with their offsets.
The stream is closed when its reader is. Never gives a sample that an error interrupted.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from webdataset.ground import errors
from webdataset.ground.errors import WebDatasetError
from webdataset.ground.policies import located
from webdataset.ground.skips import goes_on
from webdataset.sources.stream import length_known, length_of
from webdataset.tar.assembly import Member
from webdataset.tar.compression import Decompressor, compression_of
from webdataset.tar.header import Limits
from webdataset.tar.scan import TarScanner

from .address import Address
from .endings import judge_missing_end, tell_doubt
from .going import Going, can_seek
from .grouping import Grouper, Sample
from .rules import Rules

SEEK_WORTHWHILE = 1 << 20


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


class TarRules(Rules, Protocol):
    """How tar shards are read; see :class:`webdataset.samples.reading.Reading`."""

    @property
    def limits(self) -> Limits:
        """Bounds on headers and sparse members."""
        ...

    @property
    def missing_end(self) -> str | None:
        """What to do about a stream without its end mark."""
        ...

    @property
    def observer(self) -> Callable[[str, Any], Watch] | None:
        """Called with the url and these rules for each shard that is read from its start."""
        ...

    def admit(self) -> Callable[[str], str | None] | None:
        """Return the rule that names or leaves out a member."""
        ...

    def grouper(self) -> Grouper:
        """Return a grouper under these rules."""
        ...


class StopReading(Exception):
    """A handler chose to end the stage. Never leaves this folder."""


class ShardReader:
    """One shard being read.

    Args:
        shard: dict with ``url`` and ``stream``; ``__local_path__`` and other ``__…__`` entries go into every sample.
        reading: how to read.
        start: address of the sample to start at.
    """

    def __init__(self, shard: dict[str, Any], reading: TarRules, start: Address | None = None) -> None:
        self.url = str(shard["url"])
        self.stream = shard["stream"]
        self._read = getattr(self.stream, "read_some", self.stream.read)  # what is there, where a pipe is slow
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
        if not goes_on(self.reading.handler, error, "reading"):
            raise StopReading

    def _pieces(self) -> Iterator[bytes]:
        """Yield the tar stream's bytes, decompressed, from the start offset on."""
        scanner = self.scanner
        if self._start and self._seek_start():
            piece = self.stream.read(scanner.want)
            if not piece:
                raise errors.Truncated(
                    "the shard ends before the sample to resume at: it has changed", offset=self._start
                )
        else:
            read = self._read
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
        read = self._read
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
            piece = self._read(decompressor.appetite)
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
            raise errors.Truncated(f"the shard ends {left} bytes before the sample to resume at", offset=self._start)

    def _seek_start(self) -> bool:
        """Go to the start offset if the source can, and if the shard is not compressed."""
        going = Going(self.stream)
        if not going.reaches(self._start):
            return False
        compressed = compression_of(going.read(512)) is not None
        going.to(0 if compressed else self._start)
        if going.stream is not self.stream:
            self.stream = going.stream
            self._read = getattr(self.stream, "read_some", self.stream.read)  # what is there, where a pipe is slow
        if not compressed:
            self.scanner.offset = self._start
        return not compressed

    def _step_over(self, count: int) -> None:
        if can_seek(self.stream):
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
