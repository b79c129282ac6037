"""Measures the time that each stage of a running pipeline takes for itself, and reports it.

Theory. Stages are generators that draw from each other, so a stage's own time is the time inside its ``next`` without
the time inside its upstream's. Between every two stages stands a *gate*, an iterator that lets items pass; now and
then one ``next`` of the last stage is a *timed step*, in which every gate reads the clock. A step that is timed after
``g`` that were not stands for ``g + 1``. The first step of a run, which opens shards and fills buffers, is timed and
stands for itself alone, as does the one that finds the end. How often steps are timed follows from what they take:
about one in two thousand seconds goes into reading the clock (more in the beginning, to have figures soon), and what
a reading takes is subtracted. Of a worker's virtual streams, which are alike, every fourth has gates.

:class:`~webdataset.flow.timing.TimedDataset` reads the clocks at every step, about half a microsecond for each stage
and sample; a loader, which times a few samples only, costs next to nothing.

Never changes an item, an order or a state; keeps no item but the one that a parked generator holds.
"""

import copy
import functools
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from webdataset.core.distributed import StreamNumber
from webdataset.core.error_handlers import SkipCounts, count_skipped
from webdataset.flow.stage_runner import OpaqueStageRunner, StageRunner
from webdataset.samples.native_core import find_native
from webdataset.stages.base import FilterFunction, Item, Stage, stage_title
from webdataset.stages.checks import CheckSamples
from webdataset.stages.read_shards import ReadShards

if TYPE_CHECKING:
    from webdataset.flow.elastic import ElasticRun
    from webdataset.flow.elastic_pipeline import ElasticPipeline
    from webdataset.flow.pipeline import DataPipeline
    from webdataset.flow.run import PipelineIterator


_MAX_WIDTH = 48


@dataclass(frozen=True)
class StageTime:
    """What one stage took.

    Args:
        name: as ``decode`` or ``map(augment at train.py:12)``.
        samples: that it gave.
        seconds: that it took for itself, without what it waited for the stages before it.
        share: its part of the seconds of all stages, from 0 to 1.
        skipped: failures in it that a handler let pass.
        dropped: samples that its function dropped by returning None.
    """

    name: str
    samples: int
    seconds: float
    share: float
    skipped: int = 0
    dropped: int = 0


def stage_times(
    rows: Iterable[tuple[str, int, float]], skips: Mapping[str, int], drops: Mapping[str, int] | None = None
) -> list[StageTime]:
    """Return what each stage took.

    Args:
        rows: name, samples, seconds, in the order of the pipeline.
        skips: failures that handlers let pass, by the name of a stage, with or without its function.
        drops: samples that functions dropped, likewise.

    Returns:
        One value for each row, and one for each name that something was counted under and that has no row.
    """
    rows = list(rows)
    whole = sum(seconds for _, _, seconds in rows) or 1.0
    left, gone = dict(skips), dict(drops or {})
    found = []
    for name, samples, seconds in rows:
        skipped = _take_count(left, name)
        if name == "reading":
            skipped += left.pop("opening", 0)
        found.append(StageTime(name, samples, seconds, seconds / whole, skipped, _take_count(gone, name)))
    others = [*left, *(name for name in gone if name not in left)]
    return found + [StageTime(name, 0, 0.0, 0.0, left.get(name, 0), gone.get(name, 0)) for name in others]


def _take_count(counts: dict[str, int], name: str) -> int:
    """Take the count of a stage out of others: under its whole name, or without its function."""
    exact = counts.pop(name, None)
    return counts.pop(name.partition("(")[0], 0) if exact is None else exact


def format_losses(skipped: int, dropped: int) -> str:
    """Return words on what was skipped; of samples that were dropped, where there were any."""
    return f"skipped {skipped}, dropped {dropped}" if dropped else f"skipped {skipped}"


def format_table(stages: Iterable[StageTime], *lines: str, estimated: bool = False) -> str:
    """Return a table of stages, and lines below it. Samples dropped have a column where there are any."""
    stages = list(stages)
    dropping = any(stage.dropped for stage in stages)
    heads = ("dropped",) if dropping else ()
    rows = [("stage", "~samples" if estimated else "samples", "ms/sample", "share", "skipped", *heads)]
    for stage in stages:
        each = f"{stage.seconds / stage.samples * 1e3:.3f}" if stage.samples else "-"
        last = (str(stage.dropped),) if dropping else ()
        rows.append((stage.name, str(stage.samples), each, f"{stage.share:.1%}", str(stage.skipped), *last))
    width = min(_MAX_WIDTH, max(len(name) for name, *_ in rows))
    shown = [
        f"{_shorten(name, width):<{width}}  {samples:>10}  {each:>10}  {share:>6}"
        + "".join(f"  {n:>7}" for n in counts)
        for name, samples, each, share, *counts in rows
    ]
    return "\n".join([*(shown if len(shown) > 1 else []), *lines])


