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

import contextlib
import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from webdataset.core.errors import SourceError
from webdataset.storage.open_url import ResolvedUrl
from webdataset.storage.prefetch_worker import PrefetchTask, ReadRate, Reservation, close_tasks, prefetch_budget

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from webdataset.storage.streams import Stream

# a reader that takes one sample and leaves has read twice
FIRST_LOOK = 3


class PrefetchedStream(io.RawIOBase):
    """A stream, part of which may have been read already; attributes that it lacks are the stream's.

    Args:
        stream: an open stream.
        pace: records how long reads wait.
        look: called when the third read begins, and again from time to time, to open what comes next.
        asked: when opening ``stream`` began, unless ``task`` opened it.
        task: what has been reading ``stream``; its turn has come.
    """

    def __init__(
        self,
        stream: "Stream",
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

    def __getattr__(self, name: str) -> object:
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
        """Continue in a forked child, where the thread does not exist."""
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

    def readinto(self, buffer: "Buffer", /) -> int:
        """Fill a buffer, in part or whole; returns the number of bytes, 0 at the end."""
        view = memoryview(buffer).cast("B")
        content = self.read(len(view))
        view[: len(content)] = content
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
Resolver = Callable[[Any], ResolvedUrl]


class Closable(Protocol):
    """What is begun for a shard, and left when it is not wanted."""

    def close(self) -> None:
        """Leave it."""


B = TypeVar("B", bound=Closable)


class UpcomingShard(NamedTuple, Generic[B]):
    """A shard whose turn will come.

    Args:
        shard: the dict, or what stands in its place.
        resolved: what its url leads to; None where nothing asked before its turn, or resolving it failed.
        begun: what opens it already, or None.
        failure: what the list raised instead of a shard, or None.
    """

    shard: Shard = None
    resolved: ResolvedUrl | None = None
    begun: B | None = None
    failure: Exception | None = None

    @property
    def remote(self) -> bool:
        """True where it is on another machine or comes from a command, so that it takes time to begin."""
        return self.resolved is not None and self.resolved.remote


class Lookahead(Generic[B]):
    """A list of shards that is looked at ahead of time.

    The list is asked under a lock. A look ahead that would have to wait for the lock is left out: no thread waits for
    another, and a list that reads shards itself does not wait for itself.
    """

    def __init__(self, shards: Iterator[Shard], resolve: Resolver) -> None:
        self._shards = shards
        self._resolve = resolve
        self._waiting: deque[UpcomingShard[B]] = deque()
        # of the shard whose turn it is
        self._current: B | None = None
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
        """Look ahead, unless other code does so, or asks the list, at this moment, or the list is closed."""
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

    def _look_further(self) -> UpcomingShard[B] | None:
        """Ask the list for one more, resolve its url, and let it wait; None at the end; under the lock."""
        coming = self._next_of_list()
        if coming is not None:
            shard = coming.shard
            if isinstance(shard, dict) and "url" in shard:
                with contextlib.suppress(Exception):  # it is resolved again, and says so, when its turn comes
                    coming = coming._replace(resolved=self._resolve(shard["url"]))
            self._waiting.append(coming)
        return coming

    def _note(self, waiting: deque[UpcomingShard[B]], number: int, begun: B) -> None:
        """Keep what was begun beside the shard with this number; under the lock."""
        try:
            waiting[number] = waiting[number]._replace(begun=begun)
        finally:
            # a finaliser may have run in between
            if self._closed:
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


BUFFER_BYTES = 1 << 20
STARVING_BUFFER_BYTES = 48 << 20
FEWEST = 2
MOST = 8
CALM_SECONDS = 2.0


class ShardPrefetcher(Lookahead[PrefetchTask]):
    """Opens the next shards of a list while one is read, and reads them ahead within a budget.

    While the reader starves, a thread that has read a shard begins another one at once, so that connections stay busy.
    Shards of up to 48 MiB are read whole, since each request costs its latency; of larger ones enough is read that
    their further connections (:mod:`~webdataset.storage.parallel_ranges`) find the time to begin.

    Args:
        shards: the list.
        resolve: resolves the url of a shard.
        limit_bytes: bytes that may be held ahead, besides the bound of the process.

    Attributes:
        pace: of the thread that reads the streams.
    """

    def __init__(self, shards: Iterator[Shard], resolve: Resolver, limit_bytes: int) -> None:
        super().__init__(shards, resolve)
        self.limit_bytes = limit_bytes
        self.pace = ReadRate()
        self._depth = FEWEST
        self._buffer_bytes = BUFFER_BYTES
        self._starving = False
        self._calm_seconds = 0.0
        self._longest = 0

    def take(self, end: object) -> tuple[Shard, ResolvedUrl | None, PrefetchTask | None]:
        """Return the shard whose turn has come (``end`` after the last), its resolved url and its task, if any.

        Raises:
            Exception: what the list raises.
        """
        upcoming = self.next()
        return (end, None, None) if upcoming is None else (upcoming.shard, upcoming.resolved, upcoming.begun)

    def look(self) -> None:
        """Open what comes next, as far as there is room; never waits for another thread, and raises nothing."""
        self._alone(self._look)

    def _look(self) -> None:
        self._adapt()
        if self.pace.far or self._starving:
            self._ask_ahead()
            self._begin_all()

    def _go_on(self, _task: PrefetchTask) -> None:
        """Open what comes next in place of what has been read; called in its thread, which never asks the list."""
        if self._starving:
            self._alone(self._begin_all)

    def _ask_ahead(self) -> None:
        """Ask the list for what may come next; after one that is not opened ahead there is no need to look."""
        waiting = self._waiting
        while len(waiting) < self._depth and (not waiting or waiting[-1].remote):
            if self._look_further() is None:
                return

    def _begin_all(self) -> None:
        """Begin to open what is known to come next, as far as there is room."""
        waiting = self._waiting
        for number, coming in enumerate(list(waiting)[: self._depth]):
            if coming.begun is not None:
                self._longest = max(self._longest, coming.begun.length or 0)
            else:
                task = self._start_prefetch(coming.resolved)
                # no room, or none that is opened ahead
                if task is None:
                    return
                self._note(waiting, number, task)

    def close(self) -> None:
        """Stop the threads and close what they have opened."""
        close_tasks(self._left())

    def open(self, resolved: ResolvedUrl, task: PrefetchTask | None, *, look: bool) -> PrefetchedStream:
        """Return the stream of a shard whose turn has come; one that failed ahead of its turn is opened anew.

        ``look`` begins to open what comes next at once; else that begins when the stream is read.

        Raises:
            SourceError: it cannot be opened.
        """
        if task is not None:
            task.claim()
        if look:
            self.look()
        began = time.monotonic()
        stream = None
        if task is not None:
            stream = task.take()
            self.pace.latency_seconds = task.latency_seconds or self.pace.latency_seconds
            if stream is None:
                # its thread gives back what was granted
                task = None
        if stream is None:
            stream = resolved.open_stream()
        ended = time.monotonic()
        self.pace.note(began, began, ended, 0)
        return PrefetchedStream(stream, self.pace, self.look, began, task)

    def _start_prefetch(self, resolved: ResolvedUrl | None) -> PrefetchTask | None:
        """Open a shard ahead of its turn, if it is remote and there is room."""
        if resolved is None or not resolved.remote:
            return None
        size_bytes = min(self._buffer_bytes, self.limit_bytes // FEWEST, self._longest or self.limit_bytes)
        grant: Reservation | None = None
        if self._has_room(size_bytes):
            grant = prefetch_budget.take(
                size_bytes, spare=1 if self._current is not None and self._current.whole else 0
            )
        if grant is None:
            return None
        try:
            return PrefetchTask(resolved.open_stream, size_bytes, grant, self._go_on)
        # no more threads
        except RuntimeError:
            grant.release()
            return None

    def _has_room(self, size_bytes: int) -> bool:
        """Tell whether this list of shards may hold so many bytes more; some are left to the present shard's ranges."""
        ahead = sum(coming.begun.grant.held_bytes for coming in self._waiting if coming.begun is not None)
        present = 0 if self._current is None else self._current.grant.held_bytes
        most = self.limit_bytes * 4 // 5 if self._starving else self.limit_bytes
        return ahead + size_bytes <= most and ahead + present + size_bytes <= self.limit_bytes

    def _adapt(self) -> None:
        """Look further ahead while the reader waits for slow sources, and for some time after that."""
        pace = self.pace
        if not pace.telling:
            return
        starving = pace.starving
        self._calm_seconds = 0.0 if starving else self._calm_seconds + pace.elapsed_seconds
        pace.begin()
        if starving and not self._starving:
            self._starving, self._depth, self._buffer_bytes = True, MOST, STARVING_BUFFER_BYTES
            for coming in self._waiting:
                if coming.begun is not None and self._has_room(STARVING_BUFFER_BYTES):
                    coming.begun.extend(STARVING_BUFFER_BYTES)
        elif self._starving and self._calm_seconds > CALM_SECONDS:
            self._starving, self._depth, self._buffer_bytes = False, FEWEST, BUFFER_BYTES
