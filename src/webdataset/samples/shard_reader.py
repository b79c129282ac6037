"""One shard: the tar scanner and the grouper, fed by a stream.

Flows in: an opened shard, ``{"url", "stream"}``, and rules. Flows out: lists of complete samples with their offsets.
The stream is closed when its reader is. Never gives a sample that an error interrupted.
"""

import io
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from webdataset.ground import errors
from webdataset.ground.errors import WebDatasetError
from webdataset.ground.policies import located
from webdataset.ground.skips import goes_on
from webdataset.sources.stream import identity_of, length_of
from webdataset.tar.assembly import Body, Member
from webdataset.tar.compression import Decompressor, compression_of
from webdataset.tar.scan import TarScanner

from .address import Address
from .endings import judge_missing_end, warn_trailing, warn_unusual
from .going import Going, can_seek
from .grouping import Sample
from .passed_headers import PassedHeaders
from .rules import TarRules, Watch
from .split_samples import FinishedKeys, finished_keys

if TYPE_CHECKING:
    from .links import Links, ReadAt

SEEK_WORTHWHILE = 1 << 20


class StopReading(Exception):
    """A handler chose to end the stage. Never leaves this folder."""


class ShardReader:
    """One shard being read.

    Args:
        shard: dict with ``url`` and ``stream``; ``__local_path__`` and other ``__…__`` entries go into every sample.
            ``rising`` is False where it is known that the keys before ``start`` do not rise.
        reading: how to read.
        start: address of the sample to start at.
    """

    def __init__(self, shard: dict[str, Any], reading: TarRules, start: Address | None = None) -> None:
        self.url = str(shard["url"])
        self.path = shard.get("__local_path__")
        self.stream = shard["stream"]
        self._read = getattr(self.stream, "read_some", self.stream.read)  # what is there, where a pipe is slow
        self.reading = reading
        self.scanner = TarScanner(reading.admit(), reading.limits)
        self.scanner.weigh = self._weigh
        self.grouper = reading.grouper()
        stamp = {name: value for name, value in shard.items() if name.startswith("__")}
        self.grouper.open({"__url__": self.url, **stamp})
        self.finished = finished_keys(self.url, reading, self.grouper)
        self._links: Links | None = None
        self._named = isinstance(shard["url"], str)
        self._start = start.offset if start is not None else 0
        self._rising = bool(shard.get("rising", True))
        self._compression: str | None = None
        self._ended = False  # what comes now are the shard's last samples
        # files that somebody else opened do not look after themselves
        foreign = type(getattr(self.stream, "kept", self.stream)) in (io.FileIO, io.BufferedReader)
        self._opened = identity_of(self.stream) if foreign else None
        self._watch: Watch | None = None
        if reading.observer is not None and not self._start:  # one that is resumed cannot be observed whole
            try:
                self._watch = reading.observer(self.url, reading)
            except BaseException:  # whatever it is: nobody else would close the stream
                self.close()
                raise

    @property
    def rising(self) -> bool:
        """Whether the keys of the shard rise, up to here and, where it was taken up in its middle, as far as is known.

        A state keeps this: who takes the shard up with ``rising`` False in its dict looks up the keys before at once.
        """
        return self._rising and (self.finished is None or self.finished.rising)

    def lists(self) -> Iterator[tuple[list[Sample], list[int]]]:
        """Yield lists of complete samples with their offsets, about one list a chunk; parts of samples are judged."""
        finished = self.finished
        try:
            for samples, offsets in self._lists():
                first = 0
                for index, part in () if finished is None else finished.add(samples, offsets):
                    if first < index:
                        yield samples[first:index], offsets[first:index]
                    self._ask(part)
                    first = index + 1
                if self._ended:
                    self._finish_watch()
                if first < len(samples):
                    yield (samples[first:], offsets[first:]) if first else (samples, offsets)
                del samples
            self._finish_watch()
        except Exception:  # whatever it is: it says more than a warning, and is raised again
            if finished is not None:
                finished.silent = True
            raise
        finally:
            if finished is not None:
                finished.tell()

    def _lists(self) -> Iterator[tuple[list[Sample], list[int]]]:
        grouper = self.grouper
        for members in self._with_the_last_header():
            if self.scanner.strays:
                for some in self.resolved(members):
                    samples = yield from self._grouped(some)
                    if samples:
                        yield samples, grouper.offsets
                members = []  # noqa: PLW2901  they have been given
            samples = yield from self._grouped(members)
            del members
            coming = self.scanner.coming
            if coming is not None:
                grouper.announce(coming, samples)
            if samples:
                yield samples, grouper.offsets
            del samples
        self._ended = True
        samples = grouper.close()
        if samples:
            yield samples, grouper.offsets

    def _grouped(self, members: list[Member]) -> Generator[tuple[list[Sample], list[int]], None, list[Sample]]:
        """Group some members: yield the samples before each fault, and return those after the last."""
        grouper = self.grouper
        samples = grouper.add(members)
        while grouper.fault is not None:
            if samples:
                yield samples, grouper.offsets
            self._ask(grouper.fault)
            samples = grouper.add(members, grouper.taken)
        return samples

    def resolved(self, members: list[Member]) -> Iterator[list[Member]]:
        """Yield the members given last with those that hard links among them lead to, in several lists.

        Args:
            members: as ``member_lists`` gave them.
        """
        strays, self.scanner.strays = self.scanner.strays, []
        if not strays:
            yield members
            return
        if self._links is None:
            from .links import Links  # noqa: PLC0415  most shards have none

            rename = getattr(self.reading, "rename_files", None)
            self._links = Links(self.url, self.reading.limits, self._anywhere, rename)
        yield from self._links.resolved(members, strays, self.grouper)

    def _tell_links(self) -> None:
        if self._links is not None:
            self._links.tell()

    def _anywhere(self) -> "ReadAt | None":
        """Return what reads the shard anywhere, or None where its source is read front to back only."""
        from .links import random_access, seeking  # noqa: PLC0415  as above

        if self._compression is not None:
            return None
        if can_seek(self.stream):
            return seeking(self.stream, lambda: self.scanner.offset)
        ours = type(self.stream).__module__.startswith("webdataset.")
        return random_access(self.url, self.reading, length_of(self.stream)) if ours and self._named else None

    def _with_the_last_header(self) -> Iterator[list[Member]]:
        """Yield the lists of members; where an error strikes inside a member, its header still ends the sample before.

        So the same samples come before an error, however the bytes came.
        """
        try:
            yield from self.member_lists()
        except Exception:  # whatever it is: it is raised again, behind the sample
            scanner = self.scanner
            scanner.coming = scanner.awaited
            if scanner.coming is not None:
                yield []
            raise

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
            if members or scanner.coming is not None or scanner.strays:
                yield members
            del members
            if scanner.error is not None:
                raise scanner.error
        if self._opened is not None and identity_of(self.stream) != self._opened:
            raise errors.ShardChanged("the file was overwritten while it was being read: read it again")
        ended = scanner.finish()
        if scanner.error is not None:
            raise scanner.error
        self._tell_links()
        chosen = self.reading.missing_end
        warn_unusual(self.url, scanner, chosen=chosen)
        if not ended:
            judge_missing_end(self.url, scanner.offset, chosen=chosen)

    def _finish_watch(self) -> None:
        """Tell who looks on, once, that the shard has ended and that its last samples are no parts."""
        watch, self._watch = self._watch, None
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
            if self.finished is not None and not self._start and can_seek(self.stream):
                self.finished.follow(self._passed)
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
            if not piece and scanner.skippable and can_seek(self.stream):
                # it may have stepped over the end: what is said about it names the last byte
                scanner.skipped(min(0, self.stream.seek(0, 2) - scanner.offset))

    def _decompressed(self, kind: str, piece: bytes) -> Iterator[bytes]:
        from .sizes import weigh_growth  # noqa: PLC0415  for compressed shards alone

        decompressor = Decompressor(kind, ignore_trailing=True)
        unknown = self._stored() is None
        while piece:
            for grown in decompressor.feed(piece):
                yield grown
                if unknown:
                    weigh_growth(*self.scanner.progress, decompressor.taken)
            piece = self._read(decompressor.appetite)
        decompressor.finish()
        warn_trailing(self.url, decompressor)

    def _stored(self) -> int | None:
        """Return the bytes of a compressed shard, or None."""
        return None if self._compression is None else length_of(self.stream)

    def _weigh(self, body: Body) -> None:
        from .sizes import weigh  # noqa: PLC0415  for large members alone

        weigh(body, self._stored)

    def _behind(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Leave out the bytes before the start offset."""
        left = self._start
        self.scanner.offset = self._start
        passed = None if self.finished is None else PassedHeaders(self.url, self.reading, left)
        for piece in pieces:
            if left and passed is not None and self.finished is not None:
                passed.feed(piece, self._start - left)
                if left <= len(piece):
                    self.finished.follow(lambda _: passed.keys(), self._start)
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
        if not compressed and self.finished is not None and can_seek(self.stream):
            self.finished.follow(self._passed, None if self._rising else self._start)
        going.to(0 if compressed else self._start)
        if going.stream is not self.stream:
            self.stream = going.stream
            self._read = getattr(self.stream, "read_some", self.stream.read)  # what is there, where a pipe is slow
        if not compressed:
            self.scanner.offset = self._start
        return not compressed

    def _passed(self, offset: int) -> FinishedKeys:
        """Return the keys before an offset, by the headers there."""
        return PassedHeaders(self.url, self.reading, offset).walked(self.stream)

    def _step_over(self, count: int) -> None:
        if can_seek(self.stream):
            self.stream.seek(count, 1)
            self.scanner.skipped(count)

    @property
    def place(self) -> int:
        """Offset of the member at which a user's function raised, or of the next byte."""
        struck = self.scanner.struck
        return self.scanner.offset if struck is None else struck

    def explained(self, error: Exception) -> Exception:
        """Say where an error struck, and which sample it interrupted."""
        key = self.grouper.abandon()
        body = self.scanner.progress[0]
        if isinstance(error, MemoryError) and body is not None:
            from .sizes import exceeded  # noqa: PLC0415  hardly ever

            cause, error = error, exceeded(body, body.size, "for which there is no memory now")
            error.__cause__ = cause
        if isinstance(error, WebDatasetError) and key is not None and error.key is None:
            error.message += f"; sample {key!r}, in progress, was not delivered"
        offset = self.place if not isinstance(error, WebDatasetError) else None
        return located(error, url=self.url, path=self.path, key=key, offset=offset, stage="tarfile_samples")

    def close(self) -> None:
        """Close the stream."""
        close = getattr(self.stream, "close", None)
        if close is not None:
            close()
        self._tell_links()
