"""Reads shards as a stage: ``{"url"}`` dicts in, samples out, one shard at a time or several in turn.

The state of a reader is the address of the last sample, with what tells that the shard is still the same. A restored
reader drops whole shards from its input, opens the next one at a byte offset and continues. It never opens a shard
before the one before it has ended, and never continues in a shard that was replaced, unless it is told to.

Theory of several open shards. A buffer after a reader mixes what stands close together in one shard. With ``k``
shards open, neighbours come from ``k`` shards at no cost in samples held: each shard waits at a byte of its own. When
one ends, the next of the list takes its place. The order of samples follows from the list and the shards alone, so
the state is, for each open shard, its number in the list and the address of the sample given last. Never more than
``count`` shards are open, and none is opened before it is needed.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby, islice
from typing import Any, Self, cast

from webdataset.core.distributed import StreamNumber
from webdataset.core.error_handlers import count_skipped
from webdataset.core.errors import FlowError, FormatError, StateMismatch, UsageError
from webdataset.core.json_types import JsonValue, as_int, as_list, as_object, as_pair
from webdataset.samples.address import Address, CheckedAddress
from webdataset.samples.grouping import Sample
from webdataset.samples.refetch import refetch
from webdataset.samples.sample_reader import Position, Reading, hash_url, read_samples, take_share
from webdataset.samples.shard_identity import (
    CHECK,
    ShardIdentity,
    changed_shard_error,
    compare_identities,
    is_lenient,
    matches_sample,
    sum_key,
    sum_size,
    warn_changed_shard,
)
from webdataset.samples.shard_opener import open_shards
from webdataset.stages.base import Fetch, Run, Stage, StageState
from webdataset.storage.streams import stream_identity

Shard = dict[str, Any]
"""A shard on its way to its samples: ``{"url"}``, and ``stream`` once it is open."""


class ReaderState(StageState):
    """Where the reader is.

    Attributes:
        position: kept up to date while reading.
        saved: what the state held that this run continues from, or None.
        stream: the virtual stream that is read, or None in a plain run.
    """

    plain = True

    def __init__(self, run: Run) -> None:
        self.stream: StreamNumber | None = run.stream
        self.warned = run.warned
        self.position = Position(tracked=run.tracked)
        self.saved: SavedPosition | None = None

    @property
    def address(self) -> CheckedAddress | None:
        """Address of the sample given last."""
        if self.position.offsets:
            return self.position.address()
        return None if self.saved is None else self.saved.address()

    def snapshot(self) -> JsonValue:
        """Return the address of the sample given last, and which sample of which shard it is; None before the first."""
        position = self.position
        if not position.offsets:
            return None if self.saved is None else self.saved.state
        shard, ordinal, offset, _ = position.address()
        rises = int(position.rising)
        return [shard, ordinal, offset, position.key_sum(), position.url, *position.identity(), rises]

    def restore(self, state: JsonValue, fetch: Fetch) -> None:  # noqa: ARG002
        """Continue after the sample at this address."""
        if state is not None:
            self.saved = SavedPosition(state)

    def present_url(self) -> str:
        """Return the url of the shard that is being read."""
        return self.position.present_url

    def trace(self) -> JsonValue:
        """Return how far the run has read, for a replay to compare: the last address, all keys, the present shard."""
        position = self.position
        at = list(position.address()[:3]) if position.offsets else None
        return {
            "at": at,
            "keys": position.chain(),
            "object": list(position.identity()) if at else [None, None],
            "shard": position.url if at else None,
        }


class SavedPosition:
    """What a state says of a reader: where it stood, and in which shard.

    Raises:
        StateMismatch: it is no such value.
    """

    def __init__(self, state: JsonValue) -> None:
        try:
            shard, ordinal, offset, key, url, size, validator, rises = cast("list[Any]", as_list(state))
        except (TypeError, ValueError) as error:
            raise StateMismatch(f"this is not where a reader stood: {str(state)[:80]}") from error
        self.state = state
        self.start = Address(shard, ordinal, offset)
        self.key = int(key)
        self.url = url
        self.identity = ShardIdentity(size, validator)
        self.rises = bool(rises)  # the keys of the shard did, up to there

    def address(self) -> CheckedAddress:
        """Return the address of the sample given last."""
        return CheckedAddress(*self.start, (self.key ^ sum_size(self.identity.size)) & CHECK)

    def check_url(self, url: str) -> None:
        """Compare the url of the shard at the saved number with that of the shard that was read.

        Raises:
            StateMismatch: it is another one.
        """
        if hash_url(url) != self.url:
            raise StateMismatch(
                f"the snapshot was taken in another list of shards: at number {self.start.shard} stands another url",
                url=url,
            )

    def check_identity(self, shard: Shard, warned: set[str]) -> None:
        """Compare an opened shard with the one that was read.

        Raises:
            StateMismatch: it has another size.
        """
        compare_identities(
            str(shard["url"]), self.identity, ShardIdentity.of(*stream_identity(shard["stream"])), warned
        )

    def check_key(self, url: str, sample: Sample) -> None:
        """Compare the sample at the saved place with the one that was given.

        Raises:
            StateMismatch: it has another key.
        """
        if sum_key(sample) != self.key:
            key = sample.get("__key__") if isinstance(sample, dict) else None
            raise changed_shard_error(
                url, f"at byte {self.start.offset} stands the sample {key!r}, and another one stood there"
            )


class ReadShards(Stage):
    """Opens shards and reads their samples.

    Flow: in shard and tar order; memory: the samples of one 384 KB chunk; resumes at a byte offset.

    Args:
        reading: how to read.
    """

    state_name = "ReadShards"
    rewinds = True
    # stages that a pipeline runs before this one, and shows as a part of it
    before: tuple[Callable[..., Any], ...] = ()
    # likewise, after it
    after: tuple[Callable[..., Any], ...] = ()

    def __init__(self, reading: Reading | None = None) -> None:
        self.reading = reading or Reading()

    def joined_with(self, before: tuple[Callable[..., Any], ...], after: tuple[Callable[..., Any], ...]) -> Self:
        """Return this reader as one that stands for further stages."""
        result = copy.copy(self)
        result.before, result.after = before, after
        return result

    def bare(self) -> Self:
        """Return this reader without the stages that a pipeline runs with it."""
        if not self.before and not self.after:
            return self
        return self.joined_with((), ())

    def begin(self, run: Run) -> ReaderState:
        """Return a state that stands before the first shard."""
        return ReaderState(run)

    def open_shards(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """Open each shard: ``{"url"}`` to ``{"url", "stream"}``."""
        return open_shards(shards, handler=self.reading.handler)

    def flow(self, upstream: Iterator[Any], state: ReaderState) -> Iterator[Sample]:
        """Yield samples."""
        shards = _number_shards(upstream) if state.origin is not None else upstream
        if state.saved is None:
            return read_samples(self.open_shards(shards), self.reading, state.position)
        return self._resume(shards, state, state.saved)

    def _resume(self, upstream: Iterator[Shard], state: ReaderState, saved: SavedPosition) -> Iterator[Sample]:
        """Continue after the sample at an address, which was given before the snapshot."""
        listed = islice(upstream, saved.start.shard, None)
        first = next(listed, None)
        if first is None:
            raise FlowError(f"no shard {saved.start.shard} to resume in: the list of shards has changed")
        try:
            # what was skipped up to here was counted before the state was saved
            with count_skipped(None):
                samples = self._at_offset(chain([first], listed), state, saved)
        except StateMismatch as error:
            if not is_lenient() or hash_url(str(first["url"])) != saved.url:
                raise
            warn_changed_shard(str(first["url"]), error)
            samples = self._at_ordinal(chain([first], listed), state, saved.start)
        yield from samples

    def _at_offset(self, shards: Iterator[Shard], state: ReaderState, saved: SavedPosition) -> Iterator[Sample]:
        """Return the samples after the saved one, once it has been read again and compared."""
        opened = _check_first_shard(saved, self.open_shards(shards), state.warned)
        handler = self.reading.handler
        going = False

        def ask_handler(error: Exception) -> bool:
            # what cannot be read at a place where a sample stood is another shard
            if not going and isinstance(error, FormatError):
                raise changed_shard_error(url, f"nothing can be read at byte {saved.start.offset} any more", error)
            return handler(error)

        first = next(opened, None)
        if first is None:
            raise FlowError(f"nothing to read at shard {saved.start.shard}, byte {saved.start.offset}")
        url = str(first["url"])
        first["rising"] = saved.rises
        reading = replace(self.reading, handler=ask_handler)
        samples = read_samples(chain([first], opened), reading, state.position, saved.start)
        sample = next(samples, None)
        if sample is None or state.position.shard != first.get("number", saved.start.shard):
            raise changed_shard_error(url, f"it ends before byte {saved.start.offset}")
        saved.check_key(url, sample)
        saved.check_identity({"url": url, "stream": state.position.reader.stream}, state.warned)
        going = True
        return samples

    def _at_ordinal(self, shards: Iterator[Shard], state: ReaderState, start: Address) -> Iterator[Sample]:
        """Yield what follows as many samples of the first shard as were given of it."""
        position = state.position
        for sample in read_samples(self.open_shards(shards), self.reading, position):
            if position.shard > start.shard or position.address().ordinal > start.ordinal:
                yield sample

    def fetch_from(self, shards: Iterable[Shard], addresses: list[Address]) -> list[Sample]:
        """Read the samples at some addresses, each shard once, front to back.

        Returns:
            The samples in the order of ``addresses``.

        Raises:
            FlowError: there is no sample at one of the addresses.
            StateMismatch: another sample than the state's stands at one of them: the shards were replaced.
        """
        found: dict[CheckedAddress, Sample] = {}
        wanted = sorted({CheckedAddress(*address) for address in addresses})
        stream = iter(shards)
        passed = 0
        for shard, group in groupby(wanted, key=lambda address: address.shard):
            listed = list(islice(stream, shard - passed, shard - passed + 1))
            found.update(self._fetch_shard(listed, list(group)))
            passed = shard + 1
        return [found[CheckedAddress(*address)] for address in addresses]

    def _fetch_shard(
        self, shards: list[Shard], wanted: list[CheckedAddress]
    ) -> Iterable[tuple[CheckedAddress, Sample]]:
        try:
            return list(self._fetch_by_offset(iter(shards), wanted))
        except StateMismatch as error:
            if not is_lenient():
                raise
            warn_changed_shard(str(shards[0]["url"]), error)
            return self._fetch_by_ordinal(iter(shards), wanted)

    def _fetch_by_offset(
        self, shards: Iterator[Shard], wanted: list[CheckedAddress]
    ) -> Iterator[tuple[CheckedAddress, Sample]]:
        by_place = {Address(*address[:3]): address for address in wanted}
        for shard in self.open_shards(shards):
            url = str(shard["url"])
            try:
                for place, sample in refetch(shard, self.reading, list(by_place)):
                    address = by_place[place]
                    if not matches_sample(address.check, sum_key(sample), stream_identity(shard["stream"])[0]):
                        raise changed_shard_error(
                            url, f"the sample at byte {place.offset} has another key, or the shard another size"
                        )
                    yield address, sample
            except StateMismatch:
                raise
            except (FormatError, FlowError) as error:
                raise changed_shard_error(
                    url, f"a sample that stood in it cannot be read any more ({error})", error
                ) from None
            return
        raise FlowError(f"no shard at {wanted[0]}: the shards have changed since the snapshot")

    def _fetch_by_ordinal(
        self, shards: Iterator[Shard], wanted: list[CheckedAddress]
    ) -> Iterator[tuple[CheckedAddress, Sample]]:
        missing = {address.ordinal: address for address in wanted}
        for shard in self.open_shards(shards):
            reader = self.reading.reader(shard)
            ordinal = 0
            try:
                for samples, _ in take_share(reader.lists(), shard, None):
                    for sample in samples:
                        if ordinal in missing:
                            yield missing.pop(ordinal), sample
                        ordinal += 1
            finally:
                reader.close()
            if missing:
                raise changed_shard_error(
                    str(shard["url"]), f"it has {ordinal} samples, and had more than {max(missing)}"
                )

    def __repr__(self) -> str:
        return f"tarfile_samples({self.reading.handler.__name__})"


def _number_shards(shards: Iterator[Shard]) -> Iterator[Shard]:
    """Number shards, so that those which cannot be opened, and are stepped over, still count."""
    for number, shard in enumerate(shards):
        yield {**shard, "number": number} if isinstance(shard, dict) else shard


def _check_first_shard(saved: SavedPosition, shards: Iterator[Shard], warned: set[str]) -> Iterator[Shard]:
    """Yield opened shards, if the first is the one that the snapshot was taken in."""
    for number, shard in enumerate(shards):
        if number == 0:
            try:
                saved.check_url(str(shard["url"]))
                saved.check_identity(shard, warned)
            except StateMismatch:
                shard["stream"].close()
                raise
        yield shard


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
    """

    def __init__(self, run: Run | None = None) -> None:
        self.run = run or Run()
        self.slots: list[InterleavedShard] | None = None
        self.taken = 0
        self.turn = 0
        self.last: InterleavedShard | None = None
        self.before: list[int] | None = None  # the sample given last before a restored run

    @property
    def address(self) -> list[int] | None:
        """Address of the sample given last."""
        return self.before if self.last is None else self.last.address()

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
        self.taken, self.turn = as_int(parts["taken"]), as_int(parts["turn"])
        last = parts["last"]
        self.before = None if last is None else [as_int(part) for part in as_list(last)]
        self.slots = []
        for number, inner in map(as_pair, as_list(parts["slots"])):
            reader_state = ReaderState(self.run)
            reader_state.restore(inner, fetch)
            self.slots.append(InterleavedShard(as_int(number), reader_state))


class OpenShards(ReadShards):
    """Reads ``count`` shards at once, a sample of each in turn.

    Args:
        reader: how one shard is read.
        count: number of shards that are open, at least 1.

    Raises:
        UsageError: ``count`` below 1.

    Flow: a sample of each open shard in turn; holds one chunk of 384 KB of each; resumes at a byte offset in each.
    """

    state_name = "OpenShards"

    def __init__(self, reader: ReadShards, count: int) -> None:
        if count < 1:
            raise UsageError(f"open_shards={count!r}: at least one shard has to be open")
        self.reader = reader
        self.count = count
        self.reading = reader.reading

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
                elif stops:
                    slots.clear()
                else:
                    self._replace(reader, shards, state)
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
        handler = self.reading.handler

        def ask_handler(error: Exception) -> bool:
            goes_on = handler(error)
            if not goes_on:
                stops.append(error)
            return goes_on

        reader.reading = replace(self.reading, handler=ask_handler)
        return reader

    def __repr__(self) -> str:
        return f"{self.reader!r}, {self.count} shards open"


def _chain_slots(first: list[Shard], rest: Iterator[Shard]) -> Iterator[Shard]:
    first.reverse()
    while first:
        yield first.pop()
    yield from rest
