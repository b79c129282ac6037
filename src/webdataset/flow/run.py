"""Runs a pipeline for one or more passes, up to a number of items, and takes snapshots of the run.

A snapshot is a JSON value from which an equal run continues. See docs/design/stages.md for the order in which stages
are restored. Each pass is an epoch with an order of its own. A pass that gives nothing ends the loop.
"""

import contextlib
import itertools
import sys
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Self

from webdataset.core.distributed import RunContext, StreamNumber, is_single_worker
from webdataset.core.error_handlers import count_skipped
from webdataset.core.errors import FlowError, NoSamples, StateMismatch
from webdataset.core.json_types import SplitJson
from webdataset.flow.outcomes import DrawWatch, Outcomes, has_empty_check, judge_outcomes
from webdataset.flow.snapshot_checks import VERSION, check_snapshot, find_generators, parse_earlier, parse_snapshot
from webdataset.flow.stage_runner import OpaqueStageRunner, StageRunner, StreamShareRunner
from webdataset.samples.sample_reader import Position
from webdataset.shards.split import StreamShare
from webdataset.stages.base import Address, Composed, Json, Output, Run, Stage
from webdataset.stages.mix_sources import is_startable
from webdataset.stages.randomness import user_generators
from webdataset.stages.read_shards import ReadShards, find_position

END: Any = object()
_NO_GENERATOR = SimpleNamespace(gi_suspended=False)
_write_nothing: Callable[[], SplitJson | None] = itertools.repeat(None).__next__
NO_POSITION = Position()  # of what is asked for each item; never changed


