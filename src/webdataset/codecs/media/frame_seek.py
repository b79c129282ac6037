"""Finds the frames of an open video without decoding them, and decodes some of them from the key frames before.

Frames are told apart by their times, so a video whose frames have none, or not each its own, has no table here.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from webdataset.codecs.media.frame_table import FrameTable, Segment
from webdataset.codecs.media.mp4_boxes import Integers

if TYPE_CHECKING:
    from av import VideoFrame, VideoStream
    from av.container import InputContainer

# in the others a packet may hold no frame, or two, or a part of one
_FORMATS = frozenset(["mov", "mp4", "matroska", "webm"])


class LostFrameError(Exception):
    """A frame that the table has did not come out of the decoder."""


class FrameScan(NamedTuple):
    """What was found in a container.

    Attributes:
        table: of the frames.
        seek_times: int64[N], where to seek for each frame that is a key frame, in the order of the file.
    """

    table: FrameTable
    seek_times: Integers


def scan_frames(container: "InputContainer", stream: "VideoStream") -> FrameScan | None:
    """Return the frames of a stream, or None where it cannot be told what decoding will give.

    Args:
        container: at its beginning; left at its end.
        stream: of the container.
    """
    base = stream.time_base
    if not _FORMATS.intersection(container.format.name.split(",")) or base is None or base.numerator != 1:
        return None
    rows = [
        (packet.pts, packet.dts, packet.is_keyframe, packet.is_discard)
        for packet in container.demux(stream)
        if packet.size
    ]
    if not rows or any(pts is None for pts, _, _, _ in rows):
        return None
    times = np.array([pts for pts, _, _, _ in rows], np.int64)
    is_key = np.array([key for _, _, key, _ in rows])
    # a decoder may leave out frames that refer to what stands before the first of the file
    if not is_key[0] or times.min() < times[0] or len(np.unique(times)) < len(times):
        return None
    is_shown = ~np.array([discard for _, _, _, discard in rows])
    # Matroska is indexed by when frames are shown, MP4 by when they are decoded
    by_show = "matroska" in container.format.name
    seek_times = np.array([pts if by_show or dts is None else dts for pts, dts, _, _ in rows], np.int64)
    return FrameScan(
        FrameTable(times, is_key, is_shown, stream.start_time or 0, base.denominator),
        seek_times,
    )


def decode_numbers(
    container: "InputContainer", stream: "VideoStream", scan: FrameScan, numbers: list[int]
) -> Iterator[tuple[int, float, "VideoFrame"]]:
    """Yield some frames with their numbers and times; what they do not need is passed over.

    Args:
        container: the container, at its beginning.
        stream: of the container.
        scan: what was found in it.
        numbers: of the frames, in the order of showing, rising.

    Raises:
        LostFrameError: a frame did not come.
    """
    table = scan.table
    for segment in table.plan_segments(numbers):
        wanted = {int(table.times[table.order[number]]): number for number in segment.numbers}
        for frame in _decode_from(container, stream, scan, segment):
            number = None if frame.pts is None else wanted.pop(frame.pts, None)
            if number is not None:
                yield number, float(table.seconds[number]), frame
            if not wanted:
                break
        if wanted:
            raise LostFrameError


def _decode_from(
    container: "InputContainer", stream: "VideoStream", scan: FrameScan, segment: Segment
) -> Iterator["VideoFrame"]:
    container.seek(int(scan.seek_times[segment.start]), stream=stream)
    times, before = scan.table.times, int(scan.table.times[segment.start])
    is_first = True
    for packet in container.demux(stream):
        # it went to a later place than it was to
        if is_first and (packet.pts is None or packet.pts > before):
            raise LostFrameError
        is_first = False
        yield from packet.decode()
        if packet.pts is not None and packet.pts == times[segment.stop - 1]:
            yield from stream.codec_context.decode(None)
            return
