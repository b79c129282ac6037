"""Door: the pipeline class, where existing code imports it from."""

from webdataset.flow.pipeline import DataPipeline

__all__ = ["DataPipeline"]
