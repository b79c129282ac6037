"""Runs one stage of a pipeline: its state, its generator, and how its items are made again.

A stage is one of ours, a ``PipelineStage``, any callable or any iterable. Its runner gives an iterator, an address
for each item, and ``fetch``. See docs/design/stages.md.

A replay runs copies of the runners, made by the constructor that made the runners of the first run, and started by
the same ``open``. There is no second way to start a stage, so that a replay cannot differ from what it repeats.
"""

import copy
import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from types import GeneratorType
from typing import Any, cast

from webdataset.core.distributed import thread_context
from webdataset.core.error_handlers import count_skipped, skip_items
from webdataset.core.errors import FlowError, StateMismatch, UsageError
from webdataset.core.json_types import SplitJson
from webdataset.core.tracebacks import warn_user
from webdataset.samples.shard_identity import compare_traces, is_lenient, warn_changed_shard
from webdataset.shards.shard_walk import OpenList, ShardWalk, WalkName
from webdataset.stages import randomness
from webdataset.stages.base import Address, Json, Outcome, Run, Stage, StageState, describe_function, normalize_json
from webdataset.stages.mix_sources import refuse_unrepeatable
from webdataset.stages.read_shards import ReadShards


class StageRunner:
    """A stage in a run.

    Attributes:
        state: the stage's state, or None.
        items: the generator; made by ``open``.
        over: the generator had ended before the snapshot that this run continues.
        generators: users' random generators that the stage draws from, as they were before the run; none where the run
            is not tracked, None where that is not known.
    """

    def __init__(self, stage: Stage, run: Run, before: "StageRunner | None") -> None:
        self.stage = stage
        self.run = run
        self.before = before
        drawing = randomness.user_generators(stage) if run.tracked else []
        self.generators: list[randomness.Rng] | None = copy.deepcopy(drawing) if drawing else []
        self.state: StageState | None = stage.begin(run)
        self.items: Iterator[Any] = iter(())
        self.over = False
        self.closed = False
        self.gate: Callable[[Iterator[Any]], Iterator[Any]] | None = None  # times what is drawn from here
        self.outcome = Outcome() if stage.drops else None
        if self.state is not None:
            self.state.run_context = run
            if run.tracked and before is not None:
                self.state.origin = before.address

    @property
    def rewinds(self) -> bool:
        """True where this stage restores itself from a fresh runner before it."""
        return self.stage.rewinds or self.before is None

    def open(self) -> Iterator[Any]:
        """Start the generator."""
        upstream = self.before.draw() if self.before is not None else iter(())
        state = self.state
        if self.outcome is not None:
            state = StageState() if state is None else state
            state.outcome = self.outcome
        self.items = self.stage.flow(upstream, state)
        return self.items

    def draw(self) -> Iterator[Any]:
        """Return the items, through the gate where there is one."""
        return self.items if self.gate is None else self.gate(self.items)

    @property
    def name(self) -> str:
        """What the stage is called in snapshots: its function or class, without arguments."""
        return stage_name(self.stage)

    @property
    def ended(self) -> bool:
        """True where the generator has ended, whether its input has or a handler chose to stop."""
        return self.over or (not self.closed and getattr(self.items, "gi_frame", self) is None)

    def address(self) -> Address:
        """Return the address of the item yielded last."""
        if self.state is not None:
            return self.state.address
        return self._before().address()

    def snapshot(self) -> Json:
        """Return the state as JSON, or None."""
        return self.state.snapshot() if self.state is not None else None

    def traces(self) -> list[Json]:
        """Return how far this stage and those before it have read, the first one first, for a replay to compare."""
        before = [] if self.before is None else self.before.traces()
        trace = None if self.state is None else self.state.trace()
        return before if trace is None else [*before, trace]

    def present_url(self) -> str:
        """Return the url of the shard that is read here or before; nothing where that is not known."""
        url = "" if self.state is None else self.state.present_url()
        return url if url or self.before is None else self.before.present_url()

    def writer(self) -> Callable[[], SplitJson] | None:
        """Return a function that gives the state in two plain parts, for calls at every step; None without a state."""
        state = self.state
        if state is None:
            return None
        return state.writer() if state.plain else self._write_plain

    def _write_plain(self) -> SplitJson:
        """Return the state as a plain JSON value, all of it as what changes, as a part of its stream."""
        context = thread_context
        before = context.stream
        context.stream = self.run.stream
        try:
            return [normalize_json(self.snapshot()), None]
        finally:
            context.stream = before

    def restore(self, state: Json) -> None:
        """Take up a snapshot before ``open``."""
        if self.state is not None:
            self.state.restore(state, self._before().fetch if self.before is not None else _refuse_fetch)
        elif state is not None:
            raise StateMismatch(f"the snapshot has a memory for {self.stage!r}, which has none")

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Make the items at some addresses once more."""
        if not addresses:
            return []
        if isinstance(self.stage, ReadShards):
            with self._before().look_up(min(address[0] for address in addresses)) as shards:
                return self.stage.fetch_from(shards, addresses)
        before = self.before.fetch if self.before is not None else _refuse_fetch
        return self.stage.refetch(addresses, before, self.state)

    def first_generators(self) -> list[Json]:
        """Return the states that users' generators had before the run."""
        return [randomness.rng_state(generator) for generator in self.generators or ()]

    def restore_generators(self, states: list[Json]) -> None:
        """Set users' generators to the states that they had before the run that is restored; called before ``open``."""
        for generator, state in zip(self._match_generators(states), states, strict=True):
            randomness.restore_rng(generator, state)
        self.generators = self.copy_generators(states)

    def copy_generators(self, states: list[Json]) -> list[randomness.Rng]:
        """Return copies of users' generators, in some states."""
        copies = copy.deepcopy(self._match_generators(states))
        for generator, state in zip(copies, states, strict=True):
            randomness.restore_rng(generator, state)
        return copies

    def _match_generators(self, states: list[Json]) -> list[randomness.Rng]:
        """Return users' generators, one for each state."""
        own = randomness.user_generators(self.stage)
        if len(own) != len(states):
            raise StateMismatch(f"the snapshot has {len(states)} random generators for {self.stage!r}, not {len(own)}")
        return own

    def copy(self) -> "StageRunner":
        """Return this stage and those before it as they were before the run: same stages and runs, new states."""
        if self.generators is None:
            raise FlowError(
                "an item of an earlier pass waits in a buffer, and is made again by drawing from the generator that "
                f"{self.stage!r} was given, whose state before that pass is not known any more: give the stage seed= "
                "in place of rng=",
                stage=repr(self.stage),
            )
        # the run continues drawing from users' own generators, and the replay from others
        return self._copy_with_stage(randomness.replace_generators(self.stage, iter(copy.deepcopy(self.generators))))

    def _copy_with_stage(self, stage: Stage) -> "StageRunner":
        # a replay is not measured: what it does was measured in the first run
        run = replace(self.run, meter=None, outcomes=None, readers=None, walks=None)
        return type(self)(stage, run, None if self.before is None else self.before.copy())

    def chain(self) -> "list[StageRunner]":
        """Return this stage and those before it, the first one first."""
        before = [] if self.before is None else self.before.chain()
        return [*before, self]

    @contextmanager
    def replay(self) -> Iterator[Iterator[Any]]:
        """Run this stage and those before it from the start of the pass once more; give an iterator over the items."""
        last = self.copy()
        runners = last.chain()
        try:
            for runner in runners:
                runner.open()
            # what a replay continues without was counted in the first run
            with count_skipped(None):
                yield last.items
        finally:
            for runner in runners:
                runner.close()

    @contextmanager
    def look_up(self, first: int) -> Iterator[Iterator[Any]]:  # noqa: ARG002  where there is another way than a replay
        """Give an iterator over the items from the start of the pass; those before ``first`` may be others."""
        with self.replay() as items:
            yield items

    def close(self) -> None:
        """Close the generator."""
        self.closed = True
        close = getattr(self.items, "close", None)
        if close is not None:
            close()

    def _before(self) -> "StageRunner":
        if self.before is None:
            raise FlowError(f"stage {self.stage!r} has nothing before it")
        return self.before


