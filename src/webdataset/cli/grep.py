"""``wds grep`` and ``wds diff``: the samples for which an expression holds, and how two datasets differ."""

from collections.abc import Iterator
from typing import Any, Final

import click

from webdataset.cli import console, exit_status
from webdataset.cli.inputs import Inputs, expand_inputs, input_options, storage_options_of
from webdataset.cli.outputs import on_error_option, warn_of_absent
from webdataset.core.errors import SampleError
from webdataset.inspection.difference import compare_samples
from webdataset.inspection.expression import Expression
from webdataset.samples.raw_samples import RawSample, RawSamples

_SIGNS = {"removed": "-", "added": "+", "changed": "~"}
SCHEMAS: Final[dict[str, object]] = {
    "grep": {
        "description": "One line a sample that was found; with --count, one object with their number.",
        "oneOf": [
            {
                "type": "object",
                "required": ["key", "shard", "number"],
                "properties": {
                    "key": {"type": "string"},
                    "shard": {"type": "string"},
                    "number": {"type": "integer", "minimum": 0, "description": "of the sample in its shard"},
                },
                "additionalProperties": False,
            },
            {
                "type": "object",
                "required": ["count"],
                "properties": {"count": {"type": "integer", "minimum": 0}},
                "additionalProperties": False,
            },
        ],
    },
    "diff": {
        "description": "One line a sample that differs.",
        "type": "object",
        "required": ["key", "kind", "fields"],
        "properties": {
            "key": {"type": "string"},
            "kind": {"enum": ["removed", "added", "changed"]},
            "fields": {"type": "object", "additionalProperties": {"enum": ["removed", "added", "changed"]}},
        },
        "additionalProperties": False,
    },
}


@click.command("grep")
@click.argument("expression")
@input_options
@click.option("-v", "--invert", is_flag=True, help="Find the samples for which it does not hold.")
@click.option("-c", "--count", is_flag=True, help="Print only how many there are.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing: stop at the first, and say by the exit status.")
@click.option("-m", "--max-count", type=click.IntRange(min=1), metavar="N", help="Stop after N samples.")
@click.option("-H", "--with-shard", is_flag=True, help="Print the shard and the number of the sample in it, too.")
@on_error_option("the expression", "stop", "skip")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; see 'wds schema grep'.")
def grep_command(expression: str, inputs: Inputs, *, on_error: str, **options: Any) -> int:
    """Find the samples for which an EXPRESSION holds, and print their keys.

    Expressions are a safe subset of Python: key, shard, fields; a field by its name (json.width, txt, cls,
    jpg.width, seg.png.size); and or not, comparisons, in, + - * / // %, any(... for x in ...); has('jpg'),
    size('jpg'), size(), like(txt, 'a*b'), len, min, max, sum; .lower() .startswith('a') and such. What is missing
    is None.

    Examples:
      wds grep 'json.width >= 512 and "cat" in txt.lower()' train-{000..099}.tar
      wds grep -c 'not has("jpg")' s3://bucket/train/
      wds grep -q 'jpg.size == 0' shard.tar && echo broken
    """
    found = failed = 0
    parsed = Expression(expression)
    for number, sample in _number_samples(inputs):
        try:
            holds = parsed.holds(sample.payloads(), key=sample.key, shard=sample.url)
        except SampleError as error:
            if on_error == "stop":
                raise
            failed += 1
            console.say(f"left out: {error}")
            continue
        if holds is not options["invert"]:
            found += 1
            _print_match(sample, number, options)
            if options["quiet"] or found == options["max_count"]:
                break
    if options["count"] and not options["quiet"]:
        if options["as_json"]:
            console.write_json({"count": found})
        else:
            console.write_line(str(found))
    if not (found or options["quiet"]):
        warn_of_absent(parsed)
    if failed:
        return exit_status.PARTIAL
    return exit_status.DONE if found else exit_status.NONE_FOUND


def _number_samples(inputs: Inputs) -> Iterator[tuple[int, RawSample]]:
    for url in inputs:
        yield from enumerate(RawSamples(url, inputs.reading()))


def _print_match(sample: RawSample, number: int, options: dict[str, Any]) -> None:
    if options["count"] or options["quiet"]:
        return
    if options["as_json"]:
        console.write_json({"key": sample.key, "shard": sample.url, "number": number})
    elif options["with_shard"]:
        console.write_line(f"{console.show_url(sample.url)}:{number}:{console.escape_name(sample.key)}")
    else:
        console.write_line(console.escape_name(sample.key))


@click.command("diff")
@click.argument("first")
@click.argument("second")
@storage_options_of
@click.option("-q", "--quiet", is_flag=True, help="Print nothing: stop at the first, and say by the exit status.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; see 'wds schema diff'.")
def diff_command(
    first: str, second: str, *, storage_profile: str | None, split: str | None, quiet: bool, as_json: bool
) -> int:
    """Compare two datasets sample by sample, by keys and the bytes of fields; how they are sharded does not matter.

    Lines begin with - (in FIRST alone), + (in SECOND alone) or ~ (fields differ).

    Examples:
      wds diff old.tar new.tar
      wds diff 'old-{000..009}.tar' 'new-{00..99}.tar' && echo equal
    """
    sides = [expand_inputs([side], storage_profile=storage_profile, split=split) for side in (first, second)]
    streams = [(sample for url in inputs for sample in RawSamples(url, inputs.reading())) for inputs in sides]
    differs = False
    for difference in compare_samples(*streams):
        differs = True
        if quiet:
            break
        if as_json:
            console.write_json(difference._asdict())
            continue
        sign = _SIGNS[difference.kind]
        fields = " ".join(f"{_SIGNS[kind]}{console.escape_name(name)}" for name, kind in difference.fields.items())
        console.write_line(f"{sign} {console.escape_name(difference.key)}  {fields}".rstrip())
    return exit_status.NONE_FOUND if differs else exit_status.DONE
