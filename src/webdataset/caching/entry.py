"""One shard of the cache: finds it whole, follows its download, resumes it, or starts to download it.

A cached shard is in one of these states; ``P``, ``J``, ``L`` and ``F`` are its part, metadata record, lock and final
file (:class:`~webdataset.caching.names.EntryPaths`):

* *absent*: no P, no F.
* *growing*: P, with a J that names its inode, and a process holds L. The size of P is the number of valid bytes.
* *left*: the same, and no process holds L. It can be resumed if J says which version of which object it is, and if
  the system has not been restarted since.
* *whole*: F, with a J that names it.

Only the holder of L creates, writes, renames or deletes P, J and F. The steps are: take L; open the source; remove F
of another version, and J; create P, empty; write J (this reserves the space); append bytes; verify P and flush it to
disk; J says *whole*; rename P to F; release L. Every process may open P or F for reading at any time, and takes a
lease on it (a shared lock on the file itself), which keeps eviction from it. What a kill leaves between two of these
steps:

* before J: a P without record, and no J that could be taken for its own (the system reuses inodes): removed by the
  next holder.
* between J and the renaming: *left*: the next holder continues at the end of P, with ``If-Match``. If all bytes are
  there it requests none, verifies and renames. Readers of other processes notice that L is free; the first of them is
  the next holder.
* after the renaming: *whole*.

So F is at all times a file that was whole and verified when it got the name, and no reader sees a byte of another
version: P is resumed or followed only for the identity that J states. A source that cannot state one (a pipe, a
server without ETag and date) is never followed: other readers wait for F, or for L. A download of another host is not
followed either, since a size says nothing about bytes that another system still holds: its shard is streamed from the
source.

:class:`CacheLookup` never writes into the directory; :class:`CacheEntry` does.
"""

import contextlib
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from webdataset.caching import locks, metadata
from webdataset.caching.download import FIRST_PIECE, Downloader, ShardDownload, close_quietly, reader_of
from webdataset.caching.eviction import Quota
from webdataset.caching.locks import Unwritable, translate_write_errors
from webdataset.caching.metadata import EntryMetadata, boot_id, hash_text, make_metadata, read_metadata
from webdataset.caching.names import CONTROL, EntryPaths, is_cache_name, shard_name
from webdataset.caching.reader import CachedStream
from webdataset.caching.validation import checksum_file, is_shard
from webdataset.core import settings
from webdataset.core.error_handlers import Handler, reraise_exception, with_location
from webdataset.core.errors import FormatError, NotFound, ShardChanged, SourceError
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.storage.object_store import ObjectVersion
from webdataset.storage.open_url import ResolvedUrl

SourceOpener = Callable[[Iterable[dict[str, Any]], Handler], Iterable[dict[str, Any]]]
"""Shards and a handler to opened shards: what opens them where the cache does not."""

_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)
_WHOLE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # a pipe in its place is not waited for
_BY_DESCRIPTOR = os.utime in os.supports_fd

# paths of copies to how they were when their checksum was compared, and whether it was right
_compared_copies: dict[str, tuple[tuple[int, int, int], bool]] = {}
_ambiguous_names: set[str] = set()  # paths of which somebody was told that two shards are to have them