def stage_name(stage: object) -> str:
    """Return what a stage is called in states: the ``state_name`` of its function or class, else its qualified name."""
    called = stage.foreign if isinstance(stage, _OpaqueStage) else getattr(stage, "f", stage)
    for holder in (called, type(called)):
        known = getattr(holder, "__dict__", {}).get("state_name")
        if isinstance(known, str):
            return known
    return str(getattr(called, "__qualname__", type(called).__qualname__)).rpartition(".<locals>.")[2]


def _refuse_fetch(addresses: list[Address]) -> list[Any]:
    """Refuse to fetch: nothing stands before a source."""
    raise FlowError(f"nothing stands before a source to fetch {len(addresses)} items from")


class ItemCount(StageState):
    """How many items a foreign stage has given; they are skipped on restore."""

    def __init__(self) -> None:
        self.count = 0
        self.skip = 0

    @property
    def address(self) -> int:
        """Ordinal of the item given last."""
        return self.count - 1

    def snapshot(self) -> Json:
        """Return the number of items given."""
        return self.count

    def restore(self, state: Json, fetch: object) -> None:  # noqa: ARG002
        """Skip this many."""
        self.count = self.skip = int(state)  # a snapshot may be taken before the first item


class OpaqueStageRunner(StageRunner):
    """A stage that is not ours: numbered, and resumed by replay from the start of the epoch."""

    def __init__(self, stage: object, run: Run, before: StageRunner | None) -> None:
        if run.tracked:
            refuse_unrepeatable(stage)
        self.foreign = stage
        super().__init__(_OpaqueStage(stage, run if before is None else None), run, before)
        self.state: StageState | None = ItemCount() if run.tracked else None
        self.read: Json = None  # how far a run that is restored had read
        self.behind = False  # and its past has not been read again yet

    @property
    def rewinds(self) -> bool:
        """Always: its past is replayed."""
        return True

    def snapshot(self) -> Json:
        """Return the number of items given, the stage's mark where it has one, and what was read for them."""
        parts = {"count": super().snapshot()}
        mark = getattr(self.foreign, "mark", None)
        if mark is not None:
            parts["mark"] = mark
        if self.before is not None:
            # a restored run stands where it was saved until its past has been read again
            parts["read"] = self.read if self.behind else self.before.traces()
        return parts

    def writer(self) -> Callable[[], SplitJson]:
        """Return what gives the same as a plain JSON value."""
        return self._write_plain

    def restore(self, state: Json) -> None:
        """Skip what was given; a stage that left a mark is asked whether it can give the same again."""
        if "mark" in state:
            recall: Callable[[object], None] = self.foreign.recall  # type: ignore[attr-defined]  # it left the mark
            recall(state["mark"])
        self.read, self.behind = state.get("read"), True
        count = state["count"]
        if type(count) is not int or not 0 <= count < 1 << 53:
            raise StateMismatch(f"the state has no number of items for {self.foreign!r}: {str(count)[:80]}")
        super().restore(count)

    def open(self) -> Iterator[Any]:
        """Start it, skipping what it gave before a restore."""
        items = super().open()
        if isinstance(self.state, ItemCount):
            self.items = self._count_items(items, self.state)
        return self.items

    def _count_items(self, items: Iterator[Any], count: ItemCount) -> Iterator[Any]:
        skipped = skip_items(items, count.skip)
        if count.skip:
            self._check_replay(skipped, count.skip)
        self.behind = False
        count.count = skipped
        for item in items:
            count.count += 1
            yield item

    def _check_replay(self, skipped: int, wanted: int) -> None:
        """Refuse to continue after a replay that was not what the first run was."""
        if skipped < wanted:
            raise StateMismatch(
                f"only {skipped} of {wanted} items came again on replay: the shards were replaced, or the pipeline is "
                "not reproducible",
                url=self.present_url() or None,
                stage=repr(self.foreign),
            )
        if self.read is None or self.before is None:
            return
        url = self.present_url()
        try:
            compare_traces(normalize_json(self.read), normalize_json(self.before.traces()), url, self.run.warned)
        except StateMismatch as error:
            if not is_lenient():
                raise
            warn_changed_shard(url, error)

    def copy(self) -> StageRunner:
        """Return this stage and those before it as they were before the run."""
        return self._copy_with_stage(cast("Stage", self.foreign))

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Replay the runner from the start and keep the items at some ordinals."""
        wanted = set(addresses)
        if not wanted:
            return []
        with self.replay() as items:
            found = {n: item for n, item in enumerate(islice(items, max(wanted) + 1)) if n in wanted}
        if len(found) != len(wanted):
            raise FlowError(f"{self.stage!r} gave fewer items on replay than before the snapshot")
        return [found[address] for address in addresses]


class StreamShareRunner(OpaqueStageRunner):
    """The share of a virtual stream in the shards: taken from a walk for all streams of the worker, where it has one.

    Attributes:
        walk: what the shards are taken from; None where the stream goes through the list alone.
        first_input: number of the first shard that the reader looks at.
    """

    walk: ShardWalk | None = None
    first_input = 0

    def join_walk(self) -> None:
        """Take the shards from the worker's walk, if there is one for this list: what comes before is not opened."""
        run, before = self.run, self.before
        if run.walks is None or run.stream is None or before is None or run.meter is not None:
            return
        listing = before.chain()
        if any(runner.stage.drops for runner in listing):
            # what becomes of their items is watched in each stream
            return
        stages = tuple(getattr(runner, "foreign", runner.stage) for runner in listing)
        name = WalkName(stages, run.seed, run.common, run.epoch)
        self.walk = run.walks.join(name, run.stream, lambda: _open_copy(before))

    def open(self) -> Iterator[Any]:
        """Start to take shards."""
        walk, stream, count = self.walk, self.run.stream, self.state
        whole = getattr(self.foreign, "whole", False)
        if walk is None or stream is None or not isinstance(count, ItemCount):
            return super().open()
        self.items = self._count_items(walk.shards(stream, self.first_input, self._open_alone, whole=whole), count)
        return self.items

    def _open_alone(self) -> Iterator[Any]:
        before = self._before()
        for runner in before.chain():
            runner.open()
        return self.stage.flow(before.draw(), self.state)

    @contextmanager
    def look_up(self, first: int) -> Iterator[Iterator[Any]]:
        """Give an iterator over the shards; those before ``first`` may be None."""
        walk, stream = self.walk, self.run.stream
        whole = getattr(self.foreign, "whole", False)
        with ExitStack() as stack:
            if walk is None or stream is None:
                yield stack.enter_context(self.replay())
            else:
                yield walk.look_up(stream, first, lambda: stack.enter_context(self.replay()), whole=whole)


