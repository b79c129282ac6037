"""Width and height of an image from its first bytes, without decoding it and without Pillow.

Formats: PNG, JPEG, GIF, WebP, BMP, TIFF, JPEG XL, JPEG 2000, the netpbm family, and the ``ispe`` box of AVIF and HEIC.
A walk over segments and boxes is bounded by the length of the payload, each step moving forward.
"""

import re
import struct
from collections.abc import Callable

IMAGE_FIELDS = frozenset(
    (
        "jpg",
        "jpeg",
        "png",
        "gif",
        "webp",
        "bmp",
        "avif",
        "heic",
        "heif",
        "jp2",
        "j2k",
        "jxl",
        "tif",
        "tiff",
        "ppm",
        "pgm",
        "pbm",
        "pnm",
    )
)
"""Last components of the fields that hold images."""

_FRAMES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_MOST_BOXES = 1 << 16
_HEAD_BYTES = 1 << 12
_JXL_BOX = b"\0\0\0\x0cJXL \r\n\x87\n"
_JP2_BOX = b"\0\0\0\x0cjP  \r\n\x87\n"
_BOX_STARTS = (b"ftyp", b"JXL ", b"jP  ")
_TIFF_STARTS = (b"II*\0", b"MM\0*")
_JXL_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
_JXL_BITS = (9, 13, 18, 30)
_NETPBM = re.compile(rb"P[1-6]\s+(?:#[^\n]*\n\s*)*(\d{1,9})\s+(?:#[^\n]*\n\s*)*(\d{1,9})\s")


def read_image_size(payload: bytes) -> tuple[int, int] | None:
    """Return (width, height) in pixels, or None where this is no image of a known format.

    Args:
        payload: an encoded image, or enough of its start.
    """
    try:
        return _read_size(payload)
    except (struct.error, IndexError):
        return None


def read_image_size_in(read: Callable[[int, int], bytes], size_bytes: int) -> tuple[int, int] | None:
    """Return (width, height) as :func:`read_image_size` does of the whole payload, and read no more than it needs.

    Args:
        read: returns the bytes from a start to a stop of the payload.
        size_bytes: of the payload.
    """
    head = read(0, min(size_bytes, _HEAD_BYTES))
    if head[:4] in _TIFF_STARTS:
        try:
            # the directory often stands after the pixels
            return _read_tiff(lambda start, stop: read(start, min(stop, size_bytes)) if start < size_bytes else b"")
        except struct.error:
            return None
    if head[4:8] in _BOX_STARTS and len(head) < size_bytes:
        head += read(len(head), min(size_bytes, _MOST_BOXES + 64))
    found = read_image_size(head)
    # the frame header of a JPEG may stand after large profiles and thumbnails; all others are at the start
    while found is None and len(head) < size_bytes and head.startswith(b"\xff\xd8"):
        more = read(len(head), min(size_bytes, 8 * len(head)))
        if not more:
            break
        head += more
        found = read_image_size(head)
    return found


def _read_size(payload: bytes) -> tuple[int, int] | None:
    for is_kind, read in (
        (payload.startswith(b"\xff\xd8"), _read_jpeg),
        (payload.startswith(b"RIFF") and payload[8:12] == b"WEBP", _read_webp),
        (payload[4:8] == b"ftyp", _read_ispe),
        (payload.startswith((b"\xff\x0a", _JXL_BOX)), _read_jxl),
        (payload.startswith((b"\xff\x4f\xff\x51", _JP2_BOX)), _read_jpeg_2000),
        (payload[:4] in _TIFF_STARTS, lambda payload: _read_tiff(lambda start, stop: payload[start:stop])),
    ):
        if is_kind:
            return read(payload)
    if payload.startswith(b"\x89PNG\r\n\x1a\n") and payload[12:16] == b"IHDR":
        width, height = struct.unpack(">II", payload[16:24])
        return width, height
    if payload[:6] in (b"GIF87a", b"GIF89a"):
        width, height = struct.unpack("<HH", payload[6:10])
        return width, height
    if payload.startswith(b"BM"):
        width, height = struct.unpack("<ii", payload[18:26])
        return width, abs(height)
    netpbm = _NETPBM.match(payload[:4096])
    return (int(netpbm[1]), int(netpbm[2])) if netpbm else None


