"""``wds columns``: a Parquet file beside each shard, by which ``where=`` reads only the samples that may match."""

from typing import Final

import click

from webdataset.cli import console
from webdataset.cli.inputs import Inputs, input_options

SCHEMAS: Final[dict[str, object]] = {
    "columns": {
        "description": "One line a columns file that was written.",
        "type": "object",
        "required": ["file", "shard", "samples", "unclear", "bytes"],
        "properties": {
            "file": {"type": "string"},
            "shard": {"type": "string"},
            "samples": {"type": "integer", "minimum": 0},
            "unclear": {
                "type": "integer",
                "minimum": 0,
                "description": "samples of which a column could not be made: they are always read",
            },
            "bytes": {"type": "integer", "minimum": 0},
        },
        "additionalProperties": False,
    }
}


@click.command("columns")
@click.argument("columns")
@input_options
@click.option("-o", "--output", "folder", metavar="FOLDER", help="Where to put the files; beside each shard if local.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=4, show_default=True, help="Shards read at once.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; see 'wds schema columns'.")
def columns_command(columns: str, inputs: Inputs, *, folder: str | None, jobs: int, as_json: bool) -> None:
    """Write the values of COLUMNS beside each shard, as X.parquet.

    COLUMNS are expressions as in 'wds grep', separated by commas. With such a file, WebDataset(urls, where=...) reads
    only the samples for which an expression may hold. Where X.parquet belongs to another program, the file is called
    X.wds.parquet. Columns files that are there are written anew.

    Examples:
      wds columns json.width,json.lang train-{000..099}.tar
      wds columns 'json.score, jpg.width, len(txt)' train/
      wds columns json.lang s3://bucket/train/ -o columns && aws s3 cp --recursive columns s3://bucket/train/
    """
    from webdataset.index.column_files import write_columns  # noqa: PLC0415  after --help

    for written in write_columns(
        list(inputs), columns, folder=folder, threads=jobs, storage_options=inputs.storage_options
    ):
        if as_json:
            console.write_json({
                "file": written.path, "shard": written.url, "samples": written.samples, "unclear": written.unclear,
                "bytes": written.size_bytes,
            })  # fmt: skip
            continue
        unclear = f", {written.unclear} of which a column could not be made" if written.unclear else ""
        console.write_line(f"{console.show_url(written.path)}: {written.samples} samples{unclear}")
