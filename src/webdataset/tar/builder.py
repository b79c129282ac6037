"""Builds the bytes of tar members: header blocks before a payload, padding after it, the end mark.

A header is one ustar block where everything fits: an ASCII name of at most 100 bytes (or one that splits at a slash
into a prefix of 155 and a name of 100) and numbers within their octal digits. What does not fit is written as PAX
records in a member before it (POSIX.1-2001), or in the GNU way (a long-name member, base-256 numbers) where that is
requested, and for names that are not UTF-8.

Headers of one writer differ in name, size and checksum only, so :func:`make_header_maker` prepares the rest once. The
checksum is the sum of the bytes; the low half of Adler-32 is that sum plus one, mod 65521: no name and size reach it.

:class:`MemberStyle` holds what all members of an archive share (owner, mode, time, format), checked against the
format. This module does no input or output, and never touches the payload.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Final, Literal, SupportsFloat, SupportsIndex, get_args
from zlib import adler32

from webdataset.core.errors import SampleError, UsageError
from webdataset.tar.header import BLOCK, Limits

MAX_OCTAL_8: Final = 0o7777777
MAX_OCTAL_12: Final = 0o77777777777
OWNER_BYTES: Final = 31

PADDING: Final = tuple(bytes(-size % BLOCK) for size in range(BLOCK))
"""``PADDING[size & 511]``: the zeros after a payload of ``size`` bytes."""

_MAGIC = b"ustar\x0000"
_GNU_MAGIC = b"ustar  \0"


def format_header_block(
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
            _encode_number(mode, 8, wide=gnu),
            _encode_number(uid, 8, wide=gnu),
            _encode_number(gid, 8, wide=gnu),
            _encode_number(size, 12, wide=gnu),
            _encode_number(mtime, 12, wide=gnu),
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


def _encode_number(number: int, width: int, *, wide: bool) -> bytes:
    if 0 <= number < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, number)
    if not wide:
        return b"%0*o\0" % (width - 1, 0)
    return number.to_bytes(width, "big", signed=True) if number < 0 else b"\x80" + number.to_bytes(width - 1, "big")


def format_pax_record(keyword: bytes, text: bytes) -> bytes:
    """Return one record, ``length keyword=value newline``; the length counts its own digits."""
    # a space, an equals sign and a newline
    rest = len(keyword) + len(text) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, keyword, text)


def format_pax_records(records: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return records one after the other, led by ``hdrcharset=BINARY`` where a value is not UTF-8."""
    joined = b"".join(format_pax_record(keyword, text) for keyword, text in records)
    try:
        joined.decode("utf-8")
    except UnicodeDecodeError:
        return format_pax_record(b"hdrcharset", b"BINARY") + joined
    return joined


def format_extension_member(name: bytes, typeflag: bytes, payload: bytes, *, gnu: bool = False) -> bytes:
    """Return a whole member that says something about the one after it.

    Args:
        name: its own name, for readers that do not know its type.
        typeflag: ``x`` (PAX records) or ``L`` (GNU long name).
        payload: its records or name.
        gnu: write GNU's magic.
    """
    return format_header_block(name, len(payload), typeflag=typeflag, gnu=gnu) + payload + PADDING[len(payload) & 511]


EPOCH: Final = 315_532_800
"""The modification time of members that are given none: 1980-01-01 00:00 UTC. A constant, so that the same samples give
the same bytes; not 0, which GNU tar calls implausibly old."""

TarFormat = Literal["auto", "ustar", "gnu", "pax"]

_BY_NUMBER: Final[dict[int, TarFormat]] = {
    0: "ustar",
    1: "gnu",
    2: "pax",
}  # tarfile.USTAR_FORMAT, GNU_FORMAT, PAX_FORMAT


@dataclasses.dataclass(frozen=True)
class MemberStyle:
    """What all members of one archive share.

    Args:
        mtime: modification time in seconds since 1970; fractions are kept by ``format="pax"`` only.
        mode: permission bits.
        uid: number of the owning user.
        gid: number of the owning group.
        uname: name of the owning user.
        gname: name of the owning group.
        format: "auto" is ustar where a member fits, else pax.
    """

    mtime: float = EPOCH
    mode: int = 0o444
    uid: int = 0
    gid: int = 0
    uname: str = ""
    gname: str = ""
    format: TarFormat = "auto"


