"""A dataset for loaders, importable by workers however they are started: each item is one shard, read three ways."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from support import readings
from support.schemes import Target
from support.schemes_local import register_far


class Outcome(NamedTuple):
    """What came of one shard.

    Args:
        pid: who read it.
        url: of the shard.
        right: whether every way of reading gave the right bytes.
    """

    pid: int
    url: str
    right: bool


class ShardReads:
    """The dataset.

    Args:
        wanted: targets, each with the digests of its bytes and of its samples. Secrets are named by files: a fork
            server has the environment of its own start.
    """

    def __init__(self, wanted: Sequence[tuple[Target, tuple[str, str]]]) -> None:
        self.wanted = list(wanted)

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.wanted)

    def __getitem__(self, index: int) -> Outcome:
        """Read one shard: as a stream, by samples, and by ranges."""
        target, (whole, samples) = self.wanted[index]
        if target.url.startswith("wdsfar:"):
            register_far()
        found = readings.streamed(target), readings.sampled(target), readings.ranged(target, seed=index)
        return Outcome(os.getpid(), target.url, found == (whole, samples, whole))
