"""Streams that a thread opens, and begins to read, before anybody asks for them.

Flows in: what opens a stream, and a bound in bytes. Flows out: the same bytes in the same order, and the same error in
the same place. The thread ends as soon as the bound is reached, the stream has ended or failed, or its turn has come;
it never waits for the reader, so that no thread is parked anywhere. Whoever reads drains what was read ahead, then
reads on by itself: a stream read ahead costs the reader nothing further.

In a forked child the thread does not exist. A stream that nobody has read from is opened anew there (by
``samples.opening``); one that is being read goes on behind the last byte that is known, on a connection of its own.
"""

import atexit
import contextlib
import io
import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from webdataset.ground.errors import SourceError

from .ahead_budget import Grant
from .ahead_pace import Pace

PIECE_BYTES = 384 * 1024
FAREWELL_SECONDS = 1.0
FIRST_LOOK = 3  # whoever takes one sample and leaves has read twice


class Filling:
    """A stream that a thread opens and reads up to a bound.

    Args:
        opener: gives the stream; called in the thread.
        limit_bytes: how much is read ahead; one piece more may be held.
        grant: given back when the bytes are gone.
        done: called in the thread when it has read to the bound or the end.

    Attributes:
        stream: the stream, once it is open.
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
    ) -> None:
        self.stream: Any = None
        self.refused: BaseException | None = None
        self.failure: BaseException | None = None
        self.given_bytes = 0
        self._pieces: SimpleQueue[bytes | None] = SimpleQueue()
        self._opened = threading.Event()
        self._enough = self._cancelled = False
        self._grant = grant
        self.owner = os.getpid()
        self._left = limit_bytes
        self._whole = False
        self.latency_seconds = 0.0
        _live.add(self)
        self._start(self._run, opener, done)

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        self._thread = threading.Thread(target=run, args=arguments, name="webdataset-ahead", daemon=True)
        self._thread.start()

    def _run(self, opener: Callable[[], Any], done: Callable[["Filling"], None] | None) -> None:
        began = time.monotonic()
        try:
            self.stream = stream = opener()
        except BaseException as error:  # noqa: BLE001  kept for the moment when this stream's turn comes
            self.refused = error
        else:
            _told(stream, ahead=not self._enough)
            self._opened.set()
            self._read(stream, began)
        finally:
            self._opened.set()
            self._over()
            if done is not None:
                done(self)

    def _go_on(self) -> None:
        try:
            self._read(self.stream)
        finally:
            self._over()

    def _over(self) -> None:
        self._grant.disconnected()
        self._pieces.put(None)

    def _read(self, stream: Any, began: float | None = None) -> None:
        read = getattr(stream, "read_some", stream.read)
        try:
            while self._left > 0 and not self._enough:
                piece = read(min(PIECE_BYTES, self._left))
                if began is not None:
                    self.latency_seconds, began = time.monotonic() - began, None
                if not piece:
                    self._whole = True
                    break
                self._left -= len(piece)
                self._pieces.put(piece)
        except BaseException as error:  # noqa: BLE001  kept, as above
            self.failure = error
        if self._cancelled:
            _closed(stream)

    @property
    def running(self) -> bool:
        """True while the thread reads."""
        return self._thread.is_alive()

    def extend(self, size_bytes: int) -> None:
        """Read further ahead than was planned, if there is room and anything left.

        Args:
            size_bytes: how much further.
        """
        if self._enough or self._whole or self.refused or self.failure or not self._grant.grow(size_bytes):
            return
        self._left += size_bytes  # what the thread subtracts at this moment may be lost: it reads a piece more
        if not self.running:
            read, self._pieces = self._pieces, SimpleQueue()
            while (piece := read.get()) is not None:
                self._pieces.put(piece)
            self._start(self._go_on)

    def claim(self) -> None:
        """Say that the turn has come: the thread reads no further than it must, and its connection is the reader's."""
        self._enough = True
        self._grant.disconnected()

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
        if content is not None:
            self.given_bytes += len(content)
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
        self._grant.release()

    def cancel(self) -> None:
        """Ask the thread to stop soon; see :meth:`close`."""
        self._enough = self._cancelled = True
        if self.stream is not None and self.owner == os.getpid():
            interrupt = getattr(self.stream, "interrupt", None)
            if interrupt is not None and self.running:
                interrupt()

    def close(self) -> None:
        """Stop the thread and close the stream; where the thread cannot be woken, it closes the stream itself."""
        self.cancel()
        if self.owner != os.getpid():
            return
        if self._thread is not threading.current_thread():
            self._thread.join(FAREWELL_SECONDS)
        if not self.running and self.stream is not None:
            _closed(self.stream)
        self._grant.release()


_live: "weakref.WeakSet[Filling]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Stop all threads before the interpreter ends: a thread that it freezes in a read holds that stream's lock."""
    fillings = [filling for filling in list(_live) if filling.owner == os.getpid() and filling.running]
    for filling in fillings:
        filling.cancel()
    for filling in fillings:
        filling.close()


def _told(stream: Any, *, ahead: bool) -> None:
    """Tell a stream, if it cares, whether a thread reads it before its turn."""
    if hasattr(stream, "ahead"):
        stream.ahead = ahead


def _closed(stream: Any) -> None:
    """Close a stream that nobody wants; what it has to say no longer matters."""
    with contextlib.suppress(Exception):
        stream.close()


class AheadStream(io.RawIOBase):
    """A stream, part of which may have been read already. What it does not know itself, the stream is asked.

    Args:
        stream: an open stream.
        pace: takes note of the waiting.
        look: called when the third read begins, and again from time to time: one may open what comes next.
        asked: when somebody began to open ``stream``, unless it was ``filling``.
        filling: what has been reading ``stream``; its turn has come.
    """

    def __init__(
        self,
        stream: Any,
        pace: Pace,
        look: Callable[[], None] | None = None,
        asked: float | None = None,
        filling: Filling | None = None,
    ) -> None:
        super().__init__()
        self.ahead_of = stream
        self._pace, self._look, self._filling = pace, look, filling
        self._rest = memoryview(b"")
        self._failed: BaseException | None = None
        self._asked: float | None = asked if filling is None else None
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
        if self._filling is not None or self._rest:
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
        filling = self._filling
        if filling is not None and filling.owner != os.getpid():
            self._inherit(filling)
        elif not self._rest and filling is not None:
            piece = filling.piece()
            if piece is None:
                self._drained(filling)
                return b""
            if len(piece) <= size:
                return piece
            self._rest = memoryview(piece)
        content, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return content

    def _drained(self, filling: Filling) -> None:
        self._filling = None
        filling.release()
        self._failed = filling.failure

    def _inherit(self, filling: Filling) -> None:
        """Go on in a forked child, where the thread does not exist."""
        self._filling = None
        left, whole = filling.inherited()
        self._rest = memoryview(bytes(self._rest) + left)
        if whole:
            self._failed = filling.failure
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
        filling, self._filling = self.__dict__.get("_filling"), None
        self._look = None
        if filling is not None:
            filling.close()
        close = getattr(self.ahead_of, "close", None)
        if close is not None and (filling is None or not filling.running):
            close()
