"""Local files as streams.

Flows in: a path or ``file:`` url. Flows out: an open file, unbuffered for the shard reader (it reads in large pieces
itself) and buffered for ``gopen``. Every error names the path.
"""

import io
import os
import re
import stat
from typing import Any, BinaryIO

from webdataset.ground import settings
from webdataset.ground.errors import NotFound, SourceError, UsageError

from .stream import FileIdentity, file_identity

_LOCAL_HOSTS = ("", "localhost")


def path_of(url: str) -> str:
    """Return the path that a ``file:`` url names: ``file:rel``, ``file:/abs``, ``file:///abs``.

    Args:
        url: the url. Percent escapes are decoded, unless only a file with the undecoded name exists.

    Raises:
        UsageError: it names a host other than this one.
    """
    rest = url[len("file:") :]
    if rest.startswith("//"):
        host, slash, tail = rest[2:].partition("/")
        if host.lower() not in _LOCAL_HOSTS:
            raise UsageError(f"names the host {host!r}: write file:relative/path or file:///absolute/path", url=url)
        rest = slash + tail
    if "%" not in rest:
        return rest
    import urllib.parse  # noqa: PLC0415  only where something is escaped

    decoded = urllib.parse.unquote(rest)
    return rest if rest != decoded and os.path.lexists(rest) and not os.path.lexists(decoded) else decoded


def nameable(name: str) -> bool:
    """Tell whether a file or url could have this name; names of files that are no UTF-8 may.

    Args:
        name: what somebody wrote.
    """
    try:
        return b"\0" not in name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


class LocalFile(io.FileIO):
    """A local file, opened for reading. Never gives bytes that were written after it was opened.

    Args:
        path: the file.

    Attributes:
        identity: size and time of the last change when it was opened; None where it is no regular file.

    Raises:
        OSError: it cannot be opened.
        ValueError: no file can have this name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "rb")
        status = os.fstat(self.fileno())
        self.identity: FileIdentity | None = file_identity(status) if stat.S_ISREG(status.st_mode) else None

    def _check(self) -> None:
        if self.identity is not None:
            self.identity.check(self.fileno(), os.fsdecode(self.name))

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes, all the rest where ``size`` is negative, ``b""`` at the end.

        Raises:
            ShardChanged: the file has been written to since it was opened; these bytes may be old or new.
        """
        content = super().read(size)
        self._check()
        return content

    def readall(self) -> bytes:
        """Return the rest; raises as ``read`` does."""
        content = super().readall()
        self._check()
        return content

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, in part or whole; returns the number of bytes, 0 at the end. Raises as ``read`` does."""
        count = super().readinto(buffer)
        self._check()
        return count


def open_raw(path: str | os.PathLike[str]) -> LocalFile:
    """Open a local file for the shard reader: one system call a read, nothing copied twice.

    Args:
        path: the file.

    Raises:
        NotFound: no such file.
        SourceError: it cannot be opened (a directory, no permission).
        UsageError: no file can have this name.
    """
    try:
        return LocalFile(path)
    except OSError as error:
        raise refused(error, path) from error
    except ValueError as error:
        raise unnameable(path) from error


def open_buffered(path: str | os.PathLike[str], mode: str = "rb") -> BinaryIO:
    """Open a local file as ``gopen`` does, with a buffer of ``GOPEN_BUFFER`` bytes.

    Args:
        path: the file.
        mode: ``rb`` or ``wb``.

    Raises:
        NotFound: no such file.
        SourceError: it cannot be opened.
        UsageError: no file can have this name.
    """
    try:
        stream: Any = open(path, mode, buffering=settings.GOPEN_BUFFER.get())  # noqa: SIM115, PTH123  the caller closes
    except OSError as error:
        raise refused(error, path) from error
    except ValueError as error:
        raise unnameable(path) from error
    return stream  # type: ignore[no-any-return]


def refused(error: OSError, path: str | os.PathLike[str]) -> SourceError:
    """Return the error to raise where the operating system refused a path; ``errno`` and ``filename`` are kept."""
    name = os.fspath(path)
    kind = NotFound if isinstance(error, FileNotFoundError) else SourceError
    braces = re.sub(r"\{(\d+)-(\d+)\}", r"{\1..\2}", str(name))
    hint = "" if braces == str(name) else f"; did you mean {braces!r}?"
    found = kind(f"cannot open: {error.strerror or error}{hint}", url=str(name))
    found.errno, found.strerror, found.filename = error.errno, error.strerror, name
    return found


def unnameable(path: str | os.PathLike[str]) -> UsageError:
    """Return the error to raise for a path with a null byte, or with characters that no file name can hold."""
    return UsageError(f"no file can be called {os.fspath(path)!r}: look where this name came from", url=ascii(path))
