"""Compatibility import path without code: the command of webdataset 0.2.111 that kept downloading random shards."""

from webdataset.core.lazy_modules import removed_attributes

__getattr__ = removed_attributes(__name__, "use wds.WebDataset(urls, resampled=True, cache_dir=folder, cache_size=n)")
