"""Interleaved documents for the page: texts in reading order, and where the image between them is.

Uses the outline and the rules of ``samples.documents``, by names alone: no image is read. An image is a field of the
same sample, of a neighbour (``D-0.jpg``), a page of a TIFF file, or base64 in the JSON; the page asks for its thumbnail
by the place that its part names.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from webdataset.core.errors import MissingImage, SampleError
from webdataset.samples.documents.assembly import ImageLocation, decode_inline_image, locate_images
from webdataset.samples.documents.document import DocumentRules, is_image, member_stem
from webdataset.samples.documents.outline import Outline, Slot, parse_outline
from webdataset.viewer.plain_values import JsonObject, bound_json, clean_text

_MOST_PARTS: Final = 2000
_MOST_CHARACTERS: Final = 20_000
_MOST_NAME: Final = 500
_CAPTIONS: Final = ("caption", "alt", "alt_text")


class NeighbourSample(NamedTuple):
    """A sample of the same shard that may hold images of a document.

    Args:
        ordinal: its number in the shard.
        key: its key.
        fields: names of its fields.
    """

    ordinal: int
    key: str
    fields: tuple[str, ...]


def is_document(record: object) -> bool:
    """Tell whether JSON has the form of an interleaved document; a document that contradicts itself is one, too."""
    try:
        return parse_outline(record) is not None
    except SampleError:
        return True


def describe_document(
    key: str, fields: Sequence[str], record: object, neighbours: Iterable[NeighbourSample] = ()
) -> list[JsonObject] | None:
    """Return a document in reading order, or None for JSON that is no document.

    Args:
        key: of the sample that holds the JSON.
        fields: names of its fields.
        record: what the JSON holds.
        neighbours: samples that stand next to it.

    Returns:
        Parts ``{"kind": "text", "text"}`` and ``{"kind": "image", "name", "field", …}``. An image of another sample has
        its ``ordinal``; a page of a TIFF has ``page``; one in the JSON has ``inline``, its number there; each is to be
        passed on to the thumbnail's url. ``missing`` is true where no image is found. ``similarity`` and ``caption``
        are told where the JSON has them. ``{"kind": "problem", "text"}`` says what does not fit, or was cut.
    """
    try:
        outline = parse_outline(record)
        if outline is None:
            return None
        places = _locate(key, fields, outline)
    except SampleError as error:
        return [{"kind": "problem", "text": clean_text(error.message)}]
    siblings = _list_siblings(key, neighbours)
    images = [(slot, _describe_image(slot, place, siblings)) for slot, place in zip(outline.slots, places, strict=True)]
    images.sort(key=lambda each: each[0].position)
    return _join_parts(outline, images)


def _locate(key: str, fields: Sequence[str], outline: Outline) -> list[ImageLocation]:
    sample: JsonObject = {"__key__": key, **dict.fromkeys(fields)}
    return locate_images(sample, outline, DocumentRules())


def _list_siblings(key: str, neighbours: Iterable[NeighbourSample]) -> dict[str, tuple[int, str]]:
    """Return what stands after the document's key in the names of other samples' images, and where these are."""
    before = f"{key}-"
    found: dict[str, tuple[int, str]] = {}
    for neighbour in neighbours:
        if neighbour.key.startswith(before):
            for field in neighbour.fields:
                if is_image(field):
                    found.setdefault(member_stem(neighbour.key, field)[len(before) :], (neighbour.ordinal, field))
    return found


def _describe_image(slot: Slot, place: ImageLocation, siblings: dict[str, tuple[int, str]]) -> JsonObject:
    part: JsonObject = {"kind": "image", "name": slot.name or slot.member or f"image {slot.number}"}
    part["name"] = clean_text(part["name"][:_MOST_NAME])
    if place.kind == "inline":
        part |= {"field": "json", "inline": slot.number}
    elif place.kind == "field":
        part["field"] = place.names[0]
    elif place.kind == "page":
        part |= {"field": place.names[0], "page": place.page}
    else:
        found = next((siblings[name] for name in place.names if name in siblings), None)
        if found is None:
            part |= {"field": None, "missing": True}
        else:
            part |= {"ordinal": found[0], "field": found[1]}
    if slot.similarity is not None:
        part["similarity"] = bound_json(slot.similarity)[0]
    caption = next((slot.rest[name] for name in _CAPTIONS if isinstance(slot.rest.get(name), str)), None)
    if caption is not None:
        part["caption"] = clean_text(caption[:_MOST_CHARACTERS])
    return part


def _join_parts(outline: Outline, images: list[tuple[Slot, JsonObject]]) -> list[JsonObject]:
    parts: list[JsonObject] = []
    taken = 0
    for number in range(len(outline.texts) + 1):
        while taken < len(images) and images[taken][0].position <= number:
            parts.append(images[taken][1])
            taken += 1
        if number < len(outline.texts):
            parts.append({"kind": "text", "text": clean_text(outline.texts[number][:_MOST_CHARACTERS])})
        if len(parts) > _MOST_PARTS:
            return [*parts[:_MOST_PARTS], {"kind": "problem", "text": f"only the first {_MOST_PARTS} parts are shown"}]
    return parts


def read_inline_image(record: object, number: int) -> tuple[str, bytes]:
    """Return the name and the bytes of an image that a document's JSON holds in base64.

    Args:
        record: what the JSON holds.
        number: of the image in the JSON's list.

    Raises:
        MissingImage: there is none of this number.
        SampleError: a document that contradicts itself.
        DecodingError: base64 that is none.
    """
    outline = parse_outline(record)
    slot = next((slot for slot in outline.slots if slot.number == number), None) if outline is not None else None
    if slot is None or slot.inline is None:
        raise MissingImage(f"the JSON holds no image {number} in base64")
    return slot.name or "image", decode_inline_image(slot)
