"""Workers of a loader in this process: inline, or threads.

Threads suit decoders that release the interpreter's lock while they work (simplejpeg, Pillow, zlib, zstd do), and all
work where Python has no such lock.

There only the thread that made an object releases it cheaply: another one has to hand it back, object by object. So a
worker keeps the parts that it sent until the consumer has dropped them, as a rule: the worker's reference is the last
one. Those are the parts of at most three windows beyond what waits for the consumer, and none that is large. Nor one
in whose window decoders were offered memory: that is watched, and nothing else may refer to it.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

from webdataset.core import distributed
from webdataset.core.errors import FlowError
from webdataset.core.fork_safety import FREE_THREADED
from webdataset.loading.columns import estimate_bytes
from webdataset.loading.partition import DatasetAdapter, EpochStart
from webdataset.loading.rows import RowAllocator
from webdataset.loading.shared_memory import BatchLayout, BlockPool
from webdataset.loading.windows import WorkerPool
from webdataset.loading.worker import EpochCancelled, EpochWork, WindowCredit, WindowPart, WorkerLoop

# for a thread that sits in a read, when the loader is closed
_PATIENCE_SECONDS = 5.0
# of a part that is kept
_MOST_KEPT_BYTES = 1 << 20


class InlineWorkers(WorkerPool):
    """No workers: samples are made when they are asked for."""

    def __init__(self, origin: DatasetAdapter, span: int) -> None:
        super().__init__(1)
        self._origin = origin
        self._span = span
        self._grants: deque[WindowCredit] = deque()
        self._stopped = False
        self._allocator = RowAllocator()
        self._loop: WorkerLoop | None = None
        self._parts: Iterator[WindowPart] = iter(())

    def begin(self, beginning: EpochStart) -> None:
        """Start an epoch."""
        self._grants.clear()
        self._stopped = False
        share = self._origin.share(beginning, 0, 1)
        work = EpochWork(share, self._span, beginning.start, 0, self._leave, None, self._allocator)
        self._loop = WorkerLoop(work)
        self._parts = self._loop.parts()

    def _leave(self, window: int) -> WindowCredit:
        while self._grants:
            grant = self._grants.popleft()
            if grant.window == window:
                return grant
        if self._stopped:
            raise EpochCancelled
        raise FlowError(f"window {window} was begun without leave")

    def stop(self) -> None:
        """Give up the epoch; nothing runs between two parts."""
        self._stopped = True
        self._grants.clear()

    def grant(self, grants: Sequence[WindowCredit], worker: int | None = None) -> None:  # noqa: ARG002  there is one
        """Let some windows be written."""
        self._grants += grants

    def receive(self, timeout_seconds: float | None = None, worker: int | None = None) -> WindowPart:  # noqa: ARG002  nothing is waited for
        """Make the next part."""
        try:
            part = next(self._parts, None)
        except BaseException as error:  # Ctrl-C, say: it ends the epoch as an error of a thread does
            if self._stopped:
                raise
            window = 0 if self._loop is None else self._loop.window
            return WindowPart(0, window, over=True, busy=self._allocator.busy(), error=error)
        if part is None:
            raise FlowError("the epoch is over, and more was asked for")
        return part

    def blocks(self, layout: BatchLayout) -> BlockPool:
        """Return memory of this process."""
        return self.local_blocks(layout.size_bytes)

    def close(self) -> None:
        """End it; nothing runs."""
        self._living = False


class _WorkerThread:
    """What a thread and the consumer share; it does not refer to the loader, which may thus be forgotten."""

    def __init__(
        self, origin: DatasetAdapter, span: int, number: int, workers: int, parts: "queue.SimpleQueue[WindowPart]"
    ) -> None:
        self.origin = origin
        self.span = span
        self.number = number
        self.workers = workers
        self.parts = parts
        self.orders: queue.SimpleQueue[WindowCredit | EpochStart | None] = queue.SimpleQueue()
        self.stopped = False
        self.allocator = RowAllocator()
        # the first window that the consumer has not received; it writes this
        self.needed = 0
        self._sent: deque[WindowPart] = deque()
        self.thread = threading.Thread(target=self.run, name=f"webdataset-loader-{number}", daemon=True)

    def run(self) -> None:
        """Work on one epoch after the other until there is an order to end."""
        distributed.thread_context.worker = self.number, self.workers
        while (order := self.orders.get()) is not None:
            if isinstance(order, EpochStart):
                self._epoch(order)
                self._sent.clear()

    def _epoch(self, beginning: EpochStart) -> None:
        loop: WorkerLoop | None = None
        try:
            share = self.origin.share(beginning, self.number, self.workers)
            work = EpochWork(share, self.span, beginning.start, self.number, self._leave, self._watch, self.allocator)
            loop = WorkerLoop(work)
            for part in loop.parts():
                if FREE_THREADED and not self.allocator.offered and _weigh_part(part) <= _MOST_KEPT_BYTES:
                    self._sent.append(part)
                self.parts.put(part)
        except BaseException as error:  # noqa: BLE001  user code, SystemExit too: it goes to the consumer, who raises it
            window = 0 if loop is None else loop.window
            self.parts.put(WindowPart(self.number, window, over=True, busy=self.allocator.busy(), error=error))

    def _leave(self, window: int) -> WindowCredit:
        while True:
            order = self.orders.get()
            if order is None:
                # for run()
                self.orders.put(None)
                raise EpochCancelled
            if self.stopped:
                raise EpochCancelled
            if isinstance(order, WindowCredit) and order.window == window:
                # the consumer's program still holds the last one that it received
                while self._sent and self._sent[0].window < self.needed - 1:
                    self._sent.popleft()
                return order

    def _watch(self, index: int, sample: object) -> None:  # noqa: ARG002
        if self.stopped:
            raise EpochCancelled


def _weigh_part(part: WindowPart) -> int:
    """Return about how many bytes a part's samples take, outside of a block."""
    if part.columns is not None:
        return part.columns.size_bytes
    return len(part.beside) * estimate_bytes(part.beside[0]) if part.beside else 0


