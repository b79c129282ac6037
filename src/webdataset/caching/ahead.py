"""The shards that come next, opened behind the cache before their turn.

Flows in: ``{"url"}`` dicts. Flows out: the same in the same order, each with what was opened for it, if anything. While
a shard is read, threads open the next two: their downloads begin, or others' are joined, or it is seen that they are
there and still the same. What they take is room in the directory, under its bound, not memory.

What fails, or finds no room, is opened again when its turn comes, and says then what it has to say. Nothing is begun
for whoever takes a sample and leaves, that is before a megabyte was read; and what was begun for somebody who leaves
later ends as it does for a reader that stops at once.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from webdataset.ground import settings
from webdataset.ground.errors import WebDatasetError
from webdataset.sources.open import opens_afar

DEPTH = 2

Shard = Any
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
        if self._owner != os.getpid():  # the thread has stayed behind
            return None
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


class Next(NamedTuple):
    """A shard whose turn will come.

    Args:
        shard: the dict, or whatever stands in its place.
        begun: what opens it already, or None.
        failure: what the list raised instead of a shard, or None.
    """

    shard: Shard = None
    begun: Begun | None = None
    failure: Exception | None = None


class Coming:
    """A list of shards, of which the next are opened beforehand.

    Args:
        shards: the list. It is asked only by whoever reads, and while he reads.
        opening: opens a shard behind the cache; called in threads.
        prefetch: 0: open nothing beforehand; None is ``WDS_PREFETCH_BYTES``.
        level: a trust level that a dataset names.
    """

    def __init__(self, shards: Iterator[Shard], opening: Opening, prefetch: int | None, level: str | None) -> None:
        self._wanted = prefetch != 0 and settings.PREFETCH_BYTES.get() > 0
        self._shards = shards
        self._opening = opening
        self._level = level
        self._waiting: deque[Next] = deque()
        self._ended = False
        self._first = True
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def next(self) -> Next | None:
        """Return the shard whose turn has come, or None at the end of the list.

        Raises:
            Exception: what the list raises.
        """
        if self._owner != os.getpid():
            self._owner, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            coming = self._waiting.popleft() if self._waiting else self._asked()
        if coming is not None and coming.failure is not None:
            raise coming.failure
        return coming

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
        if self._wanted and self._owner == os.getpid() and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Leave what was begun."""
        while self._waiting:
            begun = self._waiting.popleft().begun
            if begun is not None:
                begun.close()

    def _look(self) -> None:
        for number in range(DEPTH):
            if number == len(self._waiting):
                coming = self._asked()
                if coming is None:
                    return
                self._waiting.append(coming)
            coming = self._waiting[number]
            if coming.begun is None:
                if not self._is_afar(coming.shard):
                    return
                try:
                    begun = Begun(lambda shard=coming.shard: self._kept(shard))  # type: ignore[misc]
                except RuntimeError:  # no more threads
                    return
                self._waiting[number] = coming._replace(begun=begun)

    def _is_afar(self, shard: Shard) -> bool:
        try:
            return isinstance(shard, dict) and opens_afar(shard.get("url"), level=self._level)
        except WebDatasetError:  # said when its turn comes
            return False

    def _kept(self, shard: Shard) -> dict[str, Any] | None:
        """Open a shard; in a thread."""
        near = self._opening(shard)
        if near is not None and near["stream"].kept:
            return near
        self._wanted = False  # the directory is full of what is being read, or takes nothing
        if near is not None:
            near["stream"].close()
        return None

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
