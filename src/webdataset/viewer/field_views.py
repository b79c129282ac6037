"""Describes a field for the page: what kind of content it holds, and as much of it as a card or a detail view shows.

The kind follows from the extension and the first bytes together; where they disagree, the bytes win and ``note`` says
so. A card reads at most 64 KiB at the head of a field. Pickles are never loaded, pictures and sound are never decoded
here (``previews`` does, in a process of its own), and whatever bytes come, the result is plain JSON of bounded size
and depth: texts without lone surrogates, numbers that JavaScript can hold.
"""

import codecs
import re
from collections.abc import Callable
from typing import Final

from webdataset.codecs.json_codec import json_loads
from webdataset.core.errors import BadCompression, MissingExtra, describe_error
from webdataset.inspection.field_preview import name_kind, read_npy_header
from webdataset.inspection.image_header import read_image_size
from webdataset.inspection.media_header import read_media_header
from webdataset.tar.compression import Decompressor
from webdataset.viewer.array_headers import list_arrays
from webdataset.viewer.documents import is_document
from webdataset.viewer.plain_values import JsonObject, bound_json, clean_text, decode_text, parse_scalar

Read = Callable[[int, int], bytes]
"""Reads a range of a field: first byte, and the byte after the last."""

CARD_BYTES: Final = 64 << 10
TEXT_BYTES: Final = 256 << 10
JSON_BYTES: Final = 1 << 20
DOCUMENT_BYTES: Final = 16 << 20
"""What the JSON of a document may have: it may hold its images."""
MEDIA_TYPES: Final = {
    "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
    "bmp": "image/bmp", "avif": "image/avif", "wav": "audio/wav", "flac": "audio/flac", "mp3": "audio/mpeg",
    "ogg": "audio/ogg", "opus": "audio/ogg", "m4a": "audio/mp4", "mp4": "video/mp4", "webm": "video/webm",
    "mov": "video/quicktime", "mkv": "video/x-matroska",
}  # fmt: skip
"""What fields may be sent as, by the end of their names; everything else is sent as bytes to be saved."""
_SNIFFED_BYTES: Final = 4096
_CARD_CHARACTERS: Final = 300
_DOCUMENT_NAMES: Final = re.compile(rb'"(text_list|texts|image_info|images|matched_text_ind(?:ex|ices))"\s*:')
_COMPRESSION: Final = frozenset(("gz", "bz2", "xz", "zst"))
# formats of images that are texts
_TEXT_IMAGES: Final = frozenset(("xpm", "xbm", "ppm", "pgm", "pbm", "pnm", "ps", "eps"))
_MEDIA: Final = ("image", "audio", "video", "array")
_WORDS: Final = {
    "image": "an image", "audio": "sound", "video": "a video", "array": "an array", "html": "an HTML page",
    "svg": "an SVG drawing", "text": "text", "json": "JSON", "class": "a class", "number": "a number",
}  # fmt: skip


