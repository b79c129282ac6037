"""What commands write: nothing is replaced without ``--force``, and each file appears whole or not at all."""

import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from webdataset.cli import console, exit_status
from webdataset.core.errors import AlreadyExists, NotFound, UsageError

if TYPE_CHECKING:
    from webdataset.cli.inputs import Inputs
    from webdataset.inspection.expression import Expression
    from webdataset.reshaping.creation import RepeatedKeys
    from webdataset.reshaping.raw_writer import RawShardSeries
    from webdataset.reshaping.selection import Selection
    from webdataset.samples.raw_samples import RawSample


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--force`` and ``--dry-run`` to a command.

    Args:
        command: takes ``force`` and ``dry_run``.
    """
    force = click.option("-F", "--force", is_flag=True, help="Replace what is there already.")
    dry_run = click.option("-n", "--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
    return functools.reduce(lambda inner, option: option(inner), (dry_run, force), command)


WRITTEN: Final[console.JsonSchema] = {
    "description": "One line a shard that was written.",
    "type": "object",
    "required": ["shard", "samples"],
    "properties": {"shard": {"type": "string"}, "samples": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
}
"""The schema of what commands that write shards print with ``--json``."""

_OTHER_FORMATS = re.compile(
    r"\.(zip|7z|rar|parquet|arrow|feather|tfrecords?|mds|jsonl?|csv|tsv|hdf5|h5|lmdb|npy|npz)$", re.IGNORECASE
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)


class SizeType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A number of bytes: ``100000``, ``500M``, ``1.5GB`` (thousands), ``2GiB`` (1024s)."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes that a text says."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value.strip())
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no size: write a number of bytes, or 500M, 1.5GB, 2GiB", param, ctx)
        power = " kmgtp".index(match[2].lower() or " ")
        return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def on_error_option(what: str, *choices: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--on-error``.

    Args:
        what: what may fail for a sample.
        *choices: what can be done then, the default first.
    """
    return click.option(
        "--on-error",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help=f"What to do about a sample for which {what} fails.",
    )


