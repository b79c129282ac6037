"""Locks and leases between processes, and the files of a cache directory that are in use.

A lock is ``flock`` on a file that exists only for it, so the system frees it however its holder ends. The holder
deletes the file last; a process that then gets a lock on the deleted file sees that the name is gone, and tries again.
Where the file system has no ``flock``, a marker file replaces it (``filelock.SoftFileLock``), which the next process
on the same host removes if its owner is dead. ``filelock`` is not used otherwise: leases need the shared kind, on
descriptors that are open for reading; a forked child has to close the locks of its parent without unlocking them; and
its import takes 50 ms.

A final name never has less than a whole file: a :class:`TemporaryDownload` is written under a hidden name, flushed to
disk and renamed, also where several processes download the same shard, and however the program ends.
"""

import contextlib
import errno
import io
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Self

from webdataset.core.errors import SourceError

if TYPE_CHECKING:
    import filelock

_IN_USE: dict[int, str] = {}
_PARTIAL = re.compile(r"\.wds-(\d+)-[0-9a-f]+\.part$")
_STALE_SECONDS = 24 * 3600


class Unwritable(Exception):
    """The cache directory cannot take a file; the system's error is the cause."""


@contextlib.contextmanager
def translate_write_errors() -> Iterator[None]:
    """Tell errors of the cache directory from those of a source. Raises Unwritable: for any error of the system."""
    try:
        yield
    except SourceError:
        raise
    except OSError as error:
        raise Unwritable(error.strerror or str(error)) from error


def note_use(reader: object, path: str) -> None:
    """Note that ``reader`` reads the file at an absolute path."""
    _IN_USE[id(reader)] = path


def forget_use(reader: object) -> None:
    """Note that ``reader`` has closed its file."""
    _IN_USE.pop(id(reader), None)


def open_paths() -> set[str]:
    """Return the absolute paths of the cached files that this process has open."""
    return set(_IN_USE.copy().values())


def is_busy(path: str) -> bool:
    """Tell whether a file is open in this process, or a download of a process that lives."""
    partial = _PARTIAL.fullmatch(os.path.basename(path))  # noqa: PTH119  callers have texts
    return (partial is not None and _is_alive(int(partial[1]))) or os.path.abspath(path) in open_paths()  # noqa: PTH100


class CachedFile(io.FileIO):
    """A file of the cache, open for reading, which this process does not delete.

    Args:
        path: absolute path.
        mode: as for ``io.FileIO``.
    """

    def __init__(self, path: str, mode: str = "rb") -> None:
        super().__init__(path, mode, opener=_open_private)
        self.keep(path)

    def keep(self, path: str) -> None:
        """Take note under which path the file is."""
        note_use(self, path)

    def close(self) -> None:
        """Close the file; it may be deleted from now on."""
        forget_use(self)
        super().close()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class TemporaryDownload:
    """A file on its way into the cache; leaving the ``with`` block before :meth:`publish` deletes it.

    Args:
        final: absolute path that it shall have; folders above it are made.

    Raises:
        Unwritable: the directory cannot take it; so do all methods.
    """

    def __init__(self, final: Path) -> None:
        self.final = final
        self.partial = str(final.parent / f".wds-{os.getpid()}-{os.urandom(6).hex()}.part")
        self._published = False
        with translate_write_errors():
            final.parent.mkdir(parents=True, exist_ok=True)
            sweep_downloads(final.parent)
            self.stream = CachedFile(self.partial, "xb+")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._published:
            with contextlib.suppress(OSError):
                self.stream.close()
            with contextlib.suppress(OSError):
                Path(self.partial).unlink()

    def write(self, piece: bytes) -> None:
        """Append bytes."""
        rest = memoryview(piece)
        with translate_write_errors():
            while rest:
                rest = rest[self.stream.write(rest) :]

    def publish(self) -> CachedFile:
        """Give the file its name.

        Returns:
            The file, open at its start: it can be read even if another process deletes it from the cache.
        """
        with translate_write_errors():
            os.fsync(self.stream.fileno())
            Path(self.partial).replace(self.final)
        self._published = True
        self.stream.keep(str(self.final))
        self.stream.seek(0)
        return self.stream


def sweep_downloads(folder: Path) -> None:
    """Delete downloads that were not written to for a day, unless their process lives.

    Args:
        folder: the folder; files in folders below it are left alone.
    """
    oldest = time.time() - _STALE_SECONDS
    with os.scandir(folder) as entries:
        for entry in entries:
            partial = _PARTIAL.fullmatch(entry.name)
            if partial is not None and not _is_alive(int(partial[1])):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest:
                        Path(entry).unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_UNSUPPORTED = frozenset((errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL))
