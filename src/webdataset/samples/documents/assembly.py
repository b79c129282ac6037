"""One document put together: its texts and images in order, under the policies.

Flows in: a sample with a document's JSON, its outline, the places of its images, and the siblings that were found.
Flows out: a :class:`~webdataset.samples.documents.document.Document`, or None where the rules leave it out. Never reads
a shard, never decodes an image.
"""

import binascii
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from webdataset.ground.errors import DecodingError, MissingImage, SampleError, UsageError

from .document import MADE, Document, image_field
from .names import TIFF
from .outline import Outline, Slot
from .pages import tiff_pages
from .places import Place
from .rules import DocumentRules


class Picture(NamedTuple):
    """An image that was found.

    Args:
        slot: what the JSON says about it.
        image: its bytes; or its value, where it has been decoded.
        name: what it is called.
        field: what it is decoded as.
        unseen: it was no field, so that no ``decode`` before can have decoded it.
    """

    slot: Slot
    image: Any
    name: str
    field: str
    unseen: bool = False


class Gathered(NamedTuple):
    """All that belongs to a document.

    Args:
        sample: holds the JSON.
        outline: what that says.
        places: where each slot's image is.
        siblings: images in members of other keys: name behind the document's key to (field, image).
        left_out: counts what the rules leave out.
        advice: what to do where a sibling is missing.
    """

    sample: Mapping[str, Any]
    outline: Outline
    places: list[Place]
    siblings: Mapping[str, tuple[str, Any]]
    left_out: Counter[str]
    advice: str = ""


def pictures_of(gathered: Gathered, rules: DocumentRules) -> list[Picture] | None:
    """Return a document's images, in order.

    Args:
        gathered: all that belongs to it.
        rules: policies and limits.

    Returns:
        The images, or None where the rules leave the document out.

    Raises:
        MissingImage: an image is not there, and that is an error.
        DecodingError: base64 that is none.
        SampleError: parts that do not fit each other.
    """
    pictures = _pictures(gathered, rules)
    if pictures is None:
        return None
    pictures = _chosen(pictures, rules, gathered.left_out)
    if len(pictures) < rules.min_images:
        gathered.left_out["documents of few images"] += 1
        return None
    if len(pictures) > 1:
        pictures.sort(key=_order(gathered.outline, rules))
    return _limited(pictures, rules, gathered.left_out)


def _order(outline: Outline, rules: DocumentRules) -> Any:
    if outline.ordered or rules.ties == "json":
        return lambda picture: picture.slot.position
    return lambda picture: (picture.slot.position, -(picture.slot.similarity or 0.0))


def _pictures(gathered: Gathered, rules: DocumentRules) -> list[Picture] | None:
    """Return the images that are there; None where one is missing and the document is left out for it."""
    pictures = []
    split: dict[str, list[bytes]] = {}
    for slot, place in zip(gathered.outline.slots, gathered.places, strict=True):
        picture = _picture(slot, place, gathered, split)
        if picture is None and rules.missing_image == "error":
            raise _missing(slot, place, rules, gathered.advice)
        if picture is None and rules.missing_image == "drop_document":
            gathered.left_out["documents for a missing image"] += 1
            return None
        if picture is None:
            gathered.left_out["missing images"] += 1
        if picture is None and rules.missing_image == "placeholder":
            picture = Picture(slot, rules.placeholder, _called(slot), image_field(slot.name, None), unseen=True)
        if picture is not None:
            pictures.append(picture)
    return pictures


def _picture(slot: Slot, place: Place, gathered: Gathered, split: dict[str, list[bytes]]) -> Picture | None:
    if place.kind == "inline":
        return Picture(slot, _unpacked(slot), _called(slot), image_field(slot.name, None), unseen=True)
    if place.kind == "sibling":
        found = next((gathered.siblings[name] for name in place.names if name in gathered.siblings), None)
        return Picture(slot, found[1], _called(slot), image_field(None, found[0])) if found is not None else None
    if place.kind == "nowhere":
        return None
    name = place.names[0]
    image = gathered.sample[name]
    if place.kind == "page" and name in TIFF:
        page = _page(image, place, gathered, split)
        return Picture(slot, page, _called(slot), image_field(None, name), unseen=True)
    return Picture(slot, image, _called(slot), image_field(None, name))


def _page(file: Any, place: Place, gathered: Gathered, split: dict[str, list[bytes]]) -> bytes:
    name = place.names[0]
    if not isinstance(file, bytes):
        raise UsageError(
            f"field {name!r} was decoded before its pages were taken apart, so that only the first is left: write "
            f".interleaved(decode=…), or .interleaved().decode(…) in this order",
            field=name,
        )
    if name not in split:
        split[name] = tiff_pages(file)
        wanted = sum(other.kind == "page" for other in gathered.places)
        if len(split[name]) != wanted:
            raise SampleError(
                f"{len(split[name])} pages for {wanted} images: they do not tell which page is which image", field=name
            )
    return split[name][place.page]


