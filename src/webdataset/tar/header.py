"""Parses one tar header block, and PAX extended header records, exactly: the slow and complete path of the scanner.

A tar header is 512 bytes: name, mode, owner, size, mtime, checksum, type, link name, then (ustar) magic, owner names,
device numbers and a name prefix. Numbers are octal text, or base-256 where the first bit is set. The checksum is the
sum of all bytes with the checksum field itself taken as spaces; some early writers summed signed bytes, so both are
accepted. (POSIX.1-2017, pax; GNU tar manual, "Basic Tar Format".)

The body of an ``x`` or ``g`` header holds records ``length keyword=value``, each ended by a newline; they describe
the next member (:class:`MemberExtension`).

A block is a :class:`Header` or raises BadHeader; nothing is guessed.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from webdataset.core import errors

BLOCK = 512
ZEROS = bytes(BLOCK)
REGULAR = frozenset(b"0\x007")
SPARSE = ord("S")
LONG_NAME = ord("L")
LONG_LINK = ord("K")
PAX_LOCAL = frozenset(b"xX")
PAX_GLOBAL = ord("g")
HARD_LINK = ord("1")
SYMBOLIC_LINK = ord("2")
WITHOUT_BODY = frozenset(b"123456")
CONTINUATION = ord("M")
# int() reads these in numbers
_STRICT = bytes.maketrans(b"_+oO", b"????")
_OCTAL = frozenset(b"01234567")


class Limits(NamedTuple):
    """Bounds that a hostile or damaged archive runs into.

    Args:
        chain: extended headers in a row before one member.
        record_bytes: size of one extended header (long name or PAX records).
        name_bytes: length of a member's name.
        expanded_bytes: size of a sparse member after expansion.
    """

    chain: int = 64
    record_bytes: int = 1 << 20
    name_bytes: int = 1 << 16
    expanded_bytes: int = 1 << 33


class Header(NamedTuple):
    """What one header block says."""

    name: bytes
    size: int
    kind: int
    block: bytes


def parse_number(field: bytes, what: str, offset: int) -> int:
    """Read the number field ``what`` of the header at ``offset``: octal text, or base-256.

    Raises:
        BadHeader: neither, or negative.
    """
    if field[0] & 0x80:
        value = int.from_bytes(field, "big", signed=True) if field[0] == 0xFF else int.from_bytes(field[1:], "big")
        value += (field[0] & 0x7F) << (8 * (len(field) - 1)) if field[0] != 0xFF else 0
    else:
        text = field.partition(b"\0")[0].strip()
        try:
            value = int(text.translate(_STRICT), 8) if text else 0
        except ValueError:
            raise errors.BadHeader(f"tar header has {field!r} for its {what}", offset=offset) from None
    if value < 0:
        raise errors.BadHeader(f"tar header has a negative {what}", offset=offset)
    return value


def parse_checksum(field: bytes) -> int | None:
    """Return the number in a checksum field; None where it holds none. One reading of it for every path."""
    text = field.partition(b"\0")[0].strip()
    return int(text, 8) if text and _OCTAL.issuperset(text) else None


_ASCII = bytes(range(128))


def is_checksum_right(block: bytes) -> bool:
    """Tell whether a header's checksum is right, summing bytes unsigned or (as early writers did) signed."""
    stored = parse_checksum(block[148:156])
    if stored is None:
        return False
    rest = block[:148] + block[156:]
    unsigned = sum(rest) + 8 * 32
    return stored == unsigned or stored == unsigned - 256 * len(rest.translate(None, _ASCII))


_CONTENTS = {
    b"PK\x03\x04": "a zip archive; write the files into a tar archive",
    b"PAR1": "a Parquet file; 'wds convert' makes shards of its rows",
    b"ARROW1": "an Arrow file; 'wds convert' makes shards of its rows",
    b"\x89HDF": "an HDF5 file; write its items with wds.ShardWriter",
    b"\x89PNG": "a PNG image; put images into a tar archive",
    b"\xff\xd8\xff": "a JPEG image; put images into a tar archive",
    b"%PDF": "a PDF document",
    b"version https://git-lfs": "a Git LFS pointer; fetch the file itself with `git lfs pull`",
}


def describe_content(block: bytes) -> str | None:
    """Return what a file that is no tar archive is, by its first 512 bytes, or None."""
    for magic, found in _CONTENTS.items():
        if block.startswith(magic):
            return found
    start = block.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head")):
        return "an HTML page: the server sent it in place of the shard; open the url in a browser, or sign in"
    if start.startswith((b"<?xml", b"<error")):
        return "XML, perhaps a server's error message in place of the shard"
    if start.startswith((b"{", b"[")) and b"\0" not in block:
        return "JSON"
    return _describe_records(block)


