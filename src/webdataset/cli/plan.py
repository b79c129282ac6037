"""``wds plan``: what each rank and worker will read."""

from collections.abc import Callable
from typing import Any, Final

import click

from webdataset.cli import console
from webdataset.cli.datasets import dataset_options

_COUNT: Final[console.JsonSchema] = {"type": "integer", "minimum": 0}
_MAYBE_COUNT: Final[console.JsonSchema] = {"type": ["integer", "null"], "minimum": 0}
_PAIR: Final[console.JsonSchema] = {"type": ["array", "null"], "items": _COUNT}
_SHARD: Final[console.JsonSchema] = {
    "type": "object",
    "required": ["url", "stream", "share", "part", "samples"],
    "properties": {
        "url": {"type": "string"},
        "stream": _MAYBE_COUNT,
        "share": {**_PAIR, "description": "first and step of the samples that are kept, where several read the shard"},
        "part": {**_PAIR, "description": "first sample and the one to stop before, where the shard is cut"},
        "samples": _MAYBE_COUNT,
    },
    "additionalProperties": False,
}
_WORKER: Final[console.JsonSchema] = {
    "type": "object",
    "required": ["rank", "worker", "samples", "shards"],
    "properties": {
        "rank": _COUNT,
        "worker": _COUNT,
        "samples": _MAYBE_COUNT,
        "shards": {"type": "array", "items": _SHARD},
    },
    "additionalProperties": False,
}
SCHEMAS: Final[console.JsonSchema] = {
    "plan": {
        "description": "One object.",
        "type": "object",
        "required": ["shards", "samples", "warnings", "workers"],
        "properties": {
            "shards": _COUNT,
            "samples": {**_MAYBE_COUNT, "description": "null where the number is not known of each shard"},
            "warnings": {"type": "array", "items": {"type": "string"}},
            "workers": {"type": "array", "items": _WORKER},
        },
        "additionalProperties": False,
    },
}


@click.command("plan")
@dataset_options
@click.option("--ranks", default=1, show_default=True, type=click.IntRange(min=1), help="How many ranks.")
@click.option("--workers", default=0, show_default=True, type=click.IntRange(min=0), help="Workers of each rank.")
@click.option("--by-sample", is_flag=True, help="Of shards: cut them between workers, as split_by_sample does.")
@click.option("--epoch", default=0, show_default=True, type=click.IntRange(min=0), help="Which epoch.")
@click.option("--counts", metavar="FILE", help="Numbers of samples: JSON of url to number, or a wids index.")
@click.option("--count", is_flag=True, help="Read the headers of the shards to count their samples.")
@click.option("-l", "--long", is_flag=True, help="List the shards of each worker.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; see 'wds schema plan'.")
def plan_command(
    dataset: Callable[..., Any],
    *,
    seed: int | None,
    ranks: int,
    workers: int,
    by_sample: bool,
    epoch: int,
    counts: str | None,
    count: bool,
    long: bool,
    as_json: bool,
) -> None:
    """Say what each rank and worker will read in an epoch, and warn of what is uneven.

    DATASET is shards, shared out by split_by_node and split_by_worker (with --streams: as an elastic dataset); or
    module:function, which returns a dataset or a loader over one: the module is imported from the working directory
    and the function called. Numbers of samples come from indexes and sizes files beside the shards, where each shard
    has one, or from --counts or --count.

    Examples:
      wds plan train-{000..099}.tar --ranks 8 --workers 4
      wds plan train-{000..099}.tar --ranks 8 --workers 4 --streams 96 --count
      wds plan train:make_dataset --ranks 8 --workers 4 -l
    """
    from webdataset.loading.read_plan import plan_reading  # noqa: PLC0415  after --help

    source = dataset(by_sample=by_sample)
    known = find_counts(source, counts, count=count)
    plan = plan_reading(source, ranks=ranks, workers=workers, counts=known, epoch=epoch, seed=seed or 0)
    if as_json:
        parts = [each.to_json() for each in plan.workers]
        console.write_json(
            {"shards": plan.shards, "samples": plan.samples, "warnings": plan.warnings, "workers": parts}
        )
        return
    whole = "" if plan.samples is None else f", {plan.samples} samples"
    console.write_line(f"{plan.shards} shards{whole}; {ranks} ranks of {max(1, workers)} workers")
    rows = [
        [str(each.rank), str(each.worker), str(len(each.shards)), "?" if each.samples is None else str(each.samples)]
        for each in plan.workers
    ]
    if rows and not long:
        console.write_table(rows, ["rank", "worker", "shards", "samples"], right=range(4))
    for each in plan.workers if long else ():
        console.write_line(f"rank {each.rank} worker {each.worker}: {len(each.shards)} shards")
        for shard in each.shards:
            stream = "" if shard.stream is None else f"stream {shard.stream}  "
            console.write_line(f"  {stream}{console.show_url(shard.url)}{_describe_part(shard)}")
    for warning in plan.warnings:
        console.say(f"warning: {warning}")


def _describe_part(shard: Any) -> str:
    if shard.part is not None:
        return f"  samples {shard.part[0]} to {shard.part[1] - 1}"
    count = "" if shard.samples is None else f"  {shard.samples} samples"
    return count if shard.share is None else f"{count}  (one of {shard.share[1]}, from {shard.share[0]})"


def find_counts(source: Any, counts: str | None, *, count: bool) -> dict[str, int] | None:
    """Return the numbers of samples of a dataset's shards; None where they are not known without reading shards.

    Args:
        source: a dataset, or a loader over one.
        counts: a file of them.
        count: read the headers of the shards.

    Raises:
        UsageError: the file does not tell of all shards.
    """
    from webdataset.core.errors import UsageError  # noqa: PLC0415  after --help
    from webdataset.flow.run import expand_stages  # noqa: PLC0415
    from webdataset.index.lookup import sample_counts  # noqa: PLC0415
    from webdataset.loading.states import plan_delivery  # noqa: PLC0415
    from webdataset.shards.lazy_urls import LazyUrls  # noqa: PLC0415

    stages = expand_stages(plan_delivery(source).dataset.pipeline)
    urls = getattr(stages[0], "urls", None)
    if not isinstance(urls, list | tuple | LazyUrls) or not urls:
        return None
    reading = next((stage.reading for stage in stages if hasattr(stage, "reading")), None)
    if counts is not None or count:
        return sample_counts(list(urls), counts or True, reading)
    try:
        return sample_counts(list(urls), None, reading)
    except UsageError:
        return None
