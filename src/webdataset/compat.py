"""Compatibility import path of the chainable classes; the code lives in :mod:`webdataset.fluent`.

Late-bound: names replaced in ``filters`` change what the methods of these classes chain, names replaced in
``tariterators``, ``cache`` and ``gopen`` how they read.
"""

from typing import TYPE_CHECKING

from webdataset.core.lazy_modules import lazy_attributes, lazy_dir
from webdataset.fluent.dataset import WebDataset
from webdataset.fluent.interface import FluidInterface

if TYPE_CHECKING:
    from webdataset.fluent.loader import FluidWrapper, Processor, WebLoader
    from webdataset.stages.checks import check_empty

__all__ = ["FluidInterface", "FluidWrapper", "Processor", "WebDataset", "WebLoader", "check_empty"]

_LAZY_NAMES = {
    "fluent.loader": "FluidWrapper Processor WebLoader",
    "stages.checks": "check_empty",
}

__getattr__ = lazy_attributes(
    __name__,
    "autodecode cache filters shardlists tariterators utils",
    _LAZY_NAMES,
    DataLoader="pytorch",
    DataPipeline="pipeline",
    IterableDataset="pytorch",
    group_by_keys="tariterators",
    pipelinefilter="filters",
    reraise_exception="handlers",
    tar_file_expander="tariterators",
)
__dir__ = lazy_dir(__name__, __all__)
