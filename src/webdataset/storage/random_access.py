"""Positioned reads: some bytes at any offset of a local file or a remote object.

Local files are read by ``pread``; objects of stores (http, s3, sftp, ...) by :class:`ObjectRanges`. Each of its
responses must begin where it was requested and be about the same object; what breaks off is requested again from
there. Sources that cannot do this raise :class:`~webdataset.core.errors.NoRandomAccess`. Safe after a fork and from
several threads: no position and no connection is kept between two reads.
"""

import io
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

from webdataset.core import settings
from webdataset.core.errors import NoRandomAccess, ShardChanged, ShortRead, SourceError, UsageError
from webdataset.core.redaction import redact
from webdataset.storage.local_files import open_raw
from webdataset.storage.object_store import (
    LosslessBody,
    ObjectResponse,
    ObjectVersion,
    RemoteObject,
    object_changed_error,
)
from webdataset.storage.open_url import resolve_url
from webdataset.storage.retries import ATTEMPTS, RetryableError, RetryBudget

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LATENCY_BYTES = 256 * 1024


class ObjectRanges:
    """An object that is read anywhere.

    Args:
        source: the object.
        head: bytes to request at once, from the start; they are kept for the first reads.
        attempts: failures in a row after which a read is given up.

    Attributes:
        requests: requests sent so far.
        received: bytes of body received so far.
        latency_bytes: how many bytes could be read in the time that one more request takes.

    Raises:
        NotFound: nothing is there.
        NoRandomAccess: the service ignores ranges.
        SourceError: it refuses, or does not answer.
    """

    def __init__(self, source: RemoteObject, *, head: int = 64 * 1024, attempts: int = ATTEMPTS) -> None:
        self.url = source.url
        self.latency_bytes: int = getattr(source, "latency_bytes", LATENCY_BYTES)
        self.requests = self.received = 0
        self._source = source
        self._attempts = attempts
        self._failures = source.failures()
        self._known: ObjectVersion | None = None
        self.length = -1
        self._head = b""
        self._head = self.read_at(0, head)

    @property
    def identity(self) -> ObjectVersion | None:
        """Who the object is."""
        return self._known

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on; fewer only at the end of the object.

        Raises:
            ShardChanged: the object was replaced.
            ShortRead: the service gave less than it said, several times.
            SourceError: it refuses, or does not answer.
        """
        size = min(size, self.length - offset) if self.length >= 0 else size
        if size <= 0:
            return b""
        if offset + size <= len(self._head):
            return self._head[offset : offset + size]
        pieces: list[bytes] = []
        patience, got = RetryBudget(self._attempts, self.url), 0
        while got < size:
            try:
                answer = self._request(offset + got, size - got)
                if answer is None:
                    return b""
                size = min(size, self.length - offset)
                before, got = got, got + self._drain(answer, size - got, pieces)
                patience.progress(got)
                wish, reason = None, f"{got - before} bytes came"
            except RetryableError as error:
                wish, reason = error, str(error)
            if got < size:
                self._wait(patience, wish, reason, offset + got)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _wait(self, patience: RetryBudget, wish: RetryableError | None, reason: str, offset: int) -> None:
        if patience.spent():
            kind = SourceError if self._known is None else ShortRead
            raise kind(
                f"{patience.describe()} to read a range gave nothing; the last time: {reason}{patience.hint()}",
                url=self.url,
                offset=offset,
            )
        patience.pause(None if wish is None else wish.wait_seconds)
        if wish is not None and wish.expired:
            self._source.refresh()

    def _request(self, offset: int, size: int) -> ObjectResponse | None:
        """Ask once; learn who the object is from the first answer. None where the first answer says: it is empty."""
        self.requests += 1
        try:
            answer = self._source.open_at(offset, self._known, size)
        except ShardChanged:
            if self._known is None and self._empty():
                return None
            raise
        if answer.start == offset and self._known is not None and _is_same_object(self._known, answer.identity):
            return answer
        if self._known is None and self._is_range(answer, offset, size) and answer.identity.length is not None:
            self._known, self.length = answer.identity, answer.identity.length
            return answer
        answer.body.close()
        if self._known is not None and self._known.contradicts(answer.identity):
            raise object_changed_error(self.url, offset)
        if self._known is None:
            raise NoRandomAccess("the service does not answer range requests: read it front to back", url=self.url)
        raise RetryableError("the service answered with something else than the range that it was asked for")

    def _is_range(self, answer: ObjectResponse, offset: int, size: int) -> bool:
        """Tell whether the first answer shows that ranges are heeded; some sources judge that themselves."""
        if answer.start != offset or answer.size is None:
            return False
        return answer.size <= size or bool(getattr(self._source, "judges_ranges", False))

    def _empty(self) -> bool:
        """Tell whether the object has no bytes: services refuse any range of it."""
        answer = self._source.open_at(0, None)
        answer.body.close()
        if answer.identity.length == 0:
            self._known, self.length = answer.identity, 0
        return self.length == 0

    def _drain(self, answer: ObjectResponse, size: int, pieces: list[bytes]) -> int:
        """Read an answer's body; return how many bytes came."""
        got, body = 0, LosslessBody(answer.body, self._failures)
        try:
            while got < size and (piece := body.read(size - got)):
                pieces.append(piece)
                got += len(piece)
        except self._failures as error:
            if not got:
                raise RetryableError(redact(f"{type(error).__name__}: {error}")) from error
        finally:
            self.received += got
            # a connection with a rest in it would be read as the next answer
            if got < size or answer.size != got:
                answer.body.close()
        return got

    def close(self) -> None:
        """Forget what was kept."""
        self._head = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_head": b""}


