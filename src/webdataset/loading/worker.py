"""The loop of a worker: draws its share of an epoch's samples and writes them into the rows of batches.

Theory. Every sample of a rank has an index, which the samples of all workers together have once, apart from holes
where a stream has ended. Window ``s`` is the indices ``[s·span, (s+1)·span)``: the row of a sample follows from its
index alone, so workers fill one batch together without communication, and the order is the same for any number of
them. A *part* is one worker's rows of one window. With it travel stage times, at most four times a second, and counts
of skipped and dropped samples by the index that they belong to.

Gives parts by rising window; never waits for another worker, and keeps no sample.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from webdataset.codecs.images.output_buffer import use_provider
from webdataset.core.error_handlers import SkipCounts, count_skipped
from webdataset.flow.outcomes import StageOutcome
from webdataset.flow.timing import Row, StageMeter
from webdataset.flow.virtual_stream import END
from webdataset.loading.columns import Columns, collate_beside, collate_rows
from webdataset.loading.rows import OFF, RowAllocator, WindowRows
from webdataset.loading.shared_memory import Array, BatchLayout, WorkerProgressPage
from webdataset.samples.native_core import Draw, Gather, find_native
from webdataset.stages.base import Json

_OFTEN_SECONDS = 0.25


@dataclass
class WorkerMetrics:
    """What a worker found since it last said so.

    Args:
        stages: name, samples and seconds of each stage, in the order of the pipeline.
    """

    stages: list[Row] = field(default_factory=list)


class RowCounts(NamedTuple):
    """What was skipped while one sample of a window was made, or while the end of its stream was found.

    Args:
        row: of the sample, or where it would stand.
        skips: failures that handlers let pass, by stage.
        drops: samples that functions dropped, by stage.
    """

    row: int
    skips: dict[str, int]
    drops: dict[str, int]


def sum_counts(counted: Iterable[RowCounts]) -> tuple[SkipCounts, SkipCounts]:
    """Return the sums of some counts: failures that handlers let pass, and samples that functions dropped, by stage."""
    skips, drops = SkipCounts(), SkipCounts()
    for each in counted:
        skips.update(each.skips)
        drops.update(each.drops)
    return skips, drops


class MetricsRecorder:
    """A worker's notes on one epoch.

    Args:
        share: its samples; has a ``meter`` where its stages are timed.
    """

    def __init__(self, share: "WorkerShare") -> None:
        self._meter: StageMeter | None = getattr(share, "meter", None)
        self.skips, self.drops = SkipCounts(), SkipCounts()
        self.counting = count_skipped(self.skips, self.drops)
        self._drawn = 0
        self._reported = time.perf_counter()

    def count_row(self, row: int) -> RowCounts:
        """Return what was counted since the last time, as what belongs to a row."""
        found = RowCounts(row, dict(self.skips), dict(self.drops))
        self.skips.clear()
        self.drops.clear()
        return found

    def report(self, count: int, *, over: bool) -> WorkerMetrics | None:
        """Return the stage times since the last report; None where it is too early, or there are none."""
        self._drawn += count
        now = time.perf_counter()
        if not over and now - self._reported < _OFTEN_SECONDS:
            return None
        self._reported = now
        stages = [] if self._meter is None else self._meter.estimate(self._drawn)
        return WorkerMetrics(stages) if stages else None


# at most 1 % of the time goes into states that may not be wanted
_SAVING = 100
# an index that is never reached
NEVER = 1 << 62


# a sample, and the lowest index that the next one can have
Drawn = Iterator[tuple[object, int]]


class WorkerShare(Protocol):
    """One worker's samples of one epoch, by rising index.

    Attributes:
        turn: samples after which the giver of the first of them has been asked again.
        following: the lowest index that the next sample can have, one that no other worker has; NEVER: there is none.
            The loop that draws samples keeps it up to date.
        stepwise: it notes the state at each sample.
    """

    turn: int
    following: int
    stepwise: bool

    def __iter__(self) -> Iterator[tuple[object, int]]:
        """Yield (sample, what follows): the sample's index is what followed before; END where that only moved on."""

    def reading(self) -> str:
        """Return the url of the shard that is being read; nothing where that is not known."""

    def progress(self) -> Json:
        """Return what changed in the state since the last call, as a JSON value; None where there is none."""

    def take_steps(self) -> list[Json]:
        """Return what changed in the state with each sample since the last call; none where that is not noted."""

    def close(self) -> None:
        """End it."""


