"""Builds the pipeline of a dataset specification: a pipeline for each source, mixed as the specification says.

The arguments of ``WebDataset`` hold for all sources; the result is one source stage. Stages of a specification go by
name: those of the table below, or entry points of installed packages in ``webdataset.stages``. ``module:function`` is
imported, which ``load_spec`` allows under full trust only.

Reads nothing: shards are opened when the pipeline runs. Never sends the user's headers or tokens to a server that a
specification from the network names.
"""

import difflib
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from webdataset import filters, shardlists
from webdataset.core.errors import SpecError, UnsafeSpec, UsageError
from webdataset.flow.pipeline import DataPipeline
from webdataset.flow.run import ENDLESS, Bounds, Loop
from webdataset.fluent import interface
from webdataset.shards.specs.mix import AllowedShards, Mix, MixedShards, Source, SourceShards
from webdataset.stages import augment
from webdataset.stages.base import Json, Run
from webdataset.stages.checks import CheckSamples
from webdataset.stages.map import add_label, keep_fields, keep_first
from webdataset.stages.mix import Concat, EvenMix, Mixture, RoundRobin
from webdataset.stages.sharding import ShareSamples, ShareShards
from webdataset.storage.storage_options import check_options

ENTRY_POINTS = "webdataset.stages"

Maker = Callable[..., object]


def _list_makers() -> dict[str, Maker]:
    """Return the stages that go by a name of ours; those of ``filters`` as they are there now."""
    own: dict[str, Maker] = {
        name: getattr(augment, name) for name in ("scale", "scaleprob", "rotprob", "gray", "noise", "patches")
    }
    names = ("batched", "bucket", "listed", "pack", "rename", "rename_keys", "rsample", "shuffle", "slice", "to_tuple",
             "unbatched", "unlisted")  # fmt: skip
    return {**own, **{name: getattr(filters, name) for name in names}}


def make_stage(name: Any, argument: Any, source: str, *, network: bool = False) -> object:
    """Return the stage that a specification names.

    Args:
        name: a name, ``module:function``, or a function of one sample.
        argument: a mapping gives keywords, a list positions, anything else one position; None gives nothing.
        source: the name of the source, for messages.
        network: the specification came over the network: only names of ours will do.

    Raises:
        SpecError: no such name, or arguments that its stage does not take.
    """
    if callable(name):
        return filters.map(name)
    try:
        if ":" in name and not network:
            return filters.map(_find_function(name, argument))
        return _call_maker(_find_maker(name, network=network), argument)
    except (TypeError, ValueError, ImportError, AttributeError) as error:
        given = "" if argument is None else f" with {argument!r}"
        raise SpecError(f"source {source!r}: transform {name!r}{given}: {error}") from error


def _find_maker(name: str, *, network: bool) -> Maker:
    makers = _list_makers()
    if name in makers:
        return makers[name]
    if not network:
        from importlib.metadata import entry_points  # noqa: PLC0415  20 ms, for a name that is not ours

        for point in entry_points(group=ENTRY_POINTS):
            if point.name == name:
                maker: Maker = point.load()
                return maker
    near = difflib.get_close_matches(name, makers, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(makers))}"
    raise UsageError(f"no transform of this name; {hint} (more come from entry points in {ENTRY_POINTS!r})")


def _call_maker(maker: Maker, argument: object) -> object:
    if argument is None:
        return maker()
    if isinstance(argument, dict):
        return maker(**argument)
    return maker(*argument) if isinstance(argument, list | tuple) else maker(argument)


def _find_function(name: str, argument: object) -> Callable[[Any], Any]:
    module, _, path = name.partition(":")
    found: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    if not callable(found):
        raise UsageError(f"{name} is no function")
    if argument is None:
        return found  # type: ignore[no-any-return]
    if not isinstance(argument, dict):
        raise UsageError("a function takes its arguments as a mapping from name to value")
    return functools.partial(found, **argument)


MOST_EMPTY = 100


