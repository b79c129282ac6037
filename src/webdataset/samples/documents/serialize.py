"""Serializes a document: the JSON that describes it, and its images by name.

The input is a :class:`~webdataset.samples.documents.document.Document`, or any dict with ``parts``, or with
``images``, ``text_list`` and ``matched_text_index``; the output is a :class:`SerializedDocument`. Reading it gives
the same document back; where that is impossible, serializing is an error. This module never encodes an image.
"""

import re
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

from webdataset.core.errors import SampleError
from webdataset.samples.documents.document import DOCUMENT_FIELDS, stem

Record = dict[str, Any]
FORMS = ("auto", "matched", "parallel")
_SIMPLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_RESERVED = {
    "matched": ("text_list", "image_info"),
    "parallel": (
        *("texts", "images", "text_list", "image_info"),
        *("image_metadata", "matched_text_index", "matched_text_indices"),
    ),
}
_ENTRY = ("image_name", "member", "image_base64", "matched_sim")


class Illustration(NamedTuple):
    """An image of a document that is to be filed.

    Args:
        image: bytes, or a value that has to be encoded.
        name: what it is called, or None.
        field: the extension that it was stored under, or None.
        position: number of texts that stand before it.
        similarity: to the text it is matched to, or None.
        rest: what else is to be said about it.
    """

    image: Any
    name: str | None
    field: str | None
    position: int
    similarity: float | None
    rest: Record


class SerializedDocument(NamedTuple):
    """A document that can be written.

    Args:
        record: the JSON.
        entries: for each image what the JSON says about it; parts of ``record``, which may be added to.
        images: the images.
        fields: further fields of the sample.
    """

    record: Record
    entries: list[Record]
    images: list[Illustration]
    fields: Record


def serialize(document: Mapping[str, Any], form: str = "auto", place: str = "before") -> SerializedDocument:
    """Describe a document in JSON.

    Args:
        document: see the module.
        form: ``matched`` (MMC4: each image at a text), ``parallel`` (OBELICS: any order), or ``auto``: ``matched``
            where it can say all.
        place: an image that is matched to a text stands ``before`` or ``after`` it.

    Raises:
        SampleError: parts that do not fit each other, or that the form cannot say.
    """
    if not isinstance(document, Mapping):
        raise SampleError(f"a document is a dict, not {type(document).__name__}")
    texts, images = _take_parts(document, place)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise SampleError(f"text {number} is of type {type(text).__name__}, not str", field="text_list")
    behind = int(place == "after")
    matched = [image.position - behind for image in images]
    given = document.get("matched_text_index")
    says_all = all(0 <= text < len(texts) for text in matched) and (given is None or list(given) == matched)
    if form == "auto":
        form = "matched" if says_all else "parallel"
    elif form == "matched" and not says_all:
        raise SampleError("an image stands at no text, which form='matched' cannot say; use form='parallel'")
    if form == "parallel" and given is not None:
        last = len(texts) - 1
        if list(given) != [max(0, min(image.position, last)) for image in images]:
            raise SampleError("matched_text_index and parts do not agree: leave one out", field="matched_text_index")
    record, entries = (_to_matched_form if form == "matched" else _to_parallel_form)(texts, images, matched)
    record = {**_other_fields(document, form, len(images)), **record}
    fields = {
        name: value for name, value in document.items() if name not in DOCUMENT_FIELDS and not name.startswith("__")
    }
    return SerializedDocument(record, entries, images, fields)


def _take_parts(document: Mapping[str, Any], place: str) -> tuple[list[str], list[Illustration]]:
    if "parts" in document:
        return _from_parts(document)
    try:
        texts, images, matched = document["text_list"], document["images"], document["matched_text_index"]
    except KeyError as error:
        raise SampleError(
            f"a document has parts, or images, text_list and matched_text_index; this one has no {error}"
        ) from None
    if len(images) != len(matched):
        raise SampleError(f"{len(images)} images, and {len(matched)} in matched_text_index", field="matched_text_index")
    if not all(isinstance(text, Integral) and 0 <= text < len(texts) for text in matched):  # type: ignore[operator]
        raise SampleError(
            f"matched_text_index must hold whole numbers from 0 to {len(texts) - 1}, one for each image",
            field="matched_text_index",
        )
    behind = int(place == "after")
    order = sorted(range(len(images)), key=lambda number: matched[number])
    if order != list(range(len(images))):
        raise SampleError("matched_text_index does not ascend: sort the images by it", field="matched_text_index")
    return list(texts), [
        _illustration(document, number, {"image": image}, text + behind)
        for number, (image, text) in enumerate(zip(images, matched, strict=True))
    ]