@dataclass(slots=True)
class WindowCredit:
    """Leave to write a window.

    Args:
        window: its number.
        block: the number of its block; -1 for none.
        layout: of the block, or None: samples travel as they are.
        columns: the block's arrays.
        eager: the part must say what changed in the worker's state.
        collating: samples go into one batch, so that the part may hold columns.
        needed: the first window that the consumer has not received.
    """

    window: int
    block: int = -1
    layout: BatchLayout | None = None
    columns: "list[Array]" = field(default_factory=list)
    eager: bool = False
    collating: bool = False
    needed: int = 0


@dataclass(slots=True)
class WindowPart:
    """One worker's rows of one window.

    Args:
        worker: its number.
        window: the window's number; the worker has done with all windows up to it.
        rows: rows in order.
        columns: the samples as columns; None where they do not fit into one batch, or are to make none.
        beside: without columns: for each row, the fields without a column (where ``placed``), or the whole sample.
        placed: without columns: for each row, whether its columns are written.
        progress: what changed in the worker's state since the last part that said so; None: this one does not.
        steps: where the share notes the state at each sample: what changed with each row; ``progress`` is the rest.
        over: the worker has no more samples.
        busy: blocks of earlier windows that the worker's pipeline still refers to.
        error: what ended the worker, where something did.
        timings: seconds spent on samples and on waiting for leave to continue.
        findings: what the worker found since it last said so; None: this part does not say.
        turns: samples, and ends of streams, that were drawn.
        counted: what was skipped, by rising row.
        outcomes: what became of the samples of stages that may drop some; None before the end of the worker's share.
    """

    worker: int
    window: int
    rows: Sequence[int] = ()
    columns: Columns | None = None
    beside: list[Any] = field(default_factory=list)
    placed: list[bool] = field(default_factory=list)
    progress: Json = None
    steps: list[Json] = field(default_factory=list)
    over: bool = False
    busy: list[int] = field(default_factory=list)
    error: BaseException | None = None
    timings: tuple[float, float] = (0.0, 0.0)
    findings: WorkerMetrics | None = None
    turns: int = 0
    counted: list[RowCounts] = field(default_factory=list)
    outcomes: list[StageOutcome] | None = None


class EpochCancelled(Exception):
    """The rest of the epoch is not wanted."""


@dataclass
class EpochWork:
    """One worker's work on one epoch.

    Args:
        share: its samples.
        span: indices in a window.
        start: index at which window 0 begins.
        worker: its number.
        leave: waits until a window may be written; raises EpochCancelled.
        watch: called with each sample's index and the sample, before it is written;
            may raise EpochCancelled. None for none.
        allocator: offers rows to decoders; kept from epoch to epoch.
        page: where each sample is noted: for a usual one, ``watch`` may be left out until the page says so.
    """

    share: WorkerShare
    span: int
    start: int
    worker: int
    leave: Callable[[int], WindowCredit]
    watch: Callable[[int, object], None] | None
    allocator: RowAllocator
    page: WorkerProgressPage | None = None


