"""What a source gives: a stream of bytes, and what is known of its length.

Flows in: any object with ``read``. Flows out: whether the stream knows how many bytes it owes. The tar reader asks
this to judge an archive without its end mark: harmless where the transport vouches for the length (a regular file, an
HTTP body with a verified Content-Length), an error where nobody does (a pipe, stdin, a foreign object).
"""

import contextlib
import io
import os
import stat
from typing import Any, Protocol, Self


class Stream(Protocol):
    """Bytes of one url, read front to back.

    ``read(n)`` returns 1 to ``n`` bytes, or ``b""`` at the end; a source that fails or ends early raises instead of
    returning ``b""``. ``read()`` returns the rest. ``close()`` may be called at any time and twice; closing early
    is silent. A stream may further have ``readinto``, ``seekable``/``seek``, ``name`` (its url) and ``length`` (the
    total number of bytes that it vouches for, or None).
    """

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes, all the rest where ``size`` is negative, ``b""`` at the end."""
        ...

    def close(self) -> None:
        """Give back descriptor, connection or child process."""
        ...


def length_of(stream: Any) -> int | None:
    """Return the total length in bytes that a stream vouches for, or None where it does not know.

    Args:
        stream: any object with ``read``. Its attribute ``length`` decides; open regular files are asked for their size.
            A decompressor over a file is not asked: its descriptor tells the compressed size.
    """
    if isinstance(stream, Kept):
        stream = stream.kept
    length = getattr(stream, "length", None)
    if isinstance(length, int):
        return length
    if isinstance(stream, io.BytesIO):
        return stream.getbuffer().nbytes
    raw = getattr(stream, "raw", stream)
    if not isinstance(raw, io.FileIO):
        return None
    status = os.fstat(raw.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def length_known(stream: Any) -> bool:
    """Tell whether a stream knows how many bytes it owes, so that a clean end is a verified end.

    Args:
        stream: any object with ``read``.

    Returns:
        True for regular local files and for HTTP bodies whose Content-Length is verified; False for pipes, stdin from
        a pipe and objects that cannot say.
    """
    return length_of(stream) is not None


class Kept:
    """A stream that belongs to somebody else: everything passes through except ``close``, which only flushes.

    Args:
        stream: the stream (``sys.stdin.buffer``, an object the caller opened).
    """

    def __init__(self, stream: Any) -> None:
        self.kept = stream

    def __getattr__(self, name: str) -> Any:
        """Pass on to the stream."""
        if name == "kept":
            raise AttributeError(name)
        return getattr(self.kept, name)

    def __iter__(self) -> Any:
        return iter(self.kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush what was written; leave the stream open."""
        flush = getattr(self.kept, "flush", None)
        if flush is not None:
            with contextlib.suppress(ValueError):
                flush()
