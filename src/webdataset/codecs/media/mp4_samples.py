"""Reads where the frames of an MP4 or MOV file lie, and when they are shown (ISO/IEC 14496-12, 8.3 to 8.8).

``read_track`` reads the box ``moov``: the first video track, and its table of samples (a sample is one encoded frame).
A fragmented file has the tables in its boxes ``moof``: ``read_fragment``. ``MediaSamples.check`` compares a table with
the file: every sample lies in it, and no two in the same place. Hostile tables are a ``DecodingError``. Valid files
that are not described here (several edits, several formats in one track, encrypted or compressed tables) are None: they
are for a demultiplexer that has the whole file.
"""

import math
from typing import NamedTuple

import numpy as np

from webdataset.codecs.media.frame_table import Flags
from webdataset.codecs.media.mp4_boxes import (
    Box,
    BoxReader,
    Integers,
    copy_box,
    damaged_file_error,
    find_box,
    find_boxes,
    read_boxes,
)

# nineteen hours at 60 frames a second; a table of so many takes 150 MB
MOST_SAMPLES = 1 << 22
# a rate of 1 in an edit list, and the largest time scale that ffmpeg knows
_NORMAL_RATE = 1 << 16
_MOST_TICKS = MOST_STEP = (1 << 31) - 1
# ffmpeg has rules of its own for frames that are shown later, or earlier, than this after they are decoded
MOST_SHIFT = 1 << 28
_END_OF_TIME = 1 << 62
# flags of a sample in a fragment that is no key frame: not one, or depending on others
DEPENDENT_FLAGS = 0x0101_0000
_CHUNK_OFFSETS = {b"stco": ">u4", b"co64": ">u8"}


class MediaSamples(NamedTuple):
    """The samples of a track, in the order of decoding.

    Attributes:
        offsets: int64[N], where each starts in the file, in bytes.
        sizes: int64[N], bytes of each.
        decode_times: int64[N], when each is decoded, in units of the track.
        times: int64[N], when each is shown.
        is_key: bool[N], whether decoding may begin at it.
    """

    offsets: Integers
    sizes: Integers
    decode_times: Integers
    times: Integers
    is_key: Flags

    def cut(self, start: int, stop: int) -> "MediaSamples":
        """Return some successive samples.

        Args:
            start: number of the first.
            stop: number after the last.
        """
        part = slice(start, stop)
        return MediaSamples(
            self.offsets[part], self.sizes[part], self.decode_times[part], self.times[part], self.is_key[part]
        )

    def check(self, size_bytes: int) -> None:
        """Compare a table with the file.

        Args:
            size_bytes: of the file.

        Raises:
            DecodingError: a sample lies outside of the file, or two in the same place.
        """
        if not len(self.offsets):
            return
        order = np.argsort(self.offsets, kind="stable")
        offsets, sizes = self.offsets[order], self.sizes[order]
        ends = offsets + sizes
        if offsets[0] < 0 or sizes.min() < 0 or int(ends.max()) > size_bytes or ends.min() < 0:
            raise damaged_file_error(f"a frame lies outside of the file of {size_bytes} bytes")
        if (offsets[1:] < ends[:-1]).any():
            raise damaged_file_error("two frames lie in the same place")


class Track(NamedTuple):
    """The first video track of a file.

    Attributes:
        number: of the track.
        ticks: units of time in a second.
        rotation_degrees: by how much the file says its frames are to be turned clockwise.
        edit: the times that are shown, from the first on and before the second; None: all.
        header: the boxes ``mvhd``, ``tkhd``, ``mdhd``, ``hdlr``; ``media``: those in ``minf`` but for the tables.
        description: the box ``stsd``: what the decoder needs.
        samples: the table of samples; empty where the file is fragmented.
        defaults: duration, size and flags of samples of fragments; None where the file is not fragmented.
    """

    number: int
    ticks: int
    rotation_degrees: int
    edit: tuple[int, int] | None
    header: dict[bytes, bytes]
    media: bytes
    description: bytes
    samples: MediaSamples
    defaults: tuple[int, int, int] | None


def read_track(content: bytes, movie: Box) -> Track | None:
    """Read the first video track of a file.

    Args:
        content: bytes that hold the box ``moov``.
        movie: that box.

    Returns:
        The track, or None where the file is one that only a demultiplexer with the whole file reads.

    Raises:
        DecodingError: damaged; or no video track.
    """
    top = find_boxes(content, movie)
    # compressed tables
    if b"cmov" in top:
        return None
    for track in read_boxes(content, movie.start, movie.stop):
        if track.kind != b"trak":
            continue
        media = find_box(content, track, b"mdia")
        handler = find_box(content, media, b"hdlr")
        if content[handler.start + 8 : handler.start + 12] == b"vide":
            return _read_video_track(content, top, track, media)
    raise damaged_file_error("it has no video track")


