"""Tells what each worker of each rank reads in an epoch: shards, and samples where their numbers are known.

The dataset's own stages before its reader run once for each worker, as they do in a training, so that a plan is what is
really assigned. No shard is opened; numbers of samples come from indexes, size files or a file of counts.
"""

import copy
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import UsageError
from webdataset.flow.elastic_pipeline import ElasticMixin
from webdataset.flow.run import expand_stages
from webdataset.loading.states import iterate_in_place, plan_delivery
from webdataset.shards.lazy_urls import LazyUrls
from webdataset.shards.lists import ResampledShards
from webdataset.stages.read_shards import ReadShards
from webdataset.storage.open_url import local_path

_FAR_APART = 4  # times the median: shards of very different sizes
_MOST_NAMED = 3


@dataclass(frozen=True)
class AssignedShard:
    """A shard, or a part of one, that a worker reads.

    Args:
        url: of the shard.
        stream: the virtual stream that it is read in, or None.
        share: where several read it: first and step of the samples that are kept; or None.
        part: where it is cut: first sample and the one to stop before; or None.
        samples: how many are kept, or None where that is not known.
    """

    url: str
    stream: int | None = None
    share: tuple[int, int] | None = None
    part: tuple[int, int] | None = None
    samples: int | None = None


@dataclass(frozen=True)
class WorkerPlan:
    """What one worker reads.

    Args:
        rank: of the worker.
        worker: its number.
        samples: in all, or None where that is not known of each shard.
        shards: in the order in which they are read (within each stream).
    """

    rank: int
    worker: int
    samples: int | None
    shards: list[AssignedShard]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return asdict(self)


@dataclass(frozen=True)
class ReadPlan:
    """What all workers read.

    Args:
        workers: by rank and worker.
        shards: number of shards of the dataset.
        samples: number of its samples, or None.
        warnings: what is uneven, empty or not bounded.
    """

    workers: list[WorkerPlan]
    shards: int
    samples: int | None
    warnings: list[str]


class _ListingReader(ReadShards):
    """A reader that opens nothing, and gives the shards themselves, in the place of some stages."""

    def __init__(self, replaced: Sequence[object]) -> None:
        super().__init__()
        self.needs_whole_shards = any(getattr(stage, "needs_whole_shards", False) for stage in replaced)

    def flow(self, upstream: Iterator[Any], state: Any) -> Iterator[Any]:  # noqa: ARG002
        """Return the shards."""
        return (shard for shard in upstream)


def plan_reading(
    source: Any,
    *,
    ranks: int = 1,
    workers: int = 0,
    counts: Mapping[str, int] | None = None,
    epoch: int = 0,
    seed: int = 0,
) -> ReadPlan:
    """Return what each worker of each rank reads in an epoch.

    Args:
        source: a dataset that reads shards; or a loader over one.
        ranks: how many.
        workers: of each rank; 0 is the rank itself.
        counts: url to number of samples; a shard that it lacks is one of unknown length.
        epoch: its number.
        seed: of the run, where the dataset has none.

    Raises:
        UsageError: it does not read shards in one pass, or there are fewer streams than ranks.
    """
    dataset = plan_delivery(source).dataset
    stages = expand_stages(dataset.pipeline)
    reader = next((place for place, stage in enumerate(stages) if isinstance(stage, ReadShards)), None)
    if reader is None:
        raise UsageError("there is no plan of a dataset that does not read shards itself: plan each source of a mix")
    known = counts or {}
    if isinstance(stages[0], ResampledShards):
        urls = [str(url) for url in getattr(stages[0], "urls", [])]
        return ReadPlan([], len(urls), _sum_counts(urls, known), _warn_of_draws())
    listing = copy.copy(dataset)
    listing.pipeline = [*stages[:reader], _ListingReader(stages[reader:])]
    listing.evenness = None  # which counts samples; the shares themselves are a stage
    listing.repetitions, listing.nsamples, listing.seed = 1, -1, seed if dataset.seed is None else dataset.seed
    found = []
    for rank in range(ranks):
        for worker in range(max(1, workers)):
            place = WorkerContext(rank, ranks, worker, max(1, workers))
            listing.set_epoch(epoch)
            assigned = [_assign(shard, stream, known) for shard, stream in _list_shards(listing, place)]
            found.append(WorkerPlan(rank, worker, _sum_samples(assigned), assigned))
    urls = _list_urls(stages[0], found)
    return ReadPlan(found, len(urls), _sum_counts(urls, known), _find_warnings(dataset, found, urls, known))


