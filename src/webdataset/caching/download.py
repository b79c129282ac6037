"""Downloads one shard into the cache, in a thread of the one process that holds its lock, and verifies it.

The thread moves a stream into a growing file, which gets its final name when it is whole. It runs as fast as the
source gives, independent of the reader in the same process: if that reader drove it, a rank that waits for the others
would hold back their bytes, and all would wait forever. The thread is a daemon and is stopped at exit, so that
nothing hangs there. In a forked child it does not exist; there the reader follows the growing file as a reader of any
other process does.

Never stores an error page, nor anything that may have been cut without notice.
"""

import atexit
import contextlib
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from webdataset.caching import metadata
from webdataset.caching.eviction import Quota
from webdataset.caching.locks import (
    CachedFile,
    FileLock,
    TemporaryDownload,
    Unwritable,
    is_at_path,
    translate_write_errors,
)
from webdataset.caching.metadata import EntryMetadata
from webdataset.caching.names import EntryPaths
from webdataset.core.errors import FormatError, ShortRead, SourceError, WebDatasetError
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_reader import ShardReader
from webdataset.storage.streams import Stream, length_known
from webdataset.tar.compression import detect_compression
from webdataset.tar.header import is_checksum_right

FIRST_PIECE = 1 << 16
_LARGEST_PIECE = 1 << 18
_PIECE = 1 << 20
# reserved at a time where the length is unknown
_STEP_BYTES = 64 << 20

Opening = Iterator[dict[str, object]] | None
"""The generator that gave a stream, and may close the stream when it is collected; None where no generator did."""

Validator = Callable[[str], object]
"""Path to whether the file may be kept."""

_running: "weakref.WeakSet[Downloader]" = weakref.WeakSet()


@dataclass
class ShardDownload:
    """A shard on its way into the cache.

    Args:
        place: its paths.
        lock: the shard's lock, held.
        descriptor: the part, open for writing.
        record: its metadata.
        stream: the source, after the bytes that the part has.
        opening: what gave the stream.
        start: bytes that the part had already.
        written: bytes that the part has.
        crc32: checksum of these, as they came.
        checksums: the record, open for appending since the first piece of a part that can be continued; or None.
    """

    place: EntryPaths
    lock: FileLock
    descriptor: int
    record: EntryMetadata
    stream: Stream
    opening: Opening = None
    start: int = 0
    written: int = 0
    crc32: int = 0
    checksums: int | None = None

    def write(self, piece: bytes) -> None:
        """Append bytes.

        Raises:
            Unwritable: the directory refuses; :attr:`written` says what it took.
        """
        rest = memoryview(piece)
        with translate_write_errors():
            while rest:
                count = os.write(self.descriptor, rest)
                self.written += count
                rest = rest[count:]
            self.crc32 = zlib.crc32(piece, self.crc32)
            if self.checksums is None and self.record.is_resumable():
                self.checksums = metadata.open_checksums(self.place)
            if self.checksums is not None:
                metadata.append_checksum(self.checksums, self.written, self.crc32)

    def discard(self) -> None:
        """Remove the part and its record; readers that have it open continue."""
        with contextlib.suppress(OSError):
            # locks do not hold in this directory: by now the part is another process's
            if not is_at_path(self.descriptor, self.place.part):
                return
        for path in (self.place.part, *([] if os.path.lexists(self.place.final) else [self.place.record])):
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108  one call of the system

    def publish(self) -> None:
        """Give a whole part its final name.

        Raises:
            Unwritable: the directory refuses, or a process that ignores the lock has replaced the part.
        """
        place = self.place
        with translate_write_errors():
            os.fsync(self.descriptor)
            if not is_at_path(self.descriptor, place.part):
                raise Unwritable("another process has replaced a part, though it was locked: its locks do not hold")
            os.makedirs(os.path.dirname(place.final), exist_ok=True)  # noqa: PTH103, PTH120
            self.record.for_whole_file(os.fstat(self.descriptor), self.crc32).write(place)
            os.replace(place.part, place.final)  # noqa: PTH105

    def close_files(self) -> None:
        """Close the part and its record; called once."""
        for descriptor in (self.descriptor, self.checksums):
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def close(self, *, keep_stream: bool = False) -> None:
        """Close the part, release the lock, and close the source unless ``keep_stream``: its reader continues there."""
        self.close_files()
        self.lock.release()
        if not keep_stream:
            close_quietly(self.stream, self.opening)


