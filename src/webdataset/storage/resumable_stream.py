"""Reads one object of any store: all bytes, each once and in order, or an error that says why not.

Whenever a connection drops, stalls or ends early, the stream requests the rest, and accepts a response only if it
begins at the current offset and has the same total and the same ETag (or version, or date). A server that ignores
ranges may send the whole object again: the stream skips the known part, if it is the same object. Anything else is
``ShardChanged`` or ``ShortRead``; never a quiet end, never a byte of another version.

A slow consumer costs nothing: time that passes between two reads is no failure. A reader that waits for a slow
connection gets further ones (:mod:`webdataset.storage.parallel_ranges`). A stream that is used after a fork requests
a connection of its own, so that two processes never read from one socket.

Retries follow :mod:`webdataset.storage.retries`.
"""

import contextlib
import io
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from webdataset.core.errors import ShortRead, SourceError
from webdataset.core.redaction import redact
from webdataset.storage import parallel_ranges
from webdataset.storage.object_store import (
    LosslessBody,
    ObjectResponse,
    ObjectVersion,
    RemoteObject,
    object_changed_error,
    update_crc32,
)
from webdataset.storage.parallel_ranges import PART_ATTEMPTS, ParallelRanges, RangeSource
from webdataset.storage.retries import ATTEMPTS, RetryableError, RetryBudget

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from webdataset.storage.object_store import ObjectBody

_IDLE_SECONDS = 5.0
_PIECE = 1 << 20


