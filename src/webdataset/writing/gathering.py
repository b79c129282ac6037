"""What the writers of one shard have in common: bytes are gathered, then handed on; a shard is completed or given up.

Flows in: pieces of a shard, gathered by a writer. Flows out: the same pieces to its output, never joined or copied.
Knows no format.
"""

import contextlib
import os
import warnings
from types import TracebackType
from typing import Any, ClassVar, Self

from webdataset.ground.errors import SourceError, UsageError
from webdataset.ground.logs import log

from .compressors import Output
from .localfile import Buffer

GATHERED_BYTES = 1 << 17
GATHERED_PIECES = 900


class Gathering:
    """A writer of one shard, without its format.

    A subclass calls ``_begin`` when its output is open, adds to ``_pieces``, ``_gathered`` (their bytes) and ``_count``
    (samples), and calls ``_hand_on`` when enough is gathered.

    Attributes:
        url: the target, or None for a file object.
        stream: the file object that receives the bytes.
    """

    url: str | None = None
    stream: Any = None
    _state = "unopened"
    _end: ClassVar[bytes] = b""  # what stands behind the last sample
    _output: Output
    _process: int
    _pieces: list[Buffer]
    _gathered = _handed_on = _count = 0

    def _begin(self, output: Output) -> None:
        self._output = output
        self._process = os.getpid()
        self._pieces = []
        self._state = "open"

    @property
    def offset(self) -> int:
        """Bytes of the shard so far, before compression: where the next sample starts."""
        return self._handed_on + self._gathered

    @property
    def closed(self) -> bool:
        """Whether the shard is complete or given up."""
        return self._state in ("closed", "aborted", "abandoned")

    def _hand_on(self) -> None:
        """Give what is gathered to the output; if that fails, the shard is lost."""
        if os.getpid() != self._process:
            raise UsageError("a writer belongs to the process that made it: give every process its own", url=self.url)
        pieces, size = self._pieces, self._gathered
        self._pieces, self._gathered = [], 0
        self._handed_on += size
        self._state = "broken by a failed write"
        self._output.write(pieces, size)
        self._state = "open"

    def _finish(self) -> None:
        if self._end:
            self._pieces.append(self._end)
            self._gathered += len(self._end)
        self._hand_on()

    def close(self) -> None:
        """Complete the shard: it appears under its name. Closing again does nothing.

        Raises:
            SourceError: it cannot be completed, or an earlier write failed; nothing appears.
            AlreadyExists: another writer made the file meanwhile.
        """
        if self._state == "broken by a failed write":
            self.abort()
            raise SourceError("the shard is not complete, for an earlier write failed: it was given up", url=self.url)
        if self._state != "open":
            return
        try:
            end = self.offset
            self._finish()
            self._complete(end)
            self._state = "closed"
        finally:
            self.abort()  # does nothing to a closed shard

    def _complete(self, end: int) -> None:  # noqa: ARG002  for writers that index
        """Let the shard appear; ``end`` is where the last sample ends."""
        self._output.commit()

    def abort(self) -> None:
        """Give up: nothing appears under the shard's name. A file object is left as it is, without an end mark."""
        if self._state in ("closed", "aborted", "unopened") or os.getpid() != self._process:
            return
        self._state = "aborted"
        self._pieces = []
        self._give_up()

    def _give_up(self) -> None:
        self._output.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the shard, or give it up if an exception passes."""
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        """Keep what a forgotten writer wrote under its partial name, and say so."""
        if self._state != "open" or os.getpid() != self._process:
            return
        with contextlib.suppress(Exception):  # an object that goes away can tell nobody
            self._finish()
            where = self._output.abandon()
            self._state = "abandoned"
            message = f"{type(self).__name__} for {self.url or self.stream!r} was never closed"
            message += f": its {self._count} samples are in {where}" if where else ": its shard is incomplete"
            log.warning("%s; use `with` or call close()", message)
            warnings.warn(message, ResourceWarning, stacklevel=2)
