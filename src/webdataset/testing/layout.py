"""Where the parts of a tar archive lie, and whether bytes are an archive at all.

Flows in: the bytes of an archive, uncompressed. Flows out: its regions, or the reason why no reader can take the bytes
for a whole archive. This is a second opinion, written apart from the reader and by the plainest means: it decides
which damage *could* be seen. Source: POSIX.1-2017 ``pax``.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from .handmade import BLOCK, checksum

_EXTENSIONS = b"LKxg"
_OCTAL = re.compile(rb" *[0-7]*[ \0]*\Z")
_RECORD = re.compile(rb"(\d+) ")


@dataclass(frozen=True)
class Region:
    """A run of bytes of one kind.

    Args:
        kind: ``header``, ``payload``, ``padding``, ``record header``, ``record`` (the contents of a long name or an
            extended header), ``record padding`` or ``end``.
        start: offset of the first byte.
        stop: offset after the last byte.
        member: ordinal of the regular member to which it belongs; in the end mark, the number of members.
    """

    kind: str
    start: int
    stop: int
    member: int


def size_of(block: bytes) -> int:
    """Return the size that a header claims, or -1 where its field makes no sense.

    Args:
        block: 512 bytes.
    """
    field = block[124:136]
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.strip(b" \0") or b"0", 8) if _OCTAL.match(field) else -1


def checks(block: bytes) -> bool:
    """Return whether a header's checksum is right, counted either way.

    Args:
        block: 512 bytes.
    """
    field = block[148:156].partition(b"\0")[0]  # what stands behind the number says nothing
    if len(block) < BLOCK or not _OCTAL.match(field):
        return False
    claimed = int(field.strip() or b"0", 8)
    return claimed in {checksum(block), checksum(block, signed=True)}


@lru_cache(maxsize=32)
def regions(archive: bytes) -> tuple[Region, ...]:
    """Return the regions of an undamaged archive, in order, without gaps and without empty ones.

    Args:
        archive: a whole archive without sparse members, size records or archives after the first.
    """
    found, offset, member = [], 0, 0
    while offset < len(archive) and archive[offset] != 0:
        block = archive[offset : offset + BLOCK]
        record = block[156:157] in _EXTENSIONS
        name, contents = ("record", "record") if record else ("", "payload")
        stop = offset + BLOCK + size_of(block)
        padded = stop + -stop % BLOCK
        found.append(Region(f"{name} header".strip(), offset, offset + BLOCK, member))
        found.append(Region(contents, offset + BLOCK, stop, member))
        found.append(Region(f"{name} padding".strip(), stop, padded, member))
        offset = padded
        member += not record
    found.append(Region("end", offset, len(archive), member))
    return tuple(region for region in found if region.stop > region.start)


def flaw(archive: bytes) -> str | None:
    """Say why bytes are not a whole archive, or None where they are.

    Args:
        archive: any bytes.

    Returns:
        ``header``: neither a header with a right checksum nor two blocks of zeros where a header belongs;
        ``record``: the contents of a long name or an extended header make no sense;
        ``cut``: the bytes end inside a header, payload or padding;
        ``end``: they end between members, without the mark;
        None: members from end to end and at least one block of zeros last. Damage without a flaw imitates an archive.
    """
    offset = 0
    while offset < len(archive):
        block = archive[offset : offset + BLOCK]
        if not any(block):
            after = _after_zeros(archive, offset)
            lone = after - offset < 2 * BLOCK
            if after >= len(archive):
                return None if after - offset >= BLOCK else "cut"
            if lone:
                return "header"
            offset = after
            continue
        if len(block) < BLOCK:
            return "cut"
        if not checks(block) or size_of(block) < 0:
            return "header"
        size = size_of(block)
        stop = offset + BLOCK + size + -size % BLOCK
        if block[156:157] in _EXTENSIONS and not _sensible(block[156:157], archive[offset + BLOCK :][:size]):
            return "record" if stop <= len(archive) else "cut"
        offset = stop
    return "end" if offset == len(archive) else "cut"


def _after_zeros(archive: bytes, offset: int) -> int:
    """Return the offset of the first block from ``offset`` on that is not all zeros, or the length of the archive."""
    while offset < len(archive) and not any(archive[offset : offset + BLOCK]):
        offset += BLOCK
    return min(offset, len(archive))


def _sensible(kind: bytes, record: bytes) -> bool:
    if kind in b"LK":
        return record[:1] != b"\0" and record.endswith(b"\0")
    while record:
        found = _RECORD.match(record)
        length = int(found[1]) if found else 0
        if not found or length > len(record) or record[length - 1 : length] != b"\n" or b"=" not in record[:length]:
            return False
        record = record[length:]
    return True
