"""Reads one sample of a shard at the place that the index says, and proves that it is the sample.

Theory. A payload's header is the block before it. Its checksum, size and name are compared with the index at each
access, so that an index which no longer fits is an error, never wrong bytes. The sum of 512 bytes comes from two Adler
sums over 256 bytes each (exact: at most 65 280, below the modulus). Names in extended headers, and sparse members, are
read by the stream's own scanner. Headers of an open source that were verified when it was indexed are not summed
again: name, kind and size must still stand before the payload.

Never gives bytes that are not proved to be the sample's.
"""

from collections.abc import Container, Mapping, Sequence
from zlib import adler32

from webdataset.core import errors
from webdataset.core.errors import WebDatasetError
from webdataset.index.convert import stale_error
from webdataset.index.entries import FieldEntry, SampleEntry, ShardIndex
from webdataset.index.local_samples import LARGE
from webdataset.samples.grouping import Sample, is_meta
from webdataset.samples.links import LinkTargets
from webdataset.samples.member_sizes import check_member_size
from webdataset.samples.sample_reader import Reading
from webdataset.storage.random_access import LocalRanges, RandomAccess
from webdataset.tar.header import BLOCK, REGULAR, parse_number, path_prefix
from webdataset.tar.scanner import TarScanner

_STEP = 1 << 20
_OCTAL = frozenset(b"01234567")


class UnprovenHeader(Exception):
    """A header that cannot prove the entry by itself: the way through the scanner decides."""


def fetch_sample(
    index: ShardIndex, ordinal: int, ranges: RandomAccess, reading: Reading, fields: Container[str] | None = None
) -> Sample:
    """Read one sample: ``__key__``, ``__url__`` and the fields' bytes, as the stream reader gives them.

    Args:
        index: of the shard.
        ordinal: the sample's number, from 0.
        ranges: the shard.
        reading: the rules of reading.
        fields: names of the fields to read; None reads all.

    Raises:
        StaleIndex: the shard is not the one that was indexed.
        SourceError: it cannot be read.
    """
    entry = index.entries[ordinal]
    chosen = entry.fields if fields is None else tuple(field for field in entry.fields if field.name in fields)
    sample: Sample = {"__key__": entry.key, "__url__": index.url}
    try:
        if ordinal in index.sparse or reading.rename_files is not None:
            raise UnprovenHeader  # noqa: TRY301  one way out
        if reading.memory_map:
            views = _view_payloads(chosen, ranges)
            return sample | {field.name: views[field.offset] for field in chosen}
        if isinstance(ranges, LocalRanges) and ranges.walked and _reread_fields(chosen, ranges, sample):
            return sample
        payloads = _read_payloads(chosen, ranges)
    except UnprovenHeader:
        payloads = _scan_sample(index, ordinal, entry, ranges, reading)
    for field in chosen:
        sample[field.name] = payloads[field.offset]
    if reading.memory_map:
        from webdataset.samples.mapped_shard import view_fields  # noqa: PLC0415  few programs map files

        view_fields([sample])
    return sample


def _view_payloads(fields: Sequence[FieldEntry], ranges: RandomAccess) -> Mapping[int, memoryview]:
    """Return fields as memoryviews by offset: of the file where it can be mapped, else of copied bytes.

    Headers are read and compared as for bytes.
    """
    view = _map_ranges(ranges)
    if view is None:
        return {offset: memoryview(payload) for offset, payload in _read_payloads(fields, ranges).items()}
    walked = getattr(ranges, "walked", False)
    for field in fields:
        header = ranges.read_at(field.offset - BLOCK, BLOCK) if field.offset >= BLOCK else b""
        if not walked or not _is_same_header(header, 0, field.member, field.size):
            check_header(header, field)
        if field.offset + field.size > len(view):
            raise stale_error(f"the shard ends before the end of {field.member!r}", offset=field.offset)
    return {field.offset: view[field.offset : field.offset + field.size] for field in fields}


def _map_ranges(ranges: RandomAccess) -> memoryview | None:
    """Return a view of a whole open shard, which is mapped once; None where it cannot be mapped."""
    from webdataset.samples.mapped_shard import map_file  # noqa: PLC0415  few programs map files

    if not isinstance(ranges, LocalRanges):
        return None
    if ranges.mapped is None:
        ranges.mapped = map_file(ranges.descriptor, ranges.url)
    view = ranges.mapped
    return view if view is not None and len(view) == ranges.length else None


def _reread_fields(fields: Sequence[FieldEntry], ranges: LocalRanges, sample: Sample) -> bool:
    """Read fields whose headers were verified before, and put them into the sample; False where anything is unusual."""
    if not fields:
        return True
    start, last = fields[0].offset - BLOCK, fields[-1]
    if 0 <= last.offset + last.size - start <= LARGE:
        return _reread_run(fields, ranges, sample)
    run: list[FieldEntry] = []
    for field in fields:
        if run and field.offset + field.size - run[0].offset > LARGE:
            if not _reread_run(run, ranges, sample):
                return False
            run = []
        if field.size < LARGE:
            run.append(field)
        elif not _reread_large(field, ranges, sample):
            return False
    return not run or _reread_run(run, ranges, sample)


