"""What the rows of a batch look like in memory: which fields are arrays of one shape, and where their columns stand.

Flows in: a sample (a dictionary, tuple, list, or one value). Flows out: a layout, from which every worker makes the
same numpy views of one block of memory. Fields that are no arrays have no column: they travel beside it. Nothing is
copied here.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from webdataset.ground.extras import loaded

_ALIGNMENT = 64


@dataclass(frozen=True)
class Column:
    """One field's column: an array ``dtype[rows, *shape]``.

    Args:
        place: index of the field among the sample's fields.
        shape: of one row.
        dtype: of its values.
        offset: byte at which the column starts.
        tensor: the samples hold torch tensors here.
    """

    place: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    tensor: bool = False


@dataclass(frozen=True)
class Layout:
    """The memory of a batch.

    Args:
        kind: ``dict``, ``tuple`` or ``bare``: what samples are.
        keys: the fields' keys in order (a tuple's are its indices, a bare value's is 0).
        columns: those fields that have a column.
        rows: rows of each column.
        size_bytes: of the block.
    """

    kind: str
    keys: tuple[Any, ...]
    columns: tuple[Column, ...]
    rows: int
    size_bytes: int

    def views(self, memory: Any) -> list[Any]:
        """Return the columns as arrays over a block.

        Args:
            memory: a writable uint8 array of at least ``size_bytes``.
        """
        found = []
        for column in self.columns:
            count = self.rows * math.prod(column.shape)
            stop = column.offset + count * column.dtype.itemsize
            view = memory[column.offset : stop].view(column.dtype)
            found.append(view.reshape((self.rows, *column.shape)))
        return found

    def values(self, sample: Any) -> Any:
        """Return a sample's fields in the order of ``keys``, or None where it has others.

        Args:
            sample: any sample.
        """
        kind = type(sample)
        if self.kind == "dict":
            if kind is not dict or len(sample) != len(self.keys):
                return None
            try:
                return [sample[key] for key in self.keys]
            except KeyError:
                return None
        if self.kind == "tuple":
            return sample if kind in (tuple, list) and len(sample) == len(self.keys) else None
        return None if kind in (dict, tuple, list) else (sample,)


def layout_of(sample: Any, rows: int) -> Layout | None:
    """Return the layout of batches of samples like this one.

    Args:
        sample: one sample.
        rows: samples in a batch.

    Returns:
        None where no field is an array that can lie in a block: the samples then travel as they are.
    """
    if type(sample) is dict:
        kind, keys, values = "dict", tuple(sample), list(sample.values())
    elif type(sample) in (tuple, list):
        kind, keys, values = "tuple", tuple(range(len(sample))), list(sample)
    else:
        kind, keys, values = "bare", (0,), [sample]
    columns = []
    offset = 0
    for place, value in enumerate(values):
        array = as_array(value)
        if array is None:
            continue
        columns.append(Column(place, array.shape, array.dtype, offset, array is not value))
        size = rows * array.nbytes
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    return Layout(kind, keys, tuple(columns), rows, offset) if offset else None


def as_array(value: Any) -> Any:
    """Return a value as an array that a column can hold, without a copy; None where it is none.

    Args:
        value: a numpy array, or a torch tensor on the CPU of a type that numpy has.
    """
    if type(value) is np.ndarray:
        kind = value.dtype
        # stacking makes foreign byte orders native; a column would not
        return None if kind.hasobject or kind.fields or not kind.isnative else value
    torch = loaded("torch")
    if torch is not None and type(value) is torch.Tensor:
        from .torch_batches import array_of  # noqa: PLC0415  torch is loaded already, this module not

        return array_of(value)
    return None
