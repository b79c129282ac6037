"""One pass over a loader: an iterator that says so where it was given up, in place of ending early.

Flows in: the batches of an epoch. Flows out: the same. A loader runs one epoch at a time; a loop over an epoch that was
given up for another one must not look like one that has seen all of it.
"""

import inspect
from collections.abc import Generator
from typing import Any, Self

from webdataset.ground.errors import FlowError, WebDatasetError
from webdataset.ground.tracebacks import trim


class Iteration:
    """The batches of one epoch.

    Args:
        batches: of the epoch.
    """

    def __init__(self, batches: Generator[Any]) -> None:
        self._batches = batches
        self._ended = ""  # what ended it, where that was not its end

    def __iter__(self) -> Self:
        """Return this."""
        return self

    def __next__(self) -> Any:
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
            trim(error)
            raise

    @property
    def begun(self) -> bool:
        """True from the first batch on to the end."""
        return inspect.getgeneratorstate(self._batches) in (inspect.GEN_SUSPENDED, inspect.GEN_RUNNING)

    def give_up(self, reason: str) -> None:
        """End it, unless it is over.

        Args:
            reason: what the loader was told to do.

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
