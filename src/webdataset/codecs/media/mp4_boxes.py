"""Reads the boxes of MP4 and MOV files within stated bounds (ISO/IEC 14496-12, 4.2).

A box states its size and kind and lies within the box around it. A table states how many entries it has: the count is
compared with the box's size before anything is set aside for it. What does not fit is a ``DecodingError``.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from webdataset.core.errors import DecodingError

Integers = npt.NDArray[np.int64]
HEADER_BYTES = 8
LONG_HEADER_BYTES = 16
# a real file has some dozens in a box
_MOST_BOXES = 1 << 12


class Box(NamedTuple):
    """One box.

    Attributes:
        kind: its four letters.
        begin: where its header starts, in bytes.
        start: where its content starts.
        stop: where it ends.
    """

    kind: bytes
    begin: int
    start: int
    stop: int


def damaged_file_error(message: str) -> DecodingError:
    """Return the error for a file whose boxes do not fit together.

    Args:
        message: what is wrong.
    """
    return DecodingError(f"the MP4 file is damaged: {message}")


def read_box_header(head: bytes, begin: int, end: int) -> Box:
    """Return the box whose header is given; its content need not be there.

    Args:
        head: its first 16 bytes, or fewer at the end of the file.
        begin: where the box starts.
        end: where what it lies in ends.

    Raises:
        DecodingError: it is longer than what it lies in, or shorter than its own header.
    """
    size, kind, start = int.from_bytes(head[:4], "big"), head[4:8], begin + HEADER_BYTES
    if size == 1 and len(head) >= LONG_HEADER_BYTES:
        size, start = int.from_bytes(head[8:16], "big"), begin + LONG_HEADER_BYTES
    stop = end if size == 0 else begin + size
    if len(head) < HEADER_BYTES or stop < start:
        raise damaged_file_error(f"the box at byte {begin} states a size of {size} bytes")
    if stop > end:
        raise DecodingError(
            f"the MP4 file is cut short or damaged: the box {kind!r} at byte {begin} states {size} bytes, and "
            f"{end - begin} are left"
        )
    return Box(kind, begin, start, stop)


def read_boxes(content: bytes, start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes that stand one after another in a part of some bytes.

    Args:
        content: the bytes.
        start: where the first box starts.
        stop: where the last one ends.

    Raises:
        DecodingError: a box does not fit, or there are too many.
    """
    for _ in range(_MOST_BOXES):
        # QuickTime ends some lists with four zero bytes
        if start + HEADER_BYTES > stop:
            return
        box = read_box_header(content[start : min(stop, start + LONG_HEADER_BYTES)], start, stop)
        yield box
        start = box.stop
    raise damaged_file_error(f"a box holds more than {_MOST_BOXES} boxes")


def find_boxes(content: bytes, parent: Box) -> dict[bytes, Box]:
    """Return the boxes within a box by kind; of several of one kind the first."""
    found: dict[bytes, Box] = {}
    for box in read_boxes(content, parent.start, parent.stop):
        found.setdefault(box.kind, box)
    return found


def find_box(content: bytes, parent: Box, *kinds: bytes) -> Box:
    """Return the box that a path of kinds leads to.

    Raises:
        DecodingError: there is none.
    """
    for kind in kinds:
        found = find_boxes(content, parent).get(kind)
        if found is None:
            raise damaged_file_error(f"the box {parent.kind!r} holds no box {kind!r}")
        parent = found
    return parent


def copy_box(content: bytes, box: Box) -> bytes:
    """Return a whole box, its header included; the size is written anew, since it may have been left open."""
    return make_box(box.kind, content[box.start : box.stop])


def make_box(kind: bytes, *parts: bytes) -> bytes:
    """Return a box of some parts, with a short header where that holds its size."""
    size = HEADER_BYTES + sum(map(len, parts))
    if size < 1 << 32:
        return b"".join([size.to_bytes(4, "big"), kind, *parts])
    return b"".join([b"\0\0\0\1", kind, (size + 8).to_bytes(8, "big"), *parts])


class BoxReader:
    """Reads the numbers of one box, front to back.

    Args:
        content: the bytes that the box lies in.
        box: the box.
    """

    def __init__(self, content: bytes, box: Box) -> None:
        self._content, self._kind, self._at, self._stop = content, box.kind, box.start, box.stop

    def read_integer(self, size_bytes: int) -> int:
        """Return the next number, big-endian and without a sign.

        Raises:
            DecodingError: the box ends before.
        """
        return int.from_bytes(self._take(size_bytes), "big")

    def skip(self, size_bytes: int) -> None:
        """Pass over some bytes."""
        self._take(size_bytes)

    def _take(self, size_bytes: int) -> bytes:
        at, self._at = self._at, self._at + size_bytes
        if self._at > self._stop:
            raise damaged_file_error(f"the box {self._kind!r} is too short")
        return self._content[at : self._at]

    def read_table(self, rows: int, columns: int, kind: str = ">u4") -> Integers:
        """Return a table of whole numbers, int64[rows, columns].

        Args:
            rows: how many the box says there are.
            columns: numbers in a row.
            kind: numpy's name for a number of the file.

        Raises:
            DecodingError: the box has no place for so many, or a number is beyond 2**63.
        """
        stored = np.dtype(kind)
        if rows * columns * stored.itemsize > self._stop - self._at:
            raise damaged_file_error(f"the box {self._kind!r} says {rows} entries, which it has no place for")
        values = np.frombuffer(self._content, stored, rows * columns, self._at)
        self._at += rows * columns * stored.itemsize
        table = values.astype(np.int64).reshape(rows, columns)
        if stored.itemsize == 8 and stored.kind == "u" and (table < 0).any():
            raise damaged_file_error(f"the box {self._kind!r} holds a number beyond 2**63")
        return table
