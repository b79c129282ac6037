"""What does the shard cache cost? Time to the first sample of a cold shard, and passes over a warm one.

``first``: a shard on a web server behind a line (latency, bytes per second): streamed, and through an empty cache; wall
time until the first sample is there, medians of turns. ``warm``: all samples of W2 from the cache and from the plain
file; CPU time.
"""

import gc
import shutil
import statistics
import sys
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import webdataset as wds
from harness import ROUNDS, SCALE, rounded, show
from shards import workspace, write

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.paced_server import PacedServer
from support.slow_line import slow_line

LATENCY_SECONDS = 0.01
BYTES_PER_SECOND = 60e6


def first_sample(url: str, **options: Any) -> float:
    """Return the seconds until the first sample of a shard is there."""
    begin = time.perf_counter()
    samples: Any = iter(wds.WebDataset(url, shardshuffle=False, **options))
    next(samples)
    seconds = time.perf_counter() - begin
    samples.close()
    return seconds


def cold(folder: Path, url: str) -> float:
    """Return the seconds until the first sample is there, through an empty cache."""
    near = folder / "cold"
    shutil.rmtree(near, ignore_errors=True)
    near.mkdir()
    return first_sample(url, cache_dir=str(near))


def passes(url: str, **options: Any) -> float:
    """Return the CPU seconds of one pass."""
    dataset = wds.WebDataset(url, shardshuffle=False, **options)
    gc.collect()
    begin = time.process_time()
    for _ in dataset:
        pass
    return time.process_time() - begin


def turns(*measures: Callable[[], float]) -> list[float]:
    """Return the medians of some measures, taken in turns, the first round left out."""
    rounds = [[measure() for measure in measures] for _ in range(3 * ROUNDS + 1)][1:]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def first() -> dict[str, object]:
    """Print and return the answer for cold shards."""
    with workspace() as folder:
        body = Path(write("W2", folder, scale=SCALE)[0]).read_bytes()
        with PacedServer({"/x.tar": body}) as server:
            address = urllib.parse.urlsplit(server.root)
            with slow_line(
                str(address.hostname), int(address.port or 0), latency_seconds=LATENCY_SECONDS,
                bytes_per_second=BYTES_PER_SECOND,
            ) as line:  # fmt: skip
                url = f"{line}/x.tar"
                streamed, cached = turns(lambda: first_sample(url), lambda: cold(folder, url))
        return show(
            "cache first sample",
            streamed_ms=rounded(streamed * 1e3),
            cached_ms=rounded(cached * 1e3),
            ratio=rounded(cached / streamed),
        )


def warm() -> dict[str, object]:
    """Print and return the answer for warm shards."""
    with workspace() as folder:
        path = write("W2", folder, scale=SCALE)[0]
        near = folder / "near"
        near.mkdir()
        with PacedServer({"/x.tar": Path(path).read_bytes()}) as server:
            url = f"{server.root}/x.tar"
            passes(url, cache_dir=str(near))
            cached, plain = turns(lambda: passes(url, cache_dir=str(near)), lambda: passes(path))
        return show(
            "cache warm pass",
            cached_ms=rounded(cached * 1e3),
            plain_ms=rounded(plain * 1e3),
            ratio=rounded(cached / plain),
        )


if __name__ == "__main__":
    for name in sys.argv[1:] or ("first", "warm"):
        {"first": first, "warm": warm}[name]()