@dataclass
class CacheLookup(ABC):
    """A shard that is to be read by way of the cache.

    Args:
        place: where it is in the cache, or will be.
        shard: the dict with its url.
        source: opens it without the cache; None: what its url leads to is opened.
        resolved: what its url leads to.
        quota: the bound on the directory.
        complete: hand out only what is whole and verified.
        validator: path to bool, asked whether it may be kept, instead of looking whether it is a shard.
        complain: told why the directory cannot be used.
        other: the place for it where another shard has this one.
        now: who the store says that the object is at present, where it was asked.
        archives: whether it is a tar archive.
    """

    place: EntryPaths
    shard: dict[str, Any]
    source: SourceOpener | None
    resolved: ResolvedUrl
    quota: Quota
    complete: bool
    validator: Callable[[str], Any] | None
    complain: Callable[[object], None]
    other: EntryPaths | None = None
    now: ObjectVersion | None = None
    archives: bool = True

    @property
    def url(self) -> str:
        """The url as the user wrote it."""
        return str(self.shard["url"])

    def open_source(self) -> tuple[Any, Any]:
        """Open it without the cache; return the stream, None where there is none, and what gave it."""
        if self.source is None:
            return open_directly(self.resolved), None
        opening = iter(self.source([self.shard], reraise_exception))
        return next(opening, {}).get("stream"), opening

    def give_up(self, reason: object) -> None:
        """Put nothing more into the cache, since its directory refuses.

        Args:
            reason: why.
        """
        self.complain(reason)

    @abstractmethod
    def leader(self, lock: locks.FileLock, record: EntryMetadata) -> Downloader:
        """Go on with a download whose process is gone, in a thread."""

    def avoid_another(self) -> None:
        """Go to the other place where the chosen name belongs to another shard, whole or growing."""
        if self.other is None:
            return
        record = read_metadata(self.place.record)
        if record is None or record.shard == hash_text(shard_name(self.url)):
            return
        if _has_file(self.place, record):
            if self.place.final not in _ambiguous_names:
                _ambiguous_names.add(self.place.final)
                warn_user(
                    f"url_to_name gives {self.place.name!r} for two shards, one of them from {record.url}: others, as "
                    f"{redact(self.url)}, are kept under names of their own. Let url_to_name give different names",
                )
            self.place, self.other = self.other, None

    def open_whole(self) -> CachedStream | None:
        """Open the shard if it is whole, and note that it was used.

        Raises:
            PermissionError: it may not be read.
        """
        try:
            descriptor = os.open(self.place.final, _WHOLE)
        except PermissionError:
            raise
        except (OSError, ValueError):
            return None
        try:
            status = os.fstat(descriptor)
            usable = stat.S_ISREG(status.st_mode) and locks.take_lease(descriptor) and os.fstat(descriptor).st_nlink > 0
            record = read_metadata(self.place.record)
            if usable and self._is_current(record, status) and self._is_sound(descriptor, record, status):
                with contextlib.suppress(OSError):  # not our file; the path may be another's by now
                    os.utime(
                        descriptor if _BY_DESCRIPTOR else self.place.final, ns=(time.time_ns(), status.st_mtime_ns)
                    )
                about = record if record is not None and record.is_about(status) else None
                return CachedStream(self, descriptor, about, whole=True)
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)
        return None

    def _is_current(self, record: EntryMetadata | None, status: os.stat_result) -> bool:
        if record is None or not record.whole:
            return True
        if not record.is_about(status):  # under a chosen name it may be a user's own file
            return record.size_bytes == status.st_size or not is_cache_name(os.path.basename(self.place.name))  # noqa: PTH119
        return self.now is None or not record.identity.contradicts(self.now)

    def _is_sound(self, descriptor: int, record: EntryMetadata | None, status: os.stat_result) -> bool:
        """Tell whether a copy has the bytes that came: compared once in each process, and when its date changes."""
        if record is None or not record.whole or record.crc32 is None or not settings.CACHE_VERIFY.get():
            return True
        if not record.is_about(status) and not is_cache_name(os.path.basename(self.place.name)):  # noqa: PTH119
            return True  # a user's own file
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        before = _compared_copies.get(self.place.final)
        if before is None or before[0] != seen:
            before = _compared_copies[self.place.final] = seen, checksum_file(descriptor) == record.crc32
            if not before[1]:
                warn_user(
                    f"{self.place.final}, the cached copy of {record.url}, is damaged: its checksum is not the one "
                    "that it had when it was fetched. It is fetched again; check the disk",
                )
        return before[1]

    def fits(self, record: EntryMetadata | None, status: os.stat_result) -> bool:
        """Tell whether a part is of this shard, and can be gone on with."""
        return (
            record is not None
            and record.grows(status)
            and record.is_resumable()
            and record.shard == hash_text(shard_name(self.url))
            and not (self.now is not None and record.identity.contradicts(self.now))
        )

    def open_growing(self) -> CachedStream | None:
        """Open the part that another writes, if its bytes can be relied on."""
        try:
            descriptor = os.open(self.place.part, _READ)
        except OSError:
            return None
        record = read_metadata(self.place.record)
        with contextlib.suppress(OSError):
            if self.fits(record, os.fstat(descriptor)) and locks.take_lease(descriptor):
                metadata.mark_current(self.place)
                return CachedStream(self, descriptor, record)
        os.close(descriptor)
        return None

    def is_foreign(self) -> bool:
        """Tell whether a process of another host downloads the shard."""
        record = read_metadata(self.place.record)
        if record is None or record.whole or record.boot == boot_id():
            return False
        try:
            return os.stat(self.place.part).st_ino == record.inode  # noqa: PTH116
        except OSError:
            return False

    def rest(self, record: EntryMetadata | None, offset: int, cause: Exception | None) -> tuple[Any, Any]:
        """Open the source at an offset.

        Args:
            record: what was read until there, or None.
            offset: the first byte wanted.
            cause: why the file is left.

        Returns:
            The stream, and what gave it, which may close it when it is collected.

        Raises:
            SourceError: it cannot be taken up there.
        """
        stream = None if record is None else metadata.open_rest(record, self.resolved, offset)
        opening = None
        if stream is None and offset == 0:
            stream, opening = self.open_source()
        if stream is None:
            raise SourceError(
                f"the copy in the cache, {self.place.final}, cannot be read further than byte {offset}, and its source "
                "cannot be taken up there",
                url=self.url,
            ) from cause
        return stream, opening


