"""A shard of the cache, looked for: whole, growing in another's hands, or at its source.

Flows in: what is known of a wanted shard. Flows out: a stream, or nothing. Nothing here writes into the directory;
that is ``obtaining``, which also tells the states that a shard can be in.
"""

import contextlib
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import SourceError
from webdataset.ground.policies import Handler, reraise_exception
from webdataset.ground.redaction import redacted
from webdataset.ground.tracebacks import warn_user
from webdataset.sources.objects import Identity

from . import freshness, locks
from .content import checksum_file
from .eviction import Room
from .growing import NearStream
from .leading import Leader
from .names import is_stored_name, shard_of
from .places import Place
from .sidecar import Record, boot, digest, record_at

Source = Callable[[Iterable[dict[str, Any]], Handler], Iterable[dict[str, Any]]]
"""Shards and a handler to opened shards: what opens them where the cache does not."""

_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)
_WHOLE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # a pipe in its place is not waited for
_BY_DESCRIPTOR = os.utime in os.supports_fd

# paths of copies to how they were when their checksum was compared, and whether it was right
_compared: dict[str, tuple[tuple[int, int, int], bool]] = {}
_two_of_a_name: set[str] = set()  # paths of which somebody was told that two shards are to have them


@dataclass
class Sought(ABC):
    """A shard that is to be read by way of the cache.

    Args:
        place: where it is in the cache, or will be.
        shard: the dict with its url.
        source: opens it without the cache.
        target: its url, after rewriting.
        options: what a dataset says about its storage.
        room: the bound on the directory.
        complete: hand out only what is whole and verified.
        validator: path to bool, asked whether it may be kept, instead of looking whether it is a shard.
        complain: told why the directory cannot be used.
        other: the place for it where another shard has this one.
        now: who the store says that the object is at present, where it was asked.
        archives: whether it is a tar archive.
    """

    place: Place
    shard: dict[str, Any]
    source: Source
    target: str
    options: Any
    room: Room
    complete: bool
    validator: Callable[[str], Any] | None
    complain: Callable[[object], None]
    other: Place | None = None
    now: Identity | None = None
    archives: bool = True

    @property
    def url(self) -> str:
        """The url as the user wrote it."""
        return str(self.shard["url"])

    def give_up(self, reason: object) -> None:
        """Put nothing more into the cache, since its directory refuses.

        Args:
            reason: why.
        """
        self.complain(reason)

    @abstractmethod
    def leader(self, lock: locks.Lock, record: Record) -> Leader:
        """Go on with a download whose process is gone, in a thread."""

    def avoid_another(self) -> None:
        """Go to the other place where the chosen name belongs to another shard, whole or growing."""
        if self.other is None:
            return
        record = record_at(self.place.record)
        if record is None or record.shard == digest(shard_of(self.url)):
            return
        if _is_used(self.place, record):
            if self.place.final not in _two_of_a_name:
                _two_of_a_name.add(self.place.final)
                warn_user(
                    f"url_to_name gives {self.place.name!r} for two shards, one of them from {record.url}: others, as "
                    f"{redacted(self.url)}, are kept under names of their own. Let url_to_name give different names",
                )
            self.place, self.other = self.other, None

    def opened_whole(self) -> NearStream | None:
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
            usable = stat.S_ISREG(status.st_mode) and locks.lease(descriptor) and os.fstat(descriptor).st_nlink > 0
            record = record_at(self.place.record)
            if usable and self._is_current(record, status) and self._is_sound(descriptor, record, status):
                with contextlib.suppress(OSError):  # not our file; the path may be another's by now
                    os.utime(
                        descriptor if _BY_DESCRIPTOR else self.place.final, ns=(time.time_ns(), status.st_mtime_ns)
                    )
                about = record if record is not None and record.is_about(status) else None
                return NearStream(self, descriptor, about, whole=True)
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)
        return None

    def _is_current(self, record: Record | None, status: os.stat_result) -> bool:
        if record is None or not record.whole:
            return True
        if not record.is_about(status):  # under a chosen name it may be a user's own file
            return record.size_bytes == status.st_size or not is_stored_name(os.path.basename(self.place.name))  # noqa: PTH119
        return self.now is None or not record.identity.contradicts(self.now)

    def _is_sound(self, descriptor: int, record: Record | None, status: os.stat_result) -> bool:
        """Tell whether a copy has the bytes that came: compared once in each process, and when its date changes."""
        if record is None or not record.whole or record.crc32 is None or not settings.CACHE_VERIFY.get():
            return True
        if not record.is_about(status) and not is_stored_name(os.path.basename(self.place.name)):  # noqa: PTH119
            return True  # a user's own file
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        before = _compared.get(self.place.final)
        if before is None or before[0] != seen:
            before = _compared[self.place.final] = seen, checksum_file(descriptor) == record.crc32
            if not before[1]:
                warn_user(
                    f"{self.place.final}, the cached copy of {record.url}, is damaged: its checksum is not the one "
                    "that it had when it was fetched. It is fetched again; check the disk",
                )
        return before[1]

    def fits(self, record: Record | None, status: os.stat_result) -> bool:
        """Tell whether a part is of this shard, and can be gone on with."""
        return (
            record is not None
            and record.grows(status)
            and record.can_be_resumed()
            and record.shard == digest(shard_of(self.url))
            and not (self.now is not None and record.identity.contradicts(self.now))
        )

    def followed(self) -> NearStream | None:
        """Open the part that another writes, if its bytes can be relied on."""
        try:
            descriptor = os.open(self.place.part, _READ)
        except OSError:
            return None
        record = record_at(self.place.record)
        with contextlib.suppress(OSError):
            if self.fits(record, os.fstat(descriptor)) and locks.lease(descriptor):
                freshness.settled(self.place)
                return NearStream(self, descriptor, record)
        os.close(descriptor)
        return None

    def is_foreign(self) -> bool:
        """Tell whether a process of another host downloads the shard."""
        record = record_at(self.place.record)
        if record is None or record.whole or record.boot == boot():
            return False
        try:
            return os.stat(self.place.part).st_ino == record.inode  # noqa: PTH116
        except OSError:
            return False

    def rest(self, record: Record | None, offset: int, cause: Exception | None) -> tuple[Any, Any]:
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
        stream = None if record is None else freshness.rest_of(record, self.target, self.options, offset)
        opening = None
        if stream is None and offset == 0:
            opening = iter(self.source([self.shard], reraise_exception))
            stream = next(opening, {}).get("stream")
        if stream is None:
            raise SourceError(
                f"the copy in the cache, {self.place.final}, cannot be read further than byte {offset}, and its source "
                "cannot be taken up there",
                url=self.url,
            ) from cause
        return stream, opening


def _is_used(place: Place, record: Record) -> bool:
    """Tell whether a record is about a file that is there."""
    for path, agrees in ((place.final, record.is_about), (place.part, record.grows)):
        with contextlib.suppress(OSError, ValueError):
            if agrees(os.stat(path)):  # noqa: PTH116
                return True
    return False
