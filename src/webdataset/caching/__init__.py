"""Layer 3: the shard cache, a directory of shards with a bound on its size.

* ``shard_cache``: the public cache, its prefetch, download of one url to one file. ``entry``: one shard and its
  states.
* ``download``: the writing thread. ``reader``: reads a whole or growing file. ``validation``: checks of a download.
* ``names``: file names and paths. ``metadata``: sidecar files, revalidation. ``eviction``: quota, LRU.
* ``locks``: locks and leases between processes, files in use.
"""
