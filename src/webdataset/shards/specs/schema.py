"""The keys of the native format, the kinds of their values, and the JSON Schema made from them.

A table of kinds is both the parser and the source of the JSON Schema, so that the two cannot disagree. Mistakes go to
:class:`~webdataset.shards.specs.syntax.SpecProblems`. The schema is shipped beside this file for editors; ``python -m
webdataset.shards.specs.schema`` writes it, and a test keeps it up to date.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from webdataset.shards.specs.spec import VERSION
from webdataset.shards.specs.syntax import SpecProblems, SpecTree, unknown_name_message

Schema = dict[str, Any]


@dataclass(frozen=True)
class ValueKind:
    """One kind of value.

    Args:
        expected: what is expected, for messages.
        parse: a plain value to the checked one; raises ValueError for anything else.
        schema: its JSON Schema.
        numeric: texts filled in from the environment may stand for it.
    """

    expected: str
    parse: Callable[[object], object]
    schema: Schema
    numeric: bool = False

    def parse_tree(self, tree: SpecTree, problems: SpecProblems) -> object:
        """Return the checked value, or None with the mistake noted."""
        value = tree.plain()
        if self.numeric and tree.filled:
            value = _number_from_text(value)
        try:
            return self.parse(value)
        except (ValueError, TypeError, OverflowError):
            problems.add(tree.place, f"expected {self.expected}, not {_format_value(value)}")
            return None


@dataclass(frozen=True)
class KeyTable:
    """A mapping with known keys.

    Args:
        kinds: name to kind.
        notes: name to one line of documentation.
        example: of such a mapping, for messages.
    """

    kinds: dict[str, ValueKind]
    notes: dict[str, str] = field(default_factory=dict)
    example: str = ""

    def parse_tree(self, tree: SpecTree, problems: SpecProblems, *, besides: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the members that are right; the others are noted."""
        if not isinstance(tree.value, dict):
            example = f", as {self.example}" if self.example else ""
            problems.add(tree.place, f"expected a mapping{example}, not {_format_value(tree.plain())}")
            return {}
        found = {}
        for name, part in tree.value.items():
            if name in besides:
                continue
            if name not in self.kinds:
                problems.add(tree.keys.get(name, tree.place), unknown_name_message(name, [*self.kinds, *besides]))
                continue
            value = self.kinds[name].parse_tree(part, problems)
            if value is not None:
                found[name] = value
        return found

    def properties(self) -> Schema:
        """Return the JSON Schema of the members."""
        return {
            name: {**kind.schema, **({"description": self.notes[name]} if name in self.notes else {})}
            for name, kind in self.kinds.items()
        }


def _format_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _number_from_text(text: Any) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except (TypeError, ValueError):
            continue
    return text


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _parse_texts(value: object) -> tuple[str, ...]:
    return (_parse_text(value),) if isinstance(value, str) else tuple(map(_parse_text, _parse_list(value)))


def _parse_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError  # noqa: TRY004  one kind of refusal
    return value


def _parse_mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004  one kind of refusal
    return value


def _parse_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return value


def number_kind(low: float, *, open_end: bool = False, high: float = math.inf, high_open: bool = False) -> ValueKind:
    """Return the kind of numbers in a range."""

    def parse(value: object) -> float:
        found = _parse_number(value)
        if found < low or (open_end and found == low) or found > high or (high_open and found == high):
            raise ValueError
        return found

    schema: Schema = {"type": "number", "exclusiveMinimum" if open_end else "minimum": low}
    expected = f"a number above {low:g}" if open_end else f"a number of at least {low:g}"
    if high != math.inf:
        schema["exclusiveMaximum" if high_open else "maximum"] = high
        expected += f", at most {high:g}"
    return ValueKind(expected, parse, schema, numeric=True)