def _describe_records(block: bytes) -> str | None:
    """Return what a record shard is; it begins with a map whose first name, in what this library writes, is the key."""
    first = block[:1]
    if b"__key__" not in block[:32]:
        return None
    if b"\x80" <= first <= b"\x8f" or first in (b"\xde", b"\xdf"):
        return "a record shard of msgpack maps; read it with wds.msgpacks_to_samples()"
    if b"\xa0" <= first <= b"\xbf":
        return "a record shard of CBOR maps; read it with wds.cbors_to_samples()"
    return None


def parse_header(block: bytes, offset: int) -> Header:
    """Read one header block that is not all zero; its name has the ustar prefix where there is one.

    Raises:
        BadHeader: the checksum disagrees or a number cannot be read.
    """
    if not is_checksum_right(block):
        found = describe_content(block) if offset == 0 else None
        raise errors.BadHeader(
            f"tar header fails its checksum at byte {offset}: the shard is damaged there, or it is not a tar file"
            if found is None
            else f"not a tar archive: its content is {found}",
            offset=offset,
        )
    name = block[:100].partition(b"\0")[0]
    prefix = path_prefix(block)
    kind = block[156]
    if kind == 0 and name.endswith(b"/"):
        kind = ord("5")
    return Header(prefix + name, parse_number(block[124:136], "size", offset), kind, block)


def link_target(block: bytes) -> bytes:
    """Return the name of the member that a link's header points to."""
    return block[157:257].partition(b"\0")[0]


def path_prefix(block: bytes) -> bytes:
    """Return the ustar name prefix with its slash; GNU headers use those bytes for other things."""
    if block[257:263] != b"ustar\0":
        return b""
    prefix = block[345:500].partition(b"\0")[0]
    return prefix + b"/" if prefix else b""


# a body holding none of these says nothing about the next member's name, size or layout
DECISIVE = re.compile(rb"path=|size=|GNU\.sparse\.|hdrcharset=")


class MemberExtension(NamedTuple):
    """What extended headers say about the member that follows.

    Args:
        name: its name, or None.
        size: bytes stored for it, or None.
        sparse: GNU.sparse records, in order.
        link: name of the member that it links to, or None.
        gnu_name: its name by a GNU header; a PAX record, wherever it stands, comes first.
        gnu_link: what it links to by a GNU header.
    """

    name: bytes | None = None
    size: int | None = None
    sparse: tuple[tuple[bytes, bytes], ...] = ()
    link: bytes | None = None
    gnu_name: bytes | None = None
    gnu_link: bytes | None = None


NO_EXTENSION = MemberExtension()


def parse_pax_records(body: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield (keyword, value) of each record of an extended header's body.

    Raises:
        BadHeader: a record that is not of the form above.
    """
    if body and not body.strip(b"\0"):
        raise errors.BadHeader(f"PAX header at byte {offset} says nothing: its records were zeroed", offset=offset)
    position = 0
    # some writers fill up with zeros
    while position < len(body) and body[position] != 0:
        space = body.find(b" ", position, position + 20)
        length = body[position:space] if space > 0 else b""
        stop = position + int(length) if length.isdigit() else 0
        equals = body.find(b"=", space, stop)
        if not (space < equals < stop <= len(body)) or body[stop - 1] != 0x0A:
            raise errors.BadHeader(f"PAX header at byte {offset} has a malformed record", offset=offset)
        yield body[space + 1 : equals], body[equals + 1 : stop - 1]
        position = stop


def apply_pax_header(known: MemberExtension, body: bytes, offset: int) -> MemberExtension:
    """Add the records of a PAX header's body to what is known of the next member.

    Raises:
        BadHeader: a malformed record or size.
    """
    name, size, sparse, link = known.name, known.size, list(known.sparse), known.link
    for keyword, value in parse_pax_records(body, offset):
        # some writers fill names up with NULs; GNU tar and bsdtar end them there, too
        text = value.partition(b"\0")[0]
        if keyword == b"path":
            name = text.rstrip(b"/") or name
        elif keyword == b"GNU.sparse.name":
            sparse.append((keyword, text))
            name = text
        elif keyword == b"linkpath":
            link = text
        elif keyword == b"size":
            if not value.isdigit():
                raise errors.BadHeader(f"PAX header at byte {offset} has size {value!r}", offset=offset)
            size = int(value)
        elif keyword.startswith(b"GNU.sparse."):
            sparse.append((keyword, value))
    for keyword, value in sparse:
        if keyword == b"GNU.sparse.name":
            name = value
    return known._replace(name=name, size=size, sparse=tuple(sparse), link=link)