class _Content:
    """The first bytes of a field, its compression taken off.

    Args:
        name: of the field.
        size_bytes: as stored.
        read: reads a range of it.

    Attributes:
        extension: the last component of the name before those of compression, in lower case.
        size_bytes: of the content; None where it is compressed and its end was not seen.
        problem: why there is nothing to see, or None.
        compressed: whether compression was taken off.
    """

    def __init__(self, name: str, size_bytes: int, read: Read) -> None:
        parts = name.lower().split(".")
        self.layers: list[str] = []
        while len(parts) > 1 and parts[-1] in _COMPRESSION:
            self.layers.append(parts.pop())
        if parts[-1] == "svgz":
            self.layers.append("gz")
        self.extension = parts[-1]
        self.compressed = bool(self.layers)
        self.size_bytes: int | None = None if self.layers else size_bytes
        self.problem: str | None = None
        self._stored_bytes = size_bytes
        self._read = read
        self._known = b""

    def head(self, count: int) -> bytes:
        """Return the first bytes, at most so many."""
        if self.problem is not None:
            return b""
        if not self.layers:
            count = min(count, self._stored_bytes)
            if len(self._known) < count:
                self._known = bytes(self._read(0, count))
            return self._known[:count]
        if len(self._known) < count and self.size_bytes is None:
            self._expand(count)
        return self._known[:count]

    def read(self, start: int, stop: int) -> bytes:
        """Return a range of a field that is not compressed."""
        return bytes(self._read(start, min(stop, self._stored_bytes)))

    def is_whole(self, count: int) -> bool:
        """Tell whether ``head(count)`` is all of it."""
        return self.size_bytes is not None and self.size_bytes <= count

    def _expand(self, count: int) -> None:
        """Decompress the first bytes, one layer after the other, each to what is needed."""
        stored = min(self._stored_bytes, max(CARD_BYTES, count))
        content = bytes(self._read(0, stored))
        whole = stored == self._stored_bytes
        try:
            for layer in self.layers:
                content, whole = _decompress_head(content, layer, max(CARD_BYTES, count) + 1, whole=whole)
        except (BadCompression, MissingExtra) as error:
            self.problem = error.message
            return
        self._known = content
        if whole:
            self.size_bytes = len(content)


def _decompress_head(content: bytes, kind: str, most: int, *, whole: bool) -> tuple[bytes, bool]:
    """Return at most so many decompressed bytes, and whether these are all."""
    engine = Decompressor(kind)
    found = bytearray()
    for start in range(0, len(content), _SNIFFED_BYTES):
        for piece in engine.feed(content[start : start + _SNIFFED_BYTES]):
            found += piece
            if len(found) >= most:
                return bytes(found[:most]), False
    if whole:
        engine.finish()
    return bytes(found), whole


def describe_field(name: str, size_bytes: int, read: Read) -> JsonObject:
    """Return what a card shows of a field.

    Args:
        name: the field's name (full extension).
        size_bytes: of its payload.
        read: ``read(start, stop)`` returns bytes of the payload; asked for at most 64 KiB at its head.

    Returns:
        ``name``, ``size_bytes`` and ``kind``; where known ``media`` (width and height in pixels, ``duration_seconds``,
        ``rate`` in Hz, ``channels``, ``shape``, ``dtype``), ``text`` of at most 300 characters, ``value`` (a scalar),
        ``truncated``, ``encoding`` where it is not UTF-8, and ``note``: what is odd about it.
    """
    return _describe(_Content(name, size_bytes, read), name, size_bytes)


def describe_full(name: str, size_bytes: int, read: Read) -> JsonObject:
    """Return what the detail view shows of a field.

    Args:
        name: the field's name (full extension).
        size_bytes: of its payload.
        read: ``read(start, stop)`` returns bytes of the payload.

    Returns:
        As :func:`describe_field`, with ``text`` of up to 256 KiB, ``json`` (the value of JSON of up to 1 MiB), and
        ``arrays`` (name, shape and dtype of what npy, npz and safetensors hold, from their headers).
    """
    content = _Content(name, size_bytes, read)
    card = _describe(content, name, size_bytes)
    kind = str(card["kind"])
    if content.problem is not None:
        return card
    if kind in ("text", "html", "svg", "class", "number"):
        card.update(_decode_text(content, TEXT_BYTES, None))
    elif kind in ("json", "document"):
        card.update(_parse_json(content, DOCUMENT_BYTES if kind == "document" else JSON_BYTES, full=True))
    elif kind == "array" and not content.compressed:
        arrays, problem = list_arrays(content.extension, size_bytes, content.read)
        card["arrays"] = arrays
        if problem is not None:
            card["note"] = problem
    elif kind in ("audio", "video") and not content.compressed:
        media = read_media_header(content.head(CARD_BYTES), size_bytes, content.read)
        if media:
            card["media"] = media
    return card


