"""One shard that is not in the cache yet: who downloads it, and who reads along.

A cached shard is in one of these states; ``P``, ``J``, ``L`` and ``F`` are its part, record, lock and final file
(``places``):

* *absent*: no P, no F.
* *growing*: P, with a J that names its inode, and somebody holds L. The size of P is the number of valid bytes.
* *left*: the same, and nobody holds L. It can be resumed if J says which version of which object it is, and if the
  system has not been started anew since.
* *whole*: F, with a J that names it.

Who may do what: only the holder of L creates, writes, renames or deletes P, J and F. The steps are: L; the source is
opened; F of another version, and J, are removed; P is created, empty; J (this reserves the room); bytes; P is verified
and brought to the disk; J says *whole*; P is renamed to F; L is given up. Everybody may open P or F for reading at any
time, and takes a lease on it (a shared lock on the file itself), which keeps eviction from it. What a kill leaves
between two of these steps:

* before J: a P without record, and no J that could be taken for its own (the system gives inodes out again): removed
  by the next holder.
* between J and the renaming: *left*: the next holder goes on at the end of P, with ``If-Match``. If all bytes are
  there it asks for none, verifies and renames. Readers of other processes notice that L is free; the first is the next
  holder.
* after the renaming: *whole*.

So F is at all times a file that was whole and verified when it got the name, and no reader sees a byte of another
version: P is resumed or followed only for the identity that J states. A source that cannot state one (a pipe, a server
without ETag and date) is read along by nobody: the others wait for F, or for L. A writer on another host is not
followed either, since a size says nothing about bytes that another system still holds: its shard is streamed from the
source.
"""

import contextlib
import os
import time
from dataclasses import dataclass, replace
from typing import Any

from webdataset.ground.errors import FormatError, NotFound, ShardChanged, SourceError
from webdataset.ground.policies import reraise_exception

from . import freshness, locks
from .content import is_shard
from .files import Unwritable, writing
from .finding import Sought
from .growing import NearStream
from .leading import FIRST_PIECE, Download, Leader, shut, soon
from .names import is_stored_name
from .places import CONTROL
from .sidecar import Record, record_at, record_of

_APPEND = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.0005, 0.02


