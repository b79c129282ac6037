"""Assembles windows of samples from the parts of all workers.

Parts come in any order, and complete windows go out in order. Back-pressure: a worker writes a window only with a
credit for it; at most ``ahead`` credits are open, and as many as fit into ``ahead_bytes``. A delivered block is used
again when nothing refers to it any more, neither here nor in a worker.
"""

import mmap
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from webdataset.core.errors import FlowError, WorkerDied
from webdataset.core.logs import log
from webdataset.flow.outcomes import StageOutcome
from webdataset.loading.columns import (
    Columns,
    RowOrder,
    estimate_bytes,
    infer_layout,
    merge_columns,
    place_fields,
    wrap_array,
)
from webdataset.loading.shared_memory import (
    Array,
    BatchLayout,
    BlockPool,
    Leases,
    MemoryBlock,
    create_shared_file,
)
from webdataset.loading.worker import RowCounts, WindowCredit, WindowPart

if TYPE_CHECKING:
    from webdataset.loading.partition import EpochStart

# what many small windows may take together
_SMALL_BYTES = 1 << 24


class AheadLimits(NamedTuple):
    """How far workers may be ahead of the program.

    Workers and a program that wait for each other often wake each other often, which is what small batches cost most.

    Args:
        few: windows of any size.
        many: windows that take no more than 16 MiB together.
        size_bytes: that all may take in any case; one window is always allowed.
    """

    few: int
    many: int
    size_bytes: int

    def count_windows(self, window_bytes: int) -> int:
        """Return how many windows of a size may be ahead; of an unknown size, 0, a few."""
        if not window_bytes:
            return self.few
        count = max(self.few, min(self.many, _SMALL_BYTES // window_bytes - 1))
        return min(count, self.size_bytes // window_bytes - 1)


PublishBlock = Callable[[MemoryBlock, int], None]
# without a part, until the log names the workers that the program waits for
SILENCE_SECONDS = 60.0
# for workers to notice that an epoch was given up
_PATIENCE_SECONDS = 5.0
# one window of so many is weighed, where its samples are no columns
WEIGHED = 8
# so long after the last grant, a window may wait to be granted together with the next one
_SOON_SECONDS = 0.001
# in one epoch; samples that change their shape more often travel beside the batch
_MOST_LAYOUTS = 8


class WorkerPool(ABC):
    """The workers of a loader: they live until ``close``, and only in the process that started them.

    A fork inherits the object, but no worker.

    Attributes:
        publish: is told of each block of columns, with a descriptor that is open during the call; where it is set,
            blocks are memory files.
        groups_credits: several windows are granted at a time where they come fast, since telling the workers is dear.
    """

    groups_credits = False

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.publish: PublishBlock | None = None
        self._living = True
        self._owner = os.getpid()

    def local_blocks(self, size_bytes: int) -> BlockPool:
        """Return memory of this process, which is private unless blocks are published."""
        return BlockPool(size_bytes, None if self.publish is None else partial(self._publish_block, size_bytes))

    def _publish_block(self, size_bytes: int, number: int) -> MemoryBlock:
        descriptor = create_shared_file(size_bytes)
        try:
            block = MemoryBlock(number, mmap.mmap(descriptor, max(size_bytes, 1)))
            if self.publish is not None:
                self.publish(block, descriptor)
        finally:
            os.close(descriptor)
        return block

    @property
    def living(self) -> bool:
        """True until the pool is closed, in the process that started it."""
        return self._living and os.getpid() == self._owner

    @property
    def is_closed(self) -> bool:
        """True where the pool was closed in this process."""
        return not self._living

    @abstractmethod
    def begin(self, beginning: "EpochStart") -> None:
        """Start an epoch in all workers."""

    @abstractmethod
    def stop(self) -> None:
        """Cancel the epoch; each worker sends a last part that says it is over."""

    @abstractmethod
    def grant(self, grants: Sequence[WindowCredit], worker: int | None = None) -> None:
        """Let a worker write some windows, at least one; None: all workers."""

    @abstractmethod
    def receive(self, timeout_seconds: float | None = None, worker: int | None = None) -> WindowPart | None:
        """Wait for a part, first for those of one worker if that is named; return None after the timeout.

        Raises:
            WorkerDied: a worker has ended.
        """

    @abstractmethod
    def blocks(self, layout: BatchLayout) -> BlockPool:
        """Return memory that all workers can write to."""

    def receive_first(self, timeout_seconds: float, late: int) -> WindowPart | None:  # noqa: ARG002  processes can be killed
        """Wait for the first part that comes, of any worker; return None after the timeout.

        Args:
            timeout_seconds: of waiting.
            late: the worker that holds the others up.

        Raises:
            WorkerDied: a worker has ended.
        """
        return self.receive(timeout_seconds)

    def warn_of_silence(self, worker: int, what: str) -> None:
        """Name a worker that the program has waited for.

        Args:
            worker: its number.
            what: did not happen.
        """
        log.warning(
            "loader: %s worker %d of %d for %.0f seconds%s: it waits for storage or a lock, or is stopped (py-spy dump "
            "shows where)",
            what,
            worker,
            self.workers,
            SILENCE_SECONDS,
            self.describe_position(worker),
        )

    def describe_position(self, worker: int) -> str:  # noqa: ARG002  known of processes only
        """Say what a worker read last; nothing where that is not known."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """End the workers."""


class BatchWindow:
    """One window, complete.

    Args:
        number: its number.
        parts: of all workers that have rows in it.
        layout: of its block, or None.
        columns: the block's arrays.
        span: indices in a window.

    Attributes:
        early: a worker still owes samples of an earlier window.
    """

    early = False

    def __init__(
        self, number: int, parts: list[WindowPart], layout: BatchLayout | None, columns: list[Array], span: int = 0
    ) -> None:
        self.number = number
        # index of its first row; from where the epoch began
        self.first = number * span
        self.stop = self.first + span
        self.parts = parts
        self.layout = layout
        self.columns = columns
        self._merged: Columns | None = None
        self.count = sum([len(part.rows) for part in parts])

    @property
    def partly(self) -> bool:
        """True where some of the samples were written into the block."""
        return self.layout is not None and any(
            any(part.placed) if part.columns is None else part.columns.placed for part in self.parts
        )

    def merge_counts(self) -> list[RowCounts]:
        """Return what was skipped, by rising row."""
        found = [each for part in self.parts for each in part.counted]
        found.sort(key=attrgetter("row"))
        return found

    def in_columns(self) -> Columns | None:
        """Return the samples as columns, by rising row; None where they do not fit into one batch."""
        if self._merged is None:
            self._merged = self._merge()
        return self._merged

    def _merge(self) -> Columns | None:
        parts = [part for part in self.parts if part.rows]
        if len(parts) > 1:
            # the fields stand in the order of the first sample's
            parts.sort(key=_first_row)
        columns = [part.columns for part in parts if part.columns is not None]
        if not columns or len(columns) < len(parts):
            return None
        order = RowOrder([part.rows for part in parts], self.stop - self.first)
        if not all(each.placed for each in columns):
            return merge_columns(list(map(self._with_block, parts, columns)), order)
        merged = merge_columns(columns, order)
        if merged is None or self.layout is None:
            raise FlowError("rows were placed where there is no block")
        if self.count == self.layout.rows:
            return place_fields(merged, self.layout, self.columns)
        rows = sorted(row for part in parts for row in part.rows)
        return place_fields(merged, self.layout, [column[rows] for column in self.columns])

    def _with_block(self, part: WindowPart, columns: Columns) -> Columns:
        """Return a part's columns, with those of the block where it wrote there."""
        if not columns.placed:
            return columns
        if self.layout is None:
            raise FlowError("rows were placed where there is no block")
        rows = part.rows
        which = slice(rows.start, rows.stop, rows.step) if isinstance(rows, range) else list(rows)
        return place_fields(columns, self.layout, [column[which] for column in self.columns])

    def samples(self) -> Iterator[object]:
        """Yield the window's samples by rising row; arrays that were placed are views of the block."""
        entries: list[tuple[int, bool, Any]] = []
        for part in self.parts:
            nowhere = [False] * len(part.rows)
            if part.columns is None:
                entries += zip(part.rows, part.placed or nowhere, part.beside, strict=True)
            else:
                entries += zip(part.rows, nowhere, self._with_block(part, part.columns).samples(), strict=True)
        if len(self.parts) > 1:
            entries.sort(key=itemgetter(0))
        for row, placed, beside in entries:
            yield self._sample(row, beside) if placed else beside

    def _sample(self, row: int, beside: Iterable[object]) -> object:
        layout = self.layout
        if layout is None:
            raise FlowError("a row was placed where there is no block")
        others = iter(beside)
        columns = {column.place: number for number, column in enumerate(layout.columns)}
        values: list[object] = []
        for place in range(len(layout.keys)):
            number = columns.get(place)
            if number is None:
                values.append(next(others))
            else:
                values.append(wrap_array(self.columns[number][row, ...], tensor=layout.columns[number].tensor))
        if layout.kind == "dict":
            return dict(zip(layout.keys, values, strict=True))
        return tuple(values) if layout.kind == "tuple" else values[0]


class WindowAssembler:
    """The windows of one epoch after the other.

    Args:
        pool: the workers.
        span: indices in a window.
        ahead: what may be worked on or wait beyond the window that is needed next.
        placing: samples are to be written into blocks.
    """

    def __init__(self, pool: WorkerPool, *, span: int, ahead: AheadLimits, placing: bool) -> None:
        self.pool = pool
        # waits for a part, with a worker that is waited for
        self._receive: Callable[[float, int], WindowPart | None] = pool.receive
        self.span = span
        self.ahead = ahead
        self.layout: BatchLayout | None = None
        # of the largest window so far
        self.window_bytes = 0
        self._placing = placing
        self._layouts = 0
        self._blocks: BlockPool | None = None
        # A block is in one of four places: free in its pool, lent (arrays over it live), returned (none lives here),
        # or busy (a worker's pipeline still refers to it). It becomes free only from `_returned`, and only when no
        # worker names it busy in a part that is later than the block's window: see `_sort`.
        self._busy: list[set[int]] = [set() for _ in range(pool.workers)]
        self._loans: Leases[_ReturnedBlock] = Leases()
        self._returned: deque[_ReturnedBlock] = deque()
        # called with each part
        self.watch: Callable[[WindowPart], None] | None = None
        # every part must say what changed in its worker's state
        self.eager = False
        # workers may be at work on an epoch: set before they begin it, and until it came to its end here
        self.begun = False
        # of all workers, at the end of an epoch
        self.outcomes: list[StageOutcome] = []
        # what was skipped in a window that is not received
        self.failed: list[RowCounts] = []
        self._epoch = 0
        self._begin()
        self._over = [True] * pool.workers

    def _begin(self) -> None:
        workers = self.pool.workers
        self._epoch += 1
        self._layouts = min(self._layouts, 1)
        # The next windows to be delivered, and to be granted. At all times `_next <= _granted`, and
        # `_granted - _next` is at most one more than the windows that may be ahead.
        self._next = self._granted = 0
        # when windows were granted last
        self._granted_at = 0.0
        self._lent: dict[int, tuple[BatchLayout, list[Array]]] = {}
        self._parts: dict[int, list[WindowPart]] = {}
        # The first window that each worker is not done with. It never falls within an epoch: a worker gives its parts
        # by rising window, so all parts of a window are there once every worker has reached the window after it.
        self._reached = [0] * workers
        self._over = [False] * workers
        self.outcomes = []

    @property
    def waiting(self) -> int:
        """Windows of which some worker is done with its rows, and that were not delivered."""
        return len(self._parts)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the blocks that there are."""
        return self._blocks.made * self._blocks.size_bytes if self._blocks is not None else 0

    def epoch(self) -> Generator[BatchWindow]:
        """Yield windows that hold samples (or progress), until all workers are over.

        The worker pool has begun. Given up early, it waits for all workers to notice.

        Raises:
            Exception: what ended a worker, when its window's turn has come.
            FlowError: a worker died, or the pool was closed.
        """
        self._begin()
        try:
            while not all(self._over) or self._parts:
                self._grant()
                while (late := self._find_late()) is not None:
                    part = self._receive(SILENCE_SECONDS, late)
                    if part is not None:
                        self._register(part)
                    else:
                        self._warn_of_silence()
                found = self._take_window()
                while found:
                    # nothing here refers to what the consumer lets go of
                    yield found.pop()
            if self.pool.is_closed:
                # each said that it was over, and was not at its end
                raise FlowError("the workers of this loader were ended before the end of the epoch")
        finally:
            self._lent.clear()
            self._parts.clear()
            if self.pool.living:
                # its samples are not wanted any more; the next epoch starts other workers
                with suppress(WorkerDied):
                    self._stop_workers()
                # what came meanwhile
                self._parts.clear()
            self.begun = False

    def _warn_of_silence(self) -> None:
        """Name the workers that the program waits for; a silent hang is taken for one of the training."""
        for number in range(self.pool.workers):
            if not self._ready(number):
                self.pool.warn_of_silence(number, "nothing came from")

    def _stop_workers(self) -> None:
        """Let all workers give up what they do; end those that do not answer."""
        self.pool.stop()
        until = time.monotonic() + _PATIENCE_SECONDS
        while not all(self._over):
            part = self.pool.receive(max(0.0, until - time.monotonic()))
            if part is None:
                self.pool.close()
                return
            self._register(part)

    def _find_late(self) -> int | None:
        """Return a worker that is not done with the next window; asked once more than there are workers."""
        needed = self._next
        for number, (over, reached) in enumerate(zip(self._over, self._reached, strict=True)):
            if not over and reached <= needed:
                return number
        return None

    def _ready(self, worker: int) -> bool:
        return self._over[worker] or self._reached[worker] > self._next

    def _register(self, part: WindowPart) -> None:
        worker = part.worker
        # A part never belongs to a window that was delivered: an error without a window is one of the next.
        window = max(part.window, self._next)
        self._reached[worker] = window + 1
        self._busy[worker] = set(part.busy)
        self._over[worker] = part.over
        self._parts.setdefault(window, []).append(part)
        self.outcomes += part.outcomes or []
        if self.watch is not None:
            self.watch(part)

    def _take_window(self) -> list[BatchWindow]:
        """Return the next window, if it holds samples or progress."""
        number, self._next = self._next, self._next + 1
        layout, columns = self._lent.pop(number, (None, []))
        parts = self._parts.pop(number, [])
        for part in parts:
            if part.error is not None:
                self.failed = [each for one in parts for each in one.counted]
                raise part.error
        self._sort()
        # A consumer that keeps its batches keeps their blocks, too. Where blocks are scarce it gets copies, so that
        # a free block is left for the workers.
        if self._blocks is not None and self._blocks.scarce:
            columns = [column.copy() for column in columns]
        window = BatchWindow(number, parts, layout, columns, self.span)
        if not window.count and not any(part.progress or part.counted for part in parts):
            return []
        self._learn(window)
        return [window]

    # -- leave to write

    def _grant(self) -> None:
        """Grant windows, as many as may be in flight."""
        most = self.ahead.count_windows(self.window_bytes)
        # The first window is written without a block: it says what the layout of the others is.
        if self._placing and not self._layouts:
            most = 0
        allowed = self._next + 1 + max(most, 0)
        count = allowed - self._granted
        if count <= 0:
            return
        if self.pool.groups_credits:
            now = time.monotonic()
            # the window that is needed next is granted, and about half of those that may be ahead
            if self._granted > self._next and 2 * count < most and now - self._granted_at < _SOON_SECONDS:
                return
            self._granted_at = now
        self.pool.grant(list(map(self._make_credit, range(self._granted, allowed))))
        self._granted = allowed

    def _make_credit(self, window: int) -> WindowCredit:
        if self.layout is None or self._blocks is None:
            return WindowCredit(window, eager=self.eager, collating=self._placing, needed=self._next)
        self._sort()
        block = self._blocks.take()
        columns = self.layout.views(block.lend(self._loans, _ReturnedBlock(self._epoch, window, self._blocks, block)))
        self._lent[window] = self.layout, columns
        return WindowCredit(window, block.number, self.layout, columns, self.eager, self._placing, self._next)

    def _sort(self) -> None:
        """Free the returned blocks that no worker refers to: each has said so with a later part."""
        while (back := self._loans.back()) is not None:
            self._returned.append(back)
        for _ in range(len(self._returned)):
            entry = self._returned.popleft()
            # A worker names the blocks that it still refers to in each part. A part of a window after the block's was
            # made when the worker had left the block, so its word holds; an earlier one could be out of date.
            passed = entry.epoch != self._epoch or all(
                over or reached > entry.window + 1 for over, reached in zip(self._over, self._reached, strict=True)
            )
            if not passed or any(entry.block.number in busy for busy in self._busy):
                self._returned.append(entry)
            else:
                entry.owner.give_back(entry.block)

    def _learn(self, window: BatchWindow) -> None:
        """Learn the layout from the first window, or from one whose samples have another."""
        columns = window.in_columns() if self._placing else None
        if columns is not None:
            # what lies beside a block can grow, too
            self.window_bytes = max(self.window_bytes, columns.size_bytes)
        elif window.number % WEIGHED == 0:
            self.window_bytes = max(self.window_bytes, sum(map(estimate_bytes, window.samples())))
        if not self._placing or window.partly or not window.count or self._layouts >= _MOST_LAYOUTS:
            return
        layout = None if columns is None else infer_layout(columns, self.span)
        if layout == self.layout and self._layouts:
            # it was granted before the layout was known
            return
        # both or none, also where a signal's handler raises
        self.layout, self._blocks = layout, self._blocks if layout is None else self.pool.blocks(layout)
        self._layouts += 1
        if layout is not None:
            self.window_bytes = max(self.window_bytes, layout.size_bytes)


class _ReturnedBlock(NamedTuple):
    """A block that the consumer no longer refers to."""

    epoch: int
    window: int
    owner: BlockPool
    block: MemoryBlock


def _first_row(part: WindowPart) -> int:
    return part.rows[0]
