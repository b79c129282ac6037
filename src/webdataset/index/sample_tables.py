"""Finds where the samples of a shard stand, for processes that read a part of its samples each.

Used are index files beside the shard that name all members with their sizes (binary, DALI 1.2 and files-JSON; an
energon index names none). A local shard of large members without an index is walked from header to header instead.

Theory of requests. A remote shard is asked for an index only by a process that reads a part of its samples. The three
names are asked for at once for the first shard of a folder, with the shard's own beginning; for the next shards only
the name that was found there, and nothing where there was none, as for counts of samples.

Whatever goes wrong here is no error: the shard is read whole, and says what is wrong with it. What parses indexes is
imported once there is one: a worker that finds none gives its first sample as soon as before.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from webdataset.core.error_handlers import reraise_exception
from webdataset.core.errors import BadIndex, SourceError
from webdataset.core.logs import log
from webdataset.core.redaction import redact
from webdataset.samples.grouping import base_plus_ext
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_extents import SampleTable, can_read_ahead
from webdataset.storage.local_files import open_raw
from webdataset.storage.open_url import open_stream, resolve_url
from webdataset.storage.streams import LOCAL_GAP_BYTES, read_full
from webdataset.tar.header import BLOCK, parse_header

if TYPE_CHECKING:
    from webdataset.storage.extents import Extents

SUFFIXES: Final = (".wdsindex", ".json", ".idx")
"""What stands in place of ``.tar`` in the names of index files that list members."""

_MOST_INDEX_BYTES = 1 << 24
# as many as the longest of the marks that index files begin with
_MARK_BYTES: Final = 8
_PIECE = 1 << 20
_FIRST_HEADERS = 8


class SharedShard(NamedTuple):
    """A shard that several streams share by sample.

    Args:
        url: the shard.
        beside: how many such shards are read at the same time, this one among them.
        known: of each folder at a store, which kind of index lies there, -1 for none that helps; it is added to.
    """

    url: str
    beside: int
    known: dict[str, int]


def find_table(shard: SharedShard, reading: Reading, gap: int) -> "tuple[SampleTable, Extents] | None":
    """Return where the samples of a shard stand, and the shard, opened; None where reading all of it is better.

    Args:
        shard: the shard.
        reading: the rules of reading.
        gap: how many samples stand next to each other that are not wanted, at most.
    """
    url = shard.url
    if reading.cache is not None or reading.observer is not None or not _is_usual(reading):
        return None
    # nothing here is the handler's business
    reading = replace(reading, handler=reraise_exception)
    try:
        path = resolve_url(url, level=reading.trust, storage_options=reading.storage_options).path
        if path is not None:
            return _find_local(shard, path, reading, gap)
        if reading.prefetch == 0 or not can_read_ahead() or "?" in url or url.startswith("pipe:"):
            return None
        return _find_remote(shard, reading, gap)
    except Exception as error:  # noqa: BLE001  the shard is read whole, and an error of its own is met there
        log.debug("%s: read whole, since its index cannot be used: %s", redact(url), error)
        return None


def _is_usual(reading: Reading) -> bool:
    """Tell whether rules of reading find the samples that the rules by default find."""
    chosen = reading.select_files, reading.rename_files, reading.suffixes, reading.duplicates, reading.split_samples
    return chosen == (None, None, None, "error", "error") and reading.keys is base_plus_ext and reading.lcase


def _find_local(shard: SharedShard, path: str, reading: Reading, gap: int) -> "tuple[SampleTable, Extents] | None":
    """Look beside a local shard, then at its first headers."""
    url, index = shard.url, None
    for suffix in SUFFIXES:
        # names need not be UTF-8
        content = _read_index(url, suffix, reading) if os.path.isfile(path.removesuffix(".tar") + suffix) else None  # noqa: PTH113
        if index is None and content is not None:
            from webdataset.index.member_lists import load_index  # noqa: PLC0415  where there is one

            index = load_index(url, content, reading)
    if index is None and _has_large_members(path):
        from webdataset.index.member_lists import walk_large  # noqa: PLC0415  as above

        index = walk_large(url, reading, gap, LOCAL_GAP_BYTES)
    if index is None:
        return None
    from webdataset.index.member_lists import check_worth  # noqa: PLC0415  as above

    return check_worth(index, _open_extents(shard, reading), gap)


def _has_large_members(path: str) -> bool:
    """Tell whether the first members of a local shard are so large that the others' headers are worth a look."""
    place = 0
    with open_raw(path) as file:
        for _ in range(_FIRST_HEADERS):
            file.seek(place)
            block = read_full(file.read, BLOCK)
            if len(block) < BLOCK or not block.strip(b"\0"):
                break
            place += BLOCK + (parse_header(block, place).size + BLOCK - 1 & -BLOCK)
    return place >= 2 * LOCAL_GAP_BYTES


def _find_remote(shard: SharedShard, reading: Reading, gap: int) -> "tuple[SampleTable, Extents] | None":
    """Ask for the index of a remote shard and the shard's beginning, at once."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  for remote shards alone

    url, known = shard.url, shard.known
    folder = url.rpartition("/")[0]
    kinds: Sequence[int] = range(len(SUFFIXES)) if folder not in known else [known[folder]]
    if kinds[0] < 0:
        return None
    # after one shard that is read whole the next ones are not asked about
    known.setdefault(folder, -1)
    with ThreadPoolExecutor(len(kinds) + 1, thread_name_prefix="index") as pool:
        opening = pool.submit(_open_extents, shard, reading)
        contents = list(pool.map(lambda kind: _read_index(url, SUFFIXES[kind], reading), kinds))
    table, found = None, -1
    if any(content is not None for content in contents):
        from webdataset.index.member_lists import check_worth, load_index  # noqa: PLC0415  where there is one

        for kind, content in zip(kinds, contents, strict=True):
            index = None if content is None or found >= 0 else load_index(url, content, reading)
            if index is not None:
                table, found = check_worth(index, opening.result(), gap), kind
    if table is not None:
        known[folder] = found
    return table


def _open_extents(shard: SharedShard, reading: Reading) -> "Extents | None":
    from webdataset.storage.extents import open_extents  # noqa: PLC0415  where there is an index

    return open_extents(shard.url, level=reading.trust, storage_options=reading.storage_options, beside=shard.beside)


def _read_index(url: str, suffix: str, reading: Reading) -> bytes | None:
    """Return the content of an index beside a shard; None where nothing lies there, or something else."""
    name = url.removesuffix(".tar") + suffix
    content = b""
    try:
        stream = open_stream(name, level=reading.trust, storage_options=reading.storage_options)
    except SourceError:
        return None
    try:
        while piece := stream.read(_PIECE):
            content += piece
            begins = len(content) < _MARK_BYTES or content.startswith((b"wdsindex", b"{", b"v1."))
            if len(content) > _MOST_INDEX_BYTES or not begins:
                return None
    except (SourceError, BadIndex):
        return None
    finally:
        stream.close()
    return content
