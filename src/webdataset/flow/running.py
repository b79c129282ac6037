"""A running pipeline, and its snapshot.

Flows in: stages and a run. Flows out: items, one at a time, and a JSON value from which an equal run continues. See
docs/design/stages.md for the order in which levels are restored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

from webdataset.ground.errors import FlowError, StateMismatch
from webdataset.ground.skips import counting
from webdataset.stages.base import Address, Json, Run, Stage
from webdataset.stages.branches import startable
from webdataset.stages.composing import Composed
from webdataset.stages.randomness import user_generators
from webdataset.stages.reading import ReadShards

from .levels import ForeignLevel, Level
from .outcomes import checked

VERSION = 1


class Flow:
    """A pipeline that is being iterated.

    Args:
        stages: the first is the source.
        run: seed and epoch; ``tracked`` runs can be snapshot.
        state: what ``snapshot`` of an equal flow returned, to continue behind it; None starts at the beginning.

    Raises:
        StateMismatch: ``state`` belongs to other stages.
    """

    def __init__(self, stages: Sequence[Any], run: Run, state: Json = None) -> None:
        if state is not None:
            _check(state)
            run = replace(run, seed=state["seed"], common=state["common"], epoch=state["epoch"], tracked=True)
        elif run.stream is not None and not run.tracked:
            # the order within a stream's buffers follows from addresses
            run = replace(run, tracked=True)
        self.run = run
        self._stages: Sequence[Any] | None = stages  # until it was told what became of their samples
        self._resumed = state is not None
        self.levels = _levels(stages, run)
        self._first = _last_rewinding(self.levels)
        if state is None:
            self._open()
        else:
            with counting(None):  # what is done once more was counted before the state was saved
                self._restore(state)
                self._open()
        kept = self.levels[self._first :]
        self._kept = kept[::-1]  # the last one first
        self._writers = [level.writer() for level in kept]
        self._last = self.levels[-1] if self.levels else None
        self.items: Iterator[Any] = self._last.given() if self._last is not None else iter(())

    def _open(self) -> None:
        if self.run.meter is not None:
            self.run.meter.attach(self.levels)
        for level in self.levels:
            if not level.over:
                level.open()

    def __iter__(self) -> Iterator[Any]:
        return self.items

    def __next__(self) -> Any:
        return next(self.items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all generators, the last first, and with them every stream they hold; a snapshot can still be taken."""
        for level in self.levels:
            level.over = level.ended
        for level in reversed(self.levels):
            level.close()
        stages, self._stages = self._stages, None
        if stages is not None and self.run.outcomes is not None and checked(stages):
            self.run.outcomes.take(self.levels, resumed=self._resumed)

    def snapshot(self) -> Json:
        """Return the state behind the item given last, as a JSON value.

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
            "stages": [level.name for level in self.levels[first:]],
            "first": first,
            "ended": max((n for n, level in enumerate(self.levels) if n >= first and level.ended), default=None),
            "memories": [level.snapshot() for level in self.levels[first:]],
            "generators": self._generators(first),
        }

    def _generators(self, first: int) -> Json:
        """Return the states that users' generators had before the run, for the levels that a resumed run begins again.

        Raises:
            FlowError: two stages draw from one generator, so that neither can be run again alone.
        """
        drawing = [(number, level) for number, level in enumerate(self.levels) if level.generators]
        live = [id(generator) for _, level in drawing for generator in user_generators(level.stage)]
        shared = len({*live}) < len(live)
        again = {str(number): level.first_generators() for number, level in drawing if number < first}
        if again and shared:
            raise FlowError(
                "two stages draw from one random generator, so that none can be replayed: give each its own"
            )
        return again

    def essence(self) -> Json:
        """Return what of the snapshot the run and the description do not tell: ``[ended, memories]``."""
        number = len(self.levels)
        for level in self._kept:
            number -= 1
            if level.ended:
                return [number, [None if write is None else write() for write in self._writers]]
        return [None, [None if write is None else write() for write in self._writers]]

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
        names = [level.name for level in self.levels[first:]]
        if state["first"] != first or state["stages"] != names:
            raise StateMismatch(
                f"the snapshot was taken of other stages: from stage {state['first']} on {', '.join(state['stages'])}; "
                f"this pipeline has, from stage {first} on, {', '.join(names)}"
            )
        for number, generators in state.get("generators", {}).items():
            self.levels[int(number)].restore_generators(generators)
        for level, memory in zip(self.levels[first:], state["memories"], strict=True):
            try:
                level.restore(memory)
            except (KeyError, TypeError, IndexError, AttributeError) as error:
                raise StateMismatch(f"the snapshot's memory of {level.name} cannot be read: {error!r}") from error
        if state["ended"] is not None:
            for level in self.levels[: state["ended"] + 1]:
                level.over = True


def _last_rewinding(levels: Sequence[Level]) -> int:
    return max((n for n, level in enumerate(levels) if level.rewinds), default=0)


def outline(stages: Sequence[Any], run: Run) -> tuple[int, list[Level]]:
    """Return the levels that a run would have, none of them started, and the number of the one it would resume at.

    Args:
        stages: the first is the source.
        run: the run.
    """
    levels = _levels(stages, run)
    return _last_rewinding(levels), levels


def _check(state: Json) -> None:
    """Tell early what is no snapshot of ours."""
    if not isinstance(state, dict) or state.get("version") != VERSION:
        version = state.get("version") if isinstance(state, dict) else None
        raise StateMismatch(f"the snapshot has version {version!r}; this library reads {VERSION}")
    missing = {"seed", "common", "epoch", "stages", "first", "ended", "memories"} - state.keys()
    if missing or not isinstance(state["memories"], list) or len(state["memories"]) != len(state["stages"]):
        raise StateMismatch(f"the snapshot is incomplete: {', '.join(sorted(missing)) or 'memories'}")


def _levels(stages: Sequence[Any], run: Run) -> list[Level]:
    stages = steps(stages)
    if run.tracked and stages and startable(stages[0]) and not isinstance(stages[0], Stage):
        from webdataset.stages.mixing import RoundRobin  # noqa: PLC0415  only for pipelines in pipelines

        stages[0] = RoundRobin(stages[:1])  # a pipeline as the source of another: resumed by its own snapshot
    split = _last_split(stages)
    if run.stream is not None:
        from .streamed import streamed  # noqa: PLC0415  only for datasets in streams; it knows many stages

        stages, split = streamed(stages, run.stream)
    levels: list[Level] = []
    inside = None if run.meter is None else run.meter.inside
    for position, stage in enumerate(stages):
        here = replace(run, position=position, shared=position < split, meter=inside)
        before = levels[-1] if levels else None
        kind = Level if isinstance(stage, Stage) and _ours(stage) else ForeignLevel
        levels.append(kind(stage, here, before))
    return levels


def _ours(stage: Stage) -> bool:
    """Tell whether a stage keeps the contract itself: it is transparent, rewinds, or has a memory."""
    return stage.transparent or stage.rewinds or type(stage).begin is not Stage.begin


def steps(stages: Sequence[Any]) -> list[Any]:
    """Return the stages that the entries of a pipeline stand for."""
    return [step for stage in stages for step in _steps(stage)]


def _steps(stage: Any) -> Sequence[Any]:
    """Return the stages that one entry of a pipeline stands for.

    ``tarfile_samples`` used uncalled is the reader; a composition is its steps, each with a memory of its own. The
    reader of a dataset stands for its checks too.
    """
    if isinstance(stage, Composed):
        return stage.steps
    if isinstance(stage, ReadShards):
        return [*stage.before, stage.bare(), *stage.after]
    known = getattr(stage, "as_stage", None)
    return [known()] if known is not None and not isinstance(stage, Stage) else [stage]


def _last_split(stages: Sequence[Any]) -> int:
    """Return the number of stages before samples are read or shards are split, whose generators all workers share."""
    marks = [
        position
        for position, stage in enumerate(stages)
        if isinstance(stage, ReadShards) or getattr(stage, "splits", False)
    ]
    return min(marks[0] if marks else 0, len(stages))
