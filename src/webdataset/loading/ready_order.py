"""Gives the parts of windows in the order in which they become ready, within a bound: ``Loader(order="ready")``.

Theory. In the exact order the program waits for the slowest worker, and the others wait as soon as they are as far
ahead as memory allows. Here each worker is granted windows for itself: what it made is given at once, so that being
ahead costs no memory, and it may be ahead of the slowest one by many windows. Each stream belongs to one worker, so a
state needs nothing new: it has the memory of each stream after what was received, as that of ranks which are not
equally far. A batch can end in the midst of a part, so workers note the state at each sample.

Parts bring their samples themselves. Memory of a window that workers fill together would have to wait for the last.
"""

from collections import deque

from webdataset.loading.columns import estimate_bytes
from webdataset.loading.windows import WEIGHED, AheadLimits, BatchWindow, WindowAssembler, WorkerPool
from webdataset.loading.worker import WindowCredit, WindowPart


class ReadyAssembler(WindowAssembler):
    """The parts of all workers, each as a window of its own, as they become ready.

    Args:
        pool: the workers.
        span: indices in a window.
        ahead: parts of each worker that may be worked on or wait, beside the one that is given next.
        collating: parts may hold columns.
        most_early: windows that a worker may be ahead of the slowest one.
    """

    def __init__(self, pool: WorkerPool, *, span: int, ahead: AheadLimits, collating: bool, most_early: int) -> None:
        self._most_early = most_early
        super().__init__(pool, span=span, ahead=ahead, placing=collating)
        self._receive = pool.receive_first

    def _begin(self) -> None:
        super()._begin()
        # windows of the parts that wait, in the order in which these came
        self._arrived: deque[int] = deque()
        # of each worker: the first window that was not granted, and the first of which nothing was given
        self._granted_to = [0] * self.pool.workers
        self._given = [0] * self.pool.workers

    def _register(self, part: WindowPart) -> None:
        super()._register(part)
        self._arrived.append(part.window)

    def _slowest(self) -> int:
        """Return the number of the worker that has the lowest windows to make, of those that still make samples."""
        return min(range(self.pool.workers), key=lambda number: (self._over[number], self._reached[number]))

    def _find_late(self) -> int | None:
        """Return the slowest worker, as long as no part can be given."""
        return None if self._arrived else self._slowest()

    def _ready(self, worker: int) -> bool:
        return self._over[worker] or self._reached[worker] >= self._granted_to[worker]

    def _take_window(self) -> list[BatchWindow]:
        """Return the part that came first of those that wait, if it holds samples or progress."""
        number = self._arrived.popleft()
        waiting = self._parts[number]
        part = waiting.pop(0)
        if not waiting:
            del self._parts[number]
        if part.error is not None:
            self.failed = part.counted
            raise part.error
        self._given[part.worker] = number + 1
        if not part.rows and not part.progress and not part.counted:
            return []
        window = BatchWindow(number, [part], None, [], self.span)
        window.early = any(map(self._owes, range(self.pool.workers), [number] * self.pool.workers))
        self._learn(window)
        return [window]

    def _owes(self, worker: int, number: int) -> bool:
        """Tell whether samples of windows before one can still come from a worker."""
        return self._given[worker] < (min(number, self._reached[worker]) if self._over[worker] else number)

    def _grant(self) -> None:
        """Grant each worker windows, as many as may be in flight and none that is too early."""
        most = 1 + max(self.ahead.count_windows(self.window_bytes), 0)
        limit = self._reached[self._slowest()] + self._most_early + 1
        for worker, over in enumerate(self._over):
            reached = self._reached[worker]
            first, stop = max(reached, self._granted_to[worker]), min(self._given[worker] + most, limit)
            # telling a worker is dear in some pools: not before half of what it may have is used up
            if over or stop <= first or (self.pool.groups_credits and first > reached and 2 * (stop - first) < most):
                continue
            self.pool.grant([self._credit(worker, window) for window in range(first, stop)], worker)
            self._granted_to[worker] = stop

    def _credit(self, worker: int, window: int) -> WindowCredit:
        return WindowCredit(window, collating=self._placing, needed=self._given[worker])

    def _learn(self, window: BatchWindow) -> None:
        """Learn how large a window is from one worker's part of it."""
        if not window.count:
            return
        columns = window.in_columns() if self._placing else None
        if columns is not None:
            size_bytes = columns.size_bytes
        elif window.number % WEIGHED == 0:
            size_bytes = sum(map(estimate_bytes, window.samples()))
        else:
            return
        self.window_bytes = max(self.window_bytes, size_bytes * self.span // window.count)
