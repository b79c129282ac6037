"""Decodes videos: as a whole, or on demand frame by frame and clip by clip.

Frames are uint8[H, W, 3]. A :class:`Video` keeps the encoded bytes and decodes only what is requested, beginning at
the key frame before it. Times are in seconds from the video's first frame. Rotation marks are not applied.
"""

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from webdataset.codecs.images.decode import check_size
from webdataset.codecs.media.audio_codec import decode_track
from webdataset.codecs.media.container import check_decoded_size, open_container
from webdataset.codecs.media.frame_seek import FrameScan, LostFrameError, decode_numbers, scan_frames
from webdataset.codecs.media.frame_table import SLACK_SECONDS
from webdataset.core.errors import DecodingError, UsageError

if TYPE_CHECKING:
    from av import VideoFrame, VideoStream
    from av.container import InputContainer
    from av.video.reformatter import VideoReformatter

Frame = npt.NDArray[np.uint8]
FrameSize = int | tuple[int, int] | None
# of all frames; to find the frames and to seek takes time, too
_WORTH_SEEKING = 0.8
# bytes set aside for a video that says how many frames it has
_AT_ONCE = 256 << 20


class Clip(NamedTuple):
    """Successive frames of a video.

    Attributes:
        frames: uint8[T, H, W, 3].
        seconds: float64[T], when each is shown.
    """

    frames: Frame
    seconds: npt.NDArray[np.float64]


class _VideoFacts(NamedTuple):
    """What a video file says of itself."""

    fps: float
    width: int
    height: int
    frame_count: int | None
    length: float
    rate: int | None


