"""Layer 5: stages: generators with a state, from an iterator of items to an iterator of items.

* ``base``: Stage, StageState and Run; makers of stages from functions; which stage and sample an error came from
* ``read_shards``: tar shards to samples, one at a time; ``open_shards``: several in turn
* ``record_readers``: shards of CBOR or msgpack items
* ``map``: map, decode, xdecode, labels, info and log_keys
* ``fields``: to_tuple, rename, associate, patterns, to_dict
* ``select``: by predicate, at random, by position
* ``batch``: batched, unbatched, listed, unlisted, collation
* ``shuffle``: through a buffer bounded by samples or bytes
* ``shuffle_blocks``: block by block
* ``packing``: sequences of different lengths into rows of one length; ``packed_rows``: which make a row, and its arrays
* ``bucketing``: batches of samples of like length or one class; ``padding``: arrays of different lengths in a batch
* ``shuffle_journal``: the buffer of a shuffle, saved at every step
* ``address_codec``: addresses in few bytes
* ``randomness``: generators of stages, and of single samples
* ``mix``: random, even, round robin, one after another
* ``mix_sources``: the sources of a mix, each resumed by itself
* ``sharding``: stages that divide by shard or by sample, equal shares (the splitters: ``shards.split``)
* ``argument_checks``: of what stages are given
* ``checks``: no samples, shards read several times
* ``sample_cache``: samples kept in memory or in LMDB
* ``datasets``: mock, with_epoch, with_length, AISBatch
* ``interleaved_documents``: documents joined with their images
* ``augment``: random changes of images
"""
