"""What does each stage cost for a sample, over the same pipeline without it? And what does timing the stages cost?

CPU microseconds a sample that a stage adds: medians over rounds in which the pipelines with and without it take turns,
W2 shards; beside it webdataset 1.0.2, where it is installed.

The last two figures are a loader over five stages, one of which works for about 50 us on a sample: the percentage that
timing them adds (``timings=True``, the default), of a plain dataset and of an elastic one.
"""

import os
import statistics
import sys
import time
from typing import Any

import webdataset as wds
from harness import ORACLE, ROUNDS, SCALE, Library, rounded, show
from shards import workspace, write

BASES = {  # stage: what stands before it
    "decode": [],
    "decode only cls": [],
    "map": [],
    "map_dict": [],
    "select": [],
    "rename": [],
    "rename_keys": [],
    "extract_keys": [],
    "to_tuple": [],
    "shuffle": [],
    "slice": [],
    "map_tuple": ["to_tuple"],
    "batched": ["to_tuple"],
    "unbatched": ["to_tuple", "batched"],
}
WORK_SECONDS = 50e-6


def costs(shards: list[str]) -> dict[str, dict[str, float]]:
    """Return the microseconds a sample that each stage adds: ours, and theirs where that library is installed."""
    found: dict[str, dict[str, float]] = {"ours_us": {}}
    pythons = {"ours_us": sys.executable}
    if os.access(ORACLE, os.X_OK):
        found["theirs_us"], pythons["theirs_us"] = {}, str(ORACLE)
    libraries = {whose: Library(python) for whose, python in pythons.items()}
    try:
        count = libraries["ours_us"].ask("raw", shards=shards)["result"]
        for name, before in BASES.items():
            seconds = turns(list(libraries.values()), [before, [*before, name]], shards)
            for whose, (base, staged) in zip(libraries, seconds, strict=True):
                found[whose][name] = rounded((staged - base) / count * 1e6)
    finally:
        for library in libraries.values():
            library.close()
    return found


def turns(libraries: list[Library], pipelines: list[list[str]], shards: list[str]) -> list[list[float]]:
    """Return the median CPU seconds of each pipeline in each library, all in turns after a warm-up."""
    asked: list[dict[str, Any]] = [{"job": "staged", "shards": shards, "stages": stages} for stages in pipelines]
    jobs = [(library, job) for library in libraries for job in asked]
    for library, job in jobs:
        library.ask(**job)
    taken = [[library.ask(**job)["cpu"] for library, job in jobs] for _ in range(ROUNDS)]
    medians = [statistics.median(column) for column in zip(*taken, strict=True)]
    return [medians[n : n + len(pipelines)] for n in range(0, len(medians), len(pipelines))]


def timing_percent(shards: list[str], *, elastic: bool) -> float:
    """Return how many percent of CPU time the timing of stages adds to a loader without workers."""
    began = time.process_time()
    for _ in range(1_000_000):
        pass
    turns_of_work = int(WORK_SECONDS / (time.process_time() - began) * 1_000_000)

    def work(sample: Any) -> Any:
        for _ in range(turns_of_work):
            pass
        return sample

    made = wds.WebDataset(shards, shardshuffle=False).shuffle(100).decode().map(work).to_tuple("cls", "json")
    dataset = made.elastic(streams=len(shards)) if elastic else made
    loaders = [wds.Loader(dataset, 64, timings=timings) for timings in (False, True)]
    ratios = []
    for turn in range(ROUNDS + 1):
        seconds = {}
        for which in (0, 1) if turn % 2 else (1, 0):
            before = time.process_time()
            for _ in loaders[which]:
                pass
            seconds[which] = time.process_time() - before
        ratios.append(seconds[1] / seconds[0])
    return rounded((statistics.median(ratios[1:]) - 1) * 100)


def measure() -> dict[str, object]:
    """Print and return the answers."""
    with workspace() as folder:
        shards = write("W2", folder, scale=SCALE)
        return show(
            "stages W2",
            **costs(shards),
            timing_percent={kind: timing_percent(shards, elastic=kind == "elastic") for kind in ("plain", "elastic")},
        )


if __name__ == "__main__":
    measure()
