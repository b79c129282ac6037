"""Pads arrays of different lengths to one length, so that they stack.

A field is a list, an array or a tensor ``[N, ...]``; its padding stands behind it, along the first axis. Nothing is
rounded: where the type of a field does not hold the number that is to stand in its padding, that is an error.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from numbers import Integral, Real
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from webdataset.core.errors import SampleError, UsageError
from webdataset.core.optional_imports import loaded_module
from webdataset.stages.base import Sample
from webdataset.stages.batch import default_collation_fn

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[np.generic]
    Kind: TypeAlias = tuple[tuple[int, ...], np.dtype[np.generic]]
    """The shape of one value of a field, and its type."""

# the least whole number that int64 does not hold
_LARGE = 2**63


def is_tensor(value: object) -> bool:
    """Tell whether a field is a tensor of torch."""
    torch = loaded_module("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_bfloat16(value: object) -> bool:
    """Tell whether a field is a tensor of the type that NumPy lacks, and whose numbers float32 holds."""
    torch = loaded_module("torch")
    return torch is not None and isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16


def read_array(sample: Sample, name: str, stage: str) -> "Array":
    """Return a field of numbers as an array, of bfloat16 as one of float32.

    Args:
        sample: lists, arrays or tensors by field.
        name: of the field.
        stage: what the array is for, for messages.

    Raises:
        SampleError: the field is missing, or holds no numbers.
    """
    import numpy as np  # noqa: PLC0415  loaded when arrays are padded

    if name not in sample:
        raise SampleError(f"there is no field {name!r} for {stage}, but {', '.join(map(str, sample))}", field=name)
    value = sample[name]
    if is_bfloat16(value):
        value = value.float()
    array = value if type(value) is np.ndarray else _convert_to_array(value, name, stage)
    if array.dtype.kind not in "iufb":
        raise SampleError(f"{name!r} holds {array.dtype}, and no numbers", field=name)
    return array


def _convert_to_array(value: object, name: str, stage: str) -> "Array":
    import numpy as np  # noqa: PLC0415  loaded when arrays are padded

    if isinstance(value, bytes | memoryview | str):
        found = type(value).__name__
        raise SampleError(f"{name!r} is {found}, and no array of numbers: decode it before {stage}", field=name)
    torch = loaded_module("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            return cast("Array", value.numpy(force=True))
        array = np.asarray(value)
    # torch raises the other two: NumPy has no float8, for example
    except (ValueError, TypeError, RuntimeError) as error:
        raise SampleError(f"{name!r} is no array: {error}; convert it in a map before {stage}", field=name) from error
    # NumPy makes floats of whole numbers where no type of whole numbers holds them all
    large = array.dtype.kind == "f" and isinstance(value, list | tuple) and np.abs(array).max(initial=0) >= _LARGE
    if large and all(isinstance(number, int) for number in np.array(value, object).flat):
        raise SampleError(
            f"{name!r} has whole numbers that neither int64 nor uint64 holds together, and a float rounds them; "
            f"convert it in a map before {stage}",
            field=name,
        )
    return array


def check_fill(name: str, array: "Array", fill: float, stage: str, argument: str) -> None:
    """Refuse a field whose type does not hold its padding.

    Args:
        name: of the field.
        array: its values.
        fill: what stands in the padding.
        stage: what it is padded for, for the message.
        argument: gave the padding, for the message.

    Raises:
        SampleError: it does not.
    """
    if not _can_hold(array.dtype, fill):
        raise SampleError(
            f"{name!r} is of {array.dtype}, which does not hold {fill!r}, its padding: give another one "
            f"in {argument}=, or convert the field in a map before {stage}",
            field=name,
        )


@cache
def _can_hold(dtype: "np.dtype[np.generic]", fill: float) -> bool:
    """Tell whether a number stays the same in an array, but for the precision of real numbers."""
    import numpy as np  # noqa: PLC0415  loaded when arrays are padded

    with np.errstate(all="ignore"):
        try:
            held = np.array([fill]).astype(dtype)[0]
        except OverflowError:
            return False
        return bool(held == fill if dtype.kind != "f" else np.isfinite(held) or not math.isfinite(fill))


def check_fills(fills: Mapping[str, object], hint: str = "") -> None:
    """Refuse what is no padding.

    Args:
        fills: what stands in the padding, by field.
        hint: stands behind the message.

    Raises:
        UsageError: it is no number.
    """
    for name, fill in fills.items():
        if not isinstance(fill, Real):
            raise UsageError(f"the padding of {name!r} is {fill!r}, and no number{hint}")


def join_kinds(name: str, before: "Kind", kind: "Kind", stage: str) -> "Kind":
    """Return the shape of one value, and the type, that hold the fields of two samples.

    Args:
        name: of the field.
        before: of the samples before.
        kind: of one more.
        stage: what they are joined for, for the message.

    Raises:
        SampleError: there is none that rounds nothing.
    """
    import numpy as np  # noqa: PLC0415  loaded when arrays are padded

    joined = np.promote_types(before[1], kind[1])
    # no type of whole numbers holds int64 and uint64: NumPy takes float64, which rounds them
    if before[0] != kind[0] or (joined.kind == "f" and "f" not in before[1].kind + kind[1].kind):
        shown = [f"{dtype}[{', '.join(['N', *map(str, shape)])}]" for shape, dtype in (kind, before)]
        raise SampleError(
            f"{name!r} is {shown[0]}, and in the samples before it {shown[1]}: these do not fit together; "
            f"make them alike in a map before {stage}",
            field=name,
        )
    return kind[0], joined


def check_edges(edges: Iterable[float]) -> list[float]:
    """Return the edges of buckets as ints and floats: NumPy's own types cannot hold what is computed of them.

    Raises:
        UsageError: there are none, or they do not rise.
    """
    found = list(edges) if isinstance(edges, Iterable) else []
    if not found or not all(isinstance(edge, Real) for edge in found) or not found[0] > 0:
        raise UsageError(f"edges are the greatest lengths of the buckets, above 0, and not {found or edges!r}")
    if not all(before < after for before, after in pairwise(found)):
        raise UsageError(f"edges rise from bucket to bucket, and these do not: {found!r}")
    return list(map(simplify_number, found))


def simplify_number(number: object) -> float:
    """Return an int or a float in the place of a number of another type."""
    return index(number) if isinstance(number, Integral) else float(cast("float", number))


@dataclass(frozen=True)
class PaddingCollator:
    """Collates dictionaries of arrays of different lengths: a ``collation_fn`` that pads them to one length.

    Args:
        fills: what stands in the padding, by field; each is a list, array or tensor ``[N, ...]`` of numbers. All other
            fields are collated as :func:`default_collation_fn` does. Where all lists of a batch are empty, the field
            has the type of its padding.
        edges: a field is padded to the smallest of these that is no less than its greatest length in the batch; for
            all fields, or by field. None pads to the greatest length.
        multiple_of: it is padded to a multiple of this; not together with ``edges``.
        mask: a further field (int64, ``[B, L]``): 1 for the values of the first field of ``fills``, 0 for its padding.
            None makes none, and so does a name that ``fills`` has.

    Raises:
        UsageError: arguments that do not go together.
    """

    fills: Mapping[str, float]
    edges: Sequence[int] | Mapping[str, Sequence[int]] | None = None
    multiple_of: int = 1
    mask: str | None = "attention_mask"

    def __post_init__(self) -> None:
        if not isinstance(self.fills, Mapping) or not self.fills:
            raise UsageError(f"fills is a dictionary, what stands in the padding by field, and not {self.fills!r}")
        check_fills(self.fills)
        if not isinstance(self.multiple_of, int) or self.multiple_of < 1:
            raise UsageError(f"multiple_of is {self.multiple_of!r}: it is an int, at least 1")
        if self.edges is not None and self.multiple_of > 1:
            raise UsageError("edges= says how long batches are: leave multiple_of= out, and give edges that are such")
        if not isinstance(self.edges, Mapping):
            edges: object = None if self.edges is None else _check_whole(self.edges)
        elif unknown := self.edges.keys() - self.fills.keys():
            raise UsageError(f"edges= has {', '.join(sorted(map(str, unknown)))}, which fills does not have")
        else:
            edges = {name: _check_whole(each) for name, each in self.edges.items()}
        # lists of ints, whatever they were, so that collators can be compared
        object.__setattr__(self, "edges", edges)

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Return a batch.

        Args:
            samples: dictionaries with the same fields, at least one.

        Returns:
            Arrays ``[B, L, ...]`` for the fields of ``fills``, tensors where the first sample's are; the other fields;
            the mask.

        Raises:
            SampleError: fields that do not fit together, or are longer than the last edge.
            UsageError: no samples.
        """
        if not samples:
            raise UsageError("there is nothing to collate: the list of samples is empty")
        for sample in samples:
            if not isinstance(sample, dict):
                raise SampleError(
                    f"PaddingCollator pads the fields of dictionaries, and this is a {type(sample).__name__}: leave "
                    "out to_tuple, or the like, before it"
                )
        padded = {name: self._pad(name, fill, samples) for name, fill in self.fills.items()}
        others = [{name: value for name, value in sample.items() if name not in padded} for sample in samples]
        batch = default_collation_fn(others)
        result: dict[str, object] = {name: padded.get(name, batch.get(name)) for name in samples[0]}
        if self.mask is not None and self.mask not in self.fills:
            if self.mask in result:
                raise SampleError(
                    f"samples have a field {self.mask!r} already: pad it (fills={{..., {self.mask!r}: 0}}), or give "
                    "another name, or None, in mask=",
                    field=self.mask,
                )
            result[self.mask] = self._make_mask(samples)
        return result

    def _pad(self, name: str, fill: float, samples: Sequence[Sample]) -> object:
        import numpy as np  # noqa: PLC0415  loaded when arrays are padded

        arrays: list[Array] = []
        kind: Kind | None = None
        for sample in samples:
            try:
                array = read_array(sample, name, "batching")
                if not array.ndim:
                    raise SampleError(f"{name!r} is one number, and no array: leave it out of fills=", field=name)  # noqa: TRY301
                # an empty list says neither what its values would be nor how large
                if len(array) or not isinstance(sample[name], list | tuple):
                    kind = _join_array(name, kind, array, fill)
            except SampleError as error:
                raise _locate(error, sample)  # noqa: B904  the same error
            arrays.append(array)
        # where all are empty lists, the padding says what their values would be
        shape, dtype = kind or ((), np.array(fill, None if isinstance(fill, int) else float).dtype)
        lengths = list(map(len, arrays))
        longest = max(lengths)
        try:
            result = np.full((len(arrays), self._round_up(name, longest), *shape), fill, dtype)
        except SampleError as error:
            raise _locate(error, samples[lengths.index(longest)])  # noqa: B904  the same error
        for row, array, length in zip(result, arrays, lengths, strict=True):
            if length:
                row[:length] = array
        batch: Any = _convert_like(result, samples[0][name])
        values = [sample[name] for sample, length in zip(samples, lengths, strict=True) if length] or [samples[0][name]]
        # float32 held them all
        return batch.bfloat16() if is_tensor(batch) and all(map(is_bfloat16, values)) else batch

    def _round_up(self, name: str, length: int) -> int:
        """Return the length that a field of this length is padded to."""
        edges = self.edges.get(name) if isinstance(self.edges, Mapping) else self.edges
        if edges is None:
            return -(-length // self.multiple_of) * self.multiple_of
        place = bisect_left(edges, length)
        if place == len(edges):
            raise SampleError(
                f"{name!r} has length {length}, and the last of edges= is {edges[-1]}: add an edge, or cut or leave "
                "out such samples before batching",
                field=name,
            )
        return edges[place]

    def _make_mask(self, samples: Sequence[Sample]) -> object:
        import numpy as np  # noqa: PLC0415  loaded when arrays are padded

        first = next(iter(self.fills))
        lengths = [len(sample[first]) for sample in samples]
        places = np.arange(self._round_up(first, max(lengths)))
        mask = (places < np.array(lengths)[:, None]).astype(np.int64)
        return _convert_like(mask, samples[0][first])


def _check_whole(edges: Iterable[float]) -> list[int]:
    """Return the edges that arrays are padded to.

    Raises:
        UsageError: one is no whole number, or they are no edges.
    """
    found = check_edges(edges)
    whole = [edge for edge in found if isinstance(edge, int)]
    if len(whole) < len(found):
        raise UsageError(f"arrays are padded to a whole number of values, and edges= has {found!r}: give ints")
    return whole


def _join_array(name: str, before: "Kind | None", array: "Array", fill: float) -> "Kind":
    """Return the shape of one value, and the type, that hold one more array.

    Raises:
        SampleError: it cannot be padded, or does not fit.
    """
    kind = array.shape[1:], array.dtype
    if kind == before:
        return before
    check_fill(name, array, fill, "batching", "fills")
    # numbers in the byte order of another machine become this machine's, as in np.stack
    kind = kind[0], kind[1].newbyteorder("=")
    return kind if before in (None, kind) else join_kinds(name, before, kind, "batching")


def _locate(error: SampleError, sample: Sample) -> SampleError:
    """Return an error that says which sample of a batch it is about."""
    url = sample.get("__url__")
    return error.locate(key=sample.get("__key__"), url=None if url is None else str(url))


def _convert_like(array: "Array", value: object) -> object:
    """Return an array as a tensor, where ``value`` is one."""
    torch = loaded_module("torch")
    return torch.from_numpy(array) if torch is not None and isinstance(value, torch.Tensor) else array
