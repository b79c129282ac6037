"""Door: the published module ``wids.wids_bench``; its names say what to write instead."""

from functools import partial

from webdataset.index.wids.gone import gone

__getattr__ = partial(gone, __name__)
