"""Says what a field holds: its kind by its name, and in one line text, JSON, sizes, shapes, else its first bytes.

Fields are looked at, never unpickled, and arrays are read from their headers.
"""

import ast
import functools
import json
from typing import Any, Final, NamedTuple

from webdataset.codecs.images import AUTO_IMAGE_EXTENSIONS, IMAGE_EXTENSIONS
from webdataset.codecs.media import AUDIO_EXTENSIONS, VIDEO_EXTENSIONS
from webdataset.inspection.image_header import IMAGE_FIELDS, read_image_size

TEXT_FIELDS = frozenset(
    (
        "txt",
        "text",
        "transcript",
        "md",
        "html",
        "xml",
        "csv",
        "tsv",
        "vtt",
        "srt",
        "caption",
        "cls",
        "cls2",
        "index",
        "inx",
        "id",
    )
)
"""Last components of the fields that hold text."""

JSON_FIELDS = frozenset(("json", "jsn"))
LINE_FIELDS = frozenset(("jsonl", "ndjson", "yaml", "yml"))
"""Last components of the fields that hold text of another form."""
_SHOWN_BYTES = 16
_HEADER_BYTES = 4096
_JSON_BYTES = 1 << 20
_COMPRESSION: Final = frozenset(("gz", "bz2", "xz", "zst"))


def name_kind(field: str) -> str | None:
    """Return what a field holds, or None where its name does not tell.

    Args:
        field: its name; extensions of compression at its end do not count.

    Returns:
        ``image``, ``audio``, ``video``, ``text``, ``json``, ``html``, ``svg``, ``class``, ``number``, ``array`` or
        ``pickle``.
    """
    parts = field.lower().split(".")
    while len(parts) > 1 and parts[-1] in _COMPRESSION:
        parts.pop()
    return list_kinds().get(parts[-1])


@functools.cache
def list_kinds() -> dict[str, str]:
    """Return the last component of a field's name to what it holds."""
    found = dict.fromkeys((*IMAGE_EXTENSIONS, *AUTO_IMAGE_EXTENSIONS, *IMAGE_FIELDS), "image")
    found |= dict.fromkeys(AUDIO_EXTENSIONS.split(), "audio")
    found |= dict.fromkeys(VIDEO_EXTENSIONS.split(), "video")
    found |= dict.fromkeys((*TEXT_FIELDS, "yaml", "yml", "jsonl", "ndjson", "log", "py", "js", "css", "xhtml"), "text")
    found |= dict.fromkeys(JSON_FIELDS, "json")
    for kind, words in {
        "html": "html htm xhtml",
        "svg": "svg svgz",
        "class": "cls cls2 class index inx id",
        "number": "count num number float int",
        "array": "npy npz ten tb tenbin safetensors",
        "pickle": "pyd pkl pickle pth pt ckpt joblib",
    }.items():
        found |= dict.fromkeys(words.split(), kind)
    return found


class FieldPreview(NamedTuple):
    """What a field looks like.

    Args:
        kind: ``text``, ``json``, ``image``, ``array`` or ``bytes``.
        text: one line about it.
        size_bytes: of its payload.
        width: of an image, in pixels, else None.
        height: of an image, in pixels, else None.
    """

    kind: str
    text: str
    size_bytes: int
    width: int | None = None
    height: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the parts that are known."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def preview_field(field: str, payload: bytes, *, width: int = 100) -> FieldPreview:
    """Return what a field looks like.

    Args:
        field: its full extension.
        payload: its bytes.
        width: columns of the text; longer texts are cut, with dots.
    """
    ending = field.rpartition(".")[2]
    size = len(payload)
    if ending in JSON_FIELDS and size <= _JSON_BYTES:
        try:
            text = json.dumps(json.loads(payload), ensure_ascii=False)
            return FieldPreview("json", shorten(text, width), size)
        except (ValueError, RecursionError) as error:
            return FieldPreview("bytes", shorten(f"no JSON: {error}", width), size)
    if ending in IMAGE_FIELDS:
        found = read_image_size(payload)
        if found is not None:
            return FieldPreview("image", f"{found[0]} x {found[1]}", size, *found)
    if ending == "npy":
        outline = _outline_array(payload)
        if outline is not None:
            return FieldPreview("array", shorten(outline, width), size)
    if ending in TEXT_FIELDS or ending in JSON_FIELDS or ending in LINE_FIELDS:
        try:
            text = payload[: 4 * width].decode("utf-8")
        except UnicodeDecodeError as error:
            text = payload[: error.start].decode("utf-8") if error.start > size - 4 or error.start > width else ""
        if text or not payload:
            return FieldPreview("text", shorten(" ".join(text.split()), width), size)
    return FieldPreview("bytes", _outline_bytes(payload), size)


def shorten(text: str, width: int) -> str:
    """Return a text of at most so many columns, with dots where it was cut.

    Args:
        text: one line.
        width: columns.
    """
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."


def _outline_array(payload: bytes) -> str | None:
    found = read_npy_header(payload)
    return None if found is None else f"{found[0]}{list(found[1])}"


def read_npy_header(payload: bytes) -> tuple[str, tuple[int, ...]] | None:
    """Return dtype and shape by the header of an npy file (NEP 1), or None where this is none.

    Args:
        payload: an npy file, or enough of its start.
    """
    if not payload.startswith(b"\x93NUMPY") or len(payload) < 12:
        return None
    large = payload[6] > 1
    start = 12 if large else 10
    length = int.from_bytes(payload[8:start], "little")
    try:
        header = ast.literal_eval(payload[start : start + min(length, _HEADER_BYTES)].decode("latin-1").strip())
        return str(header["descr"]), tuple(int(side) for side in header["shape"])
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError, OverflowError):
        return None


def _outline_bytes(payload: bytes) -> str:
    shown = payload[:_SHOWN_BYTES].hex(" ")
    return f"{shown} ..." if len(payload) > _SHOWN_BYTES else shown
