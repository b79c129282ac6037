"""Threads that open streams and read them ahead up to a bound, their shared budget, and the read rate.

A :class:`PrefetchTask` gives pieces of its stream in order, then its error. Its thread ends as soon as the bound is
reached, the stream has ended or failed, or its turn has come; it never waits for the reader, so that no thread is
ever parked.

:class:`PrefetchBudget` bounds the bytes, and the connections besides those that are read from, of one process. A
reservation is given or refused at once: no thread ever waits for one.

:class:`ReadRate` measures from the times and sizes of reads whether the reader waits for bytes, so that a faster
source would help.
"""

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from webdataset.core import settings
from webdataset.core.fork_safety import ForkSafeRLock
from webdataset.storage.rate_limit import stop_waiting_at

if TYPE_CHECKING:
    from webdataset.storage.streams import Stream


class Reservation:
    """Bytes and perhaps a connection of a budget, given back in two steps or one; a forked child holds none."""

    __slots__ = ("_budget", "_connections", "_owner", "_size", "size_bytes")

    def __init__(self, budget: "PrefetchBudget", size_bytes: int) -> None:
        self.size_bytes = self._size = size_bytes
        self._budget, self._connections, self._owner = budget, 1, os.getpid()

    def grow(self, size_bytes: int) -> bool:
        """Request more bytes, and a connection where it was given back; tells whether they are granted."""
        if self._owner != os.getpid():
            return False
        with self._budget.lock:
            granted = self._budget.more(size_bytes, 1 - self._connections)
            if granted:
                self.size_bytes += size_bytes
                self._size += size_bytes
                self._connections = 1
                self._budget.note_end(self)
        return granted

    @property
    def held_bytes(self) -> int:
        """Bytes that are granted still."""
        return self._size

    def shrink(self, size_bytes: int) -> None:
        """Give back some of the bytes: they have been read, or never will be."""
        self._give(size_bytes, 0)

    def release_connection(self) -> None:
        """Give the connection back."""
        self._give(0, 1)

    def lend_connection(self) -> bool:
        """Give the connection back while its last bytes come, unless another one does so now; tell whether it is."""
        several = settings.CONNECTIONS.get() > 1
        with self._budget.lock:
            free = several and self._budget.ending is None
            lent = free and self._owner == os.getpid() and self._connections == 1
            if lent:
                self._connections = 0
                self._budget.connections -= 1
                self._budget.ending = self
        return lent

    def release(self) -> None:
        """Give back what is left."""
        self._give(self._size, 1)

    def _give(self, size_bytes: int, connections: int) -> None:
        if self._owner == os.getpid():
            # the reader and the thread both give back, each what it knows of
            with self._budget.lock:
                if connections:
                    self._budget.note_end(self)
                size_bytes, connections = min(size_bytes, self._size), min(connections, self._connections)
                self._size -= size_bytes
                self._connections -= connections
                self._budget.size_bytes -= size_bytes
                self._budget.connections -= connections


class PrefetchBudget:
    """Bytes and connections of one process.

    Attributes:
        lock: held while they are counted; a finaliser that gives back may interrupt the thread that holds it.
        size_bytes: granted now.
        connections: granted now.
        ending: the reservation whose connection brings its last bytes while the next request is sent, or None.
    """

    def __init__(self) -> None:
        self.lock = ForkSafeRLock()
        self.size_bytes = self.connections = 0
        self.ending: Reservation | None = None

    def note_end(self, reservation: Reservation) -> None:
        """Note that the last bytes of a reservation's connection have come, or that it gets more; under the lock."""
        if self.ending is reservation:
            self.ending = None

    def take(self, size_bytes: int, *, spare: int = 0) -> Reservation | None:
        """Return a reservation of bytes and a connection, or None where the process has no room.

        Args:
            size_bytes: bytes to be held at most.
            spare: connections of its own that the reader does without.
        """
        return Reservation(self, size_bytes) if self.more(size_bytes, 1, spare=spare) else None

    def more(self, size_bytes: int, connections: int, *, spare: int = 0) -> bool:
        """Count bytes and connections as taken, if there is room; tells whether there is."""
        most, widest = settings.PREFETCH_BYTES.get(), settings.CONNECTIONS.get() - 1 + spare
        with self.lock:
            if self.size_bytes + size_bytes > most or (connections and self.connections + connections > widest):
                return False
            self.size_bytes += size_bytes
            self.connections += connections
        return True

    @property
    def idle_connections(self) -> int:
        """How many further connections would be granted now."""
        return settings.CONNECTIONS.get() - 1 - self.connections

    def forget(self) -> None:
        """Begin anew, in a forked child: nothing that the parent holds is held here."""
        self.size_bytes = self.connections = 0
        self.ending = None


