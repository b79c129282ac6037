"""What the modules of the limited process have in common: contents of fields, and why there is no preview."""

import io
from typing import TYPE_CHECKING, Final

from webdataset.codecs.compression import decompress
from webdataset.codecs.media.container import open_container
from webdataset.core.errors import DecodingError
from webdataset.core.optional_imports import require

if TYPE_CHECKING:
    from av.container import InputContainer

ARRAYS: Final = frozenset(("npy", "npz", "safetensors", "ten", "tb", "tenbin"))
_MOST_CONTENT_BYTES: Final = 128 << 20
_COMPRESSION: Final = frozenset(("gz", "bz2", "xz", "zst"))
_MOST_PIXEL_BYTES: Final = 1 << 30
_IMAGE_BRANDS: Final = (b"hei", b"hev", b"mif", b"msf", b"avi")


class NoPreview(DecodingError):
    """Why there is no preview; the message is for people."""


def strip_compression(name: str, payload: bytes) -> tuple[str, bytes]:
    """Take compression off a field; return its extension in lower case and its content.

    Args:
        name: the field's name.
        payload: its bytes.

    Raises:
        BadCompression: damaged, or it grows too large.
    """
    parts = name.lower().split(".")
    while len(parts) > 1 and parts[-1] in _COMPRESSION:
        payload = decompress(payload, parts.pop(), _MOST_CONTENT_BYTES)
    return parts[-1], payload


def is_video(content: bytes) -> bool:
    """Tell whether the first bytes are those of a Matroska, WebM or MP4 file (and not of a HEIF or AVIF image).

    Args:
        content: a file, or its beginning.
    """
    return content.startswith(b"\x1aE\xdf\xa3") or (content[4:8] == b"ftyp" and content[8:11] not in _IMAGE_BRANDS)


def check_pixel_bytes(width: int, height: int, bands: int) -> None:
    """Refuse an image that would take more memory than this process has, however many pixels a user allows.

    Args:
        width: pixels.
        height: pixels.
        bands: bytes of a pixel.

    Raises:
        NoPreview: more than 1 GiB.
    """
    size_bytes = width * height * bands
    if size_bytes > _MOST_PIXEL_BYTES:
        raise NoPreview(f"its {width} x {height} pixels need {size_bytes} bytes of memory, more than previews may use")


def open_media(content: bytes, form: str | None = None, *, partial: bool = False) -> "InputContainer":
    """Open a media file; one that is only the beginning of a field is not compared with its stated length.

    Args:
        content: its bytes.
        form: its format, of which these bytes are a part from anywhere; None: what they look like.
        partial: these are only the first bytes.

    Raises:
        OSError: no media file that ffmpeg knows; PyAV's errors are ``ValueError`` or ``OSError``.
    """
    if form is None and not partial:
        return open_container(content, "showing sound and videos")
    library = require("av", extra="media", purpose="showing sound and videos")
    container: InputContainer = library.open(io.BytesIO(content), format=form, options={"protocol_whitelist": "none"})
    return container
