"""``wds tarp``: the commands of tarp with its options, by the engines of the other commands.

Where tarp loses data, this does not; ``docs/tarp.md`` lists every difference.
"""

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

import click

from webdataset.cli import console, exit_status
from webdataset.cli.inputs import Inputs, expand_inputs
from webdataset.cli.outputs import (
    WRITTEN,
    ShardOutputs,
    SizeType,
    on_error_option,
    read_inputs,
    report_repeated_keys,
)
from webdataset.cli.process import count_failures
from webdataset.cli.reshard import choose_seed
from webdataset.core import settings
from webdataset.core.errors import CommandFailed, MissingField, SampleError, SourceError, UsageError
from webdataset.core.stdlib_errors import TarError
from webdataset.reshaping.creation import RepeatedKeys, create_samples
from webdataset.reshaping.external_sort import shuffle_samples, sort_samples
from webdataset.reshaping.processing import OnError, TarpCommand, process_samples
from webdataset.reshaping.selection import FieldChoice, rekey_samples
from webdataset.samples.raw_samples import RawSample

SCHEMAS: Final[console.JsonSchema] = {"tarp": WRITTEN}
_ZMQ = re.compile(r"zr?(?:push|pull|pub|sub)(?:\+\w+)?:", re.IGNORECASE)
_RANDOM = "__random__"
_KEY = "__key__"
_VERBOSE = "tarp: verbose"
_OUTPUT_HELP = "A shard, or - for standard output."

Samples = Iterable[RawSample]


class NumberType(SizeType):
    """A number above 0: ``1000``, ``1e6``, ``500M``, ``2GiB``."""

    name = "N"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number that a text says."""
        match = re.fullmatch(r"(\d{1,15})[eE](\d{1,2})", str(value))
        text = str(int(match[1]) * 10 ** int(match[2])) if match else value
        return super().convert(text, param, ctx)


class SliceType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A slice: ``lo:hi``, ``lo:hi:step``; each part may be missing."""

    name = "LO:HI:STEP"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> slice:
        """Return the slice that a text says."""
        if isinstance(value, slice):
            return value
        match = re.fullmatch(r"(\d*):(\d*)(?::(\d*))?", str(value))
        if match is None or match[3] == "0":
            self.fail(f"{value!r} is no slice: write 0:1000, 1000: or 0:1000:10", param, ctx)
        return slice(*(int(part) if part else None for part in match.groups()))


_inputs = click.argument("inputs", nargs=-1, metavar="[INPUT...]")
_fields = click.option(
    "-f", "--fields", metavar="FIELDS", help="Keep these fields: 'jpg cls', 'new:old1,old2' renames the first there is."
)
_missing = click.option(
    "--missing",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="What to do about a sample that lacks a field.",
)
_slice = click.option("--slice", "part", type=SliceType(), help="Take these samples of the input only.")
_rekey = click.option("-R", "--rekey", metavar="'#'", help="New keys: '#' numbers the samples, in nine digits.")
_seed = click.option("--seed", type=int, help="Seed of the shuffle; without it, one is drawn and told.")


Command = Callable[..., int | None]


