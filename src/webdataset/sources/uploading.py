"""Uploads: an object appears when it is complete, and never before.

Flows in: bytes. Flows out: an object. What fits into one part is sent as one request when the stream is closed; more
goes up in parts while it is being written, a few at a time, and is joined by the last request. Whatever ends the
program before that, the old object (or none) stays; ``abort`` also removes the parts. How a part is sent, and how
parts are joined, is for each store to say.
"""

import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, NoReturn

from webdataset.ground.errors import SourceError, UsageError

from .publishing import Publication

_THREADS = "webdataset-upload"

log = logging.getLogger("webdataset")


class Upload(Publication):
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
        self._parts: list[Future[Any]] = []

    def _begin(self) -> None:
        """Do what comes before the first part."""
        raise NotImplementedError

    def _put(self, number: int, body: bytes) -> Any:
        """Send a part, in a thread; return what joining needs to know.

        Args:
            number: of the part, from 1.
            body: the part.
        """
        raise NotImplementedError

    def _whole(self, body: bytes) -> None:
        """Publish an object of one piece.

        Args:
            body: all of it.
        """
        raise NotImplementedError

    def _join(self, tags: list[Any]) -> None:
        """Publish an object of several parts.

        Args:
            tags: what sending them returned, in order.
        """
        raise NotImplementedError

    def _remove(self) -> None:
        """Remove the parts; nothing is to be published."""
        raise NotImplementedError

    def _taken(self, view: memoryview) -> None:
        """Take bytes; a full part is sent while the next one fills."""
        offset = 0
        while offset < len(view):  # a full buffer waits for the next byte: the last part is never empty
            if len(self._buffer) == self._part_bytes:
                self._send()
            space = self._part_bytes - len(self._buffer)
            self._buffer += view[offset : offset + space]
            offset += space

    def _send(self) -> None:
        """Hand the buffer over as one part; wait where enough of them are on their way."""
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
        self._parts.append(self._threads.submit(self._put, len(self._parts) + 1, bytes(body)))

    def _fail(self, error: SourceError | UsageError) -> NoReturn:
        """Keep an error for later writes and for close, which must not publish."""
        self._broken = error if isinstance(error, SourceError) else SourceError(error.message, url=self.name)
        raise error

    def close(self) -> None:
        """Publish the object.

        Raises:
            SourceError: the service refuses, now or earlier; nothing is published.
        """
        if self.closed:
            return
        if self._owner != os.getpid():  # a copy in a forked process: the upload belongs to its parent
            super().close()
            return
        try:
            self._publish()
        except BaseException:  # an interrupt, too, must not leave parts behind
            self.abort()
            raise
        self._end()

    def _publish(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._parts:
            self._finish()
        else:
            self._whole(bytes(self._buffer))

    def _finish(self) -> None:
        """Send the last part, and publish."""
        self._send()
        self._join(self._sent())

    def _sent(self) -> list[Any]:
        """Wait until all parts have been sent."""
        return [part.result() for part in self._parts]

    def abort(self) -> None:
        """Stop the upload; nothing is published, and what was sent is removed."""
        if self.closed:
            return
        if self._owner == os.getpid():
            begun = self._threads is not None
            for part in self._parts:
                part.cancel()
            self._end()
            if begun:
                try:
                    self._remove()
                except SourceError as error:
                    log.warning("parts of an upload could not be removed; the service may do so later: %s", error)
        super().close()

    def _end(self) -> None:
        """Let the threads go, and the memory."""
        threads, self._threads = self._threads, None
        if threads is not None:
            # a forgotten upload may be finalised by a thread of its own, which cannot wait for itself
            own = threading.current_thread().name.startswith(_THREADS)
            threads.shutdown(wait=not own, cancel_futures=True)
        self._buffer = bytearray()
        super().close()
