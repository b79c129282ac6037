"""``python -m webdataset.cli.shuffle_quality``: measures how well a shuffle mixes, before a training run finds out.

Takes numbers to simulate, or shards to read, and prints figures as text or JSON. Exit status: 0 done, 1 the shards
could not be read, 2 the command line is wrong.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from webdataset.core.errors import UsageError, WebDatasetError
from webdataset.flow.shuffle_quality import measure_shuffle_quality, simulate_shuffle_quality
from webdataset.fluent.dataset import WebDataset
from webdataset.stages.shuffle import shuffle
from webdataset.stages.shuffle_blocks import block_shuffle


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m webdataset.cli.shuffle_quality", description=__doc__)
    top.add_argument("urls", nargs="?", help="shards to read and measure; without them, a simulation reads nothing")
    top.add_argument("--shards", type=int, default=100, help="simulated shards (%(default)s)")
    top.add_argument("--samples", type=int, default=1000, help="samples in a simulated shard (%(default)s)")
    top.add_argument("--workers", type=int, default=1, help="simulated workers (%(default)s)")
    top.add_argument("--buffer", type=int, default=0, help="samples in the buffer of shuffle (0: none)")
    top.add_argument("--block", type=int, default=0, help="samples in the blocks of block_shuffle (0: none)")
    top.add_argument("--open", type=int, default=1, help="shards open at once (%(default)s)")
    top.add_argument("--in-order", action="store_true", help="do not shuffle the shards")
    top.add_argument("--batch", type=int, default=256, help="samples in a batch (%(default)s)")
    top.add_argument("--limit", type=int, help="samples to read (all)")
    top.add_argument("--seed", type=int, default=0, help="seed (%(default)s)")
    top.add_argument("--json", action="store_true", help="print JSON")
    return top


def run(arguments: Sequence[str] | None = None) -> int:
    """Measure what a command line says.

    Args:
        arguments: words of the command line; None takes the process's.

    Returns:
        The exit status.
    """
    chosen = make_parser().parse_args(arguments)
    stages: list[Any] = [block_shuffle(chosen.block)] if chosen.block else []
    stages += [shuffle(chosen.buffer)] if chosen.buffer else []
    try:
        found = _measure(chosen, stages) if chosen.urls else _simulate(chosen, stages)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except (WebDatasetError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(found)) if chosen.json else found)
    return 0


def _simulate(chosen: argparse.Namespace, stages: list[Any]) -> Any:
    return simulate_shuffle_quality(
        chosen.shards,
        chosen.samples,
        stages,
        open_shards=chosen.open,
        shardshuffle=not chosen.in_order,
        batch=chosen.batch,
        workers=chosen.workers,
        seed=chosen.seed,
    )


def _measure(chosen: argparse.Namespace, stages: list[Any]) -> Any:
    count = 0 if chosen.in_order else 1 << 20
    dataset = WebDataset(chosen.urls, shardshuffle=count, open_shards=chosen.open, seed=chosen.seed).compose(*stages)
    return measure_shuffle_quality(dataset, chosen.batch, chosen.limit)


if __name__ == "__main__":
    sys.exit(run())
