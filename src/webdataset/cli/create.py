"""``wds create``: shards of files, of tables and of recipes."""

from collections.abc import Iterator
from typing import Any, Final

import click

from webdataset.cli import console
from webdataset.cli.outputs import (
    WRITTEN,
    ShardOutputs,
    report_repeated_keys,
    shard_output_options,
    tell_loose_files,
)
from webdataset.reshaping.creation import RepeatedKeys, check_sources, choose_kind, create_samples
from webdataset.samples.raw_samples import RawSample

SCHEMAS: Final[dict[str, object]] = {"create": WRITTEN}


@click.command("create")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "-t",
    "--type",
    "kind",
    type=click.Choice(["folder", "csv", "tsv", "jsonl", "recipe"]),
    help="What sources are; without it, the name decides (a recipe where it says nothing).",
)
@click.option("-b", "--base", metavar="FOLDER", help="What names of files in tables and recipes are relative to.")
@shard_output_options
def create_command(sources: tuple[str, ...], *, output: ShardOutputs, kind: Any, base: str | None) -> None:
    """Make shards of folders, of tables (CSV, TSV, JSON lines), and of recipes as tarp has them.

    In a folder, the files of one key (the name up to its first dot) are a sample. In a table, each column is a field:
    'txt' holds the text itself, '@jpg' the name of a file, '__key__' the key (else rows are numbered); names of files
    are relative to the table. In a recipe, each line is NAME SOURCE, where SOURCE is a path or url, text:... or
    pipe:COMMAND.

    Examples:
      wds create -o images.tar photos/
      wds create -o train-%06d.tar -s 1GB captions.tsv
      find . -name '*.jpg' | awk '{print NR ".jpg", $0}' | wds create -o all.tar -
    """
    check_sources(sources)
    output.inputs += sources
    # folders are listed before the first output appears, which may be in one of them
    streams = [create_samples(source, kind, base=base) for source in sources]
    repeated, empty = RepeatedKeys(), list(sources)

    def read() -> Iterator[RawSample]:
        for source, stream in zip(sources, streams, strict=True):
            for number, sample in enumerate(stream):
                if not number:
                    empty.remove(source)
                yield sample

    output.write(repeated.watch(read()), "writing")
    report_repeated_keys(repeated, rekeyed=output.rekey)
    if empty and len(empty) < len(sources):
        console.say(f"warning: no samples are in {', '.join(map(console.show_url, empty))}")
    tell_loose_files(source for source in sources if (kind or choose_kind(source)) == "folder")