class Flow(Generic[Output]):
    """A pipeline that is being iterated.

    Attributes:
        writers: of the stages that are resumed, each gives the stage's memory in two parts, or None.
        suspended: as long as these generators are, none of these stages has ended; where one had ended before the run,
            one of them never is.

    Args:
        stages: the first is the source.
        run: seed and epoch; ``tracked`` runs can be snapshot.
        state: what ``snapshot`` of an equal flow returned, to continue after it; None starts at the beginning.
        is_waiting: tells whether the pass has given nothing yet; None: it has, until ``first`` has given something.

    Raises:
        StateMismatch: ``state`` belongs to other stages.
    """

    def __init__(
        self, stages: Sequence[object], run: Run, state: Json = None, is_waiting: Callable[[], bool] | None = None
    ) -> None:
        if state is not None:
            check_snapshot(state)
            run = replace(run, seed=state["seed"], common=state["common"], epoch=state["epoch"], tracked=True)
        elif run.stream is not None and not run.tracked:
            # the order within a stream's buffers follows from addresses
            run = replace(run, tracked=True)
        context = run.context or RunContext()
        self.run = run if run.context is context else replace(run, context=context)
        self._context = context
        self._stages: Sequence[object] | None = stages  # until it was told what became of their samples
        self._resumed = state is not None
        # for the first item
        self._waiting = [True]
        self._is_waiting = is_waiting or partial(all, self._waiting)
        with context:
            self.runners = _make_runners(stages, self.run)
            self._first = max((n for n, runner in enumerate(self.runners) if runner.rewinds), default=0)
            if run.walks is not None and (state is None or state["ended"] is None):
                # the share of a stream is taken from the worker's walk over the list of shards
                for runner in self.runners:
                    if isinstance(runner, StreamShareRunner):
                        runner.join_walk()
            if state is None:
                self._open()
            else:
                with count_skipped(None):  # what is done once more was counted before the state was saved
                    self._restore(state)
                    self._open()
        kept = self.runners[self._first :]
        self.writers = [runner.writer() or _write_nothing for runner in kept]
        self.suspended: list[Any] = [
            _NO_GENERATOR if runner.over or not hasattr(runner.items, "gi_suspended") else runner.items
            for runner in kept
            if runner.over or hasattr(runner.items, "gi_frame")
        ]
        self._last = self.runners[-1] if self.runners else None
        self.items: Iterator[Any] = self._last.draw() if self._last is not None else iter(())
        # of a reader that stands last: what it has read can be given without asking it
        self.position = NO_POSITION
        if run.stream is not None and self._last is not None:
            self.position = find_position(self.items, self._last.state) or NO_POSITION

    def _open(self) -> None:
        if self.run.meter is not None:
            self.run.meter.attach(self.runners)
        runners = self.runners
        for place, runner in enumerate(runners):
            if isinstance(runner, StreamShareRunner) and runner.walk is not None:
                # what comes before is drawn there
                runners = runners[place:]
                state = runners[1].state
                runner.first_input = 0 if state is None else state.first_input
        watch = DrawWatch.of(self.runners, self._is_waiting)
        for runner in runners:
            if not runner.over:
                runner.open()
                if watch is not None and runner is self.runners[watch.place]:
                    # the runner keeps its generator, which tells snapshots whether it has ended
                    runner.gate = watch.follow(runner.gate)

    def first(self) -> Output:
        """Return the first item, or ``END``: stages ask for rank and settings while it is made."""
        with self._context:
            item: Output = next(self.items, END)
        if item is END:
            self.items = iter(())
        self._waiting[0] = False
        return item

    def __iter__(self) -> Iterator[Any]:
        return self.items

    def __next__(self) -> Output:
        item: Output = next(self.items)
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all generators, the last first, and with them every stream they hold; a snapshot can still be taken."""
        self.position = NO_POSITION
        for runner in self.runners:
            runner.over = runner.ended
        for runner in reversed(self.runners):
            runner.close()
        stages, self._stages = self._stages, None
        if stages is not None and self.run.outcomes is not None and has_empty_check(stages):
            self.run.outcomes.take(self.runners, resumed=self._resumed)

    def snapshot(self) -> Json:
        """Return the state after the item given last, as a JSON value.

        Raises:
            StateMismatch: the run is not tracked.
        """
        if not self.run.tracked:
            raise StateMismatch("this run keeps no addresses: start it tracked to take snapshots")
        first = self._first
        return {
            "version": VERSION,
            "seed": self.run.seed,
            "common": self.run.common,
            "epoch": self.run.epoch,
            "stages": [runner.name for runner in self.runners[first:]],
            "first": first,
            "ended": self.find_last_end(),
            "memories": [runner.snapshot() for runner in self.runners[first:]],
            "generators": self.first_generators(),
        }

    def first_generators(self) -> dict[str, Json]:
        """Return what users' generators were before the run, for the stages that a resumed run begins again.

        Raises:
            FlowError: a generator whose state cannot be saved, or that two stages draw from.
        """
        drawing = [(number, runner) for number, runner in enumerate(self.runners) if runner.generators]
        live = [id(generator) for _, runner in drawing for generator in user_generators(runner.stage)]
        shared = len({*live}) < len(live)
        again = {str(number): runner.first_generators() for number, runner in drawing if number < self._first}
        if again and shared:
            raise FlowError(
                "two stages draw from one random generator, so that none can be replayed: give each its own"
            )
        return again

    def use_generators(self, states: dict[str, Json] | None) -> None:
        """Let replays draw from users' generators as they were before an earlier run of these stages.

        Args:
            states: what ``first_generators`` was of that run; None where that is not known: then no replay draws.
        """
        for number, runner in enumerate(self.runners):
            if runner.generators:
                known = None if states is None else states.get(str(number))
                runner.generators = None if known is None else runner.copy_generators(known)

    def find_last_end(self) -> int | None:
        """Return the number of the last stage that has ended, of those that have a memory; None where none has."""
        first = self._first
        return max((n for n, runner in enumerate(self.runners) if n >= first and runner.ended), default=None)

    def present_url(self) -> str:
        """Return the url of the shard that is being read; nothing where that is not known."""
        return "" if self._last is None else self._last.present_url()

    def trace(self) -> Json:
        """Return how far the pass has read, for a replay to compare."""
        return [] if self._last is None else self._last.traces()

    def address(self) -> Address:
        """Return the address of the item given last (tracked runs)."""
        return self._last.address() if self._last is not None else None

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Make the items at some addresses of this run once more."""
        return self._last.fetch(addresses) if self._last is not None else []

    def _restore(self, state: Json) -> None:
        first = self._first
        names = [runner.name for runner in self.runners[first:]]
        if state["first"] != first or state["stages"] != names:
            raise StateMismatch(
                f"the snapshot was taken of other stages: from stage {state['first']} on {', '.join(state['stages'])}; "
                f"this pipeline has, from stage {first} on, {', '.join(names)}"
            )
        for number, generators in find_generators(state, len(self.runners)).items():
            self.runners[number].restore_generators(generators)
        for runner, stage_state in zip(self.runners[first:], state["memories"], strict=True):
            try:
                runner.restore(stage_state)
            except (KeyError, TypeError, IndexError, AttributeError) as error:
                raise StateMismatch(f"the snapshot's memory of {runner.name} cannot be read: {error!r}") from error
        if state["ended"] is not None:
            for runner in self.runners[: state["ended"] + 1]:
                runner.over = True


