"""Layer 7: sinks: tar files and series of shards.

* ``tar_writer``: TarWriter, one shard; ``shard_writer``: ShardWriter, a series of shards
* ``records``: CBOR and msgpack shards; ``documents``: interleaved documents
* ``outputs``: where bytes go; ``local_file``: a finished shard renamed into place; ``compression``: gz, bz2, xz, zst
* ``indexing``: index files made in the pass that writes the shards
"""
