"""Turns what an index file says of a shard's members, or the shard's own headers, into where its samples stand.

Unlike :mod:`~webdataset.index.lookup`, which falls back to reading all headers, an index counts here only where it says
enough by itself, and nothing is read of a remote shard. An index that lists members with gaps between them is not used:
a sample may stand there that it does not list.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from webdataset.core.errors import BadIndex, WebDatasetError
from webdataset.core.logs import log
from webdataset.core.redaction import redact
from webdataset.index.build import IndexBuilder, RangeWalk
from webdataset.index.entries import ShardIndex
from webdataset.index.formats import binary, dali, files_json
from webdataset.index.formats.files_json import SidecarRow
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_extents import SampleTable
from webdataset.storage.random_access import open_ranges
from webdataset.tar.header import BLOCK
from webdataset.tar.walker import MemberPosition

if TYPE_CHECKING:
    from webdataset.storage.extents import Extents


def check_worth(index: ShardIndex, extents: "Extents | None", gap: int) -> "tuple[SampleTable, Extents] | None":
    """Return the table of an index that is whole, and whose samples are large enough; else close the shard.

    Args:
        index: of the shard.
        extents: the shard, open.
        gap: how many samples stand next to each other that are not wanted, at most.
    """
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


def load_index(url: str, content: bytes, reading: Reading) -> ShardIndex | None:
    """Return what an index file says of all members of a shard; None where it is none, or says less.

    Args:
        url: the shard.
        content: of the file.
        reading: the rules of reading, under which members make samples.
    """
    try:
        if content.startswith(binary.MAGIC):
            found = binary.loads(content)
            found.entries.verify()
            index = ShardIndex(url, found.size_bytes, found.end, found.entries, sparse=found.sparse, joins=found.joins)
            return index if found.distinct else None
        if content[:1] == b"{":
            sidecar = files_json.loads(content)
            return _group_rows(url, sidecar.rows, sidecar.size_bytes, reading)
        parts = [part for line in dali.loads(content) for part in line]
    except (BadIndex, WebDatasetError) as error:
        log.debug("%s: beside it lies no index that can be used: %s", redact(url), error)
        return None
    rows = [SidecarRow(part.name, part.offset, part.size) for part in parts if part.name is not None]
    return _group_rows(url, rows, None, reading) if len(rows) == len(parts) else None


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


def walk_large(url: str, reading: Reading, gap: int, header_bytes: int) -> ShardIndex | None:
    """Return the index of a local shard whose members are large, from its headers; None where they are not.

    Args:
        url: the shard.
        reading: the rules of reading.
        gap: how many samples stand next to each other that are not wanted, at most.
        header_bytes: how many bytes are read in the time that it takes to find a header.

    Raises:
        WebDatasetError: the shard is damaged, or cannot be read.
    """
    with open_ranges(url, level=reading.trust) as ranges:
        walk = RangeWalk(url, ranges, reading, follow_links=False)
        headers, walk.builder.finished = walk.builder.walk, None
        going = True
        while going:
            going = walk.step()
            found = len(walk.builder.entries) * header_bytes
            if walk.compressed or headers.wants[0] * gap < found * (gap + 1):
                return None
        unusual = not headers.end_at(walk.length) or headers.doubt is not None or headers.global_override is not None
        # the reader tells what is unusual, and judges how the shard ends
        return None if unusual or headers.error is not None else walk.builder.close(headers.end, stored=ranges.length)
