"""Streams that a thread opens, and begins to read, before anybody asks for them.

Flows in: what opens a stream, and a bound in bytes. Flows out: pieces of it, in order, and what went wrong behind them.
The thread ends as soon as the bound is reached, the stream has ended or failed, or its turn has come; it never waits
for the reader, so that no thread is parked anywhere.
"""

import atexit
import contextlib
import os
import threading
import time
import weakref

try:
    from _queue import Empty, SimpleQueue  # those of ``queue``, which loads more
except ImportError:
    from queue import Empty, SimpleQueue
from collections.abc import Callable, Iterable
from typing import Any

from .ahead_budget import Grant

PIECE_BYTES = 384 * 1024
OF_LARGE_BYTES = 16 << 20
FAREWELL_SECONDS = 1.0


class Filling:
    """A stream that a thread opens and reads up to a bound.

    Args:
        opener: gives the stream; called in the thread.
        limit_bytes: how much is read ahead; of a stream that is known to be longer, :data:`OF_LARGE_BYTES`: the rest
            can be had over several connections when its turn comes.
        grant: given back as the bytes go.
        done: called in the thread when it has read to the bound or the end.
        exact: read to the bound, however long the stream says that it is.

    Attributes:
        stream: the stream, once it is open.
        length: bytes of the stream, once it is open, or None where it does not say.
        grant: what may be held.
        whole: whether all of the stream has been read.
        refused: what opening raised, or None.
        failure: what reading raised, or None.
        given_bytes: what was taken of it so far.
        latency_seconds: between asking for it and its first bytes.

    Raises:
        RuntimeError: no thread can be started.
    """

    def __init__(
        self,
        opener: Callable[[], Any],
        limit_bytes: int,
        grant: Grant,
        done: Callable[["Filling"], None] | None = None,
        *,
        exact: bool = False,
    ) -> None:
        self.stream: Any = None
        self.refused: BaseException | None = None
        self.failure: BaseException | None = None
        self.given_bytes = 0
        self._pieces: SimpleQueue[bytes | None] = SimpleQueue()
        self._opened = threading.Event()
        self._enough = self._cancelled = False
        self.grant = grant
        self.owner = os.getpid()
        self.length: int | None = None
        self.whole = False
        self._left = self._planned = limit_bytes
        self._read_bytes = 0
        self._exact = exact
        self._lock = threading.Lock()
        self._ended = False
        self.latency_seconds = 0.0
        if _ending:
            raise RuntimeError("the interpreter ends")
        _live.add(self)
        self._done = done
        self._start(self._run, opener)

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        self._thread = threading.Thread(target=run, args=arguments, name="webdataset-ahead", daemon=True)
        self._thread.start()

    def _run(self, opener: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            self.stream = stream = opener()
        except BaseException as error:  # noqa: BLE001  kept for the moment when this stream's turn comes
            self.refused = error
        else:
            _told(stream, ahead=not self._enough)
            self._fit(stream)
            self._opened.set()
            self._read(stream, began)
        finally:
            self._opened.set()
            self._over()

    def _go_on(self) -> None:
        try:
            self._read(self.stream)
        finally:
            self._over()

    def _over(self) -> None:
        self.grant.disconnected()
        with self._lock:
            self._ended, left, self._left = True, self._left, 0
        self.grant.shrink(left)
        self._pieces.put(None)
        done = self._done
        if done is not None:
            done(self)

    def _fit(self, stream: Any) -> None:
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

    def _read(self, stream: Any, began: float | None = None) -> None:
        read = getattr(stream, "read_some", stream.read)
        try:
            while self._left > 0 and not self._enough:
                piece = read(min(PIECE_BYTES, self._left))
                if began is not None:
                    self.latency_seconds, began = time.monotonic() - began, None
                if not piece:
                    self.whole = True
                    break
                with self._lock:
                    self._left -= len(piece)
                self._pieces.put(piece)
                self._read_bytes += len(piece)
                self.whole = self._read_bytes == self.length
        except BaseException as error:  # noqa: BLE001  kept, as above
            self.failure = error
        if self._cancelled:
            _closed(stream)

    @property
    def running(self) -> bool:
        """True while the thread reads."""
        return self._thread.is_alive()

    def extend(self, limit_bytes: int) -> None:
        """Read further ahead than was planned, if there is room and anything left.

        Args:
            limit_bytes: how much of the stream in all, as for the beginning.
        """
        more = self._fitting(limit_bytes) - self._planned
        if more <= 0 or self._enough or self.whole or self.refused or self.failure or not self.grant.grow(more):
            return
        with self._lock:
            self._planned += more
            self._left += more
            ended, self._ended = self._ended, False
        if ended:
            self._resume()

    def _resume(self) -> None:
        """Start the thread again, behind what it has read."""
        read, self._pieces = self._pieces, SimpleQueue()
        while (piece := read.get()) is not None:
            self._pieces.put(piece)
        try:
            self._start(self._go_on)
        except RuntimeError:  # no more threads
            self._over()

    def claim(self) -> None:
        """Say that the turn has come: the thread reads no further than it must, and its connection is the reader's."""
        self._enough = True
        self.grant.disconnected()

    def take(self) -> Any:
        """Return the stream once it is open, None if it was refused."""
        self.claim()
        self._opened.wait()
        if self.stream is not None:
            _told(self.stream, ahead=False)
        return self.stream

    def piece(self) -> bytes | None:
        """Return the next piece that the thread has read, or None where there are no more; waits for the thread."""
        content = self._pieces.get()
        if content is None:
            self._done = None  # whoever waits for it may hold it
        else:
            self.given_bytes += len(content)
            self.grant.shrink(len(content))
        return content

    def inherited(self) -> tuple[bytes, bool]:
        """Return, in a forked child, what the thread has left behind, and whether it had come to its end."""
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
        if self.stream is not None and self.owner == os.getpid():
            interrupt = getattr(self.stream, "interrupt", None)
            if interrupt is not None and self.running:
                interrupt()

    def close(self, seconds: float = FAREWELL_SECONDS) -> None:
        """Stop the thread and close the stream; where the thread cannot be woken, it closes the stream itself.

        Args:
            seconds: how long to wait for the thread.
        """
        self.cancel()
        self._done = None
        if self.owner != os.getpid():
            return
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, seconds))
        if not self.running and self.stream is not None:
            _closed(self.stream)
        self.grant.release()


def close_all(fillings: Iterable[Filling]) -> None:
    """Close several, and wait for all of them together no longer than for one.

    Args:
        fillings: which.
    """
    fillings, until = list(fillings), time.monotonic() + FAREWELL_SECONDS
    for filling in fillings:
        filling.cancel()
    for filling in fillings:
        filling.close(until - time.monotonic())


_live: "weakref.WeakSet[Filling]" = weakref.WeakSet()
_ending = False


@atexit.register
def _end_all() -> None:
    """Stop all threads before the interpreter ends: a thread that it freezes in a read holds that stream's lock."""
    global _ending  # noqa: PLW0603  there is one end
    _ending = True
    close_all(filling for filling in list(_live) if filling.owner == os.getpid() and filling.running)


def _told(stream: Any, *, ahead: bool) -> None:
    """Tell a stream, if it cares, whether a thread reads it before its turn."""
    if hasattr(stream, "ahead"):
        stream.ahead = ahead


def _closed(stream: Any) -> None:
    """Close a stream that nobody wants; what it has to say no longer matters."""
    with contextlib.suppress(Exception):  # whatever it says: nobody has wanted its bytes
        stream.close()
