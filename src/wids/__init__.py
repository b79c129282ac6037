"""Indexed, map-style access to shards: the published ``wids``, served by :mod:`webdataset.index`."""

import importlib
from typing import Any

from webdataset.index.wids.dataset import ShardListDataset
from webdataset.index.wids.samplers import ChunkedSampler, DistributedChunkedSampler, ShardedSampler, ShardListSampler

__all__ = [
    "ChunkedSampler",
    "DistributedChunkedSampler",
    "ShardListDataset",
    "ShardListSampler",
    "ShardedSampler",
]

_MODULES = ("wids", "wids_decode", "wids_dl", "wids_index", "wids_lru", "wids_mmtar", "wids_specs", "wids_tar")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
