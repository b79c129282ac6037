"""What the JSON of a document says: its texts, and a slot for each image.

Three forms are known. *Matched* (MMC4): ``text_list`` and ``image_info``, a list of images with the index of the text
that each is matched to. *Columns* (Energon): texts and ``matched_text_index`` or ``matched_text_indices``, one for each
image. *Parallel* (OBELICS, MINT-1T): ``texts`` and ``images`` of one length, null where the other modality stands.

Flows in: a JSON object. Flows out: an :class:`Outline`, or None where it is no document. Never looks for the images.
"""

from dataclasses import dataclass, field
from typing import Any

from webdataset.ground.errors import SampleError

Record = dict[str, Any]
_NAMED = ("image_name", "member", "image_base64")
_READ = frozenset((*_NAMED, "matched_text_index", "matched_sim"))
_TEXT = frozenset((str,))


@dataclass
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


def outlined(record: Any, place: str = "before") -> Outline | None:
    """Return the outline of a document, or None for JSON that is no document.

    Args:
        record: what the JSON holds.
        place: where an image stands that is matched to a text, ``before`` or ``after`` it.

    Raises:
        SampleError: a document whose lists do not fit each other; ``field`` says where.
    """
    if not isinstance(record, dict):
        return None
    behind = int(place == "after")
    if "image_info" in record and "text_list" in record:
        return _matched(record, behind)
    matched = next((name for name in ("matched_text_index", "matched_text_indices") if name in record), None)
    texts = next((name for name in ("text_list", "texts") if name in record), None)
    if matched is not None and texts is not None:
        return _columns(record, texts, matched, behind)
    if "texts" in record and "images" in record:
        return _parallel(record)
    return None


def _matched(record: Record, behind: int) -> Outline:
    texts = _texts(record, "text_list")
    slots = []
    for number, entry in enumerate(_list(record, "image_info")):
        where = f"image_info[{number}]"
        if not isinstance(entry, dict):
            raise SampleError(f"{where} is {_kind(entry)}, not an object", field=where)
        if "matched_text_index" not in entry:
            raise SampleError(f"{where} has no matched_text_index", field=f"{where}.matched_text_index")
        text = _index(entry["matched_text_index"], len(texts), f"{where}.matched_text_index")
        slots.append(_slot(number, entry, text + behind, text, where))
    return _finished(record, ("text_list", "image_info"), texts, slots)


def _columns(record: Record, texts_name: str, matched: str, behind: int) -> Outline:
    texts = _texts(record, texts_name)
    similar = record.get("matched_sim")
    places = _list(record, matched)
    if similar is not None and (not isinstance(similar, list) or len(similar) != len(places)):
        raise SampleError(f"matched_sim does not have one entry for each of {matched}", field="matched_sim")
    slots = []
    for number, given in enumerate(places):
        text = _index(given, len(texts), f"{matched}[{number}]")
        entry = {"matched_sim": similar[number]} if similar is not None else {}
        slots.append(_slot(number, entry, text + behind, text, f"matched_sim[{number}]"))
    return _finished(record, (texts_name, matched, "matched_sim"), texts, slots)


def _parallel(record: Record) -> Outline:
    texts, images = _list(record, "texts"), _list(record, "images")
    if len(texts) != len(images):
        raise SampleError(f"{len(texts)} texts and {len(images)} images: these lists must be parallel", field="images")
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
                raise SampleError(f"an image is a name or an object, not {_kind(image)}", field=f"images[{number}]")
            slots.append(_slot(len(slots), entry, len(written), 0, f"images[{number}]"))
    for slot in slots:
        slot.text = max(0, min(slot.position, len(written) - 1))
    used = ["texts", "images"]
    described = record.get("image_metadata")
    if isinstance(described, list) and len(described) == len(slots) and all(isinstance(d, dict) for d in described):
        used.append("image_metadata")
        for slot, description in zip(slots, described, strict=True):
            slot.rest = {**slot.rest, **description}
    outline = _finished(record, used, written, slots)
    outline.ordered = True
    return outline


def _finished(record: Record, used: Any, texts: list[str], slots: list[Slot]) -> Outline:
    matrix = record.get("similarity_matrix")
    fits = isinstance(matrix, list) and len(matrix) == len(slots)
    rest = {
        name: value for name, value in record.items() if name not in used and not (fits and name == "similarity_matrix")
    }
    return Outline(texts, slots, rest, matrix if fits else None)


def _slot(number: int, entry: Record, position: int, text: int, where: str) -> Slot:
    get = entry.get
    name, member, inline = get("image_name"), get("member"), get("image_base64")
    for value in (name, member, inline):
        if value is not None and value.__class__ is not str:
            what = next(what for what in _NAMED if entry.get(what) is value)
            raise SampleError(f"{where}.{what} is {_kind(value)}, not text", field=f"{where}.{what}")
    similarity = get("matched_sim")
    if similarity is not None and (isinstance(similarity, bool) or not isinstance(similarity, int | float)):
        raise SampleError(f"{where}.matched_sim is {_kind(similarity)}, not a number", field=f"{where}.matched_sim")
    rest = {name: value for name, value in entry.items() if name not in _READ}
    return Slot(number, name or None, member or None, inline or None, position, text, similarity, rest)


def _list(record: Record, name: str) -> list[Any]:
    value = record[name]
    if not isinstance(value, list):
        raise SampleError(f"{name} is {_kind(value)}, not a list", field=name)
    return value


def _texts(record: Record, name: str) -> list[str]:
    texts = _list(record, name)
    if _TEXT.issuperset(map(type, texts)):
        return list(texts)
    return [_text(text, f"{name}[{number}]") for number, text in enumerate(texts)]


def _text(text: Any, where: str) -> str:
    if not isinstance(text, str):
        raise SampleError(f"{where} is {_kind(text)}, not text", field=where)
    return text


def _index(given: Any, count: int, where: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < count:
        raise SampleError(f"{where} is {given!r:.40}, and there are {count} texts", field=where)
    return given


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
