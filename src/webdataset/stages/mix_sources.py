"""The sources of a mix, each read and resumed independently.

A dataset that can start a flow of its own (anything with ``start(run, state)``) is resumed by its snapshot; any other
iterable is numbered, and resumed by reading it again.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

from webdataset.core.error_handlers import skip_items
from webdataset.core.errors import FlowError, StateMismatch, UsageError
from webdataset.core.json_types import Address, JsonValue, as_count
from webdataset.core.seeds import hash_seed
from webdataset.shards.split import StreamItems
from webdataset.stages.base import Run


class SourceFlow(Protocol):
    """A dataset that is being read: what a ``start`` method returns."""

    def __iter__(self) -> Iterator[Any]:
        """Return the iterator over the items."""

    def snapshot(self) -> JsonValue:
        """Return the state after the item given last."""

    def address(self) -> Address:
        """Return the address of the item given last."""

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Make the items at some addresses once more."""

    def close(self) -> None:
        """Let go of all streams."""


class StartableDataset(Protocol):
    """A dataset that can be read under a run that is told to it, from a snapshot where there is one.

    A dataset is known by a method ``start`` that has a parameter ``run``; the name alone would be too common.
    """

    def start(self, run: Run, state: JsonValue = None, *, tracked: bool = True) -> SourceFlow:
        """Start reading.

        Args:
            run: seed and epoch.
            state: what the snapshot of an equal flow gave, or None.
            tracked: keep addresses, so that snapshots can be taken.
        """


class NumberedFlow:
    """Any iterable, its items numbered."""

    def __init__(self, dataset: Iterable[Any], given: int = 0, *, tracked: bool = True) -> None:
        self.dataset = dataset
        self.given = given
        self.items = self._iterate(given) if tracked or given else iter(dataset)

    def _iterate(self, skip: int) -> Iterator[Any]:
        items = iter(self.dataset)
        skipped = skip_items(items, skip)
        if skipped < skip:
            raise FlowError(f"only {skipped} of {skip} items came again: {self.dataset!r} is not reproducible")
        try:
            for item in items:
                self.given += 1
                yield item
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def __iter__(self) -> Iterator[Any]:
        return self.items

    def snapshot(self) -> JsonValue:
        """Return the number of items given."""
        return self.given

    def address(self) -> Address:
        """Return the ordinal of the item given last."""
        return self.given - 1

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Take items by ordinal, from a sequence directly, else by reading from the start.

        Raises:
            FlowError: the iterable is shorter than it was.
        """
        if isinstance(self.dataset, Sequence):
            return [self.dataset[as_count(ordinal)] for ordinal in addresses]
        wanted = {as_count(ordinal) for ordinal in addresses}
        found = {n: item for n, item in enumerate(islice(self.dataset, max(wanted, default=-1) + 1)) if n in wanted}
        if len(found) < len(wanted):
            raise FlowError(f"{self.dataset!r} gave fewer items than before the snapshot")
        return [found[as_count(ordinal)] for ordinal in addresses]

    def close(self) -> None:
        """Close the iterator."""
        close = getattr(self.items, "close", None)
        if close is not None:
            close()


class StreamPart:
    """What one virtual stream reads of an iterable: every V-th item."""

    def __init__(self, dataset: Iterable[Any], share: StreamItems) -> None:
        self.dataset = dataset
        self.share = share

    def __iter__(self) -> Iterator[Any]:
        return self.share(self.dataset)

    def __repr__(self) -> str:
        return repr(self.dataset)


def start_source(dataset: Any, run: Run, number: int, state: JsonValue = None) -> SourceFlow:
    """Start reading one source of a mix.

    Args:
        dataset: an iterable, or a dataset with ``start``.
        run: the mix's run.
        number: which of the mix's sources this is; its seed depends on it.
        state: what the source's snapshot gave, or None for the start.

    Raises:
        UsageError: a tracked run over a source that cannot be read twice.
    """
    if run.tracked:
        refuse_unrepeatable(dataset)
    if is_startable(dataset):
        own = _branch_run(run, dataset, number)
        _check_source_state(state, own)
        flow: SourceFlow = dataset.start(own, state, tracked=run.tracked)
        return flow
    source = dataset if run.stream is None else StreamPart(dataset, StreamItems(run.stream, whole=run.whole_shards))
    return NumberedFlow(source, 0 if state is None else as_count(state), tracked=run.tracked)


def _check_source_state(state: JsonValue, run: Run) -> None:
    """Refuse the snapshot of a source that is not of the source's seed and epoch.

    Raises:
        StateMismatch: it has others.
    """
    flow = state.get("flow") if isinstance(state, Mapping) else None
    if not isinstance(state, Mapping) or not isinstance(flow, Mapping):
        # the source itself says what it lacks
        return
    passed, told = state.get("passed"), [flow.get(name) for name in ("seed", "common", "epoch")]
    epoch = run.epoch + passed if type(passed) is int else -1
    wanted = [run.seed, run.common, epoch]
    # at the end of its last pass, a source still stands in that epoch
    known = told[:2] == wanted[:2] and told[2] in (epoch, epoch - 1)
    # types too: 1 is True
    if not known or list(map(type, told)) != list(map(type, wanted)):
        raise StateMismatch(
            f"this is not the state of a source of this mix: its seeds and epoch are {str(told)[:160]}, and not "
            f"{str(wanted)[:160]}"
        )


def refuse_unrepeatable(source: object) -> None:
    """Refuse a source that gives other items each time it is read: a run over it cannot be resumed.

    Args:
        source: anything; its attribute ``unrepeatable``, a text, says why it is one.

    Raises:
        UsageError: it is one.
    """
    reason = getattr(source, "unrepeatable", None)
    if isinstance(reason, str):
        raise UsageError(f"a run over {source!r} cannot be resumed: {reason}", stage=repr(source))


def _branch_run(run: Run, dataset: object, number: int) -> Run:
    """Return the run of one source: its own seed where it was given one, else one that follows from the mix's."""
    own = getattr(dataset, "seed", None)
    if isinstance(own, int):
        return replace(run, seed=own, common=own, position=0)
    common = None if run.common is None else hash_seed("branch", run.common, run.position, number)
    return replace(run, seed=hash_seed("branch", run.seed, run.position, number), common=common, position=0)


def is_startable(dataset: object) -> bool:
    """Tell whether a dataset can be read under a run that is told to it (see :class:`StartableDataset`)."""
    start = getattr(type(dataset), "start", None)
    own_iterator = isinstance(getattr(dataset, "unrepeatable", None), str)
    return callable(start) and not own_iterator and "run" in inspect.signature(start).parameters