def _output_options(default: str | None = None) -> Callable[[Command], Command]:
    """Return what adds the options of outputs to a command, which gets ``output`` (:class:`ShardOutputs`)."""

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def call(**given: Any) -> int | None:
            target = given.pop("target")
            _refuse_zmq([target or ""])
            flags = {name: given.pop(name) for name in ("force", "dry_run", "as_json")}
            output = ShardOutputs(target, None, None, None, None, **flags)
            output.verbose = bool(click.get_current_context().find_root().meta.get(_VERBOSE))
            return command(output=output, **given)

        name = click.option("-o", "--output", "target", default=default, metavar="OUT", help=_OUTPUT_HELP)
        force = click.option("-F", "--force", is_flag=True, help="Replace what is there already.")
        dry_run = click.option("-n", "--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
        as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a shard written.")
        return name(force(dry_run(as_json(call))))

    return add


def _refuse_zmq(names: Iterable[str]) -> None:
    for name in names:
        if _ZMQ.match(name):
            raise UsageError(
                "ZMQ is not among the inputs and outputs of 'wds tarp': connect the programs by a pipe ('-'), by "
                "ssh ('pipe:ssh host cat x.tar'), or by shards in a store",
                url=name,
            )


def _find_inputs(names: Iterable[str], output: ShardOutputs) -> Inputs:
    """Return the shards that arguments stand for, which no output replaces; standard input where there are none.

    Raises:
        UsageError: ZMQ, or no arguments, and standard input is a terminal.
    """
    names = list(names)
    _refuse_zmq(names)
    if not names and sys.stdin.isatty():
        raise UsageError("name the shards to read, or - for standard input")
    found = expand_inputs(names or ["-"])
    output.inputs += found
    return found


class _Failures:
    """Counts what was left out, and says each."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, what: str, error: Exception) -> None:
        self.count += 1
        console.say(f"left out: {what}: {error}")

    @property
    def status(self) -> int:
        return exit_status.PARTIAL if self.count else exit_status.DONE


def _take(samples: Samples, part: slice | None) -> Iterator[RawSample]:
    return iter(samples) if part is None else islice(samples, part.start, part.stop, part.step)


def _choose_fields(samples: Samples, fields: str | None, missing: str, failures: _Failures) -> Iterator[RawSample]:
    if fields is None:
        return iter(samples)
    choice = FieldChoice(fields)
    return _each(samples, choice.apply, missing, failures)


def _each(
    samples: Samples, function: Callable[[RawSample], RawSample], missing: str, failures: _Failures
) -> Iterator[RawSample]:
    for sample in samples:
        try:
            yield function(sample)
        except MissingField as error:
            if missing == "error":
                raise
            failures.report(sample.key, error)


def _count(samples: Samples, every: int) -> Iterator[RawSample]:
    for number, sample in enumerate(samples, 1):
        if every and number % every == 0:
            console.say(f"{number} {console.escape_name(sample.key)}")
        yield sample


@click.group("tarp")
@click.option("-v", "--verbose", is_flag=True, help="Say what was written.")
@click.pass_context
def tarp_command(context: click.Context, *, verbose: bool) -> None:
    """Run tarp's commands, with tarp's options, so that its pipelines run as they stand.

    Inputs are shards as for every command; without any, standard input is read. docs/tarp.md lists what differs from
    tarp: nothing is lost or overwritten silently.

    Examples:
      wds tarp create -o train.tar recipe.txt
      wds tarp sort - -o - < train.tar | wds tarp split -c 1000 -o 'train-%06d.tar'
      wds tarp cat -f 'jpg:jpg,jpeg cls' --shuffle 1000 -o out.tar 'in-{000..099}.tar'
    """
    context.find_root().meta[_VERBOSE] = verbose


@tarp_command.command("create")
@click.argument("recipe", default="-")
@click.option("--count", type=click.IntRange(min=0), default=0, metavar="N", help="Tell every N samples.")
@_output_options()
def create_command(recipe: str, *, output: ShardOutputs, count: int) -> None:
    r"""Make a shard of a recipe: lines NAME SOURCE, where SOURCE is a path or url, text:... or pipe:COMMAND.

    Members are written in the order of the lines.

    Examples:
      printf 'a.txt text:hello\na.jpg /data/a.jpg\n' | wds tarp create -o a.tar -
    """
    _refuse_zmq([recipe])
    output.inputs.append(recipe)
    repeated = RepeatedKeys()
    output.write(_count(repeated.watch(create_samples(recipe, "recipe")), count), "writing")
    report_repeated_keys(repeated, rekeyed=False)


@tarp_command.command("cat")
@_inputs
@_fields
@_missing
@click.option("-s", "--shuffle", type=click.IntRange(min=0), default=0, metavar="N", help="Shuffle with a buffer of N.")
@_seed
@click.option("-E", "--noeof", is_flag=True, help="Ignored: it is about ZMQ.")
@click.option("-L", "--logging", "every", type=click.IntRange(min=0), default=0, help="Tell every N samples.")
@click.option("-m", "--mix", type=click.IntRange(min=0), default=0, metavar="N", help="Take from N shards in turn.")
@click.option("-l", "--load", metavar="LIST", help="Read names of shards from a file, one a line.")
@click.option("--maxerr", type=click.IntRange(min=0), default=0, help="So many shards may be missing or damaged.")
@_slice
@click.option("--shardslice", type=SliceType(), help="Take these of the shards only.")
@_rekey
@_output_options()
def cat_command(
    inputs: tuple[str, ...],
    *,
    output: ShardOutputs,
    fields: str | None,
    missing: str,
    shuffle: int,
    seed: int | None,
    mix: int,
    maxerr: int,
    part: slice | None,
    shardslice: slice | None,
    rekey: str | None,
    load: str | None,
    every: int,
    noeof: bool,  # noqa: ARG001
) -> int:
    """Join shards into one: choose fields and samples, mix, shuffle, give new keys.

    The slice is taken first, then fields, shuffle, new keys. --maxerr keeps the samples before the damage; status 4.

    Examples:
      wds tarp cat -f 'png:png,jpg cls' --slice 0:1000 -o first.tar 'in-{0..9}.tar'
      wds tarp cat -m 4 -s 1000 -R '#' -o - 'in-{0..9}.tar' | wds tarp split -c 1000
    """
    _refuse_zmq([load or ""])
    found = _find_inputs([*inputs, *([] if load is None else [f"@{load}"])], output)
    urls = found.urls[shardslice] if shardslice is not None else found.urls
    failures = _Failures()
    streams = (_read_one(url, failures, maxerr) for url in urls)
    samples = _count(_take(_take_in_turn(streams, mix) if mix > 1 else chain.from_iterable(streams), part), every)
    samples = _choose_fields(samples, fields, missing, failures)
    if shuffle:
        import random  # noqa: PLC0415  for shuffling alone

        from webdataset.stages.shuffle import shuffle_buffer  # noqa: PLC0415

        draw = random.Random(choose_seed(seed))  # noqa: S311  shuffling, not cryptography
        samples = shuffle_buffer(samples, [], shuffle + 1, shuffle // 2 + 1, draw)
    output.write(rekey_samples(samples, rekey), "writing")
    return failures.status


def _read_one(url: str, failures: _Failures, most: int) -> Iterator[RawSample]:
    """Yield the samples of a shard; of one that is missing or damaged, those before the damage."""
    try:
        yield from read_inputs(Inputs((url,)))
    except (SourceError, TarError, SampleError) as error:
        if failures.count >= most:
            raise
        failures.report(url, error)


def _take_in_turn(streams: Iterable[Iterator[RawSample]], count: int) -> Iterator[RawSample]:
    """Yield a sample of each of so many streams in turn; when one ends, the next takes its place."""
    waiting = iter(streams)
    live = list(islice(waiting, count))
    turn = 0
    while live:
        turn %= len(live)
        sample = next(live[turn], None)
        if sample is not None:
            turn += 1
            yield sample
            continue
        following = next(waiting, None)
        if following is None:
            del live[turn]
        else:
            live[turn] = following


@tarp_command.command("proc")
@_inputs
@_fields
@_missing
@click.option("-c", "--command", metavar="COMMAND", help="Run it for each sample: it changes files sample.FIELD.")
@click.option("-m", "--multicommand", metavar="COMMAND", help="The same; it makes any number of sample-000000.FIELD.")
@_slice
@click.option("--shell", metavar="PROGRAM", help="What runs the command after -c; bash by default.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="How many run at a time.")
@on_error_option("the command", "stop", "skip", "keep")
@_output_options()
def proc_command(
    inputs: tuple[str, ...],
    *,
    output: ShardOutputs,
    fields: str | None,
    missing: str,
    command: str | None,
    multicommand: str | None,
    part: slice | None,
    shell: str | None,
    jobs: int,
    on_error: OnError,
) -> int:
    """Run a shell command for each sample, in a folder with its fields as sample.FIELD, its key as sample.__key__.

    What the command leaves there is the sample. With -m, files sample-000000.FIELD, sample-000001.FIELD, ... are new
    samples; their keys are in sample-000000.__key__, or KEY/000000.

    Examples:
      wds tarp proc -c 'gm mogrify -size 256x256 *.png' -o small.tar in.tar
      wds tarp proc -m 'split -l 100 -d -a 6 --additional-suffix .txt sample.txt sample-' -o parts.tar in.tar
    """
    if (command is None) == (multicommand is None):
        raise UsageError("give the command either as -c COMMAND, or as -m COMMAND that makes several samples")
    failures = _Failures()
    function = TarpCommand(
        command or multicommand or "", settings.child_environment(), several=multicommand is not None, shell=shell
    )
    samples = _choose_fields(_take(read_inputs(_find_inputs(inputs, output)), part), fields, missing, failures)
    failed, report = count_failures(on_error)
    samples = process_samples(samples, function, jobs=jobs, on_error=on_error, failed=report)
    output.write(samples, "processing")
    return exit_status.PARTIAL if failed else failures.status


@tarp_command.command("sort")
@_inputs
@_fields
@_missing
@click.option(
    "-s", "--sortfield", default=_RANDOM, show_default=True, metavar="FIELD", help="What to sort by, as bytes; __key__."
)
@_seed
@_slice
@click.option("--tmpdir", metavar="FOLDER", help="Folder of temporary files.")
@click.option("--keepdb", is_flag=True, help="Ignored, as tarp does: there is no database.")
@_rekey
@_output_options()
def sort_command(
    inputs: tuple[str, ...],
    *,
    output: ShardOutputs,
    fields: str | None,
    missing: str,
    sortfield: str,
    seed: int | None,
    part: slice | None,
    tmpdir: str | None,
    rekey: str | None,
    keepdb: bool,  # noqa: ARG001
) -> int:
    """Sort samples by the bytes of a field, or shuffle them fully; with bounded memory. Equal ones keep their order.

    'wds sort --by cls' compares numbers as numbers.

    Examples:
      cat in.tar | wds tarp sort - -o shuffled.tar
      wds tarp sort -s cls -f 'jpg cls' -o sorted.tar in.tar
    """
    failures = _Failures()
    samples = _take(read_inputs(_find_inputs(inputs, output)), part)
    late = fields is not None and sortfield not in {_RANDOM, _KEY, *FieldChoice(fields).names}
    if not late:
        samples = _choose_fields(samples, fields, missing, failures)
    if sortfield == _RANDOM:
        samples = shuffle_samples(samples, choose_seed(seed), folder=tmpdir)
    else:
        present = _each(samples, lambda sample: _require(sample, sortfield), missing, failures)
        samples = sort_samples(present, lambda sample: _sort_value(sample, sortfield), folder=tmpdir)
    if late:
        samples = _choose_fields(samples, fields, missing, failures)
    output.write(rekey_samples(samples, rekey), "sorting")
    return failures.status


def _require(sample: RawSample, field: str) -> RawSample:
    """Return the sample.

    Raises:
        MissingField: it lacks the field.
    """
    if field != _KEY and field.lower() not in sample.fields:
        raise MissingField(
            f"the sample has no field {field!r}; it has {' '.join(sample.fields)}", key=sample.key, url=sample.url
        )
    return sample


def _sort_value(sample: RawSample, field: str) -> str:
    """Return a text that orders samples as the bytes of the field do."""
    if field == _KEY:
        return sample.key.encode("utf-8", "surrogateescape").decode("latin-1")
    return (sample.payload(field.lower()) or b"").decode("latin-1")


@tarp_command.command("split")
@_inputs
@click.option("-c", "--count", type=NumberType(), default="1e6", show_default=True, help="Samples in a shard.")
@click.option("-s", "--size", type=NumberType(), default="1e9", show_default=True, help="Bytes of a shard, at most.")
@click.option(
    "-p", "--post", metavar="COMMAND", help="Run it for each complete shard; %s is its name. It may delete it."
)
@_slice
@_output_options("split-%06d.tar")
def split_command(
    inputs: tuple[str, ...], *, output: ShardOutputs, count: int, size: int, post: str | None, part: slice | None
) -> None:
    """Cut shards into numbered ones; no sample is cut.

    POST is run by 'bash -e', so that it stops at its first failure; a failure ends the command with status 3.

    Examples:
      cat in.tar | wds tarp split -c 1000 -o 'out-%06d.tar'
      wds tarp split -s 1e8 -o 'out-%06d.tar' -p 'gsutil cp %s gs://bucket/; rm %s' in.tar
    """
    output.max_count, output.max_size = count, size
    if post is not None:
        output.completed = lambda name: _run_post(post, name)
    output.write(_take(read_inputs(_find_inputs(inputs, output)), part), "splitting")


def _run_post(command: str, name: str) -> None:
    """Run a command for a shard.

    Raises:
        CommandFailed: it ends with an error status.
    """
    done = subprocess.run(  # noqa: S603  running the user's command is what this is for
        ["bash", "-e", "-c", command.replace("%s", shlex.quote(name))],  # noqa: S607
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env=settings.child_environment(),
        check=False,
    )
    if done.returncode:
        raise CommandFailed(
            f"the command of --post ended with status {done.returncode}; the shard stays, later ones are not written",
            url=name,
        )
