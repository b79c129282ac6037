"""How much faster is ``Loader(order="ready")`` where a few samples take 50 times as long as the others?

Samples of 150 KB take 2 ms, and one of 50 takes 100 ms: asleep (``sleep``), or at work (``cpu``). Medians of samples
per second, the orders in turns: ``exact``, ``ready``, and ``far``: the exact order with 64 batches ahead, which takes
the memory of 64 batches. ``most`` is what the workers would give without ever waiting, each for its own streams. All
have ``prefetch=3``, what batches above 5 MB have by default. ``step``: the program takes as long for a batch as the
workers do on average. Where nothing is slow (``even``) the figure is the cost of the ready order.
"""

import statistics
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import webdataset as wds
from harness import ROUNDS, SCALE, rounded, show
from shards import workspace

COUNT = int(4000 * SCALE)
STREAMS = 24
FAST, SLOW, ONE_IN = 0.002, 0.1, 50
SIZE = 150_000
# name: batch size, workers, mode, kind of work, the program has a step
CASES = {
    "batch 4": (4, 4, "threads", "sleep", False),
    "batch 8": (8, 4, "threads", "sleep", False),
    "batch 32": (32, 4, "threads", "sleep", False),
    "batch 8, step": (8, 4, "threads", "sleep", True),
    "batch 8, processes": (8, 4, "processes", "sleep", False),
    "batch 32, 24 threads": (32, 24, "threads", "sleep", False),
    "batch 8, 2 processes": (8, 2, "processes", "cpu", False),
    "batch 32, 2 processes": (32, 2, "processes", "even", False),
}
ORDERS: dict[str, dict[str, Any]] = {
    "exact": {"prefetch": 3},
    "far": {"prefetch": 64},
    "ready": {"prefetch": 3, "order": "ready"},
}


def find_seconds(number: int, kind: str) -> float:
    """Return how long a sample takes."""
    if kind == "even":
        return 0.0
    return FAST if zlib.crc32(b"%d" % number) % ONE_IN else SLOW


class Work:
    """The function of the dataset.

    Args:
        kind: ``sleep``, ``cpu`` or ``even``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, sample: dict[str, Any]) -> Any:
        """Return an array, after a while."""
        seconds = find_seconds(sample["cls"], self.kind)
        if self.kind == "sleep":
            time.sleep(seconds)
        else:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
        return np.zeros(SIZE, np.uint8)


def find_most(workers: int, kind: str) -> float | None:
    """Return samples per second of workers that never wait: those that have more to do end last."""
    busy = [0.0] * workers
    for number in range(COUNT):
        busy[number % STREAMS % workers] += find_seconds(number, kind)
    return rounded(COUNT / max(busy)) if max(busy) else None


def measure(loader: wds.Loader, batch_size: int, seconds: float) -> float:
    """Return samples per second of an epoch; the program takes some seconds for each batch of a full size."""
    began, count = time.perf_counter(), 0
    for batch in loader:
        count += len(batch)
        if seconds:
            time.sleep(seconds * len(batch) / batch_size)
    if count != COUNT:
        raise RuntimeError(f"{count} samples of {COUNT}")
    return count / (time.perf_counter() - began)


def main(chosen: list[str]) -> None:
    """Measure all cases, or those that are named."""
    with workspace() as folder:
        urls = [str(Path(folder) / f"{shard:02d}.tar") for shard in range(STREAMS)]
        # shard s is read by stream s
        for shard, url in enumerate(urls):
            with wds.TarWriter(url) as sink:
                for number in range(shard, COUNT, STREAMS):
                    sink.write({"__key__": f"{number:06d}", "cls": number})
        for name, (batch_size, workers, mode, kind, steps) in CASES.items():
            if chosen and name not in chosen:
                continue
            dataset = wds.WebDataset(urls, shardshuffle=False).decode().map(Work(kind)).elastic(streams=STREAMS)
            mean = statistics.fmean(find_seconds(number, kind) for number in range(COUNT))
            step = mean / workers * batch_size if steps else 0.0
            found: dict[str, list[float]] = {order: [] for order in ORDERS}
            for _ in range(ROUNDS):
                for order, how in ORDERS.items():
                    with wds.Loader(dataset, batch_size, workers=workers, mode=mode, **how) as loader:
                        found[order].append(measure(loader, batch_size, step))
            medians = {order: statistics.median(speeds) for order, speeds in found.items()}
            figures = {order: rounded(speed) for order, speed in medians.items()}
            ratio = rounded(medians["ready"] / medians["exact"])
            show(f"ready order, {kind}, {name}", **figures, most=find_most(workers, kind), ratio=ratio)


if __name__ == "__main__":
    main(sys.argv[1:])
