"""``wds info``: counts of samples, fields and sizes, the shape of JSON, and the file of sizes that trainers read."""

import json
from typing import Any, Final

import click

from webdataset.cli import console
from webdataset.cli.inputs import Inputs, input_options
from webdataset.cli.outputs import output_options, write_text_file
from webdataset.inspection.summary import DatasetSummary, FieldSummary, summarize_shards

_COUNT: Final[console.JsonSchema] = {"type": "integer", "minimum": 0}
_PAIR: Final[console.JsonSchema] = {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2}
SCHEMAS: Final[dict[str, object]] = {
    "info": {
        "description": "One object for all shards.",
        "type": "object",
        "required": ["shards", "samples", "stored_bytes", "payload_bytes", "fields", "shapes", "samples_per_shard"],
        "properties": {
            "shards": _COUNT,
            "samples": _COUNT,
            "stored_bytes": {"type": ["integer", "null"], "minimum": 0},
            "payload_bytes": _COUNT,
            "samples_per_shard": {"type": "object", "additionalProperties": _COUNT},
            "fields": {
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "required": ["samples", "total_bytes", "smallest_bytes", "largest_bytes"],
                    "properties": {
                        "samples": _COUNT,
                        "total_bytes": _COUNT,
                        "smallest_bytes": _COUNT,
                        "largest_bytes": _COUNT,
                        "widths": _PAIR,
                        "heights": _PAIR,
                    },
                    "additionalProperties": False,
                },
            },
            "shapes": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["fields", "samples"],
                    "properties": {"fields": {"type": "array", "items": {"type": "string"}}, "samples": _COUNT},
                    "additionalProperties": False,
                },
            },
            "json_paths": {
                "type": "object",
                "additionalProperties": {"type": "object", "additionalProperties": _COUNT},
            },
        },
        "additionalProperties": False,
    },
}
_MOST_SHAPES = 10


@click.command("info")
@input_options
@click.option("--schema", "contents", is_flag=True, help="Look into JSON and images, too; reads everything.")
@click.option("--sizes", metavar="FILE", help="Write shard names and sample counts as JSON (sizes.json of open_clip).")
@output_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object; see 'wds schema info'.")
def info_command(
    inputs: Inputs, *, contents: bool, sizes: str | None, force: bool, dry_run: bool, as_json: bool
) -> None:
    """Count samples, and say which fields they have and how large these are.

    Only headers are read where the storage allows it, unless --schema is given.

    Examples:
      wds info train-{000..099}.tar
      wds info --schema shard.tar
      wds info --sizes sizes.json 's3://bucket/train-*.tar'
    """
    summary = DatasetSummary()
    with console.Progress("reading", total=len(inputs)) as progress:
        for url in summarize_shards(inputs, summary, inputs.reading(), contents=contents):
            progress.advance(detail=url)
    if sizes is not None:
        names = {url.split("?")[0].rpartition("/")[2]: count for url, count in summary.shards.items()}
        write_text_file(sizes, json.dumps(names, indent=2) + "\n", force=force, dry_run=dry_run)
    if as_json:
        console.write_json(_to_json(summary, contents=contents))
    else:
        _print_summary(summary)


def _to_json(summary: DatasetSummary, *, contents: bool) -> dict[str, Any]:
    paths = {path: dict(kinds) for path, kinds in summary.json_paths.items()}
    return {
        "shards": len(summary.shards),
        "samples": summary.samples,
        "stored_bytes": summary.stored_bytes,
        "payload_bytes": summary.payload_bytes,
        "samples_per_shard": summary.shards,
        "fields": {name: _field_to_json(each) for name, each in summary.fields.items()},
        "shapes": [{"fields": list(fields), "samples": count} for fields, count in summary.shapes.most_common()],
        **({"json_paths": paths} if contents else {}),
    }


def _field_to_json(field: FieldSummary) -> dict[str, Any]:
    found = {
        "samples": field.samples,
        "total_bytes": field.total_bytes,
        "smallest_bytes": field.smallest_bytes or 0,
        "largest_bytes": field.largest_bytes,
    }
    sides = {"widths": field.widths, "heights": field.heights}
    return {**found, **{name: list(pair) for name, pair in sides.items() if pair is not None}}


def _print_summary(summary: DatasetSummary) -> None:
    counts = list(summary.shards.values())
    stored = "unknown size" if summary.stored_bytes is None else console.format_size(summary.stored_bytes)
    console.write_line(f"shards   {len(counts)} ({stored})")
    spread = f" ({min(counts)} to {max(counts)} a shard)" if len(counts) > 1 else ""
    console.write_line(f"samples  {summary.samples}{spread}")
    console.write_line(f"payload  {console.format_size(summary.payload_bytes)}")
    if not summary.fields:
        return
    console.write_line()
    rows = [_describe_field(name, each, summary.samples) for name, each in summary.fields.items()]
    console.write_table(rows, ("field", "samples", "total", "least", "mean", "most", ""), right=range(1, 6))
    if len(summary.shapes) > 1:
        console.write_line("\nfields together:")
        for fields, count in summary.shapes.most_common(_MOST_SHAPES):
            console.write_line(f"  {count:>9}  {console.escape_name(' '.join(fields))}")
        if len(summary.shapes) > _MOST_SHAPES:
            console.write_line(f"  and {len(summary.shapes) - _MOST_SHAPES} more")
    if summary.json_paths:
        console.write_line("\nJSON:")
        for path, kinds in summary.json_paths.items():
            found = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
            console.write_line(f"  {console.escape_name(path):<30}  {found}")


def _describe_field(name: str, field: FieldSummary, samples: int) -> tuple[str, ...]:
    share = "" if field.samples == samples else f" ({100 * field.samples / samples:.1f}%)"
    mean = field.total_bytes / field.samples
    sizes = (field.total_bytes, field.smallest_bytes or 0, mean, field.largest_bytes)
    sides = [f"{low}" if low == high else f"{low}-{high}" for low, high in filter(None, (field.widths, field.heights))]
    return (
        console.escape_name(name),
        f"{field.samples}{share}",
        *(console.format_size(size) for size in sizes),
        " x ".join(sides),
    )
