"""Assembles one document: locates its images, and puts texts and images in order under the rules.

An image stands in the JSON, in a field of the sample, on a page of a TIFF file, or in a sibling. Locating looks at
names only: an image belongs to a slot if its name says so, or if the images are numbered throughout.

The result is a :class:`~webdataset.samples.documents.document.Document`, or None where the rules leave the document
out. This module never reads a shard, never decodes an image, and never guesses which image a slot means.
"""

import binascii
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from webdataset.core.errors import DecodingError, MissingImage, SampleError, UsageError
from webdataset.samples.documents.document import (
    DOCUMENT_FIELDS,
    TIFF,
    Document,
    DocumentRules,
    field_stem,
    image_field,
    is_image,
    is_image_url,
    stem,
)
from webdataset.samples.documents.outline import Outline, Slot
from webdataset.samples.documents.tiff_pages import split_tiff_pages


class ImageLocation(NamedTuple):
    """Where an image is.

    Args:
        kind: ``inline``, ``field``, ``page``, ``sibling``, or ``nowhere``.
        names: the field; for siblings, the names after the document's key under which it may stand.
        page: index of the page.
    """

    kind: str
    names: tuple[str, ...] = ()
    page: int = 0


# a longer number is a name
_DIGITS = 12
NOWHERE = ImageLocation("nowhere")
INLINE = ImageLocation("inline")


def locate_images(sample: Mapping[str, Any], outline: Outline, rules: DocumentRules) -> list[ImageLocation]:
    """Return the place of each slot's image, as far as the sample's names tell; siblings are yet to be found.

    Raises:
        SampleError: fields whose order does not tell which image is which.
    """
    layout, key = rules.layout, str(sample.get("__key__", ""))
    found: list[ImageLocation] = [NOWHERE] * len(outline.slots)
    if layout in ("auto", "inline"):
        found = [INLINE if slot.inline else NOWHERE for slot in outline.slots]
    own = [name for name in sample if name[:2] != "__" and is_image(name)]
    if own and found and layout in ("auto", "fields", "pages") and NOWHERE in found:
        _locate_own(own, outline.slots, found, rules)
        if NOWHERE in found:
            _locate_whole(own, outline.slots, found, rules, key)
    if rules.searches:
        before = key.rpartition("/")[2] + rules.separator
        for number, slot in enumerate(outline.slots):
            if found[number] is NOWHERE:
                found[number] = ImageLocation("sibling", _name_rests(slot, before, rules))
        if any(len(place.names) > 1 for place in found):
            _drop_ambiguous(found)
    return found


def _drop_ambiguous(found: list[ImageLocation]) -> None:
    """Take away what may be a slot's name where it is the first name of another slot."""
    first = {place.names[0] for place in found if place.kind == "sibling"}
    for number, place in enumerate(found):
        if place.kind == "sibling" and len(place.names) > 1 and place.names[1] in first:
            found[number] = ImageLocation("sibling", place.names[:1])


def _locate_own(own: list[str], slots: list[Slot], found: list[ImageLocation], rules: DocumentRules) -> None:
    """Fill in the places of images that stand in fields of the sample itself."""
    if rules.layout != "pages":
        if rules.match == "name":
            _locate_by_name(own, slots, found)
        _locate_by_number(own, slots, found)


def _locate_whole(
    own: list[str], slots: list[Slot], found: list[ImageLocation], rules: DocumentRules, key: str
) -> None:
    """Take the pages of ``D.tiff``, or ``D.jpg`` as the one image that bears the document's name, or none."""
    whole = [name for name in own if "." not in name]
    if len(whole) != 1 or any(place.kind == "field" for place in found) or rules.layout == "fields":
        return
    left = [number for number, place in enumerate(found) if place is NOWHERE]
    alone = len(left) == 1 and (rules.layout == "pages" or _is_named_after(slots[left[0]], key))
    if whole[0] in TIFF or alone:
        for page, number in enumerate(left):
            found[number] = ImageLocation("page", (whole[0],), page)


def _is_named_after(slot: Slot, key: str) -> bool:
    called = slot.member or slot.name
    return called is None or is_image_url(called) or stem(called) == key.rpartition("/")[2]


def _locate_by_name(own: list[str], slots: list[Slot], found: list[ImageLocation]) -> None:
    stems: dict[str, list[str]] = {}
    for name in own:
        stems.setdefault(field_stem(name).lower(), []).append(name)
    for number, slot in enumerate(slots):
        called = slot.member or slot.name
        if found[number] is not NOWHERE or called is None:
            continue
        base = called.rpartition("/")[2].lower()
        fitting = [base] if "." in base and base in own else stems.get(stem(called).lower(), [])
        if len(fitting) > 1:
            raise SampleError(f"{called!r} may be any of {', '.join(fitting)}", field=fitting[0])
        if fitting and fitting[0]:
            found[number] = ImageLocation("field", (fitting[0],))


