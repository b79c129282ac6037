"""The loader with the chainable methods, and the wrapper that gives them to anything that can be iterated.

Flows in: what ``torch.utils.data.DataLoader`` takes. Flows out: a pipeline over its batches.
"""

from typing import Any

from webdataset.flow.elastic import STREAMS
from webdataset.flow.pipeline import DataPipeline
from webdataset.loading.torch_loader import data_loader
from webdataset.stages.base import Run

from .elastic import ElasticDataset
from .interface import FluidInterface


class FluidWrapper(DataPipeline, FluidInterface):
    """A pipeline whose first stage is given.

    Args:
        initial: an iterable (a list of samples, a dataset, a loader) or a callable without arguments.
    """

    def __init__(self, initial: Any) -> None:
        super().__init__()
        self.append(initial)

    def elastic(self, streams: int = STREAMS) -> ElasticDataset:
        """Read in virtual streams, to be resumed under any number of ranks and workers.

        Args:
            streams: how many; see :meth:`webdataset.flow.pipeline.DataPipeline.elastic`.
        """
        return ElasticDataset.of(self, streams)


class WebLoader(DataPipeline, FluidInterface):
    """torch's DataLoader with the chainable methods. Stages behind it draw from the seed of its dataset.

    Args:
        *args: passed on to ``torch.utils.data.DataLoader``.
        **kw: passed on to it.

    Raises:
        MissingExtra: torch is not installed.
    """

    def __init__(self, *args: Any, **kw: Any) -> None:
        loader = data_loader(*args, **kw)
        super().__init__(loader)
        if isinstance(loader.dataset, DataPipeline):
            self.seed = loader.dataset.seed

    def _begin(self) -> Run:
        """Begin an epoch: the next one, or the one that the dataset was told with ``set_epoch``."""
        dataset = getattr(self.pipeline[0], "dataset", None) if self.pipeline else None
        if isinstance(dataset, DataPipeline) and dataset.told is not None:
            self.set_epoch(dataset.told)
            self.told = dataset.told = None
        return super()._begin()
