"""Some samples of one shard, by address: what a restored buffer held.

Theory. Where a source can go to an offset, each sample is read by itself, header by header: its own bytes, and the one
header behind them that shows where it ends. Elsewhere (pipes, compressed shards, record shards) the shard is read from
the first to the last of them, once.

Flows in: an opened shard and addresses. Flows out: samples. Closes the stream.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from webdataset.ground.errors import FlowError
from webdataset.sources.stream import length_of
from webdataset.tar.compression import compression_of
from webdataset.tar.scan import TarScanner

from .address import Address
from .endings import judge_missing_end
from .going import Going, can_seek
from .grouping import Grouper, Sample
from .reading import Reading

if TYPE_CHECKING:
    from .links import Links, ReadAt


def picked(shard: dict[str, Any], reading: Any, wanted: Sequence[Address]) -> Iterator[tuple[Address, Sample]]:
    """Yield the samples at some addresses.

    Args:
        shard: dict with ``url`` and ``stream``.
        reading: how the shard is read.
        wanted: addresses in it, by rising offset.

    Raises:
        FlowError: at one of them there is no sample: the shard has changed.
        WebDatasetError: the shard cannot be read.
    """
    going = Going(shard["stream"])
    try:
        if type(reading) is Reading and going.reaches(wanted[-1].offset):
            if compression_of(going.read(512)) is None:
                yield from _one_by_one(going, shard, reading, wanted)
                return
            going.to(0)
        yield from _read_through({**shard, "stream": going.stream}, reading, wanted)
    finally:
        close = getattr(going.stream, "close", None)
        if close is not None:
            close()


def _one_by_one(
    going: Going, shard: dict[str, Any], reading: Reading, wanted: Sequence[Address]
) -> Iterator[tuple[Address, Sample]]:
    # the fields in the order in which the reader of a whole shard puts them
    stamp = {"__url__": str(shard["url"])} | {name: part for name, part in shard.items() if name.startswith("__")}
    from .links import Links  # noqa: PLC0415  for restored buffers alone, as the next one
    from .sizes import weigh  # noqa: PLC0415

    scanner, grouper = TarScanner(reading.admit(), reading.limits), reading.grouper()
    scanner.weigh = weigh
    links = Links(str(shard["url"]), reading.limits, lambda: _anywhere(going, shard, reading), reading.rename_files)
    for address in wanted:
        going.to(address.offset)
        scanner.restart(address.offset)
        grouper.open(stamp)
        samples = _first(going, scanner, grouper, links, reading, str(shard["url"]))
        if not samples or grouper.offsets[0] != address.offset:
            raise _gone(address, shard)
        if reading.addresses:
            samples[0]["__address__"] = address
        yield address, samples[0]
    links.tell()


def _anywhere(going: Going, shard: dict[str, Any], reading: Reading) -> "ReadAt | None":
    from .links import random_access, seeking  # noqa: PLC0415  as above

    if can_seek(going.stream):
        return seeking(going.stream, lambda: going.offset)
    return random_access(shard["url"], reading, length_of(going.stream)) if isinstance(shard["url"], str) else None


def _first(  # noqa: PLR0917  one value each
    going: Going, scanner: TarScanner, grouper: Grouper, links: "Links", reading: Reading, url: str
) -> list[Sample]:
    """Read up to the end of one sample; return it, alone or with the next one.

    A member that the handler stepped over when the sample was given is stepped over again.
    """
    samples: list[Sample] = []
    while not samples:
        piece = going.read(scanner.least)
        if not piece:
            ended = scanner.finish()
            if scanner.error is not None:
                raise scanner.error
            if not ended:
                judge_missing_end(url, scanner.offset, chosen=reading.missing_end)
            return grouper.close()
        members = scanner.feed(piece)
        if scanner.strays:
            # one header was fed: no member stands beside the link
            members = [member for some in links.resolved(members, scanner.strays, grouper) for member in some]
        samples = grouper.add(members)
        while grouper.fault is not None and not samples:
            if not reading.handler(grouper.fault):
                raise grouper.fault
            samples = grouper.add(members, grouper.taken)
        if scanner.error is not None and not samples:
            raise scanner.error
        if scanner.awaited is not None:
            grouper.announce(scanner.awaited, samples)
    return samples


def _read_through(shard: dict[str, Any], reading: Any, wanted: Sequence[Address]) -> Iterator[tuple[Address, Sample]]:
    if type(reading) is Reading:  # what was delivered once is delivered again
        reading = replace(reading, split_samples="ignore")
    reader = reading.reader(shard, wanted[0])
    missing = {address.offset: address for address in wanted}
    try:
        for samples, offsets in reader.lists():
            for sample, offset in zip(samples, offsets, strict=True):
                address = missing.pop(offset, None)
                if address is not None:
                    if reading.addresses and type(sample) is dict:
                        sample["__address__"] = address
                    yield address, sample
            if not missing:
                return
    finally:
        reader.close()
    raise _gone(next(iter(missing.values())), shard)


def _gone(address: Address, shard: dict[str, Any]) -> FlowError:
    return FlowError(f"no sample at {address}: the shards have changed since the snapshot", url=str(shard["url"]))
