"""Compatibility import path of mock and AIStore datasets; the code lives in :mod:`webdataset.stages.datasets`."""

from webdataset.core.lazy_modules import lazy_attributes
from webdataset.core.upstream_utils import PipelineStage, repeatedly
from webdataset.stages.datasets import AISBatch, MockDataset, with_epoch, with_length

__all__ = ["AISBatch", "MockDataset", "PipelineStage", "repeatedly", "with_epoch", "with_length"]

__getattr__ = lazy_attributes(__name__, "utils", IterableDataset="pytorch")
