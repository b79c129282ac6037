"""Whether a media file is all there, by the lengths that its outermost parts state.

Flows in: the bytes of one file. Flows out: an error where it was cut. Demultiplexers play what there is of a file and
stop without a word; for a dataset that is lost data. Formats without lengths (MP3, MPEG streams, raw H.264) pass.
"""

from webdataset.ground.errors import DecodingError

_RIFF = (b"RIFF", b"RIFX")
_EBML = b"\x1aE\xdf\xa3"
_SLACK = 64  # bytes; some programs count a header twice
_UNKNOWN_RIFF = 0x7FFF0000  # what programs write that do not know the size beforehand, or more
_SHORTEST_BOX = 8


def check_whole(data: bytes) -> None:
    """Refuse a RIFF, MP4 or Matroska file that is shorter than it says.

    Args:
        data: the file.

    Raises:
        DecodingError: cut short.
    """
    if data[:4] in _RIFF:
        stated = int.from_bytes(data[4:8], "little" if data[:4] == b"RIFF" else "big") + 8
        end = 0 if stated >= _UNKNOWN_RIFF else stated - _SLACK
    elif data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        end = _end_of_boxes(data)
    elif data[:4] == _EBML:
        end = _end_of_elements(data)
    else:
        return
    if end > len(data):
        raise DecodingError(f"the file is cut short: {len(data)} bytes are there, at least {end} belong to it")


def _end_of_boxes(data: bytes) -> int:
    """Return where the last box of an ISO file ends (ISO/IEC 14496-12, 4.2)."""
    at = 0
    while at + _SHORTEST_BOX <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size < _SHORTEST_BOX:  # 0: up to the end of the file; less is none of our business
            return at
        at += size
    return at


def _end_of_elements(data: bytes) -> int:
    """Return where the segment of a Matroska file ends (RFC 8794, 4 and 6); 0 where it is not stated."""
    at = 4
    size, at = _number(data, at)
    if size is None:
        return 0
    at += size
    if data[at : at + 4] != b"\x18S\x80g":
        return at
    size, at = _number(data, at + 4)
    return 0 if size is None else at + size


def _number(data: bytes, at: int) -> tuple[int | None, int]:
    """Read a number of variable length; return it (None: unknown) and where it ends."""
    if at >= len(data) or data[at] == 0:
        return None, at
    length = 9 - data[at].bit_length()
    bits = 7 * length
    number = int.from_bytes(data[at : at + length], "big") & ((1 << bits) - 1)
    return (None if number == (1 << bits) - 1 else number), at + length
