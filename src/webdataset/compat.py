"""Door and hinge: the chainable classes, where existing code imports them from."""

from webdataset.fluent.dataset import WebDataset
from webdataset.fluent.interface import FluidInterface
from webdataset.fluent.loader import FluidWrapper, WebLoader
from webdataset.fluent.processing import Processor
from webdataset.ground.doorways import served
from webdataset.stages.checking import check_empty

__all__ = ["FluidInterface", "FluidWrapper", "Processor", "WebDataset", "WebLoader", "check_empty"]

__getattr__ = served(
    __name__,
    "autodecode cache filters shardlists tariterators utils",
    DataLoader="pytorch",
    DataPipeline="pipeline",
    IterableDataset="pytorch",
    group_by_keys="tariterators",
    pipelinefilter="filters",
    reraise_exception="handlers",
    tar_file_expander="tariterators",
)
