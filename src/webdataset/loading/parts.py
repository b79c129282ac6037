"""What a worker does: it draws its share of an epoch's samples and writes them into the rows of batches.

Theory. Every sample of a rank has an index; the samples of all workers together have every index once, apart from
holes where a stream of samples has ended. Window ``s`` is the indices ``[s·span, (s+1)·span)``: the row of a sample in
its window follows from its index alone, so workers fill one batch together without talking to each other, and the order
is the same for any number of them. A *part* is one worker's rows of one window.

Flows in: (index, sample), windows that may be written. Flows out: parts, by rising window. Never waits for samples
of another worker.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from webdataset.codecs.images.landing import given_by
from webdataset.flow.elastic_stream import END
from webdataset.flow.outcomes import StageOutcome

from .findings import Counted, Findings, Notes
from .layout import Layout
from .rows import OFF, Lender, Rows

_SAVING = 100  # at most 1 % of the time goes into states that nobody may want
NEVER = 1 << 62  # an index that is never reached


class Share(Protocol):
    """One worker's samples of one epoch, by rising index.

    Attributes:
        turn: samples after which whatever gave the first of them has been asked again.
        following: the lowest index that the next sample can have: one that no other worker has. NEVER: there is none.
            Whoever draws samples keeps it.
    """

    turn: int
    following: int

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield (sample, what follows): the sample's index is what followed before; END where that only moved on."""

    def reading(self) -> str:
        """Return the url of the shard that is being read; nothing where that is not known."""

    def progress(self) -> Any:
        """Return what changed in the state since the last call, as a JSON value; None where there is none."""

    def close(self) -> None:
        """End it."""


@dataclass
class Grant:
    """Leave to write a window.

    Args:
        window: its number.
        block: the number of its block; -1 for none.
        layout: of the block, or None: samples travel as they are.
        columns: the block's arrays.
        eager: the part must say what changed in the worker's state.
    """

    window: int
    block: int = -1
    layout: Layout | None = None
    columns: list[Any] = field(default_factory=list)
    eager: bool = False


@dataclass
class Part:
    """One worker's rows of one window.

    Args:
        worker: its number.
        window: the window's number; the worker has done with all windows up to it.
        rows: rows in order.
        beside: for each row, the fields without a column (where ``placed``), or the whole sample.
        placed: for each row, whether its columns are written.
        progress: what changed in the worker's state since the last part that said so; None: this one does not.
        over: the worker has no more samples.
        busy: blocks of earlier windows that the worker's pipeline still refers to.
        error: what ended the worker, where something did.
        timings: seconds spent on samples and on waiting for leave to go on.
        findings: what the worker found since it last said so; None: this part does not say.
        turns: samples, and ends of streams, that were drawn.
        counted: what was gone on without, by rising row.
        outcomes: what became of the samples of stages that may drop some; None before the end of the worker's share.
    """

    worker: int
    window: int
    rows: list[int] = field(default_factory=list)
    beside: list[Any] = field(default_factory=list)
    placed: list[bool] = field(default_factory=list)
    progress: Any = None
    over: bool = False
    busy: list[int] = field(default_factory=list)
    error: BaseException | None = None
    timings: tuple[float, float] = (0.0, 0.0)
    findings: Findings | None = None
    turns: int = 0
    counted: list[Counted] = field(default_factory=list)
    outcomes: list[StageOutcome] | None = None


class GivenUp(Exception):
    """Nobody wants the rest of the epoch."""


@dataclass
class Work:
    """One worker's work on one epoch.

    Args:
        share: its samples.
        span: indices in a window.
        start: index at which window 0 begins.
        worker: its number.
        leave: waits until a window may be written; raises GivenUp.
        watch: called with each sample's index and the sample, before it is written; may raise GivenUp. None for nobody.
        lender: offers rows to decoders; kept from epoch to epoch.
    """

    share: Share
    span: int
    start: int
    worker: int
    leave: Callable[[int], Grant]
    watch: Callable[[int, Any], None] | None
    lender: Lender


