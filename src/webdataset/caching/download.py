"""Downloads one shard into the cache, in a thread of the one process that holds its lock.

The thread moves a stream into a growing file, which gets its final name when it is whole. It runs as fast as the
source gives, independent of the reader in the same process: if that reader drove it, a rank that waits for the others
would hold back their bytes, and all would wait for ever.

The thread is a daemon and is stopped at exit, so that nothing hangs there. In a forked child it does not exist; there
the reader follows the growing file as a reader of any other process does.
"""

import atexit
import contextlib
import os
import threading
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from webdataset.caching import metadata
from webdataset.caching.eviction import Quota
from webdataset.caching.locks import FileLock, Unwritable, is_at_path, translate_write_errors
from webdataset.caching.metadata import EntryMetadata
from webdataset.caching.names import EntryPaths
from webdataset.caching.validation import checksum_file, is_whole
from webdataset.core.errors import FormatError, ShortRead, SourceError

FIRST_PIECE = 1 << 16
_LARGEST_PIECE = 1 << 18
_STEP_BYTES = 64 << 20  # reserved at a time where the length is unknown

_running: "weakref.WeakSet[Downloader]" = weakref.WeakSet()


@dataclass
class ShardDownload:
    """A shard on its way into the cache.

    Args:
        place: where it goes.
        lock: the shard's lock, held.
        descriptor: the part, open for writing.
        record: what is known of it.
        stream: the source, after the bytes that the part has.
        opening: what gave the stream, and may close it when it is collected.
        start: bytes that the part had already.
        written: bytes that the part has.
        crc32: checksum of the bytes as they came; of no meaning where the part had some already.
    """

    place: EntryPaths
    lock: FileLock
    descriptor: int
    record: EntryMetadata
    stream: Any
    opening: Any = None
    start: int = 0
    written: int = 0
    crc32: int = 0

    def write(self, piece: bytes) -> None:
        """Append bytes.

        Raises:
            Unwritable: the directory refuses; :attr:`written` tells what it took.
        """
        rest = memoryview(piece)
        with translate_write_errors():
            while rest:
                count = os.write(self.descriptor, rest)
                self.written += count
                rest = rest[count:]
        self.crc32 = zlib.crc32(piece, self.crc32)

    def checksum(self) -> int:
        """Return the checksum of all bytes: as they came, or as they are where this process did not see them come.

        Raises:
            Unwritable: the directory refuses.
        """
        if not self.start:
            return self.crc32
        with translate_write_errors():
            return checksum_file(self.descriptor)

    def discard(self) -> None:
        """Remove what there is; readers that have it open go on reading."""
        with contextlib.suppress(OSError):
            if not is_at_path(self.descriptor, self.place.part):  # locks do not hold here: it is another's by now
                return
        for path in (self.place.part, *([] if os.path.lexists(self.place.final) else [self.place.record])):
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108  one call of the system

    def close(self, *, keep_stream: bool = False) -> None:
        """Let go of everything.

        Args:
            keep_stream: leave the source open: other code reads the rest.
        """
        with contextlib.suppress(OSError):
            os.close(self.descriptor)
        self.lock.release()
        if not keep_stream:
            close_quietly(self.stream, self.opening)


class Downloader:
    """Moves a shard into the cache.

    Args:
        download: the shard.
        quota: gives space where its length is not known.
        validator: path to bool, asked whether it may be kept.

    Attributes:
        valid: bytes that can be read from the part.
        ended: whether nothing more is written.
        stopped: whether that is because it was told to stop.
        kept: whether it has its final name.
        error: why the source failed, or None.
        trouble: why the cache directory refused, or None.
        rest: bytes that follow on :attr:`valid`, and then the stream has to be read, where the directory refused.
    """

    def __init__(self, download: ShardDownload, quota: Quota, validator: Callable[[str], Any] | None = None) -> None:
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
        """Wait until there is a byte at ``offset`` in the part, or nothing more is written.

        Returns:
            Whether there is one.
        """
        with self._news:
            while self.valid <= offset and not self.ended:
                self._news.wait()
            return self.valid > offset

    def leave(self) -> None:
        """Say that nobody reads here any more: more than half of a shard is finished all the same."""
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
        """Let a read that waits for its source fail: the thread that waits for the lock could do better."""
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
        """Move bytes until the source ends.

        Returns:
            Whether the directory refused, and the stream goes to the reader.
        """
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
        """Reserve more space where the length is not known."""
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
        publish_download(download, record)
        metadata.mark_current(download.place)
        self.kept = True

    def _is_proven(self) -> bool:
        """Tell whether the part is all of a shard.

        Raises:
            FormatError: the validator refuses it.
            ShortRead: its checksum is another than the store's.
        """
        part, record = self.download.place.part, self.download.record
        if self._validator is not None:
            if not self._validator(part):
                name = getattr(self._validator, "__name__", "the validator")
                self.download.discard()
                raise FormatError(f"{name} refuses it, so it is not cached", url=record.url)
            return True
        if self.download.start and not has_store_checksum(self.download.descriptor, self.download.stream):
            self.download.discard()
            raise checksum_error(record.url)
        return record.length is not None or is_whole(part)


def publish_download(download: ShardDownload, record: EntryMetadata) -> None:
    """Give a whole part its final name.

    Args:
        download: the shard.
        record: what is known of it.

    Raises:
        Unwritable: the directory refuses, or somebody who should not has replaced the part.
    """
    place, descriptor, crc32 = download.place, download.descriptor, download.checksum()
    with translate_write_errors():
        os.fsync(descriptor)
        if not is_at_path(descriptor, place.part):
            raise Unwritable("another process has replaced a part, though it was locked: its locks do not hold")
        os.makedirs(os.path.dirname(place.final), exist_ok=True)  # noqa: PTH103, PTH120
        record.for_whole_file(os.fstat(descriptor), crc32).write(place)
        os.replace(place.part, place.final)  # noqa: PTH105


def has_store_checksum(descriptor: int, stream: Any) -> bool:
    """Tell whether a file that was written in several goes has the store's checksum, or the store names none.

    Args:
        descriptor: the file, open for reading.
        stream: what gave the last bytes of it, begun behind its first.

    Raises:
        Unwritable: it cannot be read.
    """
    expected, summing = getattr(stream, "vouched", (None, None))
    if expected is None or summing is None:
        return True
    found = offset = 0
    with translate_write_errors():
        while piece := os.pread(descriptor, _LARGEST_PIECE, offset):
            found, offset = summing(piece, found), offset + len(piece)
    return bool(found == expected)


def checksum_error(url: str) -> ShortRead:
    """Return the error to raise where a file has not the store's checksum.

    Args:
        url: the shard's.
    """
    return ShortRead("its checksum is not the one that the store names; read it again", url=url)


def reader_of(stream: Any) -> Callable[[int], bytes]:
    """Return what reads from a source as soon as there is something.

    Args:
        stream: the source.
    """
    read: Callable[[int], bytes] = getattr(stream, "read_some", stream.read)
    return read


def close_quietly(stream: Any, opening: Any = None) -> None:
    """Close a source.

    Args:
        stream: the source.
        opening: the generator that gave it.
    """
    for closing in (stream, opening):
        close = getattr(closing, "close", None)
        if close is not None:
            with contextlib.suppress(OSError, SourceError):  # its bytes are here, or its failure is known
                close()


@atexit.register
def _stop_downloads() -> None:
    """Stop the downloads of this process; what there is of them can be resumed."""
    for leader in list(_running):
        leader.stop()
