"""A lock that a fork cannot leave locked.

Flows in: nothing. Flows out: mutual exclusion between the threads of one process. A thread that holds a usual lock does
not exist in a forked child, so that nobody would ever release it there.
"""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Self

forks_wait = threading.RLock()
"""Held for a moment by a thread where no fork should happen: within OpenSSL, or an import that threads need.

A finaliser may want it again. Nothing that waits for another thread or machine is done under it.
"""
_live: "weakref.WeakSet[ForkSafeLock]" = weakref.WeakSet()


class ForkSafeLock:
    """A lock, free in every forked child; it pickles as a lock of its own."""

    _made: Callable[[], Any] = staticmethod(threading.Lock)

    def __init__(self) -> None:
        self._lock = self._made()
        _live.add(self)

    def renew(self) -> None:
        """Be free, whoever held it."""
        self._lock = self._made()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *failure: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["ForkSafeLock"], tuple[()]]:
        return type(self), ()


class ForkSafeRLock(ForkSafeLock):
    """One that its holder may take again: a finaliser may run, and want it, in the middle of what it guards."""

    _made = staticmethod(threading.RLock)


def _renew_all() -> None:
    for lock in list(_live):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
    os.register_at_fork(
        before=forks_wait.acquire, after_in_parent=forks_wait.release, after_in_child=forks_wait.release
    )
