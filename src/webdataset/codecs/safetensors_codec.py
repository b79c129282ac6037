"""``.safetensors`` fields: named arrays, without pickles.

The bytes of one file become a dict of numpy arrays, or of tensors where ``torch_safetensors`` is named; and back.
"""

from collections.abc import Mapping

import numpy as np

from webdataset.codecs.numpy_arrays import as_plain_array
from webdataset.core.errors import DecodingError, EncodingError
from webdataset.core.optional_imports import loaded_module, require

_LIBRARY = {"extra": "safetensors", "purpose": "safetensors fields"}
# What the format calls the types that numpy has; others (BF16, F8…) only torch has.
_NAMES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "C64": "<c8", "BOOL": "?"}
_NAMES |= {f"{letter.upper()}{8 * size}": f"<{letter}{size}" for letter in "iu" for size in (1, 2, 4, 8)}
NUMPY_TYPES: dict[str, np.dtype[np.generic]] = {name: np.dtype(kind) for name, kind in _NAMES.items()}


def safetensors_loads(data: bytes) -> dict[str, np.ndarray]:
    """Decode to names, in alphabetical order, and writable numpy arrays.

    Raises:
        MissingExtra: safetensors is not installed.
        DecodingError: a type that numpy does not have.
        ValueError: not such a file, or damaged.
    """
    deserialize = require("safetensors", **_LIBRARY).deserialize
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in sorted(deserialize(data)):
        kind = tensor["dtype"]
        if kind not in NUMPY_TYPES:
            raise DecodingError(
                f"tensor {name!r} is of type {kind}, which numpy does not have: decode with wds.torch_safetensors"
            )
        arrays[name] = np.ndarray(tensor["shape"], NUMPY_TYPES[kind], bytearray(tensor["data"]))
    return arrays


def safetensors_dumps(values: Mapping[str, object]) -> bytes:
    """Encode names to arrays of numbers, or to torch tensors.

    Raises:
        MissingExtra: safetensors is not installed.
        EncodingError: not such a dict, or a type that the format does not have.
    """
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise EncodingError(f"safetensors takes a dict of names to arrays, not {type(values).__name__}")
    if "__metadata__" in values:
        raise EncodingError("safetensors keeps the name '__metadata__' for itself: give the array another")
    torch = loaded_module("torch")
    if torch is not None and any(isinstance(value, torch.Tensor) for value in values.values()):
        from webdataset.codecs.torch_codecs import tensors_dumps  # noqa: PLC0415  torch is loaded already, this module not

        return tensors_dumps(values)
    save = require("safetensors.numpy", **_LIBRARY).save
    written: bytes = save({name: _array(name, value) for name, value in values.items()})
    return written


def _array(name: str, value: object) -> np.ndarray:
    # a copy: the library takes the memory as it lies
    array = np.array(as_plain_array(value), order="C")
    kind = array.dtype.newbyteorder("<")
    if kind not in NUMPY_TYPES.values():
        raise EncodingError(f"array {name!r} is of type {array.dtype}, which safetensors does not have")
    return array.astype(kind, copy=False)
