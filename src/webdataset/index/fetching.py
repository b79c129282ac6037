"""One sample out of a shard: read by offset, and proved to be the sample that the index means.

Theory. A payload's header is the block before it. Its checksum, size and name are compared with the index at each
access, so that an index which no longer fits is an error, never wrong bytes. The sum of 512 bytes comes from two Adler
sums over 256 bytes each (exact: at most 65 280, below the modulus). Names that stand in extended headers, and sparse
members, are read by the stream's own scanner. Where all headers of the open source were verified when it was indexed,
their sums are not taken again: name, kind and size must still stand before the payload.

Flows in: an entry and the open shard. Flows out: the sample.
"""

from collections.abc import Container, Sequence
from typing import Any
from zlib import adler32

from webdataset.ground import errors
from webdataset.ground.errors import WebDatasetError
from webdataset.samples.links import LinkTargets
from webdataset.samples.names import is_meta
from webdataset.samples.reading import Reading
from webdataset.samples.sizes import weigh
from webdataset.sources.ranges import LocalRanges, Ranges
from webdataset.tar.header import BLOCK, REGULAR, number, path_prefix
from webdataset.tar.scan import TarScanner

from .entries import FieldEntry, SampleEntry, ShardIndex
from .resolving import stale

_STEP = 1 << 20
_LARGE = 32 * 1024  # from here on, one more read is cheaper than one more copy
_OCTAL = frozenset(b"01234567")


class _Elsewhere(Exception):
    """A header that cannot prove the entry by itself: the way through the scanner decides."""


def fetch(
    index: ShardIndex, ordinal: int, ranges: Ranges, reading: Reading, fields: Container[str] | None = None
) -> dict[str, Any]:
    """Read one sample.

    Args:
        index: of the shard.
        ordinal: the sample's number, from 0.
        ranges: the shard.
        reading: the rules of reading.
        fields: names of the fields to read; None reads all.

    Returns:
        ``__key__``, ``__url__`` and the fields' bytes, as the stream reader gives them.

    Raises:
        StaleIndex: the shard is not the one that was indexed.
        SourceError: it cannot be read.
    """
    entry = index.entries[ordinal]
    chosen = entry.fields if fields is None else tuple(field for field in entry.fields if field.name in fields)
    sample: dict[str, Any] = {"__key__": entry.key, "__url__": index.url}
    try:
        if ordinal in index.sparse or reading.rename_files is not None:
            raise _Elsewhere  # noqa: TRY301  one way out
        if isinstance(ranges, LocalRanges) and ranges.walked and _again(chosen, ranges, sample):
            return sample
        payloads = _direct(chosen, ranges)
    except _Elsewhere:
        payloads = _scanned(index, ordinal, entry, ranges, reading)
    for field in chosen:
        sample[field.name] = payloads[field.offset]
    return sample


def _again(fields: Sequence[FieldEntry], ranges: LocalRanges, sample: dict[str, Any]) -> bool:
    """Read fields whose headers were verified before, and put them into the sample; False where anything is unusual."""
    if not fields:
        return True
    start, last = fields[0].offset - BLOCK, fields[-1]
    if 0 <= last.offset + last.size - start <= _LARGE:
        return _run_again(fields, ranges, sample)
    run: list[FieldEntry] = []
    for field in fields:
        if run and field.offset + field.size - run[0].offset > _LARGE:
            if not _run_again(run, ranges, sample):
                return False
            run = []
        if field.size < _LARGE:
            run.append(field)
        elif not _large_again(field, ranges, sample):
            return False
    return not run or _run_again(run, ranges, sample)


def _run_again(run: Sequence[FieldEntry], ranges: LocalRanges, sample: dict[str, Any]) -> bool:
    start, size = run[0].offset - BLOCK, run[-1].offset + run[-1].size - run[0].offset + BLOCK
    content = ranges.read_at(start, size) if start >= 0 else b""
    if len(content) != size:
        return False
    for name, member, offset, size in run:
        place = offset - start
        if place < BLOCK or not _same(content, place - BLOCK, member, size):
            return False
        sample[name] = payload = content[place : place + size]
        if len(payload) != size:
            return False
    return True


def _large_again(field: FieldEntry, ranges: LocalRanges, sample: dict[str, Any]) -> bool:
    name, member, offset, size = field
    header = ranges.read_at(offset - BLOCK, BLOCK) if offset >= BLOCK else b""
    sample[name] = payload = ranges.read_at(offset, size)
    return len(header) == BLOCK and _same(header, 0, member, size) and len(payload) == size


def _same(content: bytes, place: int, member: str, size: int) -> bool:
    """Tell whether the header at a place still has this name, size and kind, in the plainest of forms."""
    return (
        content.startswith(member.encode("utf-8", "surrogateescape") + b"\0", place)
        and content.startswith(b"%011o\0" % size, place + 124)
        and content[place + 156] in REGULAR
        and not content[place + 345]
    )


