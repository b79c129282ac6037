"""What all members of one archive share, and whether its format can hold it.

Flows in: owner, mode, time and format as the user gave them. Flows out: a checked :class:`MemberStyle`.
"""

import dataclasses
import math
from typing import Final, Literal, get_args

from webdataset.ground.errors import UsageError

from .blocks import MAX_OCTAL_8, MAX_OCTAL_12, OWNER_BYTES

EPOCH: Final = 315_532_800
"""The modification time of members that are given none: 1980-01-01 00:00 UTC. A constant, so that the same samples give
the same bytes; not 0, which GNU tar calls implausibly old."""

Format = Literal["auto", "ustar", "gnu", "pax"]

_BY_NUMBER: Final[dict[int, Format]] = {0: "ustar", 1: "gnu", 2: "pax"}  # tarfile.USTAR_FORMAT, GNU_FORMAT, PAX_FORMAT


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
    format: Format = "auto"


def tar_format(spec: int | str | None) -> Format:
    """Return the format that ``spec`` means.

    Args:
        spec: ``tarfile.USTAR_FORMAT``, ``GNU_FORMAT``, ``PAX_FORMAT`` or their names, "ustar", "gnu", "pax", or None.

    Raises:
        UsageError: there is no such format.
    """
    if spec is None:
        return "auto"
    if isinstance(spec, int):
        known = _BY_NUMBER.get(spec)
    else:
        word = spec.lower().removesuffix("_format")
        known = next((each for each in get_args(Format) if each == word), None)
    if known is None:
        raise UsageError(f"there is no tar format {spec!r}: pass 'ustar', 'gnu', 'pax' or a constant of tarfile")
    return known


def checked(style: MemberStyle) -> MemberStyle:
    """Return the style, with a whole mtime where its format keeps no fractions.

    Args:
        style: as the user gave it.

    Raises:
        UsageError: a field that the format cannot hold.
    """
    if not math.isfinite(style.mtime):
        raise UsageError(f"mtime={style.mtime} is no time: pass seconds since 1970")
    if style.format != "pax" or style.mtime == int(style.mtime):
        style = dataclasses.replace(style, mtime=math.floor(style.mtime))
    if not 0 <= style.mode <= MAX_OCTAL_8:
        raise UsageError(f"mode={style.mode:#o} is no file mode: pass permission bits such as 0o444")
    if "\0" in style.uname + style.gname:
        raise UsageError("names of users and groups cannot hold NUL characters")
    if style.format in ("ustar", "gnu") and not all(owner_fits(each, style) for each in (style.uname, style.gname)):
        raise UsageError(
            f"format={style.format!r} holds names of users and groups of at most 31 bytes: use format='pax'"
        )
    if style.format == "ustar" and number_records(style):
        raise UsageError("format='ustar' cannot hold this uid, gid or mtime: use format='pax' or format='gnu'")
    return style


def raw_text(text: str) -> bytes:
    """Return the bytes of a name: UTF-8, with surrogate escapes turned back into the bytes they stand for."""
    return text.encode("utf-8", "surrogateescape")


def owner_fits(owner: str, style: MemberStyle) -> bool:
    """Tell whether a user's or group's name goes into the header block as it is."""
    return len(raw_text(owner)) <= OWNER_BYTES and (owner.isascii() or style.format in ("ustar", "gnu"))


def number_records(style: MemberStyle) -> list[tuple[bytes, bytes]]:
    """Return the records for numbers that octal digits cannot hold."""
    owners = ((b"uid", style.uid), (b"gid", style.gid))
    records = [(word, b"%d" % each) for word, each in owners if not 0 <= each <= MAX_OCTAL_8]
    if not isinstance(style.mtime, int):
        records.append((b"mtime", f"{style.mtime:.9f}".rstrip("0").encode()))
    elif not 0 <= style.mtime <= MAX_OCTAL_12:
        records.append((b"mtime", b"%d" % style.mtime))
    return records
