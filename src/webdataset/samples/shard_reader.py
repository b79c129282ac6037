"""Reads one shard: a stream feeds the tar scanner and the grouper, which give lists of complete samples.

The judgement about the end of a shard stands here too. The stream is closed when its reader is closed. A sample that an
error interrupted is never given.

Theory of endings. Every program that writes tar ends it with blocks of zeros. An archive that ends on a member boundary
without one was cut there, or its writer did not live to close it: nothing shows whether its last sample is whole, even
where the file or the server vouches for its length. So it is an error, and the sample in progress is not delivered. One
zero block is enough: some programs write no second one, and some fill their last record of 10240 bytes. All readers use
this one check, so that a shard has one verdict, whether it is streamed, walked or indexed.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from webdataset.core import errors, settings
from webdataset.core.error_handlers import should_continue, with_location
from webdataset.core.errors import WebDatasetError
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.samples.address import Address
from webdataset.samples.grouping import Sample, Shard
from webdataset.samples.native_core import NativeTaker, open_taker, take_small_shard
from webdataset.samples.reading_rules import TarReadingRules, Watch
from webdataset.samples.seekable_source import SeekableSource, can_seek
from webdataset.samples.split_samples import FinishedKeys, PassedHeaders, track_keys
from webdataset.storage.local_files import LocalFileStream
from webdataset.storage.streams import identify_file, read_full, stream_identity, stream_length
from webdataset.tar.compression import Decompressor, detect_compression
from webdataset.tar.member_assembly import Member, MemberAssembly, MemberBody
from webdataset.tar.scanner import CHUNK, TarScanner

if TYPE_CHECKING:
    from webdataset.samples.links import LinkResolver, ReadAt


def check_end_mark(url: str, offset: int, *, chosen: str | None) -> None:
    """Judge a tar stream that ended on a member boundary without an end mark.

    Args:
        url: the shard.
        offset: where it ended, in bytes.
        chosen: ``warn``, ``error``, ``ignore``; None asks ``WDS_MISSING_END``, and is an error where that is not set.

    Raises:
        Truncated: under ``error``.
    """
    message = f"the tar stream ends at byte {offset} without its end-of-archive mark: it was cut, or never finished"
    chosen = chosen or settings.MISSING_END.get()
    if chosen in (None, "error"):
        raise errors.Truncated(
            f"{message}; write it again, or accept what there is with missing_end='warn' or WDS_MISSING_END=warn",
            url=url,
            offset=offset,
        )
    if chosen != "ignore":
        warn_user(
            f"{redact(url)}: {message}; its last sample may lack fields, and others may be missing after it",
        )


def warn_unusual_join(url: str, archive: MemberAssembly, *, chosen: str | None) -> None:
    """Warn of what no usual writer leaves in an archive, and what other programs read differently.

    ``chosen`` as ``ignore`` says nothing of zero blocks.
    """
    if archive.doubt is not None and chosen != "ignore":
        offset, zeros = archive.doubt
        blocks = "a single zero block stands" if zeros == 1 else f"{zeros} zero blocks stand"
        warn_user(
            f"{redact(url)}: {blocks} before byte {offset}, with members after them: archives were joined there with "
            "unusual padding, or members were overwritten with zeros and are lost",
        )
    if archive.global_override is not None:
        warn_user(
            f"{redact(url)}: the global PAX header at byte {archive.global_override} gives all members after it a "
            "name or a size; it is obeyed, as GNU tar does, and others ignore it: write the shard without it",
        )


def warn_trailing(url: str, decompressor: Decompressor) -> None:
    """Warn of bytes after a compressed stream that are not part of it, and were ignored."""
    if decompressor.trailing is not None:
        warn_user(
            f"{redact(url)}: the {decompressor.kind} stream ends before compressed byte {decompressor.trailing}; the "
            f"{decompressor.taken - decompressor.trailing} bytes after it are ignored. If the shard was joined from "
            "several files, it is damaged there",
        )


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

    def __init__(self, shard: Shard, reading: TarReadingRules, start: Address | None = None) -> None:
        self.url = str(shard["url"])
        self.path = shard.get("__local_path__")
        self.stream = shard["stream"]
        # what is there, where a pipe is slow
        self._read = getattr(self.stream, "read_some", self.stream.read)
        self.reading = reading
        self.scanner = TarScanner(reading.admit(), reading.limits)
        self.scanner.weigh = self._weigh
        self.scanner.largest_chunk = getattr(self.stream, "chunk_bytes", CHUNK)
        self.grouper = reading.grouper()
        stamp = {name: value for name, value in shard.items() if name.startswith("__")}
        self.grouper.open({"__url__": self.url, **stamp})
        self.finished = track_keys(self.url, reading, self.grouper)
        # read already, from the start
        self._first_piece = b""
        self._links: LinkResolver | None = None
        self._named = isinstance(shard["url"], str)
        self._start = start.offset if start is not None else 0
        self._rising = bool(shard.get("rising", True))
        self._compression: str | None = None
        # what comes now are the shard's last samples
        self._ended = False
        # files that other code opened do not look after themselves, and tell nothing once they are closed
        self.file_identity = None if hasattr(self.stream, "identity") else identify_file(self.stream)
        self._watch: Watch | None = None
        # one that is resumed cannot be observed whole
        if reading.observer is not None and not self._start:
            try:
                self._watch = reading.observer(self.url, reading)
            except BaseException:  # nothing else would close the stream
                self.close()
                raise

    @property
    def rising(self) -> bool:
        """Whether the keys of the shard rise, up to here and, after a resume in its middle, as far as is known.

        A state keeps this: a run that resumes with ``rising`` False looks up the keys before at once.
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
        self.scanner.taker = taker = open_taker(self.scanner, grouper)
        if taker is not None:
            yield from self._lists_by_taker(taker)
            return
        for members in self._attach_last_header():
            if self.scanner.payloadless:
                for some in self.resolve(members):
                    samples = yield from self._group_members(some)
                    if samples:
                        yield samples, grouper.offsets
                members = []  # noqa: PLW2901  they have been given
            samples = yield from self._group_members(members)
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

    def _lists_by_taker(self, taker: NativeTaker) -> Iterator[tuple[list[Sample], list[int]]]:
        """Yield lists of samples, most of which the taker makes; what it leaves is grouped before it continues.

        What the end of a file gave is one list with the last sample, once the end is judged.
        """
        try:
            yield from self._group_with_taker(taker)
        except Exception:  # raised again: what came before it is given
            if taker.samples:
                yield taker.collect()
            raise
        self._ended = True
        taker.add(self.grouper.close(), self.grouper.offsets)
        if taker.samples:
            yield taker.collect()

    def _group_with_taker(self, taker: NativeTaker) -> Iterator[tuple[list[Sample], list[int]]]:
        grouper, scanner = self.grouper, self.scanner
        for members in self._attach_last_header():
            linked = bool(scanner.payloadless)
            if linked and taker.samples:
                # what comes before a link that leads nowhere is given
                yield taker.collect()
            for some in self.resolve(members) if linked else (members,):
                taker.add(grouper.add(some), grouper.offsets)
                while grouper.fault is not None:
                    if taker.samples:
                        yield taker.collect()
                    self._ask(grouper.fault)
                    taker.add(grouper.add(some, grouper.taken), grouper.offsets)
                if linked and taker.samples:
                    yield taker.collect()
            del members
            if scanner.coming is not None:
                grouper.offsets = taker.offsets
                grouper.announce(scanner.coming, taker.samples)
            if taker.samples and (taker.paused or not scanner.waiting) and not self._at_end():
                yield taker.collect()
            yield from taker.take_lists(scanner)

    def _at_end(self) -> bool:
        """Tell whether all of a local file has been read, and no observer is to see when its samples go."""
        stream = self.stream
        if type(stream) is not LocalFileStream or self._watch is not None or self._compression is not None:
            return False
        scanner = self.scanner
        # what the end warns of comes after the samples, and after what is wrong with them
        warns = scanner.doubt is not None or scanner.global_override is not None
        return stream.ends_at(scanner.offset) and not scanner.waiting and not warns

    def _group_members(self, members: list[Member]) -> Generator[tuple[list[Sample], list[int]], None, list[Sample]]:
        """Group some members: yield the samples before each fault, and return those after the last."""
        grouper = self.grouper
        samples = grouper.add(members)
        while grouper.fault is not None:
            if samples:
                yield samples, grouper.offsets
            self._ask(grouper.fault)
            samples = grouper.add(members, grouper.taken)
        return samples

    def resolve(self, members: list[Member]) -> Iterator[list[Member]]:
        """Yield the members given last with those that hard links among them lead to, in several lists."""
        payloadless, self.scanner.payloadless = self.scanner.payloadless, []
        if not payloadless:
            yield members
            return
        if self._links is None:
            from webdataset.samples.links import LinkResolver  # noqa: PLC0415  most shards have none

            rename = getattr(self.reading, "rename_files", None)
            self._links = LinkResolver(self.url, self.reading.limits, self._open_random_access, rename)
        yield from self._links.resolve(members, payloadless, self.grouper)

    def _tell_links(self) -> None:
        if self._links is not None:
            self._links.tell()

    def _open_random_access(self) -> "ReadAt | None":
        """Return what reads the shard anywhere, or None where its source is read front to back only."""
        from webdataset.samples.links import make_read_at, open_random_access  # noqa: PLC0415  as above

        if self._compression is not None:
            return None
        if can_seek(self.stream):
            return make_read_at(self.stream, lambda: self.scanner.offset)
        ours = type(self.stream).__module__.startswith("webdataset.")
        return open_random_access(self.url, self.reading, stream_length(self.stream)) if ours and self._named else None

    def _attach_last_header(self) -> Iterator[list[Member]]:
        """Yield the lists of members; a header before an error still ends the sample before, however the bytes came."""
        try:
            yield from self.member_lists()
        except Exception:  # whatever it is: it is raised again, after the sample
            scanner = self.scanner
            scanner.coming = scanner.pending_name
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
            # in a list, for the same reason as in _plain
            lists = [scanner.feed(piece)]
            del piece
            while True:
                # where a taker made samples only, they are given
                if lists[0] or scanner.coming is not None or scanner.payloadless or scanner.taker is not None:
                    yield lists.pop()
                lists.clear()
                if scanner.error is not None:
                    raise scanner.error
                if not scanner.waiting:
                    break
                lists.append(scanner.feed_waiting())
        if self.file_identity is not None and stream_identity(self.stream) != self.file_identity:
            raise errors.ShardChanged("the file was overwritten while it was being read: read it again")
        ended = scanner.finish()
        if scanner.error is not None:
            raise scanner.error
        self._tell_links()
        chosen = self.reading.missing_end
        warn_unusual_join(self.url, scanner, chosen=chosen)
        if not ended:
            check_end_mark(self.url, scanner.offset, chosen=chosen)

    def _finish_watch(self) -> None:
        """Tell who looks on, once, that the shard has ended and that its last samples are no parts."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.finish(stream_length(self.stream), self._compression)

    def _ask(self, error: Exception) -> None:
        if not should_continue(self.reading.handler, error, "reading"):
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
            piece, self._first_piece = self._first_piece or read(scanner.want), b""
            # enough to tell a compression from a tar header
            while 0 < len(piece) < 512:
                more = read(512 - len(piece))
                if not more:
                    break
                piece += more
            # the mark of a tar header: nothing compressed has it there
            self._compression = kind = None if piece[257:262] == b"ustar" else detect_compression(piece)
            if kind is not None:
                yield from self._drop_before_start(self._decompress(kind, piece))
                return
            if self.finished is not None and not self._start and can_seek(self.stream):
                self.finished.follow(self._keys_before_start)
        pieces = self._plain([piece])
        del piece
        if self._start > scanner.offset:
            yield from self._drop_before_start(pieces)
            return
        taker, stream = scanner.taker, self.stream
        # a watch sees all bytes, and a pipe or a stream of other code may end or change in ways of its own
        if isinstance(taker, NativeTaker) and type(stream) is LocalFileStream and stream.identity and not self._watch:
            taker.read_from(stream)
        yield from pieces

    def _plain(self, pieces: list[bytes]) -> Iterator[bytes]:
        read, scanner = self._read, self.scanner
        # in a list, and popped: what a frame holds while it waits cannot be used again, and many streams wait at once
        while pieces[0]:
            yield pieces.pop()
            if scanner.admit is not None and scanner.skippable > SEEK_WORTHWHILE:
                self._step_over(scanner.skippable - 1)
            if type(self.stream) is LocalFileStream and self.stream.ends_at(scanner.offset):
                self.stream.check_identity()
                return
            pieces.append(read(scanner.want))
            if not pieces[0] and scanner.skippable and can_seek(self.stream):
                # it may have stepped over the end: what is said about it names the last byte
                scanner.step_over(min(0, self.stream.seek(0, 2) - scanner.offset))

    def _decompress(self, kind: str, piece: bytes) -> Iterator[bytes]:
        from webdataset.samples.member_sizes import check_member_growth  # noqa: PLC0415  for compressed shards alone

        decompressor = Decompressor(kind, ignore_trailing=True)
        unknown = self._stored_length() is None
        while piece:
            for grown in decompressor.feed(piece):
                yield grown
                if unknown:
                    check_member_growth(*self.scanner.progress, decompressor.taken)
            piece = self._read(decompressor.appetite)
        decompressor.finish()
        warn_trailing(self.url, decompressor)

    def _stored_length(self) -> int | None:
        """Return the bytes of a compressed shard, or None."""
        return None if self._compression is None else stream_length(self.stream)

    def _weigh(self, body: MemberBody) -> None:
        from webdataset.samples.member_sizes import check_member_size  # noqa: PLC0415  for large members alone

        check_member_size(body, self._stored_length)

    def _drop_before_start(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
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
        going = SeekableSource(self.stream)
        if not going.reaches(self._start):
            return False
        compressed = detect_compression(read_full(going.read, 512)) is not None
        if not compressed and self.finished is not None and can_seek(self.stream):
            self.finished.follow(self._keys_before_start, None if self._rising else self._start)
        going.to(0 if compressed else self._start)
        if going.stream is not self.stream:
            self.stream = going.stream
            # what is there, where a pipe is slow
            self._read = getattr(self.stream, "read_some", self.stream.read)
        if not compressed:
            self.scanner.offset = self._start
        return not compressed

    def _keys_before_start(self, offset: int) -> FinishedKeys:
        """Return the keys before an offset, by the headers there."""
        return PassedHeaders(self.url, self.reading, offset).walk_headers(self.stream)

    def _step_over(self, count: int) -> None:
        if can_seek(self.stream):
            self.stream.seek(count, 1)
            self.scanner.step_over(count)

    @property
    def place(self) -> int:
        """Offset of the member at which a user's function raised, or of the next byte."""
        struck = self.scanner.struck
        return self.scanner.offset if struck is None else struck

    def explain_error(self, error: Exception) -> Exception:
        """Say where an error struck, and which sample it interrupted."""
        key = self.grouper.abandon()
        body = self.scanner.progress[0]
        if isinstance(error, MemoryError) and body is not None:
            from webdataset.samples.member_sizes import member_size_error  # noqa: PLC0415  hardly ever

            cause, error = error, member_size_error(body, body.size, "for which there is no memory now")
            error.__cause__ = cause
        if isinstance(error, WebDatasetError) and key is not None and error.key is None:
            error.message += f"; sample {key!r}, in progress, was not delivered"
        # what the system refuses has no place of its own
        placed = isinstance(error, WebDatasetError) and getattr(error, "errno", None) is None
        offset = None if placed else self.place
        return with_location(error, url=self.url, path=self.path, key=key, offset=offset, stage="tarfile_samples")

    def close(self) -> None:
        """Close the stream."""
        close = getattr(self.stream, "close", None)
        if close is not None:
            close()
        self._tell_links()