def parse_format(spec: int | str | None) -> TarFormat:
    """Return the format that a name, a constant of ``tarfile``, or None means.

    Raises:
        UsageError: there is no such format.
    """
    if spec is None:
        return "auto"
    if isinstance(spec, int):
        known = _BY_NUMBER.get(spec)
    else:
        word = spec.lower().removesuffix("_format") if isinstance(spec, str) else ""
        known = next((each for each in get_args(TarFormat) if each == word), None)
    if known is None:
        raise UsageError(f"there is no tar format {spec!r}: pass 'ustar', 'gnu', 'pax' or a constant of tarfile")
    return known


def check_style(style: MemberStyle) -> MemberStyle:
    """Return the style, with a whole mtime where its format keeps no fractions.

    Raises:
        UsageError: a field that the format cannot hold.
    """
    for name, part in ("user", style.uname), ("group", style.gname):
        if not isinstance(part, str):
            raise UsageError(f"{name}={part!r:.60} is no name: pass a text, such as {name}='bigdata'")
    if not isinstance(style.mtime, SupportsFloat) or not math.isfinite(style.mtime):
        raise UsageError(f"mtime={style.mtime!r:.60} is no time: pass seconds since 1970")
    if not isinstance(style.mode, SupportsIndex):
        raise UsageError(f"mode={style.mode!r:.60} is no file mode: pass permission bits such as 0o444")
    if style.format != "pax" or style.mtime == int(style.mtime):
        style = dataclasses.replace(style, mtime=math.floor(style.mtime))
    if not 0 <= style.mode <= MAX_OCTAL_8:
        raise UsageError(f"mode={style.mode:#o} is no file mode: pass permission bits such as 0o444")
    if "\0" in style.uname + style.gname:
        raise UsageError("names of users and groups cannot hold NUL characters")
    if style.format in ("ustar", "gnu") and not all(fits_owner(each, style) for each in (style.uname, style.gname)):
        raise UsageError(
            f"format={style.format!r} holds names of users and groups of at most 31 bytes: use format='pax'"
        )
    if style.format == "ustar" and make_number_records(style):
        raise UsageError("format='ustar' cannot hold this uid, gid or mtime: use format='pax' or format='gnu'")
    return style


def encode_text(text: str) -> bytes:
    """Return the bytes of a name: UTF-8, with surrogate escapes turned back into the bytes they stand for."""
    return text.encode("utf-8", "surrogateescape")


def fits_owner(owner: str, style: MemberStyle) -> bool:
    """Tell whether a user's or group's name goes into the header block as it is."""
    return len(encode_text(owner)) <= OWNER_BYTES and (owner.isascii() or style.format in ("ustar", "gnu"))


def make_number_records(style: MemberStyle) -> list[tuple[bytes, bytes]]:
    """Return the records for numbers that octal digits cannot hold."""
    owners = ((b"uid", style.uid), (b"gid", style.gid))
    records = [(word, b"%d" % each) for word, each in owners if not 0 <= each <= MAX_OCTAL_8]
    if not isinstance(style.mtime, int):
        records.append((b"mtime", f"{style.mtime:.9f}".rstrip("0").encode()))
    elif not 0 <= style.mtime <= MAX_OCTAL_12:
        records.append((b"mtime", b"%d" % style.mtime))
    return records


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
    """Return all header blocks of one regular file: 512 bytes, or more where records go before the header.

    Bytes of the name that are not UTF-8 are surrogate escapes; ``size`` is the payload's; the other arguments are the
    fields of :class:`MemberStyle`.

    Raises:
        SampleError: a name or size that the format cannot hold, or no name of a file.
        UsageError: another field that the format cannot hold.
    """
    return make_header_maker(MemberStyle(mtime, mode, uid, gid, uname, gname, parse_format(format)))(name, size)