def _direct(fields: Sequence[FieldEntry], ranges: Ranges) -> dict[int, bytes]:
    """Read fields with the headers before them, near ones together; return payloads by offset."""
    payloads: dict[int, bytes] = {}
    start = stop = 0
    run: list[FieldEntry] = []
    for field in sorted(fields, key=_offset):
        if field.offset < BLOCK:
            raise stale("a payload cannot stand before its header", field=field.member, offset=field.offset)
        if run and field.offset - BLOCK - stop > ranges.latency_bytes:
            _cut(ranges.read_at(start, stop - start), start, run, payloads)
            run = []
        if not run:
            start = field.offset - BLOCK
        run.append(field)
        stop = field.offset + field.size
    if run:
        _cut(ranges.read_at(start, stop - start), start, run, payloads)
    return payloads


def _offset(field: FieldEntry) -> int:
    return field.offset


def _cut(content: bytes, start: int, run: list[FieldEntry], payloads: dict[int, bytes]) -> None:
    for field in run:
        place = field.offset - start
        check_header(content[place - BLOCK : place], field)
        payload = content[place : place + field.size]
        if len(payload) != field.size:
            raise stale(f"the shard ends before the end of {field.member!r}", offset=field.offset)
        payloads[field.offset] = payload


def check_header(block: bytes, field: FieldEntry) -> None:
    """Compare the block before a payload with the index.

    Raises:
        StaleIndex: it is no header.
        _Elsewhere: it is one, but its name or size is another, which an extended header may explain.
    """
    whole = len(block) == BLOCK
    stored = block[148:156]
    text = stored.partition(b"\0")[0].strip()
    total = (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - 2 - sum(stored) + 256
    octal = whole and bool(text) and _OCTAL.issuperset(text)
    if not octal or int(text, 8) != total:
        if octal and block[156] in REGULAR:
            raise _Elsewhere  # a signed sum, or damage
        raise stale(f"no header stands before byte {field.offset}", field=field.member, offset=field.offset - BLOCK)
    raw = field.member.encode("utf-8", "surrogateescape")
    name = block[:100].partition(b"\0")[0]
    if block[345]:
        name = path_prefix(block) + name
    sized = block[124:136] == b"%011o\0" % field.size or number(block[124:136], "size", field.offset) == field.size
    if name != raw or block[156] not in REGULAR or not sized:
        raise _Elsewhere


def _scanned(index: ShardIndex, ordinal: int, entry: SampleEntry, ranges: Ranges, reading: Reading) -> dict[int, bytes]:
    """Read a sample as the stream reader does, from its first header on."""
    scanner = TarScanner(reading.admit(), reading.limits)
    scanner.offset, scanner.weigh = entry.offset, weigh
    stop = _stop(index, ordinal, entry)
    wanted = {field.member: field for field in entry.fields if field.offset > entry.offset}
    last = reading.duplicates == "last"
    payloads: dict[int, bytes] = {}
    try:
        while scanner.offset < stop and (last or len(payloads) < len(wanted)):
            content = ranges.read_at(scanner.offset, min(scanner.want, stop - scanner.offset, _STEP))
            if not content:
                break
            members = scanner.feed(content)
            for name, payload, _ in members:
                field = None if is_meta(name) else wanted.get(name)
                if field is not None and (last or field.offset not in payloads):
                    payloads[field.offset] = payload
            if scanner.error is not None:
                raise scanner.error
    except errors.LimitExceeded:
        raise
    except WebDatasetError as error:
        raise stale(f"no sample can be read at byte {entry.offset}: {error.message}", url=index.url, key=entry.key,
                    offset=entry.offset) from error  # fmt: skip
    _link(entry, ranges, reading, payloads)
    for field in entry.fields:
        if len(payloads.get(field.offset, b"")) != field.size or field.offset not in payloads:
            raise stale(f"{field.member!r} of {field.size} bytes is not there", url=index.url, key=entry.key,
                        offset=entry.offset)  # fmt: skip
    return payloads


def _link(entry: SampleEntry, ranges: Ranges, reading: Reading, payloads: dict[int, bytes]) -> None:
    """Read what a sample's hard links lead to, before the sample; of an empty member, its end is the first header."""
    targets = LinkTargets(ranges.read_at, reading.limits)
    for field in entry.fields:
        if field.offset not in payloads and field.offset <= entry.offset:
            place = targets.place(field.member, entry.offset)
            if place is not None and place.payload == field.offset:
                payloads[field.offset] = targets.payload(place) or b""


def _stop(index: ShardIndex, ordinal: int, entry: SampleEntry) -> int:
    """Return where the next sample starts, or the last member ends."""
    entries = index.entries
    start = getattr(entries, "start", None)
    if start is not None and ordinal + 1 < len(entries):
        following: int = start(ordinal + 1)
        if following > entry.offset:
            return following
    return index.end
