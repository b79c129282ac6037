"""From a dataset specification to a pipeline: each source a pipeline of its own, mixed as the specification says.

Flows in: a ``Mix``, and the arguments of ``WebDataset``, which hold for all its sources. Flows out: one source stage.
Reads nothing: shards are opened when the pipeline runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from webdataset import filters, shardlists
from webdataset.flow.looping import ENDLESS, Bounds, Loop
from webdataset.flow.pipeline import DataPipeline
from webdataset.ground.errors import UnsafeSpec, UsageError
from webdataset.shards.specs.mixes import Mix, Source
from webdataset.shards.specs.passes import Allowed, MixedShards, SourceShards
from webdataset.sources.profiles import options
from webdataset.stages.base import Json, Run
from webdataset.stages.evenly import Concat, EvenMix
from webdataset.stages.labelling import first_of, kept, labelled
from webdataset.stages.mixing import Mixture, RoundRobin
from webdataset.stages.sharing import ShareSamples, ShareShards

from . import ordering
from .specs_transforms import stage_of

MOST_EMPTY = 100


class Restarting(DataPipeline):
    """A source that begins again at its end, for ever.

    Args:
        *stages: of its pipeline.
        endless: raise where it gives nothing any more; otherwise it ends, and its share goes to the others.
    """

    def __init__(self, *stages: Any, endless: bool) -> None:
        super().__init__(*stages)
        self.bounds = Bounds(ENDLESS, None, MOST_EMPTY, endless)

    def start(self, run: Any = None, state: Json = None, *, tracked: bool = True) -> Loop:
        """Start reading as a source of a mix, which says under which run."""
        return Loop(self.pipeline, replace(run or Run(), tracked=tracked), self.bounds, state)


@dataclass(frozen=True)
class Building:
    """How all sources of a dataset are read: what ``WebDataset`` was given.

    Args:
        reader: cache directory of the source (None: the dataset's) to the stage that reads shards.
        nodesplitter: shares shards out between ranks.
        workersplitter: shares shards out between workers.
        shardshuffle: number of shards in the buffer of a shard shuffle; None for none.
        deterministic: the shard shuffle depends on (seed, epoch) alone.
        seed: the dataset's seed.
        resampled: draw shards with replacement, for ever.
        empty_check: raise where a source gives nothing in a pass.
        trust: what decoding may execute.
        prefix: names of the mixes around a source.
        tags: of the mixes around a source.
        tagged: some source has tags, so that all samples have ``__tags__``.
    """

    reader: Callable[[str | None], Any]
    nodesplitter: Any = None
    workersplitter: Any = None
    shardshuffle: int | None = None
    deterministic: bool = False
    seed: int | None = None
    resampled: bool = False
    empty_check: bool = True
    trust: str | None = None
    prefix: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)
    tagged: bool = False


def mixture(mix: Mix, building: Building) -> Mixture:
    """Return the stage that reads a mix.

    Args:
        mix: what to read.
        building: how.

    Raises:
        UsageError: weights that count shards or bytes, of sources that do not say how large they are; transforms that
            do not exist.
        NotFound: wildcards that match no file.
    """
    if mix.how == "shards":
        return Concat([_joined(mix, building)])
    pipelines = [pipeline(source, building) for source in mix.sources]
    if mix.exhausted == "restart":
        pipelines = [Restarting(*each.pipeline, endless=building.empty_check) for each in pipelines]
    goes_on = mix.exhausted != "stop"
    if mix.how == "concat":
        return Concat(pipelines)
    if mix.how == "roundrobin":
        return RoundRobin(pipelines, goes_on)
    return EvenMix(pipelines, mix.shares(), longest=goes_on)


def refuse_strangers(mix: Mix, storage_options: Any) -> None:
    """Refuse to show headers and tokens of the user to servers that a specification from the network names.

    Args:
        mix: what to read.
        storage_options: what the user says about storage.

    Raises:
        UnsafeSpec: a url of the web leads to another server than the specification came from.
    """
    checked = options.storage_options(storage_options)
    private = sorted({"headers", "token"}.intersection({} if checked is None else checked.as_mapping()))
    for source in mix.sources if private else ():
        if source.mix is not None:
            refuse_strangers(source.mix, storage_options)
            continue
        stranger = next(filter(source.origin.foreign, source.urls()), None)
        if stranger is not None:
            raise UnsafeSpec(
                f"{source.origin.name} came over the network and names another server, which would be shown "
                f"{' and '.join(private)} of storage_options: save the specification as a local file, read it, and "
                "load that",
                url=stranger,
            )


def pipeline(source: Source, building: Building) -> DataPipeline:
    """Return the pipeline of one source.

    Args:
        source: a list of shards, or a mix of its own.
        building: how it is read.
    """
    name = building.prefix + source.name
    if source.mix is not None:
        tags = {**building.tags, **source.tags}
        inner = replace(building, prefix=f"{name}/", tags=tags)
        passes = int(source.repeat)
        nested = mixture(source.mix, inner)
        first: list[Any] = [nested if passes == 1 else Concat([DataPipeline(nested).repeat(passes)])]
    else:
        first = _read(source, building)
    return DataPipeline(*first, *_prepared(source, building, name))


def _read(source: Source, building: Building) -> list[Any]:
    """Return the stages that read the samples of a source's shards."""
    shuffled = bool(building.shardshuffle) if source.shardshuffle is None else source.shardshuffle
    if building.resampled:
        urls = SourceShards(source, shuffled=False).urls
        checked = [Allowed(source.origin)] if source.origin.network else []
        return [shardlists.ResampledShards(urls), *checked, *_samples(source.cache, building)]
    shards = SourceShards(source, shuffled=shuffled and source.shardshuffle is not None)
    return _shared(shards, source.cache, building, shuffle=source.shardshuffle is None)


def _joined(mix: Mix, building: Building) -> DataPipeline:
    """Return the pipeline of several sources whose shards are shuffled together."""
    lists = [SourceShards(source, shuffled=False) for source in mix.sources]
    return DataPipeline(*_shared(MixedShards(lists), None, building, shuffle=False))


def _shared(shards: Any, cache: str | None, building: Building, *, shuffle: bool) -> list[Any]:
    """Return the stages that share shards out, and read this worker's part of them."""
    node, worker = building.nodesplitter, building.workersplitter
    if shardlists.split_by_sample in (node, worker):  # which is what is done here with the two others
        node, worker = shardlists.split_by_node, shardlists.split_by_worker
    ours = {shardlists.split_by_node, shardlists.single_node_only, shardlists.split_by_worker, None}
    shuffles = ordering.shard_shuffle(
        building.shardshuffle if shuffle else None, building.seed, deterministic=building.deterministic
    )
    if not {node, worker} <= ours:
        return [shards, *filter(None, (node, worker)), *shuffles, *_samples(cache, building)]
    # shuffled before they are shared: workers that all read all shards, each some samples, must agree on the order
    guard = [*shuffles, node] if node is shardlists.single_node_only else shuffles
    among = {"ranks": node is shardlists.split_by_node, "workers": worker is shardlists.split_by_worker}
    count = len(shards)
    read = _samples(cache, building)
    return [shards, *guard, ShareShards(count, **among), read[0], ShareSamples(count, **among), *read[1:]]


def _samples(cache: str | None, building: Building) -> list[Any]:
    return [building.reader(cache), *([ordering.CheckSamples()] if building.empty_check else [])]


def _prepared(source: Source, building: Building, name: str) -> list[Any]:
    """Return the stages that make a source's samples what its specification says."""
    tags = {**building.tags, **source.tags}
    stages: list[Any] = []
    if source.subsample != 1:
        stages.append(filters.rsample(source.subsample))
    if source.preshuffle:
        stages.append(filters.shuffle(source.preshuffle))
    if source.rename:
        new_to_old: dict[str, Any] = dict(source.rename)
        stages.append(filters.rename(**new_to_old))
    if source.keep:
        stages.append(kept(*source.keep))
    if source.extensions:
        stages.append(first_of(*source.extensions))
    if source.mix is None:
        stages.append(labelled(name, tags if building.tagged else None))
    if source.decode is not None:
        stages.append(filters.decode(*source.decode, trust=building.trust))
    stages += [stage_of(step, argument, name, network=source.origin.network) for step, argument in source.transforms]
    if source.shuffle:
        stages.append(filters.shuffle(source.shuffle))
    return stages


def ready(mix: Mix, building: Building, mode: str | None) -> Mixture:
    """Return the first stage of a dataset that a specification describes.

    Args:
        mix: what to read.
        building: how.
        mode: the dataset's ``mode``.

    Raises:
        UsageError: a mode that a specification has not.
    """
    if mode not in (None, "resampled"):
        raise UsageError(
            f"mode={mode!r} belongs to a directory of shards; a specification is read without, or resampled"
        )
    resampled = building.resampled or mode == "resampled"
    return mixture(mix, replace(building, resampled=resampled, tagged=_tagged(mix)))


def _tagged(mix: Mix) -> bool:
    return any(source.tags or (source.mix is not None and _tagged(source.mix)) for source in mix.sources)
