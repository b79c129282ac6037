"""``wds cat``, ``wds split`` and ``wds select``: samples from shards to shards, in their order, as they stand."""

import codecs
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from webdataset.cli import console, exit_status
from webdataset.cli.inputs import Inputs, input_options
from webdataset.cli.outputs import (
    WRITTEN,
    ShardOutputs,
    on_error_option,
    parse_renames,
    read_inputs,
    report_missing,
    report_selection,
    shard_output_options,
    warn_of_absent,
)
from webdataset.core.errors import MissingField, SampleError, UsageError
from webdataset.inspection.expression import Expression
from webdataset.reshaping.selection import Selection
from webdataset.samples.raw_samples import RawSample, read_members

SCHEMAS: Final[console.JsonSchema] = {"cat": WRITTEN, "split": WRITTEN, "select": WRITTEN}
_GIGABYTE = 1_000_000_000


@click.command("cat")
@input_options
@click.option("-k", "--key", "keys", multiple=True, metavar="KEY", help="Only the sample of this key; may be repeated.")
@click.option("-f", "--field", "fields", multiple=True, metavar="FIELD", help="Write the bytes of this field alone.")
@click.option("-m", "--member", "members", multiple=True, metavar="NAME", help="Write the bytes of this member alone.")
@shard_output_options
def cat_command(
    inputs: Inputs, *, output: ShardOutputs, keys: tuple[str, ...], fields: tuple[str, ...], members: tuple[str, ...]
) -> int:
    """Join shards into one, or write the bytes of fields.

    Members are written as they stand: names, modes, times, PAX records. With --field or --member, payloads are
    written one after another, with nothing between.

    Examples:
      wds cat -o all.tar part-{0..9}.tar
      wds cat -o - 's3://bucket/*.tar.gz' | tar -tvf -
      wds cat --key 0001 --field json shard.tar
      wds cat --field txt shard.tar | sort | uniq -c
    """
    if fields or members:
        return _write_payloads(inputs, output, frozenset(keys), fields, members)
    if keys:
        selection = Selection(keys=frozenset(keys))
        output.write(selection.apply(read_inputs(inputs)), "writing")
        return _report_missing_keys(selection)
    if output.max_count or output.max_size or output.rekey:
        output.write(read_inputs(inputs), "writing")
        return exit_status.DONE
    with console.Progress("writing", total=len(inputs)) as progress, output.open() as series:
        for url in inputs:
            series.write_members(read_members(url, inputs.reading()))
            progress.advance(detail=url)
    output.report(series)
    return exit_status.DONE


def _write_payloads(
    inputs: Inputs, output: ShardOutputs, keys: frozenset[str], fields: tuple[str, ...], members: tuple[str, ...]
) -> int:
    """Write payloads to standard output; the status says whether there were any.

    Raises:
        UsageError: options that are about shards.
    """
    if output.target not in (None, "-") or output.max_count or output.max_size or output.compress or output.as_json:
        raise UsageError("the bytes of fields go to standard output: leave out the options of shards")
    if members and (keys or fields):
        raise UsageError("--member is the whole name of a file: leave out --key and --field")
    wanted, what = (members, "file") if members else (tuple(keys), "key") if keys else (fields, "field")
    left = set(wanted)
    for payload in _find_members(inputs, members, left) if members else _find_fields(inputs, keys, fields, left):
        console.write_bytes((payload,))
    return report_missing(left, what, found=len(left) < len(set(wanted)))


def _find_members(inputs: Inputs, members: tuple[str, ...], left: set[str]) -> Iterator[bytes]:
    """Yield payloads; the names that are met leave ``left``."""
    for url in inputs:
        for member in read_members(url, inputs.reading()):
            if member.name in members:
                left.discard(member.name)
                yield member.payload


def _find_fields(inputs: Inputs, keys: frozenset[str], fields: tuple[str, ...], left: set[str]) -> Iterator[bytes]:
    """Yield payloads; reading ends with the last key that was asked for. What is met leaves ``left``.

    Raises:
        MissingField: a sample that was asked for by its key has no such field.
    """
    for sample in read_inputs(inputs):
        if keys and sample.key not in keys:
            continue
        for field in fields:
            payload = sample.payload(field)
            if payload is not None:
                left.discard(sample.key if keys else field)
                yield payload
            elif keys:
                names = " ".join(sample.fields)
                raise MissingField(f"the sample has no field {field!r}; it has {names}", key=sample.key, url=sample.url)
        if keys and not left:
            return


