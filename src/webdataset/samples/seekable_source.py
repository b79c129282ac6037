"""A stream that moves to an offset by seeking, by a new request to the store, or by reading up to it.

It never goes back where that is impossible.
"""

from errno import EINVAL
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

    Args:
        stream: at its first byte.
        keep_bytes: so many of the bytes read last are given again where the source goes back to them. The end of a
            sample shows in the header of the next one, which would cost a request to go back to.

    Attributes:
        stream: what to read from; another one after a request of its own. :meth:`release` returns it.
        offset: of the next byte.
    """

    def __init__(self, stream: object, keep_bytes: int = 0) -> None:
        self.stream = cast("_Stream", stream)
        self.offset = 0
        self._seeks = can_seek(stream)
        self._restarts = not self._seeks and getattr(stream, "reopen_at", None) is not None
        self._keep_bytes = keep_bytes if self._restarts else 0
        self._last = b""
        # how many of these come again before the stream's own
        self._again = 0

    def reaches(self, offset: int) -> bool:
        """Tell whether an offset can be gone to in less time than reading up to it takes, and back."""
        return self._seeks or (self._restarts and offset > RESTART_BYTES)

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes."""
        if self._again:
            start = len(self._last) - self._again
            content = self._last[start : start + size]
            self._again -= len(content)
        else:
            content = self.stream.read(size)
            if self._keep_bytes:
                self._last = (self._last + content)[-self._keep_bytes :]
        self.offset += len(content)
        return content

    def release(self) -> object:
        """Return the stream, which stands at ``offset``.

        Raises:
            WebDatasetError: as for :meth:`to`.
        """
        if self._again:
            offset = self.offset
            self.offset, self._again, self._last = offset + self._again, 0, b""
            self.to(offset)
        return self.stream

    def to(self, offset: int) -> None:
        """Go to an offset.

        Raises:
            NoRandomAccess: it lies before this one, and the source cannot go back.
            Truncated: the source ends before it.
            SourceError: the store refuses, or the object was replaced.
        """
        if offset == self.offset:
            return
        behind = self.offset + self._again - offset
        if 0 <= behind <= len(self._last):
            self.offset, self._again = offset, behind
        elif self._seeks:
            try:
                self.stream.seek(offset)
            except OSError as error:
                if error.errno != EINVAL:
                    raise
                # further than any file of this file system reaches
                raise errors.Truncated("the shard has no such offset", offset=offset) from error
            self.offset = offset
        elif not 0 <= offset - self.offset <= RESTART_BYTES and self._restarts:
            before, after = self.stream, self.stream.reopen_at(offset)
            if after is None:
                self._restarts = False
                self.to(offset)
                return
            before.close()
            self.stream, self.offset = after, offset
            self._last, self._again = b"", 0
        elif offset < self.offset:
            raise NoRandomAccess("the source can be read front to back only", offset=offset)
        else:
            self._read_on(offset)

    def _read_on(self, offset: int) -> None:
        while self.offset < offset:
            if not self.read(min(_PIECE, offset - self.offset)):
                raise errors.Truncated("the shard ends before the sample to resume at: it has changed", offset=offset)
