"""JSON fields and JSON lines: equal to the standard library's results, and faster where msgspec is installed.

msgspec answers only where it and ``json`` agree; all else (NaN, integers beyond 64 bits, byte order marks, lone
surrogates, bytes, times, sets) ``json`` reads, writes or refuses. Without msgspec, json's own scanner reads UTF-8 text
that begins with its value, and ``json.loads`` all else. Where Python has no global lock, threads that use one parser
wait for its reference count, so each decoder gets its own. ``.jsonl`` and ``.ndjson`` fields hold one JSON value a
line, and give the list of values; blank lines are skipped.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from webdataset.codecs.registry import BytesDecoder
from webdataset.core.errors import DecodingError, EncodingError, describe_error
from webdataset.core.optional_imports import import_if_available, loaded_module

_library = import_if_available("msgspec")
_encode: Callable[[object], bytes] | None
_not_for_msgspec: tuple[type[Exception], ...]
if _library is None:
    _encode, _not_for_msgspec = None, ()
else:
    _encode = _library.json.Encoder().encode
    _not_for_msgspec = (_library.MsgspecError, UnicodeError, RecursionError, OverflowError)

_LEAVES = frozenset({str, int, float, bool, type(None)})
_NAMES = frozenset({str})
_DEEPEST = 64
_BLANKS = " \t\n\r"


def make_json_loads() -> BytesDecoder:
    """Return a ``json_loads`` with a parser of its own."""
    return _make_scanning_loads() if _library is None else _make_msgspec_loads(_library.json.Decoder().decode)


def _make_msgspec_loads(decode: Callable[[bytes], object]) -> BytesDecoder:
    refusals = _not_for_msgspec

    def loads(data: bytes, /) -> object:
        try:
            return decode(data)
        except refusals:
            return json.loads(data)

    return loads


def _make_scanning_loads() -> BytesDecoder:
    scan: Callable[[str, int], tuple[object, int]] = vars(json.JSONDecoder())["scan_once"]

    def loads(data: bytes, /) -> object:
        if type(data) is not bytes:
            return json.loads(data)
        try:
            text = data.decode()
            value, end = scan(text, 0)
        except (ValueError, StopIteration):
            # blanks or a byte order mark before the value, another encoding, or an error, which json.loads explains
            pass
        else:
            if end == len(text) or not text[end:].strip(_BLANKS):
                return value
        return json.loads(data)

    return loads


_loads = make_json_loads()


def json_loads(data: bytes) -> Any:
    """Parse JSON (UTF-8, UTF-16, UTF-32) exactly as ``json.loads`` does: integers of any size, NaN and infinities too.

    Raises:
        json.JSONDecodeError: not JSON.
    """
    return _loads(data)


def json_dumps(value: object) -> bytes:
    """Write JSON as UTF-8 text.

    Args:
        value: anything ``json.dumps`` writes, numpy and torch numbers, or a str: one that is JSON already is written
            as it is, any other as a JSON string.

    Raises:
        EncodingError: two keys of a dictionary that have one name in JSON, such as 1 and "1".
        TypeError: a value that JSON does not have.
    """
    if isinstance(value, str) and _is_json(value):
        return value.encode("utf-8")
    return json_value_dumps(value)


def json_value_dumps(value: object) -> bytes:
    """Write one value (numpy and torch numbers, too) as JSON on one line, a str always as a JSON string.

    Raises:
        TypeError: a value that JSON does not have.
    """
    if _encode is not None and _is_plain(value, 0):
        try:
            written = _encode(value)
        except _not_for_msgspec:
            written = b"null"
        # msgspec writes NaN as null
        if b"null" not in written:
            return written
    text = json.dumps(value, separators=(",", ":"), default=_number).encode("ascii")
    _refuse_same_names(value)
    return text


def _refuse_same_names(value: object) -> None:
    """Refuse dictionaries with two keys that JSON, all of whose names are text, has one name for: one would be lost.

    Args:
        value: what ``json`` has written.

    Raises:
        EncodingError: such as 1 and "1".
    """
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            names: dict[str, object] = json.loads(json.dumps(dict.fromkeys(value)))
            if len(names) < len(value):
                raise EncodingError(f"two keys of a dictionary have one name in JSON: {list(value)!r:.200}")
        for member in value.values():
            _refuse_same_names(member)
    elif isinstance(value, list | tuple):
        for member in value:
            _refuse_same_names(member)


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


def _number(value: object) -> object:
    """Turn a numpy or torch number into Python's."""
    numpy, torch = loaded_module("numpy"), loaded_module("torch")
    if numpy is not None and isinstance(value, (numpy.number, numpy.bool_)):
        plain = value.item()
        # a long double stays what it is, and json would ask again without end
        if type(plain) is not type(value):
            return plain
    if torch is not None and isinstance(value, torch.Tensor) and value.ndim == 0:
        return value.item()
    if getattr(value, "shape", ()) != ():
        raise EncodingError(f"JSON has no arrays of type {type(value).__name__}; write value.tolist(), or a .npy field")
    raise TypeError(f"JSON has no values of type {type(value).__name__}")


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def json_lines_loads(data: bytes) -> list[Any]:
    """Return the values of the lines of JSON, ended by LF or CR LF, that are not blank.

    Raises:
        DecodingError: a line that is no JSON; its number, from 1, is named.
    """
    values = []
    for number, line in enumerate(data.removeprefix(_BYTE_ORDER_MARK).split(b"\n"), 1):
        if not line or line.isspace():
            continue
        try:
            values.append(json_loads(line))
        except (ValueError, RecursionError) as error:
            raise DecodingError(f"line {number} is not JSON: {describe_error(error)}") from error
    return values


def json_lines_dumps(values: Iterable[object]) -> bytes:
    """Write each value as JSON on a line of its own; a str among them is written as a JSON string.

    Raises:
        EncodingError: not a list or other iterable of values.
        TypeError: a value that JSON does not have.
    """
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise EncodingError(f"lines of JSON are a list of values, not a {type(values).__name__}")
    return b"".join([json_value_dumps(value) + b"\n" for value in values])
