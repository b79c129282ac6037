"""Decodes parts of a video of which only the needed ranges are read: of a member of a remote shard, or of any file.

Theory. The tables of an MP4 or MOV file say where each frame lies and when it is shown. They stand at the beginning or
at the end of the file: one or two reads. For a part, the frames from the key frame before it are read and put into a
small file, which PyAV decodes. Its frames are those that decoding the whole file would give, with the same times.

Fragmented files have a table for each fragment. Where an index (``sidx``) says when the fragments begin, only the
tables of those near the part are read; else all of them, at the first part.

In Matroska and WebM files the index says in which cluster each key frame is; clusters are copied as they are.

A video of any other kind, and one whose tables leave a question open, is read and decoded whole.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from webdataset.codecs.images.decode import check_size
from webdataset.codecs.media.container import EBML_HEADER, open_container
from webdataset.codecs.media.frame_table import FrameTable, NeedsWholeError, Segment
from webdataset.codecs.media.matroska_clusters import MatroskaTables
from webdataset.codecs.media.mp4_boxes import (
    HEADER_BYTES,
    LONG_HEADER_BYTES,
    Box,
    damaged_file_error,
    read_box_header,
)
from webdataset.codecs.media.mp4_clip_file import ClipFile, make_clip_file
from webdataset.codecs.media.mp4_fragments import FragmentPlace, join_tables, read_fragment, read_segment_index
from webdataset.codecs.media.mp4_samples import MOST_SAMPLES, MOST_SHIFT, MOST_STEP, MediaSamples, Track, read_track
from webdataset.codecs.media.video_decode import (
    Clip,
    Frame,
    FrameConverter,
    FrameSize,
    Video,
    check_frame_sizes,
    find_video_stream,
    make_clip,
)
from webdataset.core.errors import DecodingError, UsageError, WebDatasetError, describe_error

ReadRange = Callable[[int, int], bytes]
_FIRST_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
# tables of the most samples take less
_MOST_TABLE_BYTES = 128 << 20
# a request for each; with more, a file is rather read whole
_MOST_OUTER_BOXES = 1 << 13
# the table of a usual fragment
_MORE_BYTES = 4 << 10
# read for needed bytes, gaps between frames included
_MOST_WASTE = 1.3


class RangedVideo:
    """One video, of which ranges can be read. May be used by several threads.

    Args:
        read_at: returns so many bytes from a position on; fewer only at the end.
        size_bytes: of the video.
        probe_bytes: how many bytes to read where only a few are sure to be needed.
        head: the first bytes, where they were read before.
    """

    def __init__(self, read_at: ReadRange, size_bytes: int, *, probe_bytes: int = 64 << 10, head: bytes = b"") -> None:
        self._read_at, self._size, self._probe = read_at, size_bytes, probe_bytes
        self._head, self._window = head, (0, b"")
        self._tables: _Tables | MatroskaTables | None = None
        self._is_whole = False

    def clip(
        self, start_seconds: float = 0.0, stop_seconds: float | None = None, *, stride: int = 1, size: FrameSize = None
    ) -> Clip:
        """Return the frames of a span of time; they are those of :meth:`Video.clip` of the whole video.

        Args:
            start_seconds: the first frame shown at this time or later is the first.
            stop_seconds: frames shown at this time or later are not in it; None means to the end.
            stride: every n-th frame of these.
            size: of the frames, (height, width) or the length of the shorter side; None leaves it.

        Raises:
            DecodingError: the video is damaged, or has no video track.
            FieldTooLarge: more than ``WDS_MAX_MEDIA_BYTES``.
            UsageError: there are no frames in this time.
            MissingExtra: PyAV is not installed.
        """
        if stride < 1:
            raise UsageError(f"stride={stride} is no number of frames")
        try:
            if not self._is_whole:
                return self._clip_ranges(start_seconds, stop_seconds, stride, size)
        except NeedsWholeError:
            self._is_whole = True
        whole = self._fetch(0, self._size)
        return _decode(lambda: Video(whole).clip(start_seconds, stop_seconds, stride=stride, size=size))

    @property
    def rotation_degrees(self) -> int | None:
        """By how much the file says its frames are to be turned clockwise (they are not); None where that is not known.

        Raises:
            DecodingError: the video is damaged, or has no video track.
        """
        try:
            tables = self._tables = self._tables or self._open()
        except NeedsWholeError:
            return None
        return tables.track.rotation_degrees if isinstance(tables, _Tables) else None

    def _clip_ranges(self, start: float, stop: float | None, stride: int, size: FrameSize) -> Clip:
        tables = self._tables = self._tables or self._open()
        if isinstance(tables, MatroskaTables):
            found = tables.select(start, stop)
            segments = found.table.plan_segments(found.table.numbers_between(start, stop, stride))
            files: Iterator[ClipFile] = itertools.repeat(ClipFile(found.content, 0), len(segments))
            table, is_first = found.table, found.is_first
        else:
            part = tables.select(start, stop, self._read)
            segments = part.table.plan_segments(part.table.numbers_between(start, stop, stride))
            payloads = self._read_segments(part.samples, segments)
            files = itertools.starmap(
                functools.partial(_make_file, tables.file_type, tables.track, part),
                zip(segments, payloads, strict=True),
            )
            table, is_first = part.table, part.is_first

        def decode_segments() -> Iterator[tuple[float, Frame]]:
            for segment, file in zip(segments, files, strict=True):
                yield from _decode_segment(table, segment, file, size, is_first=is_first)

        return _decode(lambda: make_clip(list(check_frame_sizes(decode_segments()))))

    def _open(self) -> "_Tables | MatroskaTables":
        """Read what the file says of where its frames lie."""
        head = self._read(0, min(LONG_HEADER_BYTES, self._size), self._probe)
        if head[:4] == EBML_HEADER:
            return MatroskaTables(self._read, self._fetch, self._size)
        if head[4:8] not in _FIRST_BOXES:
            raise NeedsWholeError
        return self._open_boxes()

    def _open_boxes(self) -> "_Tables":
        """Read the tables of the video, from the boxes that stand one after another in it."""
        tables = None
        file_type, at = b"", 0
        for _ in range(_MOST_OUTER_BOXES):
            if at + HEADER_BYTES > self._size:
                break
            # tables after the frames end the file: one read for all of it
            ahead = min(self._size - at, 4 * self._probe) if tables is None else 0
            head = self._read(at, min(LONG_HEADER_BYTES, self._size - at), ahead)
            box = read_box_header(head, at, self._size)
            at = box.stop
            if box.kind == b"ftyp":
                file_type = self._read_box(box)
            elif box.kind == b"moov" and tables is None:
                track = read_track(*_place_box(self._read_box(box), box))
                if track is None:
                    raise NeedsWholeError
                tables = _Tables(file_type, track, self._size)
                if track.defaults is None:
                    return tables
            elif tables is not None:
                at = tables.add_box(box, self._read_box) or at
        else:
            raise NeedsWholeError
        if tables is None:
            raise damaged_file_error("it has no box b'moov'")
        return tables

    def _read_box(self, box: Box) -> bytes:
        if box.stop - box.begin > _MOST_TABLE_BYTES:
            raise NeedsWholeError
        return self._read(box.begin, box.stop - box.begin)

    def _read(self, at: int, size: int, ahead: int = 0) -> bytes:
        """Return a few bytes, and keep some of those after them: what is read next may be there.

        Args:
            at: where they start.
            size: how many.
            ahead: how many to request where they are not there, or a few more than these.
        """
        near = self._find_near(at, size)
        if near is not None:
            return near
        held = b""
        for begin, kept in ((0, self._head), self._window):
            if begin <= at < begin + len(kept) and len(kept) - (at - begin) > len(held):
                held = kept[at - begin :]
        want = min(self._size - at, max(size, ahead or min(_MORE_BYTES, self._probe)))
        content = held + self._fetch(at + len(held), want - len(held))
        if len(content) <= 4 * self._probe:
            if at:
                self._window = at, content
            else:
                self._head = content
        return content[:size]

    def _find_near(self, at: int, size: int) -> bytes | None:
        """Return a range that was read before, or None."""
        for begin, kept in ((0, self._head), self._window):
            if begin <= at and at + size <= begin + len(kept):
                return kept[at - begin : at - begin + size]
        return None

    def _fetch(self, at: int, size: int) -> bytes:
        if size < 0 or at + size > self._size:
            raise DecodingError(f"the video is damaged: it leads to bytes {at} to {at + size} of {self._size}")
        near = self._find_near(at, size)
        content = self._read_at(at, size) if near is None else near
        if len(content) < size:
            raise DecodingError(f"the video is cut short: {len(content)} of {size} bytes are there from byte {at} on")
        return content

    def _read_segments(self, samples: MediaSamples, segments: list[Segment]) -> list[bytes]:
        """Return the frames of each segment, in the order of decoding; what lies close together is read at once."""
        if not segments:
            return []
        wanted = np.concatenate([np.arange(segment.start, segment.stop) for segment in segments])
        wanted = wanted[np.argsort(samples.offsets[wanted], kind="stable")]
        starts, ends = samples.offsets[wanted], (samples.offsets + samples.sizes)[wanted]
        gaps = starts[1:] - ends[:-1]
        smallest = np.argsort(gaps, kind="stable")
        bridged = smallest[np.cumsum(gaps[smallest]) <= (_MOST_WASTE - 1) * samples.sizes[wanted].sum()]
        is_first = np.ones(len(wanted), np.bool_)
        is_first[bridged + 1] = False
        first = np.flatnonzero(is_first)
        spans = [
            (int(starts[low]), self._fetch(int(starts[low]), int(ends[high - 1] - starts[low])))
            for low, high in itertools.pairwise([*first.tolist(), len(wanted)])
        ]
        places = [start for start, _ in spans]
        payloads = []
        for segment in segments:
            frames = []
            for number in range(segment.start, segment.stop):
                offset, size = int(samples.offsets[number]), int(samples.sizes[number])
                start, content = spans[bisect.bisect_right(places, offset) - 1]
                frames.append(content[offset - start : offset - start + size])
            payloads.append(b"".join(frames))
        return payloads


class _NearbyFrames(NamedTuple):
    """The frames near a span of time; ``is_first``: the first of them is the first of the video."""

    samples: MediaSamples
    table: FrameTable
    is_first: bool


class _Tables:
    """What is known of where the frames of a video lie.

    Args:
        file_type: the box ``ftyp``.
        track: the track.
        size_bytes: of the video.
    """

    def __init__(self, file_type: bytes, track: Track, size_bytes: int) -> None:
        self.file_type, self.track, self._size = file_type, track, size_bytes
        self._places: list[FragmentPlace] = []
        self._fragments: dict[int, MediaSamples] = {}
        self._whole = self._make_part(track.samples, is_first=True) if track.defaults is None else None

    def _make_part(self, samples: MediaSamples, first: int | None = None, *, is_first: bool) -> _NearbyFrames:
        samples.check(self._size)
        times, edit = samples.times, self.track.edit
        # frames are told apart by their times
        if not len(times) or len(np.unique(times)) < len(times):
            raise NeedsWholeError
        shown = None if edit is None else (times >= edit[0]) & (times < edit[1])
        if first is None:
            if shown is not None and not shown.any():
                raise NeedsWholeError
            first = int(times[0] if shown is None else times[shown].min())
        return _NearbyFrames(samples, FrameTable(times, samples.is_key, shown, first, self.track.ticks), is_first)

    def add_box(self, box: Box, read_box: Callable[[Box], bytes]) -> int | None:
        """Add the fragments that a box after ``moov`` describes.

        Args:
            box: the box, at its place in the file.
            read_box: reads a box.

        Returns:
            Where the next box to look at starts, where that is not after this one.
        """
        if box.kind == b"sidx":
            places = read_segment_index(*_place_box(read_box(box), box), box.stop)
            if places:
                if places[-1].stop > self._size:
                    raise damaged_file_error(f"its fragments reach up to byte {places[-1].stop} of {self._size}")
                self._places += places
                return places[-1].stop
        elif box.kind == b"moof":
            samples = self._read_fragment(box, read_box)
            if len(samples.times):
                self._fragments[len(self._places)] = samples
                seconds = int(samples.times.min()) / self.track.ticks
                self._places.append(FragmentPlace(box.begin, box.stop, seconds))
        return None

    def _read_fragment(self, box: Box, read_box: Callable[[Box], bytes]) -> MediaSamples:
        samples = read_fragment(*_place_box(read_box(box), box), box.begin, self.track)
        if samples is None:
            raise NeedsWholeError
        return samples

    def select(self, start: float, stop: float | None, read: ReadRange) -> _NearbyFrames:
        """Return the frames of a span of time, and those that they need.

        Args:
            start: of the span, in seconds.
            stop: its end, in seconds, or None.
            read: reads a few bytes of the video.
        """
        if self._whole is not None:
            return self._whole
        if not self._places:
            raise NeedsWholeError
        beginning = self._load(0, read)
        edit = self.track.edit
        if not len(beginning.times) or (edit is not None and edit[0] > beginning.times.min()):
            raise NeedsWholeError
        first, ticks, last = int(beginning.times[0]), self.track.ticks, len(self._places) - 1
        seconds = [place.seconds - self._places[0].seconds for place in self._places]
        low = max(0, bisect.bisect_right(seconds, start) - 1)
        high = last if stop is None else min(last, bisect.bisect_left(seconds, stop))
        while low and not _begins_before(self._load(low, read), first + start * ticks):
            low -= 1
        # frames after these in the file are decoded later, and shown so long after they are decoded, or longer
        behind = int((beginning.times - beginning.decode_times).min())
        while (
            high < last and stop is not None and _decoded_until(self._load(high, read)) < first + stop * ticks - behind
        ):
            high += 1
        samples = join_tables([self._load(number, read) for number in range(low, high + 1)])
        if len(samples.times) > MOST_SAMPLES:
            raise NeedsWholeError
        return self._make_part(samples, first, is_first=low == 0)

    def _load(self, number: int, read: ReadRange) -> MediaSamples:
        """Return the table of the fragments at one place."""
        found = self._fragments.get(number)
        if found is None:
            tables, (at, stop, _) = [], self._places[number]
            while at + HEADER_BYTES <= stop:
                box = read_box_header(read(at, min(LONG_HEADER_BYTES, stop - at)), at, stop)
                if box.kind == b"moof":
                    tables.append(self._read_fragment(box, lambda box: read(box.begin, box.stop - box.begin)))
                at = box.stop
            found = self._fragments[number] = join_tables(tables)
        return found


def _begins_before(samples: MediaSamples, time: float) -> bool:
    """Tell whether decoding of what is shown at a time may begin in a fragment."""
    return bool((samples.times[samples.is_key] <= time).any())


def _decoded_until(samples: MediaSamples) -> float:
    return float(samples.decode_times[-1]) if len(samples.times) else -math.inf


def _place_box(content: bytes, box: Box) -> tuple[bytes, Box]:
    """Return a box that was read, and where its content is in these bytes."""
    return content, Box(box.kind, 0, box.start - box.begin, len(content))


def _make_file(file_type: bytes, track: Track, part: _NearbyFrames, segment: Segment, payload: bytes) -> ClipFile:
    samples = part.samples.cut(segment.start, segment.stop)
    steps, shifts = np.diff(samples.decode_times), samples.times - samples.decode_times
    if steps.min(initial=0) < 0 or steps.max(initial=0) >= MOST_STEP or np.ptp(shifts) >= MOST_SHIFT:
        raise NeedsWholeError
    return make_clip_file(file_type, track, samples, payload)


def _decode_segment(
    table: FrameTable, segment: Segment, file: ClipFile, size: FrameSize, *, is_first: bool
) -> Iterator[tuple[float, Frame]]:
    """Yield the wanted frames of one segment, with their times in the whole video."""
    convert = FrameConverter().convert
    wanted = {int(table.times[table.order[number]]): number for number in segment.numbers}
    with open_container(file.content, "decoding video") as container:
        for frame in container.decode(find_video_stream(container)):
            number = None if frame.pts is None else wanted.pop(frame.pts + file.start_time, None)
            if number is not None:
                check_size(frame.width, frame.height)
                yield float(table.seconds[number]), convert(frame, size)
    # from the first frame of the video on, the whole gives no more
    if wanted and not (is_first and segment.start == 0):
        raise NeedsWholeError


def _decode(decode: Callable[[], Clip]) -> Clip:
    """Return what a function gives; what PyAV raises becomes a ``DecodingError``."""
    try:
        return decode()
    except (WebDatasetError, NeedsWholeError):
        raise
    except Exception as error:  # PyAV's errors are of many classes: whatever it raises is a failure of these bytes
        raise DecodingError(f"the frames could not be decoded: {describe_error(error)}") from error
