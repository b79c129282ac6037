"""One shard of the cache: finds it whole, follows its download, resumes it, or starts to download it.

A cached shard is in one of three states (:class:`EntryState`); ``P``, ``J``, ``L`` and ``F`` are its part, metadata
record, lock and final file (:class:`~webdataset.caching.names.EntryPaths`):

=========  ==============================  ============================================================================
state      files                           what a process does that wants the shard
=========  ==============================  ============================================================================
ABSENT     no P, no F                      takes L and downloads it
PARTIAL    P, with a J that names its      L held: the size of P is the number of valid bytes, and the process follows;
           inode                           L free: it takes L and resumes, if J says which version of which object P is,
                                           and the system has not been restarted since; else it downloads anew.
                                           Bytes that do not have the checksum that J states are fetched again
WHOLE      F, with a J that names it       reads F
=========  ==============================  ============================================================================

Only the holder of L creates, writes, renames or deletes P, J and F. The steps are: take L; open the source; remove F
of another version, and J; create P, empty; write J (this reserves the space); append bytes; verify P and flush it to
disk; J says *whole*; rename P to F; release L. Every process may open P or F for reading at any time, and takes a
lease on it (a shared lock on the file itself), which keeps eviction from it. What a kill leaves between two of these
steps:

* before J: a P without record, and no J that could be taken for its own (the system reuses inodes): the next holder
  removes it.
* between J and the renaming: PARTIAL with L free. The next holder continues after the last piece of P whose checksum
  stands in J (each piece's is added to J after the piece), with ``If-Match``. If all bytes are there it requests
  none, verifies and renames. Readers of other processes notice that L is free; the first of them is the next holder.
* after the renaming: WHOLE.

So F is at all times a file that was whole and verified when it got the name, and no reader sees a byte of another
version: P is resumed or followed only for the version that J states. A source that cannot state one (a pipe, a server
without ETag and date) is never followed: other readers wait for F, or for L. A download of another host is not
followed either, since a size says nothing about bytes that another system still holds: its shard is streamed from the
source. A file of the user's own under F has no J; it is read as it is, and never deleted.
"""

import contextlib
import enum
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from webdataset.caching import locks, metadata
from webdataset.caching.download import (
    FIRST_PIECE,
    Downloader,
    Opening,
    ShardDownload,
    Validator,
    checksum_file,
    close_quietly,
    find_sound_bytes,
    format_error,
    is_shard,
    reader_of,
)
from webdataset.caching.eviction import Quota
from webdataset.caching.locks import Unwritable, translate_write_errors
from webdataset.caching.metadata import EntryMetadata, boot_id, make_metadata, read_metadata
from webdataset.caching.names import CONTROL, EntryPaths, is_cache_name
from webdataset.caching.reader import CachedStream
from webdataset.core import settings
from webdataset.core.durable_files import sync_folder
from webdataset.core.error_handlers import Handler, reraise_exception, with_location
from webdataset.core.errors import NotFound, ShardChanged, SourceError
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.storage.object_store import ObjectVersion
from webdataset.storage.open_url import ResolvedUrl
from webdataset.storage.streams import Stream

SourceOpener = Callable[[Iterable[dict[str, object]], Handler], Iterable[dict[str, object]]]
"""Shards and a handler to opened shards: what opens them where the cache does not."""

_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)
# a pipe in the place of a shard is not waited for
_READ_WHOLE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
_APPEND = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
_BY_DESCRIPTOR = os.utime in os.supports_fd
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.0005, 0.02

# paths of copies to how they were when their checksum was compared, and whether it was right
_compared_copies: dict[str, tuple[tuple[int, int, int], bool]] = {}
# paths of which a warning said that two shards are to have them
_ambiguous_names: set[str] = set()


class EntryState(enum.Enum):
    """What the cache directory holds of a shard; the table at the head of this module says what follows from it."""

    ABSENT = "absent"
    PARTIAL = "partial"
    WHOLE = "whole"


