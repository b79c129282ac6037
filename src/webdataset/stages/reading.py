"""The reader as a stage: shards in, samples out, and a memory that is one address.

Flows in: ``{"url"}`` dicts. Flows out: samples. The memory is the address of the last sample, with what tells that the
shard is still the same; a restored reader drops whole shards from its input, opens the next one at a byte offset and
goes on. Never opens a shard before the one ahead of it has ended; never goes on in a shard that was replaced, unless it
is told to.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby, islice
from typing import Any, Self

from webdataset.ground.errors import FlowError, FormatError, StateMismatch
from webdataset.ground.skips import counting
from webdataset.ground.topology import Stream
from webdataset.samples.address import Address, CheckedAddress
from webdataset.samples.grouping import Sample
from webdataset.samples.identity import (
    CHECK,
    ShardIdentity,
    compare_identities,
    fits,
    is_lenient,
    refuse_changed,
    sum_key,
    sum_size,
    warn_changed,
)
from webdataset.samples.opening import open_shards
from webdataset.samples.picking import picked
from webdataset.samples.position import shared_out
from webdataset.samples.reading import Position, Reading, read_samples, url_hash
from webdataset.sources.stream import identity_of

from .base import Fetch, Json, Memory, Run, Stage


class ReaderMemory(Memory):
    """Where the reader is.

    Args:
        run: the run that reads.

    Attributes:
        position: kept up to date while reading.
        saved: what the state held that this run goes on from, or None.
        stream: the virtual stream that is read, or None in a plain run.
    """

    plain = True

    def __init__(self, run: Run) -> None:
        self.stream: Stream | None = run.stream
        self.told = run.told
        self.position = Position(tracked=run.tracked)
        self.saved: SavedPosition | None = None

    @property
    def address(self) -> CheckedAddress | None:
        """Address of the sample given last."""
        if self.position.offsets:
            return self.position.address()
        return None if self.saved is None else self.saved.address()

    def snapshot(self) -> Json:
        """Return the address of the sample given last, and which sample of which shard it is; None before the first."""
        position = self.position
        if not position.offsets:
            return None if self.saved is None else self.saved.state
        shard, ordinal, offset, _ = position.address()
        rises = int(position.rising)
        return [shard, ordinal, offset, position.key_sum(), position.url, *position.identity(), rises]

    def restore(self, state: Json, fetch: Fetch) -> None:  # noqa: ARG002
        """Go on behind the sample at this address."""
        if state is not None:
            self.saved = SavedPosition(state)

    def present_url(self) -> str:
        """Return the url of the shard that is being read."""
        return self.position.present_url

    def trace(self) -> Json:
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

    Args:
        state: what ``ReaderMemory.snapshot`` returned.

    Raises:
        StateMismatch: it is no such value.
    """

    def __init__(self, state: Json) -> None:
        try:
            shard, ordinal, offset, key, url, size, validator, rises = state
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
        if url_hash(url) != self.url:
            raise StateMismatch(
                f"the snapshot was taken in another list of shards: at number {self.start.shard} stands another url",
                url=url,
            )

    def check_identity(self, shard: dict[str, Any], told: set[str]) -> None:
        """Compare an opened shard with the one that was read.

        Raises:
            StateMismatch: it has another size.
        """
        compare_identities(str(shard["url"]), self.identity, ShardIdentity.of(*identity_of(shard["stream"])), told)

    def check_key(self, url: str, sample: Any) -> None:
        """Compare the sample at the saved place with the one that was given.

        Raises:
            StateMismatch: it has another key.
        """
        if sum_key(sample) != self.key:
            key = sample.get("__key__") if isinstance(sample, dict) else None
            raise refuse_changed(
                url, f"at byte {self.start.offset} stands the sample {key!r}, and another one stood there"
            )


