"""Door: lists of shards, their expansion, sampling and splitting."""

from .shards.directory import DirectoryShardList
from .shards.expand import expand_source, expand_urls
from .shards.lists import ResampledShardList, ResampledShards, ShardList, SimpleShardList
from .shards.lists import resampled_shards as resampled_
from .shards.specs import MSSource, MultiShardSample, shardspec
from .shards.split import non_empty, single_node_only, split_by_node, split_by_worker
from .stages.base import pipelinefilter

__all__ = [
    "DirectoryShardList",
    "MSSource",
    "MultiShardSample",
    "ResampledShardList",
    "ResampledShards",
    "ShardList",
    "SimpleShardList",
    "expand_source",
    "expand_urls",
    "non_empty",
    "resampled",
    "shardspec",
    "single_node_only",
    "split_by_node",
    "split_by_worker",
]

resampled = pipelinefilter(resampled_)