class ThreadWorkers(WorkerPool):
    """Workers that are threads; they live until the worker pool is closed."""

    def __init__(self, origin: DatasetAdapter, span: int, workers: int) -> None:
        super().__init__(workers)
        self._parts: queue.SimpleQueue[WindowPart] = queue.SimpleQueue()
        self._threads = [_WorkerThread(origin, span, number, workers, self._parts) for number in range(workers)]
        try:
            for each in self._threads:
                each.thread.start()
        except BaseException:  # raised again, with no thread left over
            self.close()
            raise

    def begin(self, beginning: EpochStart) -> None:
        """Start an epoch."""
        for each in self._threads:
            each.stopped = False
            each.needed = 0
            each.orders.put(beginning)

    def stop(self) -> None:
        """Give up the epoch."""
        for each in self._threads:
            each.stopped = True
            # wakes one that waits
            each.orders.put(WindowCredit(-1))

    def grant(self, grants: Sequence[WindowCredit], worker: int | None = None) -> None:
        """Let a thread, or all, write some windows."""
        for each in self._threads if worker is None else self._threads[worker : worker + 1]:
            each.needed = grants[0].needed
            for grant in grants:
                each.orders.put(grant)

    def receive(self, timeout_seconds: float | None = None, worker: int | None = None) -> WindowPart | None:  # noqa: ARG002  all threads fill one queue
        """Wait for a part; None where the time is over."""
        try:
            return self._parts.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def blocks(self, layout: BatchLayout) -> BlockPool:
        """Return memory of this process."""
        return self.local_blocks(layout.size_bytes)

    def close(self) -> None:
        """End the threads. One that sits in a read is waited for briefly, and ends when the read does."""
        if not self.living:
            return
        self._living = False
        for each in self._threads:
            each.stopped = True
            each.orders.put(None)
        until = time.monotonic() + _PATIENCE_SECONDS
        for each in self._threads:
            # this thread may be the one that forgets the loader; and a thread may not have started
            if each.thread is not threading.current_thread() and each.thread.is_alive():
                each.thread.join(max(0.0, until - time.monotonic()))
