"""Door: the names of the published module ``wids.wids_mmtar``."""

from functools import partial

from webdataset.index.wids.gone import gone
from webdataset.index.wids.tars import MMIndexedTar

__all__ = ["MMIndexedTar"]

__getattr__ = partial(gone, __name__)