prefetch_budget = PrefetchBudget()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=prefetch_budget.forget)


try:
    # those of ``queue``, which loads more
    from _queue import Empty, SimpleQueue
except ImportError:
    from queue import Empty, SimpleQueue


PIECE_BYTES = 768 * 1024
OF_LARGE_BYTES = 16 << 20
CLOSE_SECONDS = 1.0


class PrefetchTask:
    """A stream that a thread opens and reads up to a bound.

    Args:
        opener: gives the stream; called in the thread.
        limit_bytes: how much is read ahead; of a stream known to be longer, :data:`OF_LARGE_BYTES`: the rest can come
            over several connections when its turn comes.
        grant: given back as the bytes go.
        done: called in the thread once no more is left than comes while a request is answered, and again when it has
            read to the bound or the end: the next request may be sent.
        exact: read to the bound, however long the stream says that it is.

    Attributes:
        stream: the stream, once it is open.
        length: bytes of the stream, or None where it is not open or does not say.
        whole: whether all of the stream has been read.
        refused: what opening raised, or None.
        failure: what reading raised, or None.
        latency_seconds: between asking for it and its first bytes.

    Raises:
        RuntimeError: no thread can be started.
    """

    def __init__(
        self,
        opener: "Callable[[], Stream]",
        limit_bytes: int,
        grant: Reservation,
        done: Callable[["PrefetchTask"], None] | None = None,
        *,
        exact: bool = False,
    ) -> None:
        self.stream: Stream | None = None
        self.refused: BaseException | None = None
        self.failure: BaseException | None = None
        self.given_bytes = 0
        self._pieces: SimpleQueue[bytes | None] = SimpleQueue()
        self._opened = threading.Event()
        self._enough = self._cancelled = False
        self._stopped = threading.Event()
        self.grant = grant
        self.owner = os.getpid()
        self.length: int | None = None
        self.whole = False
        self._left = self._planned = limit_bytes
        self._read_bytes = 0
        # when the first bytes came, and how many they were
        self._flowing: tuple[float, int] | None = None
        self._announced = False
        self._exact = exact
        self._lock = threading.Lock()
        self._ended = False
        self.latency_seconds = 0.0
        if _ending:
            raise RuntimeError("the interpreter ends")
        _live_tasks.add(self)
        self._done = done
        self._start(self._run, opener)

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        def work() -> None:
            with stop_waiting_at(self._stopped):
                run(*arguments)

        self._thread = threading.Thread(target=work, name="webdataset-ahead", daemon=True)
        self._thread.start()

    def _run(self, opener: "Callable[[], Stream]") -> None:
        began = time.monotonic()
        try:
            self.stream = stream = opener()
        except BaseException as error:  # noqa: BLE001  kept for the moment when this stream's turn comes
            self.refused = error
        else:
            _set_ahead(stream, ahead=not self._enough)
            self._fit(stream)
            self._opened.set()
            self._read_pieces(stream, began)
        finally:
            self._opened.set()
            self._over()

    def _go_on(self) -> None:
        try:
            if self.stream is not None:
                self._read_pieces(self.stream)
        finally:
            self._over()

    def _over(self) -> None:
        self.grant.release_connection()
        with self._lock:
            self._ended, left, self._left = True, self._left, 0
        self.grant.shrink(left)
        self._pieces.put(None)
        done = self._done
        if done is not None:
            done(self)

    def _fit(self, stream: "Stream") -> None:
        """Plan for no more than the stream holds."""
        length = getattr(stream, "length", None)
        if isinstance(length, int) and not self._exact:
            self.length = length
            with self._lock:
                fewer = self._planned - self._fitting(self._planned)
                self._planned -= fewer
                self._left -= fewer
            self.grant.shrink(fewer)

    def _fitting(self, limit_bytes: int) -> int:
        """Return how much of the stream to read ahead within a limit."""
        if self.length is None:
            return limit_bytes
        return self.length if self.length <= limit_bytes else min(limit_bytes, OF_LARGE_BYTES)

    def _read_pieces(self, stream: "Stream", began: float | None = None) -> None:
        read = getattr(stream, "read_some", stream.read)
        try:
            while self._left > 0 and not self._enough:
                piece = read(min(PIECE_BYTES, self._left))
                if began is not None:
                    now = time.monotonic()
                    self.latency_seconds, began = now - began, None
                    self._flowing = now, len(piece)
                if not piece:
                    self.whole = True
                    break
                with self._lock:
                    self._left -= len(piece)
                self._pieces.put(piece)
                self._read_bytes += len(piece)
                self.whole = self._read_bytes == self.length
                if not self._announced:
                    self._announce_end()
        except BaseException as error:  # noqa: BLE001  kept, as above
            self.failure = error
        if self._cancelled:
            _close_silently(stream)

    def _announce_end(self) -> None:
        """Let the next request be sent once the rest comes within the time that its answer takes."""
        if self._flowing is None or self.latency_seconds <= FAR_SECONDS or self._left <= 0:
            return
        began, first_bytes = self._flowing
        # the speed is what came after the first bytes, for each second
        ending = self._left * (time.monotonic() - began) <= self.latency_seconds * (self._read_bytes - first_bytes)
        if ending and self._read_bytes > first_bytes and self.grant.lend_connection():
            self._announced = True
            done = self._done
            if done is not None:
                done(self)

    @property
    def running(self) -> bool:
        """True while the thread reads."""
        return self._thread.is_alive()

    def extend(self, limit_bytes: int) -> None:
        """Read further ahead, up to ``limit_bytes`` of the stream in all, if there is room and anything left."""
        more = self._fitting(limit_bytes) - self._planned
        if more <= 0 or self._enough or self.whole or self.refused or self.failure or not self.grant.grow(more):
            return
        with self._lock:
            self._planned += more
            self._left += more
            self._announced = False
            ended, self._ended = self._ended, False
        if ended:
            self._resume()

    def _resume(self) -> None:
        """Start the thread again, after what it has read."""
        read, self._pieces = self._pieces, SimpleQueue()
        while (piece := read.get()) is not None:
            self._pieces.put(piece)
        try:
            self._start(self._go_on)
        # no more threads
        except RuntimeError:
            self._over()

    def claim(self) -> None:
        """Say that the turn has come: the thread reads no further than it must; its connection becomes the reader's."""
        self._enough = True
        self.grant.release_connection()

    def take(self) -> "Stream | None":
        """Return the stream once it is open, None if it was refused."""
        self.claim()
        self._opened.wait()
        if self.stream is not None:
            _set_ahead(self.stream, ahead=False)
        return self.stream

    def piece(self) -> bytes | None:
        """Return the next piece that the thread has read, or None where there are no more; waits for the thread."""
        content = self._pieces.get()
        if content is None:
            # the thread that waits for it may hold it
            self._done = None
        else:
            self.given_bytes += len(content)
            self.grant.shrink(len(content))
        return content

    def take_leftovers(self) -> tuple[bytes, bool]:
        """Return, in a forked child, what the thread has read, and whether it had come to its end."""
        pieces = []
        with contextlib.suppress(Empty):
            while (piece := self._pieces.get_nowait()) is not None:
                pieces.append(piece)
            return b"".join(pieces), True
        return b"".join(pieces), False

    def release(self) -> None:
        """Give back the bytes, which are gone."""
        self.grant.release()

    def cancel(self) -> None:
        """Ask the thread to stop soon; see :meth:`close`."""
        self._enough = self._cancelled = True
        self._stopped.set()
        if self.stream is not None and self.owner == os.getpid():
            interrupt = getattr(self.stream, "interrupt", None)
            if interrupt is not None and self.running:
                interrupt()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Stop the thread and close the stream; a thread that cannot be woken in time closes the stream itself."""
        self.cancel()
        self._done = None
        if self.owner != os.getpid():
            return
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, seconds))
        if not self.running and self.stream is not None:
            _close_silently(self.stream)
        self.grant.release()


def close_tasks(tasks: Iterable[PrefetchTask]) -> None:
    """Close several tasks, and wait for all together no longer than for one."""
    tasks, until = list(tasks), time.monotonic() + CLOSE_SECONDS
    for task in tasks:
        task.cancel()
    for task in tasks:
        task.close(until - time.monotonic())


_live_tasks: "weakref.WeakSet[PrefetchTask]" = weakref.WeakSet()
_ending = False


@atexit.register
def _stop_all_tasks() -> None:
    """Stop all threads before the interpreter ends: a thread that it freezes in a read holds that stream's lock."""
    global _ending  # noqa: PLW0603  there is one end
    _ending = True
    close_tasks(task for task in list(_live_tasks) if task.owner == os.getpid() and task.running)


