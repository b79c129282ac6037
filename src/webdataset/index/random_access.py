"""Random access: one shard, or many, as a sequence of samples. The classes stand in modules of their own."""

from .indexed_dataset import IndexedDataset
from .indexed_shard import IndexedShard

__all__ = ["IndexedDataset", "IndexedShard"]