def make_header_maker(style: MemberStyle) -> HeaderMaker:
    """Return ``f(name, size) -> header blocks`` for members of one style; it raises as :func:`member_header` does.

    Raises:
        UsageError: a field that the style's format cannot hold.
    """
    style = check_style(style)

    def any_header(name: str, size: int) -> bytes:
        return _format_header(name, size, style)

    block = any_header("n", 0)
    return _make_from_template(block, any_header) if len(block) == BLOCK else any_header


def _make_from_template(block: bytes, any_header: HeaderMaker) -> HeaderMaker:
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


def _format_header(name: str, size: int, style: MemberStyle) -> bytes:
    """Return the header blocks of any member: the slow way that knows every format."""
    raw = _encode_name(name)
    if size < 0:
        raise UsageError(f"a member cannot have {size} bytes")
    if style.format == "gnu" or (style.format == "auto" and not _is_utf8(raw) and _fits_gnu(style)):
        style = dataclasses.replace(style, format="gnu")
        extension = format_extension_member(b"././@LongLink", b"L", raw + b"\0", gnu=True) if len(raw) > 100 else b""
        return extension + _format_block(raw[:100], b"", size, style)
    split = _split_name(raw)
    if style.format == "ustar":
        return _format_ustar_header(name, split, size, style)
    records = make_number_records(style)
    if split is None or not name.isascii():
        records.append((b"path", raw))
        split = b"", name.encode("ascii", "replace")[:100]
    if size > MAX_OCTAL_12:
        records.append((b"size", b"%d" % size))
    records += [(word, encode_text(each)) for word, each in _owner_fields(style) if not fits_owner(each, style)]
    extension = format_extension_member(b"././@PaxHeader", b"x", format_pax_records(records)) if records else b""
    return extension + _format_block(split[1], split[0], size, style)


def _is_utf8(raw: bytes) -> bool:
    """Tell whether a name is UTF-8: what a PAX record holds without ``hdrcharset``, of which GNU tar warns."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _fits_gnu(style: MemberStyle) -> bool:
    return all(len(encode_text(owner)) <= OWNER_BYTES for _, owner in _owner_fields(style))


def _format_ustar_header(name: str, split: tuple[bytes, bytes] | None, size: int, style: MemberStyle) -> bytes:
    if split is None:
        raise SampleError(
            "format='ustar' holds names of 100 bytes, or 255 with a slash in the right place: leave format out",
            field=name,
        )
    if size > MAX_OCTAL_12:
        raise SampleError(f"format='ustar' cannot hold a member of {size} bytes: leave format out", field=name)
    return _format_block(split[1], split[0], size, style)


def _encode_name(name: str) -> bytes:
    try:
        raw = encode_text(name)
    except UnicodeEncodeError as error:
        raise SampleError("a member's name holds a character that has no bytes", field=ascii(name)) from error
    if not raw or b"\0" in raw or raw.endswith(b"/"):
        raise SampleError("not the name of a file: it is empty, ends in a slash or holds a NUL", field=name)
    if len(raw) > MAX_NAME_BYTES:
        raise SampleError(
            f"a member's name of {len(raw)} bytes is longer than {MAX_NAME_BYTES}", field=name[:100] + "…"
        )
    return raw


def _split_name(raw: bytes) -> tuple[bytes, bytes] | None:
    """Return (prefix, name) as a ustar header holds them, or None."""
    if len(raw) <= 100:
        return b"", raw
    slash = raw.find(b"/", max(1, len(raw) - 101))
    return None if slash < 0 or slash > 155 else (raw[:slash], raw[slash + 1 :])


def _owner_fields(style: MemberStyle) -> tuple[tuple[bytes, str], tuple[bytes, str]]:
    return (b"uname", style.uname), (b"gname", style.gname)


def _format_block(name: bytes, prefix: bytes, size: int, style: MemberStyle) -> bytes:
    """Return the member's own block; names of owners that a record says are kept as far as they fit."""
    unames = [
        encode_text(each) if fits_owner(each, style) else each.encode("ascii", "replace")[:31]
        for _, each in _owner_fields(style)
    ]
    return format_header_block(
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
