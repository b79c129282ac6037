"""What does it cost to open a shard, and to begin with a million of them?

``opening small shards``: CPU time of a shard of ten samples, all in, against opening and reading the same file;
``opening a million``: milliseconds to make a dataset of ``{000000..999999}.tar``, to its first sample once it is made
(plain and elastic), to its first state; the bytes that it takes, and those of the pickle of its list of shards.
Medians; only the first shards exist. ``opening a million as a list``: the same of a list of these urls.
"""

import gc
import json
import os
import pickle
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import webdataset as wds
from harness import ORACLE, ROUNDS, rounded, show
from shards import workspace, write_tar

SHARDS, SAMPLES = 300, 10
MILLION = "{000000..999999}.tar"


def write_small(folder: Path) -> list[str]:
    """Write shards of ten samples."""
    paths = [folder / f"{number:06}.tar" for number in range(SHARDS)]
    for number, path in enumerate(paths):
        fields = {"cls": b"1", "txt": b"x" * 100}
        write_tar(path, ((f"{number:06}-{each}", fields) for each in range(SAMPLES)))
    return [str(path) for path in paths]


def in_turns(*jobs: Callable[[], object], rounds: int = 3 * ROUNDS) -> list[float]:
    """Return the median CPU seconds of each job, after one warm-up of each."""
    taken: list[list[float]] = [[] for _ in jobs]
    for number in range(rounds + 1):
        for job, times in zip(jobs, taken, strict=True):
            gc.collect()
            began = time.process_time()
            job()
            if number:
                times.append(time.process_time() - began)
    return [statistics.median(times) for times in taken]


def read_bare(paths: list[str]) -> None:
    """Open each file, and read it to its end."""
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(384 * 1024):
                pass


def read_samples(paths: list[str]) -> None:
    """Read all samples."""
    for _ in wds.WebDataset(paths, shardshuffle=False):
        pass


_THEIRS = """
import json, sys, time, webdataset as wds
paths = json.load(sys.stdin)
def read():
    began = time.process_time()
    for _ in wds.WebDataset(paths, shardshuffle=False): pass
    return time.process_time() - began
read()
print(json.dumps(sorted(read() for _ in range(5))[2]))
"""


def measure_small(folder: Path) -> dict[str, object]:
    """Print and return what a small shard costs."""
    paths = write_small(folder)
    bare, ours = in_turns(lambda: read_bare(paths), lambda: read_samples(paths))
    theirs = None
    if ORACLE.exists():
        command = [str(ORACLE), "-W", "ignore", "-c", _THEIRS]
        answer = subprocess.run(command, input=json.dumps(paths), capture_output=True, text=True, check=True).stdout
        theirs = json.loads(answer)
    return show(
        "opening small shards",
        bare_us=rounded(bare / SHARDS * 1e6),
        ours_us=rounded(ours / SHARDS * 1e6),
        to_bare=rounded(ours / bare),
        ratio=None if theirs is None else rounded(theirs / ours),
    )


def measure_many(folder: Path) -> dict[str, object]:
    """Print and return what a million shards cost before the first sample."""
    urls: str | list[str] = str(folder / MILLION)

    def make(*, elastic: bool) -> Any:
        dataset = wds.WebDataset(urls, shardshuffle=False)
        return dataset.elastic() if elastic else dataset

    def begin(*, elastic: bool) -> Any:
        items = iter(make(elastic=elastic))
        next(items)
        return items

    made, plain, elastic, state = in_turns(
        lambda: make(elastic=False),
        lambda: begin(elastic=False),
        lambda: begin(elastic=True),
        lambda: begin(elastic=True).state_dict(),
        rounds=min(5, ROUNDS),
    )
    tracemalloc.start()
    dataset = make(elastic=False)
    taken = tracemalloc.get_traced_memory()[0]
    urls = wds.expand_urls(urls)
    listed = make(elastic=False)
    list_taken = tracemalloc.get_traced_memory()[0] - taken
    tracemalloc.stop()
    list_made, list_first = in_turns(lambda: make(elastic=False), lambda: begin(elastic=True), rounds=min(3, ROUNDS))
    show(
        "opening a million as a list",
        made_ms=rounded(list_made * 1000),
        elastic_first_ms=rounded(list_first * 1000),
        memory_bytes=list_taken,
        pickle_bytes=len(pickle.dumps(listed.pipeline[0])),
    )
    return show(
        "opening a million",
        made_ms=rounded(made * 1000),
        first_ms=rounded(plain * 1000),
        elastic_first_ms=rounded(elastic * 1000),
        state_ms=rounded(state * 1000),
        memory_bytes=taken,
        pickle_bytes=len(pickle.dumps(dataset.pipeline[0])),
    )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    chosen = sys.argv[1:] or ["small", "many"]
    with workspace() as place:
        write_small(place)
        if "small" in chosen:
            measure_small(place)
        if "many" in chosen:
            measure_many(place)
