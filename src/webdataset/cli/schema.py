"""``wds schema``: the JSON schemas of what commands print with ``--json``."""

import importlib
from typing import Any

import click

from webdataset.cli import console
from webdataset.core.errors import UsageError

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def find_schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of each command that has ``--json``: of one line of its output."""
    from webdataset.cli.main import list_commands  # noqa: PLC0415  main loads this module

    found = {}
    for name, (module, _) in list_commands().items():
        schemas = getattr(importlib.import_module(f"{__package__}.{module}"), "SCHEMAS", {})
        if name in schemas:
            found[name] = {"$schema": DIALECT, "title": f"wds {name} --json", **schemas[name]}
    return found


@click.command("schema")
@click.argument("command", required=False)
def schema_command(command: str | None) -> None:
    """Print the JSON schema of one line of a command's --json output; without COMMAND, list the commands that have one.

    Examples:
      wds schema
      wds schema ls > ls.schema.json
    """
    import json  # noqa: PLC0415  after --help

    schemas = find_schemas()
    if command is None:
        for name in schemas:
            console.write_line(name)
    elif command in schemas:
        console.write_line(json.dumps(schemas[command], indent=2))
    else:
        raise UsageError(f"{command!r} has no --json output; these have: {', '.join(schemas)}")
