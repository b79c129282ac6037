"""Streams, part of which a thread has read before anybody asked for them.

Flows in: an open stream, and what a thread has read of it (``ahead_filling``). Flows out: the same bytes in the same
order, and the same error in the same place. Whoever reads drains what was read ahead, then reads on by itself: a stream
read ahead costs the reader nothing further.

In a forked child the thread does not exist. A stream that nobody has read from is opened anew there (by
``samples.opening``); one that is being read goes on behind the last byte that is known, on a connection of its own.
"""

import io
import os
import time
from collections.abc import Callable
from typing import Any

from webdataset.ground.errors import SourceError

from .ahead_filling import Filling
from .ahead_pace import Pace

FIRST_LOOK = 3  # whoever takes one sample and leaves has read twice


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