class ReadShards(Stage):
    """Opens shards and reads their samples.

    Flow: in shard and tar order; memory: the samples of one 384 KB chunk; resumes at a byte offset.

    Args:
        reading: how to read.
    """

    rewinds = True
    before: tuple[Any, ...] = ()  # stages that a pipeline runs in front of this one, and shows as a part of it
    after: tuple[Any, ...] = ()  # likewise, behind it

    def __init__(self, reading: Reading | None = None) -> None:
        self.reading = reading or Reading()

    def joined_with(self, before: tuple[Any, ...], after: tuple[Any, ...]) -> Self:
        """Return this reader as one that stands for further stages.

        Args:
            before: what a pipeline runs in front of it.
            after: what it runs behind it.
        """
        result = copy.copy(self)
        result.before, result.after = before, after
        return result

    def bare(self) -> Self:
        """Return this reader without the stages that a pipeline runs with it."""
        if not self.before and not self.after:
            return self
        return self.joined_with((), ())

    def begin(self, run: Run) -> ReaderMemory:
        """Return a memory that stands before the first shard."""
        return ReaderMemory(run)

    def opened(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Open each shard: ``{"url"}`` to ``{"url", "stream"}``."""
        return open_shards(shards, handler=self.reading.handler)

    def flow(self, upstream: Iterator[Any], memory: ReaderMemory) -> Iterator[Sample]:
        """Yield samples."""
        shards = _numbered(upstream) if memory.origin is not None else upstream
        if memory.saved is None:
            return read_samples(self.opened(shards), self.reading, memory.position)
        return self._resumed(shards, memory, memory.saved)

    def _resumed(self, upstream: Iterator[Any], memory: ReaderMemory, saved: SavedPosition) -> Iterator[Sample]:
        """Go on behind the sample at an address, which was given before the snapshot."""
        listed = islice(upstream, saved.start.shard, None)
        first = next(listed, None)
        if first is None:
            raise FlowError(f"no shard {saved.start.shard} to resume in: the list of shards has changed")
        try:
            # what was gone on without up to here was counted before the state was saved
            with counting(None):
                samples = self._at_offset(chain([first], listed), memory, saved)
        except StateMismatch as error:
            if not is_lenient() or url_hash(str(first["url"])) != saved.url:
                raise
            warn_changed(str(first["url"]), error)
            samples = self._at_ordinal(chain([first], listed), memory, saved.start)
        yield from samples

    def _at_offset(self, shards: Iterator[Any], memory: ReaderMemory, saved: SavedPosition) -> Iterator[Sample]:
        """Return the samples behind the saved one, once it has been read again and compared."""
        opened = _beginning_with(saved, self.opened(shards), memory.told)
        handler = self.reading.handler
        going = False

        def watched(error: Exception) -> Any:
            # what cannot be read at a place where a sample stood is another shard
            if not going and isinstance(error, FormatError):
                raise refuse_changed(url, f"nothing can be read at byte {saved.start.offset} any more", error)
            return handler(error)

        first = next(opened, None)
        if first is None:
            raise FlowError(f"nothing to read at shard {saved.start.shard}, byte {saved.start.offset}")
        url = str(first["url"])
        first["rising"] = saved.rises
        reading = replace(self.reading, handler=watched)
        samples = read_samples(chain([first], opened), reading, memory.position, saved.start)
        sample = next(samples, None)
        if sample is None or memory.position.shard != first.get("number", saved.start.shard):
            raise refuse_changed(url, f"it ends before byte {saved.start.offset}")
        saved.check_key(url, sample)
        saved.check_identity({"url": url, "stream": memory.position.reader.stream}, memory.told)
        going = True
        return samples

    def _at_ordinal(self, shards: Iterator[Any], memory: ReaderMemory, start: Address) -> Iterator[Sample]:
        """Yield what follows as many samples of the first shard as were given of it."""
        position = memory.position
        for sample in read_samples(self.opened(shards), self.reading, position):
            if position.shard > start.shard or position.address().ordinal > start.ordinal:
                yield sample

    def fetch_from(self, shards: Iterable[dict[str, Any]], addresses: list[Address]) -> list[Sample]:
        """Read the samples at some addresses, each shard once, front to back.

        Args:
            shards: the run's stream of ``{"url"}``, from its start.
            addresses: any order, any number.

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

    def _fetch_shard(self, shards: list[Any], wanted: list[CheckedAddress]) -> Iterable[tuple[CheckedAddress, Sample]]:
        try:
            return list(self._fetch_by_offset(iter(shards), wanted))
        except StateMismatch as error:
            if not is_lenient():
                raise
            warn_changed(str(shards[0]["url"]), error)
            return self._fetch_by_ordinal(iter(shards), wanted)

    def _fetch_by_offset(
        self, shards: Iterator[Any], wanted: list[CheckedAddress]
    ) -> Iterator[tuple[CheckedAddress, Sample]]:
        by_place = {Address(*address[:3]): address for address in wanted}
        for shard in self.opened(shards):
            url = str(shard["url"])
            try:
                for place, sample in picked(shard, self.reading, list(by_place)):
                    address = by_place[place]
                    if not fits(address.check, sum_key(sample), identity_of(shard["stream"])[0]):
                        raise refuse_changed(
                            url, f"the sample at byte {place.offset} has another key, or the shard another size"
                        )
                    yield address, sample
            except StateMismatch:
                raise
            except (FormatError, FlowError) as error:
                raise refuse_changed(
                    url, f"a sample that stood in it cannot be read any more ({error})", error
                ) from None
            return
        raise FlowError(f"no shard at {wanted[0]}: the shards have changed since the snapshot")

    def _fetch_by_ordinal(
        self, shards: Iterator[Any], wanted: list[CheckedAddress]
    ) -> Iterator[tuple[CheckedAddress, Sample]]:
        missing = {address.ordinal: address for address in wanted}
        for shard in self.opened(shards):
            reader = self.reading.reader(shard)
            ordinal = 0
            try:
                for samples, _ in shared_out(reader.lists(), shard, None):
                    for sample in samples:
                        if ordinal in missing:
                            yield missing.pop(ordinal), sample
                        ordinal += 1
            finally:
                reader.close()
            if missing:
                raise refuse_changed(str(shard["url"]), f"it has {ordinal} samples, and had more than {max(missing)}")

    def __repr__(self) -> str:
        return f"tarfile_samples({self.reading.handler.__name__})"


def _numbered(shards: Iterator[Any]) -> Iterator[Any]:
    """Number shards, so that those which cannot be opened, and are stepped over, still count."""
    for number, shard in enumerate(shards):
        yield {**shard, "number": number} if isinstance(shard, dict) else shard


def _beginning_with(saved: SavedPosition, shards: Iterator[Any], told: set[str]) -> Iterator[Any]:
    """Yield opened shards, if the first is the one that the snapshot was taken in.

    Raises:
        StateMismatch: it is another one.
    """
    for number, shard in enumerate(shards):
        if number == 0:
            try:
                saved.check_url(str(shard["url"]))
                saved.check_identity(shard, told)
            except StateMismatch:
                shard["stream"].close()
                raise
        yield shard