class Filling:
    """One worker at work.

    Args:
        work: what it does.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.share = work.share
        self.notes = Notes(work.share)
        self.window = 0  # that it works on
        self._open: tuple[Rows, int] | None = None  # its rows and block, until they are looked at
        self._part: Part | None = None  # that is being filled
        self._cost = self._since = 0.0  # seconds that saying the state took, and those of work since then
        self._working = self._waiting = 0.0

    def parts(self) -> Iterator[Part]:
        """Yield the worker's parts; the last one says that it is over, and what went wrong, if something did."""
        part, given_up = Part(self.work.worker, 0), False
        try:
            for part in self._parts():  # the last one is looked at below
                if part.over:
                    break
                yield part
        except GivenUp:
            part, given_up = self._last(part.window + 1), True
        except Exception as error:  # noqa: BLE001  user code: it goes to the consumer, who raises it
            part = self._failed(error)
        finally:
            if self._open is not None:
                rows, block = self._open
                self.work.lender.returned(rows, block, 0, self.share.turn)
            self.share.close()
        if part.findings is None:
            part.findings = self.notes.told(0, over=True)
        part.busy = self.work.lender.busy()
        if part.over and part.error is None and not given_up:
            outcomes = getattr(self.share, "outcomes", None)
            part.outcomes = [] if outcomes is None else outcomes.told()
        yield part

    def _last(self, window: int) -> Part:
        return Part(self.work.worker, window, over=True)

    def _failed(self, error: BaseException) -> Part:
        """Say what ended the worker, and what it went on without in the window that nobody receives."""
        part, filled = self._last(self.window), self._part
        part.error = error
        part.counted = [] if filled is None else filled.counted
        if self.notes.skips or self.notes.drops:
            part.counted.append(self.notes.counted(self.work.span))
        return part

    def _passed(self, window: int) -> Part:
        """Say that the worker has nothing up to a window, whose parts others need not wait for."""
        return Part(self.work.worker, window, busy=self.work.lender.busy())

    def _parts(self) -> Iterator[Part]:
        if self.share.following >= NEVER:
            yield self._last(0)
            return
        window = self._window(self.share.following)
        if window > 0:
            yield self._passed(window - 1)
        samples = iter(self.share)
        while True:
            self.window = window
            granted = self._granted(window)
            rows = self.work.lender.rows(granted.layout, granted.columns)
            self._open = rows, granted.block
            self._part = part = Part(self.work.worker, window)
            self._fill(part, rows, samples)
            self._part = None
            yield self._finished(part, rows, granted)
            if part.over:
                return
            window = self._window(self.share.following)
            if window > part.window + 1:
                yield self._passed(window - 1)

    def _window(self, index: int) -> int:
        return (index - self.work.start) // self.work.span

    def _granted(self, window: int) -> Grant:
        before = time.perf_counter()
        granted = self.work.leave(window)
        self._waiting += time.perf_counter() - before
        return granted

    def _fill(self, part: Part, rows: Rows, samples: Iterator[tuple[Any, int]]) -> None:
        """Write samples into the window's rows."""
        share, watch, expect, put = self.share, self.work.watch, rows.expect, rows.put
        numbers, placed, beside = part.rows.append, part.placed.append, part.beside.append
        skips, drops, ends = self.notes.skips, self.notes.drops, 0
        first = self.work.start + part.window * self.work.span
        following, stop = share.following, first + self.work.span
        began = time.perf_counter()
        with given_by(rows.give if rows.mode != OFF else None), self.notes.counting:
            while following < stop:
                row = following - first
                expect(row)
                drawn = next(samples, None)
                if skips or drops:
                    part.counted.append(self.notes.counted(row))
                if drawn is None:
                    part.over = True
                    break
                index = following
                sample, share.following = drawn
                following = share.following
                if sample is not END:
                    if watch is not None:
                        watch(index, sample)
                    lies, rest = put(row, sample)
                    numbers(row)
                    placed(lies)
                    beside(rest)
                else:
                    ends += 1
                drawn = sample = rest = None
        part.over = part.over or following >= NEVER
        part.turns = len(part.rows) + ends
        self._working += time.perf_counter() - began

    def _finished(self, part: Part, rows: Rows, granted: Grant) -> Part:
        part.progress = self._progress(due=granted.eager or part.over)
        part.busy = self.work.lender.returned(rows, granted.block, len(part.rows), self.share.turn)
        self._open = None
        part.timings = self._working, self._waiting
        part.findings = self.notes.told(len(part.rows), over=part.over)
        self._working = self._waiting = 0.0
        return part

    def _progress(self, *, due: bool) -> Any:
        """Return what changed in the state: where it must be said, or where saying it takes little of the time."""
        self._since += self._working
        if not due and self._since < self._cost * _SAVING:
            return None
        began = time.perf_counter()
        progress = self.share.progress()
        self._cost, self._since = time.perf_counter() - began, 0.0
        return progress