def _reread_run(run: Sequence[FieldEntry], ranges: LocalRanges, sample: Sample) -> bool:
    start, size = run[0].offset - BLOCK, run[-1].offset + run[-1].size - run[0].offset + BLOCK
    content = ranges.read_at(start, size) if start >= 0 else b""
    if len(content) != size:
        return False
    for name, member, offset, size in run:
        place = offset - start
        if place < BLOCK or not _is_same_header(content, place - BLOCK, member, size):
            return False
        sample[name] = payload = content[place : place + size]
        if len(payload) != size:
            return False
    return True


def _reread_large(field: FieldEntry, ranges: LocalRanges, sample: Sample) -> bool:
    name, member, offset, size = field
    header = ranges.read_at(offset - BLOCK, BLOCK) if offset >= BLOCK else b""
    sample[name] = payload = ranges.read_at(offset, size)
    return len(header) == BLOCK and _is_same_header(header, 0, member, size) and len(payload) == size


def _is_same_header(content: bytes, place: int, member: str, size: int) -> bool:
    """Tell whether the header at a place still has this name, size and kind, in the plainest of forms."""
    return (
        content.startswith(member.encode("utf-8", "surrogateescape") + b"\0", place)
        and content.startswith(b"%011o\0" % size, place + 124)
        and content[place + 156] in REGULAR
        and not content[place + 345]
    )


def _read_payloads(fields: Sequence[FieldEntry], ranges: RandomAccess) -> dict[int, bytes]:
    """Read fields with the headers before them, near ones together; return payloads by offset."""
    payloads: dict[int, bytes] = {}
    start = stop = 0
    run: list[FieldEntry] = []
    for field in sorted(fields, key=_offset_of):
        if field.offset < BLOCK:
            raise stale_error("a payload cannot stand before its header", field=field.member, offset=field.offset)
        if run and field.offset - BLOCK - stop > ranges.latency_bytes:
            _cut_payloads(ranges.read_at(start, stop - start), start, run, payloads)
            run = []
        if not run:
            start = field.offset - BLOCK
        run.append(field)
        stop = field.offset + field.size
    if run:
        _cut_payloads(ranges.read_at(start, stop - start), start, run, payloads)
    return payloads


def _offset_of(field: FieldEntry) -> int:
    return field.offset


def _cut_payloads(content: bytes, start: int, run: list[FieldEntry], payloads: dict[int, bytes]) -> None:
    for field in run:
        place = field.offset - start
        check_header(content[place - BLOCK : place], field)
        payload = content[place : place + field.size]
        if len(payload) != field.size:
            raise stale_error(f"the shard ends before the end of {field.member!r}", offset=field.offset)
        payloads[field.offset] = payload


def check_header(block: bytes, field: FieldEntry) -> None:
    """Compare the block before a payload with the index.

    Raises:
        StaleIndex: it is no header.
        UnprovenHeader: it is one, but its name or size is another, which an extended header may explain.
    """
    whole = len(block) == BLOCK
    stored = block[148:156]
    text = stored.partition(b"\0")[0].strip()
    total = (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - 2 - sum(stored) + 256
    octal = whole and bool(text) and _OCTAL.issuperset(text)
    if not octal or int(text, 8) != total:
        if octal and block[156] in REGULAR:
            # a signed sum, or damage
            raise UnprovenHeader
        raise stale_error(
            f"no header stands before byte {field.offset}", field=field.member, offset=field.offset - BLOCK
        )
    raw = field.member.encode("utf-8", "surrogateescape")
    name = block[:100].partition(b"\0")[0]
    if block[345]:
        name = path_prefix(block) + name
    sized = (
        block[124:136] == b"%011o\0" % field.size or parse_number(block[124:136], "size", field.offset) == field.size
    )
    if name != raw or block[156] not in REGULAR or not sized:
        raise UnprovenHeader


def _scan_sample(
    index: ShardIndex, ordinal: int, entry: SampleEntry, ranges: RandomAccess, reading: Reading
) -> dict[int, bytes]:
    """Read a sample as the stream reader does, from its first header on."""
    scanner = TarScanner(reading.admit(), reading.limits)
    scanner.offset, scanner.weigh = entry.offset, check_member_size
    stop = _find_stop(index, ordinal, entry)
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
        raise stale_error(f"no sample can be read at byte {entry.offset}: {error.message}", url=index.url,
                          key=entry.key,
                    offset=entry.offset) from error  # fmt: skip
    _read_links(entry, ranges, reading, payloads)
    for field in entry.fields:
        if len(payloads.get(field.offset, b"")) != field.size or field.offset not in payloads:
            raise stale_error(f"{field.member!r} of {field.size} bytes is not there", url=index.url, key=entry.key,
                        offset=entry.offset)  # fmt: skip
    return payloads


def _read_links(entry: SampleEntry, ranges: RandomAccess, reading: Reading, payloads: dict[int, bytes]) -> None:
    """Read what a sample's hard links lead to, before the sample; of an empty member, its end is the first header."""
    targets = LinkTargets(ranges.read_at, reading.limits)
    for field in entry.fields:
        if field.offset not in payloads and field.offset <= entry.offset:
            place = targets.place(field.member, entry.offset)
            if place is not None and place.payload == field.offset:
                payloads[field.offset] = targets.payload(place) or b""


def _find_stop(index: ShardIndex, ordinal: int, entry: SampleEntry) -> int:
    """Return where the next sample starts, or the last member ends."""
    entries = index.entries
    start = getattr(entries, "start", None)
    if start is not None and ordinal + 1 < len(entries):
        following: int = start(ordinal + 1)
        if following > entry.offset:
            return following
    return index.end
