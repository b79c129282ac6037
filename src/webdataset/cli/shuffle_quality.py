"""``wds shuffle-quality``: how well a shuffle mixes, before a training run finds out."""

from dataclasses import asdict
from typing import Any, Final

import click

from webdataset.cli import console
from webdataset.cli.inputs import Inputs, expand_inputs, storage_options_of

_COUNT: Final[console.JsonSchema] = {"type": "integer", "minimum": 0}
_FIGURES: Final = {
    "correlation": "between the place in the epoch and the place in storage; 0 is perfect",
    "displacement": "mean distance between the two places, relative to that of a perfect shuffle; 1 is perfect",
    "distance": "mean distance in storage of neighbours in a batch, likewise; 1 is perfect",
    "same_shard": "share of the pairs of a batch that come from one shard",
    "same_shard_ideal": "the same of a perfect shuffle",
    "shards_per_batch": "mean number of shards in a batch",
    "shards_per_batch_ideal": "the same of a perfect shuffle",
}
SCHEMAS: Final[console.JsonSchema] = {
    "shuffle-quality": {
        "description": "One object.",
        "type": "object",
        "required": ["samples", "shards", "batch", *_FIGURES],
        "properties": {
            **dict.fromkeys(("samples", "shards", "batch"), _COUNT),
            **{name: {"type": "number", "description": text} for name, text in _FIGURES.items()},
        },
        "additionalProperties": False,
    },
}
_SHARDS: Final = 100
_SAMPLES: Final = 1000


@click.command("shuffle-quality")
@storage_options_of
@click.argument("shards", nargs=-1, metavar="[SHARDS...]")
@click.option("--shuffle", "buffer", default=0, type=click.IntRange(min=0), help="Samples in the buffer of shuffle().")
@click.option("--block-shuffle", "block", default=0, type=click.IntRange(min=0), help="Samples in each block of it.")
@click.option("--open-shards", default=1, show_default=True, type=click.IntRange(min=1), help="Shards open at once.")
@click.option("--in-order", is_flag=True, help="Do not shuffle the shards.")
@click.option("--batch-size", default=256, show_default=True, type=click.IntRange(min=2), help="Samples in a batch.")
@click.option("--seed", default=0, show_default=True, help="Of the shuffle.")
@click.option("--limit", type=click.IntRange(min=1), help="Of SHARDS: samples to read; by default all.")
@click.option("--shard-count", type=click.IntRange(min=1), help=f"Without SHARDS: how many; by default {_SHARDS}.")
@click.option(
    "--samples-per-shard", type=click.IntRange(min=1), help=f"Without SHARDS: samples of each; by default {_SAMPLES}."
)
@click.option("--workers", type=click.IntRange(min=1), help="Without SHARDS: workers that share them; by default 1.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; see 'wds schema shuffle-quality'.")
def shuffle_quality_command(
    shards: tuple[str, ...],
    *,
    storage_profile: str | None,
    split: str | None,
    buffer: int,
    block: int,
    open_shards: int,
    in_order: bool,
    batch_size: int,
    seed: int,
    limit: int | None,
    shard_count: int | None,
    samples_per_shard: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Measure how well samples are mixed, over an epoch and within batches.

    Without SHARDS, the order is simulated for so many shards and samples, and nothing is read. With SHARDS, their
    samples are read in the order of a dataset with these settings, and not decoded.

    Examples:
      wds shuffle-quality --shard-count 100 --samples-per-shard 1000 --open-shards 16 --shuffle 1000
      wds shuffle-quality --shuffle 10000 --workers 8 --json
      wds shuffle-quality --shuffle 1000 --limit 20000 train-{000..099}.tar
    """
    from webdataset.core.errors import UsageError  # noqa: PLC0415  after --help
    from webdataset.flow.shuffle_quality import simulate_shuffle_quality  # noqa: PLC0415
    from webdataset.stages.shuffle import shuffle  # noqa: PLC0415
    from webdataset.stages.shuffle_blocks import block_shuffle  # noqa: PLC0415

    simulated = {"--shard-count": shard_count, "--samples-per-shard": samples_per_shard, "--workers": workers}
    unfit = [name for name, value in (simulated if shards else {"--limit": limit}).items() if value is not None]
    if unfit:
        raise UsageError(f"{', '.join(unfit)} {'cannot be given with' if shards else 'needs'} SHARDS")
    stages: list[Any] = [block_shuffle(block)] if block else []
    stages += [shuffle(buffer)] if buffer else []
    if shards:
        inputs = expand_inputs(shards, storage_profile=storage_profile, split=split)
        rules = {"open_shards": open_shards, "shardshuffle": 0 if in_order else 1 << 20, "seed": seed}
        found = _measure(inputs, stages, rules, batch_size, limit)
    else:
        found = simulate_shuffle_quality(
            shard_count or _SHARDS,
            samples_per_shard or _SAMPLES,
            stages,
            open_shards=open_shards,
            shardshuffle=not in_order,
            batch=batch_size,
            workers=workers or 1,
            seed=seed,
        )
    if as_json:
        console.write_json(asdict(found))
    else:
        console.write_line(str(found))


def _measure(inputs: Inputs, stages: list[Any], rules: dict[str, Any], batch_size: int, limit: int | None) -> Any:
    from webdataset.flow.shuffle_quality import measure_shuffle_quality  # noqa: PLC0415  after --help
    from webdataset.fluent.dataset import WebDataset  # noqa: PLC0415

    dataset = WebDataset(list(inputs), storage_options=inputs.storage_options, **rules)
    return measure_shuffle_quality(dataset.compose(*stages), batch_size, limit)
