"""The iterator over a loader's epoch, and what has been received of that epoch."""

import inspect
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Self, TypeVar

from webdataset.core.errors import FlowError, WebDatasetError
from webdataset.core.tracebacks import trim_traceback
from webdataset.stages.base import Json

Batch = TypeVar("Batch")


class LoaderIterator(Generic[Batch]):
    """The batches of one epoch."""

    def __init__(self, batches: Generator[Batch]) -> None:
        self._batches = batches
        # what ended it, where that was not its end
        self._ended = ""

    def __iter__(self) -> Self:
        """Return this."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            FlowError: the epoch was given up, since the loader was told to do something else.
        """
        if self._ended:
            raise FlowError(
                f"this pass over the loader was given up before its end: {self._ended}. A loader gives one pass at a "
                "time; for two at once (zip, loops within loops) make two loaders"
            )
        try:
            return next(self._batches)
        except WebDatasetError as error:
            trim_traceback(error)
            raise

    @property
    def begun(self) -> bool:
        """True from the first batch on to the end."""
        return inspect.getgeneratorstate(self._batches) in (inspect.GEN_SUSPENDED, inspect.GEN_RUNNING)

    def give_up(self, reason: str) -> None:
        """Cancel the epoch, unless it is over; ``reason`` is what the loader was told to do.

        Raises:
            FlowError: another thread waits for its next batch.
        """
        state = inspect.getgeneratorstate(self._batches)
        if state == inspect.GEN_RUNNING:
            raise FlowError("another thread waits for the next batch of this loader: stop that thread first")
        if state != inspect.GEN_CLOSED:
            self._ended = reason
            self._batches.close()

    def close(self) -> None:
        """End it, as its consumer: nothing comes any more."""
        self._batches.close()


class RestartPoint(NamedTuple):
    """Where new workers continue an epoch.

    Args:
        state: after the last whole window that was received.
        beyond: samples received after that window.
        until: all indices below this one have been received.
    """

    state: dict[str, Json]
    beyond: int
    until: int


@dataclass(slots=True)
class EpochProgress:
    """What has been received of the present epoch, since its beginning or the state that it began with.

    Args:
        samples: received.
        until: all indices below this one have been received, counted from where the epoch began.
        beyond: samples received after the last whole window.
        untold: turns received of each worker since it said its state.
    """

    samples: int = 0
    until: int = 0
    beyond: int = 0
    untold: dict[int, int] = field(default_factory=dict)
