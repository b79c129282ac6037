"""Measures how well a pipeline mixes: figures that are 0 or 1 for a perfect shuffle of the whole dataset.

Theory. A perfect shuffle draws every order alike. What training sees of an imperfect one is that the samples of a
batch come from few shards, or from one region of storage; and that what is stored early comes early. Each figure
compares one of these with its expectation under a perfect shuffle. A simulation runs the very stages that a dataset
runs, over numbers instead of samples, so that nothing is read.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp, lgamma
from typing import TYPE_CHECKING, Any

from webdataset.core.errors import UsageError
from webdataset.flow.run import Flow
from webdataset.stages.base import Run
from webdataset.stages.open_shards import OpenShards
from webdataset.stages.read_shards import ReadShards

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from webdataset.flow.pipeline import DataPipeline

ShardOrdinal = tuple[Any, int]  # shard, ordinal in it


@dataclass(frozen=True)
class ShuffleQuality:
    """How well samples were mixed.

    Args:
        samples: number of samples that were looked at.
        shards: number of shards they came from.
        batch: samples in a batch.
        correlation: rank correlation between the place in the epoch and the place in storage, in [-1, 1]; 0 is perfect.
        displacement: mean distance between the two places, relative to that of a perfect shuffle; 1 is perfect.
        distance: mean distance in storage between samples next to each other in a batch, likewise; 1 is perfect.
        same_shard: share of the pairs of a batch that come from one shard, in [0, 1].
        same_shard_ideal: the same of a perfect shuffle.
        shards_per_batch: mean number of shards in a batch.
        shards_per_batch_ideal: the same of a perfect shuffle.
    """

    samples: int
    shards: int
    batch: int
    correlation: float
    displacement: float
    distance: float
    same_shard: float
    same_shard_ideal: float
    shards_per_batch: float
    shards_per_batch_ideal: float

    def __str__(self) -> str:
        ideal = self.shards_per_batch_ideal
        return "\n".join(
            (
                f"{self.samples} samples of {self.shards} shards in batches of {self.batch}",
                f"correlation with storage  {self.correlation:8.3f}   (perfect: 0)",
                f"displacement              {self.displacement:8.3f}   (perfect: 1)",
                f"distance of neighbours    {self.distance:8.3f}   (perfect: 1)",
                f"pairs of one shard        {self.same_shard:8.3f}   (perfect: {self.same_shard_ideal:.3f})",
                f"shards of a batch         {self.shards_per_batch:8.1f}   (perfect: {ideal:.1f})",
            )
        )


def simulate_shuffle_quality(
    shards: int | Sequence[int],
    samples: int = 1000,
    stages: Iterable[Any] = (),
    *,
    open_shards: int = 1,
    shardshuffle: bool = True,
    batch: int = 256,
    workers: int = 1,
    seed: int = 0,
) -> ShuffleQuality:
    """Simulate a pipeline on numbers, and return how well it mixes. Nothing is read.

    Args:
        shards: number of shards, or the number of samples of each.
        samples: samples in a shard, where ``shards`` is a number.
        stages: the stages after the reader: ``[wds.shuffle(1000)]``.
        open_shards: number of shards that are read at once.
        shardshuffle: shards come in random order.
        batch: samples in a batch.
        workers: number of DataLoader workers, each with its share of the shards, whose batches alternate.
        seed: decides all orders.

    Raises:
        UsageError: nothing to look at.
    """
    sizes = [samples] * shards if isinstance(shards, int) else list(shards)
    order = list(range(len(sizes)))
    if shardshuffle:
        random.Random(seed).shuffle(order)  # noqa: S311  a simulation
    reader: ReadShards = _NumberReader(sizes)
    reader = reader if open_shards == 1 else OpenShards(reader, open_shards)
    flows = [
        iter(Flow([[{"url": shard} for shard in order[worker::workers]], reader, *stages], Run(seed=seed + worker)))
        for worker in range(workers)
    ]
    return compute_quality(_alternate(flows, batch), batch)


class _NumberReader(ReadShards):
    """A reader of shards that hold nothing but numbers."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def flow(self, upstream: Iterator[Any], state: object) -> Iterator[Any]:  # noqa: ARG002
        """Yield (shard, ordinal)."""
        for shard in upstream:
            number = shard["url"]
            yield from ((number, ordinal) for ordinal in range(self.sizes[number]))


