"""Compatibility import path: the names of the published module ``wids.wids_tar``."""

from webdataset.index.wids.samples import TarFileReader, find_index_file

__all__ = ["TarFileReader", "find_index_file"]
