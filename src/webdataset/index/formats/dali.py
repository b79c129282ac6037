"""Reads and writes DALI's index files (``shard.idx``), versions 1.1 and 1.2.

``v1.2 <samples>``, then a line for each sample with ``extension offset size name`` for each of its components (1.1:
without the name), split at blanks. Offsets are those of the payload, whole blocks. Blanks in names are written as
``%20``; extensions that are empty or hold blanks, which would break the file, are refused or left out. An index may
list fewer samples than the shard has, and in another order.

Never gives offsets into compressed shards.
"""

import re
from typing import Final, Literal, NamedTuple

from webdataset.core.errors import BadIndex, NotRepresentable, UsageError
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.index.entries import SampleEntry, ShardIndex, refuse_unaddressable, spell_extension
from webdataset.samples.grouping import base_plus_ext
from webdataset.tar.header import BLOCK

DaliVersion = Literal["v1.2", "v1.1"]
UnfitPolicy = Literal["error", "omit"]
VERSIONS: Final = ("v1.2", "v1.1")

_BLANK = re.compile(r"[ \t\n\v\f\r]")
_TO_ESCAPE = re.compile(r"[ \t\n\v\f\r]|%(?=[0-9A-Fa-f]{2})")
_COUNT = re.compile(rb"[0-9]{1,19}")


class DaliComponent(NamedTuple):
    """One component of a line.

    Args:
        extension: as in the archive.
        offset: where the payload starts, in bytes.
        size: bytes of payload.
        name: the member's full name; None in version 1.1.
    """

    extension: str
    offset: int
    size: int
    name: str | None


def index_name(url: str) -> str:
    """Return the name of a shard's index: its own with ``.idx`` in place of ``.tar``."""
    return f"{url.removesuffix('.tar')}.idx"


def tool_name(url: str) -> str:
    """Return the name that DALI's own tool gives a shard's index: up to the first dot of its last part, and ``.idx``.

    Shards such as ``a.1.tar`` and ``a.2.tar`` have one such name together, so that it is read, and never written.
    """
    slash = url.rfind("/")
    dot = url.find(".", slash + 2)
    return f"{url[:dot] if dot > 0 else url}.idx"


def dumps(index: ShardIndex, *, version: DaliVersion = "v1.2", unfit: UnfitPolicy = "error") -> bytes:
    """Return the index file of a shard.

    Args:
        index: of the shard.
        version: ``v1.2``, or ``v1.1`` without names.
        unfit: what to do about components whose extension is empty or holds blanks: ``error``, or ``omit`` with one
            warning.

    Raises:
        NotRepresentable: the shard is compressed, empty, or has sparse members or unfit components.
        UsageError: another version or policy.
    """
    if version not in VERSIONS or unfit not in ("error", "omit"):
        raise UsageError(f"version={version!r}, unfit={unfit!r}: there are {', '.join(VERSIONS)}, and error or omit")
    refuse_unaddressable(index, "a DALI index")
    lines = []
    omitted: list[str] = []
    for entry in index.entries:
        words = _format_components(entry, index.url, version, unfit, omitted)
        if words:
            lines.append(" ".join(words))
    if not lines:
        raise NotRepresentable(
            "a DALI index needs at least one sample, and the shard has none: leave it out", url=index.url
        )
    if omitted:
        warn_user(
            f"{redact(index.url)}: {len(omitted)} members were left out of the DALI index, the first of them "
            f"{omitted[0]!r}: their extensions are empty or hold blanks",
        )
    text = "\n".join([f"{version} {len(lines)}", *lines, ""])
    return text.encode("utf-8", "surrogateescape")


def check_member(name: str) -> None:
    """Raise where a member cannot stand in an index.

    Raises:
        NotRepresentable: its extension is empty or holds blanks.
    """
    key, extension = base_plus_ext(name)
    if key is not None and extension is not None and (not extension or _BLANK.search(extension)):
        raise _unfit_error(extension, name)


def _unfit_error(extension: str, member: str, **places: object) -> NotRepresentable:
    return NotRepresentable(
        f"a DALI index cannot hold the extension {extension!r}: it is split at blanks; rename the member, or leave it "
        "out of the index with unfit='omit'",
        field=member,
    ).locate(**places)


def _format_components(
    entry: SampleEntry, url: str | None, version: DaliVersion, unfit: UnfitPolicy, omitted: list[str]
) -> list[str]:
    words = []
    for field in entry.fields:
        extension = spell_extension(entry, field)
        if not extension or _BLANK.search(extension):
            if unfit == "error":
                raise _unfit_error(extension, field.member, url=url, key=entry.key)
            omitted.append(field.member)
            continue
        words += [extension, str(field.offset), str(field.size)]
        if version == "v1.2":
            words.append(_TO_ESCAPE.sub(lambda found: f"%{ord(found[0]):02X}", field.member))
    return words


def loads(text: bytes, *, url: str | None = None) -> list[list[DaliComponent]]:
    """Read an index file: for each sample, its components.

    Raises:
        BadIndex: not such a file, of another version, or cut.
    """
    head, _, rest = text.partition(b"\n")
    words = head.split()
    if len(words) != 2 or words[0] not in (b"v1.1", b"v1.2") or not _COUNT.fullmatch(words[1]):
        raise BadIndex("not a DALI index of version 1.1 or 1.2: the first line is another", url=url)
    lines = rest.splitlines()
    count = int(words[1])
    if len(lines) < count or any(line.split() for line in lines[count:]):
        raise BadIndex(f"a DALI index that says it has {count} samples has {len(lines)} lines of them", url=url)
    width = 4 if words[0] == b"v1.2" else 3
    return [_parse_components(line.split(), width, number, url) for number, line in enumerate(lines[:count], 2)]


def _parse_components(words: list[bytes], width: int, number: int, url: str | None) -> list[DaliComponent]:
    if not words or len(words) % width:
        raise BadIndex(f"line {number} of the DALI index has {len(words)} words: not {width} a component", url=url)
    found = []
    for start in range(0, len(words), width):
        extension, offset, size, *name = words[start : start + width]
        if not (_COUNT.fullmatch(offset) and _COUNT.fullmatch(size)) or int(offset) % BLOCK:
            shown = offset[:24], size[:24]
            raise BadIndex(f"line {number} of the DALI index: {shown[0]!r} and {shown[1]!r} are no place", url=url)
        found.append(
            DaliComponent(
                extension.decode("utf-8", "surrogateescape"),
                int(offset),
                int(size),
                name[0].decode("utf-8", "surrogateescape") if name else None,
            )
        )
    return found
