"""Room in a cache directory: what may grow, what has to go for it, and what dead processes left.

Flows in: what a download needs. Flows out: a reservation, and fewer files. Space is given out under one lock for the
whole directory and *before* it is needed: a download counts with what it may grow to, as its record says, from the
moment it begins. So downloads that run side by side never exceed the bound together; only a shard that is larger than
the whole bound does, and then it is alone. What was used least recently goes first. Deleted is only what this
library put there, and only while no process of this host reads or writes it.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from . import locks
from .files import in_use
from .names import is_stored_name
from .places import CONTROL, Place, control_name, space_lock
from .sidecar import Record, record_at

log = logging.getLogger("webdataset")

_WAIT_SECONDS = 30.0
_STALE_SECONDS = 24 * 3600
_swept: set[str] = set()  # directories that this process has tidied
_trimmed: set[tuple[str, float]] = set()  # those that it has found, or brought, below a bound


class Kept(NamedTuple):
    """A file that takes room.

    Args:
        used: when it was last used, in seconds since 1970.
        path: the file.
        size_bytes: room that it takes, or may grow to.
        folder: the cache directory.
        name: the shard's relative path in it; empty where nobody knows.
        hidden: the names in the hidden folder.
    """

    used: float
    path: str
    size_bytes: int
    folder: str
    name: str
    hidden: frozenset[str]

    @property
    def place(self) -> Place:
        """The shard's place."""
        return Place(self.folder, self.name)

    @property
    def ours(self) -> bool:
        """Whether it may be deleted: users may have put files of their own beside the downloads."""
        if self.path.endswith(".part") and self.path == self.place.part:
            return True
        return bool(self.name) and (
            is_stored_name(self.name.rpartition("/")[2]) or control_name(self.name) + ".json" in self.hidden
        )


@dataclass(frozen=True)
class Room:
    """The bound on one cache directory.

    Args:
        folder: the directory.
        size_bytes: bound on the files in it; not above 0: none.
        verbose: log each deletion.
    """

    folder: str
    size_bytes: float
    verbose: bool

    def reserve(self, place: Place, record: Record, wanted_bytes: int) -> Record | None:
        """Make room for a download, and write into its record that it has it. The caller holds the shard's lock.

        Args:
            place: the shard's place.
            record: its record.
            wanted_bytes: what it may grow to.

        Returns:
            The record as it was written, or None where everything else in the directory is being used.

        Raises:
            OSError: the directory refuses.
        """
        granted = replace(record, reserved_bytes=wanted_bytes)
        if self.size_bytes <= 0:
            granted.write(place)
            return granted
        lock = locks.waited(space_lock(self.folder), _WAIT_SECONDS)
        if lock is None:
            return None
        try:
            if not self._fits(place, wanted_bytes):
                return None
            granted.write(place)
        finally:
            lock.release()
        return granted

    def _fits(self, place: Place, wanted_bytes: int) -> bool:
        kept = [file for file in files_in(self.folder) if file.path not in (place.part, place.final)]
        total = sum(file.size_bytes for file in kept) + wanted_bytes
        if total <= self.size_bytes:
            return True
        ours = sorted((file for file in kept if file.ours), key=_age)
        gone, total = self._shrunk(ours, total)
        return total <= self.size_bytes or gone == len(ours)

    def _shrunk(self, files: list[Kept], total: int) -> tuple[int, int]:
        """Delete files in turn until the bound holds; return how many went, and the bytes that are left."""
        gone = 0
        for file in files:
            if total <= self.size_bytes:
                break
            if deleted(file):
                gone += 1
                total -= file.size_bytes
                if self.verbose:
                    log.warning("cache: deleting %s", file.path)
        return gone, total

    def trim(self, place: Place) -> None:
        """Bring a directory that was filled under a larger bound below this one; once in each process.

        Downloads keep to the bound by themselves; but where all shards are there, nobody downloads. A directory that
        cannot be trimmed is no worse a cache for it.

        Args:
            place: the shard that is wanted: it stays, since a single one may be larger than the bound.
        """
        if self.size_bytes <= 0 or (self.folder, self.size_bytes) in _trimmed:
            return
        _trimmed.add((self.folder, self.size_bytes))
        with contextlib.suppress(OSError):
            kept = files_in(self.folder)
            total = sum(file.size_bytes for file in kept)
            lock = locks.attempt(space_lock(self.folder)) if total > self.size_bytes else None
            if lock is None:  # it holds, or somebody is at it
                return
            try:
                spared = (place.part, place.final)
                self._shrunk(sorted((file for file in kept if file.ours and file.path not in spared), key=_age), total)
            finally:
                lock.release()


def _age(file: Kept) -> float:
    return file.used


