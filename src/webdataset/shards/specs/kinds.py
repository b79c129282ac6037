"""The kinds of values in a specification: how each is read, and how an editor's schema says so.

Flows in: trees. Flows out: checked values; mistakes go to ``Problems``. A table of kinds is both the parser and the
source of the JSON Schema, so that the two cannot disagree.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .trees import Problems, Tree, unknown

Schema = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of value.

    Args:
        said: what is expected, for messages.
        parse: a plain value to the checked one; raises ValueError for anything else.
        schema: its JSON Schema.
        numeric: texts filled in from the environment may stand for it.
    """

    said: str
    parse: Callable[[Any], Any]
    schema: Schema
    numeric: bool = False

    def read(self, tree: Tree, problems: Problems) -> Any:
        """Return the checked value, or None with the mistake noted.

        Args:
            tree: the value as it was written.
            problems: where a mistake is noted.
        """
        value = tree.plain()
        if self.numeric and tree.filled:
            value = _number_of(value)
        try:
            return self.parse(value)
        except (ValueError, TypeError):
            problems.add(tree.place, f"expected {self.said}, not {_shown(value)}")
            return None


@dataclass(frozen=True)
class Table:
    """A mapping with known keys.

    Args:
        kinds: name to kind.
        notes: name to one line of documentation.
    """

    kinds: dict[str, Kind]
    notes: dict[str, str] = field(default_factory=dict)

    def read(self, tree: Tree, problems: Problems, *, besides: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the members that are right; the others are noted.

        Args:
            tree: the mapping as it was written.
            problems: where mistakes are noted.
            besides: further keys that somebody else reads.
        """
        if not isinstance(tree.value, dict):
            problems.add(tree.place, f"expected a mapping, not {_shown(tree.plain())}")
            return {}
        found = {}
        for name, part in tree.value.items():
            if name in besides:
                continue
            if name not in self.kinds:
                problems.add(tree.keys.get(name, tree.place), unknown(name, [*self.kinds, *besides]))
                continue
            value = self.kinds[name].read(part, problems)
            if value is not None:
                found[name] = value
        return found

    def properties(self) -> Schema:
        """Return the JSON Schema of the members."""
        return {
            name: {**kind.schema, **({"description": self.notes[name]} if name in self.notes else {})}
            for name, kind in self.kinds.items()
        }


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _number_of(text: Any) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except (TypeError, ValueError):
            continue
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return (_text(value),) if isinstance(value, str) else tuple(map(_text, _list(value)))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError  # noqa: TRY004  one kind of refusal
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004  one kind of refusal
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return value


def number(low: float, *, open_end: bool = False, high: float = math.inf, high_open: bool = False) -> Kind:
    """Return the kind of numbers in a range.

    Args:
        low: the least number.
        open_end: ``low`` itself is too small.
        high: the greatest number.
        high_open: ``high`` itself is too large.
    """

    def parse(value: Any) -> float:
        found = _number(value)
        if found < low or (open_end and found == low) or found > high or (high_open and found == high):
            raise ValueError
        return found

    schema: Schema = {"type": "number", "exclusiveMinimum" if open_end else "minimum": low}
    said = f"a number above {low:g}" if open_end else f"a number of at least {low:g}"
    if high != math.inf:
        schema["exclusiveMaximum" if high_open else "maximum"] = high
        said += f", at most {high:g}"
    return Kind(said, parse, schema, numeric=True)


def integer(low: int) -> Kind:
    """Return the kind of whole numbers from ``low`` on."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError
        return value

    return Kind(f"a whole number of at least {low}", parse, {"type": "integer", "minimum": low}, numeric=True)


def choice(*options: Any) -> Kind:
    """Return the kind of a few values."""

    def parse(value: Any) -> Any:
        if value not in options or isinstance(value, bool):
            raise ValueError
        return value

    return Kind(f"one of {', '.join(map(str, options))}", parse, {"enum": list(options)})


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004  one kind of refusal
    return value


def _text_map(value: Any) -> dict[str, str]:
    return {name: _text(part) for name, part in _mapping(value).items()}


def _span(value: Any) -> tuple[float, float]:
    low, high = (_share(part) for part in _list(value))
    if not 0 <= low < high <= 1:
        raise ValueError
    return (low, high)


def _share(value: Any) -> float:
    if isinstance(value, str) and value.endswith("%"):
        return float(value[:-1]) / 100
    return _number(value)


def _pair(value: Any) -> tuple[float, float]:
    low, high = map(_number, _list(value))
    if not 0 < low <= high:
        raise ValueError
    return (low, high)


def _transforms(value: Any) -> tuple[tuple[Any, Any], ...]:
    steps = _list(value) if isinstance(value, list) else [value]
    return tuple(map(_transform, steps))


def _transform(step: Any) -> tuple[Any, Any]:
    if isinstance(step, dict):
        ((name, argument),) = step.items()
        return _text(name), argument
    return (step, None) if callable(step) else (_text(step), None)


_TEXTS: Schema = {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "array", "items": {"$ref": "#/$defs/text"}}]}
_STEP: Schema = {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "object", "minProperties": 1, "maxProperties": 1}]}
_PERCENT: Schema = {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "pattern": "%$"}]}

TEXT = Kind("a text (in quotes, if it looks like a number or date)", _text, {"$ref": "#/$defs/text"})
TEXTS = Kind("a text or a list of texts (in quotes, if one looks like a number or date)", _texts, _TEXTS)
FLAG = Kind("true or false", _flag, {"type": "boolean"})
TEXT_MAP = Kind("a mapping from name to name", _text_map,
                {"type": "object", "additionalProperties": {"$ref": "#/$defs/text"}})  # fmt: skip
MAPPING = Kind("a mapping", _mapping, {"type": "object"})
SPAN = Kind("two bounds in [0, 1], as [0.1, 0.8] or [10%, 80%]", _span,
            {"type": "array", "minItems": 2, "maxItems": 2, "items": _PERCENT})  # fmt: skip
PAIR = Kind("two numbers above 0, the smaller first", _pair,
            {"type": "array", "minItems": 2, "maxItems": 2, "items": number(0, open_end=True).schema})  # fmt: skip
TRANSFORMS = Kind("a list of names, or of {name: argument}", _transforms,
                  {"anyOf": [*_STEP["anyOf"], {"type": "array", "items": _STEP}]})  # fmt: skip
