"""Door: a mock dataset, datasets with an epoch or a length of their own, and batches of AIStore."""

from webdataset.core.lazy_modules import lazy_attributes
from webdataset.core.upstream_utils import PipelineStage, repeatedly
from webdataset.stages.datasets import AISBatch, MockDataset, with_epoch, with_length

__all__ = ["AISBatch", "MockDataset", "PipelineStage", "repeatedly", "with_epoch", "with_length"]

__getattr__ = lazy_attributes(__name__, "utils", IterableDataset="pytorch")
