"""The shards that come next: which they are, and streams of them that are being opened ahead of their turn.

Flows in: ``{"url"}`` dicts. Flows out: the same dicts in the same order, each with what a thread has opened for it, if
anything. The list of shards is asked for a few more than are read, and only while a shard is read that lies on another
machine or behind a command; what the list raises is raised when its turn comes. Local files, objects that are open and
urls that somebody else's code opens are never opened ahead.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from webdataset.ground import settings
from webdataset.ground.errors import WebDatasetError
from webdataset.sources.ahead import Filling
from webdataset.sources.ahead_budget import Grant, budget
from webdataset.sources.ahead_pace import Pace
from webdataset.sources.open import opens_afar

BUFFER_BYTES = 1 << 20
STARVING_BUFFER_BYTES = 48 << 20
FEWEST = 2
MOST = 4

Shard = Any
Opener = Callable[[Any], Any]


class Next(NamedTuple):
    """A shard whose turn will come.

    Args:
        shard: the dict, or whatever stands in its place.
        filling: what opens it already, or None.
        failure: what the list raised instead of a shard, or None.
    """

    shard: Shard = None
    filling: Filling | None = None
    failure: Exception | None = None


class Upcoming:
    """A list of shards that is looked at ahead of time.

    Args:
        shards: the list.
        opener: url to stream; called in threads.
        prefetch: bytes that may be held ahead, besides the bound of the process; None for that alone.
        level: a trust level that a dataset names.

    Attributes:
        pace: of whoever reads the streams.

    Raises:
        UsageError: ``WDS_PREFETCH_BYTES`` is no number.
    """

    def __init__(self, shards: Iterator[Shard], opener: Opener, prefetch: int | None, level: str | None) -> None:
        most = settings.PREFETCH_BYTES.get()
        self.room = most if prefetch is None else min(prefetch, most)
        self.pace = Pace()
        self._shards = shards
        self._opener = opener
        self._level = level
        self._waiting: deque[Next] = deque()
        self._depth = FEWEST
        self._buffer_bytes = BUFFER_BYTES
        self._starving = False
        self._ended = False
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def next(self) -> Next | None:
        """Return the shard whose turn has come, or None at the end of the list."""
        self._at_home()
        with self._lock:
            coming = self._waiting.popleft() if self._waiting else self._asked()
        if coming is not None and coming.failure is not None:
            raise coming.failure
        return coming

    def look(self) -> None:
        """Open what comes next, as far as there is room; never waits for another thread, and raises nothing."""
        if self._lock.acquire(blocking=False):
            try:
                self._adapt()
                if self.pace.far or self._starving:
                    self._look()
            finally:
                self._lock.release()

    def _look(self) -> None:
        waiting = self._waiting
        for number in range(self._depth):
            if number == len(waiting):
                coming = self._asked()
                if coming is None:
                    return
                waiting.append(coming)
            if waiting[number].filling is None:
                filling = self._begun(waiting[number].shard)
                if filling is None:  # no room, or none that is opened ahead: no need to look behind it
                    return
                waiting[number] = waiting[number]._replace(filling=filling)

    def opens_ahead(self, shard: Shard) -> bool:
        """Tell whether a shard is one that is opened ahead of its turn.

        Args:
            shard: the dict.
        """
        if self.room < FEWEST or not isinstance(shard, dict):
            return False
        try:
            return opens_afar(shard.get("url"), level=self._level)
        except WebDatasetError:  # said when its turn comes
            return False

    def close(self) -> None:
        """Stop the threads and close what they have opened."""
        fillings = [coming.filling for coming in self._waiting if coming.filling is not None]
        self._waiting.clear()
        for filling in fillings:
            filling.cancel()
        for filling in fillings:
            filling.close()

    def _asked(self) -> Next | None:
        """Ask the list for one more."""
        if self._ended:
            return None
        try:
            return Next(next(self._shards))
        except StopIteration:
            self._ended = True
            return None
        except Exception as error:  # noqa: BLE001  raised again when its turn comes
            self._ended = True
            return Next(failure=error)

    def _begun(self, shard: Shard) -> Filling | None:
        """Open a shard ahead of its turn, if it is of that kind and there is room."""
        if not self.opens_ahead(shard):
            return None
        grant: Grant | None = budget.take(min(self._buffer_bytes, self.room // self._depth))
        if grant is None:
            return None
        url, opener = shard["url"], self._opener
        try:
            return Filling(lambda: opener(url), grant.size_bytes, grant)
        except RuntimeError:  # no more threads
            grant.release()
            return None

    def _adapt(self) -> None:
        """Look further ahead while the reader waits for slow sources."""
        if self.pace.telling:
            self._starving = starving = self.pace.starving
            self._depth = MOST if starving else FEWEST
            buffer_bytes = STARVING_BUFFER_BYTES if starving else BUFFER_BYTES
            if buffer_bytes > self._buffer_bytes and self.room >= self._depth * buffer_bytes:
                for coming in self._waiting:
                    if coming.filling is not None:
                        coming.filling.extend(buffer_bytes - self._buffer_bytes)
            self._buffer_bytes = buffer_bytes
            self.pace.begin()

    def _at_home(self) -> None:
        """After a fork, forget what the parent's threads had begun."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._lock = threading.Lock()
            self._waiting = deque(coming._replace(filling=None) for coming in self._waiting)