class ResumableStream(io.RawIOBase):
    """The bytes of one object, front to back, unbuffered.

    Args:
        source: the object.
        attempts: failures in a row, without progress between them, after which reading is given up.
        start: byte to begin at, before the end of the object.
        known: the object's version when the bytes before ``start`` were read; required with ``start``.
        end: byte to end before, where this is one of several connections; None for the end of the object.

    Attributes:
        chunk_bytes: that its readers ask for at most: a read costs much beside the bytes of a local file.
        ahead: whether a thread reads this before its turn: it may be interrupted, and has no further connections.
        name: the url.
        identity: the object's version.
        length: bytes of the whole object, or None where the store does not say.
        vouched: checksum of the whole object, or None where the store names none, and what computes it. It is compared
            at the end, unless reading began in the middle: then the owner of the bytes before compares it.
        resumes: number of times that the connection was resumed.

    Raises:
        NotFound: nothing is there.
        ShardChanged: the object is not the known one.
        SourceError: the store refuses, or does not answer.
    """

    # Invariants, before and after each read:
    # Every byte before _received has been given once, and no byte from it on.
    # _body is None, or its next byte is the one at _received; only the process _owner reads it or closes it.
    # Each response after the first is about the version identity, and begins at _received.
    # _crc32 is None, or all bytes before _received have entered _sum.
    # Once a read has raised an error of the source, _broken holds it, and every later read raises it.

    chunk_bytes = 768 * 1024

    def __init__(
        self,
        source: RemoteObject,
        *,
        attempts: int = ATTEMPTS,
        start: int = 0,
        known: ObjectVersion | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__()
        self.ahead = end is not None
        self.name = source.url
        self.resumes = 0
        self._source = source
        self._attempts = attempts
        self._patience = RetryBudget(attempts, source.url)
        self._failures = source.failures()
        self._received = start
        self._end = end
        self._latency_seconds = 0.0
        self._parallel: ParallelRanges | None = None
        self._interrupted = threading.Event()
        self._body: ObjectBody | None = None
        self._owner = os.getpid()
        self._broken: SourceError | None = None
        answer = self._first(known)
        self.identity = answer.identity
        self.length = answer.identity.length
        self.vouched = answer.expected_checksum()
        self._crc32, self._summing = (None, update_crc32) if start else self.vouched
        self._sum = 0
        self._body = answer.body
        large = (self.length or 0) >= 2 * parallel_ranges.ALIGNMENT_BYTES
        if end is None and large and ParallelRanges.worthwhile(answer.identity, source.url):
            ranges = RangeSource(source)
            self._parallel = ParallelRanges(answer.identity, ranges, _part_opener(ranges, answer.identity))
        self._left = time.monotonic()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {redact(self.name)} at {self._received} of {getattr(self, 'length', None)}>"

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes, all the rest where ``size`` is negative, ``b""`` at the end.

        Raises:
            ShortRead: the body ended early and could not be resumed, or fails its checksum.
            ShardChanged: the object was replaced.
            SourceError: the store refuses to give the rest.
        """
        if size is None or size < 0:
            return self.readall()
        if self.closed:
            raise ValueError("read from a closed stream")
        # a caller that swallows the first error must not take what follows for the end
        if self._broken is not None:
            raise self._broken
        try:
            return self._some(size)
        except SourceError as error:
            self._broken = error
            self._drop()
            raise

    def _some(self, size: int) -> bytes:
        end = self.length if self._end is None else self._end
        if end is not None:
            size = min(size, end - self._received)
        if size == 0:
            return b""
        if self._owner != os.getpid():
            self._adopt()
        before, began = self._left, time.monotonic()
        idle = began - before > _IDLE_SECONDS
        parallel = self._parallel
        if parallel is None:
            return self._of_connection(size, idle=idle)
        content = parallel.read(self._received, size)
        if content:
            # the first connection has come to where the others begin
            self._drop()
            self._take(content)
        else:
            content = self._of_connection(parallel.bound(self._received, size), idle=idle)
        if not self.ahead:
            parallel.note(self._received, (before, began, self._left), len(content), self._latency_seconds)
        return content

    def _of_connection(self, size: int, *, idle: bool) -> bytes:
        """Read from the connection; where it breaks off, resume it."""
        body = self._body or self._return()
        while True:
            try:
                content = body.read(size)
            except self._failures as error:
                body = self._resume(error, idle=idle)
            else:
                if content:
                    self._take(content)
                    return content
                if self.length is None:
                    return b""
                body = self._resume(None, idle=idle)
            idle = False

    def _take(self, content: bytes) -> None:
        self._received += len(content)
        if self._crc32 is not None:
            self._sum = self._summing(content, self._sum)
            if self._received == self.length and self._sum != self._crc32:
                raise ShortRead(
                    f"all {self.length} bytes came, but their checksum is not the one that the store names: they were "
                    "damaged on the way; open it again",
                    url=self.name,
                )
        self._left = time.monotonic()

    def readall(self) -> bytes:
        """Return the rest."""
        return b"".join(iter(lambda: self.read(_PIECE), b""))

    def readinto(self, buffer: "Buffer", /) -> int:
        """Fill a buffer, in part or whole; returns the number of bytes, 0 at the end."""
        view = memoryview(buffer).cast("B")
        content = self.read(len(view))
        view[: len(content)] = content
        return len(content)

    def readable(self) -> bool:
        """Tell that this can be read."""
        return True

    def tell(self) -> int:
        """Return the number of bytes read so far."""
        return self._received

    def close(self) -> None:
        """Release the connection; one whose body was read to the end is in the pool again."""
        if not self.closed:
            super().close()
            self._drop()
            parallel = self.__dict__.get("_parallel")
            if parallel is not None:
                parallel.stop()

    def interrupt(self) -> None:
        """Let a read that waits in another thread fail soon, and every later one."""
        self._interrupted.set()
        shutdown = getattr(self._body, "shutdown", None)
        if shutdown is not None:
            # the connection has ended by itself
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                shutdown()

    def reopen_at(self, offset: int) -> "ResumableStream | None":
        """Close this stream, and return one of the same object from ``offset`` on.

        Returns None, and closes nothing, where the store does not tell one version from another.
        """
        if not self.identity.provable():
            return None
        self.close()
        return ResumableStream(self._source, attempts=self._attempts, start=offset, known=self.identity)

    def rewind(self, offset: int) -> None:
        """Continue at ``offset`` in a forked child, which does not know how far its parent's thread came.

        The store's checksum is not compared any more; ETag and length are.
        """
        self._received = offset
        self._crc32 = None

    def _drop(self) -> None:
        body, self._body = self.__dict__.get("_body"), None
        # the socket belongs to the process that opened it
        if body is not None and self._owner == os.getpid():
            body.close()

    def _adopt(self) -> None:
        """Reopen the object in a forked process, which must not read its parent's socket."""
        self._drop()
        # its threads have stayed in the parent
        self._parallel = None
        self._owner = os.getpid()
        if not self.identity.provable():
            raise self._short("this stream was opened before a fork, and cannot be taken up after it")
        self._patience = RetryBudget(self._attempts, self.name)
        self._reconnect("there was a fork")

    def _first(self, known: ObjectVersion | None) -> ObjectResponse:
        """Open the object, with retries."""
        patience = self._patience
        while True:
            try:
                return self._request(self._received, known)
            except RetryableError as error:
                failure = error
            if patience.spent():
                raise SourceError(f"no answer after {patience.describe()}: {failure}{patience.hint()}", url=self.name)
            self._wait(failure)

    def _request(self, offset: int, known: ObjectVersion | None) -> ObjectResponse:
        """Send one request; check that the response begins where it should."""
        began = time.monotonic()
        if self._end is None:
            answer = self._source.open_at(offset, known)
        else:
            answer = self._source.open_at(offset, known, self._end - offset)
        answer = answer._replace(body=LosslessBody(answer.body, self._failures))
        self._latency_seconds = time.monotonic() - began
        if known is None:
            if answer.start == offset:
                return answer
        elif known.same(answer.identity):
            if answer.start == offset:
                return answer
            if self._end is not None:
                answer.body.close()
                raise SourceError("the server ignores ranges", url=self.name)
            if answer.start == 0 and self._skip_head(answer.body, offset):
                return answer
        elif known.contradicts(answer.identity):
            answer.body.close()
            raise object_changed_error(self.name, self._received)
        answer.body.close()
        raise RetryableError("the server answered with something else than the bytes that it was asked for")

    def _skip_head(self, body: "ObjectBody", count: int) -> bool:
        """Read past what is known already of an answer that holds the whole object."""
        while count:
            try:
                piece = body.read(min(count, _PIECE))
            except self._failures as error:
                body.close()
                raise RetryableError(_describe_error(error)) from None
            if not piece:
                return False
            count -= len(piece)
        return True

    def _resume(self, cause: Exception | None, *, idle: bool) -> "ObjectBody":
        """Request the rest of the same object, or raise."""
        self._drop()
        if self._interrupted.is_set():
            raise self._short("its reader has left") from cause
        if not self.identity.provable():
            raise self._short(
                "the server gives no length and ETag or date by which the rest could be asked for"
            ) from cause
        # servers close connections that are not read from
        if idle:
            self._patience = RetryBudget(self._attempts, self.name)
        self._patience.progress(self._received)
        return self._reconnect("the connection ended early" if cause is None else _describe_error(cause))

    def _return(self) -> "ObjectBody":
        """Request the rest after parallel ranges: nothing has failed, so there is no pause."""
        try:
            body: ObjectBody = self._request(self._received, self.identity).body
        except RetryableError:
            return self._resume(None, idle=True)
        self._body = body
        return body

    def _reconnect(self, problem: str) -> "ObjectBody":
        wish: RetryableError | None = None
        while not self._patience.spent():
            self._wait(wish)
            try:
                answer = self._request(self._received, self.identity)
            except RetryableError as error:
                wish, problem = error, str(error)
                continue
            self.resumes += 1
            body: ObjectBody = answer.body
            self._body = body
            return body
        patience = self._patience
        raise self._short(
            f"{patience.describe()} to take it up again gave nothing; the last time {problem}{patience.hint()}"
        )

    def _wait(self, error: RetryableError | None) -> None:
        wait = self._interrupted.wait if self.ahead else None
        self._patience.pause(None if error is None else error.wait_seconds, wait)
        if self._interrupted.is_set():
            raise self._short("its reader has left")
        if error is not None and error.expired:
            self._source.refresh()

    def _short(self, reason: str) -> ShortRead:
        promised = "an unknown number of" if self.length is None else self.length
        return ShortRead(f"the body ended after {self._received} of {promised} bytes, and {reason}", url=self.name)


def _part_opener(source: RemoteObject, identity: ObjectVersion) -> Callable[[int, int], ResumableStream]:
    """Return what opens parts of an object, and does not keep the stream of the whole alive."""
    return lambda start, end: ResumableStream(source, attempts=PART_ATTEMPTS, start=start, known=identity, end=end)


def _describe_error(error: Exception) -> str:
    return redact(f"{type(error).__name__}: {error}")
