"""``wds convert``: other formats to shards, and shards to other formats."""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import click

from webdataset.cli import console, exit_status
from webdataset.cli.inputs import expand_inputs, storage_options_of
from webdataset.cli.outputs import (
    WRITTEN,
    ShardOutputs,
    check_target,
    on_error_option,
    parse_renames,
    read_inputs,
    report_repeated_keys,
    report_selection,
    shard_output_options,
    tell_loose_files,
)
from webdataset.core.errors import UsageError, WebDatasetError
from webdataset.reshaping.conversion import SOURCES, TARGETS, Conversion, choose_kind, choose_source_kind
from webdataset.reshaping.creation import RepeatedKeys
from webdataset.reshaping.field_values import Failed, RowConverter
from webdataset.reshaping.folders import FolderWriter
from webdataset.reshaping.selection import Selection
from webdataset.reshaping.table_writing import (
    INFER_SAMPLES,
    TableWriter,
    check_hf_folder,
    infer_columns,
    write_hf_folder,
)
from webdataset.samples.raw_samples import RawSample
from webdataset.storage.same_file import InputFiles

SCHEMAS: Final[Mapping[str, object]] = {
    "convert": {
        **WRITTEN,
        "description": "One line a shard, table or folder that was written.",
        "required": ["samples"],
        "properties": {**WRITTEN["properties"], "output": {"type": "string"}},
        "oneOf": [{"required": ["shard"]}, {"required": ["output"]}],
    }
}


