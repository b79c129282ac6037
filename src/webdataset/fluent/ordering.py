"""The small decisions behind ``WebDataset``: which order shards come in, and where they are kept."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

from webdataset import filters, shardlists
from webdataset.ground import settings
from webdataset.ground.extras import is_of, loaded
from webdataset.ground.policies import Handler, reraise_exception
from webdataset.samples.reading import Reading
from webdataset.shards.lists import ShardList
from webdataset.stages.checking import CheckSamples, SplitAssigned

Splitter = Callable[[Any], Any]

__all__ = [
    "CheckSamples", "number_draws", "reading_rules", "salt_of", "shard_cache", "shard_shuffle", "side_by_side",
    "splitters_for",
]  # fmt: skip

ARGUMENTS = [
    "urls", "handler", "mode", "resampled", "repeat", "shardshuffle", "cache_size", "cache_dir", "url_to_name",
    "detshuffle", "nodesplitter", "workersplitter", "empty_check", "verbose", "seed", "open_shards",
    "cache_revalidate",
]  # fmt: skip


class DefaultSplitter:
    """A splitter that is used because the program gave none.

    Args:
        splitter: which one.
    """

    def __init__(self, splitter: Splitter) -> None:
        self.splitter = splitter
        functools.update_wrapper(self, splitter)

    def __call__(self, src: Any) -> Any:
        """Share out.

        Args:
            src: shards.
        """
        return self.splitter(src)

    def __repr__(self) -> str:
        return repr(self.splitter)


NODE_SPLITTER = DefaultSplitter(shardlists.single_node_only)
WORKER_SPLITTER = DefaultSplitter(shardlists.split_by_worker)


def unwrap_splitter(splitter: Splitter | None) -> Splitter | None:
    """Return a splitter, be it the default or not.

    Args:
        splitter: as the dataset was given it.
    """
    return splitter.splitter if isinstance(splitter, DefaultSplitter) else splitter


def shard_shuffle(size: int | None, seed: int | None, *, deterministic: bool) -> list[Any]:
    """Return the stages that shuffle shards: none or one.

    Args:
        size: buffer size in shards; below 2 keeps the order; None for no stage.
        seed: of a deterministic shuffle.
        deterministic: the order is a function of (seed, epoch) alone.
    """
    if size is None:
        return []
    if deterministic:
        return [filters.detshuffle(size, initial=size, seed=seed or 0)]
    return [filters.shuffle(size, initial=size)]


def side_by_side(reader: Any, count: int) -> Any:
    """Return the stage that reads ``count`` shards at once; the reader itself for one.

    Args:
        reader: reads shards one after the other.
        count: number of shards that are open.

    Raises:
        UsageError: below 1.
    """
    if count == 1:
        return reader
    from webdataset.stages.open_shards import OpenShards  # noqa: PLC0415  only where several shards are read at once

    return OpenShards(reader, count)


def salt_of(pipeline: Any) -> int:
    """Return how many stages of a pipeline give samples generators of their own: the next one's number."""
    own = "webdataset.stages.sample_randomness", "MapWithRng"
    return sum(is_of(stage, *own) for stage in getattr(pipeline, "pipeline", ()))


def number_draws(pipeline: Any) -> None:
    """Number the shards of a pipeline that draws them with replacement: a sample drawn twice is two samples.

    Args:
        pipeline: changed in place; left alone where its shards come once in an epoch.
    """
    from webdataset.stages.sample_randomness import NumberDraws  # noqa: PLC0415  only where samples have generators

    stages = getattr(pipeline, "pipeline", None)
    if stages and isinstance(stages[0], shardlists.ResampledShards) and NumberDraws() not in stages[1:2]:
        stages.insert(1, NumberDraws())


_INSTEAD = {
    "shuffle": "; shardshuffle=100 shuffles the shards, and WebDataset(...).shuffle(1000) the samples",
    "batch_size": "; WebDataset(...).batched(64) makes batches",
    "batchsize": "; WebDataset(...).batched(64) makes batches",
    "num_workers": "; wds.Loader(dataset, 64, workers=4) and wds.WebLoader(dataset, num_workers=4) have workers",
    "workers": "; wds.Loader(dataset, 64, workers=4) and wds.WebLoader(dataset, num_workers=4) have workers",
    "transform": "; WebDataset(...).map(function) and .map_dict(jpg=function) apply functions",
    "decode": "; WebDataset(...).decode('rgb') decodes",
}


def reading_rules(rules: dict[str, Any]) -> dict[str, Any]:
    """Return the rules of reading that a dataset was given, checked by name.

    Args:
        rules: keyword arguments that ``WebDataset`` passes on.

    Raises:
        TypeError: a name that is none.
    """
    known = [field.name for field in dataclasses.fields(Reading)]
    for name in rules:
        if name not in known:
            import difflib  # noqa: PLC0415  only where a name is wrong

            near = difflib.get_close_matches(name, [*known, *ARGUMENTS], 1)
            hint = _INSTEAD.get(name) or (f"; did you mean {near[0]!r}?" if near else "")
            raise TypeError(f"WebDataset() got an unexpected keyword argument {name!r}{hint}")
    return rules


