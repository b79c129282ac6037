"""Compatibility import path: the names of the published module ``wids.wids_lru``."""

from webdataset.index.wids.local_copies import LRUCache

__all__ = ["LRUCache"]