def _read_video_track(content: bytes, top: dict[bytes, Box], track: Box, media: Box) -> Track | None:
    inner, parts = find_boxes(content, track), find_boxes(content, media)
    for kind, found in ((b"tkhd", inner), (b"mdhd", parts), (b"minf", parts), (b"mvhd", top)):
        if kind not in found:
            raise damaged_file_error(f"the video track has no box {kind!r}")
    ticks, movie_ticks = (_read_ticks(content, box) for box in (parts[b"mdhd"], top[b"mvhd"]))
    tables = find_box(content, parts[b"minf"], b"stbl")
    description = find_box(content, tables, b"stsd")
    fragmented = b"mvex" in top
    known, edit = _read_edit(content, inner, ticks, movie_ticks)
    if edit is not None and fragmented:
        edit = edit[0], _END_OF_TIME
    if edit is not None and edit[0] == edit[1]:
        return None
    if not known or not 0 < ticks <= _MOST_TICKS or not _is_one_format(content, description):
        return None
    number, rotation = _read_track_header(content, inner[b"tkhd"])
    samples = _no_samples() if fragmented else _read_samples(content, tables)
    if samples is None:
        return None
    return Track(
        number,
        ticks,
        rotation,
        edit,
        {
            kind: copy_box(content, box)
            for kind, box in (
                (b"mvhd", top[b"mvhd"]),
                (b"tkhd", inner[b"tkhd"]),
                (b"mdhd", parts[b"mdhd"]),
                (b"hdlr", parts[b"hdlr"]),
            )
        },
        b"".join(
            copy_box(content, box)
            for box in read_boxes(content, parts[b"minf"].start, parts[b"minf"].stop)
            if box.kind != b"stbl"
        ),
        copy_box(content, description),
        samples,
        _read_defaults(content, top[b"mvex"], number) if fragmented else None,
    )


def _no_samples() -> MediaSamples:
    nothing = np.empty(0, np.int64)
    return MediaSamples(nothing, nothing, nothing, nothing, np.empty(0, np.bool_))


def _read_ticks(content: bytes, box: Box) -> int:
    """Return the units in a second of ``mvhd`` or ``mdhd``."""
    reader = BoxReader(content, box)
    version = reader.read_integer(1)
    reader.skip(3 + (16 if version == 1 else 8))
    return reader.read_integer(4)


def _read_track_header(content: bytes, box: Box) -> tuple[int, int]:
    """Return a track's number, and its rotation in degrees."""
    reader = BoxReader(content, box)
    version = reader.read_integer(1)
    reader.skip(3 + (16 if version == 1 else 8))
    number = reader.read_integer(4)
    reader.skip(4 + (8 if version == 1 else 4) + 16)
    row = reader.read_table(1, 2, ">i4")[0]
    return number, round(math.degrees(math.atan2(int(row[1]), int(row[0])))) % 360


def _is_one_format(content: bytes, description: Box) -> bool:
    """Tell whether a track has one format, which is not encrypted."""
    reader = BoxReader(content, description)
    reader.skip(4)
    count = reader.read_integer(4)
    reader.skip(4)
    return count == 1 and reader.read_integer(4).to_bytes(4, "big") != b"encv"


def _read_edit(
    content: bytes, track: dict[bytes, Box], ticks: int, movie_ticks: int
) -> tuple[bool, tuple[int, int] | None]:
    """Return whether the edit list is a plain one, and which times it shows; empty edits before only move them."""
    edits = find_boxes(content, track[b"edts"]).get(b"elst") if b"edts" in track else None
    if edits is None:
        return True, None
    reader = BoxReader(content, edits)
    version = reader.read_integer(1)
    reader.skip(3)
    count = reader.read_integer(4)
    if not count:
        return True, None
    if count > _NORMAL_RATE:
        raise damaged_file_error(f"an edit list of {count} entries")
    width = 8 if version == 1 else 4
    rows = []
    for _ in range(count):
        duration = reader.read_integer(width)
        start = int(reader.read_table(1, 1, f">i{width}")[0, 0])
        rows.append((duration, start, reader.read_integer(4)))
    shown = [row for row in rows if row[1] != -1]
    if len(shown) != 1 or shown[0] is not rows[-1] or movie_ticks == 0:
        return False, None
    duration, start, rate = shown[0]
    length = (2 * duration * ticks + movie_ticks) // (2 * movie_ticks)
    if rate != _NORMAL_RATE or start < 0 or start + length >= _END_OF_TIME:
        return False, None
    return True, (start, start + length)


def _read_samples(content: bytes, tables: Box) -> MediaSamples | None:
    """Read the tables of a track; None where some of its frames are empty, or it has very many."""
    boxes = find_boxes(content, tables)
    for kind in (b"stts", b"stsc"):
        if kind not in boxes:
            raise damaged_file_error(f"the video track has no box {kind!r}")
    count, sizes = _read_sizes(content, boxes)
    if sizes is None or (count and sizes.min() == 0):
        return None
    offsets = _read_offsets(content, boxes, sizes)
    deltas = _read_runs(content, boxes[b"stts"], ">u4", count)
    shifts = _read_runs(content, boxes[b"ctts"], ">i4", count) if b"ctts" in boxes else 0
    if offsets is None or (count and (deltas.max() > MOST_STEP or np.abs(shifts).max() >= MOST_SHIFT)):
        return None
    decode_times = np.concatenate([[0], np.cumsum(deltas[:-1])]).astype(np.int64) if count else deltas
    is_key = _read_keys(content, boxes[b"stss"], count) if b"stss" in boxes else np.ones(count, np.bool_)
    return MediaSamples(offsets, sizes, decode_times, decode_times + shifts, is_key) if is_key.any() else None


