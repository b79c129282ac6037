"""Layer 5: where samples lie in shards: index files, read and written, and random access by them.

* ``entries``: ShardIndex, the entries of one shard
* ``build``: a shard to its index; ``publish``: index files beside shards, or made while shards are read
* ``lookup``: the index and the sample counts beside a shard; ``convert``: indexes of other tools to ours
* ``indexed_shard``, ``indexed_dataset``: samples by number and by key
* ``formats``: DALI, Energon, files-JSON; ``wids``: the published ``wids``

The public names are loaded when they are first used.
"""

import importlib
from typing import Any

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
    "write_indexes": "publish",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load the module that holds ``name`` and return it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