def _locate_by_number(own: list[str], slots: list[Slot], found: list[ImageLocation]) -> None:
    """Take fields ``0.jpg``, ``1.png`` … by number, where none was found by name."""
    if any(place.kind == "field" for place in found):
        return
    numbered = _numbered_fields(own)
    left = [number for number, place in enumerate(found) if place is NOWHERE]
    if not numbered or any(slots[number].member for number in left):
        return
    if len(numbered) == len(left):
        for number, (_, name) in zip(left, sorted(numbered.items()), strict=True):
            found[number] = ImageLocation("field", (name,))
    elif 0 not in numbered:
        raise SampleError(
            f"images: {len(left)}, fields: {', '.join(numbered.values())}: their numbers do not tell which is "
            "which; count from 0, or name the fields as the JSON names the images",
            field=next(iter(numbered.values())),
        )
    else:
        for number in left:
            if number in numbered:
                found[number] = ImageLocation("field", (numbered[number],))


def _numbered_fields(own: list[str]) -> dict[int, str]:
    """Return the fields that are called by a number."""
    numbered: dict[int, str] = {}
    for name in own:
        front = name.rpartition(".")[0]
        if len(front) < _DIGITS and front.isascii() and front.isdecimal():
            number = int(front)
            if number in numbered:
                raise SampleError(f"image {front} stands in two fields, {numbered[number]} and {name}", field=name)
            numbered[number] = name
    return numbered


def _name_rests(slot: Slot, before: str, rules: DocumentRules) -> tuple[str, ...]:
    """Return what may stand after the key and the separator, together ``before``, in the name of a slot's image."""
    if slot.member is not None:
        return (stem(slot.member),)
    if slot.name is None or is_image_url(slot.name) or rules.match == "number":
        return (str(slot.number),)
    called = stem(slot.name)
    return (called, called[len(before) :]) if called.startswith(before) and called != before else (called,)


class PlacedImage(NamedTuple):
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


class DocumentParts(NamedTuple):
    """All that belongs to a document.

    Args:
        sample: holds the JSON.
        outline: what that says.
        places: where each slot's image is.
        siblings: images in members of other keys: name after the document's key to (field, image).
        left_out: counts what the rules leave out.
        advice: what to do where a sibling is missing.
    """

    sample: Mapping[str, Any]
    outline: Outline
    places: list[ImageLocation]
    siblings: Mapping[str, tuple[str, object]]
    left_out: Counter[str]
    advice: str = ""


def collect_images(gathered: DocumentParts, rules: DocumentRules) -> list[PlacedImage] | None:
    """Return a document's images, in order, or None where the rules leave the document out.

    Raises:
        MissingImage: an image is not there, and that is an error.
        DecodingError: base64 that is none.
        SampleError: parts that do not fit each other.
    """
    pictures = _find_images(gathered, rules)
    if pictures is None:
        return None
    pictures = _filter_images(pictures, rules, gathered.left_out)
    if len(pictures) < rules.min_images:
        gathered.left_out["documents of few images"] += 1
        return None
    if len(pictures) > 1:
        pictures.sort(key=_order_slots(gathered.outline, rules))
    return _limit_images(pictures, rules, gathered.left_out)


def _order_slots(outline: Outline, rules: DocumentRules) -> Any:
    if outline.ordered or rules.ties == "json":
        return lambda picture: picture.slot.position
    return lambda picture: (picture.slot.position, -(picture.slot.similarity or 0.0))


def _find_images(gathered: DocumentParts, rules: DocumentRules) -> list[PlacedImage] | None:
    """Return the images that are there; None where one is missing and the document is left out for it."""
    pictures = []
    split: dict[str, list[bytes]] = {}
    for slot, place in zip(gathered.outline.slots, gathered.places, strict=True):
        picture = _find_image(slot, place, gathered, split)
        if picture is None and rules.missing_image == "error":
            raise _handle_missing(slot, place, rules, gathered.advice)
        if picture is None and rules.missing_image == "drop_document":
            gathered.left_out["documents for a missing image"] += 1
            return None
        if picture is None:
            gathered.left_out["missing images"] += 1
        if picture is None and rules.missing_image == "placeholder":
            picture = PlacedImage(slot, rules.placeholder, _slot_name(slot), image_field(slot.name, None), unseen=True)
        if picture is not None:
            pictures.append(picture)
    return pictures