def _read_sizes(content: bytes, boxes: dict[bytes, Box]) -> tuple[int, Integers | None]:
    """Return how many samples there are, and their sizes; None: too many, or too small to be frames."""
    box = boxes.get(b"stsz") or boxes.get(b"stz2")
    if box is None:
        raise damaged_file_error("the video track has no box b'stsz'")
    reader = BoxReader(content, box)
    reader.skip(4)
    size, count = reader.read_integer(4), reader.read_integer(4)
    if count > MOST_SAMPLES:
        return count, None
    if box.kind == b"stsz":
        return count, np.full(count, size, np.int64) if size else reader.read_table(count, 1)[:, 0]
    width = size & 0xFF
    if width not in (4, 8, 16):
        raise damaged_file_error(f"sizes of {width} bits")
    # two sizes in a byte
    if width == 4:
        pairs = reader.read_table((count + 1) // 2, 1, ">u1")
        return count, np.concatenate([pairs >> 4, pairs & 15], axis=1).reshape(-1)[:count]
    return count, reader.read_table(count, 1, f">u{width // 8}")[:, 0]


def _read_runs(content: bytes, box: Box, kind: str, count: int) -> Integers:
    """Read pairs of a number of samples and the value that these have; return the value of each sample."""
    reader = BoxReader(content, box)
    reader.skip(4)
    pairs = reader.read_table(reader.read_integer(4), 2)
    values = pairs[:, 1] if kind == ">u4" else pairs[:, 1].astype(np.int32).astype(np.int64)
    # what is beyond the samples is not expanded
    ends = np.minimum(np.cumsum(pairs[:, 0]), count)
    if count and (not len(ends) or ends[-1] < count):
        raise damaged_file_error(f"the box {box.kind!r} describes fewer than {count} frames")
    return np.repeat(values, np.diff(ends, prepend=0))


def _read_keys(content: bytes, box: Box, count: int) -> Flags:
    reader = BoxReader(content, box)
    reader.skip(4)
    numbers = reader.read_table(reader.read_integer(4), 1)[:, 0] - 1
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= count):
        raise damaged_file_error(f"a key frame beyond the {count} frames that there are")
    is_key = np.zeros(count, np.bool_)
    is_key[numbers] = True
    return is_key


def _read_offsets(content: bytes, boxes: dict[bytes, Box], sizes: Integers) -> Integers | None:
    """Return where each sample lies: chunks of samples that stand one after another; None: of several formats."""
    box = boxes.get(b"stco") or boxes.get(b"co64")
    if box is None:
        raise damaged_file_error("the video track has no box b'stco'")
    reader, count = BoxReader(content, box), len(sizes)
    reader.skip(4)
    chunks = reader.read_table(reader.read_integer(4), 1, _CHUNK_OFFSETS[box.kind])[:, 0]
    reader = BoxReader(content, boxes[b"stsc"])
    reader.skip(4)
    runs = reader.read_table(reader.read_integer(4), 3)
    if not count:
        return chunks[:0]
    borders = np.append(runs[:, 0] - 1, len(chunks))
    if not len(runs) or borders[0] != 0 or (np.diff(borders) < 0).any() or (np.diff(borders[:-1]) == 0).any():
        raise damaged_file_error("the chunks of the video track are not in order")
    if (runs[:, 2] != 1).any():
        return None
    ends = np.minimum(np.cumsum(np.repeat(runs[:, 1], np.diff(borders))), count)
    if not len(ends) or ends[-1] < count:
        raise damaged_file_error(f"the chunks of the video track hold fewer than {count} frames")
    lengths = np.diff(ends, prepend=0)
    before = np.cumsum(sizes) - sizes
    # chunks after the last frame are empty: what they would start with is looked up nowhere
    starts = before[np.minimum(ends - lengths, count - 1)]
    offsets: Integers = np.repeat(chunks - starts, lengths) + before
    return offsets


def _read_defaults(content: bytes, extension: Box, number: int) -> tuple[int, int, int]:
    """Return what the samples of fragments are like where these do not say it: duration, size, flags."""
    for box in read_boxes(content, extension.start, extension.stop):
        if box.kind == b"trex":
            reader = BoxReader(content, box)
            reader.skip(4)
            if reader.read_integer(4) == number:
                reader.skip(4)
                return reader.read_integer(4), reader.read_integer(4), reader.read_integer(4)
    return 0, 0, 0