class RestartingSource(DataPipeline):
    """A source that begins again at its end, without end.

    Args:
        *stages: of its pipeline.
        endless: raise where it gives nothing any more; otherwise it ends, and its share goes to the others.
    """

    def __init__(self, *stages: object, endless: bool) -> None:
        super().__init__(*stages)
        self.bounds = Bounds(ENDLESS, None, MOST_EMPTY, endless)

    def start(self, run: Any = None, state: Json = None, *, tracked: bool = True) -> Loop:
        """Start reading as a source of a mix, which says under which run."""
        return Loop(self.pipeline, replace(run or Run(), tracked=tracked), self.bounds, state)


@dataclass(frozen=True)
class SourceOptions:
    """How all sources of a dataset are read: what ``WebDataset`` was given.

    Args:
        reader: cache directory of the source (None: the dataset's) and its ``where`` to the stage that reads shards.
        nodesplitter: shares shards out between ranks.
        workersplitter: shares shards out between workers.
        shardshuffle: number of shards in the buffer of a shard shuffle; None for none.
        deterministic: the shard shuffle depends on (seed, epoch) alone.
        seed: the dataset's seed.
        resampled: draw shards with replacement, without end.
        empty_check: raise where a source gives nothing in a pass.
        trust: what decoding may execute.
        prefix: names of the mixes around a source.
        tags: of the mixes around a source.
        tagged: some source has tags, so that all samples have ``__tags__``.
    """

    reader: Callable[[str | None, str | None], Any]
    nodesplitter: object = None
    workersplitter: object = None
    shardshuffle: int | None = None
    deterministic: bool = False
    seed: int | None = None
    resampled: bool = False
    empty_check: bool = True
    trust: str | None = None
    prefix: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)
    tagged: bool = False


def make_mixture(mix: Mix, building: SourceOptions) -> Mixture:
    """Return the stage that reads a mix.

    Raises:
        UsageError: weights that count shards or bytes, of sources that do not say how large they are; transforms that
            do not exist.
        NotFound: wildcards that match no file.
    """
    if mix.how == "shards":
        return Concat([_join_sources(mix, building)])
    pipelines = [make_pipeline(source, building) for source in mix.sources]
    if mix.exhausted == "restart":
        pipelines = [RestartingSource(*each.pipeline, endless=building.empty_check) for each in pipelines]
    goes_on = mix.exhausted != "stop"
    if mix.how == "concat":
        return Concat(pipelines)
    if mix.how == "roundrobin":
        return RoundRobin(pipelines, goes_on)
    return EvenMix(pipelines, mix.shares(), longest=goes_on)


def check_servers(mix: Mix, storage_options: object) -> None:
    """Refuse to show headers and tokens of the user to servers that a specification from the network names.

    Raises:
        UnsafeSpec: a url of the web leads to another server than the specification came from.
    """
    checked = check_options(storage_options)
    private = sorted({"headers", "token"}.intersection({} if checked is None else checked.as_mapping()))
    for source in mix.sources if private else ():
        if source.mix is not None:
            check_servers(source.mix, storage_options)
            continue
        stranger = next(filter(source.origin.foreign, source.urls()), None)
        if stranger is not None:
            raise UnsafeSpec(
                f"{source.origin.name} came over the network and names another server, which would be shown "
                f"{' and '.join(private)} of storage_options: save the specification as a local file, read it, and "
                "load that",
                url=stranger,
            )


def make_pipeline(source: Source, building: SourceOptions) -> DataPipeline:
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
        nested = make_mixture(source.mix, inner)
        first: list[object] = [nested if passes == 1 else Concat([DataPipeline(nested).repeat(passes)])]
    else:
        first = _make_read_stages(source, building)
    return DataPipeline(*first, *_make_transforms(source, building, name))


def _make_read_stages(source: Source, building: SourceOptions) -> list[object]:
    """Return the stages that read the samples of a source's shards."""
    shuffled = bool(building.shardshuffle) if source.shardshuffle is None else source.shardshuffle
    if building.resampled:
        urls = SourceShards(source, shuffled=False).urls
        checked = [AllowedShards(source.origin)] if source.origin.network else []
        return [shardlists.ResampledShards(urls), *checked, *_make_sample_stages(source, building)]
    shards = SourceShards(source, shuffled=shuffled and source.shardshuffle is not None)
    return _make_share_stages(shards, source, building, shuffle=source.shardshuffle is None)


