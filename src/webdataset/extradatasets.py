"""Door: a mock dataset, and datasets with an epoch or a length of their own."""

from webdataset.stages.sources import MockDataset, with_epoch, with_length

__all__ = ["MockDataset", "with_epoch", "with_length"]
