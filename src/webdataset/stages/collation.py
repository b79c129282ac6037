"""A list of samples into one batch.

Flows in: samples of one shape: dictionaries with the same keys, tuples or lists of the same length, or plain values.
Flows out: a dictionary or tuple of columns. Numbers become arrays, arrays of one shape are stacked, tensors too;
everything else (text, bytes, dictionaries, None) stays a list. Loads numpy when first used, and torch never: a tensor
can only be met where torch is loaded already.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from webdataset.ground.errors import SampleError, UsageError
from webdataset.ground.extras import loaded


def default_collation_fn(
    samples: Sequence[Any],
    combine_tensors: bool = True,  # noqa: FBT001, FBT002  positional upstream
    combine_scalars: bool = True,  # noqa: FBT001, FBT002  positional upstream
) -> Any:
    """Collate samples into a batch.

    Args:
        samples: at least one; all dictionaries with the same keys, all tuples (or lists) of one length, or all values.
        combine_tensors: stack arrays (``[N, ...]``) and tensors; otherwise lists of them.
        combine_scalars: make arrays ``[N]`` of int, float and bool; otherwise lists of them.

    Returns:
        For dictionaries a dictionary of columns, in the order of the first sample's keys; for tuples and lists a tuple
        of columns; for other values one column.

    Raises:
        SampleError: samples of different keys or lengths, or arrays of different shapes.
        UsageError: no samples.
    """
    if not samples:
        raise UsageError("there is nothing to collate: the list of samples is empty")
    first = samples[0]
    if isinstance(first, dict):
        keys = first.keys()
        for sample in samples:
            if sample.keys() != keys:
                raise SampleError(_unlike(first, sample), key=sample.get("__key__"))
        return {
            key: combine_values([sample[key] for sample in samples], combine_tensors, combine_scalars) for key in keys
        }
    if isinstance(first, tuple | list):
        if len(set(map(len, samples))) > 1:
            raise SampleError(f"samples of different lengths in one batch: {sorted(set(map(len, samples)))}")
        return tuple(combine_values(list(column), combine_tensors, combine_scalars) for column in zip(*samples))  # noqa: B905  checked above
    return combine_values(list(samples), combine_tensors, combine_scalars)


def combine_values(
    b: list[Any],
    combine_tensors: bool = True,  # noqa: FBT001, FBT002  positional upstream
    combine_scalars: bool = True,  # noqa: FBT001, FBT002  positional upstream
) -> Any:
    """Combine one column of a batch; the first value decides how.

    Args:
        b: the column's values, at least one.
        combine_tensors: stack arrays and tensors.
        combine_scalars: make an array of int, float and bool.

    Returns:
        An array, a tensor, or ``b``.

    Raises:
        SampleError: arrays of different shapes.
    """
    first = b[0]
    if isinstance(first, int | float):
        return _array(b) if combine_scalars else b
    if isinstance(first, str | bytes | dict | tuple | list) or first is None or not combine_tensors:
        return b
    return _stacked(b)


def _array(column: list[Any]) -> Any:
    import numpy as np  # noqa: PLC0415  loaded when a batch needs it

    return np.array(column)


def _stacked(column: list[Any]) -> Any:
    import numpy as np  # noqa: PLC0415  loaded when a batch needs it

    torch = loaded("torch")
    for kind, stack in ((np.ndarray, np.stack), (getattr(torch, "Tensor", None), getattr(torch, "stack", None))):
        if kind is not None and stack is not None and isinstance(column[0], kind):
            shapes = {tuple(getattr(value, "shape", (type(value).__name__,))) for value in column}
            if len(shapes) > 1:
                raise SampleError(
                    f"arrays of different shapes in one batch: {sorted(shapes, key=repr)}; resize them in a map, or "
                    f"use batched(..., collation_fn=None) to get lists"
                )
            return stack(column)
    return column


def _unlike(first: dict[Any, Any], other: dict[Any, Any]) -> str:
    return (
        f"samples with different fields in one batch: {sorted(map(str, first))} and {sorted(map(str, other))}; "
        f"choose fields with to_tuple or rename(..., keep=False)"
    )


def dict2tuple(d: dict[int, Any]) -> tuple[Any, ...]:
    """Return the values of a dict whose keys are 0, 1, 2 …, in that order.

    Args:
        d: the dict.

    Raises:
        SampleError: its keys are others.
    """
    if set(d) != set(range(len(d))):
        raise SampleError(f"dict2tuple takes keys 0 to {len(d) - 1}, not {list(d)!r}")
    return tuple(d[place] for place in range(len(d)))


def tuple2dict(l: Iterable[Any]) -> dict[int, Any]:  # noqa: E741  upstream's name
    """Return a dict of values by place: 0, 1, 2 ….

    Args:
        l: the values.
    """
    return dict(enumerate(l))
