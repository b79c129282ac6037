"""The JSON Schema of the native format, made from the tables that the parser reads by.

Flows in: tables. Flows out: the schema that is shipped beside this file for editors. ``python -m
webdataset.shards.specs.schema`` writes it; a test keeps it up to date.
"""

import json
from pathlib import Path
from typing import Any

from .tables import KINDS_OF_SOURCE, MIX, OPTIONS, ROOT, SOURCE

FILE = Path(__file__).with_name("spec.schema.json")


def schema() -> dict[str, Any]:
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


def written() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
