"""Positioned reads: some bytes of a shard, from anywhere in it.

Flows in: a url, then offsets and sizes. Flows out: those bytes. Local files are read by ``pread``, http(s) by range
requests, each of which proves that it is about the same object (``If-Match``, and the ETag and total length of the
answer). Sources that cannot do this say so with :class:`NoRandomAccess`. Safe after a fork: no position is shared.
"""

import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, Self

from webdataset.ground import settings
from webdataset.ground.errors import NoRandomAccess, ShardChanged, ShortRead, SourceError, UsageError
from webdataset.ground.redaction import redacted

from . import connections, files, http
from .object_ranges import ObjectRanges
from .open import gopen_http, opener_of, refuse_options
from .rewrite import rewritten
from .stores import object_of

_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,19})-[0-9]{1,19}|\*)/([0-9]{1,19})$")
_TRIES = 4
_PARTIAL: Final = 206
_BEYOND: Final = 416
_CHANGED: Final = 412

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
        self._descriptor = self._stream.fileno()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes from a place.

        Args:
            offset: where, in bytes.
            size: how many.

        Raises:
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


class HttpRanges:
    """An object on a web server.

    Args:
        url: an http or https url.
        head: bytes to ask for at once, from the start; they are kept for the first reads.

    Attributes:
        requests: requests sent so far.
        received: bytes of body received so far.

    Raises:
        NotFound: nothing is there.
        NoRandomAccess: the server ignores ranges.
        SourceError: it refuses, or does not answer.
    """

    latency_bytes = 64 * 1024

    def __init__(self, url: str, *, head: int = 64 * 1024) -> None:
        self.url = url
        self.requests = self.received = 0
        self._timeouts = (http.CONNECT_SECONDS, http.READ_SECONDS)
        self._etag: str | None = None
        self._modified: str | None = None
        self.length = -1
        self._head = b""
        self._head = self.read_at(0, head)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes from a place.

        Args:
            offset: where, in bytes.
            size: how many.

        Raises:
            ShardChanged: the object is another one by now.
            ShortRead: the server gave less than it said, several times.
            SourceError: it refuses, or does not answer.
        """
        size = min(size, self.length - offset) if self.length >= 0 else size
        if size <= 0:
            return b""
        if offset + size <= len(self._head):
            return self._head[offset : offset + size]
        pieces: list[bytes] = []
        missing, failures = size, 0
        while missing > 0:
            got = self._request(offset + size - missing, missing, pieces)
            if self.length >= 0:
                missing = min(missing, max(0, self.length - offset - size + missing))
            missing -= got
            failures = 0 if got else failures + 1
            if missing > 0 and failures >= _TRIES:
                raise ShortRead(
                    f"the server ended {missing} bytes before the end of the range at byte {offset}, several times",
                    url=self.url, offset=offset,
                )  # fmt: skip
            if missing > 0 and failures:
                time.sleep(http.FIRST_DELAY_SECONDS * failures)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _request(self, offset: int, size: int, pieces: list[bytes]) -> int:
        """Ask once; return how many bytes came."""
        wanted = {"Range": f"bytes={offset}-{offset + size - 1}", **self._condition()}
        response = http.answered(self.url, wanted, self._timeouts, also=(_BEYOND, _CHANGED))
        self.requests += 1
        got = 0
        try:
            self._check(response, offset)
        except SourceError:
            response.close()
            raise
        try:
            while got < size and response.status == _PARTIAL:
                piece = response.read(size - got, decode_content=False)
                if not piece:
                    break
                pieces.append(piece)
                got += len(piece)
        except connections.failures() as error:
            log.debug("a range request broke off: %s", redacted(str(error)))
        finally:
            self.received += got
            if got == size and response.length_remaining == 0:  # an answer that has more would be read as the next one
                response.release_conn()
            else:
                response.close()
        return got

    def _condition(self) -> dict[str, str]:
        if self._etag is not None:
            return {"If-Match": self._etag}
        return {"If-Unmodified-Since": self._modified} if self._modified is not None else {}

    def _check(self, response: Any, offset: int) -> None:
        """Refuse an answer that is not about this range of this object; learn who it is from the first one."""
        if response.status == _CHANGED:
            raise ShardChanged("the object has been replaced on the server since it was opened", url=self.url)
        found = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        if response.status not in (_PARTIAL, _BEYOND) or found is None:
            raise NoRandomAccess(
                f"the server answers a range request with status {response.status}: it can be read front to back only",
                url=self.url,
            )
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise NoRandomAccess(
                f"the server compresses what it sends ({encoding}), so that no range of it is one of the shard: it can "
                "be read front to back only",
                url=self.url,
            )
        etag, modified = response.headers.get("ETag"), response.headers.get("Last-Modified")
        etag = None if etag is None or etag.startswith("W/") else etag
        total = int(found[2])
        if self.length < 0:
            self._etag, self._modified, self.length = etag, modified, total
        elif total != self.length or (etag, modified) != (self._etag, self._modified):
            raise ShardChanged("the object has been replaced on the server since it was opened", url=self.url)
        if response.status == _PARTIAL and (found[1] is None or int(found[1]) != offset):
            raise NoRandomAccess(f"the server answers with another range than the one at byte {offset}", url=self.url)

    def close(self) -> None:
        """Forget what was kept; connections belong to the pool."""
        self._head = b""

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
) -> LocalRanges | HttpRanges | ObjectRanges:
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
    if opener is gopen_http:
        return HttpRanges(target)
    if source is None:
        raise NoRandomAccess(
            f"{target.partition(':')[0]}: urls are read front to back only: for random access use a local file, or a "
            "url of a store (http, s3, gs, az …)",
            url=target,
        )
    return ObjectRanges(source)