def build_runners(stages: Sequence[object], run: Run) -> tuple[int, list[StageRunner]]:
    """Return the runners that a run would have, none of them started, and the number of the one it would resume at."""
    runners = _make_runners(stages, run)
    return max((n for n, runner in enumerate(runners) if runner.rewinds), default=0), runners


def _make_runners(stages: Sequence[object], run: Run) -> list[StageRunner]:
    stages = expanded = expand_stages(stages)
    if run.tracked and stages and is_startable(stages[0]) and not isinstance(stages[0], Stage):
        from webdataset.stages.mix import RoundRobin  # noqa: PLC0415  only for pipelines in pipelines

        # a pipeline as the source of another: resumed by its own snapshot
        stages = [RoundRobin(stages[:1]), *stages[1:]]
    for stage in stages:
        if getattr(stage, "needs_whole_shards", False):
            run = replace(run, whole_shards=True)
    if run.stream is None:
        split = _count_shared_stages(stages)
    else:
        from webdataset.flow.stream_stages import stages_of_stream  # noqa: PLC0415  only for datasets in streams; it knows many stages

        known = type(expanded) is ExpandedStages and expanded.streamable
        stages, split = stages_of_stream(stages, run.stream, known=known, whole=run.whole_shards)
        if type(expanded) is ExpandedStages:
            expanded.streamable = True
    runners: list[StageRunner] = []
    inside = None if run.meter is None else run.meter.inside
    kinds = list(map(_choose_runner, stages))
    for position, (kind, stage) in enumerate(zip(kinds, stages, strict=True)):
        # stages that are not ours ask, in their states, how far what comes before them has read
        later = kinds[position + 1 :]
        traced = run.traced or later.count(StageRunner) < len(later)
        # dataclasses.replace takes five times as long, and the streams of a worker have many stages
        here: Run = object.__new__(Run)
        here.__dict__.update(run.__dict__, position=position, shared=position < split, traced=traced, meter=inside)
        runners.append(kind(stage, here, runners[-1] if runners else None))
    return runners


def _choose_runner(stage: object) -> type[StageRunner]:
    """Return what runs a stage; ours are those that are transparent, rewind, or have a state."""
    if isinstance(stage, StreamShare):
        return StreamShareRunner
    if not isinstance(stage, Stage):
        return OpaqueStageRunner
    own = stage.transparent or stage.rewinds or type(stage).begin is not Stage.begin
    return StageRunner if own else OpaqueStageRunner


class ExpandedStages(list[object]):
    """Stages that stand for nothing further; made once for all streams of a worker, and never changed.

    Attributes:
        streamable: they are known to run in streams.
    """

    streamable = False


def expand_stages(stages: Sequence[object]) -> list[Any]:
    """Return the stages that the entries of a pipeline stand for."""
    if type(stages) is ExpandedStages:
        return stages
    return [step for stage in stages for step in _expand_stage(stage)]


def _expand_stage(stage: object) -> Sequence[Any]:
    """Return the stages that one entry of a pipeline stands for.

    ``tarfile_samples`` used uncalled is the reader; a composition is its steps, each with a state of its own. The
    reader of a dataset stands for its checks too.
    """
    if isinstance(stage, Composed):
        return stage.steps
    if isinstance(stage, ReadShards):
        return [*stage.before, stage.bare(), *stage.after]
    known = getattr(stage, "as_stage", None)
    return [known()] if known is not None and not isinstance(stage, Stage) else [stage]


def _count_shared_stages(stages: Sequence[object]) -> int:
    """Return the number of stages before samples are read or shards are split, whose generators all workers share."""
    marks = [
        position
        for position, stage in enumerate(stages)
        if isinstance(stage, ReadShards) or getattr(stage, "splits", False)
    ]
    return min(marks[0] if marks else 0, len(stages))


STREAMS = 24  # of an elastic dataset that is not told how many
ENDLESS = sys.maxsize
KEPT_PASSES = 32  # of which the generators that users gave are known, about 3 KB each
EMPTY_PASSES = 100  # of a stream that is to begin again forever, before that counts as having no samples


