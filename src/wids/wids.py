"""Door: the names of the published module ``wids.wids``."""

from webdataset.index.wids.copies import (
    CacheLocalname,
    DefaultLocalname,
    cache_localname,
    default_localname,
    download_and_open,
    hash_localname,
)
from webdataset.index.wids.dataset import ShardListDataset, hash_dataset_name
from webdataset.index.wids.lru import LRUCache
from webdataset.index.wids.samplers import ChunkedSampler, DistributedChunkedSampler, ShardedSampler, ShardListSampler
from webdataset.index.wids.samples import IndexedTarSamples, LRUShards, compute_file_md5sum, compute_num_samples
from webdataset.index.wids.spans import intersect_range, intersect_ranges, iterate_ranges, lengths_to_ranges
from webdataset.index.wids.tars import MMIndexedTar, TarFileReader, find_index_file, group_by_key, splitname
from webdataset.index.wids.transformations import default_decoder, interpret_transformations
from webdataset.shards.wids.resolving import load_dsdesc_and_resolve, urldir

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