class Video:
    """One video field, decoded when asked."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._facts: _VideoFacts | None = None
        self._scan: tuple[FrameScan | None] | None = None

    def _read_facts(self) -> _VideoFacts:
        if self._facts is None:
            with open_container(self.data, "decoding video") as container:
                stream = find_video_stream(container)
                if stream.duration is None or stream.time_base is None:
                    length = (container.duration or 0) / 1e6
                else:
                    length = float(stream.duration * stream.time_base)
                self._facts = _VideoFacts(
                    float(stream.average_rate or 0),
                    stream.width,
                    stream.height,
                    stream.frames or None,
                    length,
                    container.streams.audio[0].rate if container.streams.audio else None,
                )
        return self._facts

    @property
    def fps(self) -> float:
        """Frames a second, on average."""
        return self._read_facts().fps

    @property
    def height(self) -> int:
        """Height in pixels."""
        return self._read_facts().height

    @property
    def width(self) -> int:
        """Width in pixels."""
        return self._read_facts().width

    @property
    def frame_count(self) -> int | None:
        """How many frames the file says it has, or None where it does not say."""
        return self._read_facts().frame_count

    @property
    def duration_seconds(self) -> float:
        """Length in seconds as the file states it; 0 where it does not."""
        return self._read_facts().length

    @property
    def sound_rate(self) -> int | None:
        """Rate of the first audio track in Hz, or None where there is none."""
        return self._read_facts().rate

    def __iter__(self) -> Iterator[Frame]:
        """Yield all frames, uint8[H, W, 3]."""
        return (frame for _, frame in self.frames())

    def frames(
        self, start_seconds: float = 0.0, stop_seconds: float | None = None, *, stride: int = 1, size: FrameSize = None
    ) -> Iterator[tuple[float, Frame]]:
        """Yield frames with the times at which they are shown.

        Args:
            start_seconds: the first frame shown at this time or later is the first.
            stop_seconds: frames shown at this time or later are not yielded; None means to the end.
            stride: every n-th frame of these.
            size: of the frames, (height, width) or the length of the shorter side; None leaves it.

        Yields:
            Pairs of seconds and uint8[H, W, 3].

        Raises:
            DecodingError: the file has no video track.
            FieldTooLarge: frames of more pixels than the limit.
            MissingExtra: PyAV is not installed.
        """
        if stride < 1:
            raise UsageError(f"stride={stride} is no number of frames")
        convert = FrameConverter().convert
        for number, (seconds, frame) in enumerate(self._pictures(start_seconds, stop_seconds)):
            if number % stride == 0:
                yield seconds, convert(frame, size)

    def frame_at(self, seconds: float) -> Frame:
        """Return the first frame shown at a time or later, uint8[H, W, 3].

        Raises:
            UsageError: the video is over by then.
        """
        for _, frame in self.frames(seconds):
            return frame
        raise UsageError(f"the video has no frame at {seconds} seconds or later")

    def clip(
        self, start_seconds: float = 0.0, stop_seconds: float | None = None, *, stride: int = 1, size: FrameSize = None
    ) -> Clip:
        """Return the frames that :meth:`frames` yields, in one array.

        Raises:
            FieldTooLarge: more than ``WDS_MAX_MEDIA_BYTES``.
            UsageError: there are no frames in this time.
        """
        return make_clip(list(check_frame_sizes(self.frames(start_seconds, stop_seconds, stride=stride, size=size))))

    def clips(
        self, frames: int, *, stride: int = 1, step: int | None = None, size: FrameSize = None, partial: bool = False
    ) -> Iterator[Clip]:
        """Yield clips of equal length, from the beginning to the end.

        Args:
            frames: frames in a clip.
            stride: every n-th frame of the video is in the clip.
            step: frames of the video from the start of one clip to that of the next; default: no overlap, no gap.
            size: of the frames, (height, width) or the length of the shorter side; None leaves it.
            partial: yield clips that the end cuts short, too.

        Yields:
            Clips uint8[frames, H, W, 3].

        Raises:
            UsageError: a length, stride or step below 1.
        """
        step = frames * stride if step is None else step
        if min(frames, stride, step) < 1:
            raise UsageError(f"clips of {frames} frames, stride {stride}, step {step}: all must be at least 1")
        growing: dict[int, list[tuple[float, Frame]]] = {}
        convert = FrameConverter().convert
        for number, seconds, frame in self._numbered_frames(self._plan_clips(frames, stride, step, partial=partial)):
            if number % step == 0:
                growing[number] = []
            wanted = [start for start in growing if (number - start) % stride == 0]
            if not wanted:
                continue
            entry = seconds, convert(frame, size)
            for start in wanted:
                growing[start].append(entry)
                if len(growing[start]) == frames:
                    yield make_clip(growing.pop(start))
        if partial:
            yield from map(make_clip, growing.values())

    def clips_at(self, starts: Sequence[int], frames: int, *, stride: int = 1, size: FrameSize = None) -> list[Clip]:
        """Return clips that begin at some frames; only what they need is decoded.

        Args:
            starts: numbers of the frames that clips begin with, from 0 on, in the order of showing.
            frames: frames in a clip; the last clips have fewer where the video ends before.
            stride: every n-th frame of the video is in the clip.
            size: of the frames, (height, width) or the length of the shorter side; None leaves it.

        Returns:
            A clip for each start, in the same order.

        Raises:
            UsageError: a length or stride below 1, or a start where the video has no frame.
            FieldTooLarge: more than ``WDS_MAX_MEDIA_BYTES``.
        """
        if min(frames, stride) < 1 or min(starts, default=0) < 0:
            raise UsageError(f"clips of {frames} frames, stride {stride}, at {starts}: frames are counted from 0")
        spans = [range(start, start + frames * stride, stride) for start in starts]
        uses = Counter(itertools.chain.from_iterable(spans))
        found: dict[int, tuple[float, Frame]] = {}
        convert, size_bytes = FrameConverter().convert, 0
        for number, seconds, frame in self._numbered_frames(sorted(uses)):
            if number in uses:
                found[number] = seconds, convert(frame, size)
                # it is copied into each clip
                size_bytes += found[number][1].nbytes * (1 + uses[number])
                check_decoded_size(size_bytes)
            if len(found) == len(uses):
                break
        return [make_clip([found[number] for number in span if number in found]) for span in spans]

    def count_frames(self) -> int:
        """Return how many frames decoding gives: from the tables of the file, or else by decoding it."""
        scan = self._scan_frames()
        return sum(1 for _ in self._pictures(0.0, None)) if scan is None else len(scan.table)

    def _scan_frames(self) -> FrameScan | None:
        """Return where the frames are, or None where that is known only after decoding."""
        if self._scan is None:
            with open_container(self.data, "decoding video") as container:
                self._scan = (scan_frames(container, find_video_stream(container)),)
        return self._scan[0]

    def _plan_clips(self, frames: int, stride: int, step: int, *, partial: bool) -> list[int] | None:
        """Return the frames of clips that leave gaps; None: all frames are decoded anyway."""
        span = (frames - 1) * stride + 1
        scan = self._scan_frames() if step > span else None
        if scan is None:
            return None
        count = len(scan.table)
        starts = range(0, count if partial else max(0, count - span + 1), step)
        numbers = [number for start in starts for number in range(start, min(start + span, count), stride)]
        needed = sum(segment.stop - segment.start for segment in scan.table.plan_segments(numbers))
        return numbers if needed < _WORTH_SEEKING * count else None

    def _numbered_frames(self, numbers: list[int] | None) -> Iterator[tuple[int, float, "VideoFrame"]]:
        """Yield frames with their numbers and times: some, where it is known where these are, or all."""
        scan = None if numbers is None else self._scan_frames()
        given = -1
        if scan is not None and numbers is not None:
            numbers = numbers[: bisect.bisect_left(numbers, len(scan.table))]
            # where the tables promise more than the decoder gives, what it gives is counted
            with suppress(LostFrameError), open_container(self.data, "decoding video") as container:
                stream = find_video_stream(container)
                for number, seconds, frame in decode_numbers(container, stream, scan, numbers):
                    given = number
                    check_size(frame.width, frame.height)
                    yield number, seconds, frame
                return
        for number, (seconds, frame) in enumerate(self._pictures(0.0, None)):
            if number > given:
                yield number, seconds, frame

    def sound(
        self, start_seconds: float = 0.0, stop_seconds: float | None = None
    ) -> tuple[npt.NDArray[np.float32], int]:
        """Return the sound, float32[channels, samples] ([1, 0] where there is none), and its rate in Hz.

        Args:
            start_seconds: where it begins.
            stop_seconds: where it ends; None means the end.
        """
        with open_container(self.data, "decoding video") as container:
            if not container.streams.audio:
                return np.empty((1, 0), np.float32), 0
            return decode_track(container, start_seconds, stop_seconds)

    def _pictures(self, start: float, stop: float | None) -> Iterator[tuple[float, "VideoFrame"]]:
        """Yield PyAV's frames of a part, from the key frame before it, or from the beginning where that is needed."""
        if start > 0:
            with open_container(self.data, "decoding video") as container:
                shown = _seek_frames(container, find_video_stream(container), start)
                if shown is not None:
                    yield from _take_between(shown, start, stop)
                    return
        with open_container(self.data, "decoding video") as container:
            yield from _take_between(_decode_frames(container, find_video_stream(container)), start, stop)

    def __getstate__(self) -> bytes:
        return self.data

    def __setstate__(self, data: bytes) -> None:
        self.data, self._facts, self._scan = data, None, None

    def __repr__(self) -> str:
        return f"Video({len(self.data)} bytes)"


