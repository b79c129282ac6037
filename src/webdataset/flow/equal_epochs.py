"""Plans epochs that are equally long on every rank, worker and virtual stream.

Theory. Ranks that wait for each other after every batch must all have equally many. Three ways lead there without
communication. *Drop* and *pad*: with the number of samples in each shard known, each rank reads an equal part of the
pass, the remainder being left out or filled up with repeats; the stages after the reader make equally many items of
equally many samples, and where a sample is lost on the way (a damaged image that a handler skips), another one is
repeated in its place. *Resample*: every rank gives the number of items that the program names, and begins the source
again as often as that takes.

Never guesses: what is not known is an error that asks for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, SupportsIndex

from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import NoSamples, UsageError
from webdataset.flow.run import EMPTY_PASSES, ENDLESS, Bounds, expand_stages
from webdataset.flow.whole_shards import check_whole_shards
from webdataset.index.lookup import GivenCounts, sample_counts
from webdataset.shards.lists import ResampledShards
from webdataset.shards.split import single_node_only, split_by_node, split_by_sample, split_by_worker
from webdataset.stages.base import Composed, ObservingFunction, Stage
from webdataset.stages.batch import Batched
from webdataset.stages.checks import CheckSamples
from webdataset.stages.read_shards import ReadShards
from webdataset.stages.sharding import EqualShare, compute_share, list_pass_urls
from webdataset.stages.shuffle import Shuffle
from webdataset.stages.shuffle_blocks import BlockShuffle

WAYS = ("drop", "pad", "resample")
_OWN_SPLITTERS = (single_node_only, split_by_node, split_by_worker, split_by_sample)
_WAY_OUT = "pass steps=n, the number of items for each rank; or wrap the loader: wds.equal_steps(loader, 'drop')"


@dataclass(frozen=True)
class EqualEpochPlan:
    """How epochs are made equal.

    Args:
        how: ``drop``, ``pad`` or ``resample``.
        steps: items for each rank; None: what comes of the samples.
    """

    how: str
    steps: int | None

    def bounds(self, stages: Sequence[object], place: WorkerContext, passes: int, items: int | None) -> Bounds:
        """Return how long one worker runs.

        Raises:
            UsageError: a bound that contradicts this one; a stage that makes the number of items unknown.
            NoSamples: some worker would get nothing.
        """
        passes = self._passes(passes, items)
        if self.steps is not None:
            each, more = divmod(self.steps, place.num_workers)
            return _make_endless_bounds(each + (place.worker < more))
        share = _find_share(stages)
        begin, end = share.bounds_of(place)
        _check_enough(share, place.world_size, "ranks")
        return _make_endless_bounds(passes * count_items(stages, end - begin))

    def __str__(self) -> str:
        if self.how == "resample":
            return f"equal epochs: {self.steps} items for each rank, beginning again as often as needed"
        many = "what equal shares of the samples make" if self.steps is None else f"{self.steps} items"
        rest = "left out" if self.how == "drop" else "filled up with repeats"
        return f"equal epochs: {many} for each rank, the remainder {rest}, planned from counts by each rank alone"

    def entries(self, stages: Sequence[object], epoch: int, passes: int) -> list[Any]:
        """Return the stages for an iteration that begins with some epoch."""
        return [stage.within(epoch, passes) if isinstance(stage, EqualShare) else stage for stage in stages]

    def in_streams(self, stages: Sequence[object], streams: int, world: int, passes: int, items: int | None) -> Bounds:
        """Return how long all virtual streams together run.

        Raises:
            UsageError: as ``bounds`` does; or streams that cannot be shared out equally.
            NoSamples: some worker would get nothing.
        """
        passes = self._passes(passes, items)
        if streams % world:
            raise UsageError(
                f"{streams} streams cannot be shared out equally between {world} ranks: some would get "
                f"{streams // world}, others {streams // world + 1}. "
                f"Write elastic(streams={-(-streams // world) * world})"
            )
        if self.steps is not None:
            return _make_endless_bounds(self.steps * world)
        share = _find_share(stages)
        _check_enough(share, streams, "streams")
        begin, end = compute_share(share.samples, 0, streams, self.how)
        return _make_endless_bounds(passes * streams * count_items(stages, end - begin))

    def _passes(self, passes: int, items: int | None) -> int:
        if items is not None or (passes >= ENDLESS and self.how != "resample"):
            raise UsageError(
                f"equal_epochs({self.how!r}) says how long an epoch is, and so does with_epoch() or repeat(): leave "
                "one out, or write equal_epochs('resample', steps=n)"
            )
        return passes


def _make_endless_bounds(items: int) -> Bounds:
    return Bounds(ENDLESS, items, EMPTY_PASSES, endless=True)


def _check_enough(share: EqualShare, parties: int, name: str) -> None:
    if not share.samples or (share.how == "drop" and share.samples < parties):
        raise NoSamples(
            f"{share.samples} samples in {share.shards} shards are too few for {parties} {name}: with "
            f"equal_epochs('{share.how}') none would get any" + ("; use 'pad'" if share.samples else "")
        )


def _find_share(stages: Sequence[object]) -> EqualShare:
    return next(stage for stage in expand_stages(stages) if isinstance(stage, EqualShare))


def count_items(stages: Sequence[object], samples: int) -> int:
    """Return how many items come out of a pipeline for some samples that go in.

    Raises:
        UsageError: a stage that may give more or fewer.
    """
    flat = expand_stages(stages)
    reader = next(number for number, stage in enumerate(flat) if isinstance(stage, ReadShards))
    if flat[reader].reading.where is not None:
        raise UsageError(
            f"it is unknown how many samples where={flat[reader].reading.where.normal!r} keeps, so that equal epochs "
            f"cannot be planned: {_WAY_OUT}"
        )
    for stage in flat[reader + 1 :]:
        if isinstance(stage, Batched):
            samples = -(-samples // stage.batchsize) if stage.partial else samples // stage.batchsize
        elif not _keeps_count(stage):
            raise UsageError(
                f"it is unknown how many items {stage!r} gives, so that equal epochs cannot be planned: {_WAY_OUT}",
                stage=repr(stage),
            )
    return samples


def _keeps_count(stage: object) -> bool:
    """Tell whether a stage gives as many items as it gets, lost ones aside."""
    if isinstance(stage, ObservingFunction):
        return "select" not in stage.f.__name__
    return isinstance(stage, Shuffle | BlockShuffle | CheckSamples) or (isinstance(stage, Stage) and stage.transparent)


def equalize(
    stages: Sequence[object], how: str, steps: int | None, counts: GivenCounts
) -> tuple[list[Any], EqualEpochPlan]:
    """Return the stages of a pipeline with its shards shared out for equal epochs, and how long they are.

    Raises:
        UsageError: arguments, or a pipeline, that cannot mean anything; counts that are not known.
    """
    if how not in WAYS:
        raise UsageError(f"equal_epochs({how!r}): there are {', '.join(map(repr, WAYS))}")
    if steps is not None:
        if isinstance(steps, bool) or not isinstance(steps, SupportsIndex) or index(steps) < 1:
            raise UsageError(f"steps={steps!r}: every rank gets at least one item")
        steps = index(steps)
    flat = [part for stage in stages for part in (stage.steps if isinstance(stage, Composed) else [stage])]
    if how == "resample":
        if steps is None:
            raise UsageError("equal_epochs('resample') needs steps=n: how many items each rank gets in an epoch")
        shared = _split_by_sample(flat)
    else:
        shared = _share_shards(flat, how, counts)
    check_whole_shards(shared)
    return shared, EqualEpochPlan(how, steps)


def _split_by_sample(stages: list[Any]) -> list[Any]:
    """Return stages that leave no worker without samples, where they split by our own splitters."""
    implied = [number for number, stage in enumerate(stages) if isinstance(stage, ReadShards) and stage.before]
    if implied:  # a list object, which is not shared out otherwise
        reader = stages[implied[0]]
        alone = reader.joined_with((), reader.after)
        return [*stages[: implied[0]], split_by_sample, alone, *stages[implied[0] + 1 :]]
    places = [number for number, stage in enumerate(stages) if stage in _OWN_SPLITTERS]
    if not {split_by_worker} < {stages[number] for number in places}:
        return stages
    return [split_by_sample if n == places[0] else stage for n, stage in enumerate(stages) if n not in places[1:]]


def _share_shards(stages: list[Any], how: str, counts: GivenCounts) -> list[Any]:
    stages = [stage.joined_with((), stage.after) if isinstance(stage, ReadShards) else stage for stage in stages]
    reader = next((number for number, stage in enumerate(expand_stages(stages)) if isinstance(stage, ReadShards)), None)
    urls = list_pass_urls(stages[0]) if stages else None
    if not reader or isinstance(stages[0], ResampledShards) or urls is None:
        raise UsageError(
            f"equal_epochs({how!r}) plans with a list of shards that each come once in an epoch, and this pipeline "
            f"begins with {stages[0] if stages else 'nothing'!r}: write equal_epochs('resample', steps=n)"
        )
    for stage in stages[1:reader]:
        if stage not in _OWN_SPLITTERS and not isinstance(stage, Shuffle | BlockShuffle | EqualShare):
            raise UsageError(
                f"equal_epochs({how!r}) shares out the shards itself, and does not know what {stage!r} does with them: "
                "leave it out, or write equal_epochs('resample', steps=n)",
                stage=repr(stage),
            )
    known = {shard.url: shard.nsamples for shard in getattr(getattr(stages[0], "index", None), "shards", ())}
    reading = expand_stages(stages)[reader].reading
    found = sample_counts(urls, known if counts is None and known else counts, reading)
    share = EqualShare(found, how, sum(found[str(url)] for url in urls))
    places = [
        number
        for number, stage in enumerate(stages[:reader])
        if stage in _OWN_SPLITTERS or isinstance(stage, EqualShare)
    ]
    place = places[0] if places else reader
    behind = [
        stage.bare() if isinstance(stage, ReadShards) else stage
        for number, stage in enumerate(stages[place:], place)
        if number not in places and not isinstance(stage, CheckSamples)
    ]  # fmt: skip
    return [*stages[:place], share, *behind]