class _ConversionFailures:
    """Counts what was left out, and says so."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, place: str, error: WebDatasetError) -> None:
        self.count += 1
        console.say(f"left out: {error}" if place in str(error) else f"left out: {place}: {error}")


@click.command("convert")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--from", "from_kind", type=click.Choice(SOURCES), help="What sources are; by default their names say it."
)
@click.option("--to", "to_kind", type=click.Choice(TARGETS), help="What to write; by default the name of OUT says it.")
@storage_options_of
@click.option("-k", "--key", metavar="COLUMN", help="Column that is the key, or a text with {column} in it.")
@click.option("--columns", multiple=True, metavar="PATTERN", help="Only these columns or fields (* and ?); repeatable.")
@click.option("--rename", "renames", multiple=True, metavar="NEW=OLD", help="Rename a column or field; repeatable.")
@click.option("--class-names", is_flag=True, help="Names of classes (Hugging Face) in place of their numbers.")
@click.option("--classes", metavar="FIELD", help="Folders: this field is the name of the first folder.")
@click.option("--raw", is_flag=True, help="Tables: the bytes of each field as they are, under its full name.")
@click.option(
    "--infer",
    type=click.IntRange(min=1),
    default=INFER_SAMPLES,
    show_default=True,
    metavar="N",
    help="Tables: the first samples that choose the columns.",
)
@on_error_option("converting", "stop", "skip")
@shard_output_options
def convert_command(
    sources: tuple[str, ...],
    *,
    output: ShardOutputs,
    from_kind: str | None,
    to_kind: str | None,
    storage_profile: str | None,
    split: str | None,
    key: str | None,
    columns: tuple[str, ...],
    renames: tuple[str, ...],
    class_names: bool,
    classes: str | None,
    raw: bool,
    infer: int,
    on_error: str,
) -> int:
    """Convert Parquet, Arrow, Hugging Face datasets, TFRecord, MDS and folders to shards, and shards to others of them.

    A column becomes a field by its type: text txt, integers cls, other numbers and lists json, arrays npy, files what
    they are; 'caption' becomes 'caption.txt'. Back, a field becomes a column: 'caption.txt' is 'caption'.

    Examples:
      wds convert train.parquet -o train-%06d.tar -s 1GB --key id
      wds convert saved_dataset/ -o test.tar --split test --rename jpg=image
      wds convert 'data-*.tfrecord.gz' mds_folder/ -o all-%06d.tar -c 10000
      wds convert 'train-*.tar' -o train.parquet
      wds convert train.tar -o files/ --to folder
    """
    failures = _ConversionFailures()
    failed: Failed | None = failures if on_error == "skip" else None
    rename = parse_renames(renames)
    kinds = {from_kind or choose_source_kind(source) for source in sources}
    target, chosen = _choose_target(output.target, to_kind, kinds)
    if chosen == "shards":
        _refuse_options(chosen, raw=raw, infer=infer != INFER_SAMPLES, classes=classes and kinds != {"folder"})
        rules = RowConverter(key=key, columns=columns, rename=rename, failed=failed)
        options = None if storage_profile is None else {"profile": storage_profile}
        reader = Conversion(rules, split=split, classes=classes, class_names=class_names, storage_options=options)
        output.inputs += reader.list_files(sources, from_kind)
        repeated = RepeatedKeys()
        samples = repeated.watch(_select(reader.read(sources, from_kind), kinds, columns, rename))
        output.write(samples, "converting")
        report_repeated_keys(repeated, rekeyed=output.rekey)
        _tell_left_out(rules, [source for source in sources if (from_kind or choose_source_kind(source)) == "folder"])
        return exit_status.PARTIAL if failures.count else exit_status.DONE
    _refuse_options(chosen, key=key, class_names=class_names, compress=output.compress, level=output.level)
    inputs = expand_inputs(sources, storage_profile=storage_profile, split=split)
    output.inputs += inputs
    samples = _select(read_inputs(inputs), {"folder"}, columns, rename)
    if chosen == "folder":
        _refuse_options(chosen, raw=raw, max_count=output.max_count, max_size=output.max_size)
        _write_folder(samples, target, output, classes=classes, failed=failed)
    else:
        _refuse_options(chosen, classes=classes)
        _write_tables(samples, target, output, chosen, raw=raw, infer=infer, failed=failed)
    return exit_status.PARTIAL if failures.count else exit_status.DONE


def _choose_target(target: str | None, to_kind: str | None, kinds: set[str]) -> tuple[str, str]:
    """Return what to write, and what it is."""
    if target is None:
        raise UsageError("name what to write: -o out-%06d.tar, -o out.parquet, -o FOLDER --to folder|hf")
    chosen = to_kind or choose_kind(target) or ("shards" if "shards" not in kinds else None)
    if chosen not in TARGETS:
        raise UsageError(f"its name does not tell what to write: say --to {'|'.join(TARGETS)}", url=target)
    if ("shards" in kinds) == (chosen == "shards") or (len(kinds) > 1 and "shards" in kinds):
        raise UsageError(
            f"one side is shards: {', '.join(sorted(kinds))} to {chosen} goes by way of shards "
            "(and from shards to shards go 'wds reshard' and 'wds select')"
        )
    return target, chosen


def _refuse_options(chosen: str, **given: object) -> None:
    wrong = next((name for name, is_given in given.items() if is_given), None)
    if wrong is not None:
        raise UsageError(f"--{wrong.replace('_', '-')} has no meaning here, where {chosen} is written: leave it out")


def _select(
    samples: Iterable[RawSample], kinds: set[str], columns: tuple[str, ...], rename: Mapping[str, str]
) -> Iterator[RawSample]:
    """Choose fields of samples that are no rows of a table: those are chosen from as columns.

    Raises:
        UsageError: there are both, so that the choice would mean two things.
    """
    if "folder" in kinds and len(kinds) > 1 and (columns or rename):
        raise UsageError("--columns and --rename: name fields of folders and columns of tables in separate commands")
    if kinds != {"folder"} or not (columns or rename):
        return iter(samples)
    return _choose_fields(samples, Selection(keep=columns, rename=rename))


def _choose_fields(samples: Iterable[RawSample], selection: Selection) -> Iterator[RawSample]:
    yield from selection.apply(samples)
    report_selection(selection)


def _tell_left_out(rules: RowConverter, folders: Iterable[str]) -> None:
    if rules.left_out:
        console.say(f"warning: left out columns whose names are the samples' own: {', '.join(sorted(rules.left_out))}")
    tell_loose_files(folders)


def _report(output: ShardOutputs, name: str, count: int) -> None:
    if output.as_json:
        console.write_json({"output": name, "samples": count})
    elif output.dry_run:
        console.say(f"would write {name} ({count} sample{'s' * (count != 1)})")


def _write_folder(
    samples: Iterable[RawSample], target: str, output: ShardOutputs, *, classes: str | None, failed: Failed | None
) -> None:
    force = output.force or output.dry_run
    writer = FolderWriter(target, classes=classes, force=force, failed=failed, dry_run=output.dry_run)
    with console.Progress("converting") as progress:
        writer.write_all(progress.track(samples))
    _report(output, target, writer.samples)


def _write_tables(
    samples: Iterable[RawSample],
    target: str,
    output: ShardOutputs,
    kind: str,
    *,
    raw: bool,
    infer: int,
    failed: Failed | None,
) -> None:
    force = output.force or output.dry_run
    bounds = {"max_samples": output.max_count, "max_bytes": output.max_size}
    if kind == "hf":
        check_hf_folder(target, force=force)
        InputFiles(output.inputs).refuse_folder(target)
    else:
        output.refuse_inputs()
    with console.Progress("converting") as progress:
        columns, rest = infer_columns(progress.track(samples), infer, raw=raw)
        if kind == "hf" and not output.dry_run:
            count = write_hf_folder(rest, columns, target, failed=failed, force=force, **bounds)
            _report(output, target, count)
            return
        if target == "-":
            raise UsageError("a table is not written to standard output: give -o FILE")
        name = os.path.join(target, "data-%05d.arrow") if kind == "hf" else target  # noqa: PTH118  as it was typed
        with TableWriter(
            name,
            "stream" if kind == "hf" else kind,
            columns,
            check=lambda each: check_target(each, force=force or kind == "hf"),
            failed=failed,
            dry_run=output.dry_run,
            **bounds,
        ) as writer:
            for sample in rest:
                writer.write(sample)
    for name, count in writer.files:
        _report(output, name, count)