@dataclasses.dataclass(frozen=True)
class ShardOrder:
    """Which shards of a source a process reads, and in which order.

    Args:
        nodesplitter: as the dataset was given it.
        workersplitter: likewise.
        size: as for :func:`shard_shuffle`.
        seed: likewise.
        deterministic: likewise.
        given: the source is an object that the program made.
    """

    nodesplitter: Splitter | None
    workersplitter: Splitter | None
    size: int | None
    seed: int | None
    deterministic: bool
    given: bool


def reading_stages(source: Any, order: ShardOrder, reader: Any, *, empty_check: bool) -> list[Any]:
    """Return the stages from a source of shards to samples, as 0.2.86 has them: programs slice the list.

    Args:
        source: the first stage.
        order: which shards are read.
        reader: the last stage.
        empty_check: raise where a pass gives no sample.
    """
    splitters = order.nodesplitter, order.workersplitter
    # what is drawn is in random order; an object keeps its order unless a shuffle is asked for
    none = isinstance(source, shardlists.ResampledShards) or (order.given and not order.size)
    shuffles = shard_shuffle(None if none else order.size, order.seed, deterministic=order.deterministic)
    assigned = assigned_by(source, *splitters) if order.given else ()
    checks = (CheckSamples(count_of(source)),) if empty_check else ()
    shares = splitters_for(source, *splitters, given=order.given)
    return [source, *shares, *shuffles, reader.joined_with(assigned, checks)]


def splitters_for(
    source: Any, nodesplitter: Splitter | None, workersplitter: Splitter | None, *, given: bool
) -> list[Splitter]:
    """Return the splitters that stand behind a source.

    A list that draws its own shards on every worker, or that claims them so that nobody else has them, is not split:
    no process would read what a splitter leaves out. Nor is an object that the program made, which may share its
    shards out itself (so it was in 0.2.86), unless by splitters that the program chose.

    Args:
        source: the first stage.
        nodesplitter: as the dataset was given it.
        workersplitter: likewise.
        given: the source is an object that the program made.
    """
    splitters = (nodesplitter, workersplitter)
    asked = [each for each in splitters if each and not (given and isinstance(each, DefaultSplitter))]
    wanted = [each.splitter if isinstance(each, DefaultSplitter) else each for each in asked]
    if shardlists.split_by_sample in wanted:  # it shares out between ranks and workers alike: nothing is left to split
        ours = (shardlists.single_node_only, shardlists.split_by_node, shardlists.split_by_worker)
        wanted = [splitter for splitter in dict.fromkeys(wanted) if splitter not in ours]
    claims = is_of(source, "webdataset.shards.directory", "DirectoryShardList")
    if claims or isinstance(source, shardlists.ResampledShards):
        return []
    return wanted


def assigned_by(
    source: Any, nodesplitter: Splitter | None, workersplitter: Splitter | None
) -> tuple[SplitAssigned, ...]:
    """Return what shares out a list object where this library assigns shards: nothing, or one stage.

    Args:
        source: an object that the program made.
        nodesplitter: as the dataset was given it.
        workersplitter: likewise.
    """
    draws = isinstance(source, shardlists.ResampledShards)
    if draws or not isinstance(source, ShardList) or is_of(source, "webdataset.shards.directory", "DirectoryShardList"):
        return ()
    ranks, workers = isinstance(nodesplitter, DefaultSplitter), isinstance(workersplitter, DefaultSplitter)
    if shardlists.split_by_sample in (nodesplitter, workersplitter):
        return ()
    return (SplitAssigned(ranks=ranks, workers=workers),) if ranks or workers else ()


def count_of(source: Any) -> int | None:
    """Return the number of shards of a list, or None where it is not known."""
    urls = getattr(source, "urls", None)
    return len(urls) if isinstance(urls, list) else None


def shard_cache(
    cache_dir: str | os.PathLike[str] | None,
    cache_size: float,
    url_to_name: Callable[[str], str] | None,
    revalidate: str | None = None,
    *,
    verbose: bool,
    handler: Handler = reraise_exception,
) -> Any:
    """Return the cache that a dataset asks for, or None.

    Args:
        cache_dir: the directory; None is ``WDS_CACHE``.
        cache_size: bound in bytes; 0 is no cache, -1 is ``WDS_CACHE_SIZE``, or no bound.
        url_to_name: url to file name.
        revalidate: ``never``, ``once``, ``always``; None is ``WDS_CACHE_REVALIDATE``.
        verbose: log what the cache does.
        handler: asked where a shard cannot be opened.

    Raises:
        UsageError: the directory does not exist, or ``revalidate`` is something else.
    """
    folder = settings.CACHE.get() if cache_dir is None else os.fspath(cache_dir)
    if folder is None:
        return None
    from webdataset.caching.shards import ShardCache  # noqa: PLC0415  only where shards are kept

    size = settings.CACHE_SIZE.get() if cache_size == -1 else cache_size
    size = -1 if size is None else size
    cache = ShardCache(folder, size, url_to_name, verbose=verbose, revalidate=revalidate)
    if size == 0:
        return None
    door = loaded("webdataset.cache")  # where a program may have put a FileCache of its own
    return cache if door is None else door.replacement(handler, folder, cache_size=size, verbose=verbose) or cache
