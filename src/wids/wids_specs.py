"""Compatibility import path: the names of the published module ``wids.wids_specs``."""

from webdataset.index.wids.local_copies import SimpleDownloader, download_and_open
from webdataset.shards.wids_lists import (
    check_shards,
    load_dsdesc_and_resolve,
    load_remote_dsdesc_raw,
    rebase_shardlist,
    resolve_dsdesc,
    set_all,
    urldir,
    urlmerge,
)

__all__ = [
    "SimpleDownloader",
    "check_shards",
    "download_and_open",
    "load_dsdesc_and_resolve",
    "load_remote_dsdesc_raw",
    "rebase_shardlist",
    "resolve_dsdesc",
    "set_all",
    "urldir",
    "urlmerge",
]
