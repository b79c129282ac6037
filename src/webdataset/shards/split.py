"""Splits shards between ranks, workers and virtual streams.

Theory. Of a sequence that all of them see alike, rank r of W takes every W-th item beginning at r, and worker w of N
takes every N-th of what is left, beginning at w. Every item goes to exactly one worker of one rank, whatever the
numbers. This holds only if all see the same sequence: a shuffle before a split must draw alike everywhere, which the
mark ``splits`` tells the pipeline.

A virtual stream v of V takes of each round of V shards the v-th. The last round may not be full: then its m shards
are shared by sample, stream v taking of shard ``v mod m`` every n-th sample, n being the number of streams that share
it. So streams differ little in length, and any number of shards is enough. Where a stage joins neighbouring samples,
streams share whole shards: of the last round, stream v takes the v-th shard, and streams from m on take none.
"""

import functools
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from webdataset.core.distributed import StreamNumber, has_only_launcher, worker_context
from webdataset.core.errors import NoSamples, UsageError
from webdataset.core.logs import log

T = TypeVar("T")
Shard = dict[str, Any]


def single_node_only(src: Iterable[T], group: object = None) -> Iterator[T]:
    """Pass everything on, and refuse to run in more than one rank: there, all ranks would read the same shards.

    Where only a launcher (MPI, SLURM) says that there are several, they may each do something else: it is logged.

    Args:
        src: shards.
        group: a ``torch.distributed`` process group; None for the default one.

    Raises:
        UsageError: the world is larger than one rank.
    """
    where = worker_context(group)
    if where.world_size > 1:
        message = (
            f"this is rank {where.rank} of {where.world_size}, and every rank would read all shards: you need to add "
            "an explicit nodesplitter to your input pipeline for multi-node training. Pass "
            "nodesplitter=wds.split_by_node to share the shards out (wds.split_by_sample where there are fewer than "
            f"workers), nodesplitter=None to read all of them on all {where.world_size} ranks, or resampled=True"
        )
        if not has_only_launcher(group):
            raise UsageError(message, stage="single_node_only")
        _warn_once(message)
    yield from src


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)


def split_by_node(src: Iterable[T], group: object = None) -> Iterator[T]:
    """Keep this rank's share.

    Args:
        src: shards, in the same order on all ranks.
        group: a ``torch.distributed`` process group; None for the default one.
    """
    where = worker_context(group)
    yield from islice(src, where.rank, None, where.world_size) if where.world_size > 1 else src


def split_by_worker(src: Iterable[T], group: object = None) -> Iterator[T]:
    """Keep this DataLoader worker's share.

    Args:
        src: shards, in the same order in all workers.
        group: a ``torch.distributed`` process group; None for the default one.
    """
    where = worker_context(group)
    yield from islice(src, where.worker, None, where.num_workers) if where.num_workers > 1 else src


def split_by_sample(src: Iterable[Shard], group: object = None) -> Iterator[Shard]:
    """Keep this worker's share among the workers of all ranks, cutting shards where there are too few to go round.

    Of each round of as many shards as there are workers in all, every worker takes one. The shards of the last round,
    where it is not full, are shared by sample: several workers read the same shard, and each keeps every n-th sample.
    So one shard is enough for any number of workers, and no sample is given twice or left out.

    Args:
        src: shards, dicts with ``url``, in the same order everywhere.
        group: a ``torch.distributed`` process group; None for the default one.
    """
    where = worker_context(group)
    workers = where.world_size * where.num_workers
    share = StreamShare(StreamNumber(where.rank + where.world_size * where.worker, workers))
    yield from share(src) if workers > 1 else src


split_by_node.splits = True  # type: ignore[attr-defined]
split_by_worker.splits = True  # type: ignore[attr-defined]
split_by_sample.splits = True  # type: ignore[attr-defined]


class StreamShare:
    """What one virtual stream reads of the shards of a pass.

    Args:
        stream: which stream, of how many.
        whole: no shard is shared by sample; where there are fewer shards than streams, some streams have none.
    """

    # what stands before is drawn alike in all streams
    splits = True

    def __init__(self, stream: StreamNumber, *, whole: bool = False) -> None:
        self.stream = stream
        self.whole = whole

    def __call__(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """Yield the stream's shards; one that is shared by sample says so.

        It has ``"share"``: (number of the first sample, step), and ``"shared_by"``: the streams that share it.
        """
        number, count = self.stream
        source = iter(shards)
        while len(together := list(islice(source, count))) == count:
            yield together[number]
        if self.whole:
            yield from together[number : number + 1]
            return
        if not together:
            return
        place = number % len(together)
        among = range(place, count, len(together))
        shared = {"share": (number // len(together), len(among)), "shared_by": among}
        yield together[place] | (shared if len(among) > 1 else {})

    def __repr__(self) -> str:
        return f"stream_share({self.stream.number} of {self.stream.of})"


class StreamItems:
    """What one virtual stream reads of a source that gives samples, not shards: every V-th.

    Args:
        stream: which stream, of how many.
        whole: a later stage joins neighbouring samples, so that the items must be shards.
    """

    splits = True

    def __init__(self, stream: StreamNumber, *, whole: bool = False) -> None:
        self.stream = stream
        self.whole = whole

    def __call__(self, source: Iterable[T]) -> Iterator[T]:
        """Yield every V-th item, from the stream's own number on.

        Raises:
            UsageError: samples, which a later stage would join with their neighbours.
        """
        items = islice(source, self.stream.number, None, self.stream.of)
        return map(_refuse_samples, items) if self.whole else items

    def __repr__(self) -> str:
        return f"stream_items({self.stream.number} of {self.stream.of})"


def _refuse_samples(item: T) -> T:
    """Return an item that is no sample."""
    if isinstance(item, dict) and "__key__" in item and "url" not in item:
        raise UsageError(
            "an elastic dataset shares the samples of this source out between streams, so that a stage which joins "
            "neighbouring samples would not find them: read them from shards, or leave elastic() out",
            key=str(item["__key__"]),
        )
    return item


def non_empty(src: Iterable[T]) -> Iterator[T]:
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
        where = worker_context()
        raise NoSamples(
            "pipeline stage received no data at all and this was declared as an error: "
            f"rank {where.rank} of {where.world_size}, worker {where.worker} of {where.num_workers} has no share; use "
            f"at least as many shards as there are workers in all ({where.world_size * where.num_workers}), or "
            "wds.split_by_sample in the place of wds.split_by_node and wds.split_by_worker",
            stage="non_empty",
        )
