"""Reads shards as a stage: ``{"url"}`` dicts in, samples out, one shard at a time.

The state of a reader is the address of the last sample, with what tells that the shard is still the same. A restored
reader drops whole shards from its input, opens the next one at a byte offset and continues. It never opens a shard
before the one before it has ended, and never continues in a shard that was replaced, unless it is told to.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby, islice
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, cast

from webdataset.core.distributed import StreamNumber
from webdataset.core.error_handlers import Handler, count_skipped, reraise_exception
from webdataset.core.errors import FlowError, FormatError, StateMismatch
from webdataset.core.json_types import JsonValue, SplitJson, as_list, is_count, join_snapshot
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
from webdataset.samples.shared_reader import SHARED_BY, SharedReaders
from webdataset.stages.base import Fetch, Run, Stage, StageState
from webdataset.storage.streams import stream_identity

if TYPE_CHECKING:
    from webdataset.samples.selected_extents import SelectingReader
    from webdataset.samples.shard_extents import SampleTable, TableFinder
    from webdataset.samples.shard_reader import ShardReader
    from webdataset.storage.extents import Extents

Shard = dict[str, Any]
"""A shard on its way to its samples: ``{"url"}``, and ``stream`` once it is open."""


class ReaderState(StageState):
    """Where the reader is.

    Attributes:
        position: kept up to date while reading.
        saved: what the state held that this run continues from, or None.
        stream: the virtual stream that is read, or None in a plain run.
        readers: of shards that several streams share; None where each reads alone.
        epoch: of the pass.
        known_columns: what is known of columns files, where no other stream shares it.
    """

    plain = True

    def __init__(self, run: Run) -> None:
        self.stream: StreamNumber | None = run.stream
        self.readers, self.epoch = run.readers, run.epoch
        self.warned = run.warned
        self.position = Position(tracked=run.tracked, chained=run.traced)
        self.saved: SavedPosition | None = None
        self.known_columns: object | None = None

    @property
    def address(self) -> CheckedAddress | None:
        """Address of the sample given last."""
        if self.position.offsets:
            return self.position.address()
        return None if self.saved is None else self.saved.address()

    @property
    def first_input(self) -> int:
        """Number of shards that come before the one in which a restored run continues."""
        return 0 if self.saved is None else self.saved.start.shard

    def snapshot(self) -> JsonValue:
        """Return the address of the sample given last, and which sample of which shard it is; None before the first."""
        return join_snapshot(self.split_snapshot())

    def split_snapshot(self) -> SplitJson:
        """Return the same in two parts: where the sample stands, and what is known of the shard."""
        return self.position.split_snapshot()

    def writer(self) -> Callable[[], SplitJson]:
        """Return ``split_snapshot``, a call less."""
        return self.position.split_snapshot

    def restore(self, state: JsonValue, fetch: Fetch) -> None:  # noqa: ARG002
        """Continue after the sample at this address."""
        if state is not None:
            self.saved = SavedPosition(state)
            self.position.resumed = self.saved.parts

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
        known = all(part is None or is_count(part) for part in (url, size, validator)) and type(rises) in {
            bool,
            int,
            NoneType,
        }
        if not _are_counts(shard, ordinal, offset, key) or not known or shard >= MOST_SHARDS:
            raise StateMismatch(f"this is not where a reader stood: {str(state)[:80]}")
        self.parts: SplitJson = [[shard, ordinal, offset, key], [url, size, validator, rises]]
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
        found = getattr(shard.get("reader"), "file_identity", None) or stream_identity(shard["stream"])
        compare_identities(str(shard["url"]), self.identity, ShardIdentity.of(*found), warned)

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

    Flow: in shard and tar order; memory: the samples of one chunk (512 KB; of a store 768); resumes at a byte offset.

    Args:
        reading: how to read.
    """

    state_name = "ReadShards"
    rewinds = True
    # stages that a pipeline runs before this one, and shows as a part of it
    before: tuple[Callable[..., Any], ...] = ()
    # likewise, after it
    after: tuple[Callable[..., Any], ...] = ()
    # streams of one worker may share a reader
    shares_readers = True

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
            plain = state.readers is None and not self.drops
            opened = self.open_shards(shards) if plain else self._open_for_stream(shards, state)
            return read_samples(opened, self.reading, state.position)
        return self._resume(shards, state, state.saved)

    def _open_for_stream(
        self, shards: Iterator[Shard], state: ReaderState, saved: SavedPosition | None = None
    ) -> Iterator[Shard]:
        """Open the shards of a stream; those that others share are read by one reader for all.

        Args:
            shards: of the stream.
            state: of the reader.
            saved: where to start in the first shard; None starts at its beginning.
        """
        readers = state.readers if self.shares_readers else None
        if readers is None and not self.drops:
            return self.open_shards(shards)
        return self._open_with_readers(shards, state, readers, saved)

    def _open_with_readers(
        self, shards: Iterator[Shard], state: ReaderState, readers: SharedReaders | None, saved: SavedPosition | None
    ) -> Iterator[Shard]:
        stops: list[Exception] = []
        opener, common = copy.copy(self), copy.copy(self)
        opener.reading = replace(self.reading, handler=note_stops(self.reading.handler, stops))
        common.reading = replace(self.reading, handler=reraise_exception)
        selected: list[tuple[Shard, SelectingReader]] = []
        shared: list[tuple[Shard, SavedPosition | None]] = []
        numbered = enumerate(shards)

        def list_own_shards() -> Iterator[Shard]:
            for number, shard in numbered:
                place = None if number else saved
                reader = self._select_by_columns(shard, state, place, common) if self.drops else None
                if reader is not None:
                    selected.append((shard, reader))
                    return
                if SHARED_BY in shard and readers is not None:
                    shared.append((shard, place))
                    return
                yield shard

        try:
            while True:
                yield from opener.open_shards(list_own_shards())
                if stops or not (shared or selected):
                    return
                if selected:
                    shard, chosen = selected.pop()
                    yield {**{name: part for name, part in shard.items() if name not in ("share", "part")},
                           "reader": chosen, "stream": chosen.stream}  # fmt: skip
                    continue
                shard, place = shared.pop()
                claimed = self._claim_reader(shard, state, place, common)
                yield from opener.open_shards([shard]) if claimed is None else (claimed,)
        finally:
            for _, unread in selected:
                unread.close()

    def _claim_reader(
        self, shard: Shard, state: ReaderState, saved: SavedPosition | None, common: "ReadShards"
    ) -> Shard | None:
        """Return a shard with what this stream reads of it; None where it is to be read alone."""
        if state.readers is None or state.stream is None:
            return None
        known = {**shard, "rising": saved is None or saved.rises}
        start = None if saved is None else saved.start
        find_table = self.table_finder(shard, state.readers.known_indexes)
        number = state.stream.number
        reader = state.readers.claim(known, self.reading, number, state.epoch, common.open_shards, start, find_table)
        if reader is None:
            return None
        del known["share"]  # it was taken there
        return {**known, "reader": reader, "stream": reader.stream}

    def _select_by_columns(
        self, shard: Shard, state: ReaderState, saved: SavedPosition | None, common: "ReadShards"
    ) -> "SelectingReader | None":
        """Return what reads only the samples of a shard that may be wanted, by a columns file beside it."""
        reading = self.reading
        if not self.opens_by_url() or type(reading) is not Reading or not isinstance(shard["url"], str):
            return None
        from webdataset.index.column_selection import KnownColumns, open_selection  # noqa: PLC0415  few runs select

        holder = state if state.readers is None else state.readers
        files = holder.known_columns if isinstance(holder.known_columns, KnownColumns) else KnownColumns()
        holder.known_columns = files

        known = {**shard, "rising": saved is None or saved.rises}
        opened: list[Iterator[Shard]] = []

        def open_whole(rules: Reading, start: Address | None) -> "ShardReader":
            # it is not closed before the reader is left
            opened.append(common.open_shards([shard]))
            return rules.reader({**next(opened[-1]), "rising": known["rising"]}, start)

        return open_selection(known, reading, None if saved is None else saved.start, files, open_whole)

    def table_finder(self, shard: Shard, known: dict[str, int]) -> "TableFinder | None":
        """Return what finds out where the samples of a shard stand; None where nothing may go past ``open_shards``.

        Args:
            shard: one that streams share.
            known: of each folder at a store, which kind of index lies there.
        """
        if not self.opens_by_url() or type(self.reading) is not Reading or not isinstance(shard["url"], str):
            return None
        url, beside, reading = shard["url"], shard[SHARED_BY].step, self.reading

        def find(gap: int) -> "tuple[SampleTable, Extents] | None":
            # most shards are of one worker
            from webdataset.index.sample_tables import SharedShard, find_table  # noqa: PLC0415

            return find_table(SharedShard(url, beside, known), reading, gap)

        return find

    def opens_by_url(self) -> bool:
        """Tell whether ``open_shards`` opens what the urls lead to, and nothing else."""
        return type(self).open_shards is ReadShards.open_shards

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
        opened = _check_first_shard(saved, self._open_for_stream(shards, state, saved), state.warned)
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
        if "reader" in first:
            first["reader"].reading = reading
        samples = read_samples(chain([first], opened), reading, state.position, saved.start)
        sample = next(samples, None)
        if sample is None or state.position.shard != first.get("number", saved.start.shard):
            raise changed_shard_error(url, f"it ends before byte {saved.start.offset}")
        saved.check_key(url, sample)
        reader = state.position.reader
        saved.check_identity({"url": url, "stream": reader.stream, "reader": reader}, state.warned)
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
        if not all(_are_counts(*address) and address[0] < MOST_SHARDS for address in addresses):
            raise StateMismatch(f"these are no addresses of samples: {str(addresses)[:80]}")
        found: dict[CheckedAddress, Sample] = {}
        wanted = sorted({CheckedAddress(*address) for address in addresses})
        stream = iter(shards)
        passed = 0
        for shard, group in groupby(wanted, key=lambda address: address.shard):
            listed = list(islice(stream, shard - passed, shard - passed + 1))
            found.update(self._fetch_shard(listed, list(group)))
            passed = shard + 1
        samples = [found[CheckedAddress(*address)] for address in addresses]
        if getattr(self.reading, "memory_map", False):
            from webdataset.samples.mapped_shard import view_fields  # noqa: PLC0415  few runs map files

            view_fields(samples)
        return samples

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