@dataclass
class CacheEntry:
    """A shard that is to be read through the cache: found there, or brought there.

    Args:
        place: its paths in the cache.
        shard: the dict with its url.
        source: opens it without the cache; None: what its url leads to is opened.
        resolved: what its url leads to.
        quota: the bound on the directory.
        complain: told why the directory cannot be used.
        complete: hand out only what is whole and verified.
        validator: asked whether it may be kept, in place of looking whether it is a shard.
        other: its paths where another shard has ``place``.
        now: the version that the store has at present, where it was asked.
        archives: whether it is a tar archive.
    """

    place: EntryPaths
    shard: dict[str, object]
    source: SourceOpener | None
    resolved: ResolvedUrl
    quota: Quota
    complain: Callable[[object], None]
    complete: bool = False
    validator: Validator | None = None
    other: EntryPaths | None = None
    now: ObjectVersion | None = None
    archives: bool = True

    @property
    def url(self) -> str:
        """The url as the user wrote it."""
        return self.resolved.url

    @property
    def state(self) -> EntryState:
        """What the directory holds of the shard now."""
        return _find_state(self.place, read_metadata(self.place.record))

    # -- finding it

    def avoid_another(self) -> None:
        """Go to the other place where the chosen name belongs to another shard, whole or partial."""
        if self.other is None:
            return
        record = read_metadata(self.place.record)
        if record is None or record.is_of(self.url):
            return
        if _find_state(self.place, record) is not EntryState.ABSENT:
            if self.place.final not in _ambiguous_names:
                _ambiguous_names.add(self.place.final)
                warn_user(
                    f"url_to_name gives {self.place.name!r} for two shards, one of them from {record.url}: others, as "
                    f"{redact(self.url)}, are kept under names of their own. Let url_to_name give different names",
                )
            self.place, self.other = self.other, None

    def open_whole(self) -> CachedStream | None:
        """Open the shard if it is WHOLE, and note that it was used. Raises PermissionError: it may not be read."""
        try:
            descriptor = os.open(self.place.final, _READ_WHOLE)
        except PermissionError:
            raise
        except (OSError, ValueError):
            return None
        try:
            status = self._lease(descriptor)
            record = None if status is None else read_metadata(self.place.record)
            if status is not None and self._is_current(record, status) and self._is_sound(descriptor, record, status):
                # not our file; the path may be another's by now
                with contextlib.suppress(OSError):
                    os.utime(
                        descriptor if _BY_DESCRIPTOR else self.place.final, ns=(time.time_ns(), status.st_mtime_ns)
                    )
                about = record if record is not None and record.is_about(status) else None
                return CachedStream(self, descriptor, about, whole=status)
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)
        return None

    def _lease(self, descriptor: int) -> os.stat_result | None:
        """Take a lease on a file; None where it is no file, or one that is being deleted."""
        if not locks.take_lease(descriptor):
            return None
        # asked after the lease: eviction deletes nothing from now on
        status = os.fstat(descriptor)
        return status if stat.S_ISREG(status.st_mode) and status.st_nlink > 0 else None

    def _is_current(self, record: EntryMetadata | None, status: os.stat_result) -> bool:
        """Tell whether a file is of the version that the store has, as far as that is known."""
        if record is None or not record.whole:
            return True
        if not record.is_about(status):
            # under a chosen name it may be a user's own file; a copy of another size is none of ours
            if not is_cache_name(os.path.basename(self.place.name)):  # noqa: PTH119
                return True
            if record.size_bytes != status.st_size:
                return False
        return self.now is None or not record.identity.contradicts(self.now)

    def _is_sound(self, descriptor: int, record: EntryMetadata | None, status: os.stat_result) -> bool:
        """Tell whether a copy has the bytes that came: compared once in each process, and when its date changes."""
        if record is None or not record.whole or record.crc32 is None or not settings.CACHE_VERIFY.get():
            return True
        if not record.is_about(status) and not is_cache_name(os.path.basename(self.place.name)):  # noqa: PTH119
            # a user's own file
            return True
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

    def _open_partial(self) -> CachedStream | None:
        """Open the part that another process writes, if its bytes can be relied on."""
        try:
            descriptor = os.open(self.place.part, _READ)
        except OSError:
            return None
        record = read_metadata(self.place.record)
        with contextlib.suppress(OSError):
            if self._fits(record, os.fstat(descriptor)) and locks.take_lease(descriptor):
                metadata.mark_current(self.place)
                return CachedStream(self, descriptor, record)
        os.close(descriptor)
        return None

    def _fits(self, record: EntryMetadata | None, status: os.stat_result) -> bool:
        """Tell whether a part is of this shard, and can be continued."""
        return (
            record is not None
            and record.grows(status)
            and record.is_resumable()
            and record.is_of(self.url)
            and not (self.now is not None and record.identity.contradicts(self.now))
        )

    def _is_foreign(self) -> bool:
        """Tell whether a process of another host downloads the shard."""
        record = read_metadata(self.place.record)
        if record is None or record.whole or record.boot == boot_id():
            return False
        try:
            return os.stat(self.place.part).st_ino == record.inode  # noqa: PTH116
        except OSError:
            return False

    # -- its source

    def open_source(self) -> tuple[Stream | None, Opening]:
        """Open the shard without the cache; return its stream, None where there is none, and what gave it."""
        if self.source is None:
            return open_directly(self.resolved), None
        opening = iter(self.source([self.shard], reraise_exception))
        stream = next(opening, {}).get("stream")
        return stream, opening  # type: ignore[return-value]  # what the source put there

    def open_rest(self, record: EntryMetadata | None, offset: int, cause: Exception | None) -> tuple[Stream, Opening]:
        """Open the source at an offset.

        Args:
            record: the metadata of what was read until there, or None.
            offset: the first byte wanted.
            cause: why the file is left.

        Returns:
            The stream, and what gave it.

        Raises:
            SourceError: reading cannot continue there.
        """
        stream = None if record is None else metadata.open_rest(record, self.resolved, offset)
        opening: Opening = None
        if stream is None and offset == 0:
            stream, opening = self.open_source()
        if stream is None:
            raise SourceError(
                f"the copy in the cache, {self.place.final}, cannot be read further than byte {offset}, and its source "
                "cannot be taken up there",
                url=self.url,
            ) from cause
        return stream, opening

    # -- bringing it

    def open(self) -> CachedStream | None:
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

    def _share_download(self) -> CachedStream | None:
        """Find the shard WHOLE, download it, or follow the process that does."""
        pause, waiting = _SHORTEST_SECONDS, locks.StallDetector()
        while True:
            self.avoid_another()
            with translate_write_errors():
                lock = locks.try_lock(self.place.lock)
            if lock is not None:
                return self._download(lock)
            with translate_write_errors():
                near = self.open_whole() or (None if self.complete or self.validator else self._open_partial())
            if near is not None:
                return near
            if self._is_foreign() or waiting.is_stalled(self.place.part, self.place.lock):
                return None
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_SECONDS)

    def _download(self, lock: locks.FileLock) -> CachedStream | None:
        """Download the shard, under its lock."""
        try:
            with translate_write_errors():
                # it may have come just before the lock
                near = self.open_whole()
            found = near or self._resume(lock) or self._begin(lock)
        except BaseException:  # an interrupt, too, must not leave the shard locked
            lock.release()
            raise
        if isinstance(found, ShardDownload):
            return self._follow_own_download(found)
        lock.release()
        return found

    def _resume(self, lock: locks.FileLock) -> ShardDownload | None:
        """Continue a part that a dead process left; remove what cannot be continued."""
        with translate_write_errors():
            try:
                descriptor = os.open(self.place.part, _APPEND)
            except FileNotFoundError:
                return None
            try:
                record, status = read_metadata(self.place.record), os.fstat(descriptor)
                if record is not None and self._fits(record, status) and status.st_size <= (record.length or 0):
                    return self._continue(lock, record, descriptor, status.st_size)
            except (ShardChanged, NotFound, Unwritable):
                # not the same object, or no room: from the start
                pass
            except BaseException:  # the download will not close it
                os.close(descriptor)
                raise
            os.close(descriptor)
            os.unlink(self.place.part)  # noqa: PTH108  one call of the system
            if not os.path.lexists(self.place.final):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.place.record)  # noqa: PTH108
        return None

    def _continue(self, lock: locks.FileLock, record: EntryMetadata, descriptor: int, size: int) -> ShardDownload:
        """Return a download that continues a part of ``size`` bytes, after those that are as they came."""
        with translate_write_errors():
            # the checksum of what came in several goes was never compared: the store sends it with the last byte
            uncompared = size == record.length and record.resumed and record.vouched
            start, crc32 = self._keep_sound_bytes(descriptor, record, size - 1 if uncompared else size)
            resumed = record.resumed or start < (record.length or 0)
            begun = replace(record, whole=False, resumed=resumed, part_bytes=start, part_crc32=crc32)
            granted = self.quota.reserve(self.place, begun, record.length or 0)
        if granted is None:
            raise Unwritable("no room")
        stream = metadata.open_rest(record, self.resolved, start)
        if stream is None:
            raise ShardChanged("the shard is opened in another way than before", url=self.url)
        return ShardDownload(self.place, lock, descriptor, granted, stream, start=start, written=start, crc32=crc32)

    def _keep_sound_bytes(self, descriptor: int, record: EntryMetadata, limit: int) -> tuple[int, int]:
        """Cut off what is not known to be as it came; return how many bytes are left, and their checksum."""
        known = metadata.read_checksums(self.place.record, record)
        start, crc32, damaged = find_sound_bytes(descriptor, known, limit)
        os.ftruncate(descriptor, start)
        if damaged:
            warn_user(
                f"{self.place.part}, a part of {record.url} in the cache, is damaged after byte {start}: its checksum "
                "is not the one that it had when it was fetched. It is fetched again from there; check the disk",
            )
        return start, crc32

    def take_over(self, lock: locks.FileLock, record: EntryMetadata) -> Downloader:
        """Continue the download of a process that is gone, in a thread.

        Raises:
            SourceError: the object is another one by now, or its store does not answer.
            Unwritable: there is no room.
            OSError: the directory refuses.
        """
        descriptor = os.open(self.place.part, _APPEND)
        try:
            status, latest = os.fstat(descriptor), read_metadata(self.place.record)
            # other processes may have continued it meanwhile
            if latest is not None and latest.grows(status) and latest.identity == record.identity:
                record = latest
            download = self._continue(lock, record, descriptor, status.st_size)
        except BaseException:  # the download will not close it
            os.close(descriptor)
            raise
        return self._start_downloader(download)

    def _begin(self, lock: locks.FileLock) -> ShardDownload | CachedStream:
        """Open the source and begin its part; where that cannot be kept, return a stream of the source."""
        stream, opening = self.open_source()
        if stream is None:
            raise SourceError("the url opener gave no stream", url=self.url)
        head, download = b"", None
        try:
            try:
                download = self._create_part(lock, stream, opening)
                head = self._read_head(stream) if download is not None else b""
                if download is not None:
                    download.write(head)
            except Unwritable as trouble:
                self.complain(trouble)
                _abandon(download)
                download = None
        except BaseException:  # an interrupt, too, must leave neither part nor source
            _abandon(download)
            close_quietly(stream, opening)
            raise
        return download or CachedStream(self, None, None, direct=(head, stream, opening))

    def _create_part(self, lock: locks.FileLock, stream: Stream, opening: Opening) -> ShardDownload | None:
        """Create the part and its record; None where there is no room."""
        with translate_write_errors():
            self._clear()
            descriptor = os.open(self.place.part, _APPEND | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                record = make_metadata(stream, self.url, self.place.name, os.fstat(descriptor).st_ino)
            except BaseException:  # no download will close it
                os.close(descriptor)
                raise
            download = ShardDownload(self.place, lock, descriptor, record, stream, opening)
            try:
                size = FIRST_PIECE if record.length is None else record.length
                granted = self.quota.reserve(self.place, record, size)
            except OSError:
                _abandon(download)
                raise
        if granted is None:
            _abandon(download)
            return None
        return replace(download, record=granted)

    def _clear(self) -> None:
        """Remove the record of what was here before, and a download of another version."""
        # The record of the new part takes the place of that one's, and a copy without record would never be compared
        # again. And a part without record must not be taken for the file whose inode it has been given.
        place, known = self.place, read_metadata(self.place.record)
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(place.final)
            if is_cache_name(os.path.basename(place.name)) or (known is not None and known.is_about(status)):  # noqa: PTH119
                os.unlink(place.final)  # noqa: PTH108
                # a power failure must not bring it back without its record
                sync_folder(os.path.dirname(place.final))  # noqa: PTH120
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place.record)  # noqa: PTH108

    def _read_head(self, stream: Stream) -> bytes:
        """Read the first bytes; raise where they are not those of a shard."""
        read = reader_of(stream)
        head = read(FIRST_PIECE)
        while head and len(head) < 512 and (piece := read(FIRST_PIECE)):
            head += piece
        if self.archives and self.validator is None and not is_shard(head):
            raise format_error(head, self.url)
        return head

    def _follow_own_download(self, download: ShardDownload) -> CachedStream | None:
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
            return CachedStream(self, descriptor, download.record, downloader=self._start_downloader(download))
        downloader = Downloader(download, self.quota, self.validator)
        try:
            downloader.run()
        except BaseException:  # an interrupt: no stream will close it
            os.close(descriptor)
            raise
        if downloader.kept:
            with contextlib.suppress(OSError):
                return CachedStream(self, descriptor, download.record, whole=os.fstat(descriptor))
        os.close(descriptor)
        if downloader.error is not None:
            raise downloader.error
        if downloader.trouble is not None:
            self.complain(downloader.trouble)
        downloader.leave()
        return None

    def _start_downloader(self, download: ShardDownload) -> Downloader:
        """Download in a thread; where no thread can be started, now."""
        downloader = Downloader(download, self.quota)
        try:
            downloader.start()
        except RuntimeError:
            downloader.run()
        return downloader


def open_directly(resolved: ResolvedUrl) -> Stream:
    """Open what a url leads to, without the cache. Raises SourceError: it cannot be opened."""
    try:
        stream: Stream = resolved.open_stream()
    except Exception as error:  # every error of opening names its url
        with_location(error, url=resolved.url, stage="url_opener")
        raise
    return stream


def _find_state(place: EntryPaths, record: EntryMetadata | None) -> EntryState:
    """Return what the directory holds of the shard that a record is about."""
    if record is not None:
        found = (place.final, record.is_about, EntryState.WHOLE), (place.part, record.grows, EntryState.PARTIAL)
        for path, agrees, state in found:
            with contextlib.suppress(OSError, ValueError):
                if agrees(os.stat(path)):  # noqa: PTH116
                    return state
    return EntryState.ABSENT


def _abandon(download: ShardDownload | None) -> None:
    """Remove the part of a download that does not begin."""
    if download is not None:
        download.discard()
        download.close_files()
