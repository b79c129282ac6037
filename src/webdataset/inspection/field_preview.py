"""Says in one line what a field holds: text, JSON, the size of an image, the shape of an array, else its first bytes.

Fields are looked at, never unpickled, and arrays are read from their headers.
"""

import ast
import json
from typing import Any, NamedTuple

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
