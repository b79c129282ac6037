"""The small decisions behind ``WebDataset``: which order shards come in, and what is not there yet."""

from typing import Any

from webdataset import filters, shardlists
from webdataset.ground.errors import UsageError
from webdataset.stages.checking import CheckSamples

__all__ = ["CheckSamples", "endless", "refuse_cache", "shard_shuffle"]


def shard_shuffle(size: int, seed: int | None, *, deterministic: bool) -> list[Any]:
    """Return the stages that shuffle shards: none or one.

    Args:
        size: buffer size in shards; 0 for no shuffle.
        seed: of a deterministic shuffle.
        deterministic: the order is a function of (seed, epoch) alone.
    """
    if size < 1:
        return []
    if deterministic:
        return [filters.detshuffle(size, initial=size, seed=seed or 0)]
    return [filters.shuffle(size, initial=size)]


def endless(source: Any) -> bool:
    """Tell whether a source draws shards for ever; each worker then draws its own, and nothing is split."""
    return isinstance(source, shardlists.ResampledShards)


def refuse_cache(cache_dir: Any, cache_size: int, url_to_name: Any) -> None:
    """Refuse what would otherwise be ignored without a word."""
    if (cache_dir is not None and cache_size != 0) or url_to_name is not None:
        raise UsageError("the shard cache is not part of this version yet: leave out cache_dir and url_to_name")
