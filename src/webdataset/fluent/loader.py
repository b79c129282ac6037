"""The loader with the chainable methods, and the wrapper that gives them to anything that can be iterated.

Flows in: what ``torch.utils.data.DataLoader`` takes. Flows out: a pipeline over its batches.
"""

from typing import Any

from webdataset.flow.pipeline import DataPipeline
from webdataset.loading.torch_loader import data_loader

from .interface import FluidInterface


class FluidWrapper(DataPipeline, FluidInterface):
    """A pipeline whose first stage is given.

    Args:
        initial: an iterable (a list of samples, a dataset, a loader) or a callable without arguments.
    """

    def __init__(self, initial: Any) -> None:
        super().__init__()
        self.append(initial)


class WebLoader(DataPipeline, FluidInterface):
    """torch's DataLoader with the chainable methods.

    Args:
        *args: passed on to ``torch.utils.data.DataLoader``.
        **kw: passed on to it.

    Raises:
        MissingExtra: torch is not installed.
    """

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(data_loader(*args, **kw))
