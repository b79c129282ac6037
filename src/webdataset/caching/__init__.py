"""Layer 3: the shard cache, a directory of shards with a bound on its size.

* ``shard_cache``: the public cache, its prefetch, download of one url to one file.
* ``entry``: one shard: absent, partial or whole; finds, follows, resumes or downloads it.
* ``download``: the writing thread, and the checks of what it writes.
* ``reader``: reads a whole or growing file.
* ``metadata``: sidecar files, revalidation.
* ``names``: file names and paths of a shard; the object that a url names.
* ``eviction``: quota, least recently used first, leftovers.
* ``locks``: locks and leases between processes, files in use, temporary downloads.
"""
