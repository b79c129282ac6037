"""``wds.Processor(wds.map, f)(dataset)``: the form that upstream's documentation shows and no version had."""

from collections.abc import Callable, Iterable
from typing import Any

from webdataset.flow.pipeline import DataPipeline

from .loader import FluidWrapper


class Processor:
    """A stage to be put behind a dataset.

    Args:
        maker: makes the stage, such as ``wds.map``.
        *args: its arguments.
        **kw: its arguments.
    """

    def __init__(self, maker: Callable[..., Any], *args: Any, **kw: Any) -> None:
        self.stage = maker(*args, **kw)

    def __call__(self, dataset: Iterable[Any]) -> DataPipeline:
        """Return the dataset with the stage behind it.

        Args:
            dataset: a pipeline, or anything that can be iterated.
        """
        pipeline = dataset if isinstance(dataset, DataPipeline) else FluidWrapper(dataset)
        return pipeline.compose(self.stage)
