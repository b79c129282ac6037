"""Compatibility import path: the names of the published module ``wids.wids_mmtar``."""

from functools import partial

from webdataset.index.wids.removed_names import removed_name
from webdataset.index.wids.samples import MMIndexedTar

__all__ = ["MMIndexedTar"]

__getattr__ = partial(removed_name, __name__)
