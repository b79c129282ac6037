"""Keeps a cache directory below its quota: reserves space, evicts least recently used shards, removes leftovers.

Space is reserved under one lock for the whole directory and *before* it is needed: from its first moment a download
counts with the size that it may reach, as its metadata says. So downloads that run side by side never exceed the
quota together; only a shard that is larger than the whole quota does, and then it is alone.

Never deletes a file that this library did not put there, nor one that a process of this host reads or writes. The
published :class:`LRUCleanup` deletes the oldest files of any directory until the rest fits.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from webdataset.caching import locks
from webdataset.caching.locks import has_readers, is_busy, open_paths
from webdataset.caching.metadata import EntryMetadata, read_metadata
from webdataset.caching.names import CONTROL, EntryPaths, control_name, is_cache_name, space_lock_path
from webdataset.core.durable_files import sync_folder
from webdataset.core.errors import UsageError

log = logging.getLogger("webdataset")


class LRUCleanup:
    """Deletes the oldest files of a directory until the rest is no larger than allowed.

    Cached files that a process of this host reads, and downloads under way, stay.

    Args:
        cache_dir: the directory, with everything below it; one that does not exist is empty.
        cache_size: bytes that may stay.
        keyfn: path to age: files with the smallest go first. By default the time of the last change.
        verbose: log each deletion.
        interval: seconds between two cleanups; a call before that does nothing.
        deletable: path to bool: what may be deleted; None is everything.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: float = int(1e12),
        keyfn: Callable[[str], Any] = os.path.getctime,
        verbose: bool = False,  # noqa: FBT001, FBT002  upstream's signature
        interval: float | None = 30,
        *,
        deletable: Callable[[str], bool] | None = None,
    ) -> None:
        self.cache_dir = cache_dir
        self.cache_size = cache_size
        self.keyfn = keyfn
        self.verbose = verbose
        self.interval = interval
        self.deletable = deletable
        self.last_run = 0.0

    def set_cache_dir(self, cache_dir: str | os.PathLike[str]) -> None:
        """Choose the directory."""
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Delete what is too much, unless the last cleanup was less than ``interval`` seconds ago.

        Raises:
            UsageError: no directory was named.
        """
        if self.cache_dir is None:
            raise UsageError("LRUCleanup needs a cache_dir")
        now = time.time()
        # a clock that was set back must not put it off until then
        if self.interval is not None and 0 <= now - self.last_run < self.interval:
            return
        self.last_run = now
        files = sorted(_walk_files(self.cache_dir, self.keyfn), key=lambda file: file[:2])
        total = sum(size for _, _, size in files)
        for _, path, size in files:
            if total <= self.cache_size:
                return
            if is_busy(path) or _has_readers(path) or (self.deletable is not None and not self.deletable(path)):
                continue
            if self.verbose:
                log.warning("cache: deleting %s", path)
            Path(path).unlink(missing_ok=True)
            sync_folder(os.path.dirname(path))  # noqa: PTH120
            Path(EntryPaths(str(self.cache_dir), os.path.relpath(path, self.cache_dir)).record).unlink(missing_ok=True)
            total -= size


def _has_readers(path: str) -> bool:
    """Tell whether a process has a lease on a file; of one that cannot be opened nothing is known."""
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        return has_readers(descriptor)
    finally:
        os.close(descriptor)


def _walk_files(folder: str | os.PathLike[str], keyfn: Callable[[str], Any]) -> Iterator[tuple[Any, str, int]]:
    """Yield age, path and size of each file below a folder; files that vanish meanwhile are left out."""
    for parent, folders, names in os.walk(folder):
        # locks, and what only their holders may delete
        if CONTROL in folders:
            folders.remove(CONTROL)
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118  keyfn takes texts
            try:
                yield keyfn(path), path, os.lstat(path).st_size
            except FileNotFoundError:
                continue


_WAIT_SECONDS = 30.0
_STALE_SECONDS = 24 * 3600
# directories that this process has tidied
_swept_folders: set[str] = set()
# those that it has found, or brought, below a bound
_trimmed: set[tuple[str, float]] = set()


class CachedShardFile(NamedTuple):
    """A file that takes space.

    Args:
        used: when it was last used, in seconds since 1970.
        path: the file.
        size_bytes: space that it takes, or may grow to.
        folder: the cache directory.
        name: the shard's relative path in it; empty where it is unknown.
        hidden: the names in the hidden folder.
    """

    used: float
    path: str
    size_bytes: int
    folder: str
    name: str
    hidden: frozenset[str]

    @property
    def place(self) -> EntryPaths:
        """The shard's place."""
        return EntryPaths(self.folder, self.name)

    @property
    def ours(self) -> bool:
        """Whether it may be deleted: users may have put files of their own beside the downloads."""
        if self.path.endswith(".part") and self.path == self.place.part:
            return True
        return bool(self.name) and (
            is_cache_name(self.name.rpartition("/")[2]) or control_name(self.name) + ".json" in self.hidden
        )


