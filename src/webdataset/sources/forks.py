"""What no fork inherits: clients and connection pools, one for each process and purpose; and what no child finalises.

Flows in: a key, and how to make what belongs to it. Flows out: this process's own. Two processes that share a
connection would read each other's answers; and a lock that another thread holds at the fork stays locked for ever in
the child.
"""

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")

_foreign: "weakref.WeakValueDictionary[int, object]" = weakref.WeakValueDictionary()
_inherited: list[object] = []
_all: "weakref.WeakSet[PerProcess[object]]" = weakref.WeakSet()


class PerProcess(Generic[V]):
    """Kept by key, forgotten by forked children, and never pickled."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Hashable], V] = {}
        self._lock = threading.Lock()
        _all.add(self)  # type: ignore[arg-type]

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return what is kept under a key, made at the first call.

        Args:
            key: what tells one from another, the process aside.
            make: called once; others wait for it.
        """
        mine = (os.getpid(), key)
        with self._lock:
            if mine not in self._kept:
                self._kept[mine] = make()
            return self._kept[mine]

    def forget(self, key: Hashable) -> None:
        """Let go of what is kept under a key, so that the next call makes it anew.

        Args:
            key: the key.
        """
        with self._lock:
            self._kept.pop((os.getpid(), key), None)

    def clear(self) -> None:
        """Let go of everything, and of the lock: nobody else can be waiting for it in a child that was just forked."""
        self._lock = threading.Lock()
        self._kept = {}


def left_to_its_process(thing: object) -> None:
    """Let no forked child finalise a thing: its finaliser speaks over a connection, which is its parent's.

    Args:
        thing: a client, or an open file of one; can be referred to weakly.
    """
    _foreign[id(thing)] = thing


def _forget() -> None:
    _inherited.extend(_foreign.values())
    for kept in _all:
        kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
