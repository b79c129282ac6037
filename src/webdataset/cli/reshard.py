"""``wds reshard``, ``shuffle``, ``sort``, ``join`` and ``mix``: samples in another order, or other shards."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import click

from webdataset.cli import console
from webdataset.cli.inputs import (
    Inputs,
    expand_inputs,
    input_options,
    list_shards,
    load_split,
    storage_options_of,
)
from webdataset.cli.outputs import WRITTEN, ShardOutputs, SizeType, read_inputs, shard_output_options, warn_of_absent
from webdataset.core.errors import UsageError
from webdataset.core.seeds import random_seed
from webdataset.inspection.expression import Expression
from webdataset.reshaping.external_sort import MEMORY_BYTES, shuffle_samples, sort_samples
from webdataset.reshaping.join import join_samples
from webdataset.reshaping.mixing import is_endless, mix_samples
from webdataset.reshaping.raw_writer import write_evenly
from webdataset.samples.raw_samples import RawSample

SCHEMAS: Final[dict[str, object]] = dict.fromkeys(("reshard", "shuffle", "sort", "join", "mix"), WRITTEN)


def memory_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--memory`` and ``--temporary`` to a command.

    Args:
        command: takes ``memory`` (bytes) and ``temporary`` (a folder or None).
    """
    memory = click.option(
        "-M", "--memory", type=SizeType(), default=MEMORY_BYTES, help="Gather so much before using the disk (1GiB)."
    )
    temporary = click.option("-T", "--temporary", metavar="FOLDER", help="Folder of temporary files.")
    return memory(temporary(command))


def choose_seed(seed: int | None, verb: str = "shuffled") -> int:
    """Return a seed; one that was drawn is told, so that the order can be made again.

    Args:
        seed: what the user gives; None draws one.
        verb: what was done with it, for the message.
    """
    if seed is None:
        seed = random_seed() & 0xFFFFFFFF
        console.say(f"{verb} with --seed {seed}")
    return seed


@click.command("reshard")
@input_options
@click.option("-N", "--shards", "count", type=click.IntRange(1, 1_000_000), required=True, help="How many shards.")
@click.option("--shuffle", is_flag=True, help="Shuffle the samples of all shards.")
@click.option("--seed", type=int, help="Seed of the shuffle; without it, one is drawn and told.")
@memory_options
@shard_output_options
def reshard_command(
    inputs: Inputs,
    *,
    output: ShardOutputs,
    count: int,
    shuffle: bool,
    seed: int | None,
    memory: int,
    temporary: str | None,
) -> None:
    """Write all samples to N shards whose counts differ by at most one, in their order or shuffled.

    Without --shuffle, samples are counted first, by headers where the storage allows it.

    Examples:
      wds reshard --shards 10 -o new-%04d.tar 'old-*.tar'
      wds reshard --shards 10 --shuffle --seed 1 -o new-%04d.tar 'old-*.tar'
    """
    if output.max_count or output.max_size:
        raise UsageError("reshard makes so many shards: leave out --max-count and --max-size, or use 'wds split'")
    if seed is not None and not shuffle:
        raise UsageError("--seed is of --shuffle")
    with output.open() as series, console.Progress("writing") as progress:
        if not series.numbered:
            raise UsageError(f"several shards need a pattern such as out-%06d.tar for their names, not {output.target}")
        if shuffle:
            counted = _Count(read_inputs(inputs))
            shuffled = shuffle_samples(counted, choose_seed(seed), memory_bytes=memory, folder=temporary)
            first = list(itertools.islice(shuffled, 1))  # all have been read and counted before it comes
            samples: Iterable[RawSample] = itertools.chain(first, shuffled)
            total = counted.count
        else:
            total, samples = _count_samples(inputs), read_inputs(inputs)
        write_evenly(progress.track(output.choose_keys(samples)), total, count, series)
    output.report(series)


class _Count:
    """Counts the samples that pass."""

    def __init__(self, samples: Iterable[RawSample]) -> None:
        self.count = 0
        self._samples = samples

    def __iter__(self) -> Iterator[RawSample]:
        for sample in self._samples:
            self.count += 1
            yield sample


def _count_samples(inputs: Inputs) -> int:
    from webdataset.index.build import index_shard  # noqa: PLC0415  beside the counting

    if "-" in inputs.urls:
        raise UsageError("samples are counted first, and standard input cannot be read twice: use --shuffle, or a file")
    with console.Progress("counting", total=len(inputs)) as progress:
        return sum(len(index_shard(url, reading=inputs.reading())) for url in progress.track(inputs))


