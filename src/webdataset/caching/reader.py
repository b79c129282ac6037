"""Reads a shard of the cache, whole or while it grows.

The stream gives all bytes of the shard, each once and in order, or the error that reading the source gives. Every
process reads the file, also the one that downloads: there a thread writes it (:mod:`webdataset.caching.download`).
Other processes poll the end of the file and its lock: if the lock is free, the writer is gone, and this process
continues the download where the file ends. A writer that does nothing for a minute is left alone (it is stopped, or a
zombie): the rest is read from the source. So it is where the directory fails, in writing or in reading.

Never gives a byte of another version of the shard.
"""

import contextlib
import io
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from webdataset.caching import locks
from webdataset.caching.download import Downloader, Opening, checksum_error, close_quietly, has_store_checksum
from webdataset.caching.locks import Unwritable, forget_use, note_use
from webdataset.caching.metadata import EntryMetadata, read_metadata
from webdataset.core.errors import ShardChanged, SourceError
from webdataset.storage.local_files import retry_local
from webdataset.storage.object_store import ObjectVersion
from webdataset.storage.streams import FileIdentity, Stream, file_identity, stream_identity, stream_length

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from webdataset.caching.entry import CacheEntry

_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.0005, 0.02
_PIECE = 1 << 20
# a program that takes one sample and leaves has read less
LOOK_BYTES = 1 << 20


