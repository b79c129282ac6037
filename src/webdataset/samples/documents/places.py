"""Where each image of a document stands: in the JSON, in a field, on a page, or in a sibling.

Flows in: a sample that holds a document's JSON, and the outline of that. Flows out: a place for each slot. Looks at
names only. An image is taken for a slot's if its name says so, or if images are numbered throughout; never by guess.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from webdataset.ground.errors import SampleError

from .names import TIFF, field_stem, is_address, is_image, stem
from .outline import Outline, Slot
from .rules import DocumentRules


class Place(NamedTuple):
    """Where an image is.

    Args:
        kind: ``inline``, ``field``, ``page``, ``sibling``, or ``nowhere``.
        names: the field; for siblings, the names behind the document's key under which it may stand.
        page: index of the page.
    """

    kind: str
    names: tuple[str, ...] = ()
    page: int = 0


_DIGITS = 12  # a longer number is a name
NOWHERE = Place("nowhere")
INLINE = Place("inline")


def places(sample: Mapping[str, Any], outline: Outline, rules: DocumentRules) -> list[Place]:
    """Return the place of each slot's image, as far as the sample tells; siblings are yet to be found.

    Args:
        sample: holds the JSON, and maybe images.
        outline: what the JSON says.
        rules: the layout.

    Raises:
        SampleError: fields whose order does not tell which image is which.
    """
    layout, key = rules.layout, str(sample.get("__key__", ""))
    found: list[Place] = [NOWHERE] * len(outline.slots)
    if layout in ("auto", "inline"):
        found = [INLINE if slot.inline else NOWHERE for slot in outline.slots]
    own = [name for name in sample if name[:2] != "__" and is_image(name)]
    if own and found and layout in ("auto", "fields", "pages") and NOWHERE in found:
        _own(own, outline.slots, found, rules)
        if NOWHERE in found:
            _whole(own, outline.slots, found, rules, key)
    if rules.searches:
        before = key.rpartition("/")[2] + rules.separator
        for number, slot in enumerate(outline.slots):
            if found[number] is NOWHERE:
                found[number] = Place("sibling", _rests(slot, before, rules))
        if any(len(place.names) > 1 for place in found):
            _settle(found)
    return found


def _settle(found: list[Place]) -> None:
    """Take away what may be a slot's name where it is the first name of another slot."""
    first = {place.names[0] for place in found if place.kind == "sibling"}
    for number, place in enumerate(found):
        if place.kind == "sibling" and len(place.names) > 1 and place.names[1] in first:
            found[number] = Place("sibling", place.names[:1])


def _own(own: list[str], slots: list[Slot], found: list[Place], rules: DocumentRules) -> None:
    """Fill in the places of images that stand in fields of the sample itself."""
    if rules.layout != "pages":
        if rules.match == "name":
            _by_name(own, slots, found)
        _by_number(own, slots, found)


def _whole(own: list[str], slots: list[Slot], found: list[Place], rules: DocumentRules, key: str) -> None:
    """Take the pages of ``D.tiff``, or ``D.jpg`` as the one image that bears the document's name, or none."""
    whole = [name for name in own if "." not in name]
    if len(whole) != 1 or any(place.kind == "field" for place in found) or rules.layout == "fields":
        return
    left = [number for number, place in enumerate(found) if place is NOWHERE]
    alone = len(left) == 1 and (rules.layout == "pages" or _bears(slots[left[0]], key))
    if whole[0] in TIFF or alone:
        for page, number in enumerate(left):
            found[number] = Place("page", (whole[0],), page)


def _bears(slot: Slot, key: str) -> bool:
    called = slot.member or slot.name
    return called is None or is_address(called) or stem(called) == key.rpartition("/")[2]


def _by_name(own: list[str], slots: list[Slot], found: list[Place]) -> None:
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
            found[number] = Place("field", (fitting[0],))


def _by_number(own: list[str], slots: list[Slot], found: list[Place]) -> None:
    """Take fields ``0.jpg``, ``1.png`` … by number, where none was found by name."""
    if any(place.kind == "field" for place in found):
        return
    numbered = _numbered(own)
    left = [number for number, place in enumerate(found) if place is NOWHERE]
    if not numbered or any(slots[number].member for number in left):
        return
    if len(numbered) == len(left):
        for number, (_, name) in zip(left, sorted(numbered.items()), strict=True):
            found[number] = Place("field", (name,))
    elif 0 not in numbered:
        raise SampleError(
            f"{len(left)} images and the fields {', '.join(numbered.values())}: their numbers do not tell which is "
            "which; count from 0, or name the fields as the JSON names the images",
            field=next(iter(numbered.values())),
        )
    else:
        for number in left:
            if number in numbered:
                found[number] = Place("field", (numbered[number],))


def _numbered(own: list[str]) -> dict[int, str]:
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


def _rests(slot: Slot, before: str, rules: DocumentRules) -> tuple[str, ...]:
    """Return what may stand behind the key and the separator, together ``before``, in the name of a slot's image."""
    if slot.member is not None:
        return (stem(slot.member),)
    if slot.name is None or is_address(slot.name) or rules.match == "number":
        return (str(slot.number),)
    called = stem(slot.name)
    return (called, called[len(before) :]) if called.startswith(before) and called != before else (called,)
