"""Opens media files with PyAV, without access to anything but their own bytes, and refuses files that were cut.

Playlists and session descriptions, which would make ffmpeg open other files or sockets, find every protocol closed.

Demultiplexers play what there is of a cut file and stop silently; for a dataset that is lost data. So the lengths
that the outermost parts of a file state are compared with its size. Formats without lengths (MP3, MPEG streams, raw
H.264) pass.
"""

import io
from typing import TYPE_CHECKING

from webdataset.core import settings
from webdataset.core.errors import DecodingError, FieldTooLarge
from webdataset.core.optional_imports import require

if TYPE_CHECKING:
    from av.container import InputContainer

_RIFF = (b"RIFF", b"RIFX")
EBML_HEADER = b"\x1aE\xdf\xa3"
# bytes; some programs count a header twice
_SLACK = 64
# what programs write that do not know the size beforehand, or more
_UNKNOWN_RIFF = 0x7FFF0000
_SHORTEST_BOX = 8


def check_whole(data: bytes) -> None:
    """Refuse a RIFF, MP4 or Matroska file that is shorter than it says.

    Raises:
        DecodingError: cut short.
    """
    if data[:4] in _RIFF:
        stated = int.from_bytes(data[4:8], "little" if data[:4] == b"RIFF" else "big") + 8
        end = 0 if stated >= _UNKNOWN_RIFF else stated - _SLACK
    elif data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        end = _end_of_boxes(data)
    elif data[:4] == EBML_HEADER:
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
        # 0: up to the end of the file; less is none of our business
        if size < _SHORTEST_BOX:
            return at
        at += size
    return at


def _end_of_elements(data: bytes) -> int:
    """Return where the segment of a Matroska file ends (RFC 8794, 4 and 6); 0 where it is not stated."""
    at = 4
    size, at = read_number(data, at)
    if size is None:
        return 0
    at += size
    if data[at : at + 4] != b"\x18S\x80g":
        return at
    size, at = read_number(data, at + 4)
    return 0 if size is None else at + size


def read_number(data: bytes, at: int) -> tuple[int | None, int]:
    """Read a number of variable length; return it (None: unknown) and where it ends."""
    if at >= len(data) or data[at] == 0:
        return None, at
    length = 9 - data[at].bit_length()
    bits = 7 * length
    number = int.from_bytes(data[at : at + length], "big") & ((1 << bits) - 1)
    return (None if number == (1 << bits) - 1 else number), at + length


_CLOSED = {"protocol_whitelist": "none"}


def open_container(data: bytes, purpose: str) -> "InputContainer":
    """Open a media file for reading.

    Args:
        data: its bytes.
        purpose: what it is opened for, for the message where PyAV is missing.

    Returns:
        A ``av.container.InputContainer``, to be closed by the caller.

    Raises:
        MissingExtra: PyAV is not installed.
        DecodingError: cut short.
        OSError: no media file that ffmpeg knows; PyAV's errors are ``ValueError`` or ``OSError``.
    """
    library = require("av", extra="media", purpose=purpose)
    check_whole(data)
    container: InputContainer = library.open(io.BytesIO(data), options=_CLOSED)
    return container


def check_decoded_size(size_bytes: int) -> None:
    """Refuse what would take more memory than the limit.

    Args:
        size_bytes: bytes of decoded frames or sound so far, or to come.

    Raises:
        FieldTooLarge: more than ``WDS_MAX_MEDIA_BYTES``.
    """
    limit = settings.MAX_MEDIA_BYTES.get()
    if size_bytes > limit:
        raise FieldTooLarge(
            f"the field decodes to more than {limit} bytes (WDS_MAX_MEDIA_BYTES); videos can be read piece by piece: "
            "decode with wds.video or wds.video_clips"
        )
