"""Reads several shards at once as a stage, a sample of each in turn.

Theory of several open shards. A buffer after a reader mixes what stands close together in one shard. With ``k``
shards open, neighbours come from ``k`` shards at no cost in samples held: each shard waits at a byte of its own. When
one ends, the next of the list takes its place. The order of samples follows from the list and the shards alone, so
the state is, for each open shard, its number in the list and the address of the sample given last. Never more than
``count`` shards are open, and none is opened before it is needed.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from operator import index
from typing import Any, SupportsIndex

from webdataset.core.distributed import StreamNumber
from webdataset.core.errors import StateMismatch, UsageError
from webdataset.core.json_types import JsonValue, as_count, as_list, as_object, as_pair
from webdataset.samples.grouping import Sample
from webdataset.stages.base import Fetch, Run, StageState
from webdataset.stages.read_shards import MOST_SHARDS, ReaderState, ReadShards, Shard, note_stops


class InterleavedShard:
    """One open shard."""

    def __init__(self, number: int, state: ReaderState) -> None:
        self.number = number
        self.state = state
        self.samples: Iterator[Sample] | None = None  # None until it is opened, or again

    def address(self) -> list[int] | None:
        """Return the address of the sample given last, or None before the first."""
        inner = self.state.address
        return None if inner is None else [self.number, *inner[1:]]


class OpenShardsState(StageState):
    """Where a reader of several shards is.

    Attributes:
        slots: the open shards, in the order of their turns; None until the first ones are taken.
        taken: number of shards taken from the list so far.
        turn: index in ``slots`` of the shard that gives next.
        last: address of the sample given last.
        left_out: samples that ``where`` left out of the shards that have ended.
        kept_any: whether it kept one.
    """

    def __init__(self, run: Run | None = None) -> None:
        self.run = run or Run()
        self.slots: list[InterleavedShard] | None = None
        self.taken = 0
        self.turn = 0
        self.last: InterleavedShard | None = None
        self.left_out = 0
        self.kept_any = False
        self.before: list[int] | None = None  # the sample given last before a restored run

    @property
    def address(self) -> list[int] | None:
        """Address of the sample given last."""
        return self.before if self.last is None else self.last.address()

    @property
    def first_input(self) -> int:
        """Number of shards that come before the first one that a restored run has open."""
        return 0 if self.slots is None else min((slot.number for slot in self.slots), default=self.taken)

    def snapshot(self) -> JsonValue:
        """Return the open shards and whose turn it is, or None before the first."""
        if self.slots is None:
            return None
        return {
            "taken": self.taken,
            "turn": self.turn,
            "last": self.address,
            "slots": [[slot.number, slot.state.snapshot()] for slot in self.slots],
        }

    def present_url(self) -> str:
        """Return the url of the shard that gave the last sample."""
        return "" if self.last is None else str(self.last.state.present_url())

    def trace(self) -> JsonValue:
        """Return how far each open shard has been read."""
        slots = self.slots or []
        return [self.taken, self.turn, [[slot.number, slot.state.trace()] for slot in slots]]

    def restore(self, state: JsonValue, fetch: Fetch) -> None:
        """Take up the open shards; they are opened at their addresses when it is their turn."""
        if state is None:
            return
        parts = as_object(state)
        self.taken, self.turn = as_count(parts["taken"]), as_count(parts["turn"])
        last = parts["last"]
        self.before = None if last is None else [as_count(part) for part in as_list(last)]
        self.slots = []
        for number, inner in map(as_pair, as_list(parts["slots"])):
            reader_state = ReaderState(self.run)
            reader_state.restore(inner, fetch)
            self.slots.append(InterleavedShard(as_count(number), reader_state))
        numbers = {slot.number for slot in self.slots}
        if max(numbers, default=-1) >= self.taken or self.taken > MOST_SHARDS or len(numbers) < len(self.slots):
            raise StateMismatch(f"this is not where {self.taken} shards were taken: {str(state)[:80]}")
        if self.turn >= max(len(numbers), 1):
            raise StateMismatch(f"it is the turn of shard {self.turn} of {len(numbers)} open ones")


class OpenShards(ReadShards):
    """Reads ``count`` shards at once, a sample of each in turn.

    Args:
        reader: how one shard is read.
        count: number of shards that are open, at least 1.

    Raises:
        UsageError: ``count`` below 1.

    Flow: a sample of each open shard in turn; holds one chunk (of 512 or 768 KB) of each; resumes at a byte
    offset in each.
    """

    state_name = "OpenShards"

    @property
    def reorders(self) -> bool:
        """Whether the samples of several shards alternate; see :mod:`webdataset.flow.whole_shards`."""
        return self.count > 1

    def __init__(self, reader: ReadShards, count: int) -> None:
        if not isinstance(count, SupportsIndex) or index(count) < 1:
            raise UsageError(f"open_shards={count!r}: the number of open shards is a whole number, at least 1")
        self.reader = reader
        self.count = index(count)
        self.reading = reader.reading
        if reader.drops:
            self.drops, self.name, self.function = True, "where", getattr(reader, "function", None)

    def begin(self, run: Run) -> Any:
        """Return a state that stands before the first shard."""
        return OpenShardsState(run)

    def for_stream(self, stream: StreamNumber) -> ReadShards:
        """Return the reader of one stream: streams take turns as shards do, so all of them open ``count`` shards."""
        count = -(-self.count // stream.of)
        return self.reader if count == 1 else OpenShards(self.reader, count)

    def open_shards(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """Open shards as the reader does."""
        return self.reader.open_shards(shards)

    def flow(self, upstream: Iterator[Any], state: Any) -> Iterator[Sample]:
        """Yield a sample of each open shard in turn."""
        stops: list[Exception] = []
        reader = self._with_watch(stops)
        shards = self._list_shards(upstream, state)
        slots = state.slots
        try:
            for slot in slots:
                if slot.samples is None:
                    slot.samples = reader.flow(iter([next(shards)]), slot.state)
            while slots:
                slot = slots[state.turn]
                sample = next(slot.samples, None)
                if sample is not None:
                    state.turn = (state.turn + 1) % len(slots)
                    state.last = slot
                    if self.reading.addresses and isinstance(sample, dict):
                        # each reader has one shard, and counts it as the first
                        sample["__address__"] = sample["__address__"]._replace(shard=slot.number)
                    yield sample
                    continue
                state.left_out += slot.state.position.left_out
                state.kept_any = state.kept_any or slot.state.position.kept_any
                if stops:
                    slots.clear()
                else:
                    self._replace(reader, shards, state)
            if state.outcome is not None:
                state.outcome.end(state.left_out, gave=state.kept_any)
        finally:
            for slot in slots:
                close = getattr(slot.samples, "close", None)
                if close is not None:
                    close()

    def _list_shards(self, upstream: Iterator[Shard], state: OpenShardsState) -> Iterator[Shard]:
        """Yield the shards of the slots, then those that follow."""
        if state.slots is None:
            first = list(islice(upstream, self.count))
            state.taken = len(first)
            state.slots = [InterleavedShard(number, self.reader.begin(state.run)) for number in range(len(first))]
            return _chain_slots(first, upstream)
        wanted = {slot.number: None for slot in state.slots}
        passed = enumerate(islice(upstream, state.taken))
        found: dict[int, Shard] = {number: shard for number, shard in passed if number in wanted}
        if len(found) < len(wanted):
            raise StateMismatch("the snapshot was taken in a longer list of shards")
        return _chain_slots([found[slot.number] for slot in state.slots], upstream)

    def _replace(self, reader: ReadShards, shards: Iterator[Shard], state: OpenShardsState) -> None:
        """Put the next shard of the list into the place of one that has ended."""
        slots = state.slots or []
        following = next(shards, None)
        if following is None:
            del slots[state.turn]
            state.turn = state.turn % len(slots) if slots else 0
            return
        fresh = InterleavedShard(state.taken, self.reader.begin(state.run))
        fresh.samples = reader.flow(iter([following]), fresh.state)
        slots[state.turn] = fresh
        state.taken += 1

    def _with_watch(self, stops: list[Exception]) -> ReadShards:
        """Return the reader with a handler that takes note where it chooses to stop: then all shards stop."""
        reader = copy.copy(self.reader)
        reader.reading = replace(self.reading, handler=note_stops(self.reading.handler, stops))
        reader.shares_readers = False  # its rules are its own, and those of no other stream
        return reader

    def __repr__(self) -> str:
        return f"{self.reader!r}, {self.count} shards open"


def _chain_slots(first: list[Shard], rest: Iterator[Shard]) -> Iterator[Shard]:
    first.reverse()
    while first:
        yield first.pop()
    yield from rest