def integer_kind(low: int) -> ValueKind:
    """Return the kind of whole numbers from ``low`` on."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError
        return value

    return ValueKind(f"a whole number of at least {low}", parse, {"type": "integer", "minimum": low}, numeric=True)


def choice_kind(*options: object) -> ValueKind:
    """Return the kind of a few values."""

    def parse(value: object) -> object:
        if value not in options or isinstance(value, bool):
            raise ValueError
        return value

    return ValueKind(f"one of {', '.join(map(str, options))}", parse, {"enum": list(options)})


def _parse_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004  one kind of refusal
    return value


def _parse_text_map(value: object) -> dict[str, str]:
    return {name: _parse_text(part) for name, part in _parse_mapping(value).items()}


def _parse_span(value: object) -> tuple[float, float]:
    low, high = (_parse_share(part) for part in _parse_list(value))
    if not 0 <= low < high <= 1:
        raise ValueError
    return (low, high)


def _parse_share(value: object) -> float:
    if isinstance(value, str) and value.endswith("%"):
        return float(value[:-1]) / 100
    return _parse_number(value)


def _parse_pair(value: object) -> tuple[float, float]:
    low, high = map(_parse_number, _parse_list(value))
    if not 0 < low <= high:
        raise ValueError
    return (low, high)


def _parse_transforms(value: object) -> tuple[tuple[object, object], ...]:
    steps = _parse_list(value) if isinstance(value, list) else [value]
    return tuple(map(_parse_transform, steps))


def _parse_transform(step: object) -> tuple[object, object]:
    if isinstance(step, dict):
        ((name, argument),) = step.items()
        return _parse_text(name), argument
    return (step, None) if callable(step) else (_parse_text(step), None)


_TEXTS: Schema = {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "array", "items": {"$ref": "#/$defs/text"}}]}
_STEP: Schema = {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "object", "minProperties": 1, "maxProperties": 1}]}
_PERCENT: Schema = {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "pattern": "%$"}]}

TEXT = ValueKind("a text (in quotes, if it looks like a number or date)", _parse_text, {"$ref": "#/$defs/text"})
TEXTS = ValueKind("a text or a list of texts (in quotes, if one looks like a number or date)", _parse_texts, _TEXTS)
FLAG = ValueKind("true or false", _parse_flag, {"type": "boolean"})
TEXT_MAP = ValueKind("a mapping from name to name", _parse_text_map,
                {"type": "object", "additionalProperties": {"$ref": "#/$defs/text"}})  # fmt: skip
MAPPING = ValueKind("a mapping", _parse_mapping, {"type": "object"})
SPAN = ValueKind("two bounds in [0, 1], as [0.1, 0.8] or [10%, 80%]", _parse_span,
            {"type": "array", "minItems": 2, "maxItems": 2, "items": _PERCENT})  # fmt: skip
PAIR = ValueKind("two numbers above 0, the smaller first", _parse_pair,
            {"type": "array", "minItems": 2, "maxItems": 2, "items": number_kind(0, open_end=True).schema})  # fmt: skip
TRANSFORMS = ValueKind("a list of names, or of {name: argument}", _parse_transforms,
                  {"anyOf": [*_STEP["anyOf"], {"type": "array", "items": _STEP}]})  # fmt: skip


MIXES = ("interleave", "exhaust", "roundrobin", "concat", "shards")
ENDS = {"interleave": "restart", "exhaust": "drop", "roundrobin": "drop", "concat": "drop", "shards": "drop"}

ROOT = KeyTable(
    {
        "version": choice_kind(VERSION),
        "include": TEXTS,
        "defaults": MAPPING,
        "splits": MAPPING,
    },
    {
        "version": "of this format: 1",
        "include": "specifications whose splits are taken over; a split here replaces one of the same name",
        "defaults": "keys of sources, for those that do not give them",
        "splits": "name of each split to its mix",
    },
)
MIX = KeyTable(
    {
        "mix": choice_kind(*MIXES),
        "exhausted": choice_kind("restart", "drop", "stop"),
        "weights_are": choice_kind("samples", "shards", "bytes"),
        "temperature": number_kind(0),
        "sources": ValueKind(
            "a list of sources, as [{shards: 'a-{000..099}.tar'}]",
            _parse_list,
            {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/source"}},
        ),
    },
    {
        "mix": "interleave: by weight; exhaust: by weight, until all have ended; roundrobin: in turn; concat: one "
        "after the other; shards: the shards of all, shuffled together",
        "exhausted": "what a source does at its end: restart, drop (the others continue), stop (all end)",
        "weights_are": "what the weights count",
        "temperature": "shares are raised to this power; 0 makes all alike",
    },
    "{sources: [a.tar]}",
)
_NESTED = {"anyOf": [{"$ref": "#/$defs/text"}, {"$ref": "#/$defs/mix"}, {"$ref": "#/$defs/root"}]}
OPTIONS = KeyTable(
    {
        "weight": number_kind(0),
        "repeat": number_kind(0, open_end=True),
        "choose": integer_kind(1),
        "resample": integer_kind(1),
        "subset": SPAN,
        "subsample": number_kind(0, open_end=True, high=1),
        "rename": TEXT_MAP,
        "keep": TEXTS,
        "extensions": TEXTS,
        "tags": MAPPING,
        "decode": TEXTS,
        "transforms": TRANSFORMS,
        "preshuffle": integer_kind(0),
        "shuffle": integer_kind(0),
        "shardshuffle": FLAG,
        "cache": TEXT,
        "where": TEXT,
        "nsamples": integer_kind(0),
        "nbytes": integer_kind(0),
    },
    {
        "weight": "among its neighbours",
        "repeat": "passes over its shards in one epoch",
        "choose": "so many shards in each epoch, none twice",
        "resample": "so many draws of shards with replacement in each epoch",
        "subset": "the part of the list of shards that belongs to it, such as [10%, 80%]",
        "where": "an expression: only samples for which it holds are given, such as json.width >= 512",
        "subsample": "the probability with which each sample is kept",
        "rename": "new field name to old",
        "keep": "the fields to keep",
        "extensions": "the first of these is kept, under its last component",
        "tags": "copied into each sample's __tags__",
        "decode": "arguments of decode",
        "transforms": "names of stages, each with its argument",
        "preshuffle": "samples in the buffer of a shuffle before decoding",
        "shuffle": "samples in the buffer of a shuffle after everything else",
        "shardshuffle": "whether the shards come in a new order in each epoch",
        "cache": "directory to keep its shards in",
        "nsamples": "how many samples it has",
        "nbytes": "how many bytes its shards have",
    },
)
SOURCE = KeyTable(
    {
        "name": TEXT,
        "shards": TEXTS,
        "wids": TEXT,
        "index": TEXT,
        "energon": TEXT,
        "split_part": TEXT,
        "spec": ValueKind("the path of a specification, or a mix", lambda value: value, _NESTED),
        "split": TEXT,
        **OPTIONS.kinds,
    },
    {
        "name": "in __source__ and in messages",
        "shards": "urls, with braces and wildcards, relative to this file",
        "wids": "a wids shard index",
        "index": "a wids shard index",
        "energon": "a directory prepared by Energon",
        "split_part": "which part of it",
        "spec": "another specification, or a mix of its own",
        "split": "which split of that specification",
        **OPTIONS.notes,
    },
)
KINDS_OF_SOURCE = ("shards", "wids", "index", "spec", "energon")
OF_SHARDS = ("choose", "resample", "subset", "cache", "where", "shardshuffle", "nsamples", "nbytes")


SCHEMA_FILE = Path(__file__).with_name("spec.schema.json")


def make_schema() -> Schema:
    """Return the JSON Schema of the native format (draft 2020-12).

    What relates several values to each other (names that differ, weights that are not all 0) is left to the parser.
    """
    source = {
        "type": "object",
        "properties": SOURCE.properties(),
        "additionalProperties": False,
        "oneOf": [{"required": [name]} for name in KINDS_OF_SOURCE],
        "not": {"required": ["choose", "resample"]},
    }
    mix = {"type": "object", "properties": MIX.properties(), "additionalProperties": False, "required": ["sources"]}
    splits = {"splits": {"type": "object", "additionalProperties": {"$ref": "#/$defs/mix"}}}
    defaults = {"type": "object", "properties": OPTIONS.properties(), "additionalProperties": False}
    properties = {**ROOT.properties(), **MIX.properties()}
    properties["splits"] = {**properties["splits"], **splits["splits"]}
    properties["defaults"] = {**properties["defaults"], **defaults}
    root = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "required": ["version"],
        "anyOf": [{"required": [name]} for name in ("splits", "sources", "include")],
    }
    shorthand = {"anyOf": [{"$ref": "#/$defs/text"}, source]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Dataset specification, version 1",
        "$ref": "#/$defs/root",
        "$defs": {"text": {"type": "string", "minLength": 1}, "source": shorthand, "mix": mix, "root": root},
    }


def format_schema() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(make_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(format_schema(), encoding="utf-8")
