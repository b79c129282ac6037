"""Converts the indexes of other tools to ours, checked against the shard before they are used.

Theory. An index that lists payloads proves itself where they tile the shard: each payload one header after the one
before, up to the end mark. Then it is complete and in order, and each header is verified when it is used. Where there
are gaps (extended headers, folders, omitted members), the shard's headers are read, and the index must agree with them.

Raises StaleIndex where the shard contradicts an index; never uses such an index.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import overload

from webdataset.core.errors import FormatError, NoRandomAccess, StaleIndex, WebDatasetError
from webdataset.index.build import IndexBuilder, walk_ranges
from webdataset.index.entries import FieldEntry, SampleEntries, SampleEntry, ShardIndex
from webdataset.index.formats import binary, dali
from webdataset.index.formats.files_json import SidecarRow
from webdataset.index.formats.table import is_usual
from webdataset.samples.grouping import base_plus_ext
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_reader import check_end_mark
from webdataset.storage.random_access import RandomAccess, open_ranges
from webdataset.tar.header import BLOCK, REGULAR, parse_header
from webdataset.tar.walker import MemberPosition

_WAY_OUT = "write the index again, or pass index=False to read the shard's headers instead"
COMPRESSED = "the shard is compressed: for random access decompress it: wds recompress --to none -o FOLDER SHARD"
"""Why a compressed shard has no random access, and what to do."""
_LONGEST_END = 2 * 10240


def stale_error(reason: str, **places: object) -> StaleIndex:
    """Return the error for an index that does not describe its shard."""
    return StaleIndex(f"the index does not describe this shard: {reason}; {_WAY_OUT}").locate(**places)


def check_size(url: str, claimed: int | None, ranges: RandomAccess) -> None:
    """Raise if an index was made for a shard of another size.

    Args:
        url: the shard.
        claimed: bytes, as the index says; None where it says nothing.
        ranges: the shard.

    Raises:
        StaleIndex: the sizes differ.
    """
    if claimed is not None and claimed != ranges.length:
        raise stale_error(f"it was made for {claimed} bytes, and the shard has {ranges.length}", url=url)


def convert_rows(url: str, ranges: RandomAccess, rows: Sequence[SidecarRow], reading: Reading) -> ShardIndex:
    """Return the index of a shard of which another index lists the members.

    Raises:
        StaleIndex: a row that the shard contradicts.
        TarError: the shard is damaged.
    """
    end = _find_tiled_end(ranges, rows)
    if end is not None and reading.select_files is None and reading.rename_files is None:
        for row in (rows[0], rows[-1]) if rows else ():
            _check_header(url, ranges, *row)
        return _group_rows(url, rows, end, ranges, reading)
    index = _walk_headers(url, ranges, reading)
    known = {field.offset: field for entry in index.entries for field in entry.fields}
    whole = reading.admit() is None and reading.suffixes is None
    for name, offset, size in rows:
        field = known.get(offset)
        if field is None:
            # a member of no sample; its name may stand in an extended header
            if whole:
                _check_header(url, ranges, None, offset, size)
        elif field.size != size or (name is not None and name != field.member and reading.rename_files is None):
            raise stale_error(f"it has {name!r} of {size} bytes where {field.member!r} of {field.size} stands",
                        url=url, offset=offset)  # fmt: skip
    return index


def _find_tiled_end(ranges: RandomAccess, rows: Sequence[SidecarRow]) -> int | None:
    """Return where the end mark starts if the rows cover the shard without a gap, else None."""
    place = 0
    for name, offset, size in rows:
        if offset != place + BLOCK or name is None or "%" in name:
            return None
        place = offset + (size + BLOCK - 1 & -BLOCK)
    rest = ranges.length - place
    if not 0 < rest <= _LONGEST_END or rest % BLOCK or ranges.read_at(place, rest).strip(b"\0"):
        return None
    return place


def _group_rows(url: str, rows: Sequence[SidecarRow], end: int, ranges: RandomAccess, reading: Reading) -> ShardIndex:
    builder = IndexBuilder(url, reading)
    builder.group([MemberPosition(name or "", offset - BLOCK, offset, size) for name, offset, size in rows])
    return builder.close(end, stored=ranges.length)


def _walk_headers(url: str, ranges: RandomAccess, reading: Reading) -> ShardIndex:
    index = walk_ranges(url, ranges, reading)
    if index is None:
        raise NoRandomAccess(COMPRESSED, url=url)
    return index


def _check_header(url: str, ranges: RandomAccess, name: str | None, offset: int, size: int | None) -> None:
    """Look at the header before a payload; where the name may stand in an extended header, it proves the size alone."""
    block = ranges.read_at(offset - BLOCK, BLOCK) if offset >= BLOCK else b""
    try:
        found = parse_header(block, offset - BLOCK) if len(block) == BLOCK and block.strip(b"\0") else None
    except FormatError:
        found = None
    right = found is not None and found.kind in REGULAR and size in (None, found.size)
    if right and name is not None and len(name) < 100 and name.isascii():
        right = found is not None and found.name == name.encode()
    if not right:
        wanted = "no member" if name is None or size is None else f"no member {name!r} of {size} bytes"
        raise stale_error(f"{wanted} stands at byte {offset}", url=url, offset=offset)


def convert_dali(
    url: str, ranges: RandomAccess, lines: Sequence[Sequence[dali.DaliComponent]], reading: Reading, *, as_listed: bool
) -> ShardIndex:
    """Return the index of a shard of which a DALI index lists the samples.

    Args:
        url: the shard.
        ranges: the shard.
        lines: the samples' components.
        reading: the rules of reading.
        as_listed: keep to the samples that it lists, in its order (it may be a part of the shard, or another order);
            otherwise give all samples in the order of the stream.

    Raises:
        StaleIndex: a line that the shard contradicts.
        TarError: the shard is damaged.
    """
    # a name with a percent sign may be escaped or not: then the shard's own headers name it
    rows = [
        SidecarRow(None if part.name is None or "%" in part.name else part.name, part.offset, part.size)
        for line in lines
        for part in line
    ]
    ordered = sorted(rows, key=lambda row: row.offset)
    index = convert_rows(url, ranges, ordered, reading)
    if not as_listed or (ordered == rows and len(lines) == len(index)):
        return index
    listed = [[part.offset for part in line] for line in lines]
    if listed == [[field.offset for field in entry.fields] for entry in index.entries]:
        return index
    return _select_entries(url, index, lines)


def _select_entries(url: str, index: ShardIndex, lines: Sequence[Sequence[dali.DaliComponent]]) -> ShardIndex:
    """Return the samples that a DALI index lists, in its order."""
    # samples with hard links share payloads
    known: dict[int, dict[int, FieldEntry]] = {}
    for ordinal, entry in enumerate(index.entries):
        for field in entry.fields:
            known.setdefault(field.offset, {}).setdefault(ordinal, field)
    entries = SampleEntries()
    sparse = set()
    for line in lines:
        there = [known[part.offset] for part in line if part.offset in known]
        if not there:
            raise stale_error("it lists a sample that the reader does not deliver", url=url, offset=line[0].offset)
        chosen = next((each for each in there[0] if all(each in fields for fields in there)), next(iter(there[0])))
        found = [(chosen, fields[chosen]) for fields in there if chosen in fields]
        if found[0][0] in index.sparse:
            sparse.add(len(entries))
        whole = index.entries[found[0][0]]
        entries.append(SampleEntry(whole.key, whole.offset, tuple(field for _, field in found)))
    return dataclasses.replace(index, entries=entries, sparse=frozenset(sparse))


class OffsetEntries(Sequence[SampleEntry]):
    """Entries of an index that says where samples start, and no more: each is read from the shard when it is asked for.

    Args:
        url: the shard.
        ranges: the shard.
        offsets: where each sample starts, then where the end mark starts.
        reading: the rules of reading.

    Attributes:
        ranges: the shard; None where it has been closed, and is to be opened for each entry.
    """

    def __init__(self, url: str, ranges: RandomAccess, offsets: Sequence[int], reading: Reading) -> None:
        self._url = url
        self.ranges: RandomAccess | None = ranges
        self._offsets = offsets
        self._reading = reading

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> SampleEntry: ...

    @overload
    def __getitem__(self, index: slice) -> list[SampleEntry]: ...

    def __getitem__(self, index: int | slice) -> SampleEntry | list[SampleEntry]:
        """Return one entry, or a list of them.

        Raises:
            StaleIndex: not exactly one sample stands there.
        """
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        ordinal = index + len(self) if index < 0 else index
        if not 0 <= ordinal < len(self):
            raise IndexError(f"there is no entry {index}: the index has {len(self)}")
        return self._read_entry(ordinal)

    def _read_entry(self, ordinal: int) -> SampleEntry:
        rules = self._reading
        ranges = self.ranges or open_ranges(self._url, level=rules.trust, storage_options=rules.storage_options)
        start, stop = self._offsets[ordinal], self._offsets[ordinal + 1]
        # folders may stand before the first sample, but no sample that is left out
        place = start if ordinal else 0
        builder = IndexBuilder(self._url, self._reading, lambda: ranges.read_at)
        builder.walk.position = place
        try:
            while builder.walk.wants[0] < stop:
                offset, least = builder.walk.wants
                chunk = ranges.read_at(offset, min(max(least, ranges.latency_bytes), stop - offset))
                builder.feed(chunk, offset)
                if len(chunk) < least:
                    break
            if builder.walk.wants[0] == stop:
                index = builder.close(stop, stored=None)
                if len(index) == 1 and index.entries[0].offset == start:
                    return index.entries[0]
        except WebDatasetError as error:
            raise stale_error(
                f"no sample can be read at byte {start}: {error.message}", url=self._url, offset=start
            ) from error
        raise stale_error(f"not exactly one sample stands at bytes {place} to {stop}", url=self._url, offset=start)

    def __iter__(self) -> Iterator[SampleEntry]:
        """Yield all entries."""
        return (self._read_entry(ordinal) for ordinal in range(len(self)))

    def start(self, index: int) -> int:
        """Return where one sample's first header starts, in bytes."""
        return self._offsets[index]