def find_video_stream(container: "InputContainer") -> "VideoStream":
    """Return the first video track of a file.

    Raises:
        DecodingError: there is none, or none that ffmpeg knows.
        FieldTooLarge: frames of more pixels than the limit.
    """
    if not container.streams.video:
        raise DecodingError("the file has no video track")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        raise DecodingError("the video track is damaged, or of a kind that ffmpeg does not know")
    check_size(stream.width or 0, stream.height or 0)
    return stream


def _decode_frames(container: "InputContainer", stream: "VideoStream") -> Iterator[tuple[float, "VideoFrame"]]:
    """Yield decoded frames with their times; streams without times are taken to be regular."""
    first = stream.start_time or 0
    rate = float(stream.average_rate or 25)
    for number, frame in enumerate(container.decode(stream)):
        check_size(frame.width, frame.height)
        if frame.pts is None or frame.time_base is None:
            yield number / rate, frame
        else:
            yield float((frame.pts - first) * frame.time_base), frame


def _seek_frames(
    container: "InputContainer", stream: "VideoStream", start: float
) -> Iterator[tuple[float, "VideoFrame"]] | None:
    """Go to the key frame before a time and return the frames from there, or None where the format cannot."""
    if stream.time_base is None:
        return None
    try:
        container.seek(int(start / stream.time_base) + (stream.start_time or 0), stream=stream)
        shown = _decode_frames(container, stream)
        first = next(shown, None)
    except (OSError, ValueError):
        return None
    if first is None or first[0] > start + SLACK_SECONDS or first[1].pts is None:
        return None
    # formats without an index lead to any frame, and what refers to frames before it is decoded to something else
    if not first[1].key_frame:
        return None
    return itertools.chain([first], shown)


