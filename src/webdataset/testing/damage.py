"""Damage done to order: what disks, networks and programs do to archives, from a seed.

Flows in: an archive and a seed. Flows out: the damaged bytes and a sentence that says what was done. The same archive
and seed give the same damage, so any failing trial runs again from its two numbers.

What a tar reader can know. Headers carry a checksum; payloads carry none. So damage *within* payloads cannot be seen
(nor within names kept in extended headers), and neither can damage whose result is itself a whole archive:
:func:`webdataset.testing.layout.flaw` decides that. Everything else must be reported.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

from webdataset.ground.seeds import generator

from .handmade import BLOCK
from .layout import Region, regions

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
    rng = generator("damage", seed)
    region = _chosen(archive, rng, *HEADERS)
    return _flipped(archive, rng.randrange(region.start, region.stop), rng.randrange(8))


def flip_payload_bit(archive: bytes, seed: int) -> Damaged:
    """Flip one bit of a payload: damage that the format cannot show.

    Args:
        archive: a whole archive, uncompressed.
        seed: which bit.
    """
    rng = generator("damage", seed)
    region = _chosen(archive, rng, "payload")
    return _flipped(archive, rng.randrange(region.start, region.stop), rng.randrange(8))


def flip_any_bit(data: bytes, seed: int) -> Damaged:
    """Flip one bit anywhere, in bytes of any kind (a compressed archive).

    Args:
        data: any bytes.
        seed: which bit.
    """
    rng = generator("damage", seed)
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
    noise = generator("noise", seed).randbytes(BLOCK)
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
    rng = generator("damage", seed)
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
    rng = generator("damage", seed)
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
