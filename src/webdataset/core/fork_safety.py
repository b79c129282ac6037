"""Locks and caches that stay usable after a fork.

A thread that holds a usual lock at a fork does not exist in the child, so that the lock stays locked there forever:
:class:`ForkSafeLock` is free in each child. Two processes that share a connection read each other's answers:
:class:`PerProcessCache` keeps clients and connection pools by key, one per process and purpose, and is empty in each
child. A child must never finalise an object whose finaliser speaks over a connection of its parent.
"""

import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, Self, TypeVar

FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether Python has no global lock, so that threads run Python code side by side."""

fork_lock = threading.RLock()
"""Held for a moment by a thread where no fork should happen: within OpenSSL, or an import that threads need.

A finaliser may want it again. Nothing that waits for another thread or machine is done under it.
"""
_live_locks: "weakref.WeakSet[ForkSafeLock]" = weakref.WeakSet()


class ForkSafeLock:
    """A lock, free in every forked child; it pickles as a lock of its own.

    Attributes:
        lock: the lock of this process, for what is begun often.
    """

    _made: Callable[[], Any] = staticmethod(threading.Lock)

    def __init__(self) -> None:
        self.lock = self._made()
        _live_locks.add(self)

    def renew(self) -> None:
        """Become free."""
        self.lock = self._made()

    def __enter__(self) -> Self:
        self.lock.acquire()
        return self

    def __exit__(self, *failure: object) -> None:
        self.lock.release()

    def __reduce__(self) -> tuple[type["ForkSafeLock"], tuple[()]]:
        return type(self), ()


class ForkSafeRLock(ForkSafeLock):
    """One that its holder may take again: a finaliser may run, and want it, in the middle of what it guards."""

    _made = staticmethod(threading.RLock)


def _renew_locks() -> None:
    for lock in list(_live_locks):
        lock.renew()


epoch_lock = ForkSafeLock()
"""Held for a moment while a dataset, mix or list takes the number of its next epoch: threads may share one."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
    os.register_at_fork(before=fork_lock.acquire, after_in_parent=fork_lock.release, after_in_child=fork_lock.release)


V = TypeVar("V")

_foreign: "weakref.WeakValueDictionary[int, object]" = weakref.WeakValueDictionary()
_inherited: list[object] = []
_caches: "weakref.WeakSet[PerProcessCache[object]]" = weakref.WeakSet()


# a program that runs for weeks with credentials that change every hour names hundreds; each may hold connections
_MOST_KEPT = 64


class PerProcessCache(Generic[V]):
    """Kept by key, forgotten by forked children, and never pickled; the 64 that were used last are kept."""

    def __init__(self) -> None:
        # with the moment when it was made
        self._kept: dict[tuple[int, Hashable], tuple[V, float]] = {}
        self._lock = threading.Lock()
        _caches.add(self)  # type: ignore[arg-type]

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return what is kept under a key, made at the first call."""
        mine = (os.getpid(), key)
        with self._lock:
            kept = self._kept.pop(mine, None) or (make(), time.monotonic())
            # the first one is that which was used longest ago
            self._kept[mine] = kept
            left = self._kept.pop(next(iter(self._kept))) if len(self._kept) > _MOST_KEPT else None
        # its finaliser may take long, or want this cache
        del left
        return kept[0]

    def forget(self, key: Hashable, used: float = math.inf) -> None:
        """Let go of what is kept under a key, so that the next call makes it anew.

        Args:
            key: the key.
            used: when the value that failed was taken, on the monotonic clock; one that was made later stays. So where
                many threads fail together, one makes it anew.
        """
        mine = (os.getpid(), key)
        with self._lock:
            if mine in self._kept and self._kept[mine][1] <= used:
                del self._kept[mine]

    def clear(self) -> None:
        """Let go of everything, and of the lock: no other thread of a forked child can wait for it."""
        self._lock = threading.Lock()
        self._kept = {}


def skip_finalizer_in_children(thing: object) -> None:
    """Let no forked child finalise a thing: its finaliser speaks over a connection, which is its parent's.

    Args:
        thing: a client, or an open file of one; can be referred to weakly.
    """
    _foreign[id(thing)] = thing


def _forget_parent() -> None:
    _inherited.extend(_foreign.values())
    for kept in _caches:
        kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
