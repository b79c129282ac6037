"""``wds ls`` and ``wds head``: the samples or members of shards, one a line or one a paragraph."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

import click

from webdataset.cli import console
from webdataset.cli.inputs import Inputs, input_options
from webdataset.core.errors import TarError, WebDatasetError
from webdataset.samples.raw_samples import RawSamples, read_members

_FIELD: Final[console.JsonSchema] = {
    "type": "object",
    "required": ["field", "size_bytes"],
    "properties": {"field": {"type": "string"}, "size_bytes": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
}
SCHEMAS: Final[dict[str, object]] = {
    "ls": {
        "description": "One line a sample; with --members, one line a member.",
        "oneOf": [
            {
                "type": "object",
                "required": ["key", "shard", "number", "fields", "size_bytes"],
                "properties": {
                    "key": {"type": "string"},
                    "shard": {"type": "string"},
                    "number": {"type": "integer", "minimum": 0, "description": "of the sample in its shard"},
                    "fields": {"type": "array", "items": _FIELD},
                    "size_bytes": {"type": "integer", "minimum": 0},
                },
                "additionalProperties": False,
            },
            {
                "type": "object",
                "required": ["member", "shard", "size_bytes", "mode", "mtime"],
                "properties": {
                    "member": {"type": "string"},
                    "shard": {"type": "string"},
                    "size_bytes": {"type": "integer", "minimum": 0},
                    "mode": {"type": "integer", "minimum": 0},
                    "mtime": {"type": "integer", "description": "seconds since 1970"},
                },
                "additionalProperties": False,
            },
        ],
    },
    "head": {
        "description": "One line a sample.",
        "type": "object",
        "required": ["key", "shard", "fields"],
        "properties": {
            "key": {"type": "string"},
            "shard": {"type": "string"},
            "fields": {
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "required": ["kind", "text", "size_bytes"],
                    "properties": {
                        "kind": {"enum": ["text", "json", "image", "array", "bytes"]},
                        "text": {"type": "string"},
                        "size_bytes": {"type": "integer", "minimum": 0},
                        "width": {"type": "integer"},
                        "height": {"type": "integer"},
                    },
                    "additionalProperties": False,
                },
            },
        },
        "additionalProperties": False,
    },
}


@click.command("ls")
@input_options
@click.option("-l", "--long", is_flag=True, help="Add sizes, and each field's size; with --members, mode and time.")
@click.option("-m", "--members", is_flag=True, help="List members by their full names, as tar -t does.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; see 'wds schema ls'.")
def ls_command(inputs: Inputs, *, long: bool, members: bool, as_json: bool) -> None:
    """List samples: the key, and the fields it has.

    Only headers are read where the storage allows it. In a damaged shard, what is before the damage is listed.

    Examples:
      wds ls shard.tar
      wds ls -l train-{000..009}.tar
      wds ls --members shard.tar        # as tar -t
      wds ls --json s3://bucket/train/ | jq -r .key
    """
    for url in inputs:
        if members:
            _list_members(url, inputs, long=long, as_json=as_json)
        else:
            for number, (key, fields) in enumerate(list_samples(url, inputs)):
                size = sum(length for _, length in fields)
                if as_json:
                    listed = [{"field": field, "size_bytes": length} for field, length in fields]
                    console.write_json(
                        {"key": key, "shard": url, "number": number, "fields": listed, "size_bytes": size}
                    )
                elif long:
                    shown = " ".join(f"{console.escape_name(field)}:{length}" for field, length in fields)
                    console.write_line(f"{size:>12}  {console.escape_name(key)}\t{shown}")
                else:
                    console.write_line("\t".join(map(console.escape_name, (key, " ".join(f for f, _ in fields)))))


def list_samples(url: str, inputs: Inputs) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield key, and (field, bytes) of each field, of the samples of a shard; of headers alone where that is possible.

    Args:
        url: the shard.
        inputs: what it is one of.

    Raises:
        WebDatasetError: the shard cannot be read, or is damaged; the samples before have been given.
    """
    from webdataset.index.build import index_shard  # noqa: PLC0415  after --help

    if url != "-":
        try:
            index = index_shard(url, reading=inputs.reading())
        except WebDatasetError as error:
            if not isinstance(error, TarError | ValueError):
                raise
        else:
            for entry in index.entries:
                yield entry.key, [(field.name, field.size) for field in entry.fields]
            return
    for sample in RawSamples(url, inputs.reading()):
        pairs = zip(sample.fields, sample.members, strict=True)
        yield sample.key, [(field, len(member.payload)) for field, member in pairs]


def _list_members(url: str, inputs: Inputs, *, long: bool, as_json: bool) -> None:
    for member in read_members(url, inputs.reading()):
        block = member.header[-512:]
        mode, mtime, size = read_number(block[100:108]), read_number(block[136:148]), len(member.payload)
        if as_json:
            found = {"member": member.name, "shard": url, "size_bytes": size, "mode": mode, "mtime": mtime}
            console.write_json(found)
        elif long:
            console.write_line(f"{mode:04o} {size:>12} {mtime:>11} {console.escape_name(member.name)}")
        else:
            console.write_line(console.escape_name(member.name))


def read_number(field: bytes) -> int:
    """Return a number of a header; 0 where it holds none.

    Args:
        field: 8 or 12 bytes.
    """
    from webdataset.tar.header import parse_number  # noqa: PLC0415  after --help

    try:
        return parse_number(field, "number", 0)
    except ValueError:
        return 0


@click.command("head")
@input_options
@click.option("-n", "--count", default=5, show_default=True, type=click.IntRange(min=0), help="How many samples.")
@click.option("-f", "--field", "fields", multiple=True, metavar="FIELD", help="Show only this field; may be repeated.")
@click.option("-w", "--width", default=100, show_default=True, type=click.IntRange(min=10), help="Columns of a text.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; see 'wds schema head'.")
def head_command(inputs: Inputs, *, count: int, fields: tuple[str, ...], width: int, as_json: bool) -> None:
    """Show the first samples of all shards together, one line a field.

    Examples:
      wds head shard.tar
      wds head -n 1 -f json s3://bucket/train-000000.tar
    """
    from webdataset.inspection.field_preview import preview_field  # noqa: PLC0415  after --help

    samples = (sample for url in inputs for sample in RawSamples(url, inputs.reading()))
    for sample in islice(samples, count):
        payloads = sample.payloads()
        previews = {
            field: preview_field(field, payload, width=width)
            for field, payload in payloads.items()
            if not fields or field in fields
        }
        if as_json:
            shown = {field: preview.to_json() for field, preview in previews.items()}
            console.write_json({"key": sample.key, "shard": sample.url, "fields": shown})
            continue
        console.write_line(console.escape_name(sample.key))
        for field, preview in previews.items():
            size = console.format_size(preview.size_bytes)
            text = console.escape_name(preview.text)
            console.write_line(f"  {console.escape_name(field):<12} {size:>8}  {preview.kind:<5}  {text}".rstrip())