def _shorten(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


BUDGET = 0.0005  # part of the time that reading clocks may take
_MAX_GAP = 512  # steps between two that are timed, at most
_STREAMS = 4  # one of so many virtual streams has gates
_OUTLIER = 4
_STEP = 6  # what a timed step costs beside its gates, in gates
_LEARNING = 200

Row = tuple[str, int, float]  # name, samples given, seconds


class StageMeter:
    """The clock of one worker, or of one run.

    Args:
        budget: part of the time that reading clocks may take; 1 times every step.
        clock: seconds, from any start.
        cost: seconds that timing takes in one gate; None is what it takes in this process.
    """

    def __init__(
        self, budget: float = BUDGET, clock: Callable[[], float] = time.perf_counter, cost: float | None = None
    ) -> None:
        self._budget = budget
        self._clock = clock
        self._cost = measure_gate_seconds() if cost is None else cost
        self._thread = threading.get_ident()
        self._names: list[str] = []
        self._rows: dict[Any, int] = {}
        self._edges = _StageSums()  # of the first and last steps of runs
        self._rest = _StageSums()  # of the others
        self._seconds: list[float] = []  # by row, in the present step
        self._samples: list[int] = []
        self._reported: list[tuple[int, float]] = []
        self._steps = 0  # timed, but edges
        self._inner = 0.0  # seconds inside the gates that the present one waits for
        self._pulls, self._taken = 0, 0.0  # in timed steps but edges
        self._streams: dict[int, bool] = {}
        self._random = random.Random(0)  # noqa: S311  decides when the clock is read
        self._gates = _Gates(self)

    @property
    def inside(self) -> "InnerMeter":
        """What pipelines are told that stand inside a stage."""
        return InnerMeter(self)

    # -- gates

    def attach(self, runners: Sequence[StageRunner], *, outer: bool = True) -> None:
        """Put gates after the runners of a run that is not open yet.

        Args:
            runners: the first is the source; those up to the reader count as one, ``reading``.
            outer: the last of them gives items to the consumer; otherwise to a stage that is timed itself.
        """
        if not runners or not self._chosen(runners[0].run.stream, outer=outer):
            return
        start = max((n for n, runner in enumerate(runners) if isinstance(runner.stage, ReadShards)), default=0)
        for number, runner in enumerate(runners[start:], start):
            last = outer and number == len(runners) - 1
            if isinstance(runner.stage, CheckSamples) and not last:
                continue
            row = self._row(number, find_report_name(runner, source=number == 0), outer=outer)
            runner.gate = functools.partial(self._gates.outlet if last else self._gates.gate, row=row)

    def _chosen(self, stream: StreamNumber | None, *, outer: bool) -> bool:
        if stream is None or self._budget >= 1:
            return True
        if not outer:
            return self._streams.get(stream.number, True)
        return self._streams.setdefault(stream.number, len(self._streams) % _STREAMS == 0)

    def _row(self, number: int, name: str, *, outer: bool) -> int:
        key = number, name, outer
        if key not in self._rows:
            again = sum(1 for known in self._rows if known[1] == name)
            self._names.append(f"{name} #{again + 1}" if again else name)
            self._seconds.append(0.0)
            self._samples.append(0)
            self._reported.append((0, 0.0))
            self._rows[key] = len(self._rows)
        return self._rows[key]

    def time_step(self, items: Iterator[Item], row: int) -> Item:
        """Draw an item through a gate in a timed step.

        Raises:
            StopIteration: there is none.
        """
        if threading.get_ident() != self._thread:
            return next(items)
        outer, self._inner = self._inner, 0.0
        began = self._clock()
        try:
            item = next(items)
        finally:
            taken = self._clock() - began
            self._seconds[row] += taken - self._inner
            self._inner = outer + taken + self._cost
            self._pulls += 1
        self._samples[row] += 1
        return item

    def step(self, items: Iterator[Item], row: int, weight: int, *, first: bool) -> Item:
        """Draw an item from the last stage in a timed step.

        Raises:
            StopIteration: there is none.
        """
        self._thread = threading.get_ident()
        self._inner = 0.0
        pulls, began = self._pulls, self._clock()
        edge = True
        try:
            item = self.time_step(items, row)
            edge = first
        finally:
            if edge:  # what opens shards says nothing about what steps take
                self._pulls = pulls
            else:
                taken = self._clock() - began
                usual = _OUTLIER * self._taken / self._steps if self._steps > _OUTLIER else taken
                self._taken += min(taken, usual)  # one that waited for a disk says little about the others
                self._steps += 1
            sums, scale = (self._edges, 1) if edge else (self._rest, weight)
            sums.add(self._seconds, self._samples, scale)
        (self._edges if first else self._rest).steps += weight
        return item

    def gap(self) -> int:
        """Return how many steps to let pass before the next timed one."""
        if self._budget >= 1:
            return 0
        spent = (self._pulls + _STEP * self._steps) * self._cost
        mean = min(spent / (max(self._taken, 1e-9) * self._budget), _MAX_GAP, self._steps * self._steps)
        return self._random.randint(0, int(2 * mean))

    # -- findings

    def rows(self) -> list[Row]:
        """Return name, samples and seconds of each stage, as they were timed."""
        return [(name, *found) for name, found in zip(self._names, self._sum(1.0, 1.0), strict=True)]

    def _sum(self, edges: float, rest: float) -> list[tuple[int, float]]:
        """Return samples and seconds of each row, the two kinds of steps times two numbers."""
        pairs = zip(
            self._edges.scale_rows(edges, len(self._names)), self._rest.scale_rows(rest, len(self._names)), strict=True
        )
        return [(round(a + c), max(0.0, b + d)) for (a, b), (c, d) in pairs]

    def estimate(self, delivered: int) -> list[Row]:
        """Return what the stages took since this was last called, for all steps and streams.

        Returns:
            Rows; what no timed step stands for yet is told later.
        """
        alike = len(self._streams) / sum(self._streams.values()) if self._streams else 1.0
        others = delivered - alike * self._edges.steps
        rest = max(0.0, others) / self._rest.steps if self._rest.steps else 0.0
        rows = []
        for place, (samples, seconds) in enumerate(self._sum(alike, rest)):
            before = self._reported[place]
            self._reported[place] = max(samples, before[0]), max(seconds, before[1])  # what was told is not taken back
            after = self._reported[place]
            rows.append((self._names[place], after[0] - before[0], after[1] - before[1]))
        return rows


class _StageSums:
    """Seconds and samples by row, over some timed steps.

    Attributes:
        steps: how many steps these stand for.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.samples: list[int] = []
        self.steps = 0

    def add(self, seconds: list[float], samples: list[int], scale: int) -> None:
        """Add a step, and empty it."""
        self._grow(len(seconds))
        for row, count in enumerate(samples):
            self.seconds[row] += seconds[row] * scale
            self.samples[row] += count * scale
            seconds[row], samples[row] = 0.0, 0

    def scale_rows(self, scale: float, rows: int) -> list[tuple[float, float]]:
        """Return samples and seconds of each row, times a number."""
        self._grow(rows)
        return [(samples * scale, seconds * scale) for samples, seconds in zip(self.samples, self.seconds, strict=True)]

    def _grow(self, rows: int) -> None:
        self.seconds += [0.0] * (rows - len(self.seconds))
        self.samples += [0] * (rows - len(self.samples))


class _Gates:
    """Makes the gates of a meter; they share a byte that says whether the present step is timed.

    The native core has both kinds: items pass them several times faster.

    Args:
        meter: reads the clock in the steps that are timed.
    """

    def __init__(self, meter: StageMeter) -> None:
        self._meter = meter
        self._timing = bytearray(1)
        self._core = find_native()

    def gate(self, items: Iterator[Any], row: int) -> Iterator[Any]:
        """Return what stands between two stages."""
        draw = functools.partial(self._meter.time_step, row=row)
        if self._core is not None:
            return cast("Iterator[Any]", self._core.Gate(items, draw, self._timing))
        return pass_gate(items, draw, self._timing)

    def outlet(self, items: Iterator[Any], row: int) -> Iterator[Any]:
        """Return what stands after the last stage."""
        weight, first = 1, True
        meter, timing = self._meter, self._timing

        def time_draw(items: Iterator[Any]) -> tuple[Any, int]:
            nonlocal weight, first
            timing[0] = 1
            try:
                item = meter.step(items, row, weight, first=first)
            finally:
                timing[0] = 0
            gap = meter.gap()
            weight, first = gap + 1, False
            return item, gap

        if self._core is not None:
            return cast("Iterator[Any]", self._core.Outlet(items, time_draw))
        return pass_outlet(items, time_draw)


def pass_gate(items: Iterator[Item], draw: Callable[[Iterator[Item]], Item], timing: bytearray) -> Iterator[Item]:
    """Let items pass.

    Args:
        items: the items.
        draw: draws one that is timed.
        timing: its first byte says whether the present step is.
    """
    try:
        while True:
            yield draw(items) if timing[0] else next(items)
    except StopIteration:
        return


def pass_outlet(items: Iterator[Item], draw: Callable[[Iterator[Item]], tuple[Item, int]]) -> Iterator[Item]:
    """Let items pass.

    Args:
        items: the items.
        draw: draws one that is timed; gives it and how many pass before the next of those.
    """
    gap = 0
    try:
        while True:
            yield from islice(items, gap)
            item, gap = draw(items)
            yield item
            del item
    except StopIteration:
        return


class InnerMeter:
    """The meter as a pipeline knows it that stands inside a stage of another: a source of a mix, say."""

    def __init__(self, meter: StageMeter) -> None:
        self._meter = meter

    def attach(self, runners: Sequence[StageRunner]) -> None:
        """Put gates after the runners of a run."""
        self._meter.attach(runners, outer=False)

    @property
    def inside(self) -> "InnerMeter":
        """What a pipeline inside this one is told."""
        return self


@functools.cache
def measure_gate_seconds() -> float:
    """Return what one gate's timing takes, measured once in this process."""
    meter = StageMeter(1.0, cost=0.0)
    row = meter._row(0, "", outer=True)  # noqa: SLF001  a meter of its own
    times = []
    items = iter(range(_LEARNING))
    for _ in range(_LEARNING):
        began = time.perf_counter()
        meter.time_step(items, row)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def find_report_name(runner: StageRunner, *, source: bool = False) -> str:
    """Return what a runner is called in reports, as ``map(augment at train.py:12)``."""
    stage: object = runner.stage
    if isinstance(stage, ReadShards):
        return "reading"
    if isinstance(runner, OpaqueStageRunner):
        foreign = runner.foreign
        if not source and callable(foreign) and not isinstance(foreign, type) and not isinstance(foreign, Stage):
            return stage_title("stage", foreign)
        stage = foreign
    if isinstance(stage, FilterFunction):
        given = [*stage.args, *(value for name, value in stage.kw.items() if name != "handler")]
        own = str(getattr(stage.f, "__name__", type(stage.f).__name__)).lstrip("_")
        return stage_title(own, *(value for value in given if callable(value)))
    text = repr(stage).partition("(")[0] if isinstance(stage, Stage) else type(stage).__name__
    text = type(stage).__name__ if " object at 0x" in text else text
    f = getattr(stage, "f", None)
    return stage_title(text, f) if callable(f) else text


_END: Any = object()


def _as_elastic(dataset: "DataPipeline") -> "ElasticPipeline | None":
    """Return a dataset that is read in virtual streams; None for another one."""
    return cast("ElasticPipeline", dataset) if getattr(dataset, "streams", None) else None


class TimedDataset:
    """Iterates over a pipeline's items and times its stages; each iteration is an epoch, and adds to the figures.

    Args:
        dataset: a pipeline; a copy of it runs, first after the state that was loaded into it, if one was.

    Attributes:
        samples: items given (batches, where the pipeline makes batches).
        seconds: spent on them; what the caller does in between does not count.
    """

    def __init__(self, dataset: "DataPipeline") -> None:
        self.samples = 0
        self.seconds = 0.0
        self._meter = StageMeter(budget=1.0)
        self._skips, self._drops = SkipCounts(), SkipCounts()
        elastic = _as_elastic(dataset)
        self._pending = None if elastic is None else elastic.pending
        self._dataset = copy.copy(dataset)
        self._dataset.meter = self._meter

    def __iter__(self) -> Iterator[Any]:
        """Yield the dataset's items."""
        items = self._start_run()
        try:
            while True:
                began = time.perf_counter()
                try:
                    with count_skipped(self._skips, self._drops):
                        item = next(items, _END)
                finally:
                    self.seconds += time.perf_counter() - began
                if item is _END:
                    return
                self.samples += 1
                yield item
                del item
        finally:
            items.close()

    def _start_run(self) -> "ElasticRun | PipelineIterator":
        elastic = _as_elastic(self._dataset)
        if elastic is None:
            return cast("PipelineIterator", iter(self._dataset))
        pending, self._pending = self._pending, None
        run = elastic.elastic_run(state=pending)
        run.meter = self._meter
        return run

    @property
    def stages(self) -> list[StageTime]:
        """What each stage has taken."""
        return stage_times(self._meter.rows(), self._skips, self._drops)

    @property
    def skips(self) -> dict[str, int]:
        """Failures that handlers let pass, by stage."""
        return dict(self._skips)

    @property
    def skipped(self) -> int:
        """Failures that handlers let pass: samples, or the rest of a shard."""
        return sum(self._skips.values())

    @property
    def drops(self) -> dict[str, int]:
        """Samples that functions dropped by returning None, by stage."""
        return dict(self._drops)

    @property
    def dropped(self) -> int:
        """Samples that functions dropped by returning None."""
        return sum(self._drops.values())

    def report(self) -> str:
        """Return a table: what each stage took for each sample it gave, and its share."""
        speed = self.samples / self.seconds if self.seconds else 0.0
        gone = format_losses(self.skipped, self.dropped)
        return format_table(self.stages, f"{self.samples} items in {self.seconds:.3f} s: {speed:.0f}/s, {gone}")