class WorkerLoop:
    """One worker at work."""

    def __init__(self, work: EpochWork) -> None:
        self.work = work
        self.share = work.share
        self.notes = MetricsRecorder(work.share)
        self._core = find_native()
        # that it works on
        self.window = 0
        # its rows and block, until they are looked at
        self._open: tuple[WindowRows, int] | None = None
        # that is being filled
        self._part: WindowPart | None = None
        # seconds that saying the state took, and those of work since then
        self._cost = self._since = 0.0
        self._working = self._waiting = 0.0

    def parts(self) -> Iterator[WindowPart]:
        """Yield the worker's parts; the last one says that it is over, and what went wrong, if something did."""
        part, given_up = WindowPart(self.work.worker, 0), False
        try:
            # the last one is looked at below
            for part in self._parts():
                if part.over:
                    break
                yield part
        except EpochCancelled:
            part, given_up = self._last(part.window + 1), True
        except Exception as error:  # noqa: BLE001  user code: it goes to the consumer, who raises it
            part = self._make_failure_part(error)
        finally:
            if self._open is not None:
                rows, block = self._open
                self.work.allocator.take_back(rows, block, 0, self.share.turn)
            self.share.close()
        if part.findings is None:
            part.findings = self.notes.report(0, over=True)
        part.busy = self.work.allocator.busy()
        if part.over and part.error is None and not given_up:
            outcomes = getattr(self.share, "outcomes", None)
            part.outcomes = [] if outcomes is None else outcomes.summarize()
        yield part

    def _last(self, window: int) -> WindowPart:
        return WindowPart(self.work.worker, window, over=True)

    def _make_failure_part(self, error: BaseException) -> WindowPart:
        """Say what ended the worker, and what it continued without in the window that is not received."""
        part, filled = self._last(self.window), self._part
        part.error = error
        part.counted = [] if filled is None else filled.counted
        if self.notes.skips or self.notes.drops:
            part.counted.append(self.notes.count_row(self.work.span))
        return part

    def _make_empty_part(self, window: int) -> WindowPart:
        """Say that the worker has nothing up to a window, whose parts others need not wait for."""
        return WindowPart(self.work.worker, window, busy=self.work.allocator.busy())

    def _parts(self) -> Iterator[WindowPart]:
        if self.share.following >= NEVER:
            yield self._last(0)
            return
        window = self._window(self.share.following)
        if window > 0:
            yield self._make_empty_part(window - 1)
        samples = iter(self.share)
        while True:
            self.window = window
            granted = self._await_credit(window)
            rows = self.work.allocator.rows(granted.layout, granted.columns)
            self._open = rows, granted.block
            self._part = part = WindowPart(self.work.worker, window)
            self._fill(part, rows, granted, samples)
            self._part = None
            yield self._finish_part(part, rows, granted)
            if part.over:
                return
            window = self._window(self.share.following)
            if window > part.window + 1:
                yield self._make_empty_part(window - 1)

    def _window(self, index: int) -> int:
        return (index - self.work.start) // self.work.span

    def _await_credit(self, window: int) -> WindowCredit:
        before = time.perf_counter()
        granted = self.work.leave(window)
        self._waiting += time.perf_counter() - before
        return granted

    def _fill(self, part: WindowPart, rows: WindowRows, granted: WindowCredit, samples: Drawn) -> None:
        """Draw the window's samples, and write them into its rows, or make columns of them."""
        first = self.work.start + part.window * self.work.span
        stop = first + self.work.span
        indices: list[int] = []
        began = time.perf_counter()
        if rows.layout is None:
            with self.notes.counting:
                following = self._draw(part, indices, samples, stop)
        else:
            with self.notes.counting, use_provider(rows.give if rows.mode != OFF else None):
                following = self._place(part, rows, indices, samples, stop)
        part.rows = _name_rows(indices, first)
        part.over = part.over or following >= NEVER
        part.turns += len(indices)
        if granted.collating and indices:
            _collate_part(part, rows, None if self._core is None else self._core.gather)
        self._working += time.perf_counter() - began

    def _draw(self, part: WindowPart, indices: list[int], samples: Drawn, stop: int) -> int:
        """Draw samples as they are, up to an index; return the lowest index that the next one can have."""
        if self._core is not None:
            return self._draw_by_core(self._core.draw, part, indices, samples, stop)
        watch, skips, drops = self.work.watch, self.notes.skips, self.notes.drops
        index, beside = indices.append, part.beside.append
        following = self.share.following
        try:
            for sample, after in samples:
                if skips or drops:
                    self._count(part, following)
                if sample is END:
                    part.turns += 1
                else:
                    if watch is not None:
                        watch(following, sample)
                    index(following)
                    beside(sample)
                following = after
                if following >= stop:
                    return following
        finally:
            self.share.following = following
        if skips or drops:
            self._count(part, following)
        part.over = True
        return following

    def _draw_by_core(self, draw: Draw, part: WindowPart, indices: list[int], samples: Drawn, stop: int) -> int:
        """Do the same in C."""
        work, counts = self.work, (self.notes.skips, self.notes.drops)
        place = [self.share.following, part.turns]
        count = partial(self._count, part)
        try:
            full = draw(samples, place, stop, END, counts, indices, part.beside, count, work.watch, work.page)
        finally:
            self.share.following, part.turns = place
        part.over = part.over or not full
        return self.share.following

    def _place(self, part: WindowPart, rows: WindowRows, indices: list[int], samples: Drawn, stop: int) -> int:
        """Draw samples and write them into their rows, up to an index; return the lowest that can follow."""
        watch, skips, drops = self.work.watch, self.notes.skips, self.notes.drops
        index, placed, beside = indices.append, part.placed.append, part.beside.append
        expect, put = rows.expect, rows.write_sample
        first, following = stop - self.work.span, self.share.following
        try:
            while following < stop:
                row = following - first
                expect(row)
                drawn = next(samples, None)
                if skips or drops:
                    self._count(part, following)
                if drawn is None:
                    part.over = True
                    break
                sample, after = drawn
                if sample is END:
                    part.turns += 1
                else:
                    if watch is not None:
                        watch(following, sample)
                    lies, rest = put(row, sample)
                    index(following)
                    placed(lies)
                    beside(rest)
                following = after
                # what the pipeline does not keep is gone before the next sample is made
                drawn = sample = rest = None
        finally:
            self.share.following = following
        return following

    def _count(self, part: WindowPart, index: int) -> None:
        """Note what was skipped on the way to an index."""
        part.counted.append(self.notes.count_row(index - self.work.start - part.window * self.work.span))

    def _finish_part(self, part: WindowPart, rows: WindowRows, granted: WindowCredit) -> WindowPart:
        if self.share.stepwise:
            part.steps = self.share.take_steps()
        part.progress = self._progress(due=granted.eager or part.over or self.share.stepwise)
        part.busy = self.work.allocator.take_back(rows, granted.block, len(part.rows), self.share.turn)
        self._open = None
        part.timings = self._working, self._waiting
        part.findings = self.notes.report(len(part.rows), over=part.over)
        self._working = self._waiting = 0.0
        return part

    def _progress(self, *, due: bool) -> Json:
        """Return what changed in the state: where it must be said, or where saying it takes little of the time."""
        self._since += self._working
        if not due and self._since < self._cost * _SAVING:
            return None
        began = time.perf_counter()
        progress = self.share.progress()
        self._cost, self._since = time.perf_counter() - began, 0.0
        return progress


def _name_rows(indices: list[int], first: int) -> Sequence[int]:
    """Return the rows of some indices: as a range where they stand at equal distances, which is merged faster."""
    if not indices:
        return ()
    start, step = indices[0], indices[1] - indices[0] if len(indices) > 1 else 1
    stop = start + step * (len(indices) - 1) + 1
    if indices == list(range(start, stop, step)):
        return range(start - first, stop - first, step)
    return [index - first for index in indices]


def _collate_part(part: WindowPart, rows: WindowRows, gather: Gather | None) -> None:
    """Make columns of a part's samples, where they fit into one batch."""
    if rows.layout is not None and all(part.placed):
        columns: Columns | None = collate_beside(rows.layout, rows.others, part.beside, rows.shown)
    else:
        columns = None if any(part.placed) else collate_rows(part.beside, gather)
    if columns is not None:
        part.columns, part.beside, part.placed = columns, [], []