def _alternate(flows: list[Iterator[ShardOrdinal]], batch: int) -> Iterator[ShardOrdinal]:
    while flows:
        for flow in list(flows):
            together = list(islice(flow, batch))
            if not together:
                flows.remove(flow)
            yield from together


def measure_shuffle_quality(dataset: "DataPipeline", batch: int = 256, limit: int | None = None) -> ShuffleQuality:
    """Read a dataset (one epoch of it, or its first samples), and return how well it mixes.

    Args:
        dataset: a pipeline of single samples: no batches, and no stage of the user's that is resumed by replay. Shards
            are put in the order of their urls where samples have ``__url__``, else in the order in which they are read.
        batch: samples in a batch.
        limit: number of samples to look at; None for all.

    Raises:
        UsageError: a pipeline that does not say where its samples are stored; nothing to look at.
    """
    return compute_quality(_locate_samples(dataset, limit), batch)


def _locate_samples(dataset: "DataPipeline", limit: int | None) -> Iterator[ShardOrdinal]:
    with dataset.start(tracked=True) as run:
        for sample in islice(run, limit):
            address = run.address()[1]
            if not isinstance(address, list | tuple) or len(address) != 4 or isinstance(address[0], list | tuple):
                raise UsageError(
                    f"a sample at {address!r} does not say where it is stored: measure the pipeline in front of "
                    "batched, of a mix, and of functions of the whole stream"
                )
            url = sample.get("__url__") if isinstance(sample, dict) else None
            yield (address[0] if url is None else str(url)), int(address[1])


def compute_quality(places: Iterable[ShardOrdinal], batch: int = 256) -> ShuffleQuality:
    """Return how well samples are mixed that come in this order.

    Args:
        places: (shard, ordinal in the shard) of each sample, in the order of the epoch; shards can be ordered.
        batch: samples in a batch, at least 2.

    Raises:
        UsageError: fewer than two samples.
    """
    import numpy as np  # noqa: PLC0415  only measurements pay for it

    found = list(places)
    count = len(found)
    if count < 2 or batch < 2:
        raise UsageError(f"{count} samples in batches of {batch}: at least two of each are needed to measure a shuffle")
    names = {shard: number for number, shard in enumerate(sorted({shard for shard, _ in found}))}
    shard = np.array([names[name] for name, _ in found])
    stored = np.empty(count, np.int64)
    stored[np.lexsort((np.array([ordinal for _, ordinal in found]), shard))] = np.arange(count)
    epoch = np.arange(count)
    inside = (epoch[1:] // batch) == (epoch[:-1] // batch)
    sizes = np.bincount(shard)
    mates, distinct = _measure_batches(shard, min(batch, count), len(names))
    uniform = (count * count - 1) / (3 * count)
    return ShuffleQuality(
        samples=count,
        shards=len(names),
        batch=batch,
        correlation=float(np.corrcoef(epoch, stored)[0, 1]),
        displacement=float(np.abs(epoch - stored).mean() / uniform),
        distance=float(np.abs(np.diff(stored))[inside].mean() / ((count + 1) / 3)),
        same_shard=mates,
        same_shard_ideal=float((sizes * (sizes - 1.0)).sum() / (count * (count - 1.0))),
        shards_per_batch=distinct,
        shards_per_batch_ideal=sum(1 - _probability_of_none(count, int(size), min(batch, count)) for size in sizes),
    )


def _measure_batches(shard: "NDArray[np.int64]", batch: int, shards: int) -> tuple[float, float]:
    """Return the share of pairs of one shard, and the number of shards, in the mean over full batches."""
    import numpy as np  # noqa: PLC0415  only measurements pay for it

    mates, distinct = [], []
    for start in range(0, len(shard) - batch + 1, batch):
        held = np.bincount(shard[start : start + batch], minlength=shards)
        mates.append(float((held * (held - 1)).sum()) / (batch * (batch - 1)))
        distinct.append(int(np.count_nonzero(held)))
    return sum(mates) / len(mates), sum(distinct) / len(distinct)


def _probability_of_none(count: int, size: int, batch: int) -> float:
    """Return the probability that none of ``batch`` samples, drawn of ``count``, is one of ``size``."""
    left = count - size
    if left < batch:
        return 0.0
    return exp(lgamma(left + 1) - lgamma(left - batch + 1) - lgamma(count + 1) + lgamma(count - batch + 1))
