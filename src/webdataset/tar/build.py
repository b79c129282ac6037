"""Members to bytes: the header blocks before a payload, the zeros after it, the end mark. No input or output.

Flows in: a member's name and size. Flows out: the bytes that go before its payload. Never touches the payload.

A header is one ustar block where everything fits: an ASCII name of at most 100 bytes (or one that splits at a slash
into a prefix of 155 and a name of 100) and numbers within their octal digits. What does not fit is said by PAX
records in a member before it (POSIX.1-2001), or in GNU's way (a long-name member, base-256 numbers) where that is
asked for, and for names that are not UTF-8. Headers of one writer differ in name, size and checksum only, so
:func:`header_maker` lays the rest down once. The checksum is the sum of the bytes; the low half of Adler-32 is that
sum plus one, mod 65521: no name and size reach it.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Final
from zlib import adler32

from webdataset.ground.errors import SampleError, UsageError

from .blocks import MAX_OCTAL_12, OWNER_BYTES, PADDING, extension_member, header_block, pax_records
from .header import BLOCK, Limits
from .style import EPOCH, MemberStyle, checked, number_records, owner_fits, raw_text, tar_format

__all__ = [
    "END_MARK",
    "EPOCH",
    "MAX_NAME_BYTES",
    "PADDING",
    "MemberStyle",
    "header_maker",
    "member_header",
    "tar_format",
]

END_MARK: Final = bytes(2 * BLOCK)
"""Two blocks of zeros: the end of an archive."""

MAX_NAME_BYTES: Final = Limits().name_bytes - 1
"""Longest member name that is written: beyond any file system's limit, within our reader's."""

HeaderMaker = Callable[[str, int], bytes]


def member_header(
    name: str,
    size: int,
    *,
    mtime: float = EPOCH,
    mode: int = 0o444,
    uid: int = 0,
    gid: int = 0,
    uname: str = "",
    gname: str = "",
    format: int | str | None = None,  # noqa: A002  tarfile's word
) -> bytes:
    """Return all header blocks of one regular file.

    Args:
        name: the member's name; bytes that are not UTF-8 as surrogate escapes.
        size: payload in bytes.
        mtime: modification time in seconds since 1970.
        mode: permission bits.
        uid: number of the owning user.
        gid: number of the owning group.
        uname: name of the owning user.
        gname: name of the owning group.
        format: see :func:`tar_format`.

    Returns:
        512 bytes, or more where records go before the header.

    Raises:
        SampleError: a name or size that the format cannot hold, or no name of a file.
        UsageError: another field that the format cannot hold.
    """
    return header_maker(MemberStyle(mtime, mode, uid, gid, uname, gname, tar_format(format)))(name, size)


def header_maker(style: MemberStyle) -> HeaderMaker:
    """Return ``f(name, size) -> header blocks`` for members of one style; it raises as :func:`member_header` does.

    Args:
        style: what the members share.

    Raises:
        UsageError: a field that the style's format cannot hold.
    """
    style = checked(style)

    def any_header(name: str, size: int) -> bytes:
        return _header(name, size, style)

    block = any_header("n", 0)
    return _templated(block, any_header) if len(block) == BLOCK else any_header


def _templated(block: bytes, any_header: HeaderMaker) -> HeaderMaker:
    """Return a maker that fills name, size and checksum into ``block``, and leaves rare names to ``any_header``."""
    heads = [bytes(100 - used) + block[100:124] for used in range(101)]
    after_size, tail = block[135:148], block[154:]
    constant = sum(block[100:124]) + sum(after_size) + 8 * 0x20 + sum(block[156:]) - 1
    checksums = [b"%06o" % total for total in range(constant, constant + 100 * 0x7F + 11 * 0x37 + 2)]

    def header(name: str, size: int) -> bytes:
        if len(name) > 100 or size > MAX_OCTAL_12 or not name.isascii() or "\0" in name or name[-1:] in ("", "/"):
            return any_header(name, size)
        raw = name.encode()
        digits = b"%011o" % size
        return raw + heads[len(raw)] + digits + after_size + checksums[adler32(digits, adler32(raw)) & 0xFFFF] + tail

    return header


def _header(name: str, size: int, style: MemberStyle) -> bytes:
    """Return the header blocks of any member: the slow way that knows every format."""
    raw = _raw_name(name)
    if size < 0:
        raise UsageError(f"a member cannot have {size} bytes")
    if style.format == "gnu" or (style.format == "auto" and not _is_utf8(raw) and _gnu_fits(style)):
        style = dataclasses.replace(style, format="gnu")
        extension = extension_member(b"././@LongLink", b"L", raw + b"\0", gnu=True) if len(raw) > 100 else b""
        return extension + _block(raw[:100], b"", size, style)
    split = _split(raw)
    if style.format == "ustar":
        return _ustar_header(name, split, size, style)
    records = number_records(style)
    if split is None or not name.isascii():
        records.append((b"path", raw))
        split = b"", name.encode("ascii", "replace")[:100]
    if size > MAX_OCTAL_12:
        records.append((b"size", b"%d" % size))
    records += [(word, raw_text(each)) for word, each in _owners(style) if not owner_fits(each, style)]
    extension = extension_member(b"././@PaxHeader", b"x", pax_records(records)) if records else b""
    return extension + _block(split[1], split[0], size, style)


def _is_utf8(raw: bytes) -> bool:
    """Tell whether a name is UTF-8: what a PAX record holds without ``hdrcharset``, of which GNU tar warns."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _gnu_fits(style: MemberStyle) -> bool:
    return all(len(raw_text(owner)) <= OWNER_BYTES for _, owner in _owners(style))


