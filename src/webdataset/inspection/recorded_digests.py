"""Compares shards with the sizes and digests that index files record of them.

The files-JSON beside a shard (``X.json`` beside ``X.tar``) records its size, SHA-1 and SHA-256; the wids index of a
list of shards their sizes and MD5.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from webdataset.core.errors import BadIndex, SourceError, UsageError, WebDatasetError
from webdataset.index.formats import files_json
from webdataset.inspection.findings import FindingList
from webdataset.storage.open_url import open_stream

_MOST_BYTES: Final = 1 << 28


class RecordedDigests(NamedTuple):
    """What an index file records of a shard.

    Args:
        place: name of the file.
        size_bytes: of the shard as it is stored, or None.
        hashes: hex digests by algorithm.
    """

    place: str
    size_bytes: int | None
    hashes: dict[str, str]


class DigestTally:
    """Counts and digests the bytes of a shard as they are stored.

    Args:
        recorded: what to compare with.
    """

    def __init__(self, recorded: list[RecordedDigests]) -> None:
        self._recorded = recorded
        wanted = sorted({name for each in recorded for name in each.hashes})
        self._digests = {name: hashlib.new(name, usedforsecurity=False) for name in wanted}
        self._size_bytes = 0

    def take(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._size_bytes += len(piece)
        for digest in self._digests.values():
            digest.update(piece)

    def compare(self, findings: FindingList) -> None:
        """Tell of what is not as recorded.

        Args:
            findings: of the shard.
        """
        found = {name: digest.hexdigest() for name, digest in self._digests.items()}
        for each in self._recorded:
            if each.size_bytes is not None and each.size_bytes != self._size_bytes:
                findings.add(
                    "wrong-size", f"{each.place} records {each.size_bytes} bytes, there are {self._size_bytes}"
                )
            for name, digest in each.hashes.items():
                if digest.lower() != found[name]:
                    findings.add("wrong-digest", f"{each.place} records {name} {digest}, it is {found[name]}")


def find_recorded_digests(
    url: str, listed: Mapping[str, RecordedDigests], *, storage_options: Any = None
) -> list[RecordedDigests]:
    """Return what is recorded of a shard, beside it and in an index of the list.

    Args:
        url: the shard.
        listed: what an index of the list records, by the last part of the urls.
        storage_options: what objects at stores are opened with.
    """
    found = [listed[name]] if (name := last_part(url)) in listed else []
    place = files_json.index_name(url)
    if url not in (place, "-") and "?" not in url and not url.startswith("pipe:"):
        content = _load_file(place, storage_options)
        if content is not None:
            try:
                sidecar = files_json.loads(content)
            except BadIndex:
                return found  # names like X.json are used for other things, too
            found.append(RecordedDigests(place, sidecar.size_bytes, sidecar.hashes))
    return found


def last_part(url: str) -> str:
    """Return the name of a shard within its folder.

    Args:
        url: of it.
    """
    return url.partition("?")[0].rpartition("/")[2]


def _load_file(place: str, storage_options: Any) -> bytes | None:
    try:
        stream = open_stream(place, storage_options=storage_options)
    except (OSError, WebDatasetError, ValueError):
        return None
    try:
        content = bytearray()
        while len(content) <= _MOST_BYTES and (piece := stream.read(1 << 20)):
            content += piece
        return bytes(content)
    except (OSError, WebDatasetError):
        return None
    finally:
        stream.close()


def load_wids_digests(place: str | os.PathLike[str], *, storage_options: Any = None) -> dict[str, RecordedDigests]:
    """Return what a wids index records of its shards, by the last part of their urls.

    Args:
        place: path or url of the index.
        storage_options: what objects at stores are opened with.

    Raises:
        SourceError: it cannot be read.
        UsageError: it is no wids index.
    """
    name = os.fspath(place)
    content = _load_file(name, storage_options)
    if content is None:
        raise SourceError(f"the index {name} cannot be read", url=name)
    try:
        rows = json.loads(content)["shardlist"]
        pairs = [(row["url"], row.get("filesize"), row.get("md5sum")) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{name} is no wids index: it has no list 'shardlist' of shards with urls") from None
    return {
        last_part(str(url)): RecordedDigests(
            name, size if isinstance(size, int) else None, {"md5": digest} if isinstance(digest, str) and digest else {}
        )
        for url, size, digest in pairs
    }