class SelectSamples(ReadShards):
    """The same, of the samples for which ``reading.where`` holds; mixed into readers.

    Flow: in shard and tar order; memory: the samples of one chunk (512 KB; of a store 768); resumes at a byte offset.
    """

    drops = True
    name = "where"

    @property
    def function(self) -> object:
        """What selects the samples, for reports."""
        return None if self.reading.where is None else self.reading.where.normal

    def flow(self, upstream: Iterator[Shard], state: ReaderState) -> Iterator[Sample]:
        """Yield the samples that are wanted; say at the end whether there were any."""
        yield from super().flow(upstream, state)
        if state.outcome is not None:
            state.outcome.end(state.position.left_out, gave=state.position.kept_any)


def find_position(items: Iterator[Any], state: StageState | None) -> Position | None:
    """Return the position of a reader whose iterator gives nothing but what its position holds, or None.

    Such a reader's next items are those in ``pending``: who pops one has what the iterator would give next.

    Args:
        items: the reader's iterator.
        state: its state.
    """
    alone = getattr(items, "gi_code", None) in _BARE_READERS and type(state) is ReaderState
    return state.position if alone and isinstance(state, ReaderState) else None


MOST_SHARDS = 1 << 32  # of one stream in one pass; more are in no state, and would be skipped for hours
_BARE_READERS = (read_samples.__code__, ReadShards._resume.__code__)  # noqa: SLF001  of this module


def _are_counts(*numbers: object) -> bool:
    """Tell whether all of these are whole numbers from 0 that a file may have as an offset."""
    return all(map(is_count, numbers))


def note_stops(handler: Handler, stops: list[Exception]) -> Handler:
    """Return a handler that asks another one, and takes note of the errors at which that chose to stop."""

    def ask_handler(error: Exception) -> bool:
        goes_on = handler(error)
        if not goes_on:
            stops.append(error)
        return bool(goes_on)

    return ask_handler


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
                shard["reader" if "reader" in shard else "stream"].close()
                raise
        yield shard