def files_in(folder: str) -> list[Kept]:
    """Return the files of a cache directory that take room; those that vanish meanwhile are left out.

    Args:
        folder: the directory.
    """
    control = os.path.join(folder, CONTROL)  # noqa: PTH118
    hidden = frozenset(os.listdir(control))  # noqa: PTH208
    found = []
    for name, entry in _walked(folder):  # asked for each download, of perhaps 100,000 files
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        found.append(Kept(status.st_atime, entry.path, status.st_size, folder, name, hidden))
    for name in hidden:
        if name.endswith(".part"):
            with contextlib.suppress(FileNotFoundError):
                found.append(_growing(folder, os.path.join(control, name), hidden))  # noqa: PTH118
    return found


def _growing(folder: str, path: str, hidden: frozenset[str]) -> Kept:
    status = os.stat(path)  # noqa: PTH116
    record = record_at(path.removesuffix(".part") + ".json")
    reserved = record.reserved_bytes if record is not None and record.inode == status.st_ino else 0
    name = "" if record is None else record.name
    return Kept(status.st_mtime, path, max(reserved, status.st_size), folder, name, hidden)


def _walked(folder: str, above: str = "") -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Yield the relative path and the entry of each file that is not in a hidden folder of ours."""
    try:
        entries = list(os.scandir(folder))
    except OSError:  # deleted meanwhile, or not ours to look into
        return
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            yield above + entry.name, entry
        elif entry.name != CONTROL:
            yield from _walked(entry.path, f"{above}{entry.name}/")


def deleted(file: Kept) -> bool:
    """Delete a shard, or what was downloaded of it, with all that belongs to it, unless a process reads or writes it.

    Args:
        file: the shard.
    """
    try:
        lock = locks.attempt(file.place.lock)
    except OSError:
        return False
    if lock is None:
        return False
    try:
        return _removed(file)
    except OSError:
        return False
    finally:
        lock.release()


def _removed(file: Kept) -> bool:
    descriptor = os.open(file.path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        if file.path in in_use() or locks.read_by_somebody(descriptor) or not _made_here(file, descriptor):
            return False
        os.unlink(file.path)  # noqa: PTH108
    finally:
        os.close(descriptor)
    other = file.place.final if file.path == file.place.part else file.place.part
    if not os.path.lexists(other):
        _drop(file.place.record)
    return True


def _made_here(file: Kept, descriptor: int) -> bool:
    """Tell whether a file is a download: under a name that somebody chose, a user may have put one of his own."""
    if file.path == file.place.part or is_stored_name(os.path.basename(file.path)):  # noqa: PTH119
        return True
    record = record_at(file.place.record)
    return record is not None and record.is_about(os.fstat(descriptor))


def tidy(folder: str) -> None:
    """Remove what dead processes left; once in each process.

    A part stays for a day if it can be resumed. A directory that cannot be tidied is no worse a cache for it.

    Args:
        folder: the cache directory.
    """
    if folder in _swept:
        return
    _swept.add(folder)
    with contextlib.suppress(OSError):
        names = set(os.listdir(os.path.join(folder, CONTROL)))  # noqa: PTH118, PTH208
        if all(name.endswith(".json") for name in names):
            return
        lock = locks.attempt(space_lock(folder))
        if lock is None:  # somebody is at it
            return
        try:
            _swept_up(folder, names)
        finally:
            lock.release()


def _swept_up(folder: str, names: set[str]) -> None:
    control = os.path.join(folder, CONTROL)  # noqa: PTH118
    stems = {name.rpartition(".")[0].removesuffix(".json") for name in names if not name.endswith(".json")}
    finals = {control_name(name) for name, _ in _walked(folder)}
    stems |= {name.removesuffix(".json") for name in names if name.endswith(".json")} - finals
    for stem in stems - {"space"}:
        _swept_stem(os.path.join(control, stem), whole=stem in finals)  # noqa: PTH118


def _swept_stem(path: str, *, whole: bool) -> None:
    """Remove what stands in the hidden folder for one shard, if nobody writes it, and it is of no use."""
    lock = locks.attempt(f"{path}.lock")
    if lock is None:
        return
    try:
        _drop(f"{path}.json.new")
        if not _useful(f"{path}.part", f"{path}.json"):
            _drop(f"{path}.part")
            if not whole:
                _drop(f"{path}.json")
    finally:
        lock.release()


def _useful(part: str, record: str) -> bool:
    try:
        status = os.stat(part)  # noqa: PTH116
    except FileNotFoundError:
        return False
    known = record_at(record)
    young = time.time() - status.st_mtime < _STALE_SECONDS
    return young and known is not None and known.grows(status) and known.can_be_resumed()


def _drop(path: str, unlink: Callable[[str], None] = os.unlink) -> None:
    with contextlib.suppress(FileNotFoundError):
        unlink(path)