def _take_between(
    shown: Iterable[tuple[float, "VideoFrame"]], start: float, stop: float | None
) -> Iterator[tuple[float, "VideoFrame"]]:
    for seconds, frame in shown:
        if stop is not None and seconds >= stop - SLACK_SECONDS:
            return
        if seconds >= start - SLACK_SECONDS:
            yield seconds, frame


class FrameConverter:
    """Makes arrays of successive frames; keeps what it set up for their size."""

    def __init__(self) -> None:
        self._reformatter: VideoReformatter | None = None

    def convert(self, frame: "VideoFrame", size: FrameSize) -> Frame:
        """Return a frame as uint8[H, W, 3].

        Args:
            frame: of PyAV.
            size: (height, width) or the length of the shorter side; None leaves it.
        """
        if self._reformatter is None:
            from av.video.reformatter import VideoReformatter  # noqa: PLC0415  the frame is PyAV's: it is loaded

            self._reformatter = VideoReformatter()
        if size is None:
            height, width = frame.height, frame.width
        elif isinstance(size, int):
            scale = size / min(frame.height, frame.width)
            height, width = (max(1, math.floor(side * scale + 0.5)) for side in (frame.height, frame.width))
        else:
            height, width = size
        picture = self._reformatter.reformat(frame, width=width, height=height, format="rgb24")
        return picture.to_ndarray()  # type: ignore[return-value]  # 8 bits


def check_frame_sizes(entries: Iterator[tuple[float, Frame]]) -> Iterator[tuple[float, Frame]]:
    """Yield frames with their times, until they take more memory than the limit.

    Raises:
        FieldTooLarge: more than ``WDS_MAX_MEDIA_BYTES``.
    """
    size = 0
    for entry in entries:
        size += entry[1].nbytes
        # they are put into one array
        check_decoded_size(2 * size)
        yield entry


def make_clip(entries: list[tuple[float, Frame]]) -> Clip:
    """Return frames with their times as a clip.

    Raises:
        UsageError: there are none.
    """
    if not entries:
        raise UsageError("the video has no frames in this time")
    return Clip(np.stack([frame for _, frame in entries]), np.array([seconds for seconds, _ in entries]))


def video_loads(data: bytes) -> tuple[Frame, npt.NDArray[np.float32], dict[str, float]]:
    """Decode a whole video file.

    Returns:
        Frames uint8[T, H, W, 3], sound float32[channels, samples] ([1, 0] where there is none) and a dict with
        ``video_fps`` and, where there is sound, ``audio_fps``.

    Raises:
        MissingExtra: PyAV is not installed.
        FieldTooLarge: frames or sound beyond the limits.
        OSError: not a video; ``ValueError`` for some.
    """
    rates: dict[str, float] = {}
    frames, sound = np.empty((0, 1, 1, 3), np.uint8), np.empty((1, 0), np.float32)
    with open_container(data, "decoding video") as container:
        if container.streams.video:
            stream = find_video_stream(container)
            stream.thread_type = "AUTO"
            rates["video_fps"] = float(stream.average_rate or 0)
            frames = _decode_all(container, stream)
    with open_container(data, "decoding video") as container:
        if container.streams.audio:
            sound, rate = decode_track(container)
            rates["audio_fps"] = rate
    return frames, sound, rates


def _decode_all(container: "InputContainer", stream: "VideoStream") -> Frame:
    """Decode all frames into one array that grows where the file does not say how many there are."""
    frames = np.empty((0, 1, 1, 3), np.uint8)
    count, convert = 0, FrameConverter().convert
    for _, frame in _decode_frames(container, stream):
        if count == 0:
            shape = frame.height, frame.width, 3
            known = min(stream.frames, _AT_ONCE // max(1, math.prod(shape)))
            frames = np.empty((max(known, 1), *shape), np.uint8)
        elif count == len(frames):
            check_decoded_size((count + 1) * math.prod(shape))
            frames = np.concatenate([frames, np.empty((max(4, count // 2), *shape), np.uint8)])
        frames[count] = convert(frame, shape[:2])
        count += 1
    return frames if count == len(frames) else frames[:count].copy()