class Downloader:
    """Moves a shard into the cache.

    Args:
        download: the shard.
        quota: gives space where the length is unknown.
        validator: asked whether the shard may be kept.

    Attributes:
        valid: bytes that can be read from the part.
        ended: whether nothing more is written.
        stopped: whether it ended because it was told to stop.
        kept: whether the shard has its final name.
        error: why the source failed, or None.
        trouble: why the cache directory refused, or None.
        rest: bytes that follow :attr:`valid`, and after which the stream has to be read, where the directory refused.
    """

    def __init__(self, download: ShardDownload, quota: Quota, validator: Validator | None = None) -> None:
        self.owner = os.getpid()
        self.download = download
        self.valid = download.written
        self.ended = self.stopped = self.kept = False
        self.error: Exception | None = None
        self.trouble: Exception | None = None
        self.rest: bytes | None = None
        self._quota = quota
        self._validator = validator
        self._news = threading.Condition()
        self._stop = self._left = False

    def start(self) -> None:
        """Download in a thread."""
        _running.add(self)
        threading.Thread(target=self.run, name="webdataset-cache", daemon=True).start()

    def wait(self, offset: int) -> bool:
        """Wait for a byte at ``offset`` in the part; False where nothing more is written before it."""
        with self._news:
            while self.valid <= offset and not self.ended:
                self._news.wait()
            return self.valid > offset

    def leave(self) -> None:
        """Stop, since nothing reads here any more; finish all the same a shard of which more than half is there."""
        length = self.download.record.length
        with self._news:
            self._left = True
            self._stop = self._stop or length is None or 2 * self.valid < length
            unread = self.ended and self.rest is not None
            waiting = self._stop and not self.ended
        if unread:
            close_quietly(self.download.stream, self.download.opening)
        elif waiting:
            self._wake()

    def stop(self) -> None:
        """Stop soon."""
        self._stop = True
        self._wake()

    def _wake(self) -> None:
        """Let a read that waits for its source fail: the next holder of the lock downloads faster."""
        interrupt = getattr(self.download.stream, "interrupt", None)
        if interrupt is not None:
            interrupt()

    def run(self) -> None:
        """Download; called once."""
        keep_stream = False
        try:
            keep_stream = self._move()
        except Unwritable as error:
            self.trouble = error
            self.download.discard()
        except Exception as error:  # noqa: BLE001  whatever a source raises is raised where it is read
            self.error = error
            if not self._resumable():
                self.download.discard()
        finally:
            self.download.close(keep_stream=keep_stream)
            with self._news:
                self.ended = True
                self._news.notify_all()
                unread = keep_stream and self._left
            if unread:
                close_quietly(self.download.stream, self.download.opening)

    def _move(self) -> bool:
        """Move bytes until the source ends; True where the directory refuses, and the stream goes to the reader."""
        download, size = self.download, FIRST_PIECE
        read = reader_of(download.stream)
        while not self._stop:
            piece = read(size)
            if not piece:
                self._finish()
                return False
            size = min(2 * size, _LARGEST_PIECE)
            before = download.written
            try:
                self._allow(before + len(piece))
                download.write(piece)
            except Unwritable as error:
                self.trouble = error if error.__cause__ is not None else None
                self.rest = bytes(memoryview(piece)[download.written - before :])
                self.valid = download.written
                download.discard()
                return True
            with self._news:
                self.valid = download.written
                self._news.notify_all()
        self.stopped = True
        if not self._resumable():
            download.discard()
        return False

    def _resumable(self) -> bool:
        return self.download.record.is_resumable()

    def _allow(self, size_bytes: int) -> None:
        """Reserve more space where the length is unknown."""
        record = self.download.record
        if record.length is None and size_bytes > record.reserved_bytes and self._quota.size_bytes > 0:
            step = max(1, int(min(_STEP_BYTES, self._quota.size_bytes / 8)))
            with translate_write_errors():
                granted = self._quota.reserve(self.download.place, record, size_bytes + step)
            if granted is None:
                raise Unwritable("no room")
            self.download.record = granted

    def _finish(self) -> None:
        """Verify the file and give it its name."""
        download, record = self.download, self.download.record
        if record.length is not None and download.written != record.length:
            raise ShortRead(f"the source ended after {download.written} of {record.length} bytes", url=record.url)
        if not self._is_proven():
            download.discard()
            return
        download.publish()
        metadata.mark_current(download.place)
        self.kept = True

    def _is_proven(self) -> bool:
        """Tell whether the part is all of a shard; raise where the validator or its checksum refuses it."""
        part, record = self.download.place.part, self.download.record
        if self._validator is not None:
            if not self._validator(part):
                self.download.discard()
                raise _refusal(self._validator, record.url)
            return True
        if self.download.start and not has_store_checksum(self.download.descriptor, self.download.stream):
            self.download.discard()
            raise checksum_error(record.url)
        return record.length is not None or _is_whole(part)


@atexit.register
def _stop_downloads() -> None:
    """Stop the downloads of this process; their parts can be resumed."""
    for downloader in list(_running):
        downloader.stop()


def reader_of(stream: Stream) -> Callable[[int], bytes]:
    """Return what reads from a source and returns as soon as there are bytes."""
    read: Callable[[int], bytes] = getattr(stream, "read_some", stream.read)
    return read


def close_quietly(stream: Stream | None, opening: Opening = None) -> None:
    """Close a source and the generator that gave it."""
    for closing in (stream, opening):
        close = getattr(closing, "close", None)
        if close is not None:
            # its bytes are here, or its failure is known
            with contextlib.suppress(OSError, SourceError):
                close()


# -- checks


