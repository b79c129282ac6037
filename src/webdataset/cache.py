"""Door: keeping shards near."""

from .caching.cleanup import LRUCleanup
from .caching.names import pipe_cleaner

__all__ = ["LRUCleanup", "pipe_cleaner"]
