"""Compatibility import path of the lists of shards; the code lives in :mod:`webdataset.shards`."""

from typing import TYPE_CHECKING

from webdataset.core.lazy_modules import lazy_attributes, lazy_dir
from webdataset.core.upstream_utils import is_iterable, obsolete
from webdataset.shards.expand import expand_source, expand_urls
from webdataset.shards.lists import ResampledShardList, ResampledShards, ShardList, SimpleShardList, check_draws
from webdataset.shards.lists import resampled_shards as resampled_
from webdataset.shards.split import non_empty, single_node_only, split_by_node, split_by_sample, split_by_worker
from webdataset.stages.base import pipelinefilter as pipelinefilter  # noqa: PLC0414  a published name
from webdataset.stages.checks import CheckedMaker

if TYPE_CHECKING:
    from webdataset.shards.directory import (
        DirectoryShardList,
        check_pid_is_running,
        get_pid_from_filename,
        without_last_extension,
    )
    from webdataset.shards.expand import envlookup, envsubst, expand
    from webdataset.shards.lists import InfiniteShardList, NamedResampledShards
    from webdataset.shards.specs import MSSource, MultiShardSample, shardspec

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

resampled = CheckedMaker(resampled_, check_draws)

_LAZY_NAMES = {
    "shards.directory": "DirectoryShardList check_pid_is_running get_pid_from_filename without_last_extension",
    "shards.lists": "InfiniteShardList NamedResampledShards",
    "shards.expand": "envlookup envsubst expand",
    "shards.specs": "MSSource MultiShardSample shardspec",
}

__getattr__ = lazy_attributes(__name__, "utils", _LAZY_NAMES, IterableDataset="pytorch")
__dir__ = lazy_dir(__name__, __all__)
