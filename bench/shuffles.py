"""What does a shuffle cost a sample, in CPU time, beyond handing the sample on?

All candidates run in one process, in turns; the medians are of what is left when the bare loop is taken away.
"""

import gc
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import webdataset as wds
from harness import ROUNDS, SCALE, rounded, show
from webdataset.stages.base import Run

COUNT = max(int(200_000 * SCALE), 2000)
SHARDS, IN_SHARD = 16, max(int(2000 * SCALE), 20)


def bare(source):
    """Yield every sample."""
    yield from source


def draw(sample, _generator):
    """Return the sample."""
    return sample


def stages():
    """Return the candidates by name."""
    from webdataset import filters

    return {
        "shuffle": filters.shuffle(1000),
        "shuffle_rng": filters.shuffle(1000, rng=random.Random(0)),
        "shuffle_max_bytes": filters.shuffle(1000, max_bytes=1 << 30),
        "block_shuffle": filters.block_shuffle(1000),
        "map": filters.map(lambda sample: sample),
        "map_rng_python": filters.map_with_rng(draw),
        "map_rng_numpy": filters.map_with_rng(draw, "numpy"),
        "map_rng_seed": filters.map_with_rng(draw, "seed"),
    }


def seconds(make):
    """Return the CPU seconds that one pass takes."""
    iterator = make()
    gc.collect()
    begun = time.process_time()
    for _ in iterator:
        pass
    return time.process_time() - begun


def medians(candidates):
    """Return the median CPU seconds of each, measured A B C A B C after one warm-up."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(ROUNDS + 1):
        for name, make in candidates.items():
            spent = seconds(make)
            if turn:
                taken[name].append(spent)
    return {name: statistics.median(spent) for name, spent in taken.items()}


def measure():
    """Print and return nanoseconds a sample of stages, and the cost of open shards relative to one."""
    sample = {"__key__": "0001", "__url__": "a/b.tar", "jpg": b"x" * 1000, "cls": b"1"}
    samples = [sample] * COUNT

    def run(stage):
        return lambda: stage.flow(iter(samples), stage.begin(Run(seed=1)))

    found = medians({"bare": lambda: bare(iter(samples)), **{name: run(stage) for name, stage in stages().items()}})
    costs = {f"{name}_ns": rounded((spent - found["bare"]) / COUNT * 1e9) for name, spent in found.items()}
    answer = show("shuffles", **{name: cost for name, cost in costs.items() if name != "bare_ns"})
    with tempfile.TemporaryDirectory() as folder:
        urls = written(Path(folder))
        opened = {f"open_{count}": lambda count=count: iter(dataset(urls, count)) for count in (1, 4, 16)}
        found = medians(opened)
    show("open shards", **{name: rounded(spent / found["open_1"]) for name, spent in found.items()})
    return answer


def dataset(urls, count):
    """Return undecoded samples, so many shards being open."""
    return wds.WebDataset(urls, shardshuffle=False, open_shards=count)


def written(folder):
    """Write small shards and return their urls."""
    for number in range(SHARDS):
        with wds.TarWriter(str(folder / f"s-{number:02d}.tar")) as sink:
            for index in range(IN_SHARD):
                sink.write({"__key__": f"{number:02d}{index:05d}", "txt": b"x" * 1000, "cls": b"1"})
    return str(folder / f"s-{{00..{SHARDS - 1}}}.tar")


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
