"""Makes batches of exactly the requested size out of windows, each with a mark of what the consumer received.

A whole window is a batch as it is: its columns are handed out without a copy. Where streams have ended, windows have
holes; their samples are moved together, so that only the last batch of an epoch can be smaller.
"""

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from webdataset.core.errors import SampleError
from webdataset.loading.columns import Columns, merge_columns
from webdataset.loading.windows import BatchWindow
from webdataset.loading.worker import NEVER, RowCounts
from webdataset.stages.base import Json
from webdataset.stages.batch import combine_values

Collation = Callable[[list[Any]], object]
# comes last, with a mark: what workers had to say after their last samples
END: Final = object()


@dataclass
class BatchMark:
    """What the consumer has received with a batch.

    Args:
        progress: of the workers, up to the end of a window: for each part its worker, its number of turns, and what
            changed in the worker's state, or None where the part does not say.
        beyond: samples received after that window.
        samples: in this batch.
        until: all indices below this one have been received, counted from where the epoch began.
        counted: what was skipped at the indices received with this batch.
        early: samples received while some of an earlier window were still to come.
        size_bytes: of the batch, about; None where that is not known.
    """

    progress: list[tuple[int, int, Json]] = field(default_factory=list)
    beyond: int = 0
    samples: int = 0
    until: int = NEVER
    counted: list[RowCounts] = field(default_factory=list)
    size_bytes: int | None = None
    early: int = 0


@dataclass(frozen=True)
class ReceivedSamples:
    """Samples at the beginning of an epoch's windows that the consumer has received before.

    Args:
        count: how many.
        until: all indices below this one were received, counted from where the epoch begins.
    """

    count: int = 0
    until: int = 0


NOTHING_RECEIVED: Final = ReceivedSamples()


def iterate_samples(
    windows: Iterator[BatchWindow], before: ReceivedSamples = NOTHING_RECEIVED
) -> Generator[tuple[object, BatchMark]]:
    """Yield the samples of an epoch's windows with their marks, without those received before; END comes last."""
    received = _ReceivedWindows(before)
    for window in windows:
        received.add(window)
        samples = window.samples()
        if before.count:
            samples = itertools.islice(samples, received.skip(), None)
        del window
        for sample in samples:
            yield sample, received.advance(1)
            del sample
    yield END, received.rest()


@dataclass
class BatchMaker:
    """How batches are made.

    Args:
        size: samples in a batch.
        collate: from a list of samples to a batch; None is this library's collation.
        ragged: arrays of different shapes become a list (``True``), or are an error.
        drop_last: leave out a last batch that is smaller.
        exact: a batch is a window, smaller where streams have ended.

    Attributes:
        left_out: samples of the last epoch that ``drop_last`` left out.
    """

    size: int
    collate: Collation | None = None
    ragged: bool = True
    drop_last: bool = False
    exact: bool = False
    left_out: int = field(default=0, init=False, compare=False)

    def batches(
        self, windows: Iterator[BatchWindow], before: ReceivedSamples = NOTHING_RECEIVED
    ) -> Generator[tuple[object, BatchMark]]:
        """Yield the batches of an epoch's windows with their marks; END comes last.

        Args:
            windows: of the epoch.
            before: samples that were received before; they are left out.

        Raises:
            SampleError: samples that do not fit together.
        """
        received = _ReceivedWindows(before)
        waiting = _WaitingSamples()
        for window in windows:
            received.add(window)
            if window.count:
                columns = window.in_columns() if self.collate is None else None
                waiting.add(list(window.samples()) if columns is None else columns)
                del columns
                if before.count:
                    waiting.take(received.skip())
            del window
            count = waiting.count if self.exact else self.size
            while waiting.count and waiting.count >= count:
                mark = received.advance(count)
                yield self._make(waiting.take(count), mark), mark
        if waiting.count and not self.drop_last:
            mark = received.advance(waiting.count)
            yield self._make(waiting.take(waiting.count), mark), mark
        self.left_out = waiting.count
        mark = received.rest()
        if self.left_out:
            # told like what a stage drops
            mark.counted.append(RowCounts(0, {}, {"drop_last": self.left_out}))
        yield END, mark

    def _make(self, pieces: "list[Columns | list[object]]", mark: BatchMark) -> object:
        """Make a batch of its pieces, and note its size; afterwards it alone holds them."""
        if self.collate is None:
            columns = [piece for piece in pieces if isinstance(piece, Columns)]
            merged = merge_columns(columns) if len(columns) == len(pieces) else None
            if merged is not None:
                mark.size_bytes = merged.size_bytes
                return merged.assemble(self._column)
        samples: list[object] = []
        while pieces:
            piece = pieces.pop(0)
            samples += piece.samples() if isinstance(piece, Columns) else piece
        return self._collate(samples) if self.collate is None else self.collate(samples)

    def _collate(self, samples: list[Any]) -> object:
        first = samples[0]
        if isinstance(first, dict):
            for sample in samples:
                if not isinstance(sample, dict) or sample.keys() != first.keys():
                    raise SampleError(_explain_unlike(first, sample))
            return {key: self._column([sample[key] for sample in samples]) for key in first}
        if isinstance(first, tuple | list):
            if any(not isinstance(sample, tuple | list) or len(sample) != len(first) for sample in samples):
                raise SampleError("samples of different lengths in one batch")
            return tuple(self._column(list(column)) for column in zip(*samples, strict=True))
        return self._column(samples)

    def _column(self, values: list[Any]) -> object:
        if self.ragged:
            # numpy's numbers are numbers
            none = () if isinstance(values[0], int | float) else None
            if len({getattr(value, "shape", none) for value in values}) > 1:
                return values
        if all(isinstance(value, np.number | np.bool_ | int | float) for value in values):
            # also where numpy's numbers come first
            return np.array(values)
        return combine_values(values)