class SmallShardReader(ShardReader):
    """A small local shard being read from its start: all at once, where nothing in it has to be judged.

    Most of what such a shard costs is to make scanner, grouper and the memory of keys. So they are made only where they
    are needed.

    Args:
        shard: as for :class:`ShardReader`, with a :class:`~webdataset.storage.local_files.LocalFileStream`.
        reading: how to read; without an observer.
        common: extensions seen before under these rules, and their fields.
    """

    def __init__(self, shard: Shard, reading: TarReadingRules, common: dict[str, str]) -> None:
        self.stream = shard["stream"]
        # this file looks after itself
        self.file_identity = None
        self._arguments = shard, reading
        self._common = common
        self._small = True

    @property
    def rising(self) -> bool:
        """Whether the keys of the shard rise."""
        return self._small or super().rising

    def lists(self) -> Iterator[tuple[list[Sample], list[int]]]:
        """Yield lists of samples, as :meth:`ShardReader.lists` does; of a plain shard there is one at most."""
        shard, _ = self._arguments
        stamp = {"__key__": None, "__url__": str(shard["url"])}
        stamp |= {name: value for name, value in shard.items() if name.startswith("__")}
        content = self.stream.read(self.stream.identity.length)
        found = take_small_shard(content, stamp, self._common) if stamp["__key__"] is None else None
        if found is None:
            self._prepare()
            self._first_piece = content
            yield from super().lists()
        elif found[0]:
            yield found

    def _prepare(self) -> None:
        if self._small:
            self._small = False
            super().__init__(*self._arguments)

    def explain_error(self, error: Exception) -> Exception:
        """Say where an error struck."""
        self._prepare()
        return super().explain_error(error)

    def close(self) -> None:
        """Close the stream."""
        if self._small:
            self.stream.close()
        else:
            super().close()
