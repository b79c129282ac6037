"""Door: lists of shards, their expansion, sampling and splitting."""

from typing import TYPE_CHECKING

from .ground.doorways import directory, served
from .ground.inherited import obsolete
from .ground.iteration import is_iterable
from .shards.expand import expand_source, expand_urls
from .shards.lists import ResampledShardList, ResampledShards, ShardList, SimpleShardList
from .shards.lists import resampled_shards as resampled_
from .shards.split import non_empty, single_node_only, split_by_node, split_by_sample, split_by_worker
from .stages.base import pipelinefilter

if TYPE_CHECKING:
    from .shards.directory import (
        DirectoryShardList,
        check_pid_is_running,
        get_pid_from_filename,
        without_last_extension,
    )
    from .shards.named import InfiniteShardList, NamedResampledShards
    from .shards.patterns import envlookup, envsubst, expand
    from .shards.specs import MSSource, MultiShardSample, shardspec

__all__ = [
    "DirectoryShardList",
    "InfiniteShardList",
    "MSSource",
    "MultiShardSample",
    "NamedResampledShards",
    "ResampledShardList",
    "ResampledShards",
    "ShardList",
    "SimpleShardList",
    "check_pid_is_running",
    "envlookup",
    "envsubst",
    "expand",
    "expand_source",
    "expand_urls",
    "get_pid_from_filename",
    "is_iterable",
    "non_empty",
    "obsolete",
    "resampled",
    "resampled_",
    "shardspec",
    "single_node_only",
    "split_by_node",
    "split_by_sample",
    "split_by_worker",
    "without_last_extension",
]

resampled = pipelinefilter(resampled_)

_ROOMS = {
    "shards.directory": "DirectoryShardList check_pid_is_running get_pid_from_filename without_last_extension",
    "shards.named": "InfiniteShardList NamedResampledShards",
    "shards.patterns": "envlookup envsubst expand",
    "shards.specs": "MSSource MultiShardSample shardspec",
}

__getattr__ = served(__name__, "utils", _ROOMS, IterableDataset="pytorch")
__dir__ = directory(__name__, __all__)
