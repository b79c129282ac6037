"""Parses the JSON of a document: its texts, and a slot for each image.

Three forms are known. *Matched* (MMC4): ``text_list`` and ``image_info``, a list of images with the index of the text
that each is matched to. *Columns* (Energon): texts and ``matched_text_index`` or ``matched_text_indices``, one for
each image. *Parallel* (OBELICS, MINT-1T): ``texts`` and ``images`` of one length, null where the other modality
stands.

JSON of any other form is no document, and gives None. This module never looks for the images.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from webdataset.core.errors import SampleError

Record = dict[str, Any]
_NAMED = ("image_name", "member", "image_base64")
_TEXT = frozenset((str,))
_TEXTS_OR_NONE = frozenset((str, type(None)))
_NUMBERS_OR_NONE = frozenset((int, float, type(None)))


@dataclass(slots=True)
class Slot:
    """One image of a document, as the JSON names it.

    Args:
        number: index in the JSON's list of images.
        name: what the JSON calls it, or None.
        member: name of the member that holds it, where that is another one.
        inline: the image in base64, where the JSON holds it.
        position: number of texts that stand before it.
        text: index of the text that it is matched to.
        similarity: to that text.
        rest: what else the JSON says about it.
    """

    number: int
    name: str | None
    member: str | None
    inline: str | None
    position: int
    text: int
    similarity: float | None
    rest: Record


@dataclass
class Outline:
    """A document before its images are there.

    Args:
        texts: in order.
        slots: in the order of the JSON.
        rest: what else the JSON holds.
        matrix: similarities, a row for each slot, or None.
        ordered: the JSON gives the whole order, so that no two images tie.
    """

    texts: list[str]
    slots: list[Slot]
    rest: Record
    matrix: list[Any] | None = None
    ordered: bool = field(default=False)


def parse_outline(record: object, place: str = "before") -> Outline | None:
    """Return the outline of a document, or None for JSON that is no document.

    Args:
        record: what the JSON holds.
        place: an image that is matched to a text stands ``before`` or ``after`` it.

    Raises:
        SampleError: a document whose lists do not fit each other; ``field`` says where.
    """
    if not isinstance(record, dict):
        return None
    behind = int(place == "after")
    if "image_info" in record and "text_list" in record:
        return _parse_matched_form(record, behind)
    matched = next((name for name in ("matched_text_index", "matched_text_indices") if name in record), None)
    texts = next((name for name in ("text_list", "texts") if name in record), None)
    if matched is not None and texts is not None:
        return _parse_columns(record, texts, matched, behind)
    if "texts" in record and "images" in record:
        return _parse_parallel_form(record)
    return None


def _parse_matched_form(record: Record, behind: int) -> Outline:
    texts = _texts(record, "text_list")
    slots = []
    count = len(texts)
    for number, entry in enumerate(_list(record, "image_info")):
        if not isinstance(entry, dict):
            where = f"image_info[{number}]"
            raise SampleError(f"{where} is {_type_name(entry)}, not an object", field=where)
        text: Any = entry.get("matched_text_index")
        if text.__class__ is not int or not 0 <= text < count:
            _index_error(entry, count, f"image_info[{number}]")
        slots.append(_slot(number, entry, text + behind, text, ("image_info", number)))
    return _finish_outline(record, ("text_list", "image_info"), texts, slots)


def _parse_columns(record: Record, texts_name: str, matched: str, behind: int) -> Outline:
    texts = _texts(record, texts_name)
    similar = record.get("matched_sim")
    places = _list(record, matched)
    if similar is not None and (not isinstance(similar, list) or len(similar) != len(places)):
        raise SampleError(f"matched_sim does not have one entry for each of {matched}", field="matched_sim")
    named = _names(record, len(places))
    where = "images" if any(named) else "matched_sim"
    slots = []
    for number, given in enumerate(places):
        text = _index(given, len(texts), f"{matched}[{number}]")
        entry = {**named[number], "matched_sim": similar[number]} if similar is not None else named[number]
        slots.append(_slot(number, entry, text + behind, text, (where, number)))
    used = (texts_name, matched, "matched_sim", *(("images",) if any(named) else ()))
    return _finish_outline(record, used, texts, slots)


def _names(record: Record, count: int) -> list[Record]:
    """Return what the column ``images`` says about each image, where it has an entry for each."""
    images = record.get("images")
    if isinstance(images, list) and len(images) == count and all(isinstance(image, str | dict) for image in images):
        return [{"image_name": image} if isinstance(image, str) else image for image in images]
    return [{}] * count


def _parse_parallel_form(record: Record) -> Outline:
    texts, images = _list(record, "texts"), _list(record, "images")
    if len(texts) != len(images):
        raise SampleError(
            f"the lists texts ({len(texts)}) and images ({len(images)}) must be of one length", field="images"
        )
    written: list[str] = []
    slots: list[Slot] = []
    for number, (text, image) in enumerate(zip(texts, images, strict=True)):
        name = image if isinstance(image, str) else None
        if text is not None and image is not None:
            raise SampleError(f"a text and an image both stand at place {number}", field=f"images[{number}]")
        if text is not None:
            written.append(_text(text, f"texts[{number}]"))
        elif image is not None:
            entry = {"image_name": name} if name is not None else image
            if not isinstance(entry, dict):
                raise SampleError(
                    f"an image is a name or an object, not {_type_name(image)}", field=f"images[{number}]"
                )
            slots.append(_slot(len(slots), entry, len(written), 0, ("images", number)))
    for slot in slots:
        slot.text = max(0, min(slot.position, len(written) - 1))
    used = ["texts", "images"]
    described = record.get("image_metadata")
    if isinstance(described, list) and len(described) == len(slots) and all(isinstance(d, dict) for d in described):
        used.append("image_metadata")
        for slot, description in zip(slots, described, strict=True):
            slot.rest = {**slot.rest, **description}
    outline = _finish_outline(record, used, written, slots)
    outline.ordered = True
    return outline


def _finish_outline(record: Record, used: Container[str], texts: list[str], slots: list[Slot]) -> Outline:
    matrix = record.get("similarity_matrix")
    fits = isinstance(matrix, list) and len(matrix) == len(slots)
    rest = {
        name: value for name, value in record.items() if name not in used and not (fits and name == "similarity_matrix")
    }
    return Outline(texts, slots, rest, matrix if fits else None)


def _slot(number: int, entry: Record, position: int, text: int, where: tuple[str, int]) -> Slot:
    rest = entry.copy()
    take = rest.pop
    name, member, inline = take("image_name", None), take("member", None), take("image_base64", None)
    similarity = take("matched_sim", None)
    take("matched_text_index", None)
    if not (_TEXTS_OR_NONE.issuperset((name.__class__, member.__class__, inline.__class__))):
        what = next(what for what in _NAMED if not isinstance(entry.get(what), str | None))
        raise _type_error(where, what, entry[what], "text")
    if similarity.__class__ not in _NUMBERS_OR_NONE:
        raise _type_error(where, "matched_sim", similarity, "a number")
    return Slot(number, name or None, member or None, inline or None, position, text, similarity, rest)


def _type_error(where: tuple[str, int], what: str, value: object, wanted: str) -> SampleError:
    field = f"{where[0]}[{where[1]}].{what}"
    return SampleError(f"{field} is {_type_name(value)}, not {wanted}", field=field)


def _index_error(entry: Record, count: int, where: str) -> None:
    if "matched_text_index" not in entry:
        raise SampleError(f"{where} has no matched_text_index", field=f"{where}.matched_text_index")
    _index(entry["matched_text_index"], count, f"{where}.matched_text_index")


def _list(record: Record, name: str) -> list[Any]:
    value = record[name]
    if not isinstance(value, list):
        raise SampleError(f"{name} is {_type_name(value)}, not a list", field=name)
    return value


def _texts(record: Record, name: str) -> list[str]:
    texts = _list(record, name)
    if _TEXT.issuperset(map(type, texts)):
        return list(texts)
    return [_text(text, f"{name}[{number}]") for number, text in enumerate(texts)]


def _text(text: object, where: str) -> str:
    if not isinstance(text, str):
        raise SampleError(f"{where} is {_type_name(text)}, not text", field=where)
    return text


def _index(given: object, count: int, where: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < count:
        raise SampleError(
            f"{where} is {given!r:.40}, and there {'is 1 text' if count == 1 else f'are {count} texts'}", field=where
        )
    return given


def _type_name(value: object) -> str:
    return "null" if value is None else type(value).__name__
