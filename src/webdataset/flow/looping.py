"""A pipeline run for one or more passes, up to a number of items.

Flows in: stages. Flows out: items of pass after pass; each pass is an epoch with an order of its own. A pass that gives
nothing ends the loop.
"""

import itertools
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from webdataset.ground.errors import NoSamples, StateMismatch
from webdataset.ground.topology import Stream, alone
from webdataset.stages.base import Address, Json, Run

from .outcomes import Outcomes, judge
from .running import Flow

STREAMS = 24  # of an elastic dataset that is not told how many
ENDLESS = sys.maxsize
EMPTY_PASSES = 100  # of a stream that is to begin again for ever, before that counts as having no samples


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

    def shared(self, stream: Stream) -> "Bounds":
        """Return how long one virtual stream runs, so that all together give the positions ``[0, items)``.

        Args:
            stream: which stream, of how many.
        """
        items = None if self.items is None else len(range(stream.number, self.items, stream.of))
        if self.passes < ENDLESS or self.endless:
            return replace(self, items=items)
        return replace(self, items=items, retries=max(self.retries, EMPTY_PASSES), endless=True)


def item_bound(pipeline: Any) -> int | None:
    """Return after how many items an iteration over a pipeline ends, or None where it has no such bound.

    Args:
        pipeline: anything; ``nsamples`` of 0 or less is no bound.
    """
    items = getattr(pipeline, "nsamples", None)
    return items if items is not None and items > 0 else None


class Loop:
    """A pipeline that is being iterated, pass after pass.

    Args:
        stages: the first is the source.
        run: seed, epoch of the first pass; ``tracked`` runs can be snapshot.
        bounds: how many passes and items.
        state: what ``snapshot`` of an equal loop returned; None starts at the beginning.
    """

    def __init__(self, stages: Sequence[Any], run: Run, bounds: Bounds = Bounds(), state: Json = None) -> None:
        self._stages = list(stages)
        self._bounds = bounds
        self.bound = ENDLESS if bounds.items is None else bounds.items
        self.count = 0  # items given, over all passes
        self.passed = 0  # passes completed
        self.given = 0  # items given in this pass
        self._empty = 0  # passes in a row that gave nothing
        self._over = False
        inner = None
        if state is not None:
            self.count, self.passed, self.given, inner = _read(state)
            run = replace(run, tracked=True)
        self._outcomes: Outcomes | None = None  # where nobody else judges
        if run.outcomes is None:
            self._outcomes = Outcomes()
            run = replace(run, outcomes=self._outcomes)
        self.flow = Flow(self._stages, run, inner)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while not self._over and self.count < self.bound:
            item = next(self.flow.items, self)
            if item is not self:
                self.count += 1
                self.given += 1
                return item
            self._over = not self._another()
        self.close()
        self._judge()
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def quickly(self) -> Iterator[Any]:
        """Yield what ``next`` would give, at the speed of a generator (which is not kept here: no cycle, no leak)."""
        while not self._over and self.count < self.bound:
            for item in self.flow:
                self.count += 1
                self.given += 1
                yield item
                if self.count >= self.bound:
                    return
            self._over = not self._another()
        self._judge()

    def _judge(self) -> None:
        """Judge what became of the samples, once, at the end of the last pass."""
        outcomes, self._outcomes = self._outcomes, None
        if outcomes is not None and self._over:
            judge(outcomes.told(), whole=alone())

    def _another(self) -> bool:
        """End a pass; begin the next one if there is to be one."""
        self.flow.close()
        self.passed += 1
        if self.count >= self.bound or self.passed >= self._bounds.passes:
            return False
        self._empty = 0 if self.given else self._empty + 1
        if self._empty > self._bounds.retries:
            if self._bounds.endless:
                raise NoSamples(
                    f"a source that is to begin again for ever gave nothing in {self._empty} passes: give it more "
                    "samples or shards, a larger subsample, or use fewer workers (or streams, where it is elastic)"
                )
            return False
        self.given = 0
        run = self.flow.run
        self.flow = Flow(self._stages, replace(run, epoch=run.epoch + 1))
        return True

    def close(self) -> None:
        """Close every generator and stream; a snapshot can still be taken."""
        self.flow.close()

    def snapshot(self) -> Json:
        """Return the state behind the item given last, as a JSON value."""
        return {"count": self.count, "passed": self.passed, "given": self.given, "flow": self.flow.snapshot()}

    def essence(self) -> Json:
        """Return what of the snapshot the run and the description do not tell.

        That is ``[count, passed, given, ended, memories]``.
        """
        return [self.count, self.passed, self.given, *self.flow.essence()]

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
        """Make the items at some addresses once more, each in its pass."""
        found: dict[str, Any] = {}
        for passed in sorted({address[0] for address in addresses}):
            inner = [address[1] for address in addresses if address[0] == passed]
            epoch = self.flow.run.epoch - self.passed + passed
            flow = self.flow if passed == self.passed else Flow(self._stages, replace(self.flow.run, epoch=epoch))
            for address, item in zip(inner, flow.fetch(inner), strict=True):
                found[repr([passed, address])] = item
        return [found[repr([address[0], address[1]])] for address in addresses]


def _read(state: Json) -> tuple[int, int, int, Json]:
    """Return count, passes, items in this pass and the flow's snapshot.

    Raises:
        StateMismatch: this is no snapshot of a pipeline.
    """
    try:
        return int(state["count"]), int(state["passed"]), int(state["given"]), dict(state["flow"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StateMismatch(f"this is not a snapshot of a pipeline: {error!r}") from error


STATE_METHODS = frozenset(["state_dict", "load_state_dict"])


class Items(itertools.chain[Any]):
    """The items of one iteration over a pipeline.

    It passes on what a generator gives, in C, so that an item takes no longer; and it says what has a state.

    Args:
        items: the generator.
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

        def __getattr__(self, name: str) -> Any:
            """Say what has a state."""
            if name in STATE_METHODS:
                raise missing_state_error(self, name)
            return object.__getattribute__(self, name)


def missing_state_error(asked: object, name: str) -> AttributeError:
    """Return the error for asking something for a state that has none.

    Args:
        asked: what was asked.
        name: of the method.
    """
    return AttributeError(
        f"{type(asked).__name__!r} object has no attribute {name!r}: make it elastic, dataset.elastic()"
    )
