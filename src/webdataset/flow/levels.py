"""One level of a running pipeline: a stage, its memory, its generator, and how its items are made again.

Flows in: a stage (ours, a ``PipelineStage``, any callable, any iterable) and the level before it. Flows out: an
iterator, an address for each item, and ``fetch``. See docs/design/stages.md.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from webdataset.ground.errors import FlowError, StateMismatch, UsageError
from webdataset.stages.base import Address, Json, Memory, Run, Stage
from webdataset.stages.reading import ReadShards


class Level:
    """A stage in a run.

    Args:
        stage: one of our stages.
        run: what the run tells it.
        before: the level before, or None for a source.

    Attributes:
        memory: the stage's memory, or None.
        items: the generator; made by ``open``.
        over: the generator had ended before the snapshot that this run continues.
    """

    def __init__(self, stage: Stage, run: Run, before: "Level | None") -> None:
        self.stage = stage
        self.run = run
        self.before = before
        self.memory: Memory | None = stage.begin(run)
        self.items: Iterator[Any] = iter(())
        self.over = False
        self.closed = False
        self.gate: Callable[[Iterator[Any]], Iterator[Any]] | None = None  # times what is drawn from here
        if run.tracked and before is not None and self.memory is not None:
            self.memory.origin = before.address

    @property
    def rewinds(self) -> bool:
        """True where this level restores itself from a fresh level before it."""
        return self.stage.rewinds or self.before is None

    def open(self) -> Iterator[Any]:
        """Start the generator."""
        upstream = self.before.given() if self.before is not None else iter(())
        self.items = self.stage.flow(upstream, self.memory)
        return self.items

    def given(self) -> Iterator[Any]:
        """Return the items for whoever draws them, through the gate where there is one."""
        return self.items if self.gate is None else self.gate(self.items)

    @property
    def name(self) -> str:
        """What the stage is called in snapshots: its function or class, without arguments."""
        return named(self.stage)

    @property
    def ended(self) -> bool:
        """True where the generator has ended, whether its input has or a handler chose to stop."""
        return self.over or (not self.closed and getattr(self.items, "gi_frame", self) is None)

    def address(self) -> Address:
        """Return the address of the item yielded last."""
        if self.memory is not None:
            return self.memory.address
        return self._before().address()

    def snapshot(self) -> Json:
        """Return the memory as JSON, or None."""
        return self.memory.snapshot() if self.memory is not None else None

    def writer(self) -> Callable[[], Json] | None:
        """Return what gives the memory as a plain JSON value, for who asks at every step; None for no memory."""
        memory = self.memory
        if memory is None:
            return None
        if memory.plain:
            return memory.snapshot
        from .elastic_checks import plain  # noqa: PLC0415  only for datasets in streams

        return lambda: plain(memory.snapshot())

    def restore(self, state: Json) -> None:
        """Take up a snapshot before ``open``."""
        if self.memory is not None:
            self.memory.restore(state, self._before().fetch if self.before is not None else _nothing)
        elif state is not None:
            raise StateMismatch(f"the snapshot has a memory for {self.stage!r}, which has none")

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Make the items at some addresses once more."""
        if not addresses:
            return []
        if isinstance(self.stage, ReadShards):
            return self.stage.fetch_from(self._before().afresh(), addresses)
        before = self.before.fetch if self.before is not None else _nothing
        return self.stage.refetch(addresses, before, self.memory)

    def afresh(self) -> Iterator[Any]:
        """Run this level and those before it from the start of the epoch once more."""
        before = self.before
        upstream = before.afresh() if before is not None else iter(())
        return self.stage.flow(upstream, self.stage.begin(self.run))

    def close(self) -> None:
        """Close the generator."""
        self.closed = True
        close = getattr(self.items, "close", None)
        if close is not None:
            close()

    def _before(self) -> "Level":
        if self.before is None:
            raise FlowError(f"stage {self.stage!r} has nothing before it")
        return self.before


