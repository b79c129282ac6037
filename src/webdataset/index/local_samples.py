"""Reads a sample of plain members of a local file by its number, straight from the columns.

A small sample takes one positioned read, and its fields are copied from it. The fields of a large one are read each by
itself, in the native core by one call.

Theory. A header proves its member: checksum, name, kind and size are compared with the index at each read. Here that
is done for the plainest form of a header alone, and after the read the file must be as old and as large as it was when
it was opened. Anything else is no error here: the caller reads the sample in the way that judges. Where the native core
is, ``native/indexed_samples.c`` does what :meth:`LocalSampleReader.read` does; a lookup takes two thirds of the time.
"""

import os
from array import array
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any
from zlib import adler32

from webdataset.index.entries import SampleEntries, ShardIndex
from webdataset.samples.grouping import Sample
from webdataset.samples.native_core import choose_file_check, find_native
from webdataset.storage.random_access import LocalRanges
from webdataset.tar.header import BLOCK, REGULAR, parse_checksum

# from here on, one more read is cheaper than one more copy
LARGE = 32 * 1024
# of a large sample: fields, and bytes of headers and padding between them
_MOST_FIELDS = 32
_MOST_BETWEEN = 32 * 1024
_MOST_REMEMBERED = 1 << 12
_pread: Callable[[int, int, int], bytes] | None = getattr(os, "pread", None)


def open_local_samples(index: ShardIndex, ranges: object) -> Callable[[int], Sample | None] | None:
    """Return what reads a sample of a shard by its number, from 0; it returns None where anything is unusual.

    None where the shard is not a local file, or its members are called by other names.

    Args:
        index: of the shard.
        ranges: the shard.
    """
    entries = index.entries
    if not isinstance(entries, SampleEntries) or not isinstance(ranges, LocalRanges) or _pread is None:
        return None
    if entries.columns().odd:
        return None
    reader = LocalSampleReader(index, entries, ranges)
    read_local_sample = getattr(find_native(), "read_local_sample", None)
    if read_local_sample is None:
        return reader.read
    described = reader.describe_file()

    # a partial would show all columns where it is printed
    def read(ordinal: int) -> Sample | None:
        sample: Sample | None = read_local_sample(described, ordinal)
        return sample

    return read


