"""Writes samples into the rows of a batch, and offers rows to decoders that write there themselves.

Theory. An image decoder is offered the row that the next sample will occupy
(:mod:`webdataset.codecs.images.output_buffer`). When the sample arrives, its memory is checked: what is not in its row
already is copied there; and where something still refers to the row's memory (a shuffle after the decoder holds another
picture there, say), the sample travels beside the batch. A function that keeps an array *and* returns it (a cache of
pictures) would share memory with the consumer's batch. So the allocator first offers memory that is in no batch, and
checks that it is released once all streams have moved on; only then, and as long as that holds, it offers rows.

Never changes memory that a pipeline refers to.
"""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from webdataset.loading.shared_memory import Array, BatchLayout, as_array

_Reference: TypeAlias = "weakref.ref[ctypes.Array[ctypes.c_ubyte]] | weakref.ref[Array]"

TRIAL, LANDING, OFF = "trial", "landing", "off"
# smaller arrays are copied faster than a row is offered
_LEAST_BYTES = 1 << 12
_TRIAL_WINDOWS = 2
# samples
_SLACK = 4


class WindowRows:
    """The rows of one window, as one worker writes them.

    Args:
        layout: of the window's block, or None: all samples travel beside it.
        columns: the block's arrays.
        mode: what decoders are offered: memory on trial, rows, or nothing.
    """

    def __init__(self, layout: BatchLayout | None, columns: Sequence[Array], mode: str) -> None:
        self.layout = layout
        self.columns = columns
        self.mode = mode
        self.row = 0
        # what was offered of this row, by column: weakly, its memory and the array
        self.given: dict[int, tuple[_Reference, weakref.ref[Array]]] = {}
        # the memory of all that was offered
        self.views: list[_Reference] = []
        if layout is None:
            return
        rows = [(each.shape[1:], each.dtype, each[:1].nbytes) for each in columns]
        self._kinds = [(*row, ctypes.c_ubyte * row[2]) for row in rows]
        self._places = [column.place for column in layout.columns]
        count = len(layout.keys)
        # places of the fields without a column
        # the keys in the order of the first sample
        self.shown: tuple[object, ...] = ()
        self.others = [place for place in range(count) if place not in self._places]

    def expect(self, row: int) -> None:
        """Say which row comes next."""
        self.row = row
        if self.given:
            self.given = {}

    def give(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array | None:
        """Return memory of the next row for an array, or None.

        Views of views refer to the array that owns the memory, not to each other. So the row is made an owner of its
        own, a ctypes array, which lives as long as anything that looks at the row.
        """
        for number, (likely, kind, size, memory) in enumerate(self._kinds):
            if likely != shape or kind != dtype:
                continue
            if size < _LEAST_BYTES or self.mode == OFF:
                return None
            if self.mode == TRIAL:
                scratch = np.empty(shape, dtype)
                self.views.append(weakref.ref(scratch))
                return scratch
            before = self.given.get(number)
            if before is None or before[0]() is None:
                owner = memory.from_buffer(self.columns[number], self.row * size)  # type: ignore[arg-type]  # a buffer since 3.12
                view: Array = np.ndarray(shape, dtype, owner)  # type: ignore[arg-type]  # the same
                reference = weakref.ref(owner)
                self.given[number] = reference, weakref.ref(view)
                self.views.append(reference)
                return view
        return None

    def write_sample(self, row: int, sample: object) -> tuple[bool, Any]:
        """Write a sample into its row; return True and the fields without a column, or False and the sample."""
        layout = self.layout
        values = layout.values(sample) if layout is not None else None
        if layout is None or values is None or not self._write_row(row, values):
            return False, sample
        if not self.shown:
            self.shown = tuple(sample) if isinstance(sample, dict) else layout.keys
        return True, list(map(values.__getitem__, self.others))

    def _write_row(self, row: int, values: Sequence[object]) -> bool:
        moves = []
        for number, place in enumerate(self._places):
            value, column = values[place], self.columns[number]
            given = self.given.get(number)
            if given is not None and given[1]() is value:
                continue
            array = value if type(value) is np.ndarray else as_array(value)
            if array is None or array.shape != column.shape[1:] or array.dtype != column.dtype:
                return False
            if given is not None and given[0]() is not None:
                # the pipeline keeps arrays, or gives views of them: offering rows saves nothing
                self.mode = OFF
                return False
            moves.append((column, array))
        for column, array in moves:
            column[row] = array
        return True


class RowAllocator:
    """Decides what a worker's decoders are offered, from epoch to epoch.

    Attributes:
        offered: decoders were offered memory in the window that was taken back last.
    """

    def __init__(self) -> None:
        self.mode = TRIAL
        self.offered = False
        self._drawn = 0
        self._windows = 0
        # samples drawn, block, what was offered
        self._held: list[tuple[int, int, list[_Reference]]] = []

    def rows(self, layout: BatchLayout | None, columns: Sequence[Array]) -> WindowRows:
        """Return the rows of the next window."""
        return WindowRows(layout, columns, self.mode)

    def take_back(self, rows: WindowRows, block: int, count: int, turn: int) -> list[int]:
        """Look at the memory that was offered; return the blocks of earlier windows that the pipeline still refers to.

        Args:
            rows: of the window that is done.
            block: its block.
            count: samples written.
            turn: samples after which a pipeline has moved on from one.
        """
        self._drawn += count
        self.offered = bool(rows.views)
        if not rows.views and not self._held and rows.mode != OFF:
            return []
        busy = self.busy()
        patience = 2 * turn + _SLACK
        if any(self._drawn - drawn > patience for drawn, _, _ in self._held):
            # something is kept for good
            self.mode = OFF
        elif rows.mode == OFF:
            self.mode = OFF
        elif rows.views:
            self._windows += 1
            if self.mode == TRIAL and self._windows > _TRIAL_WINDOWS and self._drawn > 3 * patience:
                self.mode = LANDING
        if rows.views:
            self._held.append((self._drawn, block if rows.mode != TRIAL else -1, rows.views))
        return busy

    def busy(self) -> list[int]:
        """Return the blocks of earlier windows that the pipeline still refers to."""
        self._held = [
            (drawn, block, alive)
            for drawn, block, views in self._held
            if (alive := [view for view in views if view() is not None])
        ]
        return sorted({block for _, block, _ in self._held if block >= 0})