def _describe(content: _Content, name: str, size_bytes: int) -> JsonObject:
    head = content.head(_SNIFFED_BYTES)
    kind, note = _choose_kind(content, head)
    card: JsonObject = {"name": clean_text(name), "size_bytes": size_bytes, "kind": kind}
    if content.problem is not None:
        card["note"] = content.problem
        return card
    if note is not None:
        card["note"] = note
    if not head and size_bytes == 0:
        card["note"] = "it has no bytes"
    describe = _DESCRIBERS.get(kind)
    if describe is not None:
        card.update(describe(content))
    return card


def _choose_kind(content: _Content, head: bytes) -> tuple[str, str | None]:
    """Return the kind of a field, and what is odd about it."""
    stated = name_kind(content.extension)
    if content.problem is not None:
        return stated or "binary", None
    if stated == "pickle":
        return "pickle", None
    found = _recognize(head)
    if stated is None:
        return found or ("text" if head and _is_text(head, whole=content.is_whole(len(head))) else "binary"), None
    if found is None and stated in _MEDIA and content.extension not in _TEXT_IMAGES and head:
        found = "text" if _is_text(head, whole=content.is_whole(len(head))) else None
    if found is None or found == stated or {found, stated} <= {"audio", "video"} or not _contradicts(stated, found):
        return stated, None
    return found, f"its content is {_WORDS[found]}, and its extension {content.extension!r} says {_WORDS[stated]}"


def _contradicts(stated: str, found: str) -> bool:
    """Tell whether content of one kind under the extension of another is worth a word."""
    return stated in _MEDIA or found in _MEDIA or (stated != "text" and found in ("html", "svg"))


def _recognize(head: bytes) -> str | None:
    """Return the kind that the first bytes show, or None."""
    found = next((kind for start, kind in _STARTS if head.startswith(start)), None)
    if found is None and head[:4] in (b"RIFF", b"FORM"):
        found = _RIFF_KINDS.get(head[8:12])
    if found is None and head[4:8] == b"ftyp":
        brand = head[8:11]
        found = "image" if brand in _IMAGE_BRANDS else "audio" if brand in (b"M4A", b"M4B") else "video"
    if found is None and _is_markup(head):
        is_drawing = b"<svg" in head.lower() and b"<html" not in head.lower()
        return "svg" if is_drawing else _recognize_html(head)
    # two letters are too few to tell a BMP
    return "image" if found is None and head[:2] != b"BM" and read_image_size(head) is not None else found


_RIFF_KINDS: Final = {b"WAVE": "audio", b"WEBP": "image", b"AVI ": "video", b"AIFF": "audio", b"AIFC": "audio"}
_IMAGE_BRANDS: Final = (b"hei", b"hev", b"mif", b"msf", b"avi")
_STARTS: Final = (
    (b"\x89PNG\r\n\x1a\n", "image"),
    (b"\xff\xd8\xff", "image"),
    (b"GIF87a", "image"),
    (b"GIF89a", "image"),
    (b"II*\0", "image"),
    (b"MM\0*", "image"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "image"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "image"),
    (b"fLaC", "audio"),
    (b"OggS", "audio"),
    (b"ID3", "audio"),
    (b"\x1aE\xdf\xa3", "video"),
    (b"\x93NUMPY", "array"),
)


