"""Streams of bytes: their length and identity, and which of them belong to other code.

A stream is any object with ``read``. The tar reader asks whether a stream knows how many bytes it owes, to judge an
archive without its end mark; a saved state keeps which version of which object the stream reads, to recognise a shard
that was replaced.
"""

import contextlib
import io
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, Self

from webdataset.core.errors import ShardChanged, UsageError

_SECOND_NS = 1_000_000_000

LOCAL_GAP_BYTES = 64 * 1024
"""Bytes of a file that take as long to read as going past them to read on."""


class Stream(Protocol):
    """Bytes of one url, read front to back.

    ``read(n)`` returns 1 to ``n`` bytes, or ``b""`` at the end; a source that fails or ends early raises instead of
    returning ``b""``. ``read()`` returns the rest. ``close()`` may be called at any time and twice; closing early
    is silent. A stream may further have ``readinto``, ``seekable``/``seek``, ``name`` (its url), ``length`` (the
    total number of bytes that it vouches for, or None) and ``identity`` (which object it reads: something with
    ``length`` and ``validator()``, see :func:`identity_of`; it outlives ``close``).
    """

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes, all the rest where ``size`` is negative, ``b""`` at the end."""
        ...

    def close(self) -> None:
        """Give back descriptor, connection or child process."""
        ...


def read_full(read: Callable[[int], bytes], size: int) -> bytes:
    """Return ``size`` bytes, fewer only at the end.

    Args:
        read: returns up to so many bytes, nothing at the end.
        size: how many are wanted.
    """
    content = read(size)
    while 0 < len(content) < size and (more := read(size - len(content))):
        content += more
    return content


def stream_length(stream: object) -> int | None:
    """Return the length in bytes that a stream vouches for, or None where it does not know.

    Its attribute ``length`` decides; open regular files are asked for their size. A decompressor over a file is not
    asked: its descriptor tells the compressed size.
    """
    if isinstance(stream, BorrowedStream):
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


def length_known(stream: object) -> bool:
    """Tell whether a stream knows how many bytes it owes, so that a clean end is a verified end.

    True for regular local files and for HTTP bodies whose Content-Length is verified; False for pipes, stdin from a
    pipe and objects that cannot say.
    """
    return stream_length(stream) is not None


class StreamIdentity(Protocol):
    """Which object a stream reads."""

    @property
    def length(self) -> int | None:
        """Bytes of the object as it is stored."""
        ...

    def validator(self) -> str | None:
        """Return what changes when the object is replaced."""
        ...


class FileIdentity(NamedTuple):
    """Which version of a local file was opened: its bytes, and the time of its last change in nanoseconds.

    Never the inode: a copy of a file is the same shard.
    """

    length: int
    changed_ns: int

    def validator(self) -> str:
        """Return the time of the last change, in nanoseconds, as text."""
        return str(self.changed_ns)

    def check(self, descriptor: int, url: str | bytes | os.PathLike[str], offset: int | None = None) -> None:
        """Raise where an open file has been written to since it was opened.

        A file that takes the name of this one does not matter, nor do further names, owners and permissions. Where a
        file system keeps times of whole seconds, or caches them (NFS), a change within that time is seen late.

        Raises:
            ShardChanged: it is larger, smaller or younger than it was.
        """
        status = os.fstat(descriptor)
        size, changed_ns = status.st_size, status.st_mtime_ns
        if size == self.length and changed_ns == self.changed_ns:
            return
        # some file systems forget the fraction of a second once the file leaves their memory
        if size == self.length and changed_ns == self.changed_ns // _SECOND_NS * _SECOND_NS:
            return
        seen = f"its size went from {self.length} to {size} bytes" if size != self.length else "its mtime changed"
        raise ShardChanged(
            f"the file was overwritten while it was being read ({seen}): read it again, and put new contents into a "
            "new file that is renamed to this one",
            url=os.fsdecode(url),
            offset=offset,
        )


def stream_identity(stream: object) -> tuple[int | None, str | None]:
    """Return which object a stream reads: how large it is as it is stored, and what changes when it is replaced.

    Sends no request: it tells what is known since the stream was opened. Streams of this library tell it after
    ``close`` too.

    Args:
        stream: any object with ``read``.

    Returns:
        The size in bytes of the stored (perhaps compressed) object, and its validator: for local files the time of the
            last change in nanoseconds; for objects, cached or not, the strong ETag, else the version or generation,
            else the date, as the store writes it. Both are None for pipes and for objects that do not say.
    """
    if isinstance(stream, BorrowedStream):
        stream = stream.kept
    identity = getattr(stream, "identity", None)
    if not callable(getattr(identity, "validator", None)):
        identity = _foreign_identity(stream)
    if identity is None:
        return stream_length(stream), None
    return identity.length, identity.validator()


def identify_file(stream: object) -> tuple[int | None, str | None] | None:
    """Return the identity of an open file, or of bytes in memory, of Python's own; None for other streams.

    These tell nothing once they are closed.
    """
    kept = stream.kept if isinstance(stream, BorrowedStream) else stream
    if isinstance(kept, io.FileIO | io.BufferedReader | io.BufferedRandom | io.BytesIO):
        return stream_identity(stream)
    return None


def _foreign_identity(stream: object) -> StreamIdentity | None:
    """Return the identity of a stream that other code opened: of fsspec, or a file; None for anything else."""
    facts = getattr(stream, "_details", None)
    if isinstance(facts, dict) and hasattr(stream, "fs"):
        # an open file of fsspec: this module is imported already where the library opens such objects by itself
        from webdataset.storage.backends.fsspec_store import parse_version  # noqa: PLC0415

        return parse_version(facts)
    # a spooled file answers by moving to the disk
    if hasattr(stream, "rollover"):
        return None
    try:
        status = os.fstat(stream.fileno())  # type: ignore[attr-defined]  # see below
    except (AttributeError, TypeError, ValueError, OSError):
        return None
    return file_identity(status) if stat.S_ISREG(status.st_mode) else None


def file_identity(status: os.stat_result) -> FileIdentity:
    """Return the identity of a regular file, from its status."""
    return FileIdentity(status.st_size, status.st_mtime_ns)


class BorrowedStream:
    """A stream that belongs to other code: everything passes through except ``close``, which only flushes."""

    def __init__(self, stream: object) -> None:
        self.kept = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  as the stream has it
        """Pass on to the stream."""
        if name == "kept":
            raise AttributeError(name)
        return getattr(self.kept, name)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.kept)  # type: ignore[call-overload, no-any-return]

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


class Opener(Protocol):
    """What opens urls of a scheme, as an entry of ``gopen_schemes``: ``opener(url, mode, bufsize, **options)``.

    It takes the url as it is after rewriting, ``rb`` or ``wb``, a size that it may ignore, and the keyword arguments of
    ``gopen``; it returns a stream to read from, or to write to.
    """

    def __call__(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  user functions have parameters of their own
        """Open a url."""
        ...


class ForeignOpener:
    """Opens what is not this library's: a stream that is open already, a url by a program's own ``gopen``."""

    __slots__ = ("give",)

    def __init__(self, give: Callable[[str], object]) -> None:
        self.give = give

    def __call__(self, _url: str, mode: str = "rb", *_arguments: object, **_options: object) -> object:
        """Return the stream."""
        return self.give(mode)


def borrow_stream(stream: object, mode: str) -> BorrowedStream:
    """Return a stream that stays open when it is closed; None is stdin or stdout, as they are now.

    Raises:
        UsageError: it cannot be read from, or written to.
    """
    if stream is None:
        return BorrowedStream(sys.stdin.buffer if mode == "rb" else sys.stdout.buffer)
    if not hasattr(stream, "read" if mode == "rb" else "write"):
        raise UsageError(f"a url is a str or a Path, not {type(stream).__name__}")
    return BorrowedStream(stream)


_LOCAL_HOSTS = ("", "localhost")
_DRIVE = re.compile(r"/{0,3}([A-Za-z]:)(?:[/\\]|$)")


def path_of(url: str) -> str:
    """Return the path that a ``file:`` url names: ``file:rel``, ``file:/abs``, ``file:///abs``.

    Percent escapes are decoded, unless only a file with the undecoded name exists. On Windows also ``file:D:/abs``,
    with any slashes before the letter.

    Raises:
        UsageError: it names a host other than this one.
    """
    rest = url[len("file:") :]
    drive = _DRIVE.match(rest) if os.name == "nt" else None
    if drive is not None:
        rest = rest[drive.start(1) :]
    elif rest.startswith("//"):
        host, slash, tail = rest[2:].partition("/")
        if host.lower() not in _LOCAL_HOSTS:
            raise UsageError(f"names the host {host!r}: write file:relative/path or file:///absolute/path", url=url)
        rest = slash + tail
    if "%" not in rest:
        return rest
    import urllib.parse  # noqa: PLC0415  only where something is escaped

    decoded = urllib.parse.unquote(rest)
    return rest if rest != decoded and os.path.lexists(rest) and not os.path.lexists(decoded) else decoded


def is_nameable(name: str) -> bool:
    """Tell whether a file or url could have this name; names of files that are no UTF-8 may."""
    try:
        return b"\0" not in name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
