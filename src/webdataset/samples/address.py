"""Where a sample stands: shard, ordinal, byte offset."""

from typing import NamedTuple


class Address(NamedTuple):
    """One sample's place in a run.

    Args:
        shard: index of the shard in the run's stream of shards, from 0.
        ordinal: index of the sample in its shard, from 0.
        offset: byte offset of its first header in the (decompressed) tar stream.
    """

    shard: int
    ordinal: int
    offset: int
