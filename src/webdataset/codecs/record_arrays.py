"""Arrays in msgpack and CBOR, by safe and published means: nothing here can name a class or a function.

* CBOR: the typed arrays of RFC 8746: tags 64 to 87 for one dimension, tag 40 around them for others (row-major; 1040,
  column-major, is read too), tag 41 for arrays of booleans.
* msgpack: extension type 78 ("N"), whose payload is the array in the format of ``.npy`` files.

Flows in: arrays, numpy and torch numbers. Flows out: tags and extensions; and back, as writable arrays in this
machine's byte order.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from webdataset.ground.errors import DecodingError, EncodingError
from webdataset.ground.extras import loaded

from .arrays import npy_dumps, npy_loads

NPY_EXTENSION = 78
_KINDS = {
    f"{order}{kind}{1 << length}": tag
    for kind, first, smallest in (("u", 64, 0), ("i", 72, 0), ("f", 80, -1))
    for order, step in ((">", 0), ("<", 4))
    for length, tag in ((n, first + step + n + smallest) for n in range(4))
    if (kind != "f" and (length or order == ">")) or (kind == "f" and length)
}
_TAGS = {tag: np.dtype(kind) for kind, tag in _KINDS.items()} | {68: np.dtype("u1")}
_ROWS, _COLUMNS, _HOMOGENEOUS = 40, 1040, 41


def as_array(value: Any) -> Any:
    """Return a numpy array or number for a numpy or torch one, or None for anything else.

    Args:
        value: any value.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return value
    torch = loaded("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    from .torch_images import as_array as of_tensor  # noqa: PLC0415  torch is loaded already, this module not

    return of_tensor(value)


def msgpack_extension(value: Any, extension: Callable[[int, bytes], Any]) -> Any:
    """Return what msgpack writes for an array or number.

    Args:
        value: a value that msgpack does not have.
        extension: makes an extension of its code and payload.

    Raises:
        EncodingError: no array of numbers, text or times.
    """
    array = as_array(value)
    if array is None:
        raise EncodingError(f"msgpack has no values of type {type(value).__name__}")
    if isinstance(array, np.generic):
        return _plain(array, "msgpack")
    return extension(NPY_EXTENSION, npy_dumps(array))


def msgpack_array(code: int, payload: Any, extension: Callable[[int, bytes], Any]) -> Any:
    """Return the value of an extension: an array where it is one of ours, else the extension itself.

    Args:
        code: its code.
        payload: its bytes.
        extension: makes an extension of code and payload.

    Raises:
        ValueError: no whole ``.npy``, or one of pickled objects.
    """
    return npy_loads(bytes(payload)) if code == NPY_EXTENSION else extension(code, payload)


def cbor_tags(value: Any, tag: Callable[[int, Any], Any]) -> Any:
    """Return what CBOR writes for an array or number.

    Args:
        value: a value that CBOR does not have.
        tag: makes a tagged value of number and content.

    Raises:
        EncodingError: no array of booleans, integers or floats.
    """
    array = as_array(value)
    if array is None:
        raise EncodingError(f"CBOR has no values of type {type(value).__name__}")
    if isinstance(array, np.generic):
        return _plain(array, "CBOR")
    if array.dtype == np.bool_:
        flat = tag(_HOMOGENEOUS, array.reshape(-1).tolist())
    else:
        kind = array.dtype.newbyteorder("<" if array.dtype.itemsize > 1 else ">")
        number = _KINDS.get(f"{'<' if kind.itemsize > 1 else '>'}{kind.kind}{kind.itemsize}")
        if number is None or array.dtype.names is not None:
            raise EncodingError(f"CBOR has arrays of booleans, integers and floats, not of {array.dtype}")
        flat = tag(number, array.astype(kind, copy=False).tobytes())
    return flat if array.ndim == 1 else tag(_ROWS, [list(array.shape), flat])


def _plain(number: Any, format_name: str) -> Any:
    plain = number.item()
    if type(plain) not in (bool, int, float, str, bytes):
        raise EncodingError(f"{format_name} has no numbers of type {number.dtype}")
    return plain


def cbor_arrays() -> dict[int, Callable[[Any, bool], Any]]:
    """Return the decoders of the tags of RFC 8746, by tag."""
    return {
        **{tag: _typed(kind) for tag, kind in _TAGS.items()},
        _ROWS: lambda value, _: _shaped(value, "C"),
        _COLUMNS: lambda value, _: _shaped(value, "F"),
        _HOMOGENEOUS: lambda value, _: _from_list(value),
    }


def _typed(kind: Any) -> Callable[[Any, bool], Any]:
    native = kind.newbyteorder("=")

    def decoded(content: Any, immutable: bool) -> Any:  # noqa: ARG001, FBT001  cbor2's signature
        if type(content) is not bytes or len(content) % kind.itemsize:
            raise DecodingError(f"a typed array of {kind} is {len(content)} bytes long, or not made of bytes")
        return np.frombuffer(content, kind).astype(native)

    return decoded


def _shaped(value: Any, order: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise DecodingError("an array with dimensions is made of two parts")
    shape, flat = value
    array = flat if isinstance(flat, np.ndarray) else _from_list(flat)
    sizes = shape.tolist() if isinstance(shape, np.ndarray) else list(shape)
    if not all(type(size) is int and size >= 0 for size in sizes) or math.prod(sizes) != array.size:
        raise DecodingError(f"{array.size} numbers do not make an array of the shape {sizes!r:.80}")
    return array.reshape(sizes, order=order)


def _from_list(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return values
    kinds = set(map(type, values)) if isinstance(values, (list, tuple)) else {object}
    if kinds == {bool}:
        return np.array(values, np.bool_)
    if not kinds <= {int, float}:
        raise DecodingError("a homogeneous array holds numbers or booleans")
    array = np.array(values)
    if array.dtype.hasobject:
        raise DecodingError("a homogeneous array holds a number beyond 64 bits")
    return array
