"""Lookahead over a list of shards, and streams that a thread has read in part before their turn.

A :class:`PrefetchedStream` gives the same bytes in the same order, and the same error at the same offset, as the
stream that it wraps. The reader drains what was prefetched, then reads on by itself: a prefetched stream costs the
reader nothing further. In a forked child the thread does not exist: a stream that was not read from is opened anew
there (by :mod:`webdataset.samples.shard_opener`); one that is being read continues after the last byte that is known,
on a connection of its own.

A :class:`Lookahead` gives the same ``{"url"}`` dicts in the same order as its list. Only the reader asks the list,
never a thread; an error of the list is raised at its turn, after the shards that the list gave before. A subclass
decides what is begun for a shard, how far ahead and when.
"""

import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from webdataset.core.errors import SourceError, WebDatasetError
from webdataset.storage.open_url import is_remote
from webdataset.storage.prefetch_worker import PrefetchTask, ReadRate

FIRST_LOOK = 3  # whoever takes one sample and leaves has read twice


class PrefetchedStream(io.RawIOBase):
    """A stream, part of which may have been read already. What it does not know itself, the stream is asked.

    Args:
        stream: an open stream.
        pace: takes note of the waiting.
        look: called when the third read begins, and again from time to time: one may open what comes next.
        asked: when somebody began to open ``stream``, unless it was ``task``.
        task: what has been reading ``stream``; its turn has come.
    """

    def __init__(
        self,
        stream: Any,
        pace: ReadRate,
        look: Callable[[], None] | None = None,
        asked: float | None = None,
        task: PrefetchTask | None = None,
    ) -> None:
        super().__init__()
        self.ahead_of = stream
        self._pace, self._look, self._task = pace, look, task
        self._rest = memoryview(b"")
        self._failed: BaseException | None = None
        self._asked: float | None = asked if task is None else None
        self._given = self._reads = 0
        self._left = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        """Pass on to the stream."""
        if name == "ahead_of":
            raise AttributeError(name)
        return getattr(self.ahead_of, name)

    def __repr__(self) -> str:
        return repr(self.ahead_of)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes, all the rest where ``size`` is negative, ``b""`` at the end."""
        return self.readall() if size is None or size < 0 else self._some(size, self.ahead_of.read)

    def read_some(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes as soon as there are any, ``b""`` at the end."""
        return self._some(size, getattr(self.ahead_of, "read_some", self.ahead_of.read))

    def _some(self, size: int, read: Callable[[int], bytes]) -> bytes:
        if self._look is not None:
            self._reads += 1
            if self._reads == FIRST_LOOK or self._pace.telling:
                self._look()
        began = time.monotonic()
        content = b""
        if self._task is not None or self._rest:
            content = self._read_ahead(size)
        if self._failed is not None and not content:
            raise self._failed
        if not content and size:
            content = read(size)
        ended = time.monotonic()
        if self._asked is not None:
            self._pace.latency_seconds, self._asked = ended - self._asked, None
        self._pace.note(self._left, began, ended, len(content))
        self._left = ended
        self._given += len(content)
        return content

    def _read_ahead(self, size: int) -> bytes:
        """Return bytes that were read ahead, ``b""`` where there are no more."""
        task = self._task
        if task is not None and task.owner != os.getpid():
            self._inherit(task)
        elif not self._rest and task is not None:
            piece = task.piece()
            if piece is None:
                self._drain(task)
                return b""
            if len(piece) <= size:
                return piece
            self._rest = memoryview(piece)
        content, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return content

    def _drain(self, task: PrefetchTask) -> None:
        self._task = None
        task.release()
        self._failed = task.failure

    def _inherit(self, task: PrefetchTask) -> None:
        """Go on in a forked child, where the thread does not exist."""
        self._task = None
        left, whole = task.take_leftovers()
        self._rest = memoryview(bytes(self._rest) + left)
        if whole:
            self._failed = task.failure
            return
        rewind = getattr(self.ahead_of, "rewind", None)
        if rewind is None:
            raise SourceError("this stream is read by the process that opened it: iterate anew after a fork")
        rewind(self._given + len(self._rest))

    def readall(self) -> bytes:
        """Return the rest."""
        return b"".join(iter(lambda: self.read(1 << 20), b""))

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, in part or whole; returns the number of bytes, 0 at the end."""
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def readable(self) -> bool:
        """Tell that this can be read."""
        return True

    def tell(self) -> int:
        """Return the number of bytes given so far."""
        return self._given

    def close(self) -> None:
        """Close the stream, and stop the thread that may still read it."""
        if self.closed:
            return
        super().close()
        task, self._task = self.__dict__.get("_task"), None
        self._look = None
        if task is not None:
            task.close()
        close = getattr(self.ahead_of, "close", None)
        if close is not None and (task is None or not task.running):
            close()


Shard = Any


class Closable(Protocol):
    """What is begun for a shard, and left when nobody wants it."""

    def close(self) -> None:
        """Leave it."""


B = TypeVar("B", bound=Closable)


class UpcomingShard(NamedTuple, Generic[B]):
    """A shard whose turn will come.

    Args:
        shard: the dict, or whatever stands in its place.
        begun: what opens it already, or None.
        failure: what the list raised instead of a shard, or None.
    """

    shard: Shard = None
    begun: B | None = None
    failure: Exception | None = None


class Lookahead(Generic[B]):
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
        self._waiting: deque[UpcomingShard[B]] = deque()
        self._current: B | None = None  # of the shard whose turn it is
        self._ended = self._closed = False
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def next(self) -> UpcomingShard[B] | None:
        """Return the shard whose turn has come, or None at the end of the list.

        Raises:
            Exception: what the list raises.
        """
        self._reset_after_fork()
        with self._lock:
            coming = self._waiting.popleft() if self._waiting else self._next_of_list()
            self._current = None if coming is None else coming.begun
        if coming is not None and coming.failure is not None:
            raise coming.failure
        return coming

    def _alone(self, look: Callable[[], None]) -> None:
        """Look ahead, unless other code does so, or asks the list, at this moment; or nobody goes on with it."""
        self._reset_after_fork()
        lock = self._lock
        if not self._closed and lock.acquire(blocking=False):
            try:
                look()
            finally:
                lock.release()

    def _next_of_list(self) -> UpcomingShard[B] | None:
        """Ask the list for one more; under the lock."""
        if self._ended:
            return None
        try:
            return UpcomingShard(next(self._shards))
        except StopIteration:
            self._ended = True
            return None
        except Exception as error:  # noqa: BLE001  the user's list: raised again when its turn comes
            self._ended = True
            return UpcomingShard(failure=error)

    def _is_remote(self, shard: Shard) -> bool:
        """Tell whether a shard is on another machine or behind a command, so that it takes time to begin."""
        try:
            return isinstance(shard, dict) and is_remote(shard.get("url"), level=self._level)
        except WebDatasetError:  # said when its turn comes
            return False

    def _note(self, waiting: deque[UpcomingShard[B]], number: int, begun: B) -> None:
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

    def _reset_after_fork(self) -> None:
        """After a fork, forget what the parent's threads had begun, and a lock that one of them may hold."""
        if self._owner != os.getpid():
            self._owner, self._lock = os.getpid(), threading.Lock()
            self._current = None
            self._waiting = deque(coming._replace(begun=None) for coming in self._waiting)
