"""Addresses of samples: shard, ordinal and byte offset; in a saved state also a check of what stands there."""

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


class CheckedAddress(NamedTuple):
    """An :class:`Address`, with a number that another sample at this place would hardly have.

    Args:
        shard: as in :class:`Address`.
        ordinal: the same.
        offset: the same.
        check: from 0 to 63, of the sample's key and the shard's size; see :mod:`webdataset.samples.shard_identity`.
    """

    shard: int
    ordinal: int
    offset: int
    check: int = 0
