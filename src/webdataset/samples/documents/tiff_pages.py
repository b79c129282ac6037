"""Splits a TIFF file into its pages, each a TIFF file of its own, without decoding them.

Theory (TIFF 6.0, section 2; BigTIFF). A file is a chain of directories, one a page. A directory's entries hold their
values, or the offsets at which they stand; the entries for strips and tiles hold offsets of offsets. A page is
extracted by writing its directory, its values and its strips one after another, under new offsets. Where a page
refers to anything else (sub-images, the tables of old JPEG, 64-bit offsets), the page is the whole file with the
page's directory made the first: larger, and just as correct. A compressed byte never changes.
"""

import struct
from typing import NamedTuple

from webdataset.core.errors import FormatError

_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
# offsets of strips and tiles: the lengths that belong to them
_SEGMENTS = {273: 279, 324: 325}
# offsets of things of their own
_ELSEWHERE = frozenset((330, 513, 519, 520, 521, 34665, 34853, 40965))
_MOST_PAGES = 1 << 16
LIMIT_BYTES = 1 << 30


class _TiffEntry(NamedTuple):
    tag: int
    kind: int
    # number of its values
    length: int
    value: bytes


class _TiffForm(NamedTuple):
    order: str
    big: bool


def split_tiff_pages(file: bytes, limit_bytes: int = LIMIT_BYTES) -> list[bytes]:
    """Split a TIFF file into its pages.

    Args:
        file: the file.
        limit_bytes: the pages may not be larger than this together: pages may share strips, so that a small file may
            hold many large ones.

    Returns:
        One TIFF file for each page; the file itself where it has but one.

    Raises:
        FormatError: no TIFF file, a damaged one, or pages beyond the limit.
    """
    form = _read_form(file)
    pages: list[bytes] = []
    left = limit_bytes
    try:
        starts = _list_directories(file, form)
        if len(starts) == 1:
            return [file]
        for start in starts:
            pages.append(_extract_page(file, form, start))
            left -= len(pages[-1])
            if left < 0:
                raise FormatError(f"the TIFF file's {len(starts)} pages are larger than {limit_bytes} bytes together")
    except (struct.error, IndexError) as error:
        raise FormatError("the TIFF file ends inside of a directory") from error
    return pages


def _read_form(file: bytes) -> _TiffForm:
    order = {b"II": "<", b"MM": ">"}.get(file[:2])
    magic = int.from_bytes(file[2:4], "little" if order == "<" else "big")
    if order is None or magic not in (42, 43) or len(file) < 16:
        raise FormatError("not a TIFF file")
    return _TiffForm(order, magic == 43)


def _list_directories(file: bytes, form: _TiffForm) -> list[int]:
    """Return the offsets of the directories."""
    wide = form.big
    (start,) = struct.unpack_from(form.order + ("Q" if wide else "I"), file, 8 if wide else 4)
    starts: list[int] = []
    seen = set()
    while start:
        if start in seen or len(starts) >= _MOST_PAGES or start >= len(file):
            raise FormatError(f"the TIFF file's directory {len(starts)} stands at byte {start}, which cannot be")
        seen.add(start)
        starts.append(start)
        (count,) = struct.unpack_from(form.order + ("Q" if wide else "H"), file, start)
        behind = start + (8 + 20 * count if wide else 2 + 12 * count)
        (start,) = struct.unpack_from(form.order + ("Q" if wide else "I"), file, behind)
    if not starts:
        raise FormatError("the TIFF file has no page")
    return starts


def _extract_page(file: bytes, form: _TiffForm, start: int) -> bytes:
    entries = None if form.big else _read_entries(file, form.order, start)
    if entries is None:
        at, kind = (8, "Q") if form.big else (4, "I")
        first = struct.pack(form.order + kind, start)
        return file[:at] + first + file[at + len(first) :]
    return _write_page(file, form.order, entries)


def _read_entries(file: bytes, order: str, start: int) -> list[_TiffEntry] | None:
    """Return the entries of a directory, or None where a page cannot be taken out by them alone."""
    (count,) = struct.unpack_from(order + "H", file, start)
    entries = []
    for place in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind, number = struct.unpack_from(order + "HHI", file, place)
        if tag in _ELSEWHERE or kind not in _SIZES:
            return None
        size = _SIZES[kind] * number
        at = place + 8 if size <= 4 else struct.unpack_from(order + "I", file, place + 8)[0]
        if at + size > len(file):
            raise FormatError(f"a value of the TIFF file stands at byte {at}, beyond its end", offset=at)
        entries.append(_TiffEntry(tag, kind, number, file[at : at + size]))
    tags = {entry.tag: entry.length for entry in entries}
    whole = all(tags.get(lengths) == tags[offsets] for offsets, lengths in _SEGMENTS.items() if offsets in tags)
    return entries if whole and any(offsets in tags for offsets in _SEGMENTS) else None


def _read_numbers(entry: _TiffEntry, order: str) -> tuple[int, ...]:
    letter = {3: "H", 4: "I"}.get(entry.kind)
    if letter is None:
        raise FormatError(f"tag {entry.tag} of the TIFF file is not of whole numbers")
    return struct.unpack(f"{order}{entry.length}{letter}", entry.value)


def _write_page(file: bytes, order: str, entries: list[_TiffEntry]) -> bytes:
    """Write one page as a file: header, directory, values, strips."""
    named = {entry.tag: entry for entry in entries}
    behind = bytearray()
    base = 8 + 2 + 12 * len(entries) + 4
    directory = bytearray(struct.pack(order + "H", len(entries)))

    def append(value: bytes) -> int:
        at = base + len(behind)
        if at + len(value) > 2 * len(file) + base:
            raise FormatError("the parts of one page of the TIFF file lie upon each other")
        behind.extend(value)
        behind.extend(b"\0" * (len(value) & 1))
        return at

    for tag, kind, count, content in entries:
        value = content
        if tag in _SEGMENTS:
            lengths = _read_numbers(named[_SEGMENTS[tag]], order)
            offsets = []
            for at, length in zip(_read_numbers(named[tag], order), lengths, strict=True):
                if at + length > len(file):
                    raise FormatError(f"a strip of the TIFF file ends at byte {at + length}, beyond its end", offset=at)
                offsets.append(append(file[at : at + length]))
            kind, value = 4, struct.pack(f"{order}{count}I", *offsets)  # noqa: PLW2901  offsets may have been short
        field = value.ljust(4, b"\0") if len(value) <= 4 else struct.pack(order + "I", append(value))
        directory += struct.pack(order + "HHI", tag, kind, count) + field
    header = file[:4] + struct.pack(order + "I", 8)
    return bytes(header + directory + b"\0\0\0\0" + behind)
