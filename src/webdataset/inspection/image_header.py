"""Width and height of an image from its first bytes, without decoding it and without Pillow.

Formats: PNG, JPEG, GIF, WebP, BMP, and the ``ispe`` box of AVIF and HEIC. A walk over JPEG segments and ISO boxes is
bounded by the length of the payload, each step moving forward.
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
    if head[4:8] == b"ftyp" and len(head) < size_bytes:
        head += read(len(head), min(size_bytes, _MOST_BOXES + 64))
    found = read_image_size(head)
    # the frame header of a JPEG may stand behind large profiles and thumbnails; all others are at the start
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
