"""Sharing a list of known length out between ranks and workers, by shards or, where these are too few, by samples.

Theory. With at least as many shards as workers in all, each worker takes every n-th shard. With fewer, some would have
none: then every worker reads all of them and takes every n-th sample. Both sides look at the same numbers: each sample
goes to exactly one worker.

Flows in: shards, and later samples. Flows out: this worker's share of them.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from webdataset.ground.topology import place

from .selecting import Given, Slice


def _share(*, ranks: bool, workers: bool) -> tuple[int, int]:
    """Return this worker's number and the number of workers, of those between which something is shared out."""
    where = place()
    rank, world = (where.rank, where.world_size) if ranks else (0, 1)
    worker, count = (where.worker, where.num_workers) if workers else (0, 1)
    return rank + world * worker, world * count


class ShareShards:
    """This worker's share of some shards; all of them where there are fewer shards than workers.

    Args:
        count: number of shards in a pass.
        ranks: share out between ranks.
        workers: share out between workers of a rank.
    """

    splits = True  # what stands before is drawn alike in all workers

    def __init__(self, count: int, *, ranks: bool, workers: bool) -> None:
        self.count = count
        self.ranks = ranks
        self.workers = workers

    def __call__(self, shards: Iterable[Any]) -> Iterator[Any]:
        """Yield this worker's share."""
        number, among = _share(ranks=self.ranks, workers=self.workers)
        yield from islice(shards, number, None, among) if self.count >= among else shards

    def __repr__(self) -> str:
        return f"share_shards({self.count})"


class ShareSamples(Slice):
    """This worker's share of the samples, where the shards before were too few to be shared out.

    Args:
        count: number of shards in a pass.
        ranks: share out between ranks.
        workers: share out between workers of a rank.

    Flow: in order; holds nothing; resumes exactly.
    """

    def __init__(self, count: int, *, ranks: bool, workers: bool) -> None:
        super().__init__(None)
        self.count = count
        self.ranks = ranks
        self.workers = workers

    def flow(self, upstream: Iterator[Any], memory: Given) -> Iterator[Any]:
        """Yield this worker's share."""
        number, among = _share(ranks=self.ranks, workers=self.workers)
        mine = Slice(None) if self.count >= among else Slice(number, None, among)
        return mine.flow(upstream, memory)

    def __repr__(self) -> str:
        return f"share_samples({self.count})"
