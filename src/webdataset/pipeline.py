"""Door: the pipeline class, where existing code imports it from."""

from webdataset.flow.elastic_state import merge_states
from webdataset.flow.explaining import explain
from webdataset.flow.pipeline import DataPipeline, add_length_method
from webdataset.ground.doorways import served
from webdataset.ground.iteration import PipelineStage

__all__ = ["DataPipeline", "PipelineStage", "add_length_method", "explain", "merge_states"]

__getattr__ = served(__name__, DataLoader="pytorch", IterableDataset="pytorch")
