"""Shard lists that know their dataset's name, and say each time that it begins again.

Flows in: a name and urls. Flows out: ``{"url"}`` for ever. Existing code that mixes interleaved and paired datasets
calls them with the name first.
"""

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from webdataset.ground.logs import log

from .lists import ResampledShards, Shard, SimpleShardList


class InfiniteShardList(SimpleShardList):
    """A list of shards, over and over.

    Args:
        dataset_name: for the log.
        urls: as for :class:`SimpleShardList`.
        seed: shuffles the list, the same in every round; True takes a seed from the operating system.

    Raises:
        NoShards: an empty list.
        UsageError: something that gives no urls.
    """

    def __init__(self, dataset_name: str, urls: Any, seed: Any = None) -> None:
        super().__init__(urls, seed)
        self.dataset_name = dataset_name

    def __len__(self) -> int:
        """Return the number of shards of one round."""
        return super().__len__()

    def shards(self, epoch: int, draw: Callable[[], random.Random]) -> Iterator[Shard]:
        """Yield all shards, round after round."""
        rounds = 0
        while True:
            yield from super().shards(epoch, draw)
            rounds += 1
            log.warning("dataset %s: all %d shards were given %d times", self.dataset_name, len(self.urls), rounds)

    def __repr__(self) -> str:
        return f"InfiniteShardList({self.dataset_name!r}, {len(self.urls)} shards, seed={self.seed})"


class NamedResampledShards(ResampledShards):
    """Shards drawn at random with replacement, from a dataset with a name.

    Args:
        dataset_name: for the log.
        urls: as for :class:`ResampledShards`.
        nshards: draws in one pass.
        worker_seed: function giving a number that differs between workers.
        deterministic: draw from (worker, epoch) alone.

    Raises:
        NoShards: no urls.
        UsageError: something that gives no urls.
    """

    def __init__(
        self,
        dataset_name: str,
        urls: Any,
        nshards: int = sys.maxsize,
        worker_seed: Any = None,
        deterministic: bool = False,  # noqa: FBT001, FBT002  existing code's signature
    ) -> None:
        super().__init__(urls, nshards, None, worker_seed, deterministic=deterministic)
        self.dataset_name = dataset_name
