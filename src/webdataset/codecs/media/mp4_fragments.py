"""Reads fragments of MP4 files: the tables of one ``moof``, and the index ``sidx`` (ISO/IEC 14496-12, 8.8 and 8.16)."""

from typing import NamedTuple

import numpy as np

from webdataset.codecs.media.mp4_boxes import (
    Box,
    BoxReader,
    Integers,
    damaged_file_error,
    find_boxes,
    read_boxes,
)
from webdataset.codecs.media.mp4_samples import DEPENDENT_FLAGS, MOST_SAMPLES, MediaSamples, Track

# what a fragment's header states, and what the rows of a run hold
_HAS_BASE, _HAS_FORMAT, _HAS_DURATION, _HAS_SIZE, _HAS_FLAGS, _BASE_IS_FRAGMENT = 0x1, 0x2, 0x8, 0x10, 0x20, 0x20000
_HAS_OFFSET, _HAS_FIRST_FLAGS = 0x1, 0x4
_ROW_DURATION, _ROW_SIZE, _ROW_FLAGS, _ROW_SHIFT = 0x100, 0x200, 0x400, 0x800


class FragmentPlace(NamedTuple):
    """One entry of a ``sidx``.

    Attributes:
        begin: where the fragments start in the file.
        stop: where they end.
        seconds: when the first of their frames is shown, by the index.
    """

    begin: int
    stop: int
    seconds: float


def read_segment_index(content: bytes, box: Box, stop: int) -> list[FragmentPlace] | None:
    """Read a ``sidx``; None where it leads to further indexes.

    Args:
        content: bytes that hold the box.
        box: the box; its positions are those within ``content``.
        stop: where the box ends in the file: what it counts from.

    Raises:
        DecodingError: damaged.
    """
    reader = BoxReader(content, box)
    width = 8 if reader.read_integer(1) == 1 else 4
    reader.skip(3 + 4)
    ticks, time, begin = reader.read_integer(4), reader.read_integer(width), stop + reader.read_integer(width)
    reader.skip(2)
    rows = reader.read_table(reader.read_integer(2), 3)
    if ticks == 0:
        raise damaged_file_error("the box b'sidx' states no unit of time")
    places: list[FragmentPlace] = []
    for size, duration, _ in rows.tolist():
        if size >> 31:
            return None
        places.append(FragmentPlace(begin, begin + size, time / ticks))
        begin, time = begin + size, time + duration
    return places


def read_fragment(content: bytes, fragment: Box, begin: int, track: Track) -> MediaSamples | None:
    """Read the table of samples of a track in one fragment.

    Args:
        content: bytes that hold the box ``moof``.
        fragment: that box; its positions are those within ``content``.
        begin: where the box starts in the file.
        track: the track.

    Returns:
        The table, or None where it counts from what stands before it: that is for a demultiplexer.

    Raises:
        DecodingError: damaged.
    """
    tables: list[MediaSamples] = []
    for place, part in enumerate(
        box for box in read_boxes(content, fragment.start, fragment.stop) if box.kind == b"traf"
    ):
        boxes = find_boxes(content, part)
        if b"tfhd" not in boxes:
            raise damaged_file_error("a fragment of a track has no box b'tfhd'")
        reader = BoxReader(content, boxes[b"tfhd"])
        flags = reader.read_integer(4) & 0xFFFFFF
        if reader.read_integer(4) != track.number:
            continue
        base = reader.read_integer(8) if flags & _HAS_BASE else begin
        is_known = place == 0 or flags & (_HAS_BASE | _BASE_IS_FRAGMENT)
        is_one_format = not flags & _HAS_FORMAT or reader.read_integer(4) == 1
        if not is_known or not is_one_format or b"tfdt" not in boxes:
            return None
        duration, size, kind = track.defaults or (0, 0, 0)
        duration = reader.read_integer(4) if flags & _HAS_DURATION else duration
        size = reader.read_integer(4) if flags & _HAS_SIZE else size
        kind = reader.read_integer(4) if flags & _HAS_FLAGS else kind
        reader = BoxReader(content, boxes[b"tfdt"])
        version = reader.read_integer(1)
        reader.skip(3)
        time = reader.read_integer(8 if version == 1 else 4)
        tables.append(_read_runs(content, part, base, time, (duration, size, kind)))
    return join_tables(tables)


def join_tables(tables: list[MediaSamples]) -> MediaSamples:
    """Return one table of several, in order."""
    if not tables:
        nothing = np.empty(0, np.int64)
        return MediaSamples(nothing, nothing, nothing, nothing, np.empty(0, np.bool_))
    return MediaSamples(*(np.concatenate(columns) for columns in zip(*tables, strict=True)))


def _read_runs(content: bytes, part: Box, offset: int, time: int, defaults: tuple[int, int, int]) -> MediaSamples:
    """Read the runs of samples of one track in one fragment."""
    base, tables, total = offset, [], 0
    for box in read_boxes(content, part.start, part.stop):
        if box.kind != b"trun":
            continue
        reader = BoxReader(content, box)
        version = reader.read_integer(1)
        has, count = reader.read_integer(3), reader.read_integer(4)
        total += count
        if total > MOST_SAMPLES or max(offset, time) >= 1 << 62:
            raise damaged_file_error(f"a fragment of {total} frames at byte {offset}, time {time}")
        if has & _HAS_OFFSET:
            offset = base + int(reader.read_table(1, 1, ">i4")[0, 0])
        first = reader.read_integer(4) if has & _HAS_FIRST_FLAGS else None
        names = [flag for flag in (_ROW_DURATION, _ROW_SIZE, _ROW_FLAGS, _ROW_SHIFT) if has & flag]
        rows = dict(zip(names, reader.read_table(count, len(names)).T, strict=True))
        durations, sizes, kinds = (
            rows.get(flag, np.full(count, default, np.int64))
            for flag, default in zip((_ROW_DURATION, _ROW_SIZE, _ROW_FLAGS), defaults, strict=True)
        )
        shifts = rows.get(_ROW_SHIFT, np.zeros(count, np.int64))
        # negative ones, in files of either version
        shifts = shifts.astype(np.int32).astype(np.int64) if version in (0, 1) else shifts
        if first is not None and count:
            kinds = kinds.copy()
            kinds[0] = first
        times = time + _sum_before(durations)
        tables.append(
            MediaSamples(offset + _sum_before(sizes), sizes, times, times + shifts, kinds & DEPENDENT_FLAGS == 0)
        )
        offset, time = offset + int(sizes.sum()), time + int(durations.sum())
    return join_tables(tables)


def _sum_before(values: Integers) -> Integers:
    return np.cumsum(values) - values
