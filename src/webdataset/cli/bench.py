"""``wds bench``: how fast the user's shards are read, decoded, batched and loaded on this machine."""

from typing import Any, Final

import click

from webdataset.cli import console
from webdataset.cli.inputs import Inputs, input_options

_STEPS = ("raw", "samples", "decode", "batch", "loader")
_NUMBER: Final[console.JsonSchema] = {"type": "number", "minimum": 0}
_ROUND: Final[console.JsonSchema] = {
    "type": "object",
    "required": ["samples", "size_bytes", "seconds", "cpu_seconds"],
    "properties": {
        "samples": {"type": "integer", "minimum": 0},
        "size_bytes": {"type": "integer", "minimum": 0, "description": "of raw reading alone"},
        "seconds": _NUMBER,
        "cpu_seconds": _NUMBER,
    },
    "additionalProperties": False,
}
_PROPERTIES: Final[console.JsonSchema] = {
    "step": {"enum": [*_STEPS]},
    "megabytes_per_second": {**_NUMBER, "description": "median, of payloads; raw: of the shards' bytes"},
    "samples_per_second": {"type": ["number", "null"], "description": "median; null of raw reading"},
    "cpu_seconds_per_gigabyte": {**_NUMBER, "description": "median, of all processes"},
    "workers": {"type": "integer", "minimum": 0},
    "rounds": {"type": "array", "items": _ROUND},
}
SCHEMAS: Final[console.JsonSchema] = {
    "bench": {
        "description": "One line a step.",
        "type": "object",
        "required": list(_PROPERTIES),
        "properties": _PROPERTIES,
        "additionalProperties": False,
    },
}


@click.command("bench")
@input_options
@click.option("--step", "steps", multiple=True, type=click.Choice(_STEPS), help="Only this step; may be repeated.")
@click.option("--decode", "decoders", multiple=True, metavar="SPEC", help="As decode(SPEC): rgb8, pil …; repeatable.")
@click.option("-f", "--field", "fields", multiple=True, metavar="FIELD", help="Use only this field; may be repeated.")
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(min=1), help="Samples in a batch.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(min=0), help="Workers of the loader.")
@click.option(
    "--mode", default="threads", show_default=True, type=click.Choice(["threads", "processes"]), help="Kind of workers."
)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1), help="Turns after the warm-up.")
@click.option(
    "--seconds", default=3.0, show_default=True, type=click.FloatRange(min=0, min_open=True), help="Longest turn."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; see 'wds schema bench'.")
def bench_command(inputs: Inputs, *, steps: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Measure reading of bytes, of samples, decoding, batching, and a loader with workers, on these shards.

    Each step does what the one before does, and one thing more: the step at which the figures fall is the one to look
    at. All steps run in turns, the first turn only warms up, and medians are shown. CPU seconds are those of all
    processes. Samples whose fields differ are batched with --field.

    Examples:
      wds bench train-{000..009}.tar --decode rgb8 --field jpg --field cls --workers 4
      wds bench s3://bucket/train-000000.tar --step raw --step samples
      wds bench train-000000.tar --mode processes --workers 8 --json
    """
    from webdataset.loading.read_speed import ReadSpeedTest  # noqa: PLC0415  after --help

    test = ReadSpeedTest(inputs.urls, inputs.storage_options, steps=steps or _STEPS, **options)
    with console.Progress("measuring", len(test.steps) * (test.rounds + 1)) as progress:
        found = test.measure(lambda step: progress.advance(detail=step))
    if as_json:
        for each in found:
            console.write_json(each.to_json())
        return
    rows = [
        [
            each.step + (f" ({each.workers} {test.mode})" if each.step == "loader" else ""),
            f"{each.megabytes_per_second:.1f}",
            "-" if each.samples_per_second is None else f"{each.samples_per_second:.0f}",
            f"{each.cpu_seconds_per_gigabyte:.2f}",
        ]
        for each in found
    ]
    console.write_table(rows, ["step", "MB/s", "samples/s", "CPU s/GB"], right=range(1, 4))
