"""Several shards open at once, a sample of each in turn.

Theory. A buffer behind a reader mixes what stands near in one shard. With ``k`` shards open, neighbours come from ``k``
shards at no cost in samples held: each shard waits at a byte of its own. When one ends, the next of the list takes its
place. Which sample comes when follows from the list and the shards alone, so all there is to remember is, for each open
shard, its number in the list and the address of the sample given last.

Flows in: ``{"url"}`` dicts. Flows out: samples. Never opens more than ``count`` shards, and none before it is needed.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from webdataset.ground.errors import StateMismatch, UsageError
from webdataset.ground.topology import Stream
from webdataset.samples.grouping import Sample

from .base import Fetch, Json, Memory, Run
from .reading import ReaderMemory, ReadShards


class Open:
    """One open shard.

    Args:
        number: index of the shard in the run's list.
        memory: where its reader is.
    """

    def __init__(self, number: int, memory: Any) -> None:
        self.number = number
        self.memory = memory
        self.samples: Iterator[Sample] | None = None  # None until it is opened, or again

    def address(self) -> list[int] | None:
        """Return the address of the sample given last, or None before the first."""
        inner = self.memory.address
        return None if inner is None else [self.number, *inner[1:]]


class OpenMemory(Memory):
    """Where a reader of several shards is.

    Attributes:
        slots: the open shards, in the order of their turns; None until the first ones are taken.
        taken: number of shards taken from the list so far.
        turn: index in ``slots`` of the shard that gives next.
        last: address of the sample given last.
    """

    def __init__(self, run: Run | None = None) -> None:
        self.run = run or Run()
        self.slots: list[Open] | None = None
        self.taken = 0
        self.turn = 0
        self.last: Open | None = None
        self.before: list[int] | None = None  # the sample given last before a restored run

    @property
    def address(self) -> list[int] | None:
        """Address of the sample given last."""
        return self.before if self.last is None else self.last.address()

    def snapshot(self) -> Json:
        """Return the open shards and whose turn it is, or None before the first."""
        if self.slots is None:
            return None
        return {
            "taken": self.taken,
            "turn": self.turn,
            "last": self.address,
            "slots": [[slot.number, slot.memory.snapshot()] for slot in self.slots],
        }

    def present_url(self) -> str:
        """Return the url of the shard that gave the last sample."""
        return "" if self.last is None else str(self.last.memory.present_url())

    def trace(self) -> Json:
        """Return how far each open shard has been read."""
        slots = self.slots or []
        return [self.taken, self.turn, [[slot.number, slot.memory.trace()] for slot in slots]]

    def restore(self, state: Json, fetch: Fetch) -> None:
        """Take up the open shards; they are opened at their addresses when it is their turn."""
        if state is None:
            return
        self.taken, self.turn = int(state["taken"]), int(state["turn"])
        self.before = state["last"]
        self.slots = []
        for number, inner in state["slots"]:
            memory = ReaderMemory(self.run)
            memory.restore(inner, fetch)
            self.slots.append(Open(int(number), memory))


class OpenShards(ReadShards):
    """Reads ``count`` shards at once, a sample of each in turn.

    Args:
        reader: how one shard is read.
        count: number of shards that are open, at least 1.

    Raises:
        UsageError: ``count`` below 1.

    Flow: a sample of each open shard in turn; holds one chunk of 384 KB of each; resumes at a byte offset in each.
    """

    def __init__(self, reader: ReadShards, count: int) -> None:
        if count < 1:
            raise UsageError(f"open_shards={count!r}: at least one shard has to be open")
        self.reader = reader
        self.count = count
        self.reading = reader.reading

    def begin(self, run: Run) -> Any:
        """Return a memory that stands before the first shard."""
        return OpenMemory(run)

    def divided(self, stream: Stream) -> ReadShards:
        """Return the reader of one stream: streams take turns as shards do, so all of them open ``count`` shards."""
        count = -(-self.count // stream.of)
        return self.reader if count == 1 else OpenShards(self.reader, count)

    def opened(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Open shards as the reader does."""
        return self.reader.opened(shards)

    def flow(self, upstream: Iterator[Any], memory: Any) -> Iterator[Sample]:
        """Yield a sample of each open shard in turn."""
        stops: list[Exception] = []
        reader = self._watched(stops)
        shards = self._listed(upstream, memory)
        slots = memory.slots
        try:
            for slot in slots:
                if slot.samples is None:
                    slot.samples = reader.flow(iter([next(shards)]), slot.memory)
            while slots:
                slot = slots[memory.turn]
                sample = next(slot.samples, None)
                if sample is not None:
                    memory.turn = (memory.turn + 1) % len(slots)
                    memory.last = slot
                    if self.reading.addresses and isinstance(sample, dict):
                        # each reader has one shard, and counts it as the first
                        sample["__address__"] = sample["__address__"]._replace(shard=slot.number)
                    yield sample
                elif stops:
                    slots.clear()
                else:
                    self._replace(reader, shards, memory)
        finally:
            for slot in slots:
                close = getattr(slot.samples, "close", None)
                if close is not None:
                    close()

    def _listed(self, upstream: Iterator[Any], memory: OpenMemory) -> Iterator[Any]:
        """Yield the shards of the slots, then those that follow."""
        if memory.slots is None:
            first = list(islice(upstream, self.count))
            memory.taken = len(first)
            memory.slots = [Open(number, self.reader.begin(memory.run)) for number in range(len(first))]
            return _chained(first, upstream)
        wanted = {slot.number: None for slot in memory.slots}
        passed = enumerate(islice(upstream, memory.taken))
        found: dict[int, Any] = {number: shard for number, shard in passed if number in wanted}
        if len(found) < len(wanted):
            raise StateMismatch("the snapshot was taken in a longer list of shards")
        return _chained([found[slot.number] for slot in memory.slots], upstream)

    def _replace(self, reader: ReadShards, shards: Iterator[Any], memory: Any) -> None:
        """Put the next shard of the list into the place of one that has ended."""
        following = next(shards, None)
        if following is None:
            del memory.slots[memory.turn]
            memory.turn = memory.turn % len(memory.slots) if memory.slots else 0
            return
        fresh = Open(memory.taken, self.reader.begin(memory.run))
        fresh.samples = reader.flow(iter([following]), fresh.memory)
        memory.slots[memory.turn] = fresh
        memory.taken += 1

    def _watched(self, stops: list[Exception]) -> ReadShards:
        """Return the reader with a handler that takes note where it chooses to stop: then all shards stop."""
        reader = copy.copy(self.reader)
        handler = self.reading.handler

        def watched(error: Exception) -> Any:
            goes_on = handler(error)
            if not goes_on:
                stops.append(error)
            return goes_on

        reader.reading = replace(self.reading, handler=watched)
        return reader

    def __repr__(self) -> str:
        return f"{self.reader!r}, {self.count} shards open"


def _chained(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    first.reverse()
    while first:
        yield first.pop()
    yield from rest