def _join_sources(mix: Mix, building: SourceOptions) -> DataPipeline:
    """Return the pipeline of several sources whose shards are shuffled together."""
    lists = [SourceShards(source, shuffled=False) for source in mix.sources]
    return DataPipeline(*_make_share_stages(MixedShards(lists), Source(), building, shuffle=False))


def _make_share_stages(
    shards: SourceShards | MixedShards, source: Source, building: SourceOptions, *, shuffle: bool
) -> list[object]:
    """Return the stages that share shards out, and read this worker's part of them."""
    node, worker = building.nodesplitter, building.workersplitter
    # which is what is done here with the two others
    if shardlists.split_by_sample in (node, worker):
        node, worker = shardlists.split_by_node, shardlists.split_by_worker
    ours = {shardlists.split_by_node, shardlists.single_node_only, shardlists.split_by_worker, None}
    shuffles = interface.make_shard_shuffle(
        building.shardshuffle if shuffle else None, building.seed, deterministic=building.deterministic
    )
    if not {node, worker} <= ours:
        return [shards, *filter(None, (node, worker)), *shuffles, *_make_sample_stages(source, building)]
    # shuffled before they are shared: workers that all read all shards, each some samples, must agree on the order
    guard = [*shuffles, node] if node is shardlists.single_node_only else shuffles
    among = {"ranks": node is shardlists.split_by_node, "workers": worker is shardlists.split_by_worker}
    count = len(shards)
    read = _make_sample_stages(source, building)
    return [shards, *guard, ShareShards(count, **among), read[0], ShareSamples(count, **among), *read[1:]]


def _make_sample_stages(source: Source, building: SourceOptions) -> list[object]:
    try:
        reader = building.reader(source.cache, source.where)
    except UsageError as error:
        raise SpecError(f"source {source.name!r}: where: {error}") from error
    checks = [CheckSamples(selected=reader.reading.where is not None)] if building.empty_check else []
    return [reader, *checks]


def _make_transforms(source: Source, building: SourceOptions, name: str) -> list[object]:
    """Return the stages that make a source's samples what its specification says."""
    tags = {**building.tags, **source.tags}
    stages: list[object] = []
    if source.subsample != 1:
        stages.append(filters.rsample(source.subsample))
    if source.preshuffle:
        stages.append(filters.shuffle(source.preshuffle))
    if source.rename:
        new_to_old: dict[str, Any] = dict(source.rename)
        stages.append(filters.rename(**new_to_old))
    if source.keep:
        stages.append(keep_fields(*source.keep))
    if source.extensions:
        stages.append(keep_first(*source.extensions))
    if source.mix is None:
        stages.append(add_label(name, tags if building.tagged else None))
    if source.decode is not None:
        stages.append(filters.decode(*source.decode, trust=building.trust))
    stages += [make_stage(step, argument, name, network=source.origin.network) for step, argument in source.transforms]
    if source.shuffle:
        stages.append(filters.shuffle(source.shuffle))
    return stages


def make_spec_source(mix: Mix, building: SourceOptions, mode: str | None, storage_options: object) -> Mixture:
    """Return the first stage of a dataset that a specification describes.

    Raises:
        UsageError: a mode that a specification has not.
        UnsafeSpec: see :func:`check_servers`.
    """
    check_servers(mix, storage_options)
    if mode not in (None, "resampled"):
        raise UsageError(
            f"mode={mode!r} belongs to a directory of shards; a specification is read without, or resampled"
        )
    resampled = building.resampled or mode == "resampled"
    return make_mixture(mix, replace(building, resampled=resampled, tagged=_has_tags(mix)))


def _has_tags(mix: Mix) -> bool:
    return any(source.tags or (source.mix is not None and _has_tags(source.mix)) for source in mix.sources)
