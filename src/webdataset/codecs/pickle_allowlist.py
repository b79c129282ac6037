"""The allow-list of the checked unpickler: exact (module, name) pairs, and how each is served.

The plain classes, which cannot do harm, are ``PLAIN`` of :mod:`~webdataset.codecs.safe_pickle`, and are asked first.

Each pair gives the class, a fresh wrapper that checks its arguments, or :class:`UnsafeContent`. Nothing is imported
that is not on the list; numpy, torch and Pillow only for their own names.
"""

import fractions
import functools
import importlib
import pathlib
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from webdataset.core.errors import UnsafeContent

ADDED: dict[tuple[str, str], object] = {}

_NUMBERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
_NUMPY_NAMES = f"{_NUMBERS} bool bool_ longlong ulonglong longdouble clongdouble"
_TORCH_NAMES = f"{_NUMBERS} bool bfloat16 complex32 float8_e4m3fn float8_e5m2"

TYPES: dict[tuple[str, str], type] = {
    **{
        (module, kind.__name__): kind
        for module in ("builtins", "__builtin__")
        for kind in (bytes, bytearray, str, range, slice)
    },
    ("__builtin__", "xrange"): range,
    ("__builtin__", "unicode"): str,
    ("__builtin__", "long"): int,
    ("collections", "Counter"): Counter,
    ("fractions", "Fraction"): fractions.Fraction,
    ("uuid", "UUID"): uuid.UUID,
    **{
        (module, kind.__name__): kind
        for module in ("pathlib", "pathlib._local")
        for kind in (pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
    },
}

LAZY_TYPES: dict[tuple[str, str], tuple[str, str]] = {
    ("numpy", "ndarray"): ("numpy", "ndarray"),
    **{("numpy", name): ("numpy", name) for name in _NUMPY_NAMES.split()},
    ("numpy.ma.core", "MaskedArray"): ("numpy.ma", "MaskedArray"),
    ("numpy.ma", "MaskedArray"): ("numpy.ma", "MaskedArray"),
    ("PIL.Image", "Image"): ("PIL.Image", "Image"),
    ("torch", "Size"): ("torch", "Size"),
    ("torch", "device"): ("torch", "device"),
    **{("torch", name): ("torch", name) for name in _TORCH_NAMES.split()},
}

_NUMPY, _TORCH = "webdataset.codecs.pickle_numpy", "webdataset.codecs.torch_codecs"
WRAPPED: dict[tuple[str, str], tuple[str, str]] = {
    ("_codecs", "encode"): ("webdataset.codecs.pickle_checks", "encode_latin1"),
    ("copyreg", "_reconstructor"): ("webdataset.codecs.pickle_checks", "reconstruct_object"),
    ("copy_reg", "_reconstructor"): ("webdataset.codecs.pickle_checks", "reconstruct_object"),
    ("numpy", "dtype"): (_NUMPY, "dtype"),
    **{
        (f"numpy.{core}.{module}", name): (_NUMPY, ours)
        for core in ("core", "_core")
        for module, name, ours in (
            ("multiarray", "_reconstruct", "empty_array"),
            ("multiarray", "scalar", "scalar"),
            ("numeric", "_frombuffer", "array_from_buffer"),
        )
    },
    ("numpy.ma.core", "_mareconstruct"): (_NUMPY, "empty_masked_array"),
    ("torch._utils", "_rebuild_tensor_v2"): (_TORCH, "tensor"),
    ("torch._utils", "_rebuild_parameter"): (_TORCH, "parameter"),
    ("torch.storage", "_load_from_bytes"): (_TORCH, "storage"),
}

# what no data needs: to allow these is to allow everything
_COMMANDS = frozenset(
    ("posix", "nt", "os", "posixpath", "ntpath", "subprocess", "sys", "shutil", "socket", "pty", "runpy", "importlib")
)
_RUNNING = frozenset(("eval", "exec", "compile", "open", "input", "breakpoint", "__import__", "getattr", "setattr"))


def allow_global(allowed: Any) -> tuple[str, str] | None:
    """Add a class or function to the list; return its module and name, or None where it had been added before."""
    name = (allowed.__module__, allowed.__qualname__)
    if name in ADDED:
        return None
    ADDED[name] = allowed
    return name


def find_global(module: str, name: str) -> object:
    """Return what a pickle may use under this module and name.

    Raises:
        UnsafeContent: it is not on the list.
    """
    pair = (module, name)
    if pair in ADDED:
        return ADDED[pair]
    if pair in TYPES:
        return TYPES[pair]
    if pair in WRAPPED:
        # a fresh object each time: whatever a pickle does to it, no other pickle sees
        return functools.partial(_import_function(*WRAPPED[pair]))
    if pair in LAZY_TYPES:
        return _import_function(*LAZY_TYPES[pair])
    raise unsafe_global_error(f"{module}.{name}")


def _import_function(module: str, name: str) -> Callable[..., object]:
    function: Callable[..., object] = getattr(importlib.import_module(module), name)
    return function


def unsafe_global_error(wanted: str, how: str = "") -> UnsafeContent:
    """Return the error for a class or function that is not on the list.

    Args:
        wanted: its module and name, joined by a dot; without a module it is a builtin.
        how: what goes before the reason.
    """
    module = (wanted if "." in wanted else f"builtins.{wanted}").split(".", 1)
    if module[0] in _COMMANDS or (module[0] in ("builtins", "__builtin__") and module[1] in _RUNNING):
        return unsafe_content_error(
            f"{how}needs {wanted}: decoding it would run a command of its maker's choice on this machine"
        )
    return unsafe_content_error(f"{how}needs {wanted}, which decoding may not use", wanted)


def describe_value(value: object) -> str:
    """Return a short description of a value, made without asking its parts, of which there may be too many."""
    if isinstance(value, (str, bytes)):
        return repr(value[:60])
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return f"a value of type {type(value).__name__}"


def unsafe_content_error(reason: str, wanted: str | None = None) -> UnsafeContent:
    """Return the error for content that is not safe, with the ways out.

    Args:
        reason: what the field does ("needs pkg.Cls").
        wanted: the name that ``add_safe_globals`` could allow, or None where it could not help.
    """
    ways = ["WebDataset(..., trust='full')", "WDS_TRUST=full"]
    if wanted is not None:
        ways.insert(0, f"wds.add_safe_globals([{wanted}])")
    return UnsafeContent(f"the field {reason}; if you trust this data: {' or '.join(ways)}")
