"""Decodes fields to find those that do not decode, as the readers of this library would, within their limits.

Pickles go through the allow-list and its checks, at trust level ``safe`` at most: nothing that they name is called
unless it is on the list. Images, sound and videos are decoded whole; formats whose package is not installed are told
of once. The value is thrown away.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from webdataset.codecs.compression import decompress
from webdataset.codecs.handlers import auto_decoder_for, decoder_for
from webdataset.codecs.images import AUTO_IMAGE_EXTENSIONS, IMAGE_EXTENSIONS
from webdataset.codecs.media import AUDIO_EXTENSIONS, VIDEO_EXTENSIONS
from webdataset.core import settings
from webdataset.core.errors import DecodingError, FieldTooLarge, MissingExtra, UnsafeContent, describe_error
from webdataset.tar.header import describe_content

_COMPRESSION: Final = frozenset(["gz", "bz2", "xz", "zst"])
# Pillow knows that they are images, and needs other programs to decode them
_NOT_DECODED: Final = frozenset(
    ("bufr", "grib", "hdf", "wmf", "emf", "eps", "ps", "fit", "fits", "im", "pcd", "fli", "flc", "gbr", "mpg", "mpeg")
)
_TABLES: Final = {
    "bad-text": "txt text transcript",
    "bad-number": "cls cls2 index inx id",
    "bad-json": "json jsn jsonl ndjson",
    "bad-structure": "mp msg msgpack cbor yaml yml",
    "bad-array": "npy npz ten tb tenbin safetensors",
    "bad-pickle": "pyd pkl pickle pth",
}
_CODES: Final = {extension: code for code, words in _TABLES.items() for extension in words.split()}

# what files of some kinds start with, and the extensions under which they are at home
_STARTS: Final = (
    (b"\xff\xd8\xff", "a JPEG image", frozenset(["jpg", "jpeg", "jpe", "jfif", "mpo"])),
    (b"\x89PNG\r\n\x1a\n", "a PNG image", frozenset(["png", "apng"])),
    (b"GIF8", "a GIF image", frozenset(["gif"])),
    (b"fLaC", "a FLAC file", frozenset(["flac"])),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM file", frozenset(["mkv", "webm", "mka"])),
)
_HOMES: Final = frozenset[str]().union(*(home for _, _, home in _STARTS)) | frozenset(
    ["webp", "bmp", "tif", "tiff", "wav", "mp4", "m4a", "mp3", "ogg"]
)


class FieldFault(NamedTuple):
    """What is wrong with a field.

    Args:
        code: of the finding.
        message: what is wrong.
    """

    code: str
    message: str


class FieldCheck(NamedTuple):
    """How fields of one extension are checked.

    Args:
        code: of the finding where one does not decode.
        decode: takes the bytes and raises.
        extension: the last component of the field's name, compression left out.
        compression: what is taken off first, outermost first.
    """

    code: str
    decode: Callable[[bytes], Any]
    extension: str
    compression: tuple[str, ...] = ()


@functools.cache
def _extensions() -> dict[str, str]:
    """Return the code of each extension of media."""
    found = {each: "bad-image" for each in (*IMAGE_EXTENSIONS, *AUTO_IMAGE_EXTENSIONS) if each not in _NOT_DECODED}
    found |= dict.fromkeys(AUDIO_EXTENSIONS.split(), "bad-audio")
    found |= dict.fromkeys(VIDEO_EXTENSIONS.split(), "bad-video")
    return found


def _decode_image(data: bytes) -> None:
    from webdataset.codecs.images.decode import decode_pixels  # noqa: PLC0415  needs numpy and Pillow

    decode_pixels(data, "RGB")


def _decode_sound(data: bytes) -> None:
    from webdataset.codecs.media.audio_codec import sound_loads  # noqa: PLC0415  needs numpy

    sound_loads(data)


def _decode_video(data: bytes) -> None:
    from webdataset.codecs.images.decode import check_size  # noqa: PLC0415  needs numpy
    from webdataset.codecs.media.container import open_container  # noqa: PLC0415

    with open_container(data, "decoding video") as container:
        if not container.streams.video:
            raise DecodingError("the file has no video track")
        count = 0
        for frame in container.decode(container.streams.video[0]):
            check_size(frame.width, frame.height)
            count += 1
    if not count:
        raise DecodingError("the video has no frames")


_MEDIA: Final = {"bad-image": _decode_image, "bad-audio": _decode_sound, "bad-video": _decode_video}


def _keep(data: bytes) -> bytes:
    return data


def find_field_check(field: str) -> FieldCheck | None:
    """Return how fields of a name are checked, or None where there is nothing to decode.

    Args:
        field: the field's name in lower case, such as ``seg.png`` or ``json.gz``.
    """
    parts = field.lower().split(".")
    layers = []
    while len(parts) > 1 and parts[-1] in _COMPRESSION:
        layers.append(parts.pop())
    extension = parts[-1]
    code = _CODES.get(extension) or _extensions().get(extension)
    if code is None:
        return FieldCheck("bad-compressed-field", _keep, extension, tuple(layers)) if layers else None
    decode = _MEDIA.get(code) or decoder_for(extension, "safe") or auto_decoder_for(extension)
    return None if decode is None else FieldCheck(code, decode, extension, tuple(layers))


def check_field(check: FieldCheck, data: bytes) -> FieldFault | None:
    """Decode one field; return what is wrong with it, or None.

    Args:
        check: of the field's name.
        data: its bytes.
    """
    try:
        for kind in check.compression:
            data = decompress(data, kind, settings.MAX_FIELD_BYTES.get())
    except Exception as error:  # noqa: BLE001  whatever a decompressor raises is the finding
        return FieldFault(_name_fault(error, "bad-compressed-field"), describe_error(error))
    try:
        check.decode(data)
    except Exception as error:  # noqa: BLE001  whatever a decoder raises is the finding
        code = _name_fault(error, check.code)
        return FieldFault(code, _explain(check, data, error) if code == check.code else describe_error(error))
    return _compare_start(check.extension, data)


@functools.lru_cache(1000)
def judge_empty(check: FieldCheck) -> FieldFault | None:
    """Return what is wrong with a field without bytes; None where it decodes, as a text does, or cannot be tried.

    Args:
        check: of the field's name.
    """
    fault = check_field(check, b"")
    return fault if fault is not None and fault.code != "not-checked" else None


def _name_fault(error: Exception, code: str) -> str:
    """Return the code of what a decoder raised."""
    if isinstance(error, MissingExtra):
        return "not-checked"
    if isinstance(error, FieldTooLarge):
        return "too-large"
    return "unsafe-pickle" if isinstance(error, UnsafeContent) and code == "bad-pickle" else code


def _explain(check: FieldCheck, data: bytes, error: Exception) -> str:
    if not data:
        return f"the {check.extension} field has no bytes"
    found = None
    if check.code in _MEDIA and not _has_start_of(check.extension, data):
        found = describe_content(data[:512])
    if found is not None:
        # what follows the name is advice about shards
        return f"its content is {re.split('[;:,]', found)[0]}, and its extension is {check.extension!r}"
    return f"it does not decode: {describe_error(error)}"


def _has_start_of(extension: str, data: bytes) -> bool:
    """Tell whether a field starts as its extension says."""
    return any(extension in home and data.startswith(start) for start, _, home in _STARTS)


def _compare_start(extension: str, data: bytes) -> FieldFault | None:
    if extension not in _HOMES:
        return None
    for start, name, home in _STARTS:
        if data.startswith(start) and extension not in home:
            return FieldFault("wrong-content", f"its content is {name}, and its extension is {extension!r}")
    return None
