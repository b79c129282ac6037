"""Finds where the samples of a shard stand, for processes that read a part of its samples each.

Used are index files beside the shard that name all members with their sizes (binary, DALI 1.2 and files-JSON; an
energon index names none). A local shard of large members without an index is walked from header to header instead. An
index is used only where the members that it lists leave no gap up to the end mark, so that no sample can be left out.

Theory of requests. A remote shard is asked for an index only by a process that reads a part of its samples. The three
names are asked for at once for the first shard of a folder; for the next ones only the name that was found there, and
nothing more where there was none, as for counts of samples (:func:`~webdataset.index.lookup.sample_counts`).

Whatever goes wrong here is no error: the shard is read whole, and says what is wrong with it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from webdataset.core.error_handlers import reraise_exception
from webdataset.core.logs import log
from webdataset.core.redaction import redact
from webdataset.index.build import IndexBuilder, RangeWalk
from webdataset.index.entries import ShardIndex
from webdataset.index.formats import binary, dali, files_json
from webdataset.index.formats.files_json import SidecarRow
from webdataset.index.formats.table import is_usual
from webdataset.index.lookup import read_beside
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_extents import SampleTable
from webdataset.storage.extents import LOCAL_GAP_BYTES, Extents, can_read_ahead, open_extents
from webdataset.storage.open_url import resolve_url
from webdataset.storage.random_access import open_ranges
from webdataset.tar.header import BLOCK
from webdataset.tar.walker import MemberPosition

_MOST_INDEX_BYTES = 1 << 26
_NAMES = (binary.index_name, files_json.index_name, dali.index_name)


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


def find_table(shard: SharedShard, reading: Reading, gap: int) -> tuple[SampleTable, Extents] | None:
    """Return where the samples of a shard stand, and the shard, opened; None where reading all of it is better.

    Args:
        shard: the shard.
        reading: the rules of reading.
        gap: how many samples stand next to each other that are not wanted, at most.
    """
    if reading.cache is not None or reading.observer is not None or not is_usual(reading):
        return None
    url = shard.url
    # nothing here is the handler's business
    reading = replace(reading, handler=reraise_exception)
    try:
        if resolve_url(url, level=reading.trust, storage_options=reading.storage_options).path is not None:
            index = _index_of_file(url, reading, gap)
            return None if index is None else _check_worth(index, _open_extents(shard, reading), gap)
        if reading.prefetch == 0 or not can_read_ahead() or "?" in url or url.startswith("pipe:"):
            return None
        return _find_remote(shard, reading, gap)
    except Exception as error:  # noqa: BLE001  the shard is read whole, and an error of its own is met there
        log.debug("%s: read whole, since its index cannot be used: %s", redact(url), error)
        return None


def _open_extents(shard: SharedShard, reading: Reading) -> Extents | None:
    return open_extents(shard.url, level=reading.trust, storage_options=reading.storage_options, beside=shard.beside)


def _check_worth(index: ShardIndex, extents: Extents | None, gap: int) -> tuple[SampleTable, Extents] | None:
    """Return the table of an index that is whole, and whose samples are large enough; else close the shard."""
    if extents is None:
        return None
    table = None
    try:
        large = len(index) > 0 and extents.can_skip(index.end // len(index) * gap)
        if large and not index.joins and not index.sparse:
            table = SampleTable(index.entries, index.end, index.size_bytes)
    finally:
        if table is None or not table.whole:
            extents.close()
    return (table, extents) if table is not None and table.whole else None


def _index_of_file(url: str, reading: Reading, gap: int) -> ShardIndex | None:
    """Return the index of a local shard: that beside it, or one of its headers where members are large."""
    index = None
    for index_name in _NAMES:
        index = index or _load_table(url, index_name(url), reading)
    return index or _walk_large(url, reading, gap)


def _find_remote(shard: SharedShard, reading: Reading, gap: int) -> tuple[SampleTable, Extents] | None:
    """Ask for the index of a remote shard and the shard's beginning, at once."""
    url, known = shard.url, shard.known
    folder = url.rpartition("/")[0]
    kinds: Sequence[int] = range(len(_NAMES)) if folder not in known else [known[folder]]
    if kinds[0] < 0:
        return None
    with ThreadPoolExecutor(len(kinds) + 1, thread_name_prefix="index") as pool:
        opening = pool.submit(_open_extents, shard, reading)
        found = list(pool.map(lambda kind: _load_table(url, _NAMES[kind](url), reading), kinds))
    place = next((place for place, index in enumerate(found) if index is not None), -1)
    index = None if place < 0 else found[place]
    table = None if index is None else _check_worth(index, opening.result(), gap)
    if table is None and opening.exception() is None and index is None:
        extents = opening.result()
        if extents is not None:
            extents.close()
    if table is not None or folder not in known:
        # after one shard that is read whole the next ones are not asked about
        known[folder] = -1 if table is None else kinds[place]
    return table


def _load_table(url: str, name: str, reading: Reading) -> ShardIndex | None:
    """Return what an index file says of all members of a shard; None where it is none, or says less."""
    content = None if name == url else read_beside(name, _MOST_INDEX_BYTES, reading)
    if content is None:
        return None
    try:
        if content[: len(binary.MAGIC)] == binary.MAGIC:
            found = binary.loads(content, url=name)
            found.entries.verify()
            index = ShardIndex(url, found.size_bytes, found.end, found.entries, sparse=found.sparse, joins=found.joins)
            return index if found.distinct else None
        text = bytes(content)
        if text[:1] == b"{":
            sidecar = files_json.loads(text, url=name)
            return _group_rows(url, sidecar.rows, sidecar.size_bytes, reading)
        parts = [part for line in dali.loads(text, url=name) for part in line]
        rows = [SidecarRow(part.name, part.offset, part.size) for part in parts if part.name is not None]
        return _group_rows(url, rows, None, reading) if len(rows) == len(parts) else None
    except Exception as error:  # noqa: BLE001  an index that cannot be read is none
        log.debug("%s is no index that can be used: %s", redact(name), error)
        return None


def _group_rows(url: str, rows: Sequence[SidecarRow], size_bytes: int | None, reading: Reading) -> ShardIndex | None:
    """Return the samples of members that stand one after another; None where there are gaps, or names are escaped."""
    place = 0
    for name, offset, size in rows:
        if offset != place + BLOCK or name is None or "%" in name:
            return None
        place = offset + (size + BLOCK - 1 & -BLOCK)
    builder = IndexBuilder(url, reading)
    # keys that stand twice are told by the reader
    builder.finished = None
    builder.group([MemberPosition(name or "", offset - BLOCK, offset, size) for name, offset, size in rows])
    return builder.close(place, stored=size_bytes)


def _walk_large(url: str, reading: Reading, gap: int) -> ShardIndex | None:
    """Return the index of a local shard whose members are large, from its headers; None where they are not."""
    with open_ranges(url, level=reading.trust) as ranges:
        walk = RangeWalk(url, ranges, reading, follow_links=False)
        headers, walk.builder.finished = walk.builder.walk, None
        going = True
        while going:
            going = walk.step()
            # to find a header takes as long as to read so many bytes
            found = len(walk.builder.entries) * LOCAL_GAP_BYTES
            if walk.compressed or headers.wants[0] * gap < found * (gap + 1):
                return None
        unusual = not headers.end_at(walk.length) or headers.doubt is not None or headers.global_override is not None
        # the reader tells what is unusual, and judges how the shard ends
        return None if unusual or headers.error is not None else walk.builder.close(headers.end, stored=ranges.length)