def _from_parts(document: Mapping[str, Any]) -> tuple[list[str], list[Illustration]]:
    texts: list[str] = []
    images: list[Illustration] = []
    parts = document["parts"]
    if not isinstance(parts, Sequence) or isinstance(parts, str | bytes):
        raise SampleError(f"parts is of type {type(parts).__name__}, not a list", field="parts")
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "image") or kind not in part:
            raise SampleError(
                "a part is {'type': 'text', 'text': …} or {'type': 'image', 'image': …}", field=f"parts[{number}]"
            )
        if kind == "text":
            texts.append(part["text"])
        else:
            images.append(_illustration(document, len(images), part, len(texts)))
    for name, there in (("text_list", texts), ("images", images)):
        if name in document and len(document[name]) != len(there):
            raise SampleError(f"{len(there)} in parts, and {len(document[name])} in {name}", field=name)
    return texts, images


def _illustration(document: Mapping[str, Any], number: int, part: Mapping[str, Any], position: int) -> Illustration:
    index = part.get("index", number)
    if index != number:
        raise SampleError(f"image {number} of parts has index {index}: they count from 0", field="parts")
    rest = _read_column(document, "image_info", index) or {}
    wrong = [name for name in (*_ENTRY, "matched_text_index") if name in rest]
    if wrong:
        raise SampleError(f"image_info may not hold {wrong[0]}: the writer sets it", field=f"image_info[{index}]")
    similarity = _read_column(document, "matched_sim", index)
    return Illustration(part["image"], part.get("name"), part.get("field"), position, similarity, rest)


def _read_column(document: Mapping[str, Any], name: str, index: int) -> Any:
    values: Sequence[Any] | None = document.get(name)
    if values is None:
        return None
    if index >= len(values):
        raise SampleError(f"{name} has no entry for image {index}", field=name)
    return values[index]


def _image_entry(image: Illustration) -> Record:
    named = {} if image.name is None else {"image_name": image.name}
    similar = {} if image.similarity is None else {"matched_sim": image.similarity}
    return {**named, **image.rest, **similar}


def _to_matched_form(texts: list[str], images: list[Illustration], matched: list[int]) -> tuple[Record, list[Record]]:
    entries = [{**_image_entry(image), "matched_text_index": text} for image, text in zip(images, matched, strict=True)]
    return {"text_list": texts, "image_info": entries}, entries


def _to_parallel_form(texts: list[str], images: list[Illustration], matched: list[int]) -> tuple[Record, list[Record]]:  # noqa: ARG001
    entries = [_image_entry(image) for image in images]
    written: list[str | None] = []
    shown: list[Record | None] = []
    given = 0
    for image, entry in zip(images, entries, strict=True):
        written += [*texts[given : image.position], None]
        shown += [*[None] * (image.position - given), entry]
        given = image.position
    written += texts[given:]
    shown += [None] * (len(texts) - given)
    return {"texts": written, "images": shown}, entries


def _other_fields(document: Mapping[str, Any], form: str, count: int) -> Record:
    rest = document.get("json") or {}
    if not isinstance(rest, Mapping):
        raise SampleError(
            f"json is of type {type(rest).__name__}, not a dict: its names join the document's", field="json"
        )
    wrong = [name for name in _RESERVED[form] if name in rest]
    matrix = document.get("similarity_matrix")
    if matrix is not None and len(matrix) != count:
        raise SampleError(f"similarity_matrix has {len(matrix)} rows for {count} images", field="similarity_matrix")
    left = rest.get("similarity_matrix")
    if wrong or (left is not None and (matrix is not None or (isinstance(left, list) and len(left) == count))):
        name = wrong[0] if wrong else "similarity_matrix"
        raise SampleError(f"json may not hold {name}: it would be read back as a part of the document", field="json")
    return {**rest, **({} if matrix is None else {"similarity_matrix": matrix})}


def member_names(images: list[Illustration]) -> list[str]:
    """Return the names under which encoded images are filed: what they are called, else their number.

    An image that stands in several places, under one name, is filed once.
    """
    called = [stem(image.name or "") for image in images]
    first: dict[str, tuple[Any, ...]] = {}
    for name, image in zip(called, images, strict=True):
        here = (name, image.field, image.image)
        if not _SIMPLE.fullmatch(name) or first.setdefault(name.lower(), here) != here:
            return [str(number) for number in range(len(images))]
    return called