def _is_same_object(known: ObjectVersion, answered: ObjectVersion) -> bool:
    """Tell whether an answer is about the object known; where a server never says more, by its length alone."""
    if known.provable():
        return known.same(answered)
    # one that names its version may be of another than the first, which did not
    return known.length == answered.length and answered.validator() is None


# not on every system
_pread: Callable[[int, int, int], bytes] | None = getattr(os, "pread", None)

log = logging.getLogger("webdataset")


class RandomAccess(Protocol):
    """A source that can be read anywhere.

    Attributes:
        url: what is read.
        length: bytes of it.
        latency_bytes: a gap smaller than this is read rather than left out.
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
    """A local file, which ``url`` names in messages.

    Attributes:
        identity: size and time of the last change when it was opened.
        walked: whether all headers of this open file have been verified.
        descriptor: of the open file.
        mapped: a memoryview of all of it; None where it was not mapped.

    Raises:
        NotFound: no such file.
        NoRandomAccess: it is no regular file (a named pipe, a device).
        SourceError: it cannot be opened.
    """

    latency_bytes = 16 * 1024
    walked = False
    mapped: memoryview | None = None

    def __init__(self, path: str, url: str | None = None) -> None:
        self.url = url or path
        self._stream = open_raw(path)
        self._lock = threading.Lock()
        identity = self._stream.identity
        if identity is None:
            self._stream.close()
            raise NoRandomAccess("not a regular file: it can be read front to back only", url=self.url)
        self.length, self.identity = identity.length, identity
        self.descriptor = self._stream.fileno()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on; fewer only at the end of the file.

        Raises:
            ShardChanged: the file has been written to since it was opened.
            SourceError: the system refuses, for good or after several attempts.
        """
        size = min(size, self.length - offset)
        if size <= 0:
            return b""
        piece = self._read_piece(size, offset)
        # a large read may come in parts
        while len(piece) < size and (more := self._read_piece(size - len(piece), offset + len(piece))):
            piece += more
        try:
            self.identity.check(self.descriptor, self.url, offset)
        except ShardChanged:
            raise
        except OSError as error:
            self._stream.retry(lambda: self.identity.check(self.descriptor, self.url, offset), error)
        return piece

    def _read_piece(self, size: int, offset: int) -> bytes:
        if _pread is None:
            with self._lock:
                self._stream.seek(offset)
                return self._stream.read(size)
        try:
            return _pread(self.descriptor, size, offset)
        except OSError as error:
            return self._stream.retry(lambda: os.pread(self.descriptor, size, offset), error)

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


def open_ranges(
    url: str | os.PathLike[str],
    *,
    level: str | None = None,
    storage_options: object = None,
    attempts: int = ATTEMPTS,
) -> LocalRanges | ObjectRanges:
    """Open a url for positioned reads.

    Args:
        url: a url or path.
        level: a trust level that a dataset names.
        storage_options: see :mod:`webdataset.storage.storage_options`.
        attempts: failures in a row after which a read of an object is given up.

    Raises:
        NoRandomAccess: a scheme, or a server, that gives bytes front to back only.
        NotFound: nothing is there.
        SourceError: it cannot be opened.
        UsageError: not a url.
    """
    if not isinstance(url, str | os.PathLike):
        raise UsageError(f"a url is a str or a Path, not {type(url).__name__}")
    resolved = resolve_url(url, level=level, storage_options=storage_options)
    path = resolved.path
    if path is not None:
        return LocalRanges(path, os.fspath(url))
    resolved.refuse_lost_options(storage_options)
    target = resolved.target
    if settings.GOPEN_VERBOSE.get():
        log.warning("open for random access %s", redact(target))
    source = resolved.remote_object()
    if source is None:
        raise NoRandomAccess(
            f"{target.partition(':')[0]}: urls are read front to back only: for random access use a local file, or a "
            "url of a store (http, s3, gs, az …)",
            url=target,
        )
    return ObjectRanges(source, attempts=attempts)


class RangeFile(io.RawIOBase):
    """A file object over positioned reads, for libraries that want a file.

    Args:
        read_at: returns so many bytes from an offset on; fewer only at the end.
        length: bytes in all.
        close: called when the file is closed.
    """

    def __init__(
        self, read_at: Callable[[int, int], bytes], length: int, close: Callable[[], object] | None = None
    ) -> None:
        super().__init__()
        self._read_at, self._length, self._close = read_at, length, close
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, which is returned.

        Args:
            offset: in bytes.
            whence: 0 from the start, 1 from here, 2 from the end.

        Raises:
            ValueError: a position before the beginning.
        """
        position = offset + (0, self._position, self._length)[whence]
        if position < 0:
            raise ValueError(f"byte {position} is before the beginning")
        self._position = position
        return position

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes.

        Args:
            size: how many; all the rest where it is None or negative.
        """
        rest = max(0, self._length - self._position)
        count = rest if size is None or size < 0 else min(size, rest)
        content = self._read_at(self._position, count) if count else b""
        self._position += len(content)
        return content

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill a buffer; return how many bytes there were.

        Args:
            buffer: takes them.
        """
        place = memoryview(buffer).cast("B")
        content = self.read(len(place))
        place[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """Close it, and what is read."""
        if not self.closed and self._close is not None:
            self._close()
        super().close()