class CachedStream(io.RawIOBase):
    """The bytes of a shard, front to back, unbuffered.

    Args:
        entry: the shard.
        descriptor: its file, open for reading; None where ``direct`` is given.
        record: the metadata of the file, or None.
        downloader: writes the file, where this process does.
        whole: the status of the file, where it is the whole shard.
        direct: bytes, the stream that follows them (the source itself), and what gave that.

    Attributes:
        name: the path of the shard, once it is whole.
        path: the same.
        kept: whether there is, or comes, a file under that path.
        length: bytes of the shard, or None where it is unknown.
        look: called once, when a megabyte has been read: it may begin what comes next. Or None.
    """

    def __init__(
        self,
        entry: "CacheEntry",
        descriptor: int | None,
        record: EntryMetadata | None,
        *,
        downloader: Downloader | None = None,
        whole: os.stat_result | None = None,
        direct: tuple[bytes, Stream, Opening] | None = None,
    ) -> None:
        super().__init__()
        self.name = self.path = entry.place.final
        self.length = None if record is None else record.length
        if descriptor is None:
            self.length = stream_length(direct[1]) if direct else None
        self.kept = descriptor is not None
        self._opened: FileIdentity | None = None
        if whole is not None:
            self._opened = file_identity(whole)
            self.length = self._opened.length
        self._identity = _find_identity(self._opened, record, None if direct is None else direct[1])
        self._entry = entry
        self._file = descriptor
        self._record = record
        self._downloader = downloader
        self._whole = whole is not None
        self._rest: bytes = b""
        self._direct: Stream | None = None
        self._opening: Opening = None
        if direct is not None:
            self._rest, self._direct, self._opening = direct
        self._owner = os.getpid()
        self._at = 0
        self.look: Callable[[], None] | None = None
        note_use(self, self.path)

    @property
    def identity(self) -> ObjectVersion | FileIdentity | None:
        """Which object this is, by what its source said of it; a user's own file by its size and time."""
        return self._identity

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes, all the rest where ``size`` is negative, ``b""`` at the end.

        Raises:
            ShardChanged: a program has written to a file of the cache, and its source cannot be read from there on.
            WebDatasetError: what reading the source raises.
        """
        if size is None or size < 0:
            return self.readall()
        if self.closed:
            raise ValueError("read from a closed stream")
        if self.look is not None and self._at >= LOOK_BYTES:
            look, self.look = self.look, None
            look()
        if self._direct is not None:
            return self._read_source(self._direct, size)
        piece = self._from_file(size)
        if piece or self._whole or not size:
            return piece
        return self._coming(size)

    def readall(self) -> bytes:
        """Return the rest."""
        return b"".join(iter(lambda: self.read(_PIECE), b""))

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Fill a buffer, in part or whole; returns the number of bytes, 0 at the end."""
        space = memoryview(buffer).cast("B")
        piece = self.read(len(space))
        space[: len(piece)] = piece
        return len(piece)

    def _from_file(self, size: int) -> bytes:
        """Read the file; where it fails, or was overwritten, leave it for the source."""
        try:
            try:
                piece = self._read_once(size)
            except OSError as error:
                # where the source cannot be resumed, the file has to be waited for
                if isinstance(error, ShardChanged) or self._is_resumable():
                    raise
                piece = retry_local(lambda: self._read_once(size), error, self.path)
        except ShardChanged:
            if not self._is_resumable():
                raise
            return self._read_source(self._leave_file(None), size)
        except OSError as error:
            self._entry.complain(f"{self.path} cannot be read: {error.strerror or error}")
            return self._read_source(self._leave_file(error), size)
        self._at += len(piece)
        return piece

    def _is_resumable(self) -> bool:
        return self._record is not None and self._record.is_resumable()

    def _read_once(self, size: int) -> bytes:
        descriptor = -1 if self._file is None else self._file
        piece = os.pread(descriptor, size, self._at)
        if self._opened is not None:
            self._opened.check(descriptor, self.path, self._at)
        return piece

    def _read_source(self, source: Stream, size: int) -> bytes:
        """Read what is left of the first bytes, then the source itself."""
        if self._rest:
            piece, self._rest = self._rest[:size], self._rest[size:]
        else:
            piece = source.read(size)
        self._at += len(piece)
        return piece

    def _coming(self, size: int) -> bytes:
        """Wait for the next bytes of a file that grows."""
        pause = _SHORTEST_SECONDS
        waiting = locks.StallDetector()
        while True:
            ended = self._wait_for_thread() if self._is_downloading() else self._follow_writer(pause, waiting)
            if self._direct is not None:
                return self._read_source(self._direct, size)
            piece = self._from_file(size)
            if piece or ended:
                return piece
            pause = min(1.5 * pause, _LONGEST_SECONDS)

    def _is_downloading(self) -> bool:
        """Tell whether a thread of this process writes the file."""
        if self._downloader is not None and (self._downloader.owner != os.getpid() or self._downloader.stopped):
            self._downloader = None
        return self._downloader is not None

    def _wait_for_thread(self) -> bool:
        """Wait for this process's own thread; tell whether the file is complete."""
        downloader = self._downloader
        if downloader is None or downloader.wait(self._at):
            return False
        if downloader.trouble is not None:
            self._entry.complain(downloader.trouble)
        if downloader.error is not None:
            raise downloader.error
        if downloader.rest is not None:
            download = downloader.download
            self._rest, self._direct, self._opening = downloader.rest, download.stream, download.opening
            self._downloader = None
        return not downloader.stopped

    def _follow_writer(self, pause: float, waiting: locks.StallDetector) -> bool:
        """Wait for the process that writes the file, or take over from it; tell whether the file is complete."""
        place, record = self._entry.place, self._record
        if record is not None and self._at == record.length and not record.vouched:
            return True
        try:
            if locks.is_at_path(self._descriptor(), place.final):
                return True
            lock = locks.try_lock(place.lock)
        except OSError as error:
            self._leave_file(error)
            return False
        if lock is not None:
            return self._take_over(lock)
        if waiting.is_stalled(place.part, place.lock):
            self._leave_file(None)
        else:
            time.sleep(pause)
        return False

    def _descriptor(self) -> int:
        return -1 if self._file is None else self._file

    def _take_over(self, lock: locks.FileLock) -> bool:
        """Continue the download of a process that is gone; tell whether it had finished."""
        place, record = self._entry.place, self._record
        try:
            if locks.is_at_path(self._descriptor(), place.final):
                lock.release()
                return True
            if record is not None and locks.is_at_path(self._descriptor(), place.part):
                self._downloader = self._entry.take_over(lock, record)
                return False
        except (OSError, Unwritable) as error:
            lock.release()
            if isinstance(error, SourceError):
                raise
            self._leave_file(error)
            return False
        except BaseException:  # an interrupt, too, must not leave the shard locked
            lock.release()
            raise
        lock.release()
        # its writer left the file, or it is another version's by now
        self._leave_file(None)
        return False

    def _leave_file(self, error: Exception | None) -> Stream:
        """Open the source where the file was read to; ``error`` is why the file is left."""
        if self._is_downloading() and self._downloader is not None:
            self._downloader.leave()
        self._downloader = None
        known = self._current_record()
        if known is not None and known.vouched and self._at and self._at == known.length and not self._whole:
            self._compare(known, error)
        self._direct, self._opening = self._entry.open_rest(known, self._at, error)
        self._whole = False
        return self._direct

    def _compare(self, known: EntryMetadata, error: Exception | None) -> None:
        """Compare the bytes with the store's checksum: all were read here, and their writer is gone."""
        stream, opening = self._entry.open_rest(known, self._at - 1, error)
        try:
            stream.read(1)
            right = has_store_checksum(self._descriptor(), stream)
        except Unwritable as trouble:
            raise SourceError(
                f"cannot be compared with its checksum: {trouble}; read it again", url=known.url
            ) from error
        finally:
            close_quietly(stream, opening)
        if not right:
            raise checksum_error(known.url)

    def _current_record(self) -> EntryMetadata | None:
        """Return what is known of the file, if it is about this one."""
        if self._record is not None or self._file is None:
            return self._record
        record = read_metadata(self._entry.place.record)
        with contextlib.suppress(OSError):
            if record is not None and record.is_about(os.fstat(self._file)):
                return record
        return None

    def readable(self) -> bool:
        """Tell that this can be read."""
        return True

    def seekable(self) -> bool:
        """Tell whether :meth:`seek` works: once the file is whole."""
        return self._whole

    def tell(self) -> int:
        """Return the number of bytes before the next one."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to an offset of a whole shard."""
        if not self._whole:
            raise io.UnsupportedOperation("a shard that still comes cannot be sought in")
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.length or 0}
        self._at = max(0, starts[whence] + offset)
        return self._at

    def fileno(self) -> int:
        """Return the descriptor of a whole shard."""
        if not self._whole or self._file is None:
            raise io.UnsupportedOperation("a shard that still comes is no file")
        return self._file

    def close(self) -> None:
        """Close the file, or the source."""
        if self.closed:
            return
        super().close()
        forget_use(self)
        file, self._file = self.__dict__.get("_file"), None
        if file is not None:
            # a lease belongs to the process that took it
            if self._owner == os.getpid():
                locks.release_lease(file)
            with contextlib.suppress(OSError):
                os.close(file)
        downloader, self._downloader = self.__dict__.get("_downloader"), None
        if downloader is not None and downloader.owner == os.getpid():
            downloader.leave()
        if self.__dict__.get("_direct") is not None:
            close_quietly(self._direct, self._opening)


def _find_identity(
    opened: FileIdentity | None, record: EntryMetadata | None, direct: Stream | None
) -> ObjectVersion | FileIdentity | None:
    """Return which object is read: the source's, as far as the record knows it, so that copies agree with it."""
    if record is None:
        if opened is not None or direct is None:
            return opened
        size, validator = stream_identity(direct)
        return ObjectVersion(modified=validator, length=size)
    if record.length is None and opened is not None:
        return record.identity._replace(length=opened.length)
    return record.identity