def _read_jpeg(payload: bytes) -> tuple[int, int] | None:
    """Walk the segments up to the frame header (ITU-T T.81, B.2.2)."""
    position = 2
    while position + 9 <= len(payload):
        if payload[position] != 0xFF:
            return None
        marker = payload[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker in _FRAMES:
            height, width = struct.unpack(">HH", payload[position + 5 : position + 9])
            return width, height
        if marker in _ALONE:
            position += 2
            continue
        length = int.from_bytes(payload[position + 2 : position + 4], "big")
        if length < 2:
            return None
        position += 2 + length
    return None


def _read_webp(payload: bytes) -> tuple[int, int] | None:
    kind = payload[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(payload[24:27], "little"), 1 + int.from_bytes(payload[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(payload[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", payload[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None


def _read_ispe(payload: bytes) -> tuple[int, int] | None:
    """Return the largest image that the properties of an AVIF or HEIC file speak of (ISO/IEC 23008-12)."""
    sizes = []
    end = min(len(payload), _MOST_BOXES)
    position = payload.find(b"ispe", 0, end)
    while position >= 0 and position + 16 <= len(payload):
        width, height = struct.unpack(">II", payload[position + 8 : position + 16])
        sizes.append((width, height))
        position = payload.find(b"ispe", position + 4, end)
    return max(sizes, key=lambda size: size[0] * size[1]) if sizes else None


def _read_tiff(read: Callable[[int, int], bytes]) -> tuple[int, int] | None:
    """Read the first directory, wherever it stands (TIFF 6.0, section 2).

    Args:
        read: returns the bytes from a start to a stop.
    """
    head = read(0, 8)
    order = "<" if head[:2] == b"II" else ">"
    (start,) = struct.unpack(f"{order}I", head[4:8])
    (count,) = struct.unpack(f"{order}H", read(start, start + 2))
    entries = read(start + 2, start + 2 + 12 * count)
    sides = {}
    for each in range(len(entries) // 12):
        tag, kind = struct.unpack_from(f"{order}HH", entries, 12 * each)
        if tag in (256, 257):
            (sides[tag],) = struct.unpack_from(f"{order}{'H' if kind == 3 else 'I'}", entries, 12 * each + 8)
    return (sides[256], sides[257]) if len(sides) == 2 else None


def _read_jpeg_2000(payload: bytes) -> tuple[int, int] | None:
    """Read the image header box, or the SIZ segment of a bare codestream (ITU-T T.800, I.5.3.1 and A.5.1)."""
    if payload.startswith(b"\xff\x4f"):
        width, height, left, top = struct.unpack(">4I", payload[8:24])
        return (width - left, height - top) if width > left and height > top else None
    at = payload.find(b"jp2h", 0, _MOST_BOXES)
    if at < 0 or payload[at + 8 : at + 12] != b"ihdr":
        return None
    height, width = struct.unpack(">II", payload[at + 12 : at + 20])
    return width, height


def _read_jxl(payload: bytes) -> tuple[int, int] | None:
    """Read the size header of a codestream, bare or in its box (ISO/IEC 18181-1, ISO/IEC 18181-2)."""
    if payload.startswith(_JXL_BOX):
        position = len(_JXL_BOX)
        while payload[position + 4 : position + 8] not in (b"jxlc", b"jxlp"):
            (size,) = struct.unpack(">I", payload[position : position + 4])
            if size < 8:
                return None
            position += size
        position += 8 if payload[position + 4 : position + 8] == b"jxlc" else 12
        payload = payload[position : position + 32]
        if not payload.startswith(b"\xff\x0a"):
            return None
    bits = _Bits(payload[2:32])
    is_small = bits.take(1)
    height = _take_side(bits, is_small)
    ratio = bits.take(3)
    if ratio:
        across, down = _JXL_RATIOS[ratio - 1]
        return height * across // down, height
    return _take_side(bits, is_small), height


class _Bits:
    """Bits of bytes, the lowest first.

    Args:
        content: the bytes.
    """

    def __init__(self, content: bytes) -> None:
        self._rest = int.from_bytes(content, "little")
        self._left = 8 * len(content)

    def take(self, count: int) -> int:
        """Return the next bits as a number.

        Raises:
            IndexError: there are not so many.
        """
        if count > self._left:
            raise IndexError("the header is cut")
        value = self._rest & ((1 << count) - 1)
        self._rest >>= count
        self._left -= count
        return value


def _take_side(bits: _Bits, is_small: int) -> int:
    return 8 * (1 + bits.take(5)) if is_small else 1 + bits.take(_JXL_BITS[bits.take(2)])
