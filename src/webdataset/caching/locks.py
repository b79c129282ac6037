"""Locks between processes: who may write a file, and which files are being read.

Flows in: paths and descriptors. Flows out: possession. A lock is ``flock`` on a file that is there only for it, so the
system frees it however its holder ends. The holder deletes the file as its last act; whoever then gets a lock on the
deleted file notices that it no longer has its name, and tries again. Where the file system has no ``flock``, a marker
file stands in for it (``filelock.SoftFileLock``), which the next process on the same host removes if its owner is dead.

``flock`` itself and not ``filelock`` around it: leases need the shared kind, on descriptors that are open for reading;
a forked child has to let go of its parent's locks without unlocking them; and the import takes 50 ms.
"""

import contextlib
import errno
import os
import time
from types import ModuleType
from typing import Any

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_UNSUPPORTED = frozenset((errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL))
_STALE = frozenset((errno.ESTALE,) if hasattr(errno, "ESTALE") else ())  # on NFS: another host has deleted it
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)

SILENT_SECONDS = 60.0
"""How long a holder may do nothing before others read at the source."""

_stuck: dict[str, tuple[object, ...]] = {}  # parts whose writer was waited for, and how they were then
_held: set[int] = set()  # descriptors of this process's locks
_of_the_parent: list[Any] = []  # soft locks of the parent: collecting them would release them


def _forget() -> None:
    """Let go of the parent's locks in a forked child; closing a copy of a descriptor unlocks nothing."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Lock:
    """A lock that this process holds.

    Args:
        path: its file.
        descriptor: the locked descriptor, or None.
        soft: the marker that stands in for it, or None.
    """

    def __init__(self, path: str, descriptor: int | None, soft: Any = None) -> None:
        self.path = path
        self._descriptor = descriptor
        self._soft = soft
        self._owner = os.getpid()

    def __del__(self) -> None:
        if self._owner == os.getpid():
            self.release()  # lost by an interrupt: nobody else would ever have it
        elif self._soft is not None:
            _of_the_parent.append(self._soft)

    def release(self) -> None:
        """Delete the file and give up the lock; a second time, and in a forked child, nothing."""
        if self._owner != os.getpid():
            return
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)  # noqa: PTH108  one call of the system each
            _let_go(descriptor)
        soft, self._soft = self._soft, None
        if soft is not None:
            with contextlib.suppress(OSError):
                soft.release()


def attempt(path: str) -> Lock | None:
    """Take a lock if nobody has it, in this process or another.

    Args:
        path: its file.

    Returns:
        The lock, or None where somebody has it.

    Raises:
        OSError: the directory refuses.
    """
    if fcntl is None:
        return _marked(path)
    while True:
        descriptor = os.open(path, _FLAGS, 0o600)
        _held.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(descriptor, path):
                return Lock(path, descriptor)
        except BlockingIOError:
            _let_go(descriptor)
            return None
        except OSError as error:
            _let_go(descriptor)
            if error.errno in _UNSUPPORTED:
                return _marked(path)
            if error.errno not in _STALE:
                raise
            continue
        _let_go(descriptor)  # its holder has deleted it meanwhile: this is no lock on anything


def waited(path: str, timeout_seconds: float) -> Lock | None:
    """Take a lock as soon as nobody has it.

    Args:
        path: its file.
        timeout_seconds: how long to wait at most.

    Raises:
        OSError: the directory refuses.
    """
    deadline, pause = time.monotonic() + timeout_seconds, 0.0005
    while (lock := attempt(path)) is None and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return lock


def _let_go(descriptor: int) -> None:
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        if fcntl is not None:  # a forked child may still hold a copy of the descriptor
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _marked(path: str) -> Lock | None:
    import filelock  # noqa: PLC0415  50 ms, for file systems without flock

    soft = filelock.SoftFileLock(f"{path}.soft", timeout=0, mode=0o600, thread_local=False)
    try:
        soft.acquire()
    except filelock.Timeout:
        return None
    return Lock(path, None, soft)


class StallDetector:
    """Tells when the holder of a lock has done nothing for too long: it may be stopped, or a zombie with a marker.

    A holder that was waited for once is not waited for again, until something has changed.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._since = 0.0

    def is_stalled(self, part: str, lock: str) -> bool:
        """Tell whether nothing has changed for :data:`SILENT_SECONDS`.

        Args:
            part: what the holder writes.
            lock: the lock's file.
        """
        now = (part, *map(_state_of, (part, lock, f"{lock}.soft")))
        if _stuck.get(part) == now:
            return True
        if now != self._seen:
            self._seen, self._since = now, time.monotonic()
        if time.monotonic() - self._since < SILENT_SECONDS:
            return False
        _stuck[part] = now
        return True


def _state_of(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced; None where it is not there."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_at(descriptor: int, path: str) -> bool:
    """Tell whether an open file is the one under a path.

    Args:
        descriptor: the open file.
        path: the path.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))  # noqa: PTH116
    except OSError as error:
        if isinstance(error, FileNotFoundError) or error.errno in _STALE:
            return False
        raise


def lease(descriptor: int) -> bool:
    """Say that a shard is being read, until :func:`give_back` or the descriptor's end.

    Args:
        descriptor: the shard, open.

    Returns:
        False where somebody is about to delete it. True also where the file system has no locks: then a deleted file
        is only read to its end, as POSIX has it.
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


def give_back(descriptor: int) -> None:
    """End a lease.

    Args:
        descriptor: the shard, open.
    """
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def read_by_somebody(descriptor: int) -> bool:
    """Tell whether any process has a lease on a shard; if none has, nobody gets one before this descriptor is closed.

    Args:
        descriptor: the shard, open for reading and writing.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        return error.errno not in _UNSUPPORTED
    return False
