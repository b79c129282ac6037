"""JSON values and addresses: the types of everything that a state holds, and checked access to their parts.

The functions ``as_...`` never convert: what has another type than it must have raises ``TypeError``, which the
restore of a run reports as a state that cannot be read.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
"""What JSON can hold; tuples count as lists."""

Address: TypeAlias = JsonValue
"""Names one item of a stage's output: an ordinal, a list of numbers and addresses, or None before the first item.

Only the stage that made an address knows its shape; see ``docs/design/stages.md``.
"""


SplitJson: TypeAlias = list[JsonValue]
"""A snapshot in two parts: what changes with nearly every item, and what is mostly the same."""


_COUNTS = 1 << 63
_DIGITS = 20


def normalize_json(value: JsonValue) -> JsonValue:
    """Return a JSON value with lists for tuples, and with the keys of dictionaries sorted."""
    if isinstance(value, list | tuple):
        return [normalize_json(part) for part in value]
    return {name: normalize_json(value[name]) for name in sorted(value)} if isinstance(value, dict) else value


def join_snapshot(parts: SplitJson) -> JsonValue:
    """Return the snapshot that ``StageState.split_snapshot`` returned in two parts.

    Raises:
        TypeError: they are not two lists, or two objects.
    """
    changing, lasting = parts
    if lasting is None:
        return changing
    if isinstance(lasting, Mapping):
        return {**as_object(changing), **lasting}
    return [*as_list(changing), *as_list(lasting)]


def as_object(value: JsonValue) -> Mapping[str, JsonValue]:
    """Return a JSON object.

    Raises:
        TypeError: the value is something else.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{type(value).__name__} in the place of an object")
    return value


def as_list(value: JsonValue) -> Sequence[JsonValue]:
    """Return a JSON list; tuples count.

    Raises:
        TypeError: the value is something else.
    """
    if not isinstance(value, list | tuple):
        raise TypeError(f"{type(value).__name__} in the place of a list")
    return value


def as_int(value: JsonValue) -> int:
    """Return a whole number.

    Raises:
        TypeError: the value is something else.
    """
    if not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} in the place of a whole number")
    return value


def is_count(value: object) -> bool:
    """Tell whether a value is a whole number from 0 that a file may have as an offset."""
    return type(value) is int and 0 <= value < _COUNTS


def as_count(value: JsonValue) -> int:
    """Return a whole number from 0.

    Raises:
        TypeError: the value is something else.
    """
    if type(value) is not int or not is_count(value):
        raise TypeError(f"{str(value)[:80]} in the place of a number of things")
    return value


def as_object_of_numbers(value: JsonValue) -> dict[int, JsonValue]:
    """Return a JSON object whose names are whole numbers from 0, by these.

    Raises:
        TypeError: the value is something else.
    """
    parts = as_object(value)
    if not all(name.isdecimal() and len(name) < _DIGITS for name in parts):
        raise TypeError(f"names that are no numbers: {', '.join(parts)[:80]}")
    return {int(name): part for name, part in parts.items()}


def as_text(value: JsonValue) -> str:
    """Return a text.

    Raises:
        TypeError: the value is something else.
    """
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in the place of a text")
    return value


def as_pair(value: JsonValue) -> tuple[JsonValue, JsonValue]:
    """Return the two parts of a list of two, such as an address and an index.

    Raises:
        TypeError: the value is something else.
    """
    parts = as_list(value)
    if len(parts) != 2:
        raise TypeError(f"a list of {len(parts)} in the place of a pair")
    return parts[0], parts[1]
