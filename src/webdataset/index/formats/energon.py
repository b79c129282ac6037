"""Megatron-Energon's per-shard index (``shard.tar.idx``), written and read. See ``energon_dataset`` for ``.nv-meta``.

The format: an array of little-endian uint64 without a header. For each sample, where its first header starts (extended
headers included); then where the end mark starts.

Flows in: a shard index, or a file's bytes. Flows out: a file's bytes, or offsets.
"""

import sys
from array import array
from collections.abc import Sequence

from webdataset.ground.errors import BadIndex, NotRepresentable
from webdataset.index.entries import Entries, ShardIndex

from .representing import refuse_unaddressable


def index_name(url: str) -> str:
    """Return the name of a shard's index: ``.tar.idx`` in place of its ending.

    Args:
        url: a url or path of the shard.
    """
    return f"{url.removesuffix('.tar')}.tar.idx"


def dumps(index: ShardIndex) -> bytes:
    """Return the index file of a shard.

    Args:
        index: of the shard.

    Raises:
        NotRepresentable: the shard is compressed, has sparse members, or is several archives behind each other.
    """
    refuse(index)
    entries = index.entries
    if isinstance(entries, Entries):
        offsets = array("Q", (entries.start(ordinal) for ordinal in range(len(entries))))
    else:
        offsets = array("Q", (entry.offset for entry in entries))
    offsets.append(index.end)
    if sys.byteorder == "big":
        offsets.byteswap()
    return offsets.tobytes()


def refuse(index: ShardIndex) -> None:
    """Raise where energon would not read a shard right.

    Args:
        index: of the shard.

    Raises:
        NotRepresentable: the shard is compressed, has sparse members, or is several archives behind each other.
    """
    refuse_unaddressable(index, "an energon index")
    if index.joins:
        raise NotRepresentable(
            f"an end mark stands inside of the shard, before byte {index.joins[0]}: archives were joined, and energon "
            "takes an end mark for the end; rewrite the shard",
            url=index.url, offset=index.joins[0],
        )  # fmt: skip


def loads(content: bytes, *, url: str | None = None) -> Sequence[int]:
    """Read an index file.

    Args:
        content: the file's bytes.
        url: of the file, for messages.

    Returns:
        Where each sample starts, then where the end mark starts.

    Raises:
        BadIndex: not such a file.
    """
    offsets = array("Q")
    if not content or len(content) % offsets.itemsize:
        raise BadIndex(f"an energon index of {len(content)} bytes is none: it holds numbers of 8 bytes", url=url)
    offsets.frombytes(content)
    if sys.byteorder == "big":
        offsets.byteswap()
    place = 0
    for ordinal, offset in enumerate(offsets):
        if offset % 512 or (ordinal and offset <= place):
            raise BadIndex(f"an energon index has byte {offset} for sample {ordinal}, behind byte {place}", url=url)
        place = offset
    return offsets
