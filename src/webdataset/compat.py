"""Door and hinge: the chainable classes, where existing code imports them from."""

from typing import TYPE_CHECKING

from webdataset.fluent.dataset import WebDataset
from webdataset.fluent.interface import FluidInterface
from webdataset.ground.doorways import directory, served

if TYPE_CHECKING:
    from webdataset.fluent.loader import FluidWrapper, WebLoader
    from webdataset.fluent.processing import Processor
    from webdataset.stages.checking import check_empty

__all__ = ["FluidInterface", "FluidWrapper", "Processor", "WebDataset", "WebLoader", "check_empty"]

_ROOMS = {
    "fluent.loader": "FluidWrapper WebLoader",
    "fluent.processing": "Processor",
    "stages.checking": "check_empty",
}

__getattr__ = served(
    __name__,
    "autodecode cache filters shardlists tariterators utils",
    _ROOMS,
    DataLoader="pytorch",
    DataPipeline="pipeline",
    IterableDataset="pytorch",
    group_by_keys="tariterators",
    pipelinefilter="filters",
    reraise_exception="handlers",
    tar_file_expander="tariterators",
)
__dir__ = directory(__name__, __all__)
