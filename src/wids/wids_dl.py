"""Compatibility import path: the names of the published module ``wids.wids_dl``."""

from functools import partial

from webdataset.index.wids.local_copies import (
    SimpleDownloader,
    copy_file,
    download_and_open,
    download_file,
    pipe_download,
)
from webdataset.index.wids.removed_names import removed_name

__all__ = ["SimpleDownloader", "copy_file", "download_and_open", "download_file", "pipe_download"]

__getattr__ = partial(removed_name, __name__)
