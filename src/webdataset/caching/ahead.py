"""The shards that come next, opened behind the cache before their turn.

Flows in: ``{"url"}`` dicts. Flows out: the same in the same order, each with what was opened for it, if anything. While
a shard is read, threads open the next two: their downloads begin, or others' are joined, or it is seen that they are
there and still the same. What they take is room in the directory, under its bound, not memory.

What fails, or finds no room, is opened again when its turn comes, and says then what it has to say. Nothing is begun
for whoever takes a sample and leaves, that is before a megabyte was read; and what was begun for somebody who leaves
later ends as it does for a reader that stops at once.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from webdataset.ground import settings
from webdataset.sources.ahead_list import ListAhead, Shard

DEPTH = 2

Opening = Callable[[Shard], "dict[str, Any] | None"]


class Begun:
    """A shard that a thread opens.

    Args:
        opening: gives the shard with its stream, or None; called in the thread.

    Raises:
        RuntimeError: no thread can be started.
    """

    def __init__(self, opening: Callable[[], dict[str, Any] | None]) -> None:
        self._owner = os.getpid()
        self._near: dict[str, Any] | None = None
        self._warning: Warning | None = None
        self._left = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=(opening,), name="webdataset-cache-ahead", daemon=True)
        self._thread.start()

    def _run(self, opening: Callable[[], dict[str, Any] | None]) -> None:
        near = None
        try:
            near = opening()
        except Warning as warning:  # where warnings are errors; it would not be given a second time
            self._warning = warning
        except Exception:  # noqa: BLE001  it is opened again, and says so, when its turn comes
            near = None
        with self._lock:
            self._near = near
            left = self._left
        if left:
            self.close()

    def taken(self) -> dict[str, Any] | None:
        """Return the opened shard, once; None where it has to be opened now. Waits for the thread.

        Raises:
            Warning: where warnings are errors.
        """
        self._thread.join()
        if self._warning is not None:
            raise self._warning
        near, self._near = self._near, None
        return near

    def close(self) -> None:
        """Say that nobody wants it any more; never waits."""
        if self._owner != os.getpid():
            self._lock = threading.Lock()
        with self._lock:
            self._left = True
            near, self._near = self._near, None
        if near is not None:
            near["stream"].close()


class Coming(ListAhead[Begun]):
    """A list of shards, of which the next are opened beforehand.

    Args:
        shards: the list. It is asked only by whoever reads, and while he reads.
        opening: opens a shard behind the cache; called in threads.
        prefetch: 0: open nothing beforehand; None is ``WDS_PREFETCH_BYTES``.
        level: a trust level that a dataset names.
    """

    def __init__(self, shards: Iterator[Shard], opening: Opening, prefetch: int | None, level: str | None) -> None:
        super().__init__(shards, level)
        self._wanted = prefetch != 0 and settings.PREFETCH_BYTES.get() > 0
        self._opening = opening
        self._first = True

    def watch(self, stream: Any) -> None:
        """Begin what comes next: beside a first shard when it is seen that somebody reads it, else at once.

        Args:
            stream: the shard whose turn it is.
        """
        if self._first:
            self._first = False
            stream.look = self.look
        else:
            self.look()

    def look(self) -> None:
        """Begin what comes next; never waits, and raises nothing."""
        if self._wanted:
            self._alone(self._look)

    def close(self) -> None:
        """Leave what was begun."""
        for begun in self._left():
            begun.close()

    def _look(self) -> None:
        waiting = self._waiting
        for number in range(DEPTH):
            if number == len(waiting):
                coming = self._asked()
                if coming is None:
                    return
                waiting.append(coming)
            shard = waiting[number].shard
            if waiting[number].begun is None:
                if not self._is_afar(shard):
                    return
                try:
                    begun = Begun(functools.partial(self._kept, shard))
                except RuntimeError:  # no more threads
                    return
                self._note(waiting, number, begun)

    def _kept(self, shard: Shard) -> dict[str, Any] | None:
        """Open a shard; in a thread."""
        near = self._opening(shard)
        if near is not None and near["stream"].kept:
            return near
        self._wanted = False  # the directory is full of what is being read, or takes nothing
        if near is not None:
            near["stream"].close()
        return None
