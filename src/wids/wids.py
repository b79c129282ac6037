"""Compatibility import path: the names of the published module ``wids.wids``."""

from webdataset.index.wids.dataset import ShardListDataset, hash_dataset_name
from webdataset.index.wids.local_copies import (
    CacheLocalname,
    DefaultLocalname,
    LRUCache,
    cache_localname,
    default_localname,
    download_and_open,
    hash_localname,
)
from webdataset.index.wids.samplers import (
    ChunkedSampler,
    DistributedChunkedSampler,
    ShardedSampler,
    ShardListSampler,
    intersect_range,
    intersect_ranges,
    iterate_ranges,
    lengths_to_ranges,
)
from webdataset.index.wids.samples import (
    IndexedTarSamples,
    LRUShards,
    MMIndexedTar,
    TarFileReader,
    compute_file_md5sum,
    compute_num_samples,
    find_index_file,
    group_by_key,
    splitname,
)
from webdataset.index.wids.transforms import default_decoder, interpret_transformations
from webdataset.shards.wids_lists import load_dsdesc_and_resolve, urldir

__all__ = [
    "CacheLocalname",
    "ChunkedSampler",
    "DefaultLocalname",
    "DistributedChunkedSampler",
    "IndexedTarSamples",
    "LRUCache",
    "LRUShards",
    "MMIndexedTar",
    "ShardListDataset",
    "ShardListSampler",
    "ShardedSampler",
    "TarFileReader",
    "cache_localname",
    "compute_file_md5sum",
    "compute_num_samples",
    "default_decoder",
    "default_localname",
    "download_and_open",
    "find_index_file",
    "group_by_key",
    "hash_dataset_name",
    "hash_localname",
    "interpret_transformations",
    "intersect_range",
    "intersect_ranges",
    "iterate_ranges",
    "lengths_to_ranges",
    "load_dsdesc_and_resolve",
    "splitname",
    "urldir",
]
