"""The reader as a stage: shards in, samples out, and a memory that is one address.

Flows in: ``{"url"}`` dicts. Flows out: samples. The memory is the address of the last sample; a restored reader drops
whole shards from its input, opens the next one at a byte offset and goes on. Never opens a shard before the one ahead
of it has ended.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Any

from webdataset.ground.errors import FlowError, StateMismatch
from webdataset.ground.topology import Stream
from webdataset.samples.address import Address
from webdataset.samples.grouping import Sample
from webdataset.samples.opening import open_shards
from webdataset.samples.picking import picked
from webdataset.samples.reading import Position, Reading, read_samples, url_hash

from .base import Fetch, Json, Memory, Run, Stage


class ReaderMemory(Memory):
    """Where the reader is.

    Attributes:
        position: kept up to date while reading.
        start: address of the last sample before a restored run, or None.
        stream: the virtual stream that is read, or None in a plain run.
    """

    plain = True

    def __init__(self, stream: Stream | None = None) -> None:
        self.stream = stream
        self.position = Position()
        self.start: Address | None = None
        self.url: int | None = None  # a hash of the url of the shard to start in

    @property
    def address(self) -> Address | None:
        """Address of the sample given last."""
        return self.position.address() if self.position.offsets else self.start

    def snapshot(self) -> Json:
        """Return the address of the sample given last, or None before the first."""
        position = self.position
        if position.offsets:
            return [*position.address(), position.url]
        return [*self.start, self.url] if self.start is not None else None

    def restore(self, state: Json, fetch: Fetch) -> None:  # noqa: ARG002
        """Go on behind the sample at this address."""
        if state is not None:
            *place, self.url = state
            self.start = Address(*place)


class ReadShards(Stage):
    """Opens shards and reads their samples.

    Flow: in shard and tar order; memory: the samples of one 384 KB chunk; resumes at a byte offset.

    Args:
        reading: how to read.
    """

    rewinds = True

    def __init__(self, reading: Reading | None = None) -> None:
        self.reading = reading or Reading()

    def begin(self, run: Run) -> ReaderMemory:
        """Return a memory that stands before the first shard."""
        return ReaderMemory(run.stream)

    def opened(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Open each shard: ``{"url"}`` to ``{"url", "stream"}``."""
        return open_shards(shards, handler=self.reading.handler)

    def flow(self, upstream: Iterator[Any], memory: ReaderMemory) -> Iterator[Sample]:
        """Yield samples."""
        shards = _numbered(upstream) if memory.origin is not None else upstream
        if memory.start is None:
            return read_samples(self.opened(shards), self.reading, memory.position)
        return self._resumed(shards, memory, memory.start)

    def _resumed(self, upstream: Iterator[Any], memory: ReaderMemory, start: Address) -> Iterator[Sample]:
        """Go on behind the sample at an address, which was given before the snapshot."""
        shards = _beginning_with(memory.url, self.opened(islice(upstream, start.shard, None)), start)
        samples = read_samples(shards, self.reading, memory.position, start)
        if next(samples, None) is None:
            raise FlowError(f"nothing to read at shard {start.shard}, byte {start.offset}: the shards have changed")
        yield from samples

    def fetch_from(self, shards: Iterable[dict[str, Any]], addresses: list[Address]) -> list[Sample]:
        """Read the samples at some addresses, each shard once, front to back.

        Args:
            shards: the run's stream of ``{"url"}``, from its start.
            addresses: any order, any number.

        Returns:
            The samples in the order of ``addresses``.

        Raises:
            FlowError: there is no sample at one of the addresses: the shards have changed.
        """
        found: dict[Address, Sample] = {}
        wanted = sorted({Address(*address) for address in addresses})
        stream = iter(shards)
        passed = 0
        for shard, group in groupby(wanted, key=lambda address: address.shard):
            found.update(self._fetch_shard(islice(stream, shard - passed, shard - passed + 1), list(group)))
            passed = shard + 1
        return [found[Address(*address)] for address in addresses]

    def _fetch_shard(self, shards: Iterator[Any], wanted: list[Address]) -> Iterator[tuple[Address, Sample]]:
        for shard in self.opened(shards):
            yield from picked(shard, self.reading, wanted)
            return
        raise FlowError(f"no shard at {wanted[0]}: the shards have changed since the snapshot")

    def __repr__(self) -> str:
        return f"tarfile_samples({self.reading.handler.__name__})"


def _numbered(shards: Iterator[Any]) -> Iterator[Any]:
    """Number shards, so that those which cannot be opened, and are stepped over, still count."""
    for number, shard in enumerate(shards):
        yield {**shard, "number": number} if isinstance(shard, dict) else shard


def _beginning_with(url: int | None, shards: Iterator[Any], start: Address) -> Iterator[Any]:
    """Yield opened shards, if the first is the one that the snapshot was taken in.

    Raises:
        StateMismatch: it is another one.
    """
    for number, shard in enumerate(shards):
        if number == 0 and url_hash(str(shard["url"])) != url:
            shard["stream"].close()
            raise StateMismatch(
                f"the snapshot was taken in another list of shards: at number {start.shard} stands another url now",
                url=str(shard["url"]),
            )
        yield shard