@dataclass(frozen=True)
class Bounds:
    """How long a pipeline runs.

    Args:
        passes: number of passes over the source.
        items: number of items after which the run ends, over all passes; None for no bound.
        retries: passes that give nothing, as a chance selection of few items may, before that counts as an end.
        endless: such an end is an error.
        fixed: ``items`` is the length of an epoch, of which each rank is to give an equal part.
    """

    passes: int = 1
    items: int | None = None
    retries: int = 0
    endless: bool = False
    fixed: bool = False

    def share_for(self, stream: StreamNumber) -> "Bounds":
        """Return how long one virtual stream runs, so that all together give the positions ``[0, items)``."""
        items = None if self.items is None else len(range(stream.number, self.items, stream.of))
        if self.passes < ENDLESS or self.endless:
            return replace(self, items=items)
        return replace(self, items=items, retries=max(self.retries, EMPTY_PASSES), endless=True)


def item_bound(pipeline: object) -> int | None:
    """Return after how many items an iteration over a pipeline ends, or None where it has no such bound."""
    items = getattr(pipeline, "nsamples", None)
    return items if items is not None and items > 0 else None


class Loop(Generic[Output]):
    """A pipeline that is being iterated, pass after pass.

    Args:
        stages: the first is the source.
        run: seed, epoch of the first pass; ``tracked`` runs can be snapshot.
        bounds: how many passes and items.
        state: what ``snapshot`` of an equal loop returned; None starts at the beginning.
    """

    def __init__(self, stages: Sequence[object], run: Run, bounds: Bounds = Bounds(), state: Json = None) -> None:
        self._stages = stages if isinstance(stages, ExpandedStages) else list(stages)
        self._bounds = bounds
        self.bound = ENDLESS if bounds.items is None else bounds.items
        self.count = 0  # items given, over all passes
        self.passed = 0  # passes completed
        self._before = 0  # items given before this pass
        self._empty = 0  # passes in a row that gave nothing
        self._over = False
        inner = None
        if state is not None:
            self.count, self.passed, given, inner = parse_snapshot(state)
            self._before = self.count - given
            run = replace(run, tracked=True)
        # what users' generators were before each of the last passes, where a replay of one draws from them
        self._earlier: dict[int, dict[str, Json]] = {} if state is None else parse_earlier(state)
        self._outcomes: Outcomes | None = None  # where no other part judges
        if run.outcomes is None:
            self._outcomes = Outcomes()
            run = replace(run, outcomes=self._outcomes)
        self.flow = Flow(self._stages, run, inner, self._watch_count())

    @property
    def count_in_pass(self) -> int:
        """Items given in this pass."""
        return self.count - self._before

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Output:
        while not self._over and self.count < self.bound:
            item: Output = next(self.flow.items, END)
            if item is not END:
                self.count += 1
                return item
            self._over = not self._start_next_pass()
        self.close()
        self._judge()
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def iterate_fast(self) -> Iterator[Any]:
        """Yield what ``next`` would give, at the speed of a generator (which is not kept here: no cycle, no leak)."""
        while not self._over and self.count < self.bound:
            first = self.flow.first()
            if first is not END:
                self.count += 1
                yield first
            del first
            if self.count >= self.bound:
                return
            for item in self.flow:
                self.count += 1
                yield item
                if self.count >= self.bound:
                    return
            self._over = not self._start_next_pass()
        self._judge()

    def _judge(self) -> None:
        """Judge what became of the samples, once, at the end of the last pass."""
        outcomes, self._outcomes = self._outcomes, None
        if outcomes is not None and self._over:
            judge_outcomes(outcomes.summarize(), whole=is_single_worker())

    def _start_next_pass(self) -> bool:
        """End a pass; begin the next one if there is to be one."""
        self.flow.close()
        self._note_generators()
        self.passed += 1
        if self.count >= self.bound or self.passed >= self._bounds.passes:
            return False
        self._empty = 0 if self.count_in_pass else self._empty + 1
        if self._empty > self._bounds.retries:
            if self._bounds.endless:
                raise NoSamples(_explain_empty_passes(self.flow.runners, self._empty))
            return False
        self._before = self.count
        run = self.flow.run
        self.flow = Flow(self._stages, replace(run, epoch=run.epoch + 1), is_waiting=self._watch_count())
        return True

    def _watch_count(self) -> Callable[[], bool]:
        """Return what tells whether this pass has given nothing yet; it holds nothing of the run."""
        refer = weakref.ref(self)
        return lambda: (loop := refer()) is not None and not loop.count_in_pass

    def _note_generators(self) -> None:
        """Keep what users' generators were before this pass: items of it may wait in buffers of later stages."""
        if not self.flow.run.tracked or not any(runner.generators for runner in self.flow.runners):
            return
        # one whose state cannot be saved is refused by what asks for the state
        with contextlib.suppress(FlowError):
            if states := self.flow.first_generators():
                self._earlier[self.passed] = states
                self._earlier.pop(self.passed - KEPT_PASSES, None)

    def close(self) -> None:
        """Close every generator and stream; a snapshot can still be taken."""
        self.flow.close()

    def snapshot(self) -> Json:
        """Return the state after the item given last, as a JSON value."""
        parts = {"count": self.count, "passed": self.passed, "given": self.count_in_pass, "flow": self.flow.snapshot()}
        earlier = {str(passed): states for passed, states in self._earlier.items()}
        return {**parts, "earlier": earlier} if earlier else parts

    def split_snapshot(self) -> Json:
        """Return what of the snapshot the run and the description do not tell, as a plain JSON value.

        That is ``[count, passed, given, ended, memories]``, each memory in two parts (see ``StageState``).
        """
        count, flow, ended = self.count, self.flow, None
        # whether a generator is suspended is seen without a call, and without making a frame object
        for generator in flow.suspended:
            if not generator.gi_suspended:
                ended = flow.find_last_end()
                break
        writers = flow.writers
        memories = [writers[0]()] if len(writers) == 1 else [write() for write in writers]
        return [count, self.passed, count - self._before, ended, memories]

    def present_url(self) -> str:
        """Return the url of the shard that is being read; nothing where that is not known."""
        return self.flow.present_url()

    def trace(self) -> Json:
        """Return how far the present pass has read, for a replay to compare."""
        return [self.passed, self.flow.trace()]

    def address(self) -> Address:
        """Return the address of the item given last: its pass, and its address there."""
        return [self.passed, self.flow.address()]

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Make the items at some addresses once more, each in its pass.

        Raises:
            FlowError: that would take a user's generator as it was before a pass of which this is not known any more.
        """
        found: dict[str, Any] = {}
        for passed in sorted({address[0] for address in addresses}):
            inner = [address[1] for address in addresses if address[0] == passed]
            epoch = self.flow.run.epoch - self.passed + passed
            flow = self.flow
            if passed != self.passed:
                flow = Flow(self._stages, replace(flow.run, epoch=epoch))
                flow.use_generators(self._earlier.get(passed))
            for address, item in zip(inner, flow.fetch(inner), strict=True):
                found[repr([passed, address])] = item
        return [found[repr([address[0], address[1]])] for address in addresses]


def _explain_empty_passes(runners: Sequence[StageRunner], passes: int) -> str:
    """Return the message of the error about a source that is to repeat without end, and has nothing to give."""
    run = runners[0].run
    if run.stream is not None and any(runner.run.whole_shards for runner in runners):
        return (
            f"stream {run.stream.number} of {run.stream.of} gave nothing in {passes} passes: a stage joins samples "
            "that stand next to each other, so that each stream reads whole shards, and this one has none, or "
            "empty ones. Write elastic(streams=n) with at most as many streams as there are shards, or use more shards"
        )
    return (
        f"a source that is to repeat without end gave nothing in {passes} passes: give it more samples or shards, a "
        "larger subsample, or use fewer workers (or streams, where it is elastic)"
    )


STATE_METHODS = frozenset(["state_dict", "load_state_dict"])


class PipelineIterator(itertools.chain[Any]):
    """The items of one iteration over a pipeline.

    It passes on what a generator gives, in C, so that an item takes no longer; and it says what has a state.
    """

    _items: Generator[Any]

    def __new__(cls, items: Generator[Any]) -> Self:
        """Return an iterator over ``items``."""
        self = super().__new__(cls, items)
        self._items = items
        return self

    def close(self) -> None:
        """End the iteration, and close what it has open."""
        self._items.close()

    if not TYPE_CHECKING:  # a checker would take every name for one of this class

        def __getattr__(self, name: str) -> object:
            """Say what has a state."""
            if name in STATE_METHODS:
                raise missing_state_error(self, name)
            return object.__getattribute__(self, name)


def missing_state_error(asked: object, name: str) -> AttributeError:
    """Return the error for asking something for a state that has none."""
    return AttributeError(
        f"{type(asked).__name__!r} object has no attribute {name!r}: make it elastic, dataset.elastic()"
    )
