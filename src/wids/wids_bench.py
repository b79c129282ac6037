"""Compatibility import path: the published module ``wids.wids_bench``; its names say what to write instead."""

from functools import partial

from webdataset.index.wids.removed_names import removed_name

__getattr__ = partial(removed_name, __name__)