def _list_shards(listing: Any, place: WorkerContext) -> Iterator[tuple[dict[str, Any], int | None]]:
    if not isinstance(listing, ElasticMixin):
        for shard in iterate_in_place(listing, place):
            yield shard, None
        return
    run = listing.elastic_run(place, continue_epochs=False)
    found = [(position % run.streams, position, shard) for position, shard in run.positions()]
    for stream, _, shard in sorted(found, key=lambda each: each[:2]):
        yield shard, stream


def _assign(shard: Mapping[str, Any], stream: int | None, counts: Mapping[str, int]) -> AssignedShard:
    url, share, part = str(shard["url"]), shard.get("share"), shard.get("part")
    samples = counts.get(url)
    if part is not None:
        samples = part[1] - part[0]
    elif share is not None and samples is not None:
        samples = len(range(share[0], samples, share[1]))
    return AssignedShard(url, stream, share, None if part is None else part[:2], samples)


def _sum_samples(shards: Sequence[AssignedShard]) -> int | None:
    numbers = [shard.samples for shard in shards]
    return None if None in numbers else sum(number for number in numbers if number is not None)


def _sum_counts(urls: Sequence[str], counts: Mapping[str, int]) -> int | None:
    return sum(counts[url] for url in urls) if urls and all(url in counts for url in urls) else None


def _list_urls(source: Any, plans: Sequence[WorkerPlan]) -> list[str]:
    urls = getattr(source, "urls", None)
    if isinstance(urls, list | tuple | LazyUrls):
        return [str(url) for url in urls]
    return list(dict.fromkeys(shard.url for plan in plans for shard in plan.shards))


def _warn_of_draws() -> list[str]:
    message = (
        "shards are drawn with replacement: each worker draws from all of them for itself, without end, and samples "
        "come several times or not at all; with_epoch(n) says how long an epoch is"
    )
    return [message]


def _find_warnings(
    dataset: Any, plans: Sequence[WorkerPlan], urls: Sequence[str], counts: Mapping[str, int]
) -> list[str]:
    found = []
    empty = [plan for plan in plans if not plan.shards]
    if empty:
        names = ", ".join(f"rank {plan.rank} worker {plan.worker}" for plan in empty[:_MOST_NAMED])
        found.append(
            f"{len(empty)} of {len(plans)} workers have nothing to read ({names}{', …' * (len(empty) > _MOST_NAMED)}): "
            f"there are {len(urls)} shards. Use split_by_sample or elastic(), fewer workers, or more shards"
        )
    twice = [url for url, count in Counter(urls).items() if count > 1]
    if twice:
        found.append(f"{len(twice)} shards are listed more than once: {', '.join(twice[:_MOST_NAMED])}")
    evenness = getattr(dataset, "evenness", None)
    if evenness is None and getattr(dataset, "nsamples", -1) <= 0:
        found += _compare_ranks(plans)
    found += _compare_sizes(urls, counts)
    return found


def _compare_ranks(plans: Sequence[WorkerPlan]) -> list[str]:
    """Warn where the ranks of a job read different numbers of samples, or of shards where no samples are known."""
    samples: dict[int, list[int | None]] = {}
    shards: Counter[int] = Counter()
    for plan in plans:
        samples.setdefault(plan.rank, []).append(plan.samples)
        shards[plan.rank] += len(plan.shards)
    known = all(None not in numbers for numbers in samples.values())
    totals = [sum(number or 0 for number in numbers) for numbers in samples.values()] if known else [*shards.values()]
    if max(totals) == min(totals):
        return []
    message = (
        f"ranks read {min(totals)} to {max(totals)} {'samples' if known else 'shards'} in an epoch, so that some end "
        "before others and a training that waits for all of them hangs: use equal_epochs(), or with_epoch(n)"
    )
    return [message]


def _compare_sizes(urls: Sequence[str], counts: Mapping[str, int]) -> list[str]:
    """Warn of a shard that is far larger than most, by samples, or by bytes where they are local files."""
    unit = "samples" if all(url in counts for url in urls) else "bytes"
    sizes = {url: counts[url] for url in urls} if unit == "samples" else _measure_files(urls)
    if len(sizes) < 2 or max(sizes.values()) <= _FAR_APART * max(1, statistics.median(sizes.values())):
        return []
    largest = max(sizes, key=sizes.__getitem__)
    message = (
        f"shards are of very different sizes: {min(sizes.values())} to {sizes[largest]} {unit}, {largest} the largest; "
        "a worker that reads it ends late"
    )
    return [message]


def _measure_files(urls: Sequence[str]) -> dict[str, int]:
    """Return the sizes of those shards that are local files."""
    found = {}
    for url in urls:
        path = local_path(url)
        if path is not None and os.path.isfile(path):  # noqa: PTH113  the text of a url
            found[url] = os.path.getsize(path)  # noqa: PTH202
    return found
