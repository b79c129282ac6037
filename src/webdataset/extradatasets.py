"""Door: a mock dataset, and datasets with an epoch or a length of their own."""

from webdataset.ground.doorways import served
from webdataset.ground.iteration import PipelineStage, repeatedly
from webdataset.stages.sources import MockDataset, with_epoch, with_length

__all__ = ["MockDataset", "PipelineStage", "repeatedly", "with_epoch", "with_length"]

__getattr__ = served(__name__, "utils", IterableDataset="pytorch")
