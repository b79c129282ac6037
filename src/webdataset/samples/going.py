"""A stream taken to another offset: by seeking, by asking the store anew, or by reading on.

Flows in: a stream of a shard. Flows out: the same bytes from elsewhere. Never goes back where a source cannot.
"""

from typing import Any

from webdataset.ground import errors
from webdataset.ground.errors import NoRandomAccess

RESTART_BYTES = 256 * 1024  # what may be read in the time that one more request takes
_PIECE = 1 << 18


def can_seek(stream: Any) -> bool:
    """Tell whether a stream can seek."""
    seekable = getattr(stream, "seekable", None)
    return seekable is not None and bool(seekable())


class Going:
    """A stream, and where it stands.

    Args:
        stream: a stream at its first byte.

    Attributes:
        stream: what to read from; another one after a request of its own.
        offset: of the next byte.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.offset = 0
        self._seeks = can_seek(stream)
        self._restarts = not self._seeks and getattr(stream, "restarted", None) is not None

    def reaches(self, offset: int) -> bool:
        """Tell whether an offset can be gone to in less time than reading up to it takes, and back."""
        return self._seeks or (self._restarts and offset > RESTART_BYTES)

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes."""
        content: bytes = self.stream.read(size)
        self.offset += len(content)
        return content

    def to(self, offset: int) -> None:
        """Go to an offset.

        Args:
            offset: of the next byte to read.

        Raises:
            NoRandomAccess: it lies behind, and the source cannot go back.
            Truncated: the source ends before it.
            SourceError: the store refuses, or the object is another one by now.
        """
        if offset == self.offset:
            return
        if self._seeks:
            self.stream.seek(offset)
            self.offset = offset
        elif not 0 <= offset - self.offset <= RESTART_BYTES and self._restarts:
            before, after = self.stream, self.stream.restarted(offset)
            if after is None:
                self._restarts = False
                self.to(offset)
                return
            before.close()
            self.stream, self.offset = after, offset
        elif offset < self.offset:
            raise NoRandomAccess("the source can be read front to back only", offset=offset)
        else:
            self._read_on(offset)

    def _read_on(self, offset: int) -> None:
        while self.offset < offset:
            if not self.read(min(_PIECE, offset - self.offset)):
                raise errors.Truncated("the shard ends before the sample to resume at: it has changed", offset=offset)
