"""Writes an MP4 file that holds some successive frames of another, as they are encoded.

The headers that the decoder needs are copied; the tables are written anew. Frames keep their distances in time and are
shown as they are: there is no edit list, and no sound.
"""

from typing import NamedTuple

import numpy as np

from webdataset.codecs.media.mp4_boxes import LONG_HEADER_BYTES, Integers, make_box
from webdataset.codecs.media.mp4_samples import MediaSamples, Track

_VERSION_0 = bytes(4)


class ClipFile(NamedTuple):
    """A file of some frames.

    Attributes:
        content: its bytes.
        start_time: what is added to a time in it for the time in the whole file, in units of the track.
    """

    content: bytes
    start_time: int


def make_clip_file(file_type: bytes, track: Track, samples: MediaSamples, payload: bytes) -> ClipFile:
    """Return a file of some frames.

    Args:
        file_type: the box ``ftyp`` of the whole file; empty where it has none.
        track: the track.
        samples: the frames, in the order of decoding; the first is a key frame. Offsets are not used.
        payload: the bytes of the frames, one after another.
    """
    shifts = samples.times - samples.decode_times
    # none is shown before it is decoded: readers differ about negative shifts
    behind = int(shifts.min())
    tables = [
        track.description,
        _make_runs(b"stts", np.diff(samples.decode_times, append=samples.decode_times[-1])),
        _make_runs(b"ctts", shifts - behind),
        make_box(b"stss", _make_table(np.flatnonzero(samples.is_key) + 1)),
        make_box(b"stsc", _make_table(np.array([[1, len(shifts), 1]]))),
        make_box(b"stsz", bytes(4), _make_table(samples.sizes)),
    ]
    # the payload starts where the header ends, whose length does not depend on the number that says so
    header = _make_header(file_type, track, tables, 0)
    payload_size = LONG_HEADER_BYTES + len(payload)
    return ClipFile(
        b"".join(
            [
                _make_header(file_type, track, tables, len(header) + LONG_HEADER_BYTES),
                b"\0\0\0\1mdat",
                payload_size.to_bytes(8, "big"),
                payload,
            ]
        ),
        int(samples.decode_times[0]) + behind,
    )


def _make_header(file_type: bytes, track: Track, tables: list[bytes], offset: int) -> bytes:
    places = make_box(b"co64", _VERSION_0, (1).to_bytes(4, "big"), offset.to_bytes(8, "big"))
    media = make_box(b"minf", track.media, make_box(b"stbl", *tables, places))
    header = track.header
    movie = make_box(
        b"moov",
        header[b"mvhd"],
        make_box(b"trak", header[b"tkhd"], make_box(b"mdia", header[b"mdhd"], header[b"hdlr"], media)),
    )
    return file_type + movie


def _make_runs(kind: bytes, values: Integers) -> bytes:
    """Return a box of pairs: how many samples, and the value that these have."""
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    pairs = np.stack([np.diff(starts, append=len(values)), values[starts]], axis=1)
    return make_box(kind, _make_table(pairs))


def _make_table(rows: Integers) -> bytes:
    """Return version, flags, the number of rows, and the rows."""
    return b"".join([_VERSION_0, len(rows).to_bytes(4, "big"), rows.astype(">u4").tobytes()])