class LocalSampleReader:
    """The samples of one open file.

    Args:
        index: of the shard.
        entries: of the index.
        ranges: the shard.
    """

    def __init__(self, index: ShardIndex, entries: SampleEntries, ranges: LocalRanges) -> None:
        columns = entries.columns()
        self._columns = columns[:7] if entries.is_mapped else (bytes(columns.keys), *columns[1:7])
        self._names = [(name, rest.encode("utf-8", "surrogateescape") + b"\0") for name, rest in columns.names]
        self._sparse, self._url = index.sparse, index.url
        self._ranges = ranges
        self._is_unchanged = choose_file_check()
        self._file = ranges.descriptor, ranges.identity.length, ranges.identity.changed_ns
        # each column that is looked at costs a miss of the processor's cache
        count = max(1, len(columns.starts))
        each = len(columns.kinds) // count
        # no slices of views that threads share: see SampleEntries.verify
        kinds = columns.kinds.tobytes()  # type: ignore[attr-defined]  # an array or a view
        alike = kinds == kinds[: each * len(kinds) // max(1, len(columns.kinds))] * count
        first = list(islice(columns.kinds, each))
        known = all(kind < len(self._names) for kind in first)
        self._fields = each if alike and known and _rises_by(columns.field_ends, each) else 0
        self._kinds = [self._names[kind] for kind in first[: self._fields]]
        width = columns.key_ends[0] if len(columns.key_ends) else 0
        self._key_bytes = width if _rises_by(columns.key_ends, width) else 0
        # all headers were verified when the file was indexed
        self._sums = not ranges.walked
        self._expected: dict[bytes, int] = {}
        self._octal: dict[int, bytes] = {}

    def describe_file(self) -> tuple[object, ...]:
        """Return what the native core reads samples with; see ``read_local_sample`` in ``_native.pyi``."""
        keys, key_ends, _, *fields = self._columns
        return (*self._file, keys, key_ends, *fields, tuple(self._names), self._fields, self._key_bytes,
                self._sparse, self._url, self._ranges)  # fmt: skip

    def read(self, ordinal: int) -> Sample | None:
        """Return a sample; None where anything about it is unusual.

        Args:
            ordinal: its number, from 0.
        """
        keys, key_ends, _, field_ends, offsets, sizes, kinds = self._columns
        descriptor, length, changed_ns = self._file
        names = self._names
        try:
            each = self._fields
            if each:
                first, last = ordinal * each, ordinal * each + each - 1
            else:
                first, last = field_ends[ordinal - 1] if ordinal else 0, field_ends[ordinal] - 1
            start = offsets[first] - BLOCK
            size = offsets[last] + sizes[last] - start
            if last < first or start < 0 or size < BLOCK or start + size > length or ordinal in self._sparse:
                return None
            large = size > LARGE
            content = b"" if large else _pread(descriptor, size, start)  # type: ignore[misc]  # see open_local_samples
            if not self._is_usual(first, last) if large else len(content) != size:
                return None
            width = self._key_bytes
            begin = width * ordinal if width else key_ends[ordinal - 1] if ordinal else 0
            key = keys[begin : begin + width if width else key_ends[ordinal]]
            if key.__class__ is not bytes:
                key = bytes(key)
            sample: dict[str, Any] = {"__key__": str(key, "utf-8", "surrogateescape"), "__url__": self._url}
            for row in range(first, last + 1):
                name, rest = self._kinds[row - first] if each else names[kinds[row]]
                place, count = offsets[row] - start, sizes[row]
                if large:
                    content, payload = self._read_member(offsets[row], count)
                    place = BLOCK
                else:
                    payload = content[place : place + count]
                if place < BLOCK or len(payload) != count or not self._proves(content, place, key + rest, count):
                    return None
                sample[name] = payload
            if not self._is_unchanged(descriptor, length, changed_ns):
                return None
        # numbers that lead nowhere
        except (OSError, IndexError, OverflowError):
            return None
        return sample

    def _is_usual(self, first: int, last: int) -> bool:
        """Tell whether the fields of a large sample, by their rows, are few and follow each other closely."""
        if last - first >= _MOST_FIELDS:
            return False
        offsets, sizes = self._columns[4:6]
        end, between = offsets[first] - BLOCK, 0
        for row in range(first, last + 1):
            between += offsets[row] - end
            if offsets[row] < end + BLOCK or between > _MOST_BETWEEN:
                return False
            end = offsets[row] + sizes[row]
        return end <= self._ranges.length

    def _read_member(self, offset: int, size: int) -> tuple[bytes, bytes]:
        """Return the header before an offset, and the payload that begins there."""
        descriptor = self._file[0]
        return _pread(descriptor, BLOCK, offset - BLOCK), _pread(descriptor, size, offset)  # type: ignore[misc]

    def _proves(self, content: bytes, place: int, member: bytes, size: int) -> bool:
        """Tell whether the plainest of headers before a payload shows a member's name (with a NUL), size and kind."""
        return (
            content.startswith(member, place - BLOCK)
            and content[place - 388 : place - 376] == (self._octal.get(size) or self._format(size))
            and content[place - 356] in REGULAR
            and not content[place - 167]
            and not (self._sums and not self._is_sum_right(content[place - BLOCK : place]))
        )

    def _format(self, size: int) -> bytes:
        """Return how a header writes a size."""
        text = b"%011o\0" % size
        if len(self._octal) < _MOST_REMEMBERED:
            self._octal[size] = text
        return text

    def _is_sum_right(self, block: bytes) -> bool:
        """Tell whether the checksum of a header is right."""
        stored = block[148:156]
        expected = self._expected.get(stored)
        if expected is None:
            expected = self._learn(stored)
        # exact: at most 65 280, below the modulus
        return (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) == expected

    def _learn(self, stored: bytes) -> int:
        """Return what two Adler sums over a header with this checksum give; -1 where it is none."""
        total = parse_checksum(stored)
        expected = -1 if total is None else total - 256 + sum(stored) + 2
        if len(self._expected) < _MOST_REMEMBERED:
            self._expected[stored] = expected
        return expected


def _rises_by(ends: Sequence[int], step: int) -> bool:
    """Tell whether each number is greater by a step than the one before, from zero on."""
    if len(ends) and ends[-1] != len(ends) * step:
        return False
    expected = array("Q", range(step, len(ends) * step + 1, step)) if step else array("Q")
    return ends.tobytes() == expected.tobytes()  # type: ignore[attr-defined, no-any-return]
