"""Damages archives as disks, networks and programs do, from a seed, and says which damage a reader can see.

The result is the damaged bytes and a sentence on what was done; the same archive and seed give the same damage.

Theory. Headers carry a checksum; payloads carry none. So damage *within* payloads (or names in extended headers) cannot
be seen, and neither can damage whose result is itself a whole archive:
:func:`webdataset.testing.damage.flaw` decides that, by the plainest means and independently of the reader.
Source: POSIX.1-2017 ``pax``.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from webdataset.core.seeds import make_rng
from webdataset.testing.archives import BLOCK, checksum

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
    # what follows the number says nothing
    field = block[148:156].partition(b"\0")[0]
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


CUTS = ("header", "payload", "padding", "boundary", "end")
HEADERS = ("header", "record header")


class Damaged(NamedTuple):
    """A damaged archive.

    Args:
        data: its bytes.
        description: what was done and where, for the message of a failing test.
    """

    data: bytes
    description: str


Operator = Callable[[bytes, int], Damaged]


def _chosen(archive: bytes, rng: random.Random, *kinds: str) -> Region:
    return rng.choice([region for region in regions(archive) if region.kind in kinds])


def _place(archive: bytes, offset: int) -> str:
    region = next((region for region in regions(archive) if region.start <= offset < region.stop), None)
    return f"offset {offset} ({region.kind} of member {region.member})" if region else f"offset {offset} (the very end)"


def _flipped(archive: bytes, offset: int, bit: int) -> Damaged:
    byte = bytes([archive[offset] ^ (1 << bit)])
    data = archive[:offset] + byte + archive[offset + 1 :]
    return Damaged(data, f"bit {bit} flipped at {_place(archive, offset)}")


def flip_header_bit(archive: bytes, seed: int) -> Damaged:
    """Flip one bit of a header.

    Args:
        archive: a whole archive, uncompressed.
        seed: which bit.
    """
    rng = make_rng("damage", seed)
    region = _chosen(archive, rng, *HEADERS)
    return _flipped(archive, rng.randrange(region.start, region.stop), rng.randrange(8))


def flip_payload_bit(archive: bytes, seed: int) -> Damaged:
    """Flip one bit of a payload: damage that the format cannot show.

    Args:
        archive: a whole archive, uncompressed.
        seed: which bit.
    """
    rng = make_rng("damage", seed)
    region = _chosen(archive, rng, "payload")
    return _flipped(archive, rng.randrange(region.start, region.stop), rng.randrange(8))


def flip_any_bit(data: bytes, seed: int) -> Damaged:
    """Flip one bit anywhere, in bytes of any kind (a compressed archive).

    Args:
        data: any bytes.
        seed: which bit.
    """
    rng = make_rng("damage", seed)
    offset, bit = rng.randrange(len(data)), rng.randrange(8)
    return Damaged(
        data[:offset] + bytes([data[offset] ^ (1 << bit)]) + data[offset + 1 :], f"bit {bit} of byte {offset} flipped"
    )


def zero_block(archive: bytes, seed: int) -> Damaged:
    """Overwrite one block with zeros.

    Args:
        archive: a whole archive, uncompressed.
        seed: which block.
    """
    start = _block(archive, seed)
    data = archive[:start] + bytes(BLOCK) + archive[start + BLOCK :]
    return Damaged(data, f"block zeroed at {_place(archive, start)}")


def insert_zeros(archive: bytes, seed: int) -> Damaged:
    """Insert one block of zeros.

    Args:
        archive: a whole archive, uncompressed.
        seed: where.
    """
    start = _block(archive, seed)
    return Damaged(archive[:start] + bytes(BLOCK) + archive[start:], f"zeros inserted at {_place(archive, start)}")


def insert_noise(archive: bytes, seed: int) -> Damaged:
    """Insert one block of random bytes.

    Args:
        archive: a whole archive, uncompressed.
        seed: where and what.
    """
    start = _block(archive, seed)
    noise = make_rng("noise", seed).randbytes(BLOCK)
    return Damaged(archive[:start] + noise + archive[start:], f"noise inserted at {_place(archive, start)}")


def delete_block(archive: bytes, seed: int) -> Damaged:
    """Leave one block out.

    Args:
        archive: a whole archive, uncompressed.
        seed: which block.
    """
    start = _block(archive, seed)
    return Damaged(archive[:start] + archive[start + BLOCK :], f"block deleted at {_place(archive, start)}")


def _block(archive: bytes, seed: int) -> int:
    """Choose a block that is not zeros already (those of the end mark are), so that every trial damages something."""
    rng = make_rng("damage", seed)
    while True:
        start = rng.randrange(len(archive) // BLOCK) * BLOCK
        if any(archive[start : start + BLOCK]):
            return start


def cut(archive: bytes, seed: int, *, place: str | None = None) -> Damaged:
    """Cut the archive off.

    Args:
        archive: a whole archive, uncompressed.
        seed: where.
        place: one of ``CUTS``: inside a header, a payload or a padding, between two members, or in the end mark. By
            default one of them, chosen by the seed.
    """
    rng = make_rng("damage", seed)
    place = rng.choice(CUTS) if place is None else place
    stop = _cut_offset(archive, rng, place)
    return Damaged(archive[:stop], f"cut ({place}) at {_place(archive, stop)}")


def _cut_offset(archive: bytes, rng: random.Random, place: str) -> int:
    if place == "boundary":
        return rng.choice([region.start for region in regions(archive) if region.kind in ("header", "end")])
    kinds = HEADERS if place == "header" else (place,)
    inside = [region for region in regions(archive) if region.kind in kinds and region.stop - region.start > 1]
    region = rng.choice(inside)
    return rng.randrange(region.start + 1, region.stop)


OPERATORS: dict[str, Operator] = {
    "flip_header_bit": flip_header_bit,
    "flip_payload_bit": flip_payload_bit,
    "zero_block": zero_block,
    "insert_zeros": insert_zeros,
    "insert_noise": insert_noise,
    "delete_block": delete_block,
    "cut": cut,
}
