"""``wds state``: what a saved state is, which keys a run delivers, and the state of a run further on."""

import json
from collections.abc import Callable
from typing import Any, Final

import click

from webdataset.cli import console
from webdataset.cli.datasets import dataset_options
from webdataset.cli.outputs import check_target, write_text_file
from webdataset.core.errors import StateMismatch, UsageError

_COUNT: Final[console.JsonSchema] = {"type": "integer", "minimum": 0}
_MAYBE_COUNT: Final[console.JsonSchema] = {"type": ["integer", "null"], "minimum": 0}
_TEXTS: Final[console.JsonSchema] = {"type": "array", "items": {"type": "string"}}
_NUMBERS: Final[console.JsonSchema] = {"type": ["array", "null"], "items": _COUNT}
_STREAM: Final[console.JsonSchema] = {
    "type": "object",
    "required": ["stream", "items", "passes", "over", "shard", "sample", "offset"],
    "properties": {
        "stream": _COUNT,
        "items": _COUNT,
        "passes": _MAYBE_COUNT,
        "over": {"type": "boolean"},
        "shard": {**_MAYBE_COUNT, "description": "number of the shard read last, in the list of the stream"},
        "sample": _MAYBE_COUNT,
        "offset": {**_MAYBE_COUNT, "description": "byte at which that sample begins"},
    },
    "additionalProperties": False,
}
_SHOWN: Final[console.JsonSchema] = {
    "kind": {"enum": ["webdataset.elastic", "webdataset.loader"]},
    "version": _COUNT,
    "seed": {"type": "integer"},
    "epoch": _COUNT,
    "over": {"type": "boolean", "description": "the epoch is over, as far as the state tells"},
    "received": {**_COUNT, "description": "items of all known streams"},
    "streams": _COUNT,
    "known": {**_COUNT, "description": "streams that the state knows"},
    "ended": _COUNT,
    "shards": _MAYBE_COUNT,
    "passes": _MAYBE_COUNT,
    "items": _MAYBE_COUNT,
    "stages": _TEXTS,
    "ranks": _NUMBERS,
    "given": _MAYBE_COUNT,
    "turn": _NUMBERS,
    "progress": {"type": "array", "items": _STREAM},
}
SCHEMAS: Final[console.JsonSchema] = {
    "state": {
        "description": "show: one object. trace: one line a batch. advance: the new state.",
        "oneOf": [
            {"type": "object", "required": list(_SHOWN), "properties": _SHOWN, "additionalProperties": False},
            {
                "type": "object",
                "required": ["batch", "epoch", "rank", "worker", "keys", "shards"],
                "properties": {
                    "batch": {**_COUNT, "description": "counted from where the run begins"},
                    "epoch": _COUNT,
                    "rank": _COUNT,
                    "worker": {**_MAYBE_COUNT, "description": "null where several workers made the batch"},
                    "keys": _TEXTS,
                    "shards": {**_TEXTS, "description": "of each key"},
                },
                "additionalProperties": False,
            },
            {
                "type": "object",
                "required": ["kind", "version", "memories"],
                "properties": {"kind": {"const": "webdataset.elastic"}},
            },
        ],
    }
}


def read_state(name: str) -> dict[str, Any]:
    """Return the state in a file.

    Args:
        name: a path or url of JSON, or ``-``.

    Raises:
        StateMismatch: it is no JSON, or holds no state.
        SourceError: it cannot be read.
    """
    from webdataset.loading.states import find_state  # noqa: PLC0415  after --help
    from webdataset.storage.open_url import open_url  # noqa: PLC0415

    with open_url(name) as stream:
        content = stream.read()
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StateMismatch(
            "this is no JSON: save state_dict() with json.dump; of a checkpoint of torch, save that part as JSON first",
            url=name,
        ) from error
    return find_state(value)