def _find_image(
    slot: Slot, place: ImageLocation, gathered: DocumentParts, split: dict[str, list[bytes]]
) -> PlacedImage | None:
    if place.kind == "inline":
        return PlacedImage(slot, decode_inline_image(slot), _slot_name(slot), image_field(slot.name, None), unseen=True)
    if place.kind == "sibling":
        found = next((gathered.siblings[name] for name in place.names if name in gathered.siblings), None)
        return PlacedImage(slot, found[1], _slot_name(slot), image_field(None, found[0])) if found is not None else None
    if place.kind == "nowhere":
        return None
    name = place.names[0]
    image = gathered.sample[name]
    if place.kind == "page" and name in TIFF:
        page = _find_page(image, place, gathered, split)
        return PlacedImage(slot, page, _slot_name(slot), image_field(None, name), unseen=True)
    return PlacedImage(slot, image, _slot_name(slot), image_field(None, name))


def _find_page(file: Any, place: ImageLocation, gathered: DocumentParts, split: dict[str, list[bytes]]) -> bytes:
    name = place.names[0]
    if isinstance(file, memoryview):
        file = bytes(file)
    if not isinstance(file, bytes):
        raise UsageError(
            f"field {name!r} was decoded before its pages were taken apart, so that only the first is left: write "
            f".interleaved(decode=…), or .interleaved().decode(…) in this order",
            field=name,
        )
    if name not in split:
        split[name] = split_tiff_pages(file)
        wanted = sum(other.kind == "page" for other in gathered.places)
        if len(split[name]) != wanted:
            raise SampleError(
                f"{len(split[name])} pages for {wanted} images: they do not tell which page is which image", field=name
            )
    return split[name][place.page]


def decode_inline_image(slot: Slot) -> bytes:
    """Return the image that the JSON holds in base64.

    Args:
        slot: with ``inline``.

    Raises:
        DecodingError: base64 that is none.
    """
    text = slot.inline or ""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        try:
            return binascii.a2b_base64(text, strict_mode=True)
        except binascii.Error:
            return binascii.a2b_base64("".join(text.split()), strict_mode=True)
    except ValueError as error:
        field = f"image {slot.number} ({_slot_name(slot)}).image_base64"
        raise DecodingError(message=f"the base64 of an image is damaged: {error}", field=field) from error


def _handle_missing(slot: Slot, place: ImageLocation, rules: DocumentRules, advice: str) -> MissingImage:
    where = {
        "sibling": f"is no member {' or '.join(f'D{rules.separator}{name}.*' for name in place.names)} next to D.json "
        f"(D is the document's key): it is absent, or stands elsewhere in the shard ({advice})",
        "nowhere": f"is not where layout={rules.layout!r} has it",
    }
    reason = where.get(place.kind, "is not there")
    return MissingImage(
        f"image {slot.number} {reason}; missing_image= says what to do about documents like this",
        field=_slot_name(slot),
    )


def _filter_images(pictures: list[PlacedImage], rules: DocumentRules, left_out: Counter[str]) -> list[PlacedImage]:
    """Leave out images that are too small, or not similar enough."""
    least, size, before = rules.min_similarity, rules.min_image_bytes, len(pictures)
    if least is not None:
        for picture in pictures:
            if picture.slot.similarity is None:
                raise SampleError("min_similarity needs a matched_sim for each image", field=picture.name)
        pictures = [picture for picture in pictures if (picture.slot.similarity or 0.0) >= least]
    if size:
        for picture in pictures:
            if not isinstance(picture.image, bytes | memoryview) and picture.image is not None:
                raise UsageError("min_image_bytes needs encoded images: decode after interleaved", field=picture.name)
        pictures = [picture for picture in pictures if picture.image is None or len(picture.image) >= size]
    if len(pictures) < before:
        left_out["images of little similarity or few bytes"] += before - len(pictures)
    return pictures


def _limit_images(pictures: list[PlacedImage], rules: DocumentRules, left_out: Counter[str]) -> list[PlacedImage]:
    most = rules.max_images
    if most is None or len(pictures) <= most:
        return pictures
    left_out["images beyond max_images"] += len(pictures) - most
    if rules.keep == "first":
        return pictures[:most]
    ranked = sorted(range(len(pictures)), key=lambda n: -(pictures[n].slot.similarity or 0.0))
    return [pictures[number] for number in sorted(ranked[:most])]


def assemble_document(gathered: DocumentParts, pictures: list[PlacedImage], json: str = "json") -> Document:
    """Put a document together from its parts, its images in order, and the field of the JSON.

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
            if name in DOCUMENT_FIELDS:
                raise SampleError(f"a field is called {name!r}, as a part of every document is: rename it", field=name)
            further[name] = value
    document["parts"] = _interleave_parts(outline.texts, pictures)
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


def _interleave_parts(texts: list[str], pictures: list[PlacedImage]) -> list[dict[str, Any]]:
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


def _slot_name(slot: Slot) -> str:
    return slot.name or slot.member or str(slot.number)