def _set_ahead(stream: object, *, ahead: bool) -> None:
    """Tell a stream, if it cares, whether a thread reads it before its turn."""
    if hasattr(stream, "ahead"):
        stream.ahead = ahead


def _close_silently(stream: "Stream") -> None:
    """Close a stream that is not wanted; what it has to say no longer matters."""
    with contextlib.suppress(Exception):  # its bytes are not wanted
        stream.close()


FAST_BYTES_PER_SECOND = 150e6
FAR_SECONDS = 0.005
WINDOW_SECONDS = 0.05
WINDOW_BYTES = 1 << 20


class ReadRate:
    """How one reader's time passes, in windows.

    Attributes:
        latency_seconds: between asking for the latest stream and its first bytes.
        waited_seconds: spent in reads, in the present window.
        elapsed_seconds: in all, in the present window.
        given_bytes: what the reads gave, in the present window.
    """

    def __init__(self) -> None:
        self.latency_seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """Open a window."""
        self.waited_seconds = self.elapsed_seconds = 0.0
        self.given_bytes = 0

    def note(self, before: float, began: float, ended: float, given_bytes: int) -> None:
        """Record a read: when the one before it ended, when it began and ended, and what it gave."""
        self.waited_seconds += ended - began
        self.elapsed_seconds += ended - before
        self.given_bytes += given_bytes

    @property
    def telling(self) -> bool:
        """True where the window is long enough to judge by."""
        return self.elapsed_seconds >= WINDOW_SECONDS and self.given_bytes >= WINDOW_BYTES

    @property
    def share(self) -> float:
        """The share of its time that the reader waited."""
        return self.waited_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """What came in, for each second of waiting."""
        return self.given_bytes / self.waited_seconds if self.waited_seconds else float("inf")

    @property
    def far(self) -> bool:
        """True where opening a stream takes longer than a thread that does it ahead of time costs."""
        return self.latency_seconds > FAR_SECONDS

    @property
    def starving(self) -> bool:
        """True where the reader mostly waits, for a source that is slower than a plain one nearby."""
        return self.share > 0.5 and self.bytes_per_second < FAST_BYTES_PER_SECOND