def convert_binary(url: str, ranges: RandomAccess, found: binary.BinaryIndex, reading: Reading) -> ShardIndex:
    """Return the index of a shard that a binary index describes.

    Args:
        url: the shard.
        ranges: the shard.
        found: what the file says.
        reading: the rules of reading; where they may find other samples, the shard's headers are read.

    Raises:
        StaleIndex: the size, the end mark, the first or the last header are others.
        TarError: the shard is damaged.
    """
    check_size(url, found.size_bytes, ranges)
    end = found.end
    rest = ranges.length - end
    if rest < 0 or ranges.read_at(end, min(rest, _LONGEST_END)).strip(b"\0"):
        raise stale_error(f"it says that members end at byte {end}, where the end mark is not", url=url, offset=end)
    # a key that stands twice may be a sample in parts
    if not found.distinct or not is_usual(reading):
        return _walk_headers(url, ranges, reading)
    if rest < BLOCK:
        check_end_mark(url, end, chosen=reading.missing_end)
    entries = found.entries
    for ordinal in {0, len(entries) - 1} if len(entries) else ():
        entry = entries.peek(ordinal)
        # a hard link leads to a member before it; an extended header may name another size
        for field in (entry.fields[:1] if ordinal == 0 else entry.fields[-1:]) if ordinal not in found.sparse else ():
            if field.offset > entry.offset:
                _check_header(url, ranges, None, field.offset, None)
    return ShardIndex(url, ranges.length, end, entries, None, found.sparse, found.joins, found.hashes)