def open_directly(resolved: ResolvedUrl) -> Any:
    """Open the source of a shard.

    Args:
        resolved: what its url leads to.

    Raises:
        SourceError: it cannot be opened.
    """
    try:
        return resolved.open_stream()
    except Exception as error:  # raised again, with its place
        with_location(error, url=resolved.url, stage="url_opener")
        raise


def _has_file(place: EntryPaths, record: EntryMetadata) -> bool:
    """Tell whether a record is about a file that is there."""
    for path, agrees in ((place.final, record.is_about), (place.part, record.grows)):
        with contextlib.suppress(OSError, ValueError):
            if agrees(os.stat(path)):  # noqa: PTH116
                return True
    return False


_APPEND = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.0005, 0.02


@dataclass
class CacheEntry(CacheLookup):
    """A shard that is to be read by way of the cache: found there, or brought there. Its fields are those of above."""

    def open(self) -> Any:
        """Return a stream of the shard, or None where its source has to be read.

        Raises:
            FormatError: what came is no shard.
            SourceError: the source failed.
        """
        try:
            with translate_write_errors():
                os.makedirs(os.path.join(self.place.folder, CONTROL), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH118
            return self._share_download()
        except Unwritable as trouble:
            self.complain(trouble)
            return None

    def _share_download(self) -> Any:
        """Find the shard whole, or download it, or read along."""
        pause, waiting = _SHORTEST_SECONDS, locks.StallDetector()
        while True:
            self.avoid_another()
            with translate_write_errors():
                lock = locks.try_lock(self.place.lock)
            if lock is not None:
                return self._download(lock)
            with translate_write_errors():
                near = self.open_whole() or (None if self.complete or self.validator else self.open_growing())
            if near is not None:
                return near
            if self.is_foreign() or waiting.is_stalled(self.place.part, self.place.lock):
                return None
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_SECONDS)

    def _download(self, lock: locks.FileLock) -> Any:
        """Download the shard."""
        try:
            with translate_write_errors():
                near = self.open_whole()  # it may have come just before the lock
            found = near or self._resume(lock) or self._begin(lock)
        except BaseException:  # an interrupt, too, must not leave the shard locked
            lock.release()
            raise
        if isinstance(found, ShardDownload):
            return self._follow_own_download(found)
        lock.release()
        return found

    def _resume(self, lock: locks.FileLock) -> ShardDownload | None:
        """Go on with what a dead process left; what cannot be gone on with is removed."""
        with translate_write_errors():
            try:
                descriptor = os.open(self.place.part, _APPEND)
            except FileNotFoundError:
                return None
            try:
                record, status = read_metadata(self.place.record), os.fstat(descriptor)
                if record is not None and self.fits(record, status) and status.st_size <= (record.length or 0):
                    return self.continue_download(lock, record, descriptor, status.st_size)
            except (ShardChanged, NotFound, Unwritable):
                pass  # not the same object, or no room: from the start
            except BaseException:  # the download will not close it
                os.close(descriptor)
                raise
            os.close(descriptor)
            os.unlink(self.place.part)  # noqa: PTH108  one call of the system
            if not os.path.lexists(self.place.final):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.place.record)  # noqa: PTH108
        return None

    def continue_download(
        self, lock: locks.FileLock, record: EntryMetadata, descriptor: int, size: int
    ) -> ShardDownload:
        """Return a download that goes on at the end of a part.

        Args:
            lock: the shard's, held.
            record: what is known of it.
            descriptor: the part, open for writing.
            size: bytes that it has.

        Raises:
            ShardChanged: the object is another one by now.
            SourceError: the store refuses, or does not answer.
            Unwritable: there is no room.
        """
        with translate_write_errors():
            if size and size == record.length and record.resumed and record.vouched:
                size -= 1  # nobody has compared the checksum: the store is asked for it, and for the last byte
                os.ftruncate(descriptor, size)
            resumed = replace(record, whole=False, resumed=record.resumed or size < (record.length or 0))
            granted = self.quota.reserve(self.place, resumed, record.length or 0)
        if granted is None:
            raise Unwritable("no room")
        stream = metadata.open_rest(record, self.resolved, size)
        if stream is None:
            raise ShardChanged("the shard is opened in another way than before", url=self.url)
        return ShardDownload(self.place, lock, descriptor, granted, stream, start=size, written=size)

    def leader(self, lock: locks.FileLock, record: EntryMetadata) -> Downloader:
        """Go on with a download whose process is gone, in a thread.

        Args:
            lock: the shard's, held.
            record: what is known of it.

        Raises:
            SourceError: the object is another one by now, or its store does not answer.
            Unwritable: there is no room.
            OSError: the directory refuses.
        """
        descriptor = os.open(self.place.part, _APPEND)
        try:
            status, latest = os.fstat(descriptor), read_metadata(self.place.record)
            if latest is not None and latest.grows(status) and latest.identity == record.identity:
                record = latest  # others may have gone on with it meanwhile
            download = self.continue_download(lock, record, descriptor, status.st_size)
        except BaseException:  # the download will not close it
            os.close(descriptor)
            raise
        return self._start_downloader(download)

    def _begin(self, lock: locks.FileLock) -> Any:
        """Open the source and begin its part; where that cannot be kept, return a stream of the source."""
        stream, opening = self.open_source()
        if stream is None:
            raise SourceError("the url opener gave no stream", url=self.url)
        head = b""
        download = None
        try:
            try:
                download = self._part(lock, stream, opening)
                head = self._head(stream) if download is not None else b""
                if download is not None:
                    download.write(head)
            except Unwritable as trouble:
                self.complain(trouble)
                self._abandon(download)
                download = None
        except BaseException:  # an interrupt, too, must leave neither part nor source
            self._abandon(download)
            close_quietly(stream, opening)
            raise
        if download is not None:
            return download
        return CachedStream(self, None, None, direct=(head, stream, opening))

    def _abandon(self, download: ShardDownload | None) -> None:
        if download is not None:
            download.discard()
            with contextlib.suppress(OSError):
                os.close(download.descriptor)

    def _part(self, lock: locks.FileLock, stream: Any, opening: Any) -> ShardDownload | None:
        """Create the part and its record; None where there is no room."""
        with translate_write_errors():
            self._clear()
            descriptor = os.open(self.place.part, _APPEND | os.O_CREAT | os.O_EXCL, 0o600)
            record = make_metadata(stream, self.url, self.place.name, os.fstat(descriptor).st_ino)
            download = ShardDownload(self.place, lock, descriptor, record, stream, opening)
            try:
                size = FIRST_PIECE if record.length is None else record.length
                granted = self.quota.reserve(self.place, record, size)
            except OSError:
                self._abandon(download)
                raise
        if granted is None:
            self._abandon(download)
            return None
        return replace(download, record=granted)

    def _clear(self) -> None:
        """Remove the record of what was here before, and a download of another version.

        The new part's record takes the place of that one's: a copy without record would never be compared again. And a
        part without record must not be taken for the file whose inode it has been given.
        """
        place, known = self.place, read_metadata(self.place.record)
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(place.final)
            if is_cache_name(os.path.basename(place.name)) or (known is not None and known.is_about(status)):  # noqa: PTH119
                os.unlink(place.final)  # noqa: PTH108
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place.record)  # noqa: PTH108

    def _head(self, stream: Any) -> bytes:
        """Read the first bytes of a shard.

        Raises:
            FormatError: they are not those of one.
        """
        read = reader_of(stream)
        head = read(FIRST_PIECE)
        while head and len(head) < 512 and (piece := read(FIRST_PIECE)):
            head += piece
        if self.archives and self.validator is None and not is_shard(head):
            raise FormatError(f"not a tar archive, so it is not cached; it begins with {head[:60]!r}", url=self.url)
        return head

    def _follow_own_download(self, download: ShardDownload) -> Any:
        """Read a download while it grows, or when it is whole; None where it is not kept."""
        try:
            descriptor = os.open(self.place.part, _READ)
        except OSError as error:
            download.discard()
            download.close()
            raise Unwritable(error.strerror or str(error)) from error
        with contextlib.suppress(OSError):
            locks.take_lease(descriptor)
        if not self.complete and self.validator is None:
            return CachedStream(self, descriptor, download.record, leader=self._start_downloader(download))
        leader = Downloader(download, self.quota, self.validator)
        try:
            leader.run()
        except BaseException:  # an interrupt: nobody else would close it
            os.close(descriptor)
            raise
        if leader.kept:
            return CachedStream(self, descriptor, download.record, whole=True)
        os.close(descriptor)
        if leader.error is not None:
            raise leader.error
        if leader.trouble is not None:
            self.complain(leader.trouble)
        leader.leave()
        return None

    def _start_downloader(self, download: ShardDownload) -> Downloader:
        leader = Downloader(download, self.quota, None)
        try:
            leader.start()
        except RuntimeError:  # no more threads: then before it is read
            leader.run()
        return leader