def shard_output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that write shards; the command gets ``output`` (:class:`ShardOutputs`).

    Args:
        command: takes ``output`` as keyword.
    """
    options = [
        click.option("-o", "--output", "target", metavar="OUT", help=_OUTPUT_HELP),
        click.option("-c", "--max-count", type=click.IntRange(min=1), metavar="N", help="Samples in a numbered shard."),
        click.option("-s", "--max-size", type=SizeType(), help="Bytes of a numbered shard: 500M, 2GiB."),
        click.option("-z", "--compress", type=click.Choice(["gz", "bz2", "xz", "zst", "none"]), help=_COMPRESS_HELP),
        click.option("--level", type=int, metavar="N", help="Level of the compression."),
        click.option("--rekey", is_flag=True, help="Give the samples new keys: their numbers, in nine digits."),
        click.option("-F", "--force", is_flag=True, help="Replace what is there already."),
        click.option("-n", "--dry-run", is_flag=True, help="Say what would be written, and write nothing."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object a shard written."),
    ]

    @functools.wraps(command)
    def call(*arguments: Any, **given: Any) -> Any:
        names = ("target", "max_count", "max_size", "compress", "level", "rekey", "force", "dry_run", "as_json")
        output = ShardOutputs(**{name: given.pop(name) for name in names})
        output.inputs += given.get("inputs", ())
        return command(*arguments, output=output, **given)

    return functools.reduce(lambda inner, option: option(inner), reversed(options), call)


_OUTPUT_HELP = "A shard, a pattern for numbered shards (out-%06d.tar), a url, or - for standard output."
_COMPRESS_HELP = "Compression; without it, the name decides."


class ShardOutputs:
    """Where a command writes shards, and how.

    Args:
        target: a path, a pattern, a url or ``-``; None where the command line names none.
        max_count: samples in a numbered shard.
        max_size: bytes of a numbered shard.
        compress: ``gz``, ``bz2``, ``xz``, ``zst``, ``none``, or None for what the name says.
        level: of the compression.
        force: replace what is there.
        dry_run: write nothing.
        as_json: print what was written.
        rekey: number the samples in place of their keys.

    Attributes:
        inputs: urls of what is read, which no output may replace before all is read.
        verbose: say what was written also where standard error is no terminal.
        completed: called with the name of each shard that is complete; not in a dry run.

    Raises:
        UsageError: JSON and a shard both on standard output.
    """

    def __init__(
        self,
        target: str | None,
        max_count: int | None,
        max_size: int | None,
        compress: str | None,
        level: int | None,
        *,
        force: bool,
        dry_run: bool,
        as_json: bool,
        rekey: bool = False,
    ) -> None:
        if as_json and target == "-" and not dry_run:
            raise UsageError("--json and the shard cannot both be on standard output: give -o FILE")
        self.target, self.max_count, self.max_size = target, max_count, max_size
        self.compress: str | bool | None = False if compress == "none" else compress
        self.level, self.force, self.dry_run, self.as_json = level, force, dry_run, as_json
        self.rekey = rekey
        self.inputs: list[str] = []
        self.verbose = False
        self.completed: Callable[[str], None] | None = None

    def open(self) -> "RawShardSeries":
        """Return the writer; nothing is written over without ``--force``.

        Raises:
            AlreadyExists: a shard is there.
            UsageError: there is no target, options make no sense together, or an input would be replaced.
        """
        from webdataset.reshaping.raw_writer import RawShardSeries  # noqa: PLC0415  after --help

        if self.target is None:
            raise UsageError("name what to write: -o FILE, -o out-%06d.tar for numbered shards, -o - for stdout")
        self.refuse_inputs()
        # a command (pipe:) may convert the tar that it receives
        other = None if self.target.startswith("pipe:") else _OTHER_FORMATS.search(self.target.partition("?")[0])
        if other is not None:
            raise UsageError(
                f"shards are tar files, not {other[0]}: name them out.tar, or out.tar.gz to compress them"
                " ('wds convert' writes shards to out.parquet, out.arrow and folders of files)",
                url=self.target,
            )
        return RawShardSeries(
            self.target,
            max_samples=self.max_count,
            max_bytes=self.max_size,
            compress=self.compress,
            level=self.level,
            check=functools.partial(check_target, force=self.force or self.dry_run),
            dry_run=self.dry_run,
            completed=None if self.dry_run else self.completed,
        )

    def refuse_inputs(self) -> None:
        """Refuse numbered outputs that would replace inputs; without ``--force`` nothing that is there is replaced.

        Raises:
            UsageError: they would.
        """
        if not self.force or self.target in (None, "-"):
            return
        from webdataset.storage.same_file import InputFiles  # noqa: PLC0415  for --force alone

        InputFiles(self.inputs).refuse_pattern(self.target)

    def write(self, samples: "Iterable[RawSample]", label: str) -> None:
        """Write samples, and say what was written.

        Args:
            samples: as they stand.
            label: what is done, for the progress.
        """
        with console.Progress(label) as progress, self.open() as series:
            for sample in self.choose_keys(samples):
                series.write(sample)
                progress.advance()
        self.report(series)

    def choose_keys(self, samples: "Iterable[RawSample]") -> "Iterator[RawSample]":
        """Return samples with the keys that are to be written.

        Args:
            samples: as they stand.
        """
        from webdataset.reshaping.selection import rekey_samples  # noqa: PLC0415  after --help

        return rekey_samples(samples, "#" if self.rekey else None)

    def report(self, series: "RawShardSeries") -> None:
        """Say what was written: as JSON, in a dry run, or where standard error is a terminal; and that nothing was.

        Args:
            series: the writer, closed.
        """
        for name, count in series.shards:
            if self.as_json:
                console.write_json({"shard": name, "samples": count})
            elif self.dry_run or self.verbose or sys.stderr.isatty():
                verb = "would write" if self.dry_run else "wrote"
                console.say(f"{verb} {name} ({count} sample{'s' * (count != 1)})")
        if not any(count for _, count in series.shards):
            console.say("warning: there were no samples to write")


def read_inputs(inputs: "Inputs", **rules: Any) -> "Iterator[RawSample]":
    """Yield the samples of all shards, and say which files belong to no sample.

    Args:
        inputs: the shards.
        **rules: fields of :class:`~webdataset.samples.sample_reader.Reading`.
    """
    from webdataset.samples.raw_samples import RawSamples  # noqa: PLC0415  after --help

    for url in inputs:
        samples = RawSamples(url, inputs.reading(**rules))
        yield from samples
        _warn_of_loose(url, samples.loose_count, samples.loose)


def report_missing(left: Iterable[str], what: str, *, found: bool) -> int:
    """Say which keys, fields or files were not met; return the status.

    Args:
        left: their names.
        what: ``key``, ``field`` or ``file``.
        found: others were met.
    """
    missing = sorted(left)
    if not missing:
        return exit_status.DONE
    shown = ", ".join(map(console.escape_name, missing[:5])) + (", ..." if len(missing) > 5 else "")
    several = f"{len(missing)} {what}s" if len(missing) > 1 else what
    console.say(f"warning: no shard has the {several} {shown}")
    if not found:
        return exit_status.NONE_FOUND
    # samples may have one of several fields
    return exit_status.DONE if what == "field" else exit_status.PARTIAL


def report_selection(selection: "Selection") -> None:
    """Say which fields no sample had, and how many samples have been left out since none of their fields stayed.

    Args:
        selection: after it was asked about all samples.
    """
    if selection.unmet_fields:
        console.say(f"warning: no sample has a field {', '.join(map(console.escape_name, selection.unmet_fields))}")
    number, first = selection.emptied
    if first is not None:
        samples, first = f"{number} sample{'s' * (number != 1)}", console.escape_name(first)
        console.say(f"warning: left out {samples} without any of the fields that stay; the first is {first}")


def parse_renames(texts: Iterable[str]) -> dict[str, str]:
    """Return the old name of each new one.

    Args:
        texts: of the option ``--rename``.

    Raises:
        UsageError: not of the form NEW=OLD, or a name comes twice: one of the two would be lost.
    """
    found: dict[str, str] = {}
    for text in texts:
        new, equals, old = text.partition("=")
        if not (new and equals and old) or new in found or old in found.values():
            raise UsageError(f"--rename {text!r} makes no sense: write NEW=OLD, and each name once")
        found[new] = old
    return found


_MOST_FIELDS = 20


def warn_of_absent(expression: "Expression") -> None:
    """Say which names of an expression no sample had: they may be misspelt.

    Args:
        expression: after it was asked about all samples.
    """
    if not expression.absent:
        return
    hint = ""
    if expression.fields:
        hint = f"; the first sample has {', '.join(map(console.escape_name, expression.fields[:_MOST_FIELDS]))}"
        plain = next((name for name in expression.absent if name.isidentifier()), None)
        if plain is not None and "json" in expression.fields:
            hint += f" (what a JSON field holds is json.{plain})"
    console.say(f"warning: missing in all samples: {', '.join(map(console.escape_name, expression.absent))}{hint}")


def report_repeated_keys(repeated: "RepeatedKeys", *, rekeyed: bool) -> None:
    """Say which keys came again apart from each other, so that several samples have them.

    Args:
        repeated: after all samples passed.
        rekeyed: the samples got new keys.
    """
    if repeated.count and not rekeyed:
        shown = ", ".join(map(console.escape_name, repeated.first))
        more = ", ..." if repeated.count > len(repeated.first) else ""
        console.say(
            f"warning: {repeated.count} samples have the key of an earlier one: {shown}{more}; where they are parts of "
            "one, put them together (sort the recipe), else make keys distinct (--rekey)"
        )


def tell_loose_files(folders: Iterable[str]) -> None:
    """Say which files of folders belong to no sample: hidden ones, and those without an extension.

    Args:
        folders: their paths.
    """
    from webdataset.reshaping.folders import find_loose_files  # noqa: PLC0415  after --help

    for folder in folders:
        loose = find_loose_files(folder)
        _warn_of_loose(folder, len(loose), loose[:3])


def _warn_of_loose(place: str, count: int, some: list[str]) -> None:
    if count:
        named = ", ".join(map(console.escape_name, some))
        more = ", ..." if count > len(some) else ""
        console.say(f"warning: {place}: left out {count} files of no sample: {named}{more}")


def check_target(target: str, *, force: bool) -> None:
    """Refuse to replace what is there, and to write an archive to a terminal.

    Args:
        target: a path, a url, or ``-``.
        force: replace what is there.

    Raises:
        AlreadyExists: something is there, and ``force`` is false.
        UsageError: standard output is a terminal.
    """
    from webdataset.storage.open_url import (  # noqa: PLC0415  after --help
        find_backend,
        local_path,
        open_url,
        rewrite_url,
    )
    from webdataset.writing.local_file import is_special  # noqa: PLC0415

    if target == "-":
        if sys.stdout.isatty():
            raise UsageError("an archive is not written to a terminal: give -o FILE, or a pipe")
        return
    if force:
        return
    path = local_path(target)
    if path is not None:
        from webdataset.storage.local_listing import is_there  # noqa: PLC0415  loaded when something may be replaced

        there = is_there(path) and not is_special(path)
    elif find_backend(rewrite_url(target)) is None:
        there = False  # a command, or an opener of the user's: whether it replaces anything, it alone knows
    else:
        try:
            with open_url(target) as stream:
                stream.read(1)
            there = True
        except NotFound:
            there = False
    if there:
        raise AlreadyExists("this is there already: give another name, or --force to replace it", url=target)


def write_text_file(target: str, text: str, *, force: bool, dry_run: bool) -> None:
    """Write a text, whole or not at all.

    Args:
        target: a path or url; ``-`` is standard output.
        text: the text.
        force: replace what is there.
        dry_run: say so only.

    Raises:
        AlreadyExists: something is there, and ``force`` is false.
        SourceError: it cannot be written.
    """
    from webdataset.writing.outputs import open_output  # noqa: PLC0415  after --help

    if target == "-":
        console.write_line(text.rstrip("\n"))
        return
    check_target(target, force=force)
    content = text.encode("utf-8", "surrogateescape")
    if dry_run:
        console.say(f"would write {target} ({len(content)} bytes)")
        return
    output = open_output(target)
    try:
        output.write((content,), len(content))
        output.commit()
    except BaseException:  # whatever it is: nothing may be left
        output.abort()
        raise
