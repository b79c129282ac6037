"""Reads where the frames of a Matroska or WebM file lie, and cuts out those of a span of time (RFC 9559).

The index of the file (``Cues``) says in which cluster each key frame is. Clusters are copied as they are, after the
headers of the file: times in them are those of the whole file. Elements state their sizes, which are compared with what
they lie in; damage is a ``DecodingError``. Files without an index, and clusters that do not state their size, are a
``NeedsWholeError``.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from webdataset.codecs.media.container import read_number
from webdataset.codecs.media.frame_table import FrameTable, NeedsWholeError
from webdataset.core.errors import DecodingError

ReadRange = Callable[[int, int], bytes]
_SEGMENT, _SEEK_HEAD, _INFO, _TRACKS, _CUES = 0x18538067, 0x114D9B74, 0x1549A966, 0x1654AE6B, 0x1C53BB6B
_CLUSTER, _TIMESTAMP, _SIMPLE_BLOCK, _BLOCK_GROUP = 0x1F43B675, 0xE7, 0xA3, 0xA0
_BLOCK, _REFERENCE, _CHECKSUM, _VOID = 0xA1, 0xFB, 0xBF, 0xEC
_SEEK, _SEEK_ID, _SEEK_POSITION = 0x4DBB, 0x53AB, 0x53AC
_TIMESTAMP_SCALE, _TRACK, _NUMBER, _TYPE, _TRACK_SCALE = 0x2AD7B1, 0xAE, 0xD7, 0x83, 0x23314F
_CUE, _CUE_TIME, _CUE_POSITIONS = 0xBB, 0xB3, 0xB7
_CUE_TRACK, _CUE_CLUSTER, _CUE_RELATIVE = 0xF7, 0xF1, 0xF0
_VIDEO = 1
_NANOSECONDS = 1_000_000_000
# an identifier and a size; and with the first bytes of a block
_LONGEST_HEADER = 12
_BLOCK_HEAD = 16
# in what is read at once
_MOST_ELEMENTS = 1 << 20
_MOST_HEADER_BYTES = 1 << 20
_MOST_CUE_BYTES = 64 << 20
_KEY_FLAG, _LACE_FLAGS = 0x80, 0x06
_OPEN_SIZE = b"\x01" + b"\xff" * 7


class Element(NamedTuple):
    """One element; ``start`` and ``stop`` are those of its content."""

    kind: int
    begin: int
    start: int
    stop: int


class Cue(NamedTuple):
    """Where a key frame is: when it is shown, where its cluster starts, and where it is in that; -1: not known."""

    time: int
    cluster: int
    relative: int


class _KeyPlace(NamedTuple):
    """Where a key frame is: its cluster and the time of that, where its block begins, and when it is shown."""

    cluster: Element
    clock: int
    begin: int
    time: int


class FrameBlock(NamedTuple):
    """A frame of the video track, and where its element starts and ends."""

    time: int
    is_key: bool
    begin: int
    stop: int


class MatroskaPart(NamedTuple):
    """Some successive frames.

    Attributes:
        content: a file of them.
        table: of them.
        is_first: whether they begin with the first frame of the video.
    """

    content: bytes
    table: FrameTable
    is_first: bool


def _damaged_error(message: str) -> DecodingError:
    return DecodingError(f"the Matroska file is damaged: {message}")


def _read_element(read: ReadRange, at: int, end: int) -> Element:
    """Return the element at a place; what it lies in ends at ``end``."""
    head = read(at, min(_LONGEST_HEADER, end - at)) if at < end else b""
    width = 9 - head[0].bit_length() if head and head[0] else 0
    if not 0 < width <= 4 or len(head) <= width:
        raise _damaged_error(f"no element starts at byte {at}")
    size, length = read_number(head, width)
    start = at + length
    if size is None:
        raise NeedsWholeError
    if start + size > end:
        raise _damaged_error(f"the element at byte {at} states {size} bytes, and {end - start} are left")
    return Element(int.from_bytes(head[:width], "big"), at, start, start + size)


def _read_elements(read: ReadRange, start: int, stop: int) -> Iterator[Element]:
    for _ in range(_MOST_ELEMENTS):
        if start >= stop:
            return
        element = _read_element(read, start, stop)
        yield element
        start = element.stop
    raise _damaged_error(f"more than {_MOST_ELEMENTS} elements in a part")


def _read_integer(content: bytes, element: Element) -> int:
    if element.stop - element.start > 8:
        raise _damaged_error(f"a number of {element.stop - element.start} bytes")
    return int.from_bytes(content[element.start : element.stop], "big")


def _slices(content: bytes) -> ReadRange:
    return lambda at, size: content[at : at + size]


def _read_fields(content: bytes, kinds: tuple[int, ...], start: int = 0, stop: int | None = None) -> dict[int, int]:
    """Return the whole numbers of some kinds among successive elements; of several the first."""
    found: dict[int, int] = {}
    for element in _read_elements(_slices(content), start, len(content) if stop is None else stop):
        if element.kind in kinds:
            found.setdefault(element.kind, _read_integer(content, element))
    return found


class MatroskaTables:
    """What is known of where the frames of a file lie.

    Args:
        read: reads a few bytes; keeps some after them.
        fetch: reads a range.
        size_bytes: of the file.

    Raises:
        DecodingError: damaged, or no video track.
        NeedsWholeError: no index, or a kind of file that only a demultiplexer knows.
    """

    def __init__(self, read: ReadRange, fetch: ReadRange, size_bytes: int) -> None:
        self._read, self._fetch, self._size = read, fetch, size_bytes
        head = _read_element(read, 0, size_bytes)
        self._segment = self._find_segment(head.stop)
        self._end = self._segment.stop
        self._clusters: dict[int, tuple[Element, int, int]] = {}
        parts, first_cluster = self._read_headers()
        for kind in (_INFO, _TRACKS):
            if kind not in parts:
                raise _damaged_error("headers are missing")
        head_bytes, info_bytes, track_bytes = (self._read_whole(part) for part in (head, parts[_INFO], parts[_TRACKS]))
        segment = _SEGMENT.to_bytes(4, "big") + _OPEN_SIZE
        self._headers = b"".join([head_bytes, segment, info_bytes, track_bytes])
        info = info_bytes[parts[_INFO].start - parts[_INFO].begin :]
        scale = _read_fields(info, (_TIMESTAMP_SCALE,)).get(_TIMESTAMP_SCALE, 1_000_000)
        if scale == 0 or _NANOSECONDS % scale:
            raise NeedsWholeError
        self.ticks = _NANOSECONDS // scale
        self._track = _find_video_track(track_bytes[parts[_TRACKS].start - parts[_TRACKS].begin :])
        self._cues = self._read_cues(parts)
        first = next(self._blocks(read, first_cluster, size_bytes), None)
        if first is None or not self._cues:
            raise NeedsWholeError
        self._first_time, self._first_cluster = first.time, first_cluster
        if first_cluster > self._cues[0].cluster:
            raise _damaged_error("its index leads to what stands before the frames")

    def _find_segment(self, at: int) -> Element:
        """Return the segment; its size may be left open."""
        head = self._read(at, min(_LONGEST_HEADER, self._size - at))
        if int.from_bytes(head[:4], "big") != _SEGMENT:
            raise _damaged_error("it has no segment")
        size, length = read_number(head, 4)
        stop = self._size if size is None else at + length + size
        if length == 4 or stop > self._size:
            raise DecodingError(
                f"the Matroska file is cut short: {self._size} bytes are there, and {stop} belong to it"
            )
        return Element(_SEGMENT, at, at + length, stop)

    def _read_headers(self) -> tuple[dict[int, Element], int]:
        """Return the elements before the first cluster, the index that they lead to, and where the cluster starts."""
        parts: dict[int, Element] = {}
        for element in _read_elements(self._read, self._segment.start, self._segment.stop):
            if element.kind == _CLUSTER:
                break
            parts.setdefault(element.kind, element)
        else:
            raise NeedsWholeError
        if _CUES not in parts and _SEEK_HEAD in parts:
            place = self._find_by_seek_head(self._read_content(parts[_SEEK_HEAD]))
            if place is not None:
                parts[_CUES] = _read_element(self._read, place, self._segment.stop)
        return parts, element.begin

    def _find_by_seek_head(self, content: bytes) -> int | None:
        for seek in _read_elements(_slices(content), 0, len(content)):
            if seek.kind == _SEEK:
                fields = _read_fields(content, (_SEEK_ID, _SEEK_POSITION), seek.start, seek.stop)
                if fields.get(_SEEK_ID) == _CUES:
                    return self._segment.start + fields.get(_SEEK_POSITION, 0)
        return None

    def _read_whole(self, element: Element, most: int = _MOST_HEADER_BYTES) -> bytes:
        if element.stop - element.begin > most:
            raise NeedsWholeError
        return self._read(element.begin, element.stop - element.begin)

    def _read_content(self, element: Element, most: int = _MOST_HEADER_BYTES) -> bytes:
        return self._read_whole(element, most)[element.start - element.begin :]

    def _read_cues(self, parts: dict[int, Element]) -> list[Cue]:
        """Return the key frames of the track by the index, in the order of showing."""
        if _CUES not in parts or parts[_CUES].kind != _CUES:
            raise NeedsWholeError
        content = self._read_content(parts[_CUES], _MOST_CUE_BYTES)
        read, cues = _slices(content), []
        for point in _read_elements(read, 0, len(content)):
            if point.kind != _CUE:
                continue
            time = _read_fields(content, (_CUE_TIME,), point.start, point.stop).get(_CUE_TIME, 0)
            for place in _read_elements(read, point.start, point.stop):
                if place.kind != _CUE_POSITIONS:
                    continue
                fields = _read_fields(content, (_CUE_TRACK, _CUE_CLUSTER, _CUE_RELATIVE), place.start, place.stop)
                if fields.get(_CUE_TRACK) == self._track:
                    cluster = self._segment.start + fields.get(_CUE_CLUSTER, 0)
                    cues.append(Cue(time, cluster, fields.get(_CUE_RELATIVE, -1)))
        if any(cue.cluster >= self._segment.stop or cue.time >> 62 for cue in cues):
            raise _damaged_error("its index leads out of it")
        cues.sort()
        if any(one.time == other.time or one.cluster > other.cluster for one, other in itertools.pairwise(cues)):
            raise NeedsWholeError
        # the index is after the frames, or else before
        after = parts[_CUES].begin
        self._end = after if cues and after > cues[-1].cluster else self._segment.stop
        return cues

    def _blocks(self, read: ReadRange, start: int, stop: int, clock: int = 0) -> Iterator[FrameBlock]:
        """Yield the frames of the video track in successive clusters, or in a part of one whose time is given."""
        for _ in range(_MOST_ELEMENTS):
            if start >= stop:
                return
            element = _read_element(read, start, stop)
            start = element.stop
            if element.kind == _CLUSTER:
                clock, start = 0, element.start
            elif element.kind == _TIMESTAMP:
                clock = _read_integer(read(element.start, min(8, element.stop - element.start)), _at_zero(element))
            elif element.kind in (_SIMPLE_BLOCK, _BLOCK_GROUP):
                block = self._read_block(read, element, clock)
                if block is not None:
                    yield block
        raise _damaged_error(f"more than {_MOST_ELEMENTS} elements in a part")

    def _read_block(self, read: ReadRange, element: Element, clock: int) -> FrameBlock | None:
        """Return the frame in a block or a group of one; None: of another track."""
        inner, is_key = element, None
        if element.kind == _BLOCK_GROUP:
            parts = {part.kind: part for part in _read_elements(read, element.start, element.stop)}
            if _BLOCK not in parts:
                return None
            inner, is_key = parts[_BLOCK], _REFERENCE not in parts
        head = read(inner.start, min(_BLOCK_HEAD, inner.stop - inner.start))
        track, at = read_number(head, 0)
        if track is None or len(head) < at + 3:
            raise _damaged_error(f"the block at byte {element.begin} is too short")
        if track != self._track:
            return None
        flags = head[at + 2]
        if flags & _LACE_FLAGS:
            raise NeedsWholeError
        time = clock + int.from_bytes(head[at : at + 2], "big", signed=True)
        return FrameBlock(time, bool(flags & _KEY_FLAG) if is_key is None else is_key, element.begin, element.stop)

    def select(self, start_seconds: float, stop_seconds: float | None) -> MatroskaPart:
        """Read the frames of a span of time, and those that they need.

        Args:
            start_seconds: of the span.
            stop_seconds: its end; None: that of the video.
        """
        times = [(cue.time - self._first_time) / self.ticks for cue in self._cues]
        low = max(0, bisect.bisect_right(times, start_seconds) - 1)
        high = len(times) if stop_seconds is None else max(low + 1, bisect.bisect_left(times, stop_seconds))
        first = self._find_key(self._cues[low]) if low else None
        last = self._find_key(self._cues[high]) if high < len(times) else None
        content, blocks = self._fetch_clusters(first, last)
        latest = max((block.time for block in blocks), default=0)
        # frames after the next key frame may be shown before it
        is_open = stop_seconds is not None and (latest - self._first_time) / self.ticks < stop_seconds
        if last is not None and is_open and self._has_leading_frames(last):
            last = self._find_key(self._cues[high + 1]) if high + 1 < len(times) else None
            content, blocks = self._fetch_clusters(first, last)
        found = {block.time: block.is_key for block in blocks}
        # frames are told apart by their times, and the index is right about where decoding may begin
        if len(found) < len(blocks) or not blocks or (low and not found.get(self._cues[low].time)):
            raise NeedsWholeError
        times_shown = np.array([block.time for block in blocks], np.int64)
        is_key = np.array([block.is_key for block in blocks])
        table = FrameTable(times_shown, is_key, None, self._first_time, self.ticks)
        return MatroskaPart(self._headers + content, table, low == 0)

    def _find_key(self, cue: Cue) -> _KeyPlace:
        """Return where a key frame of the index is in the file."""
        cluster, clock, begin = self._clusters.get(cue.cluster) or self._read_cluster(cue.cluster)
        if cue.relative >= 0:
            begin = cluster.start + cue.relative
        if begin >= cluster.stop:
            raise _damaged_error(f"its index leads to byte {begin}, where there is no frame")
        return _KeyPlace(cluster, clock, begin, cue.time)

    def _read_cluster(self, at: int) -> tuple[Element, int, int]:
        """Return a cluster, its time, and where its first frame of the track is."""
        cluster = _read_element(self._read, at, self._segment.stop)
        if cluster.kind != _CLUSTER:
            raise _damaged_error(f"its index leads to byte {at}, where there is no cluster")
        element = _read_element(self._read, cluster.start, cluster.stop)
        if element.kind == _CHECKSUM:
            element = _read_element(self._read, element.stop, cluster.stop)
        if element.kind != _TIMESTAMP:
            raise NeedsWholeError
        clock = _read_integer(self._read(element.start, min(8, element.stop - element.start)), _at_zero(element))
        blocks = self._blocks(self._read, element.stop, cluster.stop, clock)
        begin = next((block.begin for block in blocks), cluster.stop)
        self._clusters[at] = cluster, clock, begin
        return cluster, clock, begin

    def _has_leading_frames(self, key: _KeyPlace) -> bool:
        """Tell whether the frame after a key frame in the file is shown before it."""
        frames = self._blocks(self._read, key.begin, self._end, key.clock)
        next(frames, None)
        following = next(frames, None)
        return following is not None and following.time < key.time

    def _fetch_clusters(self, first: _KeyPlace | None, last: _KeyPlace | None) -> tuple[bytes, list[FrameBlock]]:
        """Return clusters that begin and end with the frames before two key frames, and the frames in them.

        Args:
            first: the key frame to begin with; None: the first cluster.
            last: the key frame before which they end; None: all the rest.
        """
        begin = first.begin if first else self._first_cluster
        stop = last.begin if last else self._end
        content = self._fetch(begin, max(0, stop - begin))
        # the clusters at both ends are shorter now
        if last is not None and last.cluster.begin >= begin:
            rest = content[last.cluster.start - begin :]
            if rest[:1] == bytes([_CHECKSUM]):
                rest = bytes([_VOID]) + rest[1:]
            content = content[: last.cluster.begin - begin] + _open_cluster(len(rest)) + rest
        if first is not None:
            clock = bytes([_TIMESTAMP, 0x88]) + first.clock.to_bytes(8, "big")
            content = _open_cluster(len(clock) + min(first.cluster.stop, stop) - begin) + clock + content
        return content, list(self._blocks(_slices(content), 0, len(content)))


def _open_cluster(size: int) -> bytes:
    """Return the header of a cluster whose content has so many bytes."""
    return _CLUSTER.to_bytes(4, "big") + (1 << 56 | size).to_bytes(8, "big")


def _at_zero(element: Element) -> Element:
    return Element(element.kind, 0, 0, element.stop - element.start)


def _find_video_track(content: bytes) -> int:
    """Return the number of the first video track."""
    for track in _read_elements(_slices(content), 0, len(content)):
        if track.kind != _TRACK:
            continue
        fields = _read_fields(content, (_NUMBER, _TYPE), track.start, track.stop)
        if fields.get(_TYPE) == _VIDEO:
            kinds = {element.kind for element in _read_elements(_slices(content), track.start, track.stop)}
            if _TRACK_SCALE in kinds:
                raise NeedsWholeError
            return fields.get(_NUMBER, 0)
    raise DecodingError("the file has no video track")
