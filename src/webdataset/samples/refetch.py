"""Reads some samples of one shard by address: what a restored buffer held.

Theory. Where a source can seek to an offset, each sample is read alone, header by header: its own bytes, and the one
header after them that shows where it ends. Elsewhere (pipes, compressed shards, record shards) the shard is read
once, from the first address to the last. The stream is always closed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Final, cast

from webdataset.core.errors import FlowError
from webdataset.samples.address import Address
from webdataset.samples.grouping import Grouper, Sample, Shard
from webdataset.samples.sample_reader import Reading
from webdataset.samples.seekable_source import SeekableSource, can_seek
from webdataset.samples.shard_reader import check_end_mark
from webdataset.storage.streams import read_full, stream_length
from webdataset.tar.compression import detect_compression
from webdataset.tar.scanner import TarScanner

if TYPE_CHECKING:
    from webdataset.samples.links import LinkResolver, ReadAt


# the header of a member, with those that give its long name, time and attributes
_KEEP_BYTES: Final = 8192


def refetch(shard: Shard, reading: Reading, wanted: Sequence[Address]) -> Iterator[tuple[Address, Sample]]:
    """Yield the samples at some addresses of an opened shard, by rising offset.

    Raises:
        FlowError: at one of them there is no sample: the shard has changed.
        WebDatasetError: the shard cannot be read.
    """
    going = SeekableSource(shard["stream"], _KEEP_BYTES)
    try:
        if type(reading) is Reading and going.reaches(wanted[-1].offset):
            if detect_compression(read_full(going.read, 512)) is None:
                yield from _refetch_each(going, shard, reading, wanted)
                return
            going.to(0)
        yield from _read_through({**shard, "stream": going.release()}, reading, wanted)
    finally:
        close = getattr(going.stream, "close", None)
        if close is not None:
            close()


def _refetch_each(
    going: SeekableSource, shard: Shard, reading: Reading, wanted: Sequence[Address]
) -> Iterator[tuple[Address, Sample]]:
    # the fields in the order in which the reader of a whole shard puts them
    stamp = {"__url__": str(shard["url"])} | {name: part for name, part in shard.items() if name.startswith("__")}
    from webdataset.samples.links import LinkResolver  # noqa: PLC0415  for restored buffers alone, as the next one
    from webdataset.samples.member_sizes import check_member_size  # noqa: PLC0415

    scanner, grouper = TarScanner(reading.admit(), reading.limits), reading.grouper()
    scanner.weigh = check_member_size
    links = LinkResolver(
        str(shard["url"]), reading.limits, lambda: _open_random_access(going, shard, reading), reading.rename_files
    )
    for address in wanted:
        going.to(address.offset)
        scanner.restart(address.offset)
        grouper.open(stamp)
        samples = _read_first(going, scanner, grouper, links, reading, str(shard["url"]))
        if not samples or grouper.offsets[0] != address.offset:
            raise _missing_sample_error(address, shard)
        if reading.addresses:
            samples[0]["__address__"] = address
        yield address, samples[0]
    links.tell()


def _open_random_access(going: SeekableSource, shard: Shard, reading: Reading) -> "ReadAt | None":
    from webdataset.samples.links import make_read_at, open_random_access  # noqa: PLC0415  as above

    if can_seek(going.stream):
        return make_read_at(cast("IO[bytes]", going.stream), lambda: going.offset)
    return (
        open_random_access(shard["url"], reading, stream_length(going.stream))
        if isinstance(shard["url"], str)
        else None
    )


def _read_first(  # noqa: PLR0917  one value each
    going: SeekableSource, scanner: TarScanner, grouper: Grouper, links: "LinkResolver", reading: Reading, url: str
) -> list[Sample]:
    """Read up to the end of one sample; return it, alone or with the next one, stepping over what the handler did."""
    samples: list[Sample] = []
    while not samples:
        piece = going.read(scanner.least)
        if not piece:
            ended = scanner.finish()
            if scanner.error is not None:
                raise scanner.error
            if not ended:
                check_end_mark(url, scanner.offset, chosen=reading.missing_end)
            return grouper.close()
        members = scanner.feed(piece)
        if scanner.payloadless:
            # one header was fed: no member stands beside the link
            members = [member for some in links.resolve(members, scanner.payloadless, grouper) for member in some]
        samples = grouper.add(members)
        while grouper.fault is not None and not samples:
            if not reading.handler(grouper.fault):
                raise grouper.fault
            samples = grouper.add(members, grouper.taken)
        if scanner.error is not None and not samples:
            raise scanner.error
        if scanner.pending_name is not None:
            grouper.announce(scanner.pending_name, samples)
    return samples


def _read_through(shard: Shard, reading: Reading, wanted: Sequence[Address]) -> Iterator[tuple[Address, Sample]]:
    # what was delivered once is delivered again
    if type(reading) is Reading:
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
    raise _missing_sample_error(next(iter(missing.values())), shard)


def _missing_sample_error(address: Address, shard: Shard) -> FlowError:
    return FlowError(f"no sample at {address}: the shards have changed since the snapshot", url=str(shard["url"]))
