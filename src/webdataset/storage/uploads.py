"""Uploads: an object appears when it is complete, and never before.

:class:`AtomicUpload` is what all uploads share: ``close`` publishes, ``abort`` discards. After a write that failed or
was interrupted, ``close`` raises and publishes nothing: a part is lost. A copy in a forked process can neither write
nor publish, and leaves the upload of its parent alone.

:class:`MultipartUpload` sends what fits into one part as one request when the stream is closed; more goes up in parts
while it is written, a few at a time, and the last request joins them. If the program ends before that, the old object
(or none) stays. :class:`SinglePutUpload` is for services that take an object in one piece or not at all. It keeps what
is written in memory, from 16 MiB on in a temporary file, so that its length is known and a retry can send it again.
"""

import contextlib
import io
import logging
import os
import sys
import tempfile
import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

from webdataset.core.errors import SourceError, UsageError
from webdataset.core.redaction import redact
from webdataset.storage.retries import retry

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class AtomicUpload(io.RawIOBase):
    """A stream to a new object."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.name = url
        self._owner = os.getpid()
        self._size = 0
        self._broken: SourceError | None = None

    def _accept(self, view: memoryview) -> None:
        """Take bytes."""
        raise NotImplementedError

    def _publish(self) -> None:
        """Publish the object."""
        raise NotImplementedError

    def _discard(self) -> None:
        """Remove what was sent."""
        raise NotImplementedError

    def _release(self) -> None:
        """Release threads and memory."""

    def close(self) -> None:
        """Publish the object.

        Raises:
            SourceError: the service refuses, now or earlier; nothing is published.
        """
        if self.closed:
            return
        # a copy in a forked process: the upload belongs to its parent
        if self._owner != os.getpid():
            self.abort()
            return
        if self._broken is not None:
            self.abort()
            raise self._broken
        try:
            self._publish()
        except BaseException:  # an interrupt, too, must not leave anything there
            self.abort()
            raise
        self._release()
        super().close()

    def abort(self) -> None:
        """Publish nothing, and remove what was sent."""
        if self.closed:
            return
        try:
            if self._owner == os.getpid():
                self._discard()
                self._release()
        finally:
            super().close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {redact(self.name)} at {self._size}>"

    def writable(self) -> bool:
        """Tell that this can be written to."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._size

    def write(self, content: "ReadableBuffer", /) -> int:
        """Take bytes.

        Raises:
            SourceError: this or an earlier write failed, or this is a copy in a forked process.
            UsageError: more than an object can hold.
        """
        if self.closed:
            raise ValueError("write to a closed stream")
        if self._broken is not None:
            raise self._broken
        if self._owner != os.getpid():
            raise SourceError("this upload belongs to the process that opened it: open it in this one", url=self.name)
        view = memoryview(content).cast("B")
        try:
            self._accept(view)
        except BaseException as error:  # an interrupt, too: a part is lost
            if self._broken is None:
                message = f"a write was interrupted ({type(error).__name__}): nothing is published"
                self._broken = SourceError(message, url=self.name)
            raise
        self._size += len(view)
        return len(view)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            self.abort()
        else:
            self.close()

    def __del__(self) -> None:
        """Abort a forgotten upload: it may be half of what was meant."""
        if "_broken" not in self.__dict__ or self.closed:
            return
        if self._owner == os.getpid() and self._broken is None and not sys.is_finalizing():
            warnings.warn(
                f"unclosed {self!r}: nothing was published; use 'with', or call close()",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
        with contextlib.suppress(Exception):  # a finaliser must not raise
            self.abort()


MEMORY_BYTES = 16 << 20


class SinglePutUpload(AtomicUpload):
    """A stream to a new object."""

    def __init__(self, url: str, attempts: int) -> None:
        super().__init__(url)
        self._attempts = attempts
        # unbuffered: the finaliser of a forked copy would write its share of a buffer into the file of both
        self._kept = tempfile.SpooledTemporaryFile(MEMORY_BYTES, buffering=0, prefix="webdataset-")  # noqa: SIM115  until close

    def _send_object(self) -> None:
        """Send what is kept, from its start, once; raise ``RetryableError`` where a retry may help."""
        raise NotImplementedError

    def _accept(self, view: memoryview) -> None:
        """Keep bytes."""
        try:
            # the system may take a part of it
            while view:
                view = view[self._kept.write(view) :]
        except OSError as error:
            self._broken = SourceError(
                f"an upload of this size is kept in a temporary file ({error.strerror}): point TMPDIR to a folder "
                "with more space",
                url=self.name,
            )
            raise self._broken from error

    def _publish(self) -> None:
        retry(self._send_object, self.name, lambda: None, self._attempts)

    def _discard(self) -> None:
        """Do nothing: nothing was sent."""

    def _release(self) -> None:
        self._kept.close()


_THREADS = "webdataset-upload"

log = logging.getLogger("webdataset")


class MultipartUpload(AtomicUpload):
    """A stream to a new object.

    Args:
        url: the object.
        part_bytes: size of a part; as many as go up at once, and one more, are in memory.

    Raises:
        UsageError: parts are too small.
    """

    least_part_bytes: ClassVar[int] = 1
    most_parts: ClassVar[int] = 10_000
    at_once: ClassVar[int] = 4

    def __init__(self, url: str, part_bytes: int) -> None:
        if part_bytes < self.least_part_bytes:
            raise UsageError(f"part_bytes is at least {self.least_part_bytes}, not {part_bytes}", url=url)
        super().__init__(url)
        self._part_bytes = part_bytes
        self._buffer = bytearray()
        self._threads: ThreadPoolExecutor | None = None
        self._parts: list[Future[str]] = []

    def _begin(self) -> None:
        """Prepare for the first part."""
        raise NotImplementedError

    def _send_part(self, number: int, body: bytes) -> str:
        """Send a part, by its number from 1, in a thread; return what ``_join`` needs to know."""
        raise NotImplementedError

    def _whole(self, body: bytes) -> None:
        """Publish an object of one piece."""
        raise NotImplementedError

    def _join(self, tags: list[str]) -> None:
        """Publish an object of several parts, from what ``_send_part`` returned for each."""
        raise NotImplementedError

    def _remove(self) -> None:
        """Remove the parts; nothing is to be published."""
        raise NotImplementedError

    def _accept(self, view: memoryview) -> None:
        """Take bytes; a full part goes out while the next one fills."""
        offset = 0
        # a full buffer waits for the next byte: the last part is never empty
        while offset < len(view):
            if len(self._buffer) == self._part_bytes:
                self._send()
            space = self._part_bytes - len(self._buffer)
            self._buffer += view[offset : offset + space]
            offset += space

    def _send(self) -> None:
        """Send the buffer as one part; wait while enough of them are in flight."""
        body, self._buffer = self._buffer, bytearray()
        if len(self._parts) == self.most_parts:
            self._fail(UsageError(f"more than {self.most_parts} parts: pass a larger part_bytes", url=self.name))
        try:
            if self._threads is None:
                self._begin()
                self._threads = ThreadPoolExecutor(self.at_once, thread_name_prefix=_THREADS)
            if len(self._parts) >= self.at_once:
                self._parts[-self.at_once].result()
        except SourceError as error:
            self._fail(error)
        self._parts.append(self._threads.submit(self._send_part, len(self._parts) + 1, bytes(body)))

    def _fail(self, error: SourceError | UsageError) -> NoReturn:
        """Keep an error for later writes and for close, which must not publish."""
        self._broken = error if isinstance(error, SourceError) else SourceError(error.message, url=self.name)
        raise error

    def _publish(self) -> None:
        if self._parts:
            self._finish()
        else:
            self._whole(bytes(self._buffer))

    def _finish(self) -> None:
        """Send the last part, and publish."""
        self._send()
        self._join(self._await_parts())

    def _await_parts(self) -> list[str]:
        """Wait until all parts have been sent."""
        return [part.result() for part in self._parts]

    def _discard(self) -> None:
        begun = self._threads is not None
        for part in self._parts:
            part.cancel()
        self._release()
        if begun:
            try:
                self._remove()
            except SourceError as error:
                log.warning("parts of an upload could not be removed; the service may do so later: %s", error)

    def _release(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            # a forgotten upload may be finalised by a thread of its own, which cannot wait for itself
            own = threading.current_thread().name.startswith(_THREADS)
            threads.shutdown(wait=not own, cancel_futures=True)
        self._buffer = bytearray()