@click.command("shuffle")
@input_options
@click.option("--seed", type=int, help="The same seed and input give the same order; without it, one is drawn.")
@memory_options
@shard_output_options
def shuffle_command(
    inputs: Inputs, *, output: ShardOutputs, seed: int | None, memory: int, temporary: str | None
) -> None:
    """Write the samples of all shards in random order, each order as probable as another, with bounded memory.

    Examples:
      wds shuffle --seed 1 -o shuffled-%06d.tar -s 1GB train-{000..099}.tar
      wds shuffle -o - shard.tar | wds head -
    """
    samples = shuffle_samples(read_inputs(inputs), choose_seed(seed), memory_bytes=memory, folder=temporary)
    output.write(samples, "shuffling")


@click.command("sort")
@input_options
@click.option("-b", "--by", default="key", show_default=True, metavar="EXPR", help="What to sort by.")
@click.option("-r", "--reverse", is_flag=True, help="The greatest first.")
@memory_options
@shard_output_options
def sort_command(
    inputs: Inputs, *, output: ShardOutputs, by: str, reverse: bool, memory: int, temporary: str | None
) -> None:
    """Write the samples of all shards in order, with bounded memory; equal samples stay in their order.

    None comes first, then numbers, texts and lists.

    Examples:
      wds sort -o sorted.tar shard.tar
      wds sort --by '[cls, -json.score]' -o by-class-%04d.tar -s 1GB 'train-*.tar'
    """
    expression = Expression(by)

    def key(sample: RawSample) -> Any:
        return expression.evaluate(sample.payloads(), key=sample.key, shard=sample.url)

    samples = sort_samples(read_inputs(inputs), key, reverse=reverse, memory_bytes=memory, folder=temporary)
    output.write(samples, "sorting")
    warn_of_absent(expression)


@click.command("join")
@click.argument("datasets", nargs=-1, required=True, metavar="DATASET DATASET...")
@storage_options_of
@click.option(
    "--missing",
    type=click.Choice(["error", "skip", "keep"]),
    default="error",
    show_default=True,
    help="What to do about a key that a dataset lacks.",
)
@click.option(
    "--conflict",
    type=click.Choice(["error", "first", "last"]),
    default="error",
    show_default=True,
    help="What to do about a field that two datasets have.",
)
@memory_options
@shard_output_options
def join_command(
    datasets: tuple[str, ...],
    *,
    output: ShardOutputs,
    storage_profile: str | None,
    split: str | None,
    memory: int,
    temporary: str | None,
    **rules: Any,
) -> None:
    """Give each sample of the first DATASET the fields that the others have under the same key.

    Each argument is one dataset: use '::', wildcards in quotes or @lists for several shards.

    Examples:
      wds join -o both.tar images.tar captions.tar
      wds join --missing skip -o 'both-%06d.tar' -s 1GB 'images-*.tar' 'embeddings-*.tar'
    """
    sides = [expand_inputs([each], storage_profile=storage_profile, split=split) for each in datasets]
    output.inputs += itertools.chain(*sides)
    streams = [read_inputs(side) for side in sides]
    output.write(join_samples(streams, memory_bytes=memory, folder=temporary, **rules), "joining")


@click.command("mix")
@click.argument("specs", nargs=-1, required=True, metavar="SPEC")
@storage_options_of
@click.option("-m", "--samples", "most", type=click.IntRange(min=1), metavar="N", help="Stop after N samples.")
@click.option("--seed", type=int, help="Seed of the draws; without it, one is drawn and told.")
@shard_output_options
def mix_command(
    specs: tuple[str, ...],
    *,
    output: ShardOutputs,
    storage_profile: str | None,
    split: str | None,
    most: int | None,
    seed: int | None,
) -> None:
    """Mix the sources of a dataset specification by its weights, and write the samples as they stand.

    A mix whose sources begin again at their ends has no end: --samples says where to stop.

    Examples:
      wds mix train.yaml --samples 100000 --seed 1 -o mixed-%06d.tar -s 1GB
    """
    from webdataset.shards.urls import SHARD_ENDINGS  # noqa: PLC0415  after --help

    spec = specs[0]
    if len(specs) > 1 or spec.lower().endswith(SHARD_ENDINGS):
        raise UsageError(
            "'wds mix' takes one dataset specification: a YAML or JSON file that names shards and their weights. To "
            "mix shards without one: 'wds shuffle' or 'wds reshard --shuffle'; to join them: 'wds cat'",
            url=spec,
        )
    name, found = load_split(spec, split)
    if most is None and is_endless(found):
        raise UsageError(f"the mix of the split {name!r} never ends: pass --samples, or 'exhausted: drop'", url=spec)
    output.inputs += list_shards(found)
    options = None if storage_profile is None else {"profile": storage_profile}
    emptied: Counter[str] = Counter()
    samples = mix_samples(found, lambda url: read_inputs(Inputs((url,), options)), choose_seed(seed, "mixed"), emptied)
    output.write(itertools.islice(samples, most), "mixing")
    for source, count in emptied.items():
        samples_left = f"{count} sample{'s' * (count != 1)}"
        console.say(f"warning: source {source!r}: left out {samples_left} without any of the fields that it keeps")
