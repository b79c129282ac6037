"""The elastic dataset with the chainable methods."""

from webdataset.flow.elastic_pipeline import ElasticPipeline
from webdataset.fluent.interface import FluidInterface


class ElasticDataset(ElasticPipeline, FluidInterface):
    """A dataset in virtual streams: its iterators can be saved, and resumed under any number of ranks and workers.

    Made by ``WebDataset(...).elastic()``; see :class:`webdataset.flow.pipeline.ElasticPipeline`.
    """
