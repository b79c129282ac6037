"""Compatibility import path of the pipeline class; the code lives in :mod:`webdataset.flow`."""

from webdataset.core.lazy_modules import lazy_attributes
from webdataset.core.upstream_utils import PipelineStage
from webdataset.flow.elastic_state import merge_states
from webdataset.flow.explain import explain
from webdataset.flow.pipeline import DataPipeline, add_length_method

__all__ = ["DataPipeline", "PipelineStage", "add_length_method", "explain", "merge_states"]

__getattr__ = lazy_attributes(__name__, DataLoader="pytorch", IterableDataset="pytorch")
