"""Stages that join documents with members of other keys, and what they remember.

Flows in: samples, one for each key. Flows out: what a subclass makes of each group. The memory is the addresses of what
waits and of what is decided but not yet given; taking those samples in again makes the same state. Never joins two
shards.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from webdataset.ground.errors import FlowError, UsageError
from webdataset.ground.logs import log
from webdataset.ground.policies import Handler
from webdataset.ground.skips import goes_on
from webdataset.samples.documents.siblings import Gatherer, Group, Wants

from .base import Address, Fetch, Json, Memory, Run, Stage
from .blame import blamed

LOOKAHEAD = 1000


class Waiting(Memory):
    """What a gathering stage remembers: what waits, and what is decided but not yet given.

    Args:
        stage: makes gatherers.

    Attributes:
        decoder: of this run.
        left_out: counts what the stage's rules leave out.
    """

    def __init__(self, stage: "Gathering") -> None:
        self.stage = stage
        self.gatherer = stage.gatherer()
        self.decoder = stage.decoder()
        self.left_out: Counter[str] = Counter()

    def snapshot(self) -> Json:
        """Return the addresses of the samples that wait, and of the groups that are ready."""
        return {
            "waiting": [item.address for item in self.gatherer.undecided()],
            "ready": [group.addresses for group in self.gatherer.ready],
        }

    def restore(self, state: Json, fetch: Fetch) -> None:
        """Fetch the samples, and take them in again."""
        waiting, ready = state["waiting"], state["ready"]
        samples = iter(fetch([*waiting, *(address for group in ready for address in group)]))
        for address in waiting:
            self.gatherer.feed(address, next(samples))
        if self.gatherer.ready:
            raise FlowError("what waited before the snapshot does not wait now: the samples have changed")
        self.gatherer.ready.extend(self.stage.again(group, samples) for group in ready)


class Gathering(Stage):
    """A stage that joins documents with their siblings; what it makes of a group is the subclass's.

    Args:
        handler: asked where that fails.
        separator: stands between a document's key and the names of its siblings.
        adjacent: a document's members stand next to each other.
        lookahead: the greatest number of samples that wait; None: 1000 where members are adjacent, else any number.
    """

    name = "gathering"

    def __init__(
        self,
        handler: Handler,
        separator: str,
        adjacent: bool,  # noqa: FBT001
        lookahead: float | None,
    ) -> None:
        if lookahead is None:
            lookahead = LOOKAHEAD if adjacent else float("inf")
        if lookahead < 1:
            raise UsageError(f"lookahead={lookahead}: at least one sample must be able to wait")
        self.handler = handler
        self.separator = separator
        self.adjacent = adjacent
        self.lookahead = lookahead

    @abstractmethod
    def describe(self, sample: Mapping[str, Any]) -> Wants | None:
        """Return what a document wants, or None for a sample that is none."""

    @abstractmethod
    def candidate(self, sample: Mapping[str, Any]) -> bool:
        """Tell whether a sample may be a sibling."""

    @abstractmethod
    def made(self, group: Group, decoder: Any, left_out: Counter[str]) -> Any:
        """Return what becomes of a group; None leaves it out.

        Args:
            group: a document and its siblings, or a sample that belongs to none.
            decoder: what ``decoder`` returned.
            left_out: counts what is left out.
        """

    def decoder(self) -> Any:
        """Return the decoder of one run, or None."""
        return None

    def gatherer(self, *, whole: bool = False) -> Gatherer:
        """Return a gatherer under this stage's rules.

        Args:
            whole: for the samples of one group, which are all there.
        """
        if whole:
            return Gatherer(self.describe, self.candidate, separator=self.separator, adjacent=False)
        return Gatherer(
            self.describe,
            self.candidate,
            separator=self.separator,
            adjacent=self.adjacent,
            lookahead=self.lookahead,
        )

    def begin(self, run: Run) -> Waiting:  # noqa: ARG002
        """Return a memory in which nothing waits."""
        return Waiting(self)

    def flow(self, upstream: Iterator[Any], memory: Waiting) -> Iterator[Any]:
        """Yield what becomes of the groups."""
        try:
            yield from self._flow(upstream, memory)
        finally:
            if memory.left_out:
                counts = ", ".join(f"{count} {what}" for what, count in sorted(memory.left_out.items()))
                log.info("%s left out: %s", self.name, counts)

    def _flow(self, upstream: Iterator[Any], memory: Waiting) -> Iterator[Any]:
        gatherer, origin = memory.gatherer, memory.origin
        ready = gatherer.ready
        for sample in _and_then(upstream, gatherer.finish):
            if sample is not gatherer:
                gatherer.feed(origin() if origin is not None else None, sample)
            while ready:
                group = ready.popleft()
                try:
                    result = self.made(group, memory.decoder, memory.left_out)
                except Exception as exn:  # noqa: BLE001  decoders are users' code: the handler decides
                    if goes_on(self.handler, blamed(exn, self.name, group.items[0].sample), self.name):
                        continue
                    return
                if result is not None:
                    memory.address = group.addresses
                    yield result

    def again(self, addresses: list[Address], samples: Iterator[Any]) -> Group:
        """Return the group that stands at some addresses.

        Args:
            addresses: of its items.
            samples: gives them, in this order.

        Raises:
            FlowError: they are no group any more.
        """
        gatherer = self.gatherer(whole=True)
        for address in addresses:
            gatherer.feed(address, next(samples))
        gatherer.finish()
        if len(gatherer.ready) != 1 or len(gatherer.ready[0].items) != len(addresses):
            raise FlowError(f"{len(addresses)} samples that made one before the snapshot do not now", stage=self.name)
        return gatherer.ready[0]

    def refetch(self, addresses: list[Address], fetch: Fetch, memory: Any = None) -> list[Any]:
        """Fetch all samples of the groups at once, and make them again."""
        samples = iter(fetch([address for group in addresses for address in group]))
        decoder = memory.decoder if memory is not None else self.decoder()
        return [self.made(self.again(group, samples), decoder, Counter()) for group in addresses]


def _and_then(upstream: Iterator[Any], finish: Callable[[], None]) -> Iterator[Any]:
    """Yield the samples, and, once ``finish`` was called behind them, the object that it belongs to."""
    yield from upstream
    finish()
    yield finish.__self__  # type: ignore[attr-defined]
