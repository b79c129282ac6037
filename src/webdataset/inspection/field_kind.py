"""What a field holds, by its name."""

import functools
from typing import Final

from webdataset.codecs.images import AUTO_IMAGE_EXTENSIONS, IMAGE_EXTENSIONS
from webdataset.codecs.media import AUDIO_EXTENSIONS, VIDEO_EXTENSIONS
from webdataset.inspection.field_preview import JSON_FIELDS, TEXT_FIELDS
from webdataset.inspection.image_header import IMAGE_FIELDS

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
    return _list_kinds().get(parts[-1])


@functools.cache
def _list_kinds() -> dict[str, str]:
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