def _is_markup(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def _recognize_html(head: bytes) -> str | None:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return "html" if start.startswith((b"<!doctype html", b"<html", b"<head", b"<script", b"<body")) else None


def _is_text(head: bytes, *, whole: bool) -> bool:
    """Tell whether bytes are UTF-8 (or UTF-16 with its mark) without control characters."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    try:
        text = codecs.getincrementaldecoder("utf-8")("strict").decode(head, final=whole)
    except UnicodeDecodeError:
        return False
    return not re.search("[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]", text)


def _describe_image(content: _Content) -> JsonObject:
    found = read_image_size(content.head(_SNIFFED_BYTES)) or read_image_size(content.head(CARD_BYTES))
    return {"media": {"width": found[0], "height": found[1]}} if found is not None else {}


def _describe_text(content: _Content) -> JsonObject:
    return _decode_text(content, 4 * _CARD_CHARACTERS, _CARD_CHARACTERS)


def _describe_scalar(content: _Content) -> JsonObject:
    found = _describe_text(content)
    if not found.get("truncated"):
        found["value"] = parse_scalar(found["text"])
    return found


def _describe_audio(content: _Content) -> JsonObject:
    head = content.head(CARD_BYTES)
    media = read_media_header(head, content.size_bytes if content.size_bytes is not None else len(head), None)
    return {"media": media} if media else {}


def _describe_array(content: _Content) -> JsonObject:
    found = read_npy_header(content.head(CARD_BYTES))
    return {} if found is None else {"media": {"shape": list(found[1]), "dtype": found[0]}}


def _describe_json(content: _Content) -> JsonObject:
    return _parse_json(content, CARD_BYTES, full=False)


def _describe_pickle(content: _Content) -> JsonObject:
    head = content.head(16)
    if head[:2] == b"PK":
        return {"note": "a zip file of PyTorch; pickles are never loaded here"}
    protocol = f" (protocol {head[1]})" if len(head) > 1 and head[0] == 0x80 and head[1] < 16 else ""
    return {"note": f"pickles are never loaded here{protocol}"}


_DESCRIBERS: Final[dict[str, Callable[[_Content], JsonObject]]] = {
    "image": _describe_image,
    "text": _describe_text,
    "html": _describe_text,
    "svg": _describe_text,
    "class": _describe_scalar,
    "number": _describe_scalar,
    "audio": _describe_audio,
    "video": _describe_audio,
    "array": _describe_array,
    "json": _describe_json,
    "pickle": _describe_pickle,
}


def _decode_text(content: _Content, most_bytes: int, most_characters: int | None) -> JsonObject:
    """Return text, whether it was cut, and its encoding where that is not plain UTF-8."""
    head = content.head(most_bytes)
    whole = content.is_whole(most_bytes)
    text, encoding = decode_text(head, whole=whole)
    truncated = not whole
    if most_characters is not None and len(text) > most_characters:
        text, truncated = text[:most_characters], True
    found: JsonObject = {"text": text}
    found["truncated"] = truncated
    if encoding is not None:
        found["encoding"] = encoding
    return found


def _parse_json(content: _Content, most_bytes: int, *, full: bool) -> JsonObject:
    """Return what a JSON field shows; a document is told by its form."""
    head = content.head(most_bytes)
    if not content.is_whole(most_bytes):
        found = _decode_text(content, TEXT_BYTES if full else 4 * _CARD_CHARACTERS, None if full else _CARD_CHARACTERS)
        if _looks_like_document(head[:CARD_BYTES]):
            found["kind"] = "document"
        return found
    try:
        record = json_loads(head)
    except (ValueError, RecursionError) as error:
        found = _decode_text(content, TEXT_BYTES if full else 4 * _CARD_CHARACTERS, None if full else _CARD_CHARACTERS)
        reason = f"it is no JSON: {clean_text(describe_error(error))[:200]}"
        return {**found, "note": "it is nested too deeply" if isinstance(error, RecursionError) else reason}
    return _show_json(record, head, full=full)


def _show_json(record: object, head: bytes, *, full: bool) -> JsonObject:
    value, complete = bound_json(record)
    found: JsonObject = {"kind": "document" if is_document(record) else "json"}
    if not isinstance(value, dict | list):
        found["value"] = value[:_CARD_CHARACTERS] if isinstance(value, str) else value
    if full:
        found["json"] = value
        found["truncated"] = not complete
    text = " ".join(decode_text(head[: 8 * _CARD_CHARACTERS], whole=False)[0].split())
    found["text"] = text[:_CARD_CHARACTERS]
    if not full:
        found["truncated"] = len(text) > _CARD_CHARACTERS or len(head) > 8 * _CARD_CHARACTERS
    return found


def _looks_like_document(head: bytes) -> bool:
    """Tell whether the head of JSON names what documents have."""
    names = {match[1].decode("ascii") for match in _DOCUMENT_NAMES.finditer(head)}
    texts = names & {"text_list", "texts"}
    return bool(texts and names - {"text_list", "texts"})
