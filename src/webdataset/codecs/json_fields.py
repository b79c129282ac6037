"""JSON fields, exactly as the standard library reads them, and faster where msgspec is installed.

Flows in: JSON text as bytes. Flows out: values; and back. msgspec answers only where it and ``json`` agree: what it
refuses (integers beyond 64 bits in some forms, NaN, byte order marks, lone surrogates) ``json`` reads or refuses, and
values that it would write in a way of its own (bytes, times, sets, NaN) ``json`` writes or refuses.
"""

import json
from collections.abc import Callable
from typing import Any

from webdataset.ground.errors import EncodingError
from webdataset.ground.extras import available, loaded

_library = available("msgspec")
_decode: Callable[[bytes], Any]
_encode: Callable[[Any], bytes] | None
_not_for_msgspec: tuple[type[Exception], ...]
if _library is None:
    _decode, _encode, _not_for_msgspec = json.loads, None, ()
else:
    _decode, _encode = _library.json.Decoder().decode, _library.json.Encoder().encode
    _not_for_msgspec = (_library.MsgspecError, UnicodeError, RecursionError, OverflowError)

_LEAVES = frozenset({str, int, float, bool, type(None)})
_NAMES = frozenset({str})
_DEEPEST = 64


def json_loads(data: bytes) -> Any:
    """Parse JSON exactly as ``json.loads`` does.

    Args:
        data: JSON text in UTF-8, UTF-16 or UTF-32.

    Returns:
        What ``json.loads`` returns: integers of any size, NaN and infinities included.

    Raises:
        json.JSONDecodeError: not JSON.
    """
    try:
        return _decode(data)
    except _not_for_msgspec:
        return json.loads(data)


def json_dumps(value: Any) -> bytes:
    """Write JSON.

    Args:
        value: anything ``json.dumps`` writes, numpy and torch numbers, or a str: one that is JSON already is written
            as it is, any other as a JSON string.

    Returns:
        UTF-8 text.

    Raises:
        TypeError: a value that JSON does not have.
    """
    if isinstance(value, str) and _is_json(value):
        return value.encode("utf-8")
    return json_value_dumps(value)


def json_value_dumps(value: Any) -> bytes:
    """Write one value as JSON on one line, a str always as a JSON string.

    Args:
        value: anything ``json.dumps`` writes, numpy and torch numbers.

    Returns:
        UTF-8 text.

    Raises:
        TypeError: a value that JSON does not have.
    """
    if _encode is not None and _is_plain(value, 0):
        try:
            written = _encode(value)
        except _not_for_msgspec:
            written = b"null"
        if b"null" not in written:  # msgspec writes NaN as null
            return written
    return json.dumps(value, separators=(",", ":"), default=_number).encode("ascii")


def _is_json(text: str) -> bool:
    try:
        json_loads(text.encode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True


def _is_plain(value: Any, depth: int) -> bool:
    """Tell whether a value is of JSON's own types all through, so that msgspec writes it as ``json`` does."""
    kind = type(value)
    if kind is dict:
        if not _NAMES.issuperset(map(type, value)):
            return False
        members = value.values()
    elif kind is list or kind is tuple:
        members = value
    else:
        return kind in _LEAVES
    if _LEAVES.issuperset(map(type, members)):
        return True
    return depth < _DEEPEST and all(_is_plain(member, depth + 1) for member in members)


def _number(value: Any) -> Any:
    """Turn a numpy or torch number into Python's."""
    numpy, torch = loaded("numpy"), loaded("torch")
    if numpy is not None and isinstance(value, (numpy.number, numpy.bool_)):
        return value.item()
    if torch is not None and isinstance(value, torch.Tensor) and value.ndim == 0:
        return value.item()
    if getattr(value, "shape", ()) != ():
        raise EncodingError(f"JSON has no arrays of type {type(value).__name__}; write value.tolist(), or a .npy field")
    raise TypeError(f"JSON has no values of type {type(value).__name__}")