@dataclass(frozen=True)
class Quota:
    """The bound on one cache directory.

    Args:
        folder: the directory.
        size_bytes: bound on the files in it; not above 0: none.
        verbose: log each deletion.
    """

    folder: str
    size_bytes: float
    verbose: bool

    def reserve(self, place: EntryPaths, record: EntryMetadata, wanted_bytes: int) -> EntryMetadata | None:
        """Reserve space for a download, and write into its record that it has it. The caller holds the shard's lock.

        Returns:
            The record as it was written, or None where everything else in the directory is being used.

        Raises:
            OSError: the directory refuses.
        """
        granted = replace(record, reserved_bytes=wanted_bytes)
        if self.size_bytes <= 0:
            granted.write(place)
            return granted
        lock = locks.wait_for_lock(space_lock_path(self.folder), _WAIT_SECONDS)
        if lock is None:
            return None
        try:
            if not self._fits(place, wanted_bytes):
                return None
            granted.write(place)
        finally:
            lock.release()
        return granted

    def _fits(self, place: EntryPaths, wanted_bytes: int) -> bool:
        kept = [file for file in list_files(self.folder) if file.path not in (place.part, place.final)]
        total = sum(file.size_bytes for file in kept) + wanted_bytes
        if total <= self.size_bytes:
            return True
        ours = sorted((file for file in kept if file.ours), key=_last_use)
        gone, total = self._shrink(ours, total)
        return total <= self.size_bytes or gone == len(ours)

    def _shrink(self, files: list[CachedShardFile], total: int) -> tuple[int, int]:
        """Delete files in turn until the bound holds; return how many went, and the bytes that are left."""
        gone = 0
        for file in files:
            if total <= self.size_bytes:
                break
            if delete_file(file):
                gone += 1
                total -= file.size_bytes
                if self.verbose:
                    log.warning("cache: deleting %s", file.path)
        return gone, total

    def trim(self, place: EntryPaths) -> None:
        """Bring a directory that was filled under a larger bound below this one; once in each process.

        Downloads keep to the bound by themselves; but where all shards are there, no process downloads. A directory
        that cannot be trimmed is used as it is.

        Args:
            place: the shard that is wanted: it stays, since a single one may be larger than the bound.
        """
        if self.size_bytes <= 0 or (self.folder, self.size_bytes) in _trimmed:
            return
        _trimmed.add((self.folder, self.size_bytes))
        with contextlib.suppress(OSError):
            kept = list_files(self.folder)
            total = sum(file.size_bytes for file in kept)
            lock = locks.try_lock(space_lock_path(self.folder)) if total > self.size_bytes else None
            # it holds, or another process is at it
            if lock is None:
                return
            try:
                spared = (place.part, place.final)
                self._shrink(
                    sorted((file for file in kept if file.ours and file.path not in spared), key=_last_use), total
                )
            finally:
                lock.release()


def _last_use(file: CachedShardFile) -> float:
    return file.used


def list_files(folder: str) -> list[CachedShardFile]:
    """Return the files of a cache directory that take space; those that vanish meanwhile are left out."""
    control = os.path.join(folder, CONTROL)  # noqa: PTH118
    hidden = frozenset(os.listdir(control))  # noqa: PTH208
    # Before the whole shards: one that gets its name meanwhile is seen twice, and known by its inode. The other way
    # round it might not be seen at all.
    growing = {}
    for name in hidden:
        if name.endswith(".part"):
            with contextlib.suppress(FileNotFoundError):
                path = os.path.join(control, name)  # noqa: PTH118
                status = os.stat(path)  # noqa: PTH116
                growing[status.st_ino] = _growing_file(folder, path, status, hidden)
    found = []
    # asked for each download, of perhaps 100,000 files
    for name, entry in _walk(folder):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        growing.pop(status.st_ino, None)
        found.append(CachedShardFile(status.st_atime, entry.path, status.st_size, folder, name, hidden))
    return [*found, *growing.values()]


