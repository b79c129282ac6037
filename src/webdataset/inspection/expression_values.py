"""Values, operators and functions of expressions, each of which takes steps from a budget.

A :class:`Scope` is one sample with its budget. Numbers have at most 256 bits, texts at most a megabyte; what goes
through a text or a container takes steps by its size, containers in containers counted.
"""

import ast
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from webdataset.inspection.field_preview import JSON_FIELDS, TEXT_FIELDS
from webdataset.inspection.image_header import read_image_size, read_image_size_in
from webdataset.inspection.media_header import read_media_duration

MOST_STEPS: Final = 200_000
MOST_BITS: Final = 256
_MOST_LENGTH = 1 << 20
_MOST_DIGITS = 30
_STRIDE = 32
_NUMBERS = frozenset(("cls", "cls2", "index", "inx", "id"))


def _read_duration(payload: bytes) -> float | None:
    return read_media_duration(lambda start, stop: bytes(payload[start:stop]), len(payload))


def _read_image_size(payload: bytes | memoryview) -> tuple[int, int] | None:
    if isinstance(payload, bytes):
        return read_image_size(payload)
    return read_image_size_in(lambda start, stop: bytes(payload[start:stop]), len(payload))


class FieldSource(Mapping[str, bytes]):
    """The fields of a sample that are read when an expression looks at them, and no farther than it has to."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a field; None where there is none.

        Args:
            name: of the field.
        """
        payload = self.get(name)
        return None if payload is None else len(payload)

    def image_size(self, name: str) -> tuple[int, int] | None:
        """Return width and height of an image in pixels; None where there is none.

        Args:
            name: of the field.
        """
        payload = self.get(name)
        return None if payload is None else read_image_size(payload)

    def duration(self, name: str) -> float | None:
        """Return how long a sound or video is in seconds; None where its header does not tell.

        Args:
            name: of the field.
        """
        payload = self.get(name)
        return None if payload is None else _read_duration(payload)


class FieldValue:
    """A field that is neither text nor JSON.

    Args:
        scope: the sample.
        name: of the field.
    """

    __slots__ = ("_name", "_scope")

    def __init__(self, scope: "Scope", name: str) -> None:
        self._scope = scope
        self._name = name

    def attribute(self, name: str) -> float | None:
        """Return ``size`` (bytes), ``width`` or ``height`` (pixels; None of what is no image), ``duration`` (seconds).

        Args:
            name: one of these.

        Raises:
            TypeError: another name.
        """
        if name == "size":
            return self._scope.size(self._name)
        if name == "duration":
            return self._scope.duration(self._name)
        if name not in ("width", "height"):
            raise TypeError(f"a field of bytes has size, width, height and duration, no {name!r}")
        return self._scope.image_side(self._name, name)

    def __eq__(self, other: object) -> bool:
        """Tell whether another field has the same bytes."""
        if not isinstance(other, FieldValue):
            return NotImplemented
        return self._scope.payload(self._name) == other._scope.payload(other._name)

    def __hash__(self) -> int:
        return hash(self._scope.payload(self._name))


