"""Interleaved documents made to order, in every layout in which they are met, and what they read back as.

Texts and pictures become members of a shard and the parts of a document, without the library's own reader and writer,
so that both can be checked.
"""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from webdataset.core.optional_imports import require

Members = list[tuple[str, bytes]]


class Picture(NamedTuple):
    """One image of a document.

    Args:
        name: what the JSON calls it.
        text: index of the text that it is matched to.
        image: its bytes.
        similarity: to that text.
    """

    name: str
    text: int
    image: bytes
    similarity: float = 0.3


class Spec(NamedTuple):
    """A document to be stored.

    Args:
        key: its key.
        texts: in order.
        pictures: in the order of the JSON.
    """

    key: str
    texts: Sequence[str]
    pictures: Sequence[Picture]


def mmc4(spec: Spec, *, inline: bool = False) -> bytes:
    """Return the JSON of MMC4.

    Args:
        spec: the document.
        inline: put the images into it.
    """
    entries = []
    for picture in spec.pictures:
        entry: dict[str, object] = {
            "image_name": picture.name,
            "raw_url": f"https://example.org/{picture.name}",
            "matched_text_index": picture.text,
            "matched_sim": picture.similarity,
        }
        if inline:
            entry["image_base64"] = base64.b64encode(picture.image).decode()
        entries.append(entry)
    matrix = [[picture.similarity + column for column in range(len(spec.texts))] for picture in spec.pictures]
    record = {"url": f"https://example.org/{spec.key}", "text_list": list(spec.texts), "image_info": entries}
    return json.dumps({**record, "similarity_matrix": matrix, "could_have_url_duplicate": 0}).encode()


def siblings(spec: Spec) -> Members:
    """Return ``D.json`` and ``D-<name>.jpg``, the JSON first."""
    named = {picture.name.rpartition("/")[2].rpartition(".")[0]: picture for picture in spec.pictures}
    images = [(f"{spec.key}-{name}.jpg", picture.image) for name, picture in named.items()]
    return [(f"{spec.key}.json", mmc4(spec)), *images]


def inline(spec: Spec) -> Members:
    """Return ``D.json`` with the images in base64."""
    return [(f"{spec.key}.json", mmc4(spec, inline=True))]


def fields(spec: Spec) -> Members:
    """Return ``D.json`` and ``D.0.jpg``, ``D.1.jpg`` …, by number."""
    images = [(f"{spec.key}.{number}.jpg", picture.image) for number, picture in enumerate(spec.pictures)]
    return [(f"{spec.key}.json", mmc4(spec)), *images]


def sequence(spec: Spec) -> list[tuple[str, Any]]:
    """Return the document in order: ("text", text) and ("image", picture); images stand before their texts."""
    parts: list[tuple[str, Any]] = []
    for number, text in enumerate(spec.texts):
        parts += [("image", picture) for picture in spec.pictures if picture.text == number]
        parts.append(("text", text))
    return parts


def pages(spec: Spec, sizes: Sequence[tuple[int, int]], *, compression: str | None = None) -> Members:
    """Return ``D.json`` with the parallel lists of MINT-1T, and ``D.tiff`` with one page for each image.

    Args:
        spec: the document; its images' bytes are not used.
        sizes: (width, height) of each image, in the order of the JSON.
        compression: Pillow's name of a TIFF compression.
    """
    pillow = require("PIL.Image", extra="images", purpose="making TIFF files")
    order = [part for kind, part in sequence(spec) if kind == "image"]
    texts = [part if kind == "text" else None for kind, part in sequence(spec)]
    images = [part.name if kind == "image" else None for kind, part in sequence(spec)]
    by_name = dict(zip((picture.name for picture in spec.pictures), sizes, strict=True))
    frames = [pillow.new("RGB", by_name[picture.name], (number, 7, 9)) for number, picture in enumerate(order)]
    stream = io.BytesIO()
    frames[0].save(stream, "TIFF", save_all=True, append_images=frames[1:], compression=compression)
    record = {
        "texts": texts,
        "images": images,
        "image_metadata": [{"width": frame.width, "height": frame.height, "page": 0} for frame in frames],
        "pdf_name": f"{spec.key}.pdf",
    }
    return [(f"{spec.key}.json", json.dumps(record).encode()), (f"{spec.key}.tiff", stream.getvalue())]


def shown(document: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the parts of a document that was read, as (type, text or image)."""
    return [(part["type"], part[part["type"]]) for part in document["parts"]]


def expected(spec: Spec) -> list[tuple[str, object]]:
    """Return what ``shown`` gives for a document."""
    return [(kind, part.image if kind == "image" else part) for kind, part in sequence(spec)]
