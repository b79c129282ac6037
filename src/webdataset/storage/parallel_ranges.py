"""Reads one object over several connections, where a single connection starves its reader.

A store (or the network) often bounds each connection, not their sum. A reader that mostly waits, for bytes that come
slower than from a machine nearby, requests the stretches ahead of it by aligned ranges over further connections,
while its first connection continues to where these begin. A range is as long as eight times its latency is worth, so
that latency costs little; as many are requested at once as the budget of the process and the settings allow, fewer
once the reader waits no more.

Each range is read by a bounded resumable stream: each response must begin where it was requested and be about the
same object, and is resumed where it breaks off. A permanent failure (a server that ignores ranges, has another object
by now) is no error here: the reader continues with one connection from the offset that it has reached, and meets the
error there, or not at all.

The first range goes alone: the others follow once it is answered. After the first refusal (429, 503, 416, the whole
object in place of a range) the server gets no further request for a range of this object, neither a new one nor a
retry (:class:`RangeSource`).
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from webdataset.core import settings
from webdataset.core.errors import SourceError
from webdataset.storage.object_store import ObjectResponse, ObjectVersion, RemoteObject
from webdataset.storage.prefetch_worker import PrefetchTask, ReadRate, close_tasks, prefetch_budget
from webdataset.storage.retries import RetryableError

if TYPE_CHECKING:
    from webdataset.storage.streams import Stream

ALIGNMENT_BYTES = 8 << 20
LONGEST_BYTES = 32 << 20
PART_ATTEMPTS = 4
PATIENT_SHARE = 0.1
REFUSED_SECONDS = 60.0

PartOpener = Callable[[int, int], "Stream"]


_refusal_times: dict[str, float] = {}


class RangeSource:
    """An object as its further connections request it: not at all after the server has refused one of them.

    Args:
        source: the object.

    Attributes:
        refused: whether the server has refused a range.
    """

    def __init__(self, source: RemoteObject) -> None:
        self.url = source.url
        self.refused = False
        self.refresh = source.refresh
        self.failures = source.failures
        self._source = source

    def open_at(self, offset: int, known: ObjectVersion | None, size: int | None = None) -> ObjectResponse:
        """Request a range once; see :class:`~webdataset.storage.object_store.RemoteObject`.

        Raises:
            RetryableError: no answer came.
            SourceError: the server refuses this range, or has refused another one.
        """
        if self.refused:
            raise SourceError("the server has refused a further connection", url=self.url)
        try:
            answer = self._source.open_at(offset, known, size)
        except RetryableError as error:
            if not error.refused:
                raise
            self.refused = True
            raise SourceError(str(error), url=self.url) from None
        except SourceError:
            self.refused = True
            raise
        # the whole object, or something else
        self.refused = self.refused or answer.start != offset
        return answer


class ParallelRanges:
    """The further connections of one stream.

    Args:
        identity: the version of the object.
        source: the object, as the connections request it.
        open_part: opens the bytes from one offset up to another.

    Attributes:
        ranges: number of ranges requested so far.
    """

    def __init__(self, identity: ObjectVersion, source: RangeSource, open_part: PartOpener) -> None:
        self._place = _server_of(source.url)
        self._length = identity.length or 0
        self._source = source
        self._open_part = open_part
        # a first range has been answered
        self._answered = False
        self._most = settings.CONNECTIONS.get()
        self._pace = ReadRate()
        # a finaliser may want to stop what is being begun
        self._lock = threading.RLock()
        self._parts: deque[PrefetchTask] = deque()
        self._ends: deque[int] = deque()
        self._rest = memoryview(b"")
        self._active = self._ended = self._alone = False
        self._boundary = self._next = self._wanted = self._part_bytes = 0
        # those that have more to come than their last bytes
        self._running: set[PrefetchTask] = set()
        self._owner = os.getpid()
        self.ranges = 0

    @classmethod
    def worthwhile(cls, identity: ObjectVersion, url: str) -> bool:
        """Tell whether a large object can be read in parts: by its version, unless its server refused that lately."""
        return identity.provable() and _refusal_times.get(_server_of(url), 0.0) < time.monotonic()

    def note(self, offset: int, moments: tuple[float, float, float], given_bytes: int, latency_seconds: float) -> None:
        """Record a read, and decide how many connections there should be.

        Args:
            offset: the reader's, after the read.
            moments: when the read before ended, when this one began and ended.
            given_bytes: what it gave.
            latency_seconds: how long the store took to answer a request.
        """
        pace = self._pace
        pace.note(*moments, given_bytes)
        if not pace.telling:
            return
        if self._active:
            more = 1 if pace.share > PATIENT_SHARE else -1
            self._wanted = min(max(1, self._wanted + more), self._most)
        elif pace.starving and not self._ended:
            self._begin(offset, pace.bytes_per_second, latency_seconds)
        pace.begin()

    def _begin(self, offset: int, bytes_per_second: float, latency_seconds: float) -> None:
        """Ask for what lies ahead of the first connection, if there are further ones to be had."""
        left = self._length - offset
        connections = min(self._most, left // ALIGNMENT_BYTES, 1 + prefetch_budget.idle_connections)
        if connections < 2:
            return
        wish = min(8 * latency_seconds * bytes_per_second, LONGEST_BYTES, left / connections)
        self._part_bytes = max(_align(wish), ALIGNMENT_BYTES)
        self._boundary = self._next = max(_align(offset + self._part_bytes), offset)
        self._wanted = connections - 1
        self._active, self._alone = True, False
        self._launch()
        self._active = bool(self._parts)

    def _launch(self) -> None:
        """Ask for further ranges, as many as there may be."""
        with self._lock:
            while (
                self._active
                and not self._source.refused
                and (self._answered or not self._parts)
                and self._next < self._length
                and len(self._running) < self._wanted
                and len(self._parts) <= self._wanted
            ):
                grant = prefetch_budget.take(self._part_bytes, spare=1 if self._alone else 0)
                if grant is None:
                    break
                start, end = self._next, self._end_of_next()
                grant.shrink(self._part_bytes - (end - start))
                try:
                    # its thread may open it only after the next one was begun: it must not look these names up then
                    opener = partial(self._open_range, start, end)
                    part = PrefetchTask(opener, end - start, grant, self._done, exact=True)
                # no more threads
                except RuntimeError:
                    grant.release()
                    break
                self._running.add(part)
                # a finaliser has run in between
                if self._ended:
                    part.close()
                    break
                self._parts.append(part)
                self._ends.append(end)
                self._next = end
                self.ranges += 1

    def _open_range(self, start: int, end: int) -> "Stream":
        """Open a range; in its thread. Once the first one is open, the others are requested."""
        stream = self._open_part(start, end)
        if not self._answered:
            self._answered = True
            self._launch()
        return stream

    def _end_of_next(self) -> int:
        """Return where the next range ends: ranges near the end are shorter, so that all come at once."""
        left = self._length - self._next
        size_bytes = min(self._part_bytes, max(_align(left / max(1, self._wanted)), ALIGNMENT_BYTES))
        return self._length if left < size_bytes + ALIGNMENT_BYTES // 2 else self._next + size_bytes

    def _done(self, part: PrefetchTask) -> None:
        """Let another range take the place of one that has come, or almost; called in its thread, twice perhaps."""
        with self._lock:
            self._running.discard(part)
        if part.failure is None and part.refused is None:
            self._launch()

    def bound(self, offset: int, size: int) -> int:
        """Return how many of ``size`` bytes from ``offset`` on the first connection should give."""
        return min(size, self._boundary - offset) if self._active else size

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the ranges; ``b""`` where the stream should read by itself."""
        if not self._active or offset < self._boundary:
            return b""
        # the first connection is given up for one more range
        if not self._alone:
            self._alone = True
            self._launch()
        while not self._rest:
            # a thread may be adding one at this moment
            with self._lock:
                self._active = bool(self._parts)
            # no room for further ones: the first connection continues, for now
            if not self._active:
                return b""
            piece = self._parts[0].piece()
            if piece is None:
                if offset != self._ends[0]:
                    self._remember_refusal(self._parts[0])
                    self.stop()
                    return b""
                self._leave_range()
            elif len(piece) <= size:
                return piece
            else:
                self._rest = memoryview(piece)
        content, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return content

    def _remember_refusal(self, part: PrefetchTask) -> None:
        """Remember a place that gives no ranges: its other objects are spared the asking, for a while."""
        if part.stream is None and not self._answered:
            _refusal_times[self._place] = time.monotonic() + REFUSED_SECONDS

    def _leave_range(self) -> None:
        """Finish a range, and request further ones."""
        with self._lock:
            part = self._parts.popleft()
            self._ends.popleft()
        if part.stream is not None:
            part.stream.close()
        part.release()
        self._launch()

    def stop(self) -> None:
        """Give up the ranges: one connection reads on from here."""
        self._active, self._ended = False, True
        self._rest = memoryview(b"")
        if self._owner != os.getpid():
            return
        with self._lock:
            parts = list(self._parts)
            self._parts.clear()
            self._ends.clear()
        close_tasks(parts)


def _align(offset: float) -> int:
    """Return the multiple of 8 MiB nearest to an offset."""
    return round(offset / ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _server_of(url: str) -> str:
    """Return the server, or container, of a url."""
    return "/".join(url.split("/", 3)[:3])