class Scope:
    """One sample, and what is left of the budget.

    Args:
        payloads: the bytes of each field; of a :class:`FieldSource` no more is read than is needed.
        key: the sample's key.
        shard: the url of its shard.
    """

    __slots__ = ("_values", "key", "payloads", "shard", "steps", "variables")

    def __init__(self, payloads: Mapping[str, bytes], key: str, shard: str) -> None:
        self.payloads = payloads
        self.key = key
        self.shard = shard
        self.steps = MOST_STEPS
        self.variables: dict[str, Any] = {}
        self._values: dict[str, Any] = {}

    def spend(self, count: int = 1) -> None:
        """Take steps from the budget.

        Raises:
            OverflowError: there are none left.
        """
        self.steps -= count
        if self.steps < 0:
            raise OverflowError(f"it takes more than {MOST_STEPS} steps")

    def weigh(self, value: Any) -> Any:
        """Take steps for a value by its size, down to the last part of its parts; return it."""
        if isinstance(value, str):
            self.spend(len(value) // _STRIDE)
        elif isinstance(value, list | dict):
            waiting: list[Any] = [value]
            while waiting:
                each = waiting.pop()
                if isinstance(each, str):
                    self.spend(len(each) // _STRIDE)
                elif isinstance(each, list | dict):
                    self.spend(1 + len(each) // 8)
                    waiting.extend(each.values() if isinstance(each, dict) else each)
        return value

    def field(self, name: Any) -> Any:
        """Return the value of a field, or None where the sample has none of this name."""
        if not self.has(name):
            return None
        if name not in self._values:
            self._values[name] = _parse_field(self, name)
        return self._values[name]

    def has(self, name: Any) -> bool:
        """Tell whether there is a field of this name.

        Raises:
            TypeError: the name is no text.
        """
        if not isinstance(name, str):
            raise TypeError("the name of a field is a text, such as 'jpg'")
        return name in self.payloads

    def list_fields(self) -> list[str]:
        """Return the names of the fields; takes steps by their number."""
        self.spend(len(self.payloads) // 8)
        return list(self.payloads)

    def size(self, name: str) -> int | None:
        """Return the bytes of a field, or None."""
        if not self.has(name):
            return None
        payloads = self.payloads
        return payloads.size(name) if isinstance(payloads, FieldSource) else len(payloads[name])

    def image_side(self, name: str, side: str) -> int | None:
        """Return the width or height of an image, or None."""
        if not self.has(name):
            return None
        payloads = self.payloads
        found = payloads.image_size(name) if isinstance(payloads, FieldSource) else _read_image_size(payloads[name])
        return None if found is None else found[side == "height"]

    def duration(self, name: str) -> float | None:
        """Return how long a sound or video is in seconds, or None."""
        if not self.has(name):
            return None
        payloads = self.payloads
        return payloads.duration(name) if isinstance(payloads, FieldSource) else _read_duration(payloads[name])

    def payload(self, name: Any) -> bytes | None:
        """Return the bytes of a field, or None.

        Raises:
            TypeError: the name is no text.
        """
        return bytes(self.payloads[name]) if self.has(name) else None


def _parse_field(scope: Scope, name: str) -> Any:
    ending = name.rpartition(".")[2]
    if ending not in JSON_FIELDS and ending not in TEXT_FIELDS:
        return FieldValue(scope, name)
    # of a mapped shard it is a memoryview
    payload = bytes(scope.payloads[name])
    if ending in JSON_FIELDS:
        try:
            return json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise TypeError(f"the field {name!r} is no JSON: {error}") from None
    text = payload.decode("utf-8", "replace")
    if ending in _NUMBERS and len(text) < 80:
        try:
            return int(text)
        except ValueError:
            return text
    return text


def check_number(value: Any) -> Any:
    """Return a value, unless it is a number too large.

    Args:
        value: a result.

    Raises:
        OverflowError: it is.
    """
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise OverflowError(f"a number of more than {MOST_BITS} bits")
    return value


def _require_numbers(left: Any, right: Any, sign: str) -> None:
    for value in (left, right):
        if not isinstance(value, int | float):
            raise TypeError(f"{sign!r} takes numbers, not {_name_kind(value)}")


def _name_kind(value: Any) -> str:
    kinds = {"NoneType": "None (a missing value)", "dict": "an object", "list": "a list", "str": "a text"}
    return kinds.get(type(value).__name__, type(value).__name__)


def _add(scope: Scope, left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        if len(left) + len(right) > _MOST_LENGTH:
            raise OverflowError(f"a text of more than {_MOST_LENGTH} characters")
        scope.spend((len(left) + len(right)) // _STRIDE)
        return left + right
    _require_numbers(left, right, "+")
    return left + right


def _arithmetic(function: Callable[[Any, Any], Any], sign: str) -> Callable[[Scope, Any, Any], Any]:
    def apply(scope: Scope, left: Any, right: Any) -> Any:  # noqa: ARG001  the signature of _add
        _require_numbers(left, right, sign)
        return function(left, right)

    return apply


OPERATORS: Final[dict[type[ast.operator], Callable[[Scope, Any, Any], Any]]] = {
    ast.Add: _add,
    ast.Sub: _arithmetic(operator.sub, "-"),
    ast.Mult: _arithmetic(operator.mul, "*"),
    ast.Div: _arithmetic(operator.truediv, "/"),
    ast.FloorDiv: _arithmetic(operator.floordiv, "//"),
    ast.Mod: _arithmetic(operator.mod, "%"),
}


def _ordering(function: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare(left: Any, right: Any) -> bool:
        if left is None or right is None:
            return False
        if not (isinstance(left, int | float) and isinstance(right, int | float)) and type(left) is not type(right):
            raise TypeError(f"{_name_kind(left)} and {_name_kind(right)} have no order")
        return function(left, right)

    return compare


def _contains(right: Any, left: Any) -> bool:
    if right is None:
        return False
    if isinstance(right, str) and not isinstance(left, str):
        raise TypeError(f"'in' a text takes a text, not {_name_kind(left)}")
    return left in right


COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: _ordering(operator.lt),
    ast.LtE: _ordering(operator.le),
    ast.Gt: _ordering(operator.gt),
    ast.GtE: _ordering(operator.ge),
    ast.In: lambda left, right: _contains(right, left),
    ast.NotIn: lambda left, right: right is not None and not _contains(right, left),
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def _size(scope: Scope, name: Any = None) -> int | None:
    if name is None:
        return sum(scope.size(each) or 0 for each in scope.list_fields())
    return scope.size(name)


def _text(scope: Scope, name: Any) -> str | None:
    payload = scope.payload(name)
    if payload is None:
        return None
    scope.spend(len(payload) // _STRIDE)
    return payload.decode("utf-8", "replace")


def _like(scope: Scope, text: Any, pattern: Any) -> bool:
    """Match ``*`` and ``?``: on a mismatch the last star takes one character more, so that no pattern explodes."""
    if text is None:
        return False
    if not isinstance(text, str) or not isinstance(pattern, str):
        raise TypeError("like() takes a text and a pattern")
    place = wild = star = 0
    starred = False
    while place < len(text):
        scope.spend()
        if wild < len(pattern) and pattern[wild] == "*":
            starred, star, mark = True, place, wild
            wild += 1
        elif wild < len(pattern) and pattern[wild] in ("?", text[place]):
            place, wild = place + 1, wild + 1
        elif starred:
            star += 1
            place, wild = star, mark + 1
        else:
            return False
    return not pattern[wild:].strip("*")


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of values alone, which takes steps by their lengths."""

    def apply(scope: Scope, *values: Any) -> Any:
        for value in values:
            scope.weigh(value)
        return check_number(function(*values))

    return apply


def _limited_len(value: Any) -> int | None:
    return None if value is None else len(value)


def _limited_int(value: Any) -> int | None:
    if isinstance(value, str) and len(value) > 80:
        raise TypeError("int() takes a text of at most 80 characters")
    return None if value is None else int(value)


def _limited_round(number: Any, digits: int = 0) -> Any:
    if not isinstance(number, int | float) or not isinstance(digits, int) or abs(digits) > _MOST_DIGITS:
        raise TypeError(f"round() takes a number, and at most {_MOST_DIGITS} digits")
    return round(number, digits)


def _limited_sum(values: Iterable[Any]) -> Any:
    total: Any = 0
    for value in values:
        _require_numbers(total, value, "sum")
        total = check_number(total + value)
    return total


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "has": Scope.has,
    "field": Scope.field,
    "text": _text,
    "size": _size,
    "width": lambda scope, name: scope.image_side(name, "width"),
    "height": lambda scope, name: scope.image_side(name, "height"),
    "duration": Scope.duration,
    "like": _like,
    "len": _plain(_limited_len),
    "int": _plain(_limited_int),
    "float": _plain(lambda value: None if value is None else float(value)),
    "str": _plain(lambda value: value if isinstance(value, str) else str(value) if _is_scalar(value) else ""),
    "abs": _plain(abs),
    "min": _plain(min),
    "max": _plain(max),
    "round": _plain(_limited_round),
    "sum": _plain(_limited_sum),
    "any": _plain(any),
    "all": _plain(all),
}

_ARGUMENTS: Final = {"size": (0, 1), "round": (1, 2), "like": (2, 2), "min": (1, None), "max": (1, None)}


def describe_wrong_count(name: str, count: int) -> str | None:
    """Return what is wrong with a call that has so many arguments; None where they fit.

    Args:
        name: of a function in :data:`FUNCTIONS`.
        count: of the arguments.
    """
    least, most = _ARGUMENTS.get(name, (1, 1))
    if count >= least and (most is None or count <= most):
        return None
    takes = {None: f"at least {least}", least: f"{least}"}.get(most, f"{least} or {most}")
    plural = "" if takes in ("1", "at least 1") else "s"
    return f"{name}() takes {takes} argument{plural}, not {count}"


def _is_scalar(value: Any) -> bool:
    if value is None or isinstance(value, int | float):
        return True
    raise TypeError(f"str() takes a number or a text, not {_name_kind(value)}")


def get_attribute(scope: Scope, value: Any, name: str) -> Any:
    """Return what a JSON object or a field has under a name; None where there is nothing.

    Args:
        scope: the sample.
        value: the object or field.
        name: the name.

    Raises:
        TypeError: the value has no names.
    """
    scope.spend()
    if value is None:
        return None
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, FieldValue):
        return value.attribute(name)
    raise TypeError(f"{_name_kind(value)} has no {name!r}")


def get_item(scope: Scope, value: Any, index: Any) -> Any:
    """Return a part of a JSON value or text; None where there is nothing.

    Args:
        scope: the sample.
        value: the object, list or text.
        index: a name, a number or a slice.

    Raises:
        TypeError: the value has no such parts.
    """
    scope.spend()
    if value is None:
        return None
    if isinstance(value, dict):
        return value.get(index) if isinstance(index, str | int | float | None) else None
    if isinstance(value, list | str):
        if isinstance(index, slice):
            return scope.weigh(value[index])
        if not isinstance(index, int):
            raise TypeError(f"{_name_kind(value)} is indexed by a number")
        return value[index] if -len(value) <= index < len(value) else None
    raise TypeError(f"{_name_kind(value)} has no parts")


def iterate_values(values: Any) -> Iterator[Any]:
    """Return what a loop goes through; nothing for None.

    Args:
        values: a list, a text, or an object, of which the names are given.

    Raises:
        TypeError: anything else.
    """
    if values is None:
        return iter(())
    if isinstance(values, list | str | dict):
        return iter(values)
    raise TypeError(f"{_name_kind(values)} cannot be gone through")


def call_method(scope: Scope, value: Any, name: str, arguments: list[Any]) -> Any:
    """Return what a method of a text gives; None for None.

    Args:
        scope: the sample.
        value: the text.
        name: of the method.
        arguments: of the call.

    Raises:
        TypeError: the value is no text, or the arguments do not fit.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{_name_kind(value)} has no {name}()")
    scope.spend(len(value) // _STRIDE)
    return scope.weigh(getattr(value, name)(*arguments))
