"""Opens shards one after another, and prefetches the next ones.

``{"url"}`` dicts become the same dicts, in the same order, with ``stream``. While a shard on another machine or from
a command is read, threads open the next ones; order, errors and their positions are those of a list that is opened
one shard at a time. The list of shards is advanced by a few more than are read, only while such a shard is read, and
only from the reading thread; what the list raises is raised when its turn comes. Local files, objects that are open
and urls with a user's own opener are never prefetched.

While the reader starves, a thread that has read a shard begins another one at once, so that connections stay busy.
Shards of up to 48 MiB are read whole, since each request costs its latency; of larger ones enough is read that their
further connections (:mod:`~webdataset.storage.parallel_ranges`) find the time to begin.
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from webdataset.core import settings
from webdataset.core.error_handlers import Handler, reraise_exception, should_continue, with_location
from webdataset.core.errors import UsageError
from webdataset.storage.open_url import open_stream
from webdataset.storage.prefetch import Lookahead, PrefetchedStream, Shard, UpcomingShard
from webdataset.storage.prefetch_worker import PrefetchTask, ReadRate, Reservation, close_tasks, prefetch_budget

BUFFER_BYTES = 1 << 20
STARVING_BUFFER_BYTES = 48 << 20
FEWEST = 2
MOST = 8
CALM_SECONDS = 2.0

Opener = Callable[[Any], Any]


class ShardPrefetcher(Lookahead[PrefetchTask]):
    """A list of shards that is looked at ahead of time.

    Args:
        shards: the list.
        opener: url to stream; called in threads.
        prefetch: bytes that may be held ahead, besides the bound of the process; None for that alone.
        level: a trust level that a dataset names.

    Attributes:
        pace: of the thread that reads the streams.

    Raises:
        UsageError: ``WDS_PREFETCH_BYTES`` is no number.
    """

    def __init__(self, shards: Iterator[Shard], opener: Opener, prefetch: int | None, level: str | None) -> None:
        super().__init__(shards, level)
        most = settings.PREFETCH_BYTES.get()
        self.limit_bytes = most if prefetch is None else min(prefetch, most)
        self.pace = ReadRate()
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

    def _go_on(self, _task: PrefetchTask) -> None:
        """Open what comes next in place of what has been read; called in its thread, which never asks the list."""
        if self._starving:
            self._alone(self._begin_all)

    def _ask_ahead(self) -> None:
        """Ask the list for what may come next; behind one that is not opened ahead there is no need to look."""
        waiting = self._waiting
        while len(waiting) < self._depth and (not waiting or self.opens_ahead(waiting[-1].shard)):
            coming = self._next_of_list()
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
                task = self._start_prefetch(coming.shard)
                if task is None:  # no room, or none that is opened ahead
                    return
                self._note(waiting, number, task)

    def opens_ahead(self, shard: Shard) -> bool:
        """Tell whether a shard is one that is opened ahead of its turn.

        Args:
            shard: the dict.
        """
        return self.limit_bytes >= FEWEST and self._is_remote(shard)

    def close(self) -> None:
        """Stop the threads and close what they have opened."""
        close_tasks(self._left())

    def _start_prefetch(self, shard: Shard) -> PrefetchTask | None:
        """Open a shard ahead of its turn, if it is of that kind and there is room."""
        if not self.opens_ahead(shard):
            return None
        size_bytes = min(self._buffer_bytes, self.limit_bytes // FEWEST, self._longest or self.limit_bytes)
        grant: Reservation | None = None
        if self._has_room(size_bytes):
            grant = prefetch_budget.take(
                size_bytes, spare=1 if self._current is not None and self._current.whole else 0
            )
        if grant is None:
            return None
        url, opener = shard["url"], self._opener
        try:
            return PrefetchTask(lambda: opener(url), size_bytes, grant, self._go_on)
        except RuntimeError:  # no more threads
            grant.release()
            return None

    def _has_room(self, size_bytes: int) -> bool:
        """Tell whether this list of shards may hold so many bytes more; some are left to the present shard's ranges."""
        ahead = sum(coming.begun.grant.held_bytes for coming in self._waiting if coming.begun is not None)
        present = 0 if self._current is None else self._current.grant.held_bytes
        most = self.limit_bytes * 4 // 5 if self._starving else self.limit_bytes
        return ahead + size_bytes <= most and ahead + present + size_bytes <= self.limit_bytes

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


def open_shards(
    shards: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    opener: Callable[..., Any] = open_stream,
    *,
    prefetch: int | None = None,
    **kw: Any,
) -> Iterator[dict[str, Any]]:
    """Open each shard.

    Args:
        shards: dicts with ``url``: a str, a path, or an open file object.
        handler: asked where one cannot be opened; true goes on with the next.
        opener: url to stream; only ours is called in threads.
        prefetch: bytes of the next shards that may be read ahead; 0 opens a shard when the one before it has ended;
            None is ``WDS_PREFETCH_BYTES``.
        **kw: passed on to ``opener``.

    Yields:
        The dicts with ``stream`` added.

    Raises:
        SourceError: what the handler does not step over.
    """
    ours = getattr(opener, "__module__", "").startswith("webdataset.")
    opened = functools.partial(opener, **kw)
    coming = ShardPrefetcher(iter(shards), opened, prefetch if ours else 0, kw.get("trust", kw.get("level")))
    first = True
    try:
        while (place := coming.next()) is not None:
            shard = place.shard
            try:
                if not isinstance(shard, dict) or "url" not in shard:
                    raise UsageError(f"expected a shard as {{'url': …}}, got {shard!r}")  # noqa: TRY301  to the handler
                ahead = coming.opens_ahead(shard)
                if place.begun is not None:
                    place.begun.claim()
                if ahead and not first:
                    coming.look()
                stream = _take_stream(place, opened, coming) if ahead else opened(shard["url"])
            except Exception as error:  # noqa: BLE001  the handler decides
                url = shard.get("url") if isinstance(shard, dict) else None
                located = with_location(error, url=str(url) if url is not None else None, stage="url_opener")
                if not should_continue(handler, located, "opening"):
                    return
            else:
                first = False
                yield {**shard, "stream": stream}
    finally:
        coming.close()


def _take_stream(place: UpcomingShard[PrefetchTask], opened: Callable[[Any], Any], coming: ShardPrefetcher) -> Any:
    """Return the stream of a shard that may have been opened ahead of its turn.

    One that could not be opened then is opened now: whatever it says now is what it says.
    """
    began = time.monotonic()
    task, stream = place.begun, None
    if task is not None:
        stream = task.take()
        coming.pace.latency_seconds = task.latency_seconds or coming.pace.latency_seconds
        if stream is None:
            task.release()
            task = None
    if stream is None:
        stream = opened(place.shard["url"])
    ended = time.monotonic()
    coming.pace.note(began, began, ended, 0)
    return PrefetchedStream(stream, coming.pace, coming.look, began, task)
