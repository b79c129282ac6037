"""numpy arrays in pickles: the functions that a pickle may call, and the states it may set, checked.

Theory. numpy believes what a pickled dtype says about itself. One that denies holding objects, or whose fields lie
outside of it, makes numpy read raw bytes as pointers. So a dtype's pickled state is never believed: the same dtype is
rebuilt from its parts, and the state must say what the new one says.
"""

import math
import re
from typing import Any, TypeGuard

import numpy as np

from webdataset.codecs.pickle_allowlist import describe_value, unsafe_content_error
from webdataset.core.optional_imports import import_if_available, require

_core = import_if_available("numpy._core.multiarray") or require(
    "numpy.core.multiarray", extra="all", purpose="unpickling"
)
# NPY_ALIGNED_STRUCT: says how a structure was laid out, nothing that is relied upon
_ALIGNED = 0x80
# holds objects, pickles as a list, is a pointer, needs initialisation, needs Python
_CRITICAL = 0x7F
_SPECIFICATION = re.compile(r"[<>|=]?[?biufcmMOSUVBhHIlLqQedgFDG]\d{0,10}", re.ASCII)


def dtype(specification: object, align: object = False, copy: object = True) -> np.dtype[np.generic]:  # noqa: ARG001, FBT002  numpy's signature
    """Stand in for ``numpy.dtype``: simple specifications only, always a copy of its own.

    Args:
        specification: "f8", "U5", "V16", "O8", ….
        align: ignored; structures are laid out by their state.
        copy: ignored.

    Raises:
        UnsafeContent: anything but such a text.
    """
    if type(specification) is not str or _SPECIFICATION.fullmatch(specification) is None:
        raise unsafe_content_error(f"makes a dtype of {describe_value(specification)}")
    return np.dtype(specification, False, True)


def empty_array(kind: object, shape: object, code: object) -> np.ndarray:
    """Stand in for ``_reconstruct``: the empty array whose state comes next.

    Args:
        kind: ``numpy.ndarray``.
        shape: (0,).
        code: "b".

    Raises:
        UnsafeContent: any other arguments.
    """
    if kind is not np.ndarray or shape != (0,) or code not in ("b", b"b"):
        raise unsafe_content_error(f"reconstructs an array from {describe_value(kind)}")
    return np.ndarray((0,), np.int8)


def empty_masked_array(kind: object, base: object, shape: object, code: object) -> np.ndarray:
    """Stand in for ``_mareconstruct``: the empty masked array whose state comes next.

    Args:
        kind: ``numpy.ma.MaskedArray``.
        base: ``numpy.ndarray``.
        shape: (0,).
        code: "b".

    Raises:
        UnsafeContent: any other arguments.
    """
    if kind is not np.ma.MaskedArray:
        raise unsafe_content_error(f"reconstructs a masked array from {describe_value(kind)}")
    empty = empty_array(base, shape, code)
    return np.ma.MaskedArray.__new__(np.ma.MaskedArray, empty, mask=np.ndarray((0,), np.bool_), dtype=np.int8)


def scalar(kind: object, content: object = b"") -> object:
    """Stand in for ``scalar``: one numpy number, text or time.

    Raises:
        UnsafeContent: not a dtype, or one that holds objects.
    """
    if not isinstance(kind, np.dtype) or kind.hasobject or type(content) is not bytes:
        raise unsafe_content_error(f"makes a scalar of {describe_value(kind)}")
    return _core.scalar(kind, content)


def array_from_buffer(buffer: bytes, kind: object, shape: Any, order: Any, axis_order: Any = None) -> np.ndarray:
    """Stand in for ``_frombuffer``: an array over bytes of the pickle itself.

    Args:
        buffer: the bytes.
        kind: a dtype, checked when it was made.
        shape: its shape.
        order: "C", "F" or "K".
        axis_order: for order "K": the axes in the order of the bytes.

    Raises:
        UnsafeContent: a dtype that holds objects, or not a dtype.
    """
    if not isinstance(kind, np.dtype) or kind.hasobject:
        raise unsafe_content_error(f"makes an array of {describe_value(kind)} over bytes")
    flat = np.frombuffer(buffer, kind)
    if order == "K" and axis_order is not None:
        return flat.reshape(shape, order="C").transpose(axis_order)
    return flat.reshape(shape, order=order)


def check_numpy_state(target: object, state: object) -> None:
    """Check the state that a pickle gives to a dtype or an array.

    Raises:
        UnsafeContent: the state is forged.
    """
    if isinstance(target, np.dtype):
        _check_dtype(target, state)
        return
    if not isinstance(state, tuple) or len(state) not in (5, 7):
        raise unsafe_content_error("gives an array a state that is none")
    _, shape, kind, _, content = state[:5]
    if not isinstance(kind, np.dtype) or not _is_shape(shape):
        raise unsafe_content_error("gives an array a shape or dtype that is none")
    if isinstance(content, list) and len(content) != math.prod(shape):
        raise unsafe_content_error(f"gives an array of shape {shape} a list of {len(content)} objects")


def _is_shape(shape: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(shape, tuple) and all(type(length) is int and length >= 0 for length in shape)


def _check_dtype(target: np.dtype[np.generic], state: object) -> None:
    if not isinstance(state, tuple) or len(state) not in (8, 9) or state[0] not in (3, 4):
        raise unsafe_content_error("gives a dtype a state that is none")
    base, names, fields, size, alignment, flags = state[2:8]
    reference = _rebuild_dtype(target, base, names, fields, size, aligned=bool(flags & _ALIGNED))
    if reference is None or reference.itemsize != target.itemsize or size not in (-1, reference.itemsize):
        raise unsafe_content_error(f"forges the parts of the dtype {target!r:.80}")
    known = reference.flags | _ALIGNED
    if (
        reference.flags & _CRITICAL != flags & _CRITICAL
        or flags & ~known
        or alignment not in (-1, 1, reference.alignment)
    ):
        raise unsafe_content_error(f"forges the flags of the dtype {target!r:.80}")


def _rebuild_dtype(
    target: np.dtype[np.generic], base: Any, names: object, fields: object, size: Any, *, aligned: bool
) -> np.dtype[np.generic] | None:
    """Return the dtype that the parts describe, made by numpy itself, or None where they describe none."""
    if base is None and names is None and fields is None:
        return target
    if target.kind != "V":
        return None
    if base is not None:
        whole = names is None and fields is None and isinstance(base[0], np.dtype) and _is_shape(base[1])
        return np.dtype((base[0], base[1])) if whole else None
    if not isinstance(fields, dict) or not isinstance(names, tuple) or set(fields) != set(names):
        return None
    parts = [fields[name] for name in names]
    if not all(len(part) == 2 and isinstance(part[0], np.dtype) and type(part[1]) is int for part in parts):
        return None
    formats, offsets = [part[0] for part in parts], [part[1] for part in parts]
    # numpy refuses fields that lie outside of the structure, and objects that overlap or are not aligned
    return np.dtype({"names": list(names), "formats": formats, "offsets": offsets, "itemsize": size}, align=aligned)
