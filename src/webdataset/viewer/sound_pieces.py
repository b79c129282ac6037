"""Pieces of a long sound that decode by themselves, so that an hour of it is neither read nor decoded whole.

Theory. The samples of a WAV file may be read from any block on. Frames of FLAC, MP3 and AAC (ADTS) and pages of Ogg
begin with a mark, by which decoders find the next one. So a few kilobytes from any place decode after the headers of
the file. Pieces stand at equal distances in bytes: in a WAV file these are equal times, elsewhere about so.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

PIECES: Final = 96
_WAV_BYTES: Final = 16 << 10
_CODED_BYTES: Final = 64 << 10
_MOST_HEAD_BYTES: Final = 64 << 10
_MOST_STEPS: Final = 256
Read = Callable[[int, int], bytes]


class SoundPieces(NamedTuple):
    """A few pieces of a sound.

    Args:
        format: as ffmpeg calls it: the beginning of a piece may look like another one.
        head: the headers, which stand before each piece.
        pieces: in their order.
    """

    format: str
    head: bytes
    pieces: list[bytes]


def read_pieces(size_bytes: int, read: Read) -> SoundPieces | None:
    """Return pieces of a sound; None where its format does not allow that, or its headers are too long or damaged.

    Args:
        size_bytes: of the field.
        read: returns its bytes from a start to a stop.
    """
    start = read(0, min(size_bytes, _MOST_HEAD_BYTES))
    place, block, length = 0, 1, _CODED_BYTES
    if start[:4] in (b"RIFF", b"RF64") and start[8:12] == b"WAVE":
        place, block = _find_wav_data(start)
        if not place or not block:
            return None
        form, head, length = "wav", start[:place], max(_WAV_BYTES // block, 1) * block
    elif start[:4] == b"fLaC" and len(start) >= 42:
        # the block STREAMINFO, marked as the last one
        form, head, place = "flac", start[:4] + b"\x80\0\0\x22" + start[8:42], 42
    elif start[:4] == b"OggS":
        place = _find_ogg_sound(start)
        if not place:
            return None
        form, head = "ogg", start[:place]
    elif start[:3] == b"ID3" or (len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0):
        head, place = b"", _measure_id3(start)
        # the layer: AAC has none
        form = "aac" if start[place : place + 1] == b"\xff" and not start[place + 1] & 6 else "mp3"
    else:
        return None
    if place + PIECES * length > size_bytes:
        return None
    step = (size_bytes - place) // PIECES // block * block
    starts = [place + number * step for number in range(PIECES)]
    return SoundPieces(form, head, [read(at, min(at + length, size_bytes)) for at in starts])


def _find_wav_data(start: bytes) -> tuple[int, int]:
    """Return where the samples begin, and the bytes of a block; 0 of these where that is not told."""
    position, block = 12, 0
    for _ in range(_MOST_STEPS):
        name, size = start[position : position + 4], int.from_bytes(start[position + 4 : position + 8], "little")
        if name == b"fmt ":
            block = int.from_bytes(start[position + 20 : position + 22], "little")
        elif name == b"data" and position + 8 <= len(start):
            return position + 8, block
        position += 8 + size + size % 2
    return 0, 0


def _find_ogg_sound(start: bytes) -> int:
    """Return where the first page begins that is no header: those have no time. 0 where that is not told."""
    position = 0
    for _ in range(_MOST_STEPS):
        page = start[position : position + 27]
        if len(page) < 27 or page[:4] != b"OggS":
            return 0
        if position and page[6:14] not in (bytes(8), b"\xff" * 8):
            return position
        segments = start[position + 27 : position + 27 + page[26]]
        position += 27 + page[26] + sum(segments)
    return 0


def _measure_id3(start: bytes) -> int:
    """Return the bytes of the tags at the beginning."""
    if start[:3] != b"ID3" or len(start) < 10:
        return 0
    size = 0
    for byte in start[6:10]:
        size = size << 7 | byte & 0x7F
    return 10 + size