@click.group("state")
def state_command() -> None:
    """Show a saved state, trace which samples a run delivers, move a state on.

    States are those of elastic datasets, Loader and WebLoader, saved as JSON, also within a larger JSON file. Their
    functions in Python are in wds.states.

    Examples:
      wds state show state.json
      wds state trace train:make_dataset --state state.json --batches 0-20 --rank 3 --ranks 8
      wds state advance state.json train:make_dataset --batches 100 -o later.json
    """


@state_command.command("show")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; see 'wds schema state'.")
def show_command(file: str, *, as_json: bool) -> None:
    """Say what a state is: of which epoch, seed and dataset, and how far each of its streams is.

    FILE is a path, a url, or - for standard input.

    Examples:
      wds state show state.json
      wds state show --json s3://bucket/run/state.json | jq .progress
    """
    from webdataset.loading.states import describe  # noqa: PLC0415  after --help

    found = describe(read_state(file))
    if as_json:
        console.write_json(found.to_json())
        return
    lacking = found.streams - found.known
    part = " (of one rank or worker)" if found.known and lacking else " (at the start)" if not found.known else ""
    rows = [
        ("kind", f"{found.kind}, version {found.version}"),
        ("epoch", f"{found.epoch}{' (over: the next one follows)' if found.over else ''}"),
        ("seed", str(found.seed)),
        ("streams", f"{found.known} of {found.streams} known, {found.ended} ended{part}"),
        ("received", f"{found.received} items"),
        ("shards", "not known" if found.shards is None else str(found.shards)),
    ]
    rows += [("ends after", f"{found.items} items")] if found.items is not None else []
    rows += [("rank", f"{found.ranks[0]} of {found.ranks[1]}, {found.given} items given")] if found.ranks else []
    if found.turn:
        rank, ranks, workers, worker = found.turn
        rows.append(("turn", f"worker {worker} of {workers}, on rank {rank} of {ranks}"))
    rows += [("" if number else "stages", stage) for number, stage in enumerate(found.stages)]
    console.write_table(rows)
    if found.progress:
        console.write_line()
        texts = [
            [str(each.stream), str(each.items), *("-" if part is None else str(part) for part in _place(each))]
            for each in found.progress
        ]
        console.write_table(texts, ["stream", "items", "pass", "shard", "sample", "byte"], right=range(6))


def _place(progress: Any) -> list[Any]:
    return ["ended" if progress.over else progress.passes, progress.shard, progress.sample, progress.offset]


