"""Lists of shards that are looked at ahead: what comes next, and what has been begun for it.

Flows in: an iterator of ``{"url"}`` dicts. Flows out: the same dicts in the same order. Only whoever reads asks the
list, never a thread; what it raises is raised when its turn comes, behind the shards that it gave before. What is begun
for a shard, how far ahead and when, the subclass says.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from webdataset.ground.errors import WebDatasetError

from .open import opens_afar

Shard = Any


class Closes(Protocol):
    """What is begun for a shard, and left when nobody wants it."""

    def close(self) -> None:
        """Leave it."""


B = TypeVar("B", bound=Closes)


class Next(NamedTuple, Generic[B]):
    """A shard whose turn will come.

    Args:
        shard: the dict, or whatever stands in its place.
        begun: what opens it already, or None.
        failure: what the list raised instead of a shard, or None.
    """

    shard: Shard = None
    begun: B | None = None
    failure: Exception | None = None


class ListAhead(Generic[B]):
    """A list of shards that is looked at ahead of time.

    It is asked under a lock. A look ahead that would have to wait for that is left out: so no thread waits for another,
    and a list that reads shards itself does not wait for itself.

    Args:
        shards: the list.
        level: a trust level that a dataset names.
    """

    def __init__(self, shards: Iterator[Shard], level: str | None) -> None:
        self._shards = shards
        self._level = level
        self._waiting: deque[Next[B]] = deque()
        self._current: B | None = None  # of the shard whose turn it is
        self._ended = self._closed = False
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def next(self) -> Next[B] | None:
        """Return the shard whose turn has come, or None at the end of the list.

        Raises:
            Exception: what the list raises.
        """
        self._at_home()
        with self._lock:
            coming = self._waiting.popleft() if self._waiting else self._asked()
            self._current = None if coming is None else coming.begun
        if coming is not None and coming.failure is not None:
            raise coming.failure
        return coming

    def _alone(self, look: Callable[[], None]) -> None:
        """Look ahead, unless somebody else does so, or asks the list, at this moment; or nobody goes on with it."""
        self._at_home()
        lock = self._lock
        if not self._closed and lock.acquire(blocking=False):
            try:
                look()
            finally:
                lock.release()

    def _asked(self) -> Next[B] | None:
        """Ask the list for one more; under the lock."""
        if self._ended:
            return None
        try:
            return Next(next(self._shards))
        except StopIteration:
            self._ended = True
            return None
        except Exception as error:  # noqa: BLE001  the user's list: raised again when its turn comes
            self._ended = True
            return Next(failure=error)

    def _is_afar(self, shard: Shard) -> bool:
        """Tell whether a shard is on another machine or behind a command, so that it takes time to begin."""
        try:
            return isinstance(shard, dict) and opens_afar(shard.get("url"), level=self._level)
        except WebDatasetError:  # said when its turn comes
            return False

    def _note(self, waiting: deque[Next[B]], number: int, begun: B) -> None:
        """Keep what was begun beside its shard; under the lock.

        Args:
            waiting: what waited before it was begun.
            number: the shard's in that.
            begun: what opens it.
        """
        try:
            waiting[number] = waiting[number]._replace(begun=begun)
        finally:
            if self._closed:  # a finaliser may have run in between
                begun.close()

    def _left(self) -> list[B]:
        """Close the list; return what was begun. Takes no lock: a finaliser may call it at any moment."""
        self._closed = True
        waiting, self._waiting, self._current = self._waiting, deque(), None
        return [coming.begun for coming in waiting if coming.begun is not None]

    def _at_home(self) -> None:
        """After a fork, forget what the parent's threads had begun, and a lock that one of them may hold."""
        if self._owner != os.getpid():
            self._owner, self._lock = os.getpid(), threading.Lock()
            self._current = None
            self._waiting = deque(coming._replace(begun=None) for coming in self._waiting)
