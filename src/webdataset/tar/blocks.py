"""The pieces that headers are made of: one block from its fields, and PAX records, in the writing direction.

Flows in: fields as numbers and bytes. Flows out: blocks. Never decides which format a member needs: ``build`` does.
"""

from collections.abc import Iterable
from typing import Final

from .header import BLOCK

MAX_OCTAL_8: Final = 0o7777777
MAX_OCTAL_12: Final = 0o77777777777
OWNER_BYTES: Final = 31

PADDING: Final = tuple(bytes(-size % BLOCK) for size in range(BLOCK))
"""``PADDING[size & 511]``: the zeros after a payload of ``size`` bytes."""

_MAGIC = b"ustar\x0000"
_GNU_MAGIC = b"ustar  \0"


def header_block(
    name: bytes,
    size: int,
    *,
    prefix: bytes = b"",
    typeflag: bytes = b"0",
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    mtime: int = 0,
    uname: bytes = b"",
    gname: bytes = b"",
    gnu: bool = False,
) -> bytes:
    """Return one header block of 512 bytes with its checksum.

    Args:
        name: at most 100 bytes.
        size: payload in bytes.
        prefix: at most 155 bytes that go before the name and a slash.
        typeflag: one byte; ``0`` is a regular file.
        mode: permission bits.
        uid: number of the owning user.
        gid: number of the owning group.
        mtime: modification time in seconds since 1970.
        uname: name of the owning user, at most 31 bytes.
        gname: name of the owning group, at most 31 bytes.
        gnu: write GNU's magic, and base-256 for numbers too large for octal digits; without it such numbers become
            0, for a record before the block says them.
    """
    before = b"".join(
        (
            name.ljust(100, b"\0"),
            _number(mode, 8, wide=gnu),
            _number(uid, 8, wide=gnu),
            _number(gid, 8, wide=gnu),
            _number(size, 12, wide=gnu),
            _number(mtime, 12, wide=gnu),
        )
    )
    after = b"".join(
        (
            typeflag,
            bytes(100),
            _GNU_MAGIC if gnu else _MAGIC,
            uname.ljust(32, b"\0"),
            gname.ljust(32, b"\0"),
            bytes(16) if gnu else b"0000000\0" * 2,
            prefix.ljust(155, b"\0"),
            bytes(12),
        )
    )
    return before + b"%06o\0 " % (sum(before) + sum(after) + 8 * 0x20) + after


def _number(number: int, width: int, *, wide: bool) -> bytes:
    if 0 <= number < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, number)
    if not wide:
        return b"%0*o\0" % (width - 1, 0)
    return number.to_bytes(width, "big", signed=True) if number < 0 else b"\x80" + number.to_bytes(width - 1, "big")


def pax_record(keyword: bytes, text: bytes) -> bytes:
    """Return one record, ``length keyword=value newline``; the length counts its own digits.

    Args:
        keyword: for example ``path``.
        text: the value.
    """
    rest = len(keyword) + len(text) + 3  # a space, an equals sign and a newline
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, keyword, text)


def pax_records(records: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return records one after the other, led by ``hdrcharset=BINARY`` where a value is not UTF-8.

    Args:
        records: keywords and values.
    """
    joined = b"".join(pax_record(keyword, text) for keyword, text in records)
    try:
        joined.decode("utf-8")
    except UnicodeDecodeError:
        return pax_record(b"hdrcharset", b"BINARY") + joined
    return joined


def extension_member(name: bytes, typeflag: bytes, payload: bytes, *, gnu: bool = False) -> bytes:
    """Return a whole member that says something about the one after it.

    Args:
        name: its own name, for readers that do not know its type.
        typeflag: ``x`` (PAX records) or ``L`` (GNU long name).
        payload: its records or name.
        gnu: write GNU's magic.
    """
    return header_block(name, len(payload), typeflag=typeflag, gnu=gnu) + payload + PADDING[len(payload) & 511]
