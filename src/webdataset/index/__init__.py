"""Floor 5: where samples lie in shards: index files, read and written, and random access by them.

The names here are loaded when they are first used.
"""

import importlib
from typing import Any

_HOMES = {
    "IndexedDataset": "indexed_dataset",
    "IndexedShard": "indexed_shard",
    "IndexWhileReading": "recording",
    "ShardIndex": "entries",
    "energon_rows": "formats.energon_reading",
    "energon_shards": "formats.energon_reading",
    "index_shard": "building",
    "index_shards": "building",
    "sample_counts": "counts",
    "write_indexes": "publishing",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load the module that holds ``name`` and return it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
