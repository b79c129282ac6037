"""Tables of MP4 files in each of the forms that the standard has: all say the same."""

import io
import struct

import numpy as np
import pytest

from support.video_files import box, find_box, make_file, replace_box
from webdataset.core.errors import DecodingError

av = pytest.importorskip("av")

from webdataset.codecs.media.mp4_boxes import Box, BoxReader, make_box, read_box_header, read_boxes  # noqa: E402
from webdataset.codecs.media.mp4_samples import _read_sizes, read_track  # noqa: E402


def track_of(content):
    """Read the track of a file."""
    start, stop = find_box(content, b"moov")
    return read_track(content, Box(b"moov", start, start + 8, stop))


def widen(content, kind):
    """Return a file with a header box in version 1, whose times have 64 bits."""
    start, stop = find_box(content, kind)
    body = content[start + 8 : stop]
    made, changed = struct.unpack(">II", body[4:12])
    wide = {b"tkhd": 20, b"mdhd": 16, b"mvhd": 16}[kind]
    times = struct.pack(">QQ", made, changed) + body[12:wide]
    return replace_box(content, kind, box(kind, b"\1" + body[1:4], times + bytes(4) + body[wide:]))


def sizes_of(content):
    """Return the sizes of the frames."""
    start, stop = find_box(content, b"stsz")
    return np.frombuffer(content[start + 20 : stop], ">u4")


def narrow_sizes(content):
    """Return a file with ``stz2`` in place of ``stsz``: sizes of 16 bits."""
    sizes = sizes_of(content)
    rows = sizes.astype(">u2").tobytes()
    return replace_box(content, b"stsz", box(b"stz2", bytes(4), struct.pack(">II", 16, len(sizes)), rows))


def wide_edit(content):
    """Return a file whose edit list has 64-bit numbers, after an empty edit."""
    start, stop = find_box(content, b"elst")
    duration, begin = struct.unpack(">Ii", content[stop - 12 : stop - 4])
    rows = struct.pack(">QqI", 400, -1, 1 << 16) + struct.pack(">QqI", duration, begin, 1 << 16)
    return replace_box(content, b"elst", box(b"elst", b"\1\0\0\0", struct.pack(">I", 2), rows))


@pytest.mark.parametrize("name", ["b_frames", "open_gop", "sound", "vfr"])
@pytest.mark.parametrize(
    "change",
    [
        lambda content: widen(content, b"tkhd"),
        lambda content: widen(content, b"mdhd"),
        lambda content: widen(content, b"mvhd"),
        narrow_sizes,
        wide_edit,
    ],
    ids=["tkhd", "mdhd", "mvhd", "stz2", "elst"],
)
def test_every_form_says_the_same(name, change):
    """Versions 1 of headers, small sizes and empty edits before the real one change nothing."""
    content = make_file(name)
    one, other = track_of(content), track_of(change(content))
    assert (one.number, one.ticks, one.edit) == (other.number, other.ticks, other.edit)
    for mine, theirs in zip(one.samples, other.samples, strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("name", ["b_frames", "open_gop", "sound", "vfr", "mov", "co64", "negative_ctts", "all_keys"])
def test_samples_are_the_packets_of_a_demultiplexer(name):
    """Sizes, places, distances in time and key frames are those that ffmpeg finds."""
    content = make_file(name)
    samples = track_of(content).samples
    with av.open(io.BytesIO(content)) as file:
        packets = [packet for packet in file.demux(video=0) if packet.size]
        assert samples.sizes.tolist() == [packet.size for packet in packets]
        assert samples.is_key.tolist() == [packet.is_keyframe for packet in packets]
        assert np.ptp(samples.times - np.array([packet.pts for packet in packets])) == 0
        for offset, size, packet in zip(samples.offsets, samples.sizes, packets, strict=True):
            assert content[offset : offset + size] == bytes(packet)


def test_small_sizes_of_all_widths():
    """Sizes of 4 bits, two in a byte, of 8 bits, and widths that there are not."""

    def read(width, count, rows):
        content = box(b"stz2", bytes(4), struct.pack(">II", width, count), rows)
        count, sizes = _read_sizes(content, {b"stz2": Box(b"stz2", 0, 8, len(content))})
        return sizes.tolist()

    assert read(4, 3, b"\x12\x30") == [1, 2, 3]
    assert read(8, 3, b"\x12\x30\xff") == [0x12, 0x30, 0xFF]
    for width, rows in ((5, b"\0\0"), (16, b"\0\0\0")):
        with pytest.raises(DecodingError):
            read(width, 2, rows)


def test_boxes_of_all_sizes():
    """Long sizes, a size that is left open, and sizes that cannot be."""
    long = b"\0\0\0\1wide" + (20).to_bytes(8, "big") + b"abcd"
    boxes = list(read_boxes(long + box(b"free", b"xy") + b"\0\0\0\0last123", 0, 41))
    assert [(each.kind, each.start, each.stop) for each in boxes] == [
        (b"wide", 16, 20),
        (b"free", 28, 30),
        (b"last", 38, 41),
    ]
    for head in (b"\0\0\0\7free", b"\0\0\0\1free" + bytes(8), b"\0\0\0\x09free", b"\0\0"):
        with pytest.raises(DecodingError):
            read_box_header(head, 0, 8)
    assert make_box(b"free", b"ab", b"c") == b"\0\0\0\x0bfreeabc"
    reader = BoxReader(b"\0\0\0\5", Box(b"abcd", 0, 0, 4))
    assert reader.read_integer(4) == 5
    with pytest.raises(DecodingError, match="too short"):
        reader.skip(1)
