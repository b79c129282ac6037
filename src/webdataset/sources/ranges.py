"""Positioned reads: some bytes of a shard, from anywhere in it.

Flows in: a url, then offsets and sizes. Flows out: those bytes. Local files are read by ``pread``, objects of stores
(http, s3, ssh …) by :class:`ObjectRanges`, each of whose answers proves that it is about the same object. Sources that
cannot do this say so with :class:`NoRandomAccess`. Safe after a fork: no position is shared.
"""

import logging
import os
import stat
import threading
from collections.abc import Callable
from typing import Any, Protocol, Self

from webdataset.ground import settings
from webdataset.ground.errors import NoRandomAccess, ShardChanged, UsageError
from webdataset.ground.redaction import redacted

from . import files
from .object_ranges import ObjectRanges
from .open import opener_of, refuse_options
from .rewrite import rewritten
from .stores import object_of
from .stream import file_identity

_pread: Callable[[int, int, int], bytes] | None = getattr(os, "pread", None)  # not on every system

log = logging.getLogger("webdataset")


class Ranges(Protocol):
    """A source that can be read anywhere.

    Attributes:
        url: what is read.
        length: bytes of it.
        latency_bytes: how many bytes could be read in the time that one more read takes: gaps smaller than this are
            read rather than left out.
    """

    url: str
    length: int
    latency_bytes: int

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on; fewer only at the end."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


class LocalRanges:
    """A local file.

    Args:
        path: the file.
        url: what the user calls it.

    Attributes:
        identity: size and time of the last change when it was opened.
        walked: whether all headers of this open file have been verified.

    Raises:
        NotFound: no such file.
        NoRandomAccess: it is no regular file (a named pipe, a device).
        SourceError: it cannot be opened.
    """

    latency_bytes = 16 * 1024
    walked = False

    def __init__(self, path: str, url: str | None = None) -> None:
        self.url = url or path
        self._path = path
        self._stream = files.open_raw(path)
        self._lock = threading.Lock()
        status = os.fstat(self._stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            self._stream.close()
            raise NoRandomAccess("not a regular file: it can be read front to back only", url=self.url)
        self.length = status.st_size
        self.identity = file_identity(status)
        self._descriptor = self._stream.fileno()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes from a place.

        Args:
            offset: where, in bytes.
            size: how many.

        Raises:
            ShardChanged: the file has been written to since it was opened.
            SourceError: the system refuses.
        """
        size = min(size, self.length - offset)
        if size <= 0:
            return b""
        try:
            piece = _pread(self._descriptor, size, offset) if _pread is not None else self._sought(size, offset)
            while len(piece) < size:  # a large read may come in parts
                more = self._sought(size - len(piece), offset + len(piece))
                if not more:
                    break
                piece += more
            self.identity.check(self._descriptor, self.url, offset)
        except ShardChanged:
            raise
        except OSError as error:
            raise files.refused(error, self._path) from error
        return piece

    def _sought(self, size: int, offset: int) -> bytes:
        if _pread is not None:
            return _pread(self._descriptor, size, offset)
        with self._lock:
            self._stream.seek(offset)
            return self._stream.read(size) or b""

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def __del__(self) -> None:
        """Close the file when the last reader has let go of it."""
        stream = self.__dict__.get("_stream")
        if stream is not None:
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def local_path(url: str | os.PathLike[str], *, level: str | None = None) -> str | None:
    """Return the local path that a url means, or None where it is not local.

    Args:
        url: a url or path as the user wrote it; rewriting applies.
        level: a trust level that a dataset names.
    """
    if not isinstance(url, str):
        return os.fsdecode(url)
    target = rewritten(url, level=level)
    if target == "-" or opener_of(target) is not None:
        return None
    return files.path_of(target) if target[:5].lower() == "file:" else target


def open_ranges(
    url: str | os.PathLike[str], *, level: str | None = None, storage_options: Any = None
) -> LocalRanges | ObjectRanges:
    """Open a url for positioned reads.

    Args:
        url: a url or path.
        level: a trust level that a dataset names.
        storage_options: what urls of stores are opened with; see :mod:`webdataset.sources.profiles.options`.

    Raises:
        NoRandomAccess: a scheme, or a server, that gives bytes front to back only.
        NotFound: nothing is there.
        SourceError: it cannot be opened.
        UsageError: not a url.
    """
    if not isinstance(url, str | os.PathLike):
        raise UsageError(f"a url is a str or a Path, not {type(url).__name__}")
    path = local_path(url, level=level)
    if path is not None:
        return LocalRanges(path, os.fspath(url))
    target = rewritten(os.fspath(url), level=level)
    opener = opener_of(target)
    if opener is not None:
        refuse_options(target, opener, storage_options)
    if settings.GOPEN_VERBOSE.get():
        log.warning("open for random access %s", redacted(target))
    source = object_of(target, storage_options)
    if source is None:
        raise NoRandomAccess(
            f"{target.partition(':')[0]}: urls are read front to back only: for random access use a local file, or a "
            "url of a store (http, s3, gs, az …)",
            url=target,
        )
    return ObjectRanges(source)
