"""Door to nothing: the command of webdataset 0.2.111 that kept downloading random shards into a directory."""

from .ground.doorways import absent

__getattr__ = absent(__name__, "use wds.WebDataset(urls, resampled=True, cache_dir=folder, cache_size=size_bytes)")
