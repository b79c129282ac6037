"""The members of one sample as their headers tell: kind, mode, time, extended records, and where each stands.

The headers are read anew from the shard, so that what is shown is what stands there. What cannot be read ends the list.
"""

from collections.abc import Callable
from typing import Any, Final

from webdataset.core.errors import FormatError
from webdataset.index.entries import SampleEntry
from webdataset.tar.header import (
    BLOCK,
    HARD_LINK,
    PAX_GLOBAL,
    PAX_LOCAL,
    REGULAR,
    SPARSE,
    SYMBOLIC_LINK,
    Limits,
    link_target,
    parse_header,
    parse_number,
    parse_pax_records,
)

ReadAt = Callable[[int, int], bytes]

_MOST_MEMBERS: Final = 1000
_MOST_RECORDS: Final = 64
_MOST_TEXT: Final = 1000
_EXTENDED: Final = PAX_LOCAL | {PAX_GLOBAL, ord("L"), ord("K")}
_KINDS: Final = {
    HARD_LINK: "hard link", SYMBOLIC_LINK: "symbolic link", ord("3"): "character device", ord("4"): "block device",
    ord("5"): "folder", ord("6"): "FIFO", SPARSE: "sparse file",
}  # fmt: skip


def list_members(entry: SampleEntry, stop: int | None, read_at: ReadAt) -> list[dict[str, Any]]:
    """Return what the headers of a sample's members say, in their order.

    Args:
        entry: of the sample.
        stop: where the next sample starts; None where the sample is the last that is known.
        read_at: reads the tar stream: offset, count.

    Returns:
        ``name``, ``header_offset`` (of the first header), ``offset`` (of the payload), ``size_bytes``, ``type``,
        ``mode``, ``mtime`` (seconds since 1970), ``pax`` (records of extended headers), and ``target`` of links.
    """
    named = {field.member: field for field in entry.fields}
    last = max((field.offset for field in entry.fields if field.offset >= entry.offset), default=entry.offset)
    members: list[dict[str, Any]] = []
    position = entry.offset
    while len(members) < _MOST_MEMBERS and (position < stop if stop is not None else position <= last):
        try:
            found = _read_member(position, read_at)
        except FormatError:
            break
        if found is None:
            break
        member, position = found
        field = named.get(member["name"])
        if field is not None and field.offset == member["offset"]:
            # of a sparse member, bytes after expansion
            member["size_bytes"] = field.size
        members.append(member)
    return members


def _read_member(position: int, read_at: ReadAt) -> tuple[dict[str, Any], int] | None:
    """Return a member and where the next one stands; None at the end of the archive."""
    start = position
    pax: dict[bytes, bytes] = {}
    long_name: bytes | None = None
    limits = Limits()
    for _ in range(limits.chain + 1):
        block = read_at(position, BLOCK)
        if len(block) < BLOCK or not any(block):
            return None
        header = parse_header(block, position)
        position += BLOCK
        if header.kind not in _EXTENDED:
            name = pax.get(b"GNU.sparse.name") or pax.get(b"path") or long_name or header.name
            size = int(pax[b"size"]) if pax.get(b"size", b"").isdigit() else header.size
            return _describe(name, block, header.kind, start, position, size, pax), position + (size + 511 & -512)
        if header.size > limits.record_bytes:
            return None
        body = read_at(position, header.size)
        if header.kind == ord("L"):
            long_name = body.rstrip(b"\0")
        elif header.kind in PAX_LOCAL:
            pax.update(parse_pax_records(body, position - BLOCK))
        position += header.size + 511 & -512
    return None


def _describe(  # noqa: PLR0917  what a header says
    name: bytes, block: bytes, kind: int, start: int, payload: int, size: int, pax: dict[bytes, bytes]
) -> dict[str, Any]:
    member: dict[str, Any] = {
        "name": name.decode("utf-8", "surrogateescape"),
        "header_offset": start,
        "offset": payload,
        "size_bytes": size,
        "type": "file" if kind in REGULAR else _KINDS.get(kind, repr(chr(kind))),
        "mode": _parse(block[100:108]),
        "mtime": _parse(block[136:148]),
        "pax": {
            word[:_MOST_TEXT].decode("utf-8", "replace"): text[:_MOST_TEXT].decode("utf-8", "replace")
            for word, text in list(pax.items())[:_MOST_RECORDS]
        },
    }
    if kind in {HARD_LINK, SYMBOLIC_LINK}:
        member["target"] = (pax.get(b"linkpath") or link_target(block)).decode("utf-8", "surrogateescape")
    return member


def _parse(field: bytes) -> int | None:
    """Return a number of a header; None where it holds none."""
    try:
        return parse_number(field, "number", 0)
    except FormatError:
        return None
