"""Layer 5: where samples lie in shards: index files, read and written, and random access by them.

* ``entries``: ShardIndex, the entries of one shard
* ``build``: a shard to its index; ``plain_members``: small members by the native core
* ``publish``: index files beside shards, or made while shards are read
* ``lookup``: the index and the sample counts beside a shard; ``convert``: indexes of other tools to ours
* ``column_files``: columns files, written; ``column_selection``: the samples that an expression may want by them
* ``sample_tables``: what a process needs to read only its own samples of a shard; ``member_lists``: from an index
* ``indexed_shard``, ``indexed_dataset``: samples by number and by key; ``sample_fetch``: reads and proves one;
  ``local_samples``: those of local files, by one read or call; ``video_clips``: parts of videos by ranges
* ``formats``: our own, DALI, Energon, files-JSON, columns in Parquet; ``wids``: the published ``wids``

The public names are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from webdataset.index.build import index_shard, index_shards
    from webdataset.index.column_files import write_columns
    from webdataset.index.entries import ShardIndex
    from webdataset.index.formats.energon import energon_rows, energon_shards
    from webdataset.index.indexed_dataset import IndexedDataset
    from webdataset.index.indexed_shard import IndexedShard
    from webdataset.index.lookup import sample_counts
    from webdataset.index.publish import IndexWhileReading, write_indexes

_HOMES = {
    "IndexedDataset": "indexed_dataset",
    "IndexedShard": "indexed_shard",
    "IndexWhileReading": "publish",
    "ShardIndex": "entries",
    "energon_rows": "formats.energon",
    "energon_shards": "formats.energon",
    "index_shard": "build",
    "index_shards": "build",
    "sample_counts": "lookup",
    "write_columns": "column_files",
    "write_indexes": "publish",
}

__all__ = [
    "IndexWhileReading",
    "IndexedDataset",
    "IndexedShard",
    "ShardIndex",
    "energon_rows",
    "energon_shards",
    "index_shard",
    "index_shards",
    "sample_counts",
    "write_columns",
    "write_indexes",
]


def __getattr__(name: str) -> object:
    """Load the module that holds ``name`` and return it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