def convert_offsets(url: str, ranges: RandomAccess, offsets: Sequence[int], reading: Reading) -> ShardIndex:
    """Return the index of a shard of which an energon index says where samples start.

    Args:
        url: the shard.
        ranges: the shard.
        offsets: where each sample starts, then where the end mark starts.
        reading: the rules of reading.

    Raises:
        StaleIndex: it does not begin or end where the shard's samples do.
        TarError: the shard is damaged.
    """
    end = offsets[-1]
    rest = ranges.length - end
    if rest < 0 or ranges.read_at(end, min(rest, _LONGEST_END)).strip(b"\0"):
        raise stale_error(f"it says that members end at byte {end}, where the end mark is not", url=url, offset=end)
    rules = reading.select_files, reading.rename_files, reading.suffixes, reading.duplicates
    usual = rules == (None, None, None, "error") and reading.keys is base_plus_ext
    # other samples, or nothing that proves it
    if not usual or not 0 < rest <= _LONGEST_END or len(offsets) == 1:
        whole = _walk_headers(url, ranges, reading)
        if usual and [entry.offset for entry in whole.entries] != list(offsets[:-1]):
            raise stale_error("the samples start elsewhere", url=url)
        return whole
    entries = OffsetEntries(url, ranges, offsets, reading)
    # proves where the first one starts
    next(iter(entries))
    return ShardIndex(url, ranges.length, end, entries)
