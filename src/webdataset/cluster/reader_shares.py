"""What each process of a training job reads in an epoch, for jobs that are too large to ask each process itself.

Theory. The rules are those of ``split_by_node`` with ``split_by_worker``, of ``split_by_sample`` and of virtual
streams, written for all processes at once; :func:`webdataset.loading.read_plan.plan_reading` runs the splitters
themselves, and tests compare the two. Shards are taken in the order in which they are listed: a shuffle of shards
changes which ones a process reads, and not how many.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from webdataset.cluster.training_job import TrainingJob
from webdataset.cluster.training_rates import TrainingRates
from webdataset.flow.elastic_pipeline import ElasticMixin
from webdataset.flow.run import expand_stages
from webdataset.loading.states import plan_delivery
from webdataset.stages.shuffle import Shuffle
from webdataset.storage.open_url import local_path


@dataclass(frozen=True)
class ShardTable:
    """Sizes of the shards, in the order in which an epoch reads them.

    Args:
        samples: int64 [N], of each shard.
        size_bytes: int64 [N].
    """

    samples: np.ndarray
    size_bytes: np.ndarray

    @classmethod
    def uniform(cls, shards: int, samples: int, sample_bytes: float) -> "ShardTable":
        """Return a table of equal shards.

        Args:
            shards: how many.
            samples: of each.
            sample_bytes: of a sample, with its headers.
        """
        size = round(samples * sample_bytes)
        return cls(np.full(shards, samples, np.int64), np.full(shards, size, np.int64))


@dataclass(frozen=True)
class ReaderShares:
    """What each process reads in an epoch.

    Args:
        samples: int64 [readers], that it gives.
        shards: int64 [readers], that it opens.
        size_bytes: int64 [readers], that it reads, also of samples that it leaves to others.
    """

    samples: np.ndarray
    shards: np.ndarray
    size_bytes: np.ndarray


def share_shards(table: ShardTable, job: TrainingJob) -> ReaderShares:
    """Return what each process reads; that of rank r, worker w stands at ``r * workers + w``.

    Args:
        table: the shards.
        job: how they are split.
    """
    workers = max(1, job.workers)
    shares = np.zeros((3, job.readers), np.int64)
    if job.streams or job.by_sample:
        streams = job.streams or job.readers
        numbers = np.arange(streams)
        if job.streams:
            owners = numbers % job.ranks * workers + numbers // job.ranks % workers
        else:
            owners = numbers % job.ranks * workers + numbers // job.ranks
        for column, values in enumerate(_share_between_streams(table, streams)):
            np.add.at(shares[column], owners, values)
    else:
        places = np.arange(len(table.samples))
        owners = places % job.ranks * workers + places // job.ranks % workers
        for column, values in enumerate((table.samples, np.ones_like(places), table.size_bytes)):
            np.add.at(shares[column], owners, values)
    return ReaderShares(*shares)


def _share_between_streams(table: ShardTable, streams: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return samples, shards and bytes of each stream: full rounds, and shares of the last one by sample."""
    rounds, rest = divmod(len(table.samples), streams)
    whole = rounds * streams
    samples = table.samples[:whole].reshape(rounds, streams).sum(axis=0)
    size = table.size_bytes[:whole].reshape(rounds, streams).sum(axis=0)
    shards = np.full(streams, rounds, np.int64)
    if rest:
        numbers = np.arange(streams)
        places, first = numbers % rest, numbers // rest
        among = (streams - 1 - places) // rest + 1
        samples = samples + np.maximum(0, -((first - table.samples[whole + places]) // among))
        size = size + table.size_bytes[whole + places]
        shards = shards + 1
    return samples, shards, size


def read_shard_table(
    source: object, rates: TrainingRates, counts: Mapping[str, int] | None = None, *, pretend: int | None = None
) -> ShardTable:
    """Return the sizes of a dataset's shards; what is not known is as the mean of those that were measured.

    Args:
        source: a dataset, or a loader over one.
        rates: of its shards.
        counts: url to number of samples.
        pretend: number of shards that are all like the mean of those that were measured, in place of the dataset's.
    """
    mean = max(1, round(rates.samples_per_shard))
    if pretend is not None:
        return ShardTable.uniform(pretend, mean, rates.sample_bytes)
    stages = expand_stages(plan_delivery(source).dataset.pipeline)
    urls = [str(url) for url in getattr(stages[0], "urls", [])]
    known = counts or {}
    samples = np.array([known.get(url, mean) for url in urls], np.int64)
    sizes = np.array([_find_size(url, n * rates.sample_bytes) for url, n in zip(urls, samples, strict=True)], np.int64)
    return ShardTable(samples, sizes)


def _find_size(url: str, otherwise: float) -> int:
    path = local_path(url)
    try:
        return round(otherwise) if path is None else os.stat(path).st_size  # noqa: PTH116  the text of a url
    except OSError:
        return round(otherwise)


def find_job_settings(source: object) -> dict[str, object]:
    """Return what a dataset, or a loader over one, says of a job: streams, shuffle buffer, workers, batch size.

    Args:
        source: a dataset, or a loader over one.
    """
    delivery = plan_delivery(source)
    found: dict[str, object] = {}
    if delivery.dataset is not source:
        found["workers"] = delivery.workers
        found |= {} if delivery.batch_size is None else {"batch_size": delivery.batch_size}
    if isinstance(delivery.dataset, ElasticMixin):
        found["streams"] = delivery.dataset.streams
    for stage in expand_stages(delivery.dataset.pipeline):
        if isinstance(stage, Shuffle):
            found |= {"shuffle": stage.bufsize, "shuffle_initial": stage.initial}
    return found
