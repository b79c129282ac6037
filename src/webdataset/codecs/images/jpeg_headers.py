"""What a JPEG says before its first scan, read once for pictures that say the same.

Theory. Size, colours and subsampling of a JPEG follow from the bytes before its first scan alone. Pictures that one
program wrote at one size and quality share these bytes (some 600 of them) exactly, so what the library said of one of
them holds for the others, and to compare the bytes takes a fiftieth of the time. They are remembered where two pictures
in a row said the same, and ever more seldom where that does not pay (each picture has tables of its own, say).

Flows in: encoded JPEGs. Flows out: what the library says of them. Never a guess: other bytes are read anew.
"""

from typing import Any, NamedTuple

_SCAN = 0xDA
_BASELINE = frozenset([0xC0, 0xC1])  # frame headers of JPEGs that are decoded in one pass
_SEGMENTS = frozenset([0xC4, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE])  # what may stand before: tables, metadata
_NO_CONTENT = frozenset([0x01, 0xFF, *range(0xD0, 0xD8)])
_LONGEST = 1024  # pictures to let pass where remembering has not paid
_NOTHING = b"\xff\xd8\xff\xd8"  # no JPEG begins so


class JpegHeader(NamedTuple):
    """What a JPEG says of itself.

    Args:
        height: pixels.
        width: pixels.
        colours: what the library calls its colours.
        subsampling: what the library calls its subsampling.
        baseline: it is known to be decoded in one pass.
    """

    height: int
    width: int
    colours: str
    subsampling: str
    baseline: bool = False


class Headers:
    """Reads headers, and remembers the one of the last pictures.

    Args:
        library: simplejpeg.
    """

    def __init__(self, library: Any) -> None:
        self._read = library.decode_jpeg_header
        self._known = _NOTHING, JpegHeader(0, 0, "", "")  # replaced as one: threads share it
        self._pause = self._pass = 0  # how many pictures to let pass next time, and now

    def of(self, data: bytes) -> JpegHeader:
        """Return what a JPEG says of itself.

        Args:
            data: the whole file.

        Raises:
            ValueError: it is damaged, or no JPEG.
        """
        head, known = self._known
        if data.startswith(head):
            if self._pause:
                self._pause = self._pass = 0
            return known
        found = JpegHeader(*self._read(data))
        if found[:4] != known[:4]:
            self._known = _NOTHING, found
        elif self._pass > 0:
            self._pass -= 1
        else:
            self._pass = self._pause
            self._pause = min(2 * self._pause + 1, _LONGEST)
            stop, baseline = before_scan(data)
            if stop:
                self._known = data[:stop], found._replace(baseline=baseline)
        return found


def before_scan(data: bytes) -> tuple[int, bool]:
    """Return where the first scan's header ends (0: not found in order), and whether the JPEG is baseline.

    Args:
        data: an encoded JPEG.
    """
    at, end = 2, len(data) - 4
    baseline = False
    while at < end and data[at] == 0xFF:
        kind = data[at + 1]
        if kind in _NO_CONTENT:
            at += 1 if kind == 0xFF else 2
            continue
        after = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == _SCAN:
            return (after if after <= len(data) else 0), baseline
        if kind in _BASELINE:
            baseline = True
        elif kind not in _SEGMENTS:
            break
        at = after
    return 0, baseline
