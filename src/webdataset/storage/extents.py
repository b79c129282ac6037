"""Reads some ranges of bytes of one file or object, front to back, and nothing between them.

A local file is seeked. Of an object each range is a request of its own. A request for a short range waits for its
answer most of its time, so several are under way at once: threads read the next ranges ahead of the reader
(:class:`~webdataset.storage.prefetch_worker.PrefetchTask`), within the bytes and connections of the process. A range
that no thread has begun, that failed in its thread or that was begun before a fork is requested by the reader itself,
which meets the error.

All ranges are of one version of the object: of the first response, or the file that was opened.
"""

import os
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from webdataset.core import settings
from webdataset.core.errors import NoRandomAccess
from webdataset.storage.local_files import LocalFileStream, open_raw
from webdataset.storage.open_url import resolve_url
from webdataset.storage.prefetch_worker import FAR_SECONDS, PrefetchTask, close_tasks, prefetch_budget
from webdataset.storage.random_access import ObjectRanges
from webdataset.storage.resumable_stream import ResumableStream
from webdataset.storage.streams import LOCAL_GAP_BYTES, StreamIdentity, read_full

if TYPE_CHECKING:
    from webdataset.storage.object_store import ObjectVersion, RemoteObject

REMOTE_GAP_BYTES = 64 * 1024
"""Bytes of a store that one more request is worth.

It costs 0.7 ms of CPU time, as much as reading 0.8 MB; but others wait for these bytes, too, and they are paid for.
"""

BYTES_PER_SECOND = 60e6
"""What one connection over a long way brings."""

_LARGE_OBJECT_BYTES = 16 << 20
# one that waits for a short answer takes little of a line
_REQUESTS_A_CONNECTION = 6
_FIRST_REQUESTS = 4
_MOST_AHEAD_BYTES = 16 << 20
_HEAD_BYTES = 512
# the stream that is opened instead has more patience
_ATTEMPTS = 2


class Extents(Protocol):
    """Ranges of bytes, read one after the other.

    Attributes:
        head: the first 512 bytes.
    """

    head: bytes

    @property
    def gap_bytes(self) -> int:
        """Bytes between two ranges that take as long as one more range does."""
        ...

    @property
    def identity(self) -> StreamIdentity | None:
        """Which object is read."""
        ...

    @property
    def length(self) -> int:
        """Bytes of the whole object."""
        ...

    def can_skip(self, size: int) -> bool:
        """Tell whether gaps of some bytes are worth leaving out."""
        ...

    def begin(self, extents: Iterable[tuple[int, int]]) -> None:
        """Note the ranges: where each starts and ends, rising."""
        ...

    def advance(self) -> None:
        """Go to the next range."""
        ...

    def read(self, size: int) -> bytes:
        """Return about ``size`` bytes of the present range, ``b""`` at its end."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


class FileExtents:
    """Ranges of a local file.

    Args:
        path: the file.

    Raises:
        NoRandomAccess: it is no regular file.
        SourceError: it cannot be opened.
    """

    gap_bytes = LOCAL_GAP_BYTES

    def __init__(self, path: str) -> None:
        self.stream: LocalFileStream = open_raw(path)
        identity = self.stream.identity
        if identity is None:
            self.stream.close()
            raise NoRandomAccess("not a regular file: it can be read front to back only", url=path)
        self.identity = identity
        self.length = identity.length
        self.head = read_full(self.stream.read, _HEAD_BYTES)
        self._left: deque[tuple[int, int]] = deque()
        self._offset = self._stop = 0

    def can_skip(self, size: int) -> bool:
        """Tell whether gaps of some bytes are worth leaving out."""
        return size >= self.gap_bytes

    def begin(self, extents: Iterable[tuple[int, int]]) -> None:
        """Note the ranges."""
        self._left = deque(extents)

    def advance(self) -> None:
        """Go to the next range."""
        self._offset, self._stop = self._left.popleft()
        self.stream.seek(self._offset)

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes of the present range, ``b""`` at its end.

        Raises:
            ShardChanged: the file has been written to since it was opened.
        """
        content = self.stream.read(min(size, self._stop - self._offset))
        self._offset += len(content)
        return content

    def close(self) -> None:
        """Close the file."""
        self.stream.close()