@dataclass
class Wanted(Sought):
    """A shard that is to be read by way of the cache: found there, or brought there. Its fields are those of above."""

    def obtained(self) -> Any:
        """Return a stream of the shard, or None where its source has to be read.

        Raises:
            FormatError: what came is no shard.
            SourceError: the source failed.
        """
        try:
            with writing():
                os.makedirs(os.path.join(self.place.folder, CONTROL), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH118
            return self._joined()
        except Unwritable as trouble:
            self.complain(trouble)
            return None

    def _joined(self) -> Any:
        """Find the shard whole, or download it, or read along."""
        pause, waiting = _SHORTEST_SECONDS, locks.StallDetector()
        while True:
            self.avoid_another()
            with writing():
                lock = locks.attempt(self.place.lock)
            if lock is not None:
                return self._led(lock)
            with writing():
                near = self.opened_whole() or (None if self.complete or self.validator else self.followed())
            if near is not None:
                return near
            if self.is_foreign() or waiting.is_stalled(self.place.part, self.place.lock):
                return None
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_SECONDS)

    def _led(self, lock: locks.Lock) -> Any:
        """Download the shard."""
        try:
            with writing():
                near = self.opened_whole()  # it may have come just before the lock
            found = near or self._resumed(lock) or self._begun(lock)
        except BaseException:  # an interrupt, too, must not leave the shard locked
            lock.release()
            raise
        if isinstance(found, Download):
            return self._going(found)
        lock.release()
        return found

    def _resumed(self, lock: locks.Lock) -> Download | None:
        """Go on with what a dead process left; what cannot be gone on with is removed."""
        with writing():
            try:
                descriptor = os.open(self.place.part, _APPEND)
            except FileNotFoundError:
                return None
            try:
                record, status = record_at(self.place.record), os.fstat(descriptor)
                if record is not None and self.fits(record, status) and status.st_size <= (record.length or 0):
                    return self.continued(lock, record, descriptor, status.st_size)
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

    def continued(self, lock: locks.Lock, record: Record, descriptor: int, size: int) -> Download:
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
        with writing():
            if size and size == record.length and record.resumed and record.vouched:
                size -= 1  # nobody has compared the checksum: the store is asked for it, and for the last byte
                os.ftruncate(descriptor, size)
            resumed = replace(record, whole=False, resumed=record.resumed or size < (record.length or 0))
            granted = self.room.reserve(self.place, resumed, record.length or 0)
        if granted is None:
            raise Unwritable("no room")
        stream = freshness.rest_of(record, self.target, self.options, size)
        if stream is None:
            raise ShardChanged("the shard is opened in another way than before", url=self.url)
        return Download(self.place, lock, descriptor, granted, stream, start=size, written=size)

    def leader(self, lock: locks.Lock, record: Record) -> Leader:
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
            status, latest = os.fstat(descriptor), record_at(self.place.record)
            if latest is not None and latest.grows(status) and latest.identity == record.identity:
                record = latest  # others may have gone on with it meanwhile
            download = self.continued(lock, record, descriptor, status.st_size)
        except BaseException:  # the download will not close it
            os.close(descriptor)
            raise
        return self._started(download)

    def _begun(self, lock: locks.Lock) -> Any:
        """Open the source and begin its part; where that cannot be kept, return a stream of the source."""
        opening = iter(self.source([self.shard], reraise_exception))
        opened = next(opening, None)
        if opened is None:
            raise SourceError("the url opener gave no stream", url=self.url)
        stream, head = opened["stream"], b""
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
            shut(stream, opening)
            raise
        if download is not None:
            return download
        return NearStream(self, None, None, direct=(head, stream, opening))

    def _abandon(self, download: Download | None) -> None:
        if download is not None:
            download.discard()
            with contextlib.suppress(OSError):
                os.close(download.descriptor)

    def _part(self, lock: locks.Lock, stream: Any, opening: Any) -> Download | None:
        """Create the part and its record; None where there is no room."""
        with writing():
            self._clear()
            descriptor = os.open(self.place.part, _APPEND | os.O_CREAT | os.O_EXCL, 0o600)
            record = record_of(stream, self.url, self.place.name, os.fstat(descriptor).st_ino)
            download = Download(self.place, lock, descriptor, record, stream, opening)
            try:
                size = FIRST_PIECE if record.length is None else record.length
                granted = self.room.reserve(self.place, record, size)
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
        place, known = self.place, record_at(self.place.record)
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(place.final)
            if is_stored_name(os.path.basename(place.name)) or (known is not None and known.is_about(status)):  # noqa: PTH119
                os.unlink(place.final)  # noqa: PTH108
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place.record)  # noqa: PTH108

    def _head(self, stream: Any) -> bytes:
        """Read the first bytes of a shard.

        Raises:
            FormatError: they are not those of one.
        """
        read = soon(stream)
        head = read(FIRST_PIECE)
        while head and len(head) < 512 and (piece := read(FIRST_PIECE)):
            head += piece
        if self.archives and self.validator is None and not is_shard(head):
            raise FormatError(f"not a tar archive, so it is not cached; it begins with {head[:60]!r}", url=self.url)
        return head

    def _going(self, download: Download) -> Any:
        """Read a download while it grows, or when it is whole; None where it is not kept."""
        try:
            descriptor = os.open(self.place.part, _READ)
        except OSError as error:
            download.discard()
            download.close()
            raise Unwritable(error.strerror or str(error)) from error
        with contextlib.suppress(OSError):
            locks.lease(descriptor)
        if not self.complete and self.validator is None:
            return NearStream(self, descriptor, download.record, leader=self._started(download))
        leader = Leader(download, self.room, self.validator)
        try:
            leader.run()
        except BaseException:  # an interrupt: nobody else would close it
            os.close(descriptor)
            raise
        if leader.kept:
            return NearStream(self, descriptor, download.record, whole=True)
        os.close(descriptor)
        if leader.error is not None:
            raise leader.error
        if leader.trouble is not None:
            self.complain(leader.trouble)
        leader.leave()
        return None

    def _started(self, download: Download) -> Leader:
        leader = Leader(download, self.room, None)
        try:
            leader.start()
        except RuntimeError:  # no more threads: then before it is read
            leader.run()
        return leader