def is_shard(start: bytes) -> bool:
    """Tell whether bytes, 512 or more, begin a tar archive (an empty one is zeros), plain or compressed."""
    block = start[:512]
    return detect_compression(start) is not None or (len(block) == 512 and (not any(block) or is_checksum_right(block)))


def check_tar_format(fname: str | os.PathLike[str]) -> bool:
    """Tell whether a file begins as a tar archive does, plain or compressed.

    Args:
        fname: its path; for a file that cannot be read the answer is no.
    """
    try:
        with Path(fname).open("rb") as stream:
            return is_shard(stream.read(512))
    except OSError:
        return False


def get_filetype(fname: str | os.PathLike[str]) -> str:
    """Return a file's path and what its first bytes say that it is, for messages.

    Args:
        fname: its path.

    Raises:
        OSError: it cannot be read.
    """
    with Path(fname).open("rb") as stream:
        start = stream.read(512)
    packed = detect_compression(start)
    kind = f"{packed} compressed" if packed else "POSIX tar archive" if is_shard(start) else "data"
    return f"{os.fspath(fname)}: {kind if start else 'empty'}"


def checksum_file(descriptor: int) -> int:
    """Return the checksum of an open file; it takes 0.3 s a GiB, beside reading.

    Raises:
        OSError: the file cannot be read.
    """
    found = offset = 0
    while piece := os.pread(descriptor, _PIECE, offset):
        found, offset = zlib.crc32(piece, found), offset + len(piece)
    return found


def find_sound_bytes(descriptor: int, known: list[tuple[int, int]], limit: int) -> tuple[int, int, bool]:
    """Compare a part with the checksums of its bytes.

    Args:
        descriptor: the part.
        known: sizes, which rise, each with the checksum of all bytes before it.
        limit: the largest size wanted.

    Returns:
        The largest size whose checksum is right, that checksum, and whether one after it is wrong.

    Raises:
        OSError: the part cannot be read.
    """
    sound = sound_crc32 = found = offset = 0
    for size, crc32 in known:
        if size > limit:
            break
        while offset < size and (piece := os.pread(descriptor, min(_PIECE, size - offset), offset)):
            found, offset = zlib.crc32(piece, found), offset + len(piece)
        if offset != size or found != crc32:
            return sound, sound_crc32, True
        sound, sound_crc32 = size, crc32
    return sound, sound_crc32, False


def has_store_checksum(descriptor: int, stream: Stream) -> bool:
    """Tell whether a file that was written in several goes has the store's checksum, or the store names none.

    Raises:
        Unwritable: the file cannot be read.
    """
    expected, add = getattr(stream, "vouched", (None, None))
    if expected is None or add is None:
        return True
    found = offset = 0
    with translate_write_errors():
        while piece := os.pread(descriptor, _LARGEST_PIECE, offset):
            found, offset = add(piece, found), offset + len(piece)
    return bool(found == expected)


def checksum_error(url: str) -> ShortRead:
    """Return the error for a file whose checksum is not the store's."""
    return ShortRead("its checksum is not the one that the store names; read it again", url=url)


def fill_download(download: TemporaryDownload, stream: Stream, url: str, validator: Validator | None = None) -> bool:
    """Copy a stream into a download, and close the stream.

    Args:
        download: takes the bytes.
        stream: the source, at its start.
        url: for messages.
        validator: asked in place of looking at the bytes; it answers for the file being right and whole.

    Returns:
        Whether the bytes are all of the shard: the source vouches for its length, or they are an archive up to its end
        mark.

    Raises:
        FormatError: they do not begin as a shard does, or the validator refuses them.
        SourceError: the source failed or ended early.
        Unwritable: the cache directory cannot take them.
    """
    try:
        known = length_known(stream)
        start = b""
        while len(start) < 512 and (piece := stream.read(_PIECE)):
            start += piece
        if validator is None and not is_shard(start):
            raise format_error(start, url)
        download.write(start)
        while piece := stream.read(_PIECE):
            download.write(piece)
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()
    if validator is None:
        return known or _is_whole(download.partial)
    if not validator(download.partial):
        raise _refusal(validator, url)
    return True


def format_error(start: bytes, url: str) -> FormatError:
    """Return the error for bytes that do not begin a shard."""
    return FormatError(f"not a tar archive, so it is not cached; it begins with {start[:60]!r}", url=url)


def _refusal(validator: Validator, url: str) -> FormatError:
    """Return the error for a file that a validator refuses."""
    return FormatError(f"{getattr(validator, '__name__', 'the validator')} refuses it, so it is not cached", url=url)


def _is_whole(path: str) -> bool:
    """Tell whether a file is an archive up to its end mark.

    Raises:
        Unwritable: the file cannot be read.
    """
    try:
        with contextlib.closing(
            ShardReader({"url": path, "stream": CachedFile(path)}, Reading(missing_end="error"))
        ) as reader:
            for _ in reader.member_lists():
                pass
    except WebDatasetError:  # reading the source itself gives the error, or a warning, as without a cache
        return False
    except OSError as error:
        raise Unwritable(f"{path} cannot be verified: {error.strerror or error}") from error
    return True
