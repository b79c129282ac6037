"""Lines of JSON: ``.jsonl`` and ``.ndjson`` fields.

Flows in: one JSON value a line. Flows out: the list of values; and back. Blank lines are stepped over. Each line is
read as ``json`` reads it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from webdataset.ground.errors import DecodingError, EncodingError, said

from .json_fields import json_loads, json_value_dumps

_MARK = b"\xef\xbb\xbf"


def json_lines_loads(data: bytes) -> list[Any]:
    """Parse lines of JSON.

    Args:
        data: UTF-8 text, its lines ended by LF or CR LF; the last one need not be ended.

    Returns:
        The values of the lines that are not blank.

    Raises:
        DecodingError: a line that is no JSON; its number, from 1, is named.
    """
    values = []
    for number, line in enumerate(data.removeprefix(_MARK).split(b"\n"), 1):
        if not line or line.isspace():
            continue
        try:
            values.append(json_loads(line))
        except (ValueError, RecursionError) as error:
            raise DecodingError(f"line {number} is not JSON: {said(error)}") from error
    return values


def json_lines_dumps(values: Iterable[Any]) -> bytes:
    """Write lines of JSON.

    Args:
        values: what ``json_dumps`` takes; a str among them is written as a JSON string.

    Returns:
        UTF-8 text, each value on a line of its own.

    Raises:
        EncodingError: not a list or other iterable of values.
        TypeError: a value that JSON does not have.
    """
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise EncodingError(f"lines of JSON are a list of values, not a {type(values).__name__}")
    return b"".join([json_value_dumps(value) + b"\n" for value in values])
