"""Door: the names of the published module ``wids.wids_lru``."""

from webdataset.index.wids.lru import LRUCache

__all__ = ["LRUCache"]
