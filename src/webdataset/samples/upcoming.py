"""The shards that come next: which they are, and streams of them that are being opened ahead of their turn.

Flows in: ``{"url"}`` dicts. Flows out: the same dicts in the same order, each with what a thread has opened for it, if
anything. The list of shards is asked for a few more than are read, and only while a shard is read that lies on another
machine or behind a command, and only by whoever reads; what the list raises is raised when its turn comes. Local files,
objects that are open and urls that somebody else's code opens are never opened ahead.

While the reader starves, a thread that has read a shard begins another one at once: connections should be busy all the
time. Shards of up to 48 MiB are read whole, since each request costs its latency; of larger ones so much that their
further connections (``sources.parallel``) find the time to begin.
"""

from collections.abc import Callable, Iterator
from typing import Any

from webdataset.ground import settings
from webdataset.sources.ahead_budget import Grant, budget
from webdataset.sources.ahead_filling import Filling, close_all
from webdataset.sources.ahead_list import ListAhead, Shard
from webdataset.sources.ahead_pace import Pace

BUFFER_BYTES = 1 << 20
STARVING_BUFFER_BYTES = 48 << 20
FEWEST = 2
MOST = 8
CALM_SECONDS = 2.0

Opener = Callable[[Any], Any]


class Upcoming(ListAhead[Filling]):
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
        super().__init__(shards, level)
        most = settings.PREFETCH_BYTES.get()
        self.room = most if prefetch is None else min(prefetch, most)
        self.pace = Pace()
        self._opener = opener
        self._depth = FEWEST
        self._buffer_bytes = BUFFER_BYTES
        self._starving = False
        self._calm_seconds = 0.0
        self._longest = 0

    def look(self) -> None:
        """Open what comes next, as far as there is room; never waits for another thread, and raises nothing."""
        self._alone(self._look)

    def _look(self) -> None:
        self._adapt()
        if self.pace.far or self._starving:
            self._ask_ahead()
            self._begin_all()

    def _go_on(self, _filling: Filling) -> None:
        """Open what comes next in place of what has been read; called in its thread, which never asks the list."""
        if self._starving:
            self._alone(self._begin_all)

    def _ask_ahead(self) -> None:
        """Ask the list for what may come next; behind one that is not opened ahead there is no need to look."""
        waiting = self._waiting
        while len(waiting) < self._depth and (not waiting or self.opens_ahead(waiting[-1].shard)):
            coming = self._asked()
            if coming is None:
                return
            waiting.append(coming)

    def _begin_all(self) -> None:
        """Begin to open what is known to come next, as far as there is room."""
        waiting = self._waiting
        for number, coming in enumerate(list(waiting)[: self._depth]):
            if coming.begun is not None:
                self._longest = max(self._longest, coming.begun.length or 0)
            else:
                filling = self._begun(coming.shard)
                if filling is None:  # no room, or none that is opened ahead
                    return
                self._note(waiting, number, filling)

    def opens_ahead(self, shard: Shard) -> bool:
        """Tell whether a shard is one that is opened ahead of its turn.

        Args:
            shard: the dict.
        """
        return self.room >= FEWEST and self._is_afar(shard)

    def close(self) -> None:
        """Stop the threads and close what they have opened."""
        close_all(self._left())

    def _begun(self, shard: Shard) -> Filling | None:
        """Open a shard ahead of its turn, if it is of that kind and there is room."""
        if not self.opens_ahead(shard):
            return None
        size_bytes = min(self._buffer_bytes, self.room // FEWEST, self._longest or self.room)
        grant: Grant | None = None
        if self._has_room(size_bytes):
            grant = budget.take(size_bytes, spare=1 if self._current is not None and self._current.whole else 0)
        if grant is None:
            return None
        url, opener = shard["url"], self._opener
        try:
            return Filling(lambda: opener(url), size_bytes, grant, self._go_on)
        except RuntimeError:  # no more threads
            grant.release()
            return None

    def _has_room(self, size_bytes: int) -> bool:
        """Tell whether this list of shards may hold so many bytes more; some are left to the present shard's ranges."""
        ahead = sum(coming.begun.grant.held_bytes for coming in self._waiting if coming.begun is not None)
        present = 0 if self._current is None else self._current.grant.held_bytes
        most = self.room * 4 // 5 if self._starving else self.room
        return ahead + size_bytes <= most and ahead + present + size_bytes <= self.room

    def _adapt(self) -> None:
        """Look further ahead while the reader waits for slow sources, and for some time after that."""
        pace = self.pace
        if not pace.telling:
            return
        starving = pace.starving
        self._calm_seconds = 0.0 if starving else self._calm_seconds + pace.elapsed_seconds
        pace.begin()
        if starving and not self._starving:
            self._starving, self._depth, self._buffer_bytes = True, MOST, STARVING_BUFFER_BYTES
            for coming in self._waiting:
                if coming.begun is not None and self._has_room(STARVING_BUFFER_BYTES):
                    coming.begun.extend(STARVING_BUFFER_BYTES)
        elif self._starving and self._calm_seconds > CALM_SECONDS:
            self._starving, self._depth, self._buffer_bytes = False, FEWEST, BUFFER_BYTES