def _open_copy(last: StageRunner) -> OpenList:
    """Run a stage and those before it once more, apart from the stream; return the items, and what closes them."""
    copied = last.copy()
    runners = copied.chain()

    def close() -> None:
        for runner in reversed(runners):
            runner.close()

    try:
        for runner in runners:
            runner.open()
    except BaseException:  # whatever it is: it is raised again
        close()
        raise
    return copied.items, close


def _warn_of_generator(source: object) -> None:
    """Warn where a source is a generator that has given everything: a further pass gives nothing."""
    if isinstance(source, GeneratorType) and source.gi_frame is None:
        warn_user(
            f"the source of this pipeline is a generator that has ended ({source.__qualname__}), so this pass gives "
            "nothing: pass the function that makes it (make, not make()), or a list"
        )


class _OpaqueStage(Stage):
    """A foreign stage as a stage: called with its upstream, or without arguments as a source."""

    rewinds = True

    def __init__(self, foreign: object, run: Run | None) -> None:
        self.foreign = foreign
        self.source_run = run  # None where it is not the source

    def flow(self, upstream: Iterator[Any], state: object) -> Iterator[Any]:  # noqa: ARG002
        """Return the foreign stage's iterator.

        Raises:
            TypeError: it returned something else.
        """
        found = self._start_source(upstream)
        try:
            return iter(found)
        except TypeError as error:
            if hasattr(found, "__iter__"):
                raise
            named = describe_function(self.foreign)
            raise TypeError(
                f"the stage {named} returned {type(found).__name__}: a stage is a generator, or returns an iterator"
            ) from error

    def _start_source(self, upstream: Iterator[Any]) -> Iterable[Any]:
        foreign = self.foreign
        if isinstance(foreign, dict):
            raise UsageError(
                f"a dictionary is not a pipeline stage: {reprlib.repr(foreign)}. A list in the place of a stage is a "
                "list of stages; pass samples as a function that returns them, lambda: samples"
            )
        if self.source_run is not None:
            adopt = getattr(getattr(foreign, "dataset", None), "adopt", None)
            if adopt is not None:  # a loader over one of our pipelines
                adopt(self.source_run, persistent=bool(getattr(foreign, "persistent_workers", False)))
            drawn = getattr(foreign, "draw_shards", None)
            if drawn is not None:
                return drawn(self.source_run)  # type: ignore[no-any-return]
            if isinstance(foreign, Iterable) and not isinstance(foreign, (str, bytes)):
                _warn_of_generator(foreign)
                return foreign
        arguments = () if self.source_run is not None else (upstream,)
        called = getattr(foreign, "run", None) if not isinstance(foreign, type) else None
        if called is None and callable(foreign):
            called = foreign
        if called is not None:
            return called(*arguments)  # type: ignore[no-any-return]
        raise UsageError(
            f"{foreign!r} is not a pipeline stage: a first stage is an iterable or a callable without arguments, a "
            "later one a callable that takes an iterator",
            stage=repr(foreign),
        )

    def __repr__(self) -> str:
        return f"{self.foreign!r}"