def topology_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a topology, and of a loader.

    Args:
        command: takes them as keywords; those that are not given are None.
    """
    count, number = click.IntRange(min=1), click.IntRange(min=0)
    for option in (
        click.option("--drop-last", is_flag=True, default=None, help="The loader leaves out a smaller last batch."),
        click.option("--order", type=click.Choice(["loader", "torch"]), help="Of wds.Loader (default), or torch's."),
        click.option("--batch-size", type=count, help="Items in a batch that the loader makes."),
        click.option("--workers", type=number, help="Workers of each rank; by default the loader's own, or 0."),
        click.option("--ranks", default=1, show_default=True, type=count, help="How many ranks."),
    ):
        command = option(command)
    return command


@state_command.command("trace")
@dataset_options
@topology_options
@click.option("--state", "file", metavar="FILE", help="Begin at this state; else at the start of an epoch.")
@click.option(
    "--epoch",
    type=click.IntRange(min=0),
    help="Without a state: which epoch; by default the dataset's next, usually 0.",
)
@click.option("--rank", default=0, show_default=True, type=click.IntRange(min=0), help="Which rank receives.")
@click.option("--worker", type=click.IntRange(min=0), help="Only batches that this worker made.")
@click.option("--batches", metavar="A-B", help="Only batches A to B, counted from where the run begins, from 0.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; see 'wds schema state'.")
def trace_command(
    dataset: Callable[[], Any], *, file: str | None, batches: str | None, ranks: int, as_json: bool, **options: Any
) -> None:
    """Say which samples a rank receives: one line a batch, with its number and its keys.

    DATASET is module:function, which returns the dataset or a loader over it: the module is imported from the working
    directory and the function called, so only name code that you trust. Or it is shards, with the options that say how
    they are shuffled and batched. Nothing is decoded, except where a function of the dataset may drop samples: then
    the dataset's own functions are called (this is said on standard error).

    Examples:
      wds state trace train:make_loader --batches 12000-12200 --rank 3 --ranks 8
      wds state trace train:make_dataset --state state.json --workers 2 --order torch --worker 1
      wds state trace train-{000..099}.tar --shard-shuffle 100 --shuffle 1000 --seed 7 --batch-size 32
    """
    from webdataset.loading.states import plan_delivery, trace  # noqa: PLC0415  after --help

    start, stop = parse_range(batches)
    state = None if file is None else read_state(file)
    source = dataset()
    how = {name: options.pop(name) for name in ("workers", "batch_size", "order", "drop_last")}
    deciding = plan_delivery(source, **how).deciding_stages()
    if deciding:
        console.say(f"samples are decoded, since a stage may drop some: {'; '.join(deciding)}")
    last = None
    for batch in trace(source, state, world_size=ranks, start=start, stop=stop, **options, **how):
        last = batch.batch
        if as_json:
            console.write_json(batch.to_json())
        else:
            console.write_line(f"{batch.batch}\t{' '.join(map(console.escape_name, batch.keys))}")
    if last is None:
        console.say("warning: there are no such batches: the epoch ends before them, or other workers made them")
    elif stop is not None and last + 1 < stop and options["worker"] is None:
        console.say(f"warning: the epoch ends with batch {last}")


def parse_range(text: str | None) -> tuple[int, int | None]:
    """Return the first number of a range, and the one after its last.

    Args:
        text: ``A-B``, ``A-`` or ``A``; None is everything.

    Raises:
        UsageError: it is none.
    """
    if text is None:
        return 0, None
    first, dash, last = text.partition("-")
    if not first.isdecimal() or not (last.isdecimal() or not last):
        raise UsageError(f"--batches {text}: a range is written 12000-12200, 12000- or 12000")
    stop = int(last) + 1 if last else None if dash else int(first) + 1
    if stop is not None and stop <= int(first):
        raise UsageError(f"--batches {text}: the range ends before it begins")
    return int(first), stop


@state_command.command("advance")
@click.argument("file")
@dataset_options
@topology_options
@click.option("--rank", type=click.IntRange(min=0), help="Write the state of this rank; else that of all, merged.")
@click.option("--batches", type=click.IntRange(min=0), help="Skip this many batches on each rank.")
@click.option("--samples", type=click.IntRange(min=0), help="Skip this many samples on each rank.")
@click.option("-o", "--output", metavar="OUT", help="Write the state to this file; by default to standard output.")
@click.option("--force", is_flag=True, help="Replace the output file.")
@click.option("--json", "as_json", is_flag=True, help="The output is JSON in any case; see 'wds schema state'.")
def advance_command(
    file: str,
    dataset: Callable[[], Any],
    *,
    ranks: int,
    output: str | None,
    force: bool,
    as_json: bool,  # noqa: ARG001  for scripts that pass it to every command
    **options: Any,
) -> None:
    """Write the state of a run that has received more batches: to skip what must not be trained on again.

    DATASET is as for 'wds state trace'. The state in FILE stays as it is, and the new one stands in the same epoch.

    Examples:
      wds state advance state.json train:make_dataset --batches 100 --ranks 8 -o later.json
      wds state advance state.json train:make_loader --samples 4096 > later.json
    """
    from webdataset.loading.states import advance  # noqa: PLC0415  after --help

    if output is not None:
        check_target(output, force=force)
    state = read_state(file)
    found = advance(dataset(), state, world_size=ranks, **options)
    if output is None:
        console.write_json(found)
        return
    write_text_file(output, json.dumps(found) + "\n", force=force, dry_run=False)
    console.say(f"{output}: {found['received']} items received, epoch {found['epoch']}")
