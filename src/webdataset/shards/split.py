"""Which shards this rank and this worker read.

Theory. Of a sequence that all of them see alike, rank r of W takes every W-th item beginning at r, and worker w of N
takes every N-th of what is left, beginning at w. Every item goes to exactly one worker of one rank, whatever the
numbers. This holds only if all see the same sequence: shuffle before a split must draw alike everywhere, which the
mark ``splits`` tells the pipeline.

A virtual stream v of V takes of each round of V shards the v-th. The last round may not be full: then its m shards are
shared by sample, stream v taking of shard ``v mod m`` every n-th sample, n being the number of streams that share it.
So streams differ in length by little, and no shard is too few.

Flows in: shards. Flows out: this process's share of them, in order.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from webdataset.ground.errors import NoSamples, UsageError
from webdataset.ground.topology import Stream, place


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


class StreamShare:
    """What one virtual stream reads of the shards of a pass.

    Args:
        stream: which stream, of how many.
    """

    splits = True  # what stands before is drawn alike in all streams

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __call__(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the stream's shards; one that is shared by sample says so: ``"share": (first, every)``."""
        number, count = self.stream
        source = iter(shards)
        while len(together := list(islice(source, count))) == count:
            yield together[number]
        if not together:
            return
        place = number % len(together)
        among = len(range(place, count, len(together)))
        yield together[place] | ({"share": (number // len(together), among)} if among > 1 else {})

    def __repr__(self) -> str:
        return f"stream_share({self.stream.number} of {self.stream.of})"


class StreamItems:
    """What one virtual stream reads of a source that gives samples, not shards: every V-th.

    Args:
        stream: which stream, of how many.
    """

    splits = True

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        """Yield every V-th item, from the stream's own number on."""
        return islice(source, self.stream.number, None, self.stream.of)

    def __repr__(self) -> str:
        return f"stream_items({self.stream.number} of {self.stream.of})"


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