# on NFS: another host has deleted it
_STALE = frozenset((errno.ESTALE,) if hasattr(errno, "ESTALE") else ())
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)

SILENT_SECONDS = 60.0
"""How long a holder may do nothing before others read at the source."""

# parts whose writer was waited for, and how they were then
_stuck: dict[str, tuple[object, ...]] = {}
# descriptors of this process's locks
_held: set[int] = set()
# soft locks of the parent: collecting them would release them
_parent_locks: list["filelock.BaseFileLock"] = []


def _forget_locks() -> None:
    """Let go of the parent's locks in a forked child; closing a copy of a descriptor unlocks nothing."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


class FileLock:
    """A lock that this process holds.

    Args:
        path: its file.
        descriptor: the locked descriptor, or None.
        soft: the marker that stands in for it, or None.
    """

    def __init__(self, path: str, descriptor: int | None, soft: "filelock.BaseFileLock | None" = None) -> None:
        self.path = path
        self._descriptor = descriptor
        self._soft = soft
        self._owner = os.getpid()

    def __del__(self) -> None:
        if self._owner == os.getpid():
            # lost by an interrupt: without this no process could ever take it
            self.release()
        elif self._soft is not None:
            _parent_locks.append(self._soft)

    def release(self) -> None:
        """Delete the file and give up the lock; a second time, and in a forked child, nothing."""
        if self._owner != os.getpid():
            return
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)  # noqa: PTH108  one call of the system each
            _unlock(descriptor)
        soft, self._soft = self._soft, None
        if soft is not None:
            with contextlib.suppress(OSError):
                soft.release()


def try_lock(path: str) -> FileLock | None:
    """Take a lock if it is free, in this process or another.

    Returns:
        The lock, or None where it is taken.

    Raises:
        OSError: the directory refuses.
    """
    if fcntl is None:
        return _lock_by_marker(path)
    while True:
        descriptor = os.open(path, _FLAGS, 0o600)
        _held.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at_path(descriptor, path):
                return FileLock(path, descriptor)
        except BlockingIOError:
            _unlock(descriptor)
            return None
        except OSError as error:
            _unlock(descriptor)
            if error.errno in _UNSUPPORTED:
                return _lock_by_marker(path)
            if error.errno not in _STALE:
                raise
            continue
        # its holder has deleted it meanwhile: this is no lock on anything
        _unlock(descriptor)


def wait_for_lock(path: str, timeout_seconds: float) -> FileLock | None:
    """Take a lock as soon as it is free. Raises OSError: the directory refuses."""
    deadline, pause = time.monotonic() + timeout_seconds, 0.0005
    while (lock := try_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return lock


def _unlock(descriptor: int) -> None:
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        # a forked child may still hold a copy of the descriptor
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _lock_by_marker(path: str) -> FileLock | None:
    import filelock  # noqa: PLC0415  50 ms, for file systems without flock

    soft = filelock.SoftFileLock(f"{path}.soft", timeout=0, mode=0o600, thread_local=False)
    try:
        soft.acquire()
    except filelock.Timeout:
        return None
    return FileLock(path, None, soft)


class StallDetector:
    """Tells when the holder of a lock has done nothing for too long: it may be stopped, or a zombie with a marker.

    A holder that was waited for once is not waited for again, until something has changed.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._since = 0.0

    def is_stalled(self, part: str, lock: str) -> bool:
        """Tell whether nothing has changed for :data:`SILENT_SECONDS`."""
        now = (part, *map(_file_state, (part, lock, f"{lock}.soft")))
        if _stuck.get(part) == now:
            return True
        if now != self._seen:
            self._seen, self._since = now, time.monotonic()
        if time.monotonic() - self._since < SILENT_SECONDS:
            return False
        _stuck[part] = now
        return True


def _file_state(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced; None where it is not there."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_at_path(descriptor: int, path: str) -> bool:
    """Tell whether an open file is the one under a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))  # noqa: PTH116
    except OSError as error:
        if isinstance(error, FileNotFoundError) or error.errno in _STALE:
            return False
        raise


def take_lease(descriptor: int) -> bool:
    """Say that a shard is being read, until :func:`release_lease` or the descriptor's end.

    Returns:
        False where a process is about to delete it. True also where the file system has no locks: there a deleted file
        is still read to its end, as POSIX has it.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True


def release_lease(descriptor: int) -> None:
    """End a lease."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def has_readers(descriptor: int) -> bool:
    """Tell whether a process has a lease on a shard; if none has, none gets one before this descriptor is closed."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        return error.errno not in _UNSUPPORTED
    return False
