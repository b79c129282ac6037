"""A stream that moves to an offset by seeking, by a new request to the store, or by reading up to it.

It never goes back where that is impossible.
"""

from typing import Protocol, cast

from webdataset.core import errors
from webdataset.core.errors import NoRandomAccess

# what may be read in the time that one more request takes
RESTART_BYTES = 256 * 1024
_PIECE = 1 << 18


def can_seek(stream: object) -> bool:
    """Tell whether a stream can seek."""
    seekable = getattr(stream, "seekable", None)
    return seekable is not None and bool(seekable())


class _Stream(Protocol):
    """What is read from; not all can seek or be asked for again."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, /) -> int: ...
    def reopen_at(self, offset: int, /) -> "_Stream | None": ...
    def close(self) -> None: ...


class SeekableSource:
    """A stream from its first byte on, and where it stands.

    Attributes:
        stream: what to read from; another one after a request of its own.
        offset: of the next byte.
    """

    def __init__(self, stream: object) -> None:
        self.stream = cast("_Stream", stream)
        self.offset = 0
        self._seeks = can_seek(stream)
        self._restarts = not self._seeks and getattr(stream, "reopen_at", None) is not None

    def reaches(self, offset: int) -> bool:
        """Tell whether an offset can be gone to in less time than reading up to it takes, and back."""
        return self._seeks or (self._restarts and offset > RESTART_BYTES)

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes."""
        content = self.stream.read(size)
        self.offset += len(content)
        return content

    def to(self, offset: int) -> None:
        """Go to an offset.

        Raises:
            NoRandomAccess: it lies before this one, and the source cannot go back.
            Truncated: the source ends before it.
            SourceError: the store refuses, or the object was replaced.
        """
        if offset == self.offset:
            return
        if self._seeks:
            self.stream.seek(offset)
            self.offset = offset
        elif not 0 <= offset - self.offset <= RESTART_BYTES and self._restarts:
            before, after = self.stream, self.stream.reopen_at(offset)
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
