"""Layer 5: looks into shards: finds what is wrong with them, predicts what other readers refuse, and repairs copies.

* ``findings``: the kinds of findings, and reports
* ``check``: checks of lists of shards; ``shard_check``: one shard, front to back
* ``header_walk``: what headers say, and the next header after damage; ``key_checks``: keys and fields of samples
* ``field_checks``: fields that do not decode; ``recorded_digests``: what index files record of shards
"""