def _growing_file(folder: str, path: str, status: os.stat_result, hidden: frozenset[str]) -> CachedShardFile:
    record = read_metadata(path.removesuffix(".part") + ".json")
    reserved = record.reserved_bytes if record is not None and record.inode == status.st_ino else 0
    name = "" if record is None else record.name
    return CachedShardFile(status.st_mtime, path, max(reserved, status.st_size), folder, name, hidden)


def _walk(folder: str, above: str = "") -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Yield the relative path and the entry of each file that is not in a hidden folder of ours."""
    try:
        entries = list(os.scandir(folder))
    except OSError:  # deleted meanwhile, or not ours to look into
        return
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            yield above + entry.name, entry
        elif entry.name != CONTROL:
            yield from _walk(entry.path, f"{above}{entry.name}/")


def delete_file(file: CachedShardFile) -> bool:
    """Delete a shard, or its part, with all that belongs to it, unless a process reads or writes it."""
    try:
        lock = locks.try_lock(file.place.lock)
    except OSError:
        return False
    if lock is None:
        return False
    try:
        return _remove_file(file)
    except OSError:
        return False
    finally:
        lock.release()


def _remove_file(file: CachedShardFile) -> bool:
    descriptor = os.open(file.path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        if file.path in open_paths() or locks.has_readers(descriptor) or not _is_download(file, descriptor):
            return False
        os.unlink(file.path)  # noqa: PTH108
    finally:
        os.close(descriptor)
    other = file.place.final if file.path == file.place.part else file.place.part
    if not os.path.lexists(other):
        # a power failure must not bring it back without its record
        sync_folder(os.path.dirname(file.path))  # noqa: PTH120
        _unlink_quietly(file.place.record)
    return True


def _is_download(file: CachedShardFile, descriptor: int) -> bool:
    """Tell whether a file is a download: under a name that the user chose, there may be a file of the user's own."""
    if file.path == file.place.part or is_cache_name(os.path.basename(file.path)):  # noqa: PTH119
        return True
    record = read_metadata(file.place.record)
    return record is not None and record.is_about(os.fstat(descriptor))


def remove_leftovers(folder: str) -> None:
    """Remove what dead processes left; once in each process.

    A part stays for a day if it can be resumed. A directory that cannot be tidied is used as it is.
    """
    if folder in _swept_folders:
        return
    _swept_folders.add(folder)
    with contextlib.suppress(OSError):
        names = set(os.listdir(os.path.join(folder, CONTROL)))  # noqa: PTH118, PTH208
        if all(name.endswith(".json") for name in names):
            return
        lock = locks.try_lock(space_lock_path(folder))
        # another process is at it
        if lock is None:
            return
        try:
            _sweep_folder(folder, names)
        finally:
            lock.release()


def _sweep_folder(folder: str, names: set[str]) -> None:
    control = os.path.join(folder, CONTROL)  # noqa: PTH118
    stems = {name.rpartition(".")[0].removesuffix(".json") for name in names if not name.endswith(".json")}
    finals = {control_name(name) for name, _ in _walk(folder)}
    stems |= {name.removesuffix(".json") for name in names if name.endswith(".json")} - finals
    for stem in stems - {"space"}:
        _sweep_stem(os.path.join(control, stem), whole=stem in finals)  # noqa: PTH118


def _sweep_stem(path: str, *, whole: bool) -> None:
    """Remove what the hidden folder has of one shard, if no process writes it, and it is of no use."""
    lock = locks.try_lock(f"{path}.lock")
    if lock is None:
        return
    try:
        _unlink_quietly(f"{path}.json.new")
        if not _is_useful(f"{path}.part", f"{path}.json"):
            _unlink_quietly(f"{path}.part")
            if not whole:
                _unlink_quietly(f"{path}.json")
    finally:
        lock.release()


def _is_useful(part: str, record: str) -> bool:
    try:
        status = os.stat(part)  # noqa: PTH116
    except FileNotFoundError:
        return False
    known = read_metadata(record)
    young = time.time() - status.st_mtime < _STALE_SECONDS
    return young and known is not None and known.grows(status) and known.is_resumable()


def _unlink_quietly(path: str, unlink: Callable[[str], None] = os.unlink) -> None:
    with contextlib.suppress(FileNotFoundError):
        unlink(path)