def _report_missing_keys(selection: Selection) -> int:
    """Say which keys were not met; return the status."""
    missing = (selection.keys or frozenset()) - selection.found_keys
    return report_missing(missing, "key", found=bool(selection.taken))


@click.command("split")
@input_options
@shard_output_options
def split_command(inputs: Inputs, *, output: ShardOutputs) -> None:
    """Cut shards into numbered ones of so many samples or bytes (1 GB without -c and -s); no sample is cut.

    Examples:
      wds split -o part-%06d.tar -c 1000 big.tar
      wds split -o part-%06d.tar -s 500M 's3://bucket/*.tar'
    """
    if output.max_count is None and output.max_size is None:
        output.max_size = _GIGABYTE
    output.write(read_inputs(inputs), "splitting")


@click.command("select")
@input_options
@shard_output_options
@click.option("-w", "--where", metavar="EXPR", help="Keep the samples for which it holds; see 'wds grep --help'.")
@click.option("--keys", "key_file", metavar="FILE", help="Keep the samples whose keys are in a file, one a line.")
@click.option("--tag", metavar="TAG", help="Of a file of tags ('wds view --tags'): keep the samples with this tag.")
@click.option("-k", "--keep", multiple=True, metavar="FIELD", help="Keep this field (* and ? match); may be repeated.")
@click.option("-d", "--drop", multiple=True, metavar="FIELD", help="Drop this field (* and ? match); may be repeated.")
@click.option("-r", "--rename", multiple=True, metavar="NEW=OLD", help="Rename a field; may be repeated.")
@click.option("--require", is_flag=True, help="Fail where a sample lacks a field that is renamed.")
@on_error_option("the expression", "stop", "skip")
def select_command(inputs: Inputs, *, output: ShardOutputs, on_error: str, **options: Any) -> int:
    """Keep some samples and fields, and rename fields; what is kept is written as it stands.

    Examples:
      wds select -w 'json.width >= 512' -o large.tar train-{000..099}.tar
      wds select --drop '*.txt' -r jpg=image.jpg -o out-%04d.tar -c 1000 shards/
      wds grep 'size("jpg") == 0' x.tar > bad && wds select --keys bad -o bad.tar x.tar
      wds select --keys tags.tsv --tag keep -o kept.tar x.tar
    """
    failed: list[str] = []
    where = None if options["where"] is None else Expression(options["where"])
    keys = None if options["key_file"] is None else _read_keys(options["key_file"], options["tag"])
    if keys is None and options["tag"] is not None:
        raise UsageError("--tag chooses among the lines of a file of tags: name it with --keys")
    selection = Selection(
        where=None if where is None else _make_test(where, on_error, failed),
        keys=keys,
        keep=options["keep"],
        drop=options["drop"],
        rename=parse_renames(options["rename"]),
        require_fields=options["require"],
    )
    output.write(selection.apply(read_inputs(inputs)), "selecting")
    if where is not None and not selection.taken:
        warn_of_absent(where)
    report_selection(selection)
    status = _report_missing_keys(selection) if keys is not None else exit_status.DONE
    return exit_status.PARTIAL if failed else status


def _make_test(expression: Expression, on_error: str, failed: list[str]) -> Callable[[RawSample], bool]:
    def holds(sample: RawSample) -> bool:
        try:
            return expression.holds(sample.payloads(), key=sample.key, shard=sample.url)
        except SampleError as error:
            if on_error == "stop":
                raise
            failed.append(sample.key)
            console.say(f"left out: {error}")
            return False

    return holds


def _read_keys(name: str, tag: str | None) -> frozenset[str]:
    """Return the keys in a file: one a line, or a key, a tab and a tag a line."""
    from webdataset.storage.open_url import open_url  # noqa: PLC0415  for files of keys alone

    with open_url(name) as stream:
        content: bytes = stream.read().removeprefix(codecs.BOM_UTF8)
    if tag is not None or b"\t" in content.partition(b"\n")[0]:
        from webdataset.reshaping.tag_lines import choose_keys  # noqa: PLC0415  for files of tags alone

        return choose_keys(content, name, tag)
    return frozenset(content.decode("utf-8", "surrogateescape").splitlines())