class ObjectExtents:
    """Ranges of an object; the next ones are requested ahead.

    Args:
        source: the object.
        beside: how many objects are read at the same time, this one among them.

    Raises:
        NoRandomAccess: its server ignores ranges, or does not tell one version from another.
        SourceError: it cannot be read.
    """

    def __init__(self, source: "RemoteObject", beside: int = 1) -> None:
        began = time.monotonic()
        ranges = ObjectRanges(source, head=_HEAD_BYTES, attempts=_ATTEMPTS)
        self._latency_seconds = time.monotonic() - began
        if ranges.identity is None or not ranges.identity.provable():
            raise NoRandomAccess("the service does not tell one version of an object from another", url=source.url)
        self.identity: ObjectVersion = ranges.identity
        self.length = ranges.length
        self.head = ranges.read_at(0, _HEAD_BYTES)
        self._ranges = ranges
        connections = settings.CONNECTIONS.get()
        self._most = connections * _REQUESTS_A_CONNECTION
        # objects that are read whole come over a connection each, a large one over all of them
        self._whole = connections if self.length >= _LARGE_OBJECT_BYTES else min(beside, connections)
        self._source = source
        self._left: deque[tuple[int, int]] = deque()
        self._tasks: deque[PrefetchTask] = deque()
        # a reader that takes one sample and leaves has asked for more than it needs
        self._width = self._most if self._latency_seconds > FAR_SECONDS else min(_FIRST_REQUESTS, self._most)
        self._task: PrefetchTask | None = None
        self._stream: ResumableStream | None = None
        self._offset = self._stop = 0

    @property
    def gap_bytes(self) -> int:
        """Bytes that a whole object brings in the time that one more range takes."""
        return max(REMOTE_GAP_BYTES, int(self._latency_seconds / self._most * self._whole * BYTES_PER_SECOND))

    def can_skip(self, size: int) -> bool:
        """Tell whether gaps of some bytes are worth leaving out; a request over an open connection decides."""
        if REMOTE_GAP_BYTES <= size < self.gap_bytes:
            began = time.monotonic()
            self._ranges.read_at(_HEAD_BYTES, _HEAD_BYTES)
            self._latency_seconds = min(self._latency_seconds, time.monotonic() - began)
        return size >= self.gap_bytes

    def begin(self, extents: Iterable[tuple[int, int]]) -> None:
        """Note the ranges, and request the first of them."""
        self._left = deque(extents)
        self._launch()

    def advance(self) -> None:
        """Go to the next range, and request further ones."""
        self._leave()
        if self._tasks and self._tasks[0].owner != os.getpid():
            self._tasks.clear()
        self._launch()
        self._offset, self._stop = self._left.popleft()
        self._task = self._tasks.popleft() if self._tasks else None
        self._width = min(2 * self._width, self._most)

    def read(self, size: int) -> bytes:
        """Return about ``size`` bytes of the present range, ``b""`` at its end.

        Raises:
            ShardChanged: the object was replaced.
            SourceError: it cannot be read.
        """
        content = b"" if self._task is None else self._read_ahead(self._task)
        if not content and self._offset < self._stop:
            if self._stream is None:
                self._stream = self._open(self._offset, self._stop)
            content = self._stream.read(min(size, self._stop - self._offset))
        self._offset += len(content)
        return content

    def _read_ahead(self, task: PrefetchTask) -> bytes:
        """Return bytes that the thread has read; ``b""`` where it gives no more."""
        piece = task.piece() if task.owner == os.getpid() else None
        if piece is None:
            self._leave()
            return b""
        return piece

    def _open(self, start: int, stop: int) -> ResumableStream:
        return ResumableStream(self._source, start=start, known=self.identity, end=stop)

    def _launch(self) -> None:
        """Request ranges ahead, as many as there may be."""
        ahead_bytes = sum(task.grant.held_bytes for task in self._tasks)
        while len(self._tasks) < min(self._width, len(self._left)):
            start, stop = self._left[len(self._tasks)]
            ahead_bytes += stop - start
            if self._tasks and ahead_bytes > _MOST_AHEAD_BYTES:
                return
            grant = prefetch_budget.take(stop - start, spare=self._most - settings.CONNECTIONS.get() + 1)
            if grant is None:
                return
            try:
                task = PrefetchTask(partial(self._open, start, stop), stop - start, grant, exact=True)
            # no more threads
            except RuntimeError:
                grant.release()
                return
            self._tasks.append(task)

    def _leave(self) -> None:
        """Give up the present range."""
        task, self._task = self._task, None
        stream, self._stream = self._stream, None
        if task is not None and task.owner == os.getpid():
            task.close()
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """Give up all ranges."""
        self._leave()
        tasks, self._tasks = list(self._tasks), deque()
        close_tasks(task for task in tasks if task.owner == os.getpid())


def open_extents(url: str, *, level: str | None, storage_options: object, beside: int = 1) -> Extents | None:
    """Open a url for reading some ranges; None where it can be read front to back only.

    Args:
        url: a url or path.
        level: a trust level that a dataset names.
        storage_options: see :mod:`webdataset.storage.storage_options`.
        beside: how many shards are read at the same time, this one among them.

    Raises:
        NoRandomAccess: its server ignores ranges; or it is no regular file.
        SourceError: it cannot be opened.
    """
    resolved = resolve_url(url, level=level, storage_options=storage_options)
    if resolved.path is not None:
        return FileExtents(resolved.path)
    if not resolved.remote:
        return None
    source = resolved.remote_object()
    return None if source is None else ObjectExtents(source, beside)
