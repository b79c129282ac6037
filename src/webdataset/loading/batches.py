"""Batches of exactly the size that was asked for, from windows.

Flows in: windows. Flows out: batches (or single samples), each with a mark that says what the consumer has received
with it. A window that is whole is a batch as it is: its columns are handed out without a copy. Where streams have
ended, windows have holes; their samples are moved together, so that only the last batch of an epoch can be smaller.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from webdataset.ground.errors import SampleError
from webdataset.stages.collation import combine_values

from .windows import Window, out_of

Collation = Callable[[list[Any]], Any]
END: Any = object()  # comes last, with a mark: what workers had to say after their last samples


@dataclass
class Mark:
    """What the consumer has received with a batch.

    Args:
        progress: of the workers, up to the end of a window: for each part its worker, its number of samples, and what
            changed in the worker's state, or None where the part does not say.
        beyond: samples received behind that window.
        samples: in this batch.
    """

    progress: list[Any] = field(default_factory=list)
    beyond: int = 0
    samples: int = 0


def singles(windows: Iterator[Window]) -> Generator[tuple[Any, Mark]]:
    """Yield the samples of windows.

    Args:
        windows: of one epoch.

    Yields:
        Sample and mark; END at last.
    """
    progress: list[Any] = []
    for window in windows:
        progress += _progress(window)
        left = window.count
        samples = window.samples()
        del window
        for beyond, sample in enumerate(samples, 1):
            left -= 1
            if left:
                yield sample, Mark([], beyond, 1)
            else:
                yield sample, Mark(progress, 0, 1)
                progress = []
            del sample
    yield END, Mark(progress)


@dataclass
class Batching:
    """How batches are made.

    Args:
        size: samples in a batch.
        collate: from a list of samples to a batch; None is this library's collation.
        ragged: arrays of different shapes become a list (``True``), or are an error.
        drop_last: leave out a last batch that is smaller.
        exact: a batch is a window, smaller where streams have ended.
    """

    size: int
    collate: Collation | None = None
    ragged: bool = True
    drop_last: bool = False
    exact: bool = False

    def batches(self, windows: Iterator[Window]) -> Generator[tuple[Any, Mark]]:
        """Yield batches.

        Args:
            windows: of one epoch.

        Yields:
            Batch and mark; END at last.

        Raises:
            SampleError: samples that do not fit together.
        """
        carried = _Carried()
        for window in windows:
            if not carried.samples and window.whole and window.count == self.size and self.collate is None:
                yield self._whole(window), Mark([*carried.taken(), *_progress(window)], 0, window.count)
                continue
            carried.add(window)
            count = len(carried.samples) if self.exact else self.size
            while carried.samples and len(carried.samples) >= count:
                yield self._cut(carried, count)
        if carried.samples and not self.drop_last:
            yield self._cut(carried, len(carried.samples))
        yield END, Mark(carried.taken())

    def _cut(self, carried: "_Carried", count: int) -> tuple[Any, Mark]:
        samples, mark = carried.cut(count)
        return (self._collated(samples) if self.collate is None else self.collate(samples)), mark

    def _collated(self, samples: list[Any]) -> Any:
        first = samples[0]
        if isinstance(first, dict):
            for sample in samples:
                if not isinstance(sample, dict) or sample.keys() != first.keys():
                    raise SampleError(_unlike(first, sample))
            return {key: self._column([sample[key] for sample in samples]) for key in first}
        if isinstance(first, tuple | list):
            if any(not isinstance(sample, tuple | list) or len(sample) != len(first) for sample in samples):
                raise SampleError("samples of different lengths in one batch")
            return tuple(self._column(list(column)) for column in zip(*samples, strict=True))
        return self._column(samples)

    def _column(self, values: list[Any]) -> Any:
        if self.ragged:
            none = () if isinstance(values[0], int | float) else None  # numpy's numbers are numbers
            if len({getattr(value, "shape", none) for value in values}) > 1:
                return values
        if all(isinstance(value, np.number | np.bool_ | int | float) for value in values):
            return np.array(values)  # also where numpy's numbers come first
        return combine_values(values)

    def _whole(self, window: Window) -> Any:
        """Return the batch that a whole window is."""
        layout = window.layout
        if layout is None:
            raise SampleError("a window without a block is no batch")
        columns: list[Any] = [None] * len(layout.keys)
        for column, array in zip(layout.columns, window.columns, strict=True):
            columns[column.place] = out_of(array, tensor=column.tensor)
        others = [place for place, column in enumerate(columns) if column is None]
        if others:
            for place, values in zip(others, zip(*window.beside(), strict=True), strict=True):
                columns[place] = self._column(list(values))
        if layout.kind == "dict":
            return dict(zip(layout.keys, columns, strict=True))
        return tuple(columns) if layout.kind == "tuple" else columns[0]


def _unlike(first: dict[Any, Any], other: Any) -> str:
    fields = sorted(map(str, other)) if isinstance(other, dict) else type(other).__name__
    return (
        f"samples with different fields in one batch: {sorted(map(str, first))} and {fields}; "
        "choose fields with to_tuple or rename(..., keep=False)"
    )


class _Carried:
    """Samples that wait for a batch to be full, and what their windows say about the state."""

    def __init__(self) -> None:
        self.samples: list[Any] = []
        self._windows: list[tuple[int, list[Any]]] = []  # samples left, and progress, of each window
        self._beyond = 0

    def add(self, window: Window) -> None:
        """Take up a window's samples."""
        self.samples += window.samples()
        self._windows.append((window.count, _progress(window)))

    def taken(self) -> list[Any]:
        """Return the progress of windows without samples."""
        progress = [each for _, found in self._windows for each in found]
        self._windows = []
        return progress

    def cut(self, count: int) -> tuple[list[Any], Mark]:
        """Return the first samples, and a mark behind them."""
        samples, self.samples = self.samples[:count], self.samples[count:]
        progress: list[Any] = []
        self._beyond += count
        while self._windows and self._windows[0][0] <= self._beyond:
            left, found = self._windows.pop(0)
            self._beyond -= left
            progress += found
        return samples, Mark(progress, self._beyond, count)


def _progress(window: Window) -> list[Any]:
    return [(part.worker, len(part.rows), part.progress) for part in window.parts]