def _unpacked(slot: Slot) -> bytes:
    text = slot.inline or ""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        try:
            return binascii.a2b_base64(text, strict_mode=True)
        except binascii.Error:
            return binascii.a2b_base64("".join(text.split()), strict_mode=True)
    except ValueError as error:
        field = f"image {slot.number} ({_called(slot)}).image_base64"
        raise DecodingError(message=f"the base64 of an image is damaged: {error}", field=field) from error


def _missing(slot: Slot, place: Place, rules: DocumentRules, advice: str) -> MissingImage:
    where = {
        "sibling": f"is no member {' or '.join(f'D{rules.separator}{name}.*' for name in place.names)} next to D.json "
        f"(D is the document's key): it is absent, or stands elsewhere in the shard ({advice})",
        "nowhere": f"is not where layout={rules.layout!r} has it",
    }
    reason = where.get(place.kind, "is not there")
    return MissingImage(
        f"image {slot.number} {reason}; missing_image= says what to do about documents like this", field=_called(slot)
    )


def _chosen(pictures: list[Picture], rules: DocumentRules, left_out: Counter[str]) -> list[Picture]:
    """Leave out images that are too small, or not similar enough."""
    least, size, before = rules.min_similarity, rules.min_image_bytes, len(pictures)
    if least is not None:
        for picture in pictures:
            if picture.slot.similarity is None:
                raise SampleError("min_similarity needs a matched_sim for each image", field=picture.name)
        pictures = [picture for picture in pictures if (picture.slot.similarity or 0.0) >= least]
    if size:
        for picture in pictures:
            if not isinstance(picture.image, bytes) and picture.image is not None:
                raise UsageError("min_image_bytes needs encoded images: decode behind interleaved", field=picture.name)
        pictures = [picture for picture in pictures if picture.image is None or len(picture.image) >= size]
    if len(pictures) < before:
        left_out["images of little similarity or few bytes"] += before - len(pictures)
    return pictures


def _limited(pictures: list[Picture], rules: DocumentRules, left_out: Counter[str]) -> list[Picture]:
    most = rules.max_images
    if most is None or len(pictures) <= most:
        return pictures
    left_out["images beyond max_images"] += len(pictures) - most
    if rules.keep == "first":
        return pictures[:most]
    ranked = sorted(range(len(pictures)), key=lambda n: -(pictures[n].slot.similarity or 0.0))
    return [pictures[number] for number in sorted(ranked[:most])]


def assembled(gathered: Gathered, pictures: list[Picture], json: str = "json") -> Document:
    """Put a document together.

    Args:
        gathered: all that belongs to it.
        pictures: its images, in order.
        json: the field of the JSON.

    Raises:
        SampleError: a field with the name of a part of every document.
    """
    sample, outline = gathered.sample, gathered.outline
    used = {json}
    for place in gathered.places:
        if place.kind in ("field", "page"):
            used.update(place.names)
    document = Document()
    further: dict[str, Any] = {}
    for name, value in sample.items():
        if name[:2] == "__":
            document[name] = value
        elif name not in used:
            if name in MADE:
                raise SampleError(f"a field is called {name!r}, as a part of every document is: rename it", field=name)
            further[name] = value
    document["parts"] = _parts(outline.texts, pictures)
    document["images"] = [picture.image for picture in pictures]
    document["text_list"] = outline.texts
    document["matched_text_index"] = [picture.slot.text for picture in pictures]
    if any(slot.similarity is not None for slot in outline.slots):
        document["matched_sim"] = [picture.slot.similarity for picture in pictures]
    document["image_info"] = [picture.slot.rest for picture in pictures]
    if outline.matrix is not None:
        document["similarity_matrix"] = [outline.matrix[picture.slot.number] for picture in pictures]
    document["json"] = outline.rest
    document.update(further)
    return document


def _parts(texts: list[str], pictures: list[Picture]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    given = 0
    for index, picture in enumerate(pictures):
        position = picture.slot.position
        if position > given:
            parts += [{"type": "text", "text": text} for text in texts[given:position]]
            given = position
        parts.append(
            {"type": "image", "image": picture.image, "index": index, "name": picture.name, "field": picture.field}
        )
    parts += [{"type": "text", "text": text} for text in texts[given:]]
    return parts


def _called(slot: Slot) -> str:
    return slot.name or slot.member or str(slot.number)
