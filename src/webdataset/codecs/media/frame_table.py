"""Which frames a video has, when each is shown, and what must be decoded for some of them.

Theory. Decoding may begin at a key frame. Frames that come after a key frame in the file and are shown before it
(the leading frames of an open GOP) refer to frames before the key frame: for them, decoding begins at an earlier one.
So a frame shown at time t is decoded from the last key frame that is shown at t or before. Times are whole numbers.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from webdataset.codecs.media.mp4_boxes import Integers

Flags = npt.NDArray[np.bool_]
# seconds; times are quotients of whole numbers
SLACK_SECONDS = 1e-6


class NeedsWholeError(Exception):
    """A video of which a part is decoded only from all of its bytes."""


class Segment(NamedTuple):
    """Frames to decode one after another, from a key frame on.

    Attributes:
        start: number of the key frame, in the order of the file.
        stop: number after that of the last frame to decode.
        numbers: the frames that are wanted of them: numbers in the order in which frames are shown, rising.
    """

    start: int
    stop: int
    numbers: list[int]


class FrameTable:
    """The frames of a video.

    Args:
        times: int64[N], when each frame is shown, in the order of the file.
        is_key: bool[N], whether decoding may begin at it.
        is_shown: bool[N], whether an edit list shows it; None: all.
        first: the time that counts as 0 seconds.
        ticks: units of time in a second.

    Attributes:
        order: int64[M], the number in the file of each frame that is shown, in the order of showing.
        seconds: float64[M], when it is shown.
    """

    def __init__(self, times: Integers, is_key: Flags, is_shown: Flags | None, first: int, ticks: float) -> None:
        self.times = times
        shown = np.arange(len(times)) if is_shown is None else np.flatnonzero(is_shown)
        self.order = shown[np.argsort(times[shown], kind="stable")]
        self.seconds = (times[self.order] - first) / ticks
        self._keys = np.flatnonzero(is_key)
        self._key_times = times[self._keys]
        self._rises = bool((np.diff(self._key_times) > 0).all())

    def __len__(self) -> int:
        """Return how many frames are shown."""
        return len(self.order)

    def numbers_between(self, start_seconds: float, stop_seconds: float | None, stride: int = 1) -> list[int]:
        """Return the frames shown in a span of time: numbers in the order in which frames are shown.

        Args:
            start_seconds: the first frame shown at this time or later is the first.
            stop_seconds: frames shown at this time or later are left out; None means to the end.
            stride: every n-th frame of these.
        """
        low = int(np.searchsorted(self.seconds, start_seconds - SLACK_SECONDS, "left"))
        stop = np.inf if stop_seconds is None else stop_seconds - SLACK_SECONDS
        return list(range(low, int(np.searchsorted(self.seconds, stop, "left")), stride))

    def start_of(self, number: int) -> int:
        """Return the key frame from which a frame is decoded: a number in the order of the file.

        Args:
            number: of the frame, in the order of showing.
        """
        place = int(self.order[number])
        key = int(np.searchsorted(self._keys, place, "right"))
        # key frames that are shown in another order than they are stored in say little of what refers to what
        if not self._rises:
            return 0
        key = min(key, int(np.searchsorted(self._key_times, self.times[place], "right")))
        return int(self._keys[key - 1]) if key else 0

    def plan_segments(self, numbers: list[int]) -> list[Segment]:
        """Return what to decode for some frames, least first; what is between two segments need not be decoded.

        Args:
            numbers: in the order of showing, rising.
        """
        segments: list[Segment] = []
        for number in numbers:
            segment = Segment(self.start_of(number), int(self.order[number]) + 1, [number])
            while segments and segment.start < segments[-1].stop:
                last = segments.pop()
                start, stop = min(last.start, segment.start), max(last.stop, segment.stop)
                segment = Segment(start, stop, last.numbers + segment.numbers)
            segments.append(segment)
        return segments