class _WaitingSamples:
    """Samples until a batch is full: columns, or lists where they do not fit into one batch or are to make none."""

    def __init__(self) -> None:
        self.count = 0
        self._pieces: deque[Columns | list[object]] = deque()

    def add(self, piece: "Columns | list[object]") -> None:
        """Add the samples of a window."""
        self._pieces.append(piece)
        self.count += _count_samples(piece)

    def take(self, count: int) -> "list[Columns | list[object]]":
        """Return the first samples, as many as asked for."""
        taken = []
        self.count -= count
        while count:
            piece = self._pieces.popleft()
            size = _count_samples(piece)
            if size > count:
                self._pieces.appendleft(_cut_piece(piece, count, size))
                piece, size = _cut_piece(piece, 0, count), count
            taken.append(piece)
            count -= size
        return taken


def _count_samples(piece: "Columns | list[object]") -> int:
    return piece.size if isinstance(piece, Columns) else len(piece)


def _cut_piece(piece: "Columns | list[object]", start: int, stop: int) -> "Columns | list[object]":
    return piece.cut(start, stop) if isinstance(piece, Columns) else piece[start:stop]


def _explain_unlike(first: Mapping[object, object], other: object) -> str:
    fields = sorted(map(str, other)) if isinstance(other, dict) else type(other).__name__
    return (
        f"samples with different fields in one batch: {sorted(map(str, first))} and {fields}; "
        "choose fields with to_tuple or rename(..., keep=False)"
    )


class _OpenWindow:
    """A window that is being received: what it says about the state, and the rows of its samples.

    Attributes:
        steps: what changed in the state with each sample, where the window is one worker's that notes it.
        early: as of the window.
    """

    def __init__(self, window: BatchWindow) -> None:
        self.count = window.count
        self.early = window.early
        self._worker, self.steps = window.parts[0].worker, window.parts[0].steps
        self._taken = 0
        self.progress = [(part.worker, part.turns, part.progress) for part in window.parts]
        self.counted = window.merge_counts()
        self.stop = window.stop
        self._first = window.first
        self._parts = [part.rows for part in window.parts]
        self._rows: list[int] = []

    def take(self, beyond: int, mark: BatchMark) -> None:
        """Add to a mark what the first samples say that were not taken yet.

        Args:
            beyond: samples received.
            mark: of them.
        """
        if self.early:
            mark.early += beyond - self._taken
        mark.progress += [(self._worker, 0, step) for step in self.steps[self._taken : beyond]]
        self._taken = beyond

    def advance(self, beyond: int) -> tuple[int, list[RowCounts]]:
        """Return where its first samples end, as an index, and what was counted there and not told yet."""
        self._rows = self._rows or sorted(row for rows in self._parts for row in rows)
        row = self._rows[beyond - 1]
        counts = [each for each in self.counted if each.row <= row]
        del self.counted[: len(counts)]
        return self._first + row + 1, counts


class _ReceivedWindows:
    """What the consumer has received of the windows that were made.

    Args:
        before: what it has received of them before.
    """

    def __init__(self, before: ReceivedSamples) -> None:
        self._windows: deque[_OpenWindow] = deque()
        # samples received of the first of them
        self._beyond = 0
        self._left, self._until = before.count, before.until
        # what the next mark tells of the samples that are left out
        self._held: BatchMark | None = None

    def add(self, window: BatchWindow) -> None:
        """Take note of a window whose samples come next."""
        opened = _OpenWindow(window)
        if self._left:
            opened.counted = [each for each in opened.counted if window.first + each.row >= self._until]
        self._windows.append(opened)

    def skip(self) -> int:
        """Return how many samples of the window added last are left out, at its beginning."""
        count = min(self._left, self._windows[-1].count) if self._left else 0
        if count:
            self._left -= count
            self._held = self.advance(count)
        return count

    def advance(self, count: int) -> BatchMark:
        """Return the mark after some more samples."""
        mark = BatchMark(samples=count)
        if self._held is not None:
            held, self._held = self._held, None
            mark.progress, mark.counted = held.progress, held.counted
        self._beyond += count
        while self._windows and self._windows[0].count <= self._beyond:
            window = self._windows.popleft()
            self._beyond -= window.count
            if window.steps or window.early:
                window.take(window.count, mark)
            mark.progress += window.progress
            mark.counted += window.counted
            mark.until = window.stop
        mark.beyond = self._beyond
        if self._beyond:
            mark.until, counts = self._windows[0].advance(self._beyond)
            mark.counted += counts
            if self._windows[0].steps or self._windows[0].early:
                self._windows[0].take(self._beyond, mark)
            if self._windows[0].steps:
                # the state is known there
                mark.beyond = 0
        return mark

    def rest(self) -> BatchMark:
        """Return the mark after the last sample, whether or not all were received."""
        mark = BatchMark() if self._held is None else replace(self._held, beyond=0, samples=0, until=NEVER)
        for window in self._windows:
            # steps say nothing more: each stream has ended since
            mark.progress += window.progress
            mark.counted += window.counted
        return mark