def named(stage: Any) -> str:
    """Return what a stage is called in snapshots: its function or class, without arguments."""
    called = stage.foreign if isinstance(stage, _Called) else getattr(stage, "f", stage)
    return str(getattr(called, "__qualname__", type(called).__qualname__)).rpartition(".<locals>.")[2]


def _nothing(addresses: list[Address]) -> list[Any]:
    """Stand before a source, which asks nobody for items."""
    raise FlowError(f"nothing stands before a source to fetch {len(addresses)} items from")


class Count(Memory):
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

    def restore(self, state: Json, fetch: Any) -> None:  # noqa: ARG002
        """Skip this many."""
        self.count = self.skip = int(state)  # a snapshot may be taken before the first item


class ForeignLevel(Level):
    """A stage that is not ours: numbered, and resumed by replay from the start of the epoch.

    Args:
        stage: an iterable, a ``PipelineStage``, or a callable.
        run: what the run tells it.
        before: the level before, or None for a source.
    """

    def __init__(self, stage: Any, run: Run, before: Level | None) -> None:
        self.foreign = stage
        super().__init__(_Called(stage, run if before is None else None), run, before)
        self.memory: Memory | None = Count() if run.tracked else None

    @property
    def rewinds(self) -> bool:
        """Always: its past is replayed."""
        return True

    def snapshot(self) -> Json:
        """Return the number of items given, and the stage's mark where it has one."""
        mark = getattr(self.foreign, "mark", None)
        count = super().snapshot()
        return count if mark is None else {"count": count, "mark": mark}

    def writer(self) -> Callable[[], Json]:
        """Return what gives the number of items, and the mark, as a plain JSON value."""
        from .elastic_checks import plain  # noqa: PLC0415  only for datasets in streams

        return lambda: plain(self.snapshot())

    def restore(self, state: Json) -> None:
        """Skip what was given; a stage that left a mark is asked whether it can give the same again."""
        if isinstance(state, dict):
            self.foreign.recall(state["mark"])
            state = state["count"]
        super().restore(state)

    def open(self) -> Iterator[Any]:
        """Start it, skipping what it gave before a restore."""
        items = super().open()
        count = self.memory
        if isinstance(count, Count):
            self.items = _counted(items, count)
        return self.items

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Replay the level from the start and keep the items at some ordinals."""
        wanted = set(addresses)
        last = max(wanted, default=-1)
        found = {n: item for n, item in enumerate(islice(self.afresh(), last + 1)) if n in wanted}
        if len(found) != len(wanted):
            raise FlowError(f"{self.stage!r} gave fewer items on replay than before the snapshot")
        return [found[address] for address in addresses]


def _counted(items: Iterator[Any], count: Count) -> Iterator[Any]:
    skipped = sum(1 for _ in islice(items, count.skip))
    if skipped < count.skip:
        raise FlowError(f"only {skipped} of {count.skip} items came again on replay: the pipeline is not reproducible")
    count.count = skipped
    for item in items:
        count.count += 1
        yield item


class _Called(Stage):
    """A foreign stage as a stage: called with its upstream, or without arguments as a source.

    Args:
        foreign: an iterable, a ``PipelineStage``, or a callable.
        run: the run where this is the source, else None.
    """

    rewinds = True

    def __init__(self, foreign: Any, run: Run | None) -> None:
        self.foreign = foreign
        self.source_run = run  # None where it is not the source

    def flow(self, upstream: Iterator[Any], memory: Any) -> Iterator[Any]:  # noqa: ARG002
        """Return the foreign stage's iterator."""
        return iter(self._started(upstream))

    def _started(self, upstream: Iterator[Any]) -> Iterable[Any]:
        foreign = self.foreign
        if self.source_run is not None:
            adopt = getattr(getattr(foreign, "dataset", None), "adopt", None)
            if adopt is not None:  # a loader over one of our pipelines
                adopt(self.source_run, persistent=bool(getattr(foreign, "persistent_workers", False)))
            drawn = getattr(foreign, "drawn", None)
            if drawn is not None:
                return drawn(self.source_run)  # type: ignore[no-any-return]
            if isinstance(foreign, Iterable) and not isinstance(foreign, (str, bytes)):
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
