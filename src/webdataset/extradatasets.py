"""Door: a mock dataset, datasets with an epoch or a length of their own, and batches of AIStore."""

from webdataset.ground.doorways import served
from webdataset.ground.iteration import PipelineStage, repeatedly
from webdataset.stages.batches import AISBatch
from webdataset.stages.sources import MockDataset, with_epoch, with_length

__all__ = ["AISBatch", "MockDataset", "PipelineStage", "repeatedly", "with_epoch", "with_length"]

__getattr__ = served(__name__, "utils", IterableDataset="pytorch")
