"""Which shards this rank and this worker read.

Theory. Of a sequence that all of them see alike, rank r of W takes every W-th item beginning at r, and worker w of N
takes every N-th of what is left, beginning at w. Every item goes to exactly one worker of one rank, whatever the
numbers. This holds only if all see the same sequence: shuffle before a split must draw alike everywhere, which the
mark ``splits`` tells the pipeline.

Flows in: shards. Flows out: this process's share of them, in order.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from webdataset.ground.errors import NoSamples, UsageError
from webdataset.ground.topology import place


def single_node_only(src: Iterable[Any], group: Any = None) -> Iterator[Any]:
    """Pass everything on, and refuse to run in more than one rank: there, all ranks would read the same shards.

    Args:
        src: shards.
        group: a ``torch.distributed`` process group; None for the default one.

    Raises:
        UsageError: the world is larger than one rank.
    """
    where = place(group)
    if where.world_size > 1:
        raise UsageError(
            f"this is rank {where.rank} of {where.world_size}, and every rank would read all shards: you need to add "
            "an explicit nodesplitter to your input pipeline for multi-node training. Pass "
            "nodesplitter=wds.split_by_node to share the shards out, nodesplitter=None to read all of them on every "
            "rank, or resampled=True",
            stage="single_node_only",
        )
    yield from src


def split_by_node(src: Iterable[Any], group: Any = None) -> Iterator[Any]:
    """Keep this rank's share.

    Args:
        src: shards, in the same order on all ranks.
        group: a ``torch.distributed`` process group; None for the default one.
    """
    where = place(group)
    yield from islice(src, where.rank, None, where.world_size) if where.world_size > 1 else src


def split_by_worker(src: Iterable[Any], group: Any = None) -> Iterator[Any]:
    """Keep this DataLoader worker's share.

    Args:
        src: shards, in the same order in all workers.
        group: a ``torch.distributed`` process group; None for the default one.
    """
    where = place(group)
    yield from islice(src, where.worker, None, where.num_workers) if where.num_workers > 1 else src


split_by_node.splits = True  # type: ignore[attr-defined]
split_by_worker.splits = True  # type: ignore[attr-defined]


def non_empty(src: Iterable[Any]) -> Iterator[Any]:
    """Pass everything on, and raise where there was nothing.

    Args:
        src: anything.

    Raises:
        NoSamples: nothing came.
    """
    empty = True
    for shard in src:
        empty = False
        yield shard
    if empty:
        where = place()
        raise NoSamples(
            "pipeline stage received no data at all and this was declared as an error: "
            f"rank {where.rank} of {where.world_size}, worker {where.worker} of {where.num_workers} has no share; use "
            "at least as many shards as there are workers in all",
            stage="non_empty",
        )
