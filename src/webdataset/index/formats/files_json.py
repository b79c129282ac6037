"""Reads and writes the JSON sidecar of public tar datasets (``shard.json`` beside ``shard.tar``).

``{"filesize": 30720, "hash": sha1, "hash_lfs": sha256, "files": {"4.json": {"offset": 1536, "size": 2403}, …}}``,
offsets being those of payloads. A variant says ``length`` for ``size`` and puts a second file into an entry as
``json_path``, ``json_offset``, ``json_length``.
"""

import json
from typing import Any, NamedTuple, TypeGuard

from webdataset.core.errors import BadIndex, NotRepresentable
from webdataset.index.entries import ShardIndex, refuse_unaddressable


class SidecarRow(NamedTuple):
    """One member.

    Args:
        name: its full name, or None where an index has none.
        offset: where its payload starts, in bytes.
        size: bytes of payload.
    """

    name: str | None
    offset: int
    size: int


class Sidecar(NamedTuple):
    """What a sidecar says.

    Args:
        size_bytes: of the shard, or None.
        rows: its members, in the order of their offsets.
        hashes: hex digests of the shard by algorithm.
    """

    size_bytes: int | None
    rows: list[SidecarRow]
    hashes: dict[str, str]


def index_name(url: str) -> str:
    """Return the name of a shard's sidecar: its own with ``.json`` in place of ``.tar``."""
    return f"{url.removesuffix('.tar')}.json"


def dumps(index: ShardIndex) -> bytes:
    """Return the sidecar of a shard.

    Args:
        index: of the shard; its ``sha1`` and ``sha256`` are written where it has them.

    Raises:
        NotRepresentable: the shard is compressed, has sparse members, two members of one name, or a name that is not
            UTF-8.
    """
    refuse_unaddressable(index, "a files-JSON")
    files: dict[str, dict[str, int]] = {}
    for entry in index.entries:
        for field in entry.fields:
            place = {"offset": field.offset, "size": field.size}
            # fields that are hard links share a member
            if files.get(field.member, place) != place:
                raise NotRepresentable(
                    "a files-JSON lists members by name, and this name stands twice in the shard",
                    url=index.url, key=entry.key, field=field.member,
                )  # fmt: skip
            check_member(field.member, url=index.url, key=entry.key)
            files[field.member] = place
    content: dict[str, object] = {"filesize": index.size_bytes}
    for name, algorithm in (("hash", "sha1"), ("hash_lfs", "sha256")):
        if algorithm in index.hashes:
            content[name] = index.hashes[algorithm]
    return json.dumps({**content, "files": files}).encode()


def check_member(name: str, **places: object) -> None:
    """Raise where a member cannot stand in a sidecar.

    Raises:
        NotRepresentable: it is not UTF-8, as JSON is.
    """
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise NotRepresentable(
            f"a files-JSON cannot hold the name {name!r}, which is not UTF-8: rename the member", field=name
        ).locate(**places) from None


def loads(text: bytes, *, url: str | None = None) -> Sidecar:
    """Read a sidecar of either variant.

    Raises:
        BadIndex: not such a file.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadIndex(f"not a files-JSON: {error}", url=url) from error
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict):
        raise BadIndex("not a files-JSON: it has no mapping 'files'", url=url)
    rows: list[SidecarRow] = []
    for name, entry in files.items():
        rows += _parse_rows(name, entry, url)
    size = content.get("filesize")
    hashes = {
        algorithm: content[key]
        for key, algorithm in (("hash", "sha1"), ("hash_lfs", "sha256"))
        if isinstance(content.get(key), str)
    }
    rows.sort(key=lambda row: row.offset)
    return Sidecar(size if _is_count(size) else None, rows, hashes)


def _parse_rows(name: str, entry: object, url: str | None) -> list[SidecarRow]:
    if not isinstance(entry, dict):
        raise BadIndex("an entry of the files-JSON is no mapping", url=url, field=name)
    rows = [make_row(name, entry.get("offset"), entry.get("size", entry.get("length")), url)]
    if isinstance(entry.get("json_path"), str) and entry.get("json_offset") is not None:
        rows.append(make_row(entry["json_path"], entry["json_offset"], entry.get("json_length"), url))
    return rows


def make_row(name: str, offset: Any, size: Any, url: str | None = None) -> SidecarRow:
    """Return a member, as some index describes it.

    Args:
        name: its full name.
        offset: where its payload starts; anything but a count of bytes is refused.
        size: bytes of payload, likewise.
        url: of the index, for the message.

    Raises:
        BadIndex: no such place.
    """
    if not _is_count(offset) or not _is_count(size):
        raise BadIndex(f"an entry has offset {offset!r} and size {size!r}: no place in a shard", url=url, field=name)
    return SidecarRow(name, offset, size)


def _is_count(number: object) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0
