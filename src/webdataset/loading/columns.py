"""Columns of samples: collated where samples are made, joined where batches are.

Theory. What collation makes of a field follows from the types of its values: numbers of one type become an array,
texts, bytes and containers stay a list, and only the rest needs a look at each value. A worker looks at the types of
its rows of a window, all at once, and sends columns; the consumer joins the columns of all workers, with a few calls a
field, whatever the number of samples. Where columns of one field differ in form, their values are put together again
and collated one by one, so that a batch is always what collating its samples gives.

Samples are put together again (``samples``) only where they do not fit into one batch.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, cast

import numpy as np

from webdataset.loading.shared_memory import Array, BatchColumn, BatchLayout, as_array, place_columns
from webdataset.samples.native_core import Gather, UnpackValues, load_native

# forms of a column: a list that stays one; arrays of Python's numbers, of numpy's, of arrays; a list to be looked at
LISTED, NUMBERS, SCALARS, STACKED, LOOSE = "listed", "numbers", "scalars", "stacked", "loose"
# of a column that came from a process: LISTED, packed by the native core until columns are joined
PACKED = "packed"
# whose lists collation leaves as they are
_LISTED_TYPES = frozenset([str, bytes, memoryview, dict, list, tuple, type(None)])
# so many values of a long list of containers stand for all
_WEIGHED = 2
_SIZED = frozenset([str, bytes, bytearray])
_VIEWS = frozenset([memoryview])
_ROWS = (tuple, list)
_CONTAINERS = frozenset([dict, list, tuple])
# that stand for a few bytes, as what does not say its size
_PLAIN_TYPES = frozenset([int, float, bool, type(None)])
_PLAIN_BYTES = 32
# the size of a packed value that is the one before it
_REPEATED = 0xFFFF_FFFF


def unpack_values(packed: bytes, count: int, text: bool, rows: list[object], start: int, step: int) -> None:  # noqa: FBT001, PLR0917  as the core's
    """Put what the native core has packed into a list: for a process without it, whose workers have it.

    Args:
        packed: sizes of four bytes each, then the contents.
        count: values in it.
        text: they are texts.
        rows: gets the values.
        start: row of the first.
        step: rows from one value to the next.

    Raises:
        ValueError: these are no values that were packed.
        IndexError: the list has no such row.
    """
    if not 0 <= count <= len(packed) // 4:
        raise ValueError("these are no values that were packed")
    places = range(start, start + count * step, step) if step > 0 else range(0)
    if count and (len(places) != count or places[0] < 0 or places[-1] >= len(rows)):
        raise IndexError("there are no rows for these values")
    at = 4 * count
    value: object = None
    for place, (size,) in zip(places, struct.iter_unpack("=I", packed[:at]), strict=True):
        if size != _REPEATED or value is None:
            if size > len(packed) - at:
                raise ValueError("these are no values that were packed")
            content = packed[at : at + size]
            value = content.decode() if text else content
            at += size
        rows[place] = value
    if at != len(packed):
        raise ValueError("these are no values that were packed")


_unpack: UnpackValues = getattr(load_native()[0], "unpack_values", unpack_values)
_NUMBER_DTYPES: dict[type, np.dtype[np.generic]] = {kind: np.array([kind()]).dtype for kind in (int, float, bool)}


class PackedValues(NamedTuple):
    """Bytes or texts as the native core has packed them.

    Args:
        content: the values.
        size: how many there are.
        text: they are texts.
    """

    content: bytes
    size: int
    text: bool

    def to_list(self) -> list[object]:
        """Return the values."""
        values: list[object] = [None] * self.size
        _unpack(*self, values, 0, 1)
        return values


class FieldColumn(NamedTuple):
    """The values of one field, by row.

    Args:
        form: how they stand: ``LISTED``, ``PACKED``, ``NUMBERS``, ``SCALARS``, ``STACKED`` or ``LOOSE``.
        values: a list, packed values, or an array ``dtype[rows, ...]``.
        size_bytes: that the values take, about; known where they were collated.
        tensor: samples hold a tensor (of ``STACKED``).
    """

    form: str
    values: Any
    size_bytes: int = 0
    tensor: bool = False

    def to_list(self) -> list[object]:
        """Return the values as samples hold them."""
        if self.form in (LISTED, LOOSE):
            return cast("list[object]", self.values)
        if self.form in (NUMBERS, PACKED):
            return cast("list[object]", self.values.tolist() if self.form == NUMBERS else self.values.to_list())
        if self.form == SCALARS:
            return list(self.values)
        return [wrap_array(self.values[row, ...], tensor=self.tensor) for row in range(len(self.values))]

    def cut(self, start: int, stop: int) -> "FieldColumn":
        """Return some of its rows."""
        return FieldColumn(self.form, self.values[start:stop], 0, self.tensor)


class Columns(NamedTuple):
    """Samples of one kind, field by field.

    Args:
        kind: ``dict``, ``tuple`` (tuples and lists) or ``bare``: what samples are.
        keys: a dict's in order; otherwise numbers.
        fields: a column for each key; None where it stands in the window's block.
        size: number of samples.
        size_bytes: that they take, about, without what stands in the block.
        placed: some columns stand in the window's block.
        shown: the keys in the order of the first sample, where that is not the block's.
    """

    kind: str
    keys: tuple[object, ...]
    fields: list[FieldColumn | None]
    size: int
    size_bytes: int
    placed: bool = False
    shown: tuple[object, ...] = ()

    def samples(self) -> list[object]:
        """Return the samples; tuples for tuples and lists."""
        values = [column.to_list() for column in self.fields if column is not None]
        if self.kind == "bare":
            return values[0]
        rows = zip(*values, strict=True) if values else [()] * self.size
        return [dict(zip(self.keys, row, strict=True)) for row in rows] if self.kind == "dict" else list(rows)

    def cut(self, start: int, stop: int) -> "Columns":
        """Return some of the samples."""
        if start == 0 and stop == self.size:
            return self
        fields = [None if column is None else column.cut(start, stop) for column in self.fields]
        part = stop - start
        return self._replace(fields=fields, size=part, size_bytes=self.size_bytes * part // self.size)

    def assemble(self, finish: Callable[[list[object]], object]) -> object:
        """Return the batch.

        Args:
            finish: makes a column of values that must be looked at.
        """
        made = [_finish_column(column, finish) for column in self.fields if column is not None]
        if self.kind == "dict":
            batch = dict(zip(self.keys, made, strict=True))
            return {key: batch[key] for key in self.shown} if self.shown else batch
        return tuple(made) if self.kind == "tuple" else made[0]


def _finish_column(column: FieldColumn, finish: Callable[[list[object]], object]) -> object:
    if column.form == LOOSE:
        return finish(column.values)
    return wrap_array(column.values, tensor=True) if column.tensor else column.values


def wrap_array(array: Array, *, tensor: bool) -> object:
    """Return an array as what samples hold: itself, or a torch tensor over the same memory."""
    if not tensor:
        return array
    from webdataset.codecs.torch_codecs import array_to_tensor  # noqa: PLC0415  only samples with tensors need torch

    return array_to_tensor(array)


def collate_column(values: list[object]) -> FieldColumn:
    """Return values as a column, in the form that says most."""
    kinds = set(map(type, values))
    if kinds <= _LISTED_TYPES:
        return FieldColumn(LISTED, values, _weigh_list(values, kinds))
    if len(kinds) == 1:
        (kind,) = kinds
        number = kind in _NUMBER_DTYPES
        if number or issubclass(kind, np.number | np.bool_):
            array = np.array(values)
            # not integers too large for one, nor durations, whose type says no unit
            if array.dtype == (_NUMBER_DTYPES[kind] if number else np.dtype(kind)):
                return FieldColumn(NUMBERS if number else SCALARS, array, array.nbytes)
    return FieldColumn(LOOSE, values, _weigh_list(values, kinds))


def collate_rows(samples: Sequence[object], gather: Gather | None = None) -> Columns | None:
    """Return samples as columns; None where they are not of one kind, with the same fields.

    Args:
        samples: at least one.
        gather: takes them apart in C; None where that is not compiled.
    """
    # what is none of the usual is looked at below
    columns = None if gather is None else _gather_rows(samples, gather)
    if columns is not None:
        return columns
    kinds = set(map(type, samples))
    if kinds == {dict}:
        return _collate_dicts(cast("Sequence[dict[object, object]]", samples))
    if all(issubclass(kind, _ROWS) for kind in kinds):
        rows = cast("Sequence[Sequence[object]]", samples)
        if len(set(map(len, rows))) > 1:
            return None
        fields = [collate_column(list(values)) for values in zip(*rows, strict=True)]
        return _make_columns("tuple", tuple(range(len(fields))), fields, len(samples))
    if any(issubclass(kind, dict | tuple | list) for kind in kinds):
        return None
    return _make_columns("bare", (0,), [collate_column(list(samples))], len(samples))


def _gather_rows(samples: Sequence[object], gather: Gather) -> Columns | None:
    """Return dicts with the same fields, or tuples of one length, as columns; None for all else."""
    first = samples[0]
    keys = tuple(first) if type(first) is dict else None
    found = gather(samples if type(samples) is list else list(samples), keys)
    if found is None:
        return None
    fields = [
        collate_column(values) if kind is None else FieldColumn(LISTED, values, size) for values, kind, size in found
    ]
    if keys is None:
        return _make_columns("tuple", tuple(range(len(fields))), fields, len(samples))
    return _make_columns("dict", keys, fields, len(samples))


def _make_columns(kind: str, keys: tuple[object, ...], fields: list[FieldColumn], size: int) -> Columns:
    return Columns(kind, keys, list(fields), size, sum([column.size_bytes for column in fields]))


def _collate_dicts(samples: Sequence[dict[object, object]]) -> Columns | None:
    if len(set(map(len, samples))) > 1:
        return None
    first = samples[0]
    try:
        fields = [collate_column(list(map(itemgetter(key), samples))) for key in first]
    except KeyError:
        return None
    return _make_columns("dict", tuple(first), fields, len(samples))


def collate_beside(
    layout: BatchLayout, others: Sequence[int], rows: Sequence[Sequence[object]], shown: tuple[object, ...]
) -> Columns:
    """Return the fields that travel beside a block, of samples that were written into it.

    Args:
        layout: of the block.
        others: places of the fields beside it.
        rows: for each sample, these fields.
        shown: the keys in the order of the first sample.
    """
    fields: list[FieldColumn | None] = [None] * len(layout.keys)
    for place, values in zip(others, zip(*rows, strict=True), strict=False):
        fields[place] = collate_column(list(values))
    shown = () if shown == layout.keys else shown
    size_bytes = sum(column.size_bytes for column in fields if column is not None)
    return Columns(layout.kind, layout.keys, fields, len(rows), size_bytes, placed=True, shown=shown)


def estimate_bytes(value: object) -> int:
    """Return about how many bytes a value takes: its arrays, tensors, texts and bytes.

    Of a long list of containers, some stand for all.
    """
    kind = type(value)
    if kind in _SIZED:
        return len(cast("bytes", value))
    if kind in _PLAIN_TYPES:
        return _PLAIN_BYTES
    if isinstance(value, dict):
        return _weigh_values(value.values())
    if isinstance(value, tuple | list):
        return _weigh_list(value, set(map(type, value)))
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    try:
        size = getattr(value, "nbytes", None)
    except RuntimeError:  # a sparse tensor
        size = None
    return size if isinstance(size, int) else _PLAIN_BYTES


def _weigh_values(values: Iterable[Any]) -> int:
    """Return the sum of ``estimate_bytes``; records of many small values are common, and calls are what costs."""
    size_bytes = 0
    for value in values:
        kind = type(value)
        if kind is str or kind is bytes:
            size_bytes += len(value)
        elif kind in _PLAIN_TYPES:
            size_bytes += _PLAIN_BYTES
        else:
            size_bytes += estimate_bytes(value)
    return size_bytes


def _weigh_list(values: Sequence[object], kinds: set[type]) -> int:
    if kinds <= _SIZED:
        return sum(map(len, cast("Sequence[bytes]", values)))
    if kinds == _VIEWS:
        return sum(map(attrgetter("nbytes"), values))
    if len(values) > 4 * _WEIGHED and not kinds.isdisjoint(_CONTAINERS):
        some = values[:: len(values) // _WEIGHED]
        return _weigh_values(some) * len(values) // len(some)
    return _weigh_values(values)


def place_fields(columns: Columns, layout: BatchLayout, arrays: Sequence[Array]) -> Columns:
    """Return columns with those of their block.

    Args:
        columns: of samples that were written into it.
        layout: of the block.
        arrays: for each of the block's columns, the samples' rows.
    """
    fields = list(columns.fields)
    for column, array in zip(layout.columns, arrays, strict=True):
        fields[column.place] = FieldColumn(STACKED, array, 0, column.tensor)
    size_bytes = columns.size_bytes + sum(array.nbytes for array in arrays)
    return columns._replace(fields=fields, size_bytes=size_bytes, placed=False)


class RowOrder:
    """Where the rows of several parts stand among each other.

    Args:
        parts: the rows of each part, rising.
        span: rows that there may be.
    """

    def __init__(self, parts: Sequence[Sequence[int]], span: int) -> None:
        self.count = sum(map(len, parts))
        self._slices: list[slice] | None = None
        self._order: list[int] | None = None
        if len(parts) == 1:
            return
        if self.count == span:
            slices = [slice(rows.start, rows.stop, rows.step) for rows in parts if isinstance(rows, range)]
            if len(slices) == len(parts):
                self._slices = slices
                return
        flat = list(chain.from_iterable(parts))
        self._order = sorted(range(self.count), key=flat.__getitem__)

    def merge_lists(self, parts: Sequence[list[object]]) -> list[object]:
        """Return the values of all parts by rising row."""
        if self._slices is not None:
            merged: list[object] = [None] * self.count
            for rows, values in zip(self._slices, parts, strict=True):
                merged[rows] = values
            return merged
        if self._order is None:
            return list(chain.from_iterable(parts)) if len(parts) > 1 else parts[0]
        return list(map(list(chain.from_iterable(parts)).__getitem__, self._order))

    def merge_packed_values(self, parts: Sequence[PackedValues]) -> list[object]:
        """Return packed values of all parts by rising row."""
        if self._slices is None:
            return self.merge_lists([part.to_list() for part in parts])
        merged: list[object] = [None] * self.count
        for rows, part in zip(self._slices, parts, strict=True):
            _unpack(*part, merged, rows.start, rows.step)
        return merged

    def merge_arrays(self, parts: Sequence[Array]) -> Array:
        """Return the rows of all parts by rising row."""
        if len(parts) == 1:
            return parts[0]
        if self._slices is not None:
            merged = np.empty((self.count, *parts[0].shape[1:]), parts[0].dtype)
            for rows, array in zip(self._slices, parts, strict=True):
                merged[rows] = array
            return merged
        whole: Array = np.concatenate(parts)
        return whole if self._order is None else whole[self._order]


class _InSequence(RowOrder):
    """Parts that follow each other."""

    def __init__(self) -> None:
        super().__init__([()], 0)


IN_SEQUENCE = _InSequence()


def merge_columns(parts: Sequence[Columns], order: RowOrder = IN_SEQUENCE) -> Columns | None:
    """Return the samples of all parts as columns; None where they do not fit into one batch.

    Args:
        parts: at least one; of all or of none of them, columns stand in the block.
        order: of their rows; by default one part comes after the other.
    """
    first = parts[0]
    # nothing to be joined, nor unpacked: parts of a window, which have an order, come from workers
    if len(parts) == 1 and order is IN_SEQUENCE:
        return first
    sources = [first.fields]
    size, size_bytes = first.size, first.size_bytes
    for part in parts[1:]:
        size += part.size
        size_bytes += part.size_bytes
        if part.kind != first.kind or len(part.keys) != len(first.keys):
            return None
        if part.keys == first.keys:
            sources.append(part.fields)
            continue
        places = {key: place for place, key in enumerate(part.keys)}
        if not all(key in places for key in first.keys):
            return None
        sources.append([part.fields[places[key]] for key in first.keys])
    fields = [_merge_field(columns, order) for columns in zip(*sources, strict=True)]
    return Columns(first.kind, first.keys, fields, size, size_bytes, first.placed, first.shown)


def _merge_field(columns: Sequence[FieldColumn | None], order: RowOrder) -> FieldColumn | None:
    first = columns[0]
    if first is None:
        return None
    # none of them is None, or all are
    held: Sequence[FieldColumn] = columns  # type: ignore[assignment]
    form, values, alike = first.form, [], True
    for column in held:
        values.append(column.values)
        alike = alike and column.form == form
    if alike and form == PACKED:
        return FieldColumn(LISTED, order.merge_packed_values(values))
    if alike and form in (LISTED, LOOSE):
        return FieldColumn(form, order.merge_lists(values))
    if {column.form for column in held} == {LISTED, PACKED}:
        return FieldColumn(LISTED, order.merge_lists([column.to_list() for column in held]))
    if alike and len({(column.tensor, column.values.dtype, column.values.shape[1:]) for column in held}) == 1:
        return FieldColumn(form, order.merge_arrays(values), 0, first.tensor)
    return FieldColumn(LOOSE, order.merge_lists([column.to_list() for column in held]))


def infer_layout(columns: Columns, rows: int) -> BatchLayout | None:
    """Return the layout of batches like these samples; None where no field is an array of one shape.

    Nor where a field is an array now and then, or of several shapes: such samples have no layout in common.

    Args:
        columns: of some samples, none in a block.
        rows: of a batch.
    """
    found = []
    for place, column in enumerate(columns.fields):
        if column is None or column.form != LOOSE:
            continue
        arrays = list(map(as_array, column.values))
        first = arrays[0]
        if first is None:
            if any(array is not None for array in arrays):
                return None
            continue
        tensor = first is not column.values[0]
        for array, value in zip(arrays, column.values, strict=True):
            if array is None or (array.shape, array.dtype, array is not value) != (first.shape, first.dtype, tensor):
                return None
        found.append(BatchColumn(place, first.shape, first.dtype, 0, tensor))
    return place_columns(columns.kind, columns.keys, found, rows) if found else None
