"""Expands sparse members: puts the stored pieces back between their holes.

GNU tar stores a sparse file as a map of (offset, length) pieces and the bytes of the pieces in a row. The map stands
in the header (old GNU, type ``S``, with extension blocks), in PAX records (0.0: repeated offset/numbytes, 0.1: one
list), or in front of the stored bytes (1.0). (GNU tar manual, "Storing Sparse Files".)

Never allocates more than the limit.
"""

import io
from collections.abc import Sequence
from typing import NamedTuple

from webdataset.core import errors
from webdataset.tar.header import BLOCK, parse_number


class SparseMap(NamedTuple):
    """Where the stored pieces of a member of ``size`` bytes go.

    Args:
        pieces: (offset, length) in bytes, or None where the map stands in front of the stored bytes (format 1.0).
        size: bytes of the whole member.
    """

    pieces: tuple[tuple[int, int], ...] | None
    size: int


def parse_old_map(block: bytes, offset: int) -> tuple[SparseMap, bool]:
    """Read the map in an old GNU sparse header; return it so far, and whether extension blocks follow."""
    pieces = _parse_entries(block[386:482], offset)
    return SparseMap(pieces, parse_number(block[483:495], "sparse size", offset)), bool(block[482])


def parse_map_extension(known: SparseMap, block: bytes, offset: int) -> tuple[SparseMap, bool]:
    """Add one extension block to an old GNU sparse map; tell whether another follows."""
    return SparseMap((known.pieces or ()) + _parse_entries(block[:504], offset), known.size), bool(block[504])


def _parse_entries(table: bytes, offset: int) -> tuple[tuple[int, int], ...]:
    pieces = []
    for start in range(0, len(table), 24):
        entry = table[start : start + 24]
        if not entry.strip(b"\0 "):
            break
        pieces.append(
            (parse_number(entry[:12], "sparse offset", offset), parse_number(entry[12:], "sparse length", offset))
        )
    return tuple(pieces)


def parse_record_map(found: Sequence[tuple[bytes, bytes]], offset: int) -> SparseMap:
    """Read the map in GNU.sparse records of formats 0.0, 0.1 and 1.0.

    Raises:
        BadHeader: records that make no map.
    """
    single = dict(found)
    try:
        if single.get(b"GNU.sparse.major") == b"1":
            return SparseMap(None, int(single[b"GNU.sparse.realsize"]))
        if b"GNU.sparse.map" in single:
            flat = [int(part) for part in single[b"GNU.sparse.map"].split(b",") if part]
        else:
            flat = [int(value) for keyword, value in found if keyword in (b"GNU.sparse.offset", b"GNU.sparse.numbytes")]
        size = int(single.get(b"GNU.sparse.size") or single[b"GNU.sparse.realsize"])
    except (ValueError, KeyError):
        raise errors.BadHeader(f"PAX header at byte {offset} has an unreadable sparse map", offset=offset) from None
    return SparseMap(tuple(zip(flat[::2], flat[1::2], strict=False)), size)


def expand_sparse(layout: SparseMap, stored: bytes, offset: int, limit: int) -> bytes:
    """Put the stored pieces between their holes, up to ``limit`` bytes.

    Raises:
        BadHeader: pieces that overlap, overrun the member or do not match the stored bytes.
        LimitExceeded: the member would be larger than ``limit``.
    """
    pieces = layout.pieces
    if pieces is None:
        pieces, stored = _parse_leading_map(stored, offset)
    if layout.size > limit:
        raise errors.LimitExceeded(
            f"sparse member at byte {offset} expands to {layout.size} bytes (limit {limit})", offset=offset
        )
    # its holes are filled where the next piece is written, and its value is no copy
    whole, rest = io.BytesIO(), memoryview(stored)
    taken = reached = 0
    for start, length in pieces:
        if start < reached or start + length > layout.size or taken + length > len(stored):
            raise errors.BadHeader(f"sparse member at byte {offset} has pieces outside of itself", offset=offset)
        whole.seek(start)
        whole.write(rest[taken : taken + length])
        taken += length
        reached = start + length
    if taken != len(stored):
        raise errors.BadHeader(
            f"sparse member at byte {offset} stores {len(stored)} bytes, its map {taken}", offset=offset
        )
    # an empty piece at the end writes nothing
    if whole.seek(0, io.SEEK_END) < layout.size:
        whole.seek(layout.size - 1)
        whole.write(b"\0")
    return whole.getvalue()


def _parse_leading_map(stored: bytes, offset: int) -> tuple[tuple[tuple[int, int], ...], bytes]:
    position = 0

    def line() -> int:
        nonlocal position
        stop = stored.find(b"\n", position, position + 24)
        text = stored[position:stop] if stop >= 0 else b""
        if not text.isdigit():
            raise errors.BadHeader(f"sparse member at byte {offset} starts with an unreadable map", offset=offset)
        position = stop + 1
        return int(text)

    count = line()
    if count > len(stored):
        raise errors.BadHeader(f"sparse member at byte {offset} claims {count} pieces", offset=offset)
    pieces = tuple((line(), line()) for _ in range(count))
    return pieces, stored[-(-position // BLOCK) * BLOCK :]