def _ustar_header(name: str, split: tuple[bytes, bytes] | None, size: int, style: MemberStyle) -> bytes:
    if split is None:
        raise SampleError(
            "format='ustar' holds names of 100 bytes, or 255 with a slash in the right place: leave format out",
            field=name,
        )
    if size > MAX_OCTAL_12:
        raise SampleError(f"format='ustar' cannot hold a member of {size} bytes: leave format out", field=name)
    return _block(split[1], split[0], size, style)


def _raw_name(name: str) -> bytes:
    try:
        raw = raw_text(name)
    except UnicodeEncodeError as error:
        raise SampleError("a member's name holds a character that has no bytes", field=ascii(name)) from error
    if not raw or b"\0" in raw or raw.endswith(b"/"):
        raise SampleError("not the name of a file: it is empty, ends in a slash or holds a NUL", field=name)
    if len(raw) > MAX_NAME_BYTES:
        raise SampleError(
            f"a member's name of {len(raw)} bytes is longer than {MAX_NAME_BYTES}", field=name[:100] + "…"
        )
    return raw


def _split(raw: bytes) -> tuple[bytes, bytes] | None:
    """Return (prefix, name) as a ustar header holds them, or None."""
    if len(raw) <= 100:
        return b"", raw
    slash = raw.find(b"/", max(1, len(raw) - 101))
    return None if slash < 0 or slash > 155 else (raw[:slash], raw[slash + 1 :])


def _owners(style: MemberStyle) -> tuple[tuple[bytes, str], tuple[bytes, str]]:
    return (b"uname", style.uname), (b"gname", style.gname)


def _block(name: bytes, prefix: bytes, size: int, style: MemberStyle) -> bytes:
    """Return the member's own block; names of owners that a record says are kept as far as they fit."""
    unames = [
        raw_text(each) if owner_fits(each, style) else each.encode("ascii", "replace")[:31]
        for _, each in _owners(style)
    ]
    return header_block(
        name,
        size,
        prefix=prefix,
        mode=style.mode,
        uid=style.uid,
        gid=style.gid,
        mtime=math.floor(style.mtime),
        uname=unames[0],
        gname=unames[1],
        gnu=style.format == "gnu",
    )
