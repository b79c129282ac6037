"""Reads a sample of small plain members of a local file by its number: one positioned read, straight from the columns.

Theory. A header proves its member: checksum, name, kind and size are compared with the index at each read. Here that
is done for the plainest form of a header alone, and after the read the file must be as old and as large as it was when
it was opened. Anything else is no error here: the caller reads the sample in the way that judges. Where the native core
is, ``native/indexed_samples.c`` does what :meth:`SmallSampleReader.read` does; a lookup takes two thirds of the time.
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
_MOST_REMEMBERED = 1 << 12
_pread: Callable[[int, int, int], bytes] | None = getattr(os, "pread", None)


def open_small_samples(index: ShardIndex, ranges: object) -> Callable[[int], Sample | None] | None:
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
    reader = SmallSampleReader(index, entries, ranges)
    read_small_sample = getattr(find_native(), "read_small_sample", None)
    if read_small_sample is None:
        return reader.read
    described = reader.describe_file()

    # a partial would show all columns where it is printed
    def read(ordinal: int) -> Sample | None:
        sample: Sample | None = read_small_sample(described, ordinal)
        return sample

    return read


class SmallSampleReader:
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
        """Return what the native core reads samples with; see ``read_small_sample`` in ``_native.pyi``."""
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
        names, octal = self._names, self._octal
        try:
            each = self._fields
            if each:
                first, last = ordinal * each, ordinal * each + each - 1
            else:
                first, last = field_ends[ordinal - 1] if ordinal else 0, field_ends[ordinal] - 1
            start = offsets[first] - BLOCK
            size = offsets[last] + sizes[last] - start
            if last < first or start < 0 or not BLOCK <= size <= LARGE or ordinal in self._sparse:
                return None
            content = _pread(descriptor, size, start)  # type: ignore[misc]  # see open
            if len(content) != size or not self._is_unchanged(descriptor, length, changed_ns):
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
                sample[name] = payload = content[place : place + count]
                if (
                    place < BLOCK
                    or len(payload) != count
                    or not content.startswith(key + rest, place - BLOCK)
                    or content[place - 388 : place - 376] != (octal.get(count) or self._format(count))
                    or content[place - 356] not in REGULAR
                    or content[place - 167]
                    or (self._sums and not self._is_sum_right(content[place - BLOCK : place]))
                ):
                    return None
        # numbers that lead nowhere
        except (OSError, IndexError, OverflowError):
            return None
        return sample

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
