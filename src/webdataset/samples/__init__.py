"""Layer 3: opens shards, groups their members into samples, and keeps track of where each sample stands.

* ``shard_opener``: urls to opened shards, the next ones ahead of their turn
* ``sample_reader``: opened shards to samples; the rules of reading; the position
* ``sample_selection``: the samples that ``where=`` keeps
* ``shard_reader``: one tar shard; the verdict about its end; ``native_core``: the usual case of it in C
* ``mapped_shard``: shards of which samples are views
* ``reading_rules``: what readers of shards have in common
* ``shared_reader``: a shard that several streams share, read once; ``shard_extents``: some of its samples alone
* ``selected_extents``: the samples that a columns file does not exclude
* ``seekable_source``: a stream that goes to an offset
* ``raw_samples``: members and samples as they stand, header bytes and payloads
* ``records``: one shard of records without tar
* ``grouping``: members to samples; names to key and extension
* ``members``: members as dicts, for groupers of other programs
* ``split_samples``: samples whose members do not stand next to each other
* ``links``: hard links, and members without a payload
* ``member_sizes``: bounds on the size of one member
* ``address``: where a sample stands
* ``shard_identity``: is a shard still the one that a state was saved of
* ``refetch``: samples by address
* ``aistore_batches``: samples that AIStore assembles
* ``documents``: interleaved documents
"""
