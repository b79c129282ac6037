"""Writes one file of each kind that stays on disk: indexes, a cache, states; for test_formats_on_disk.py.

``python format_files.py FOLDER`` writes them into a folder. The test holds what an earlier commit wrote
(``formats_recorded.tar.gz``); record again only where a format has changed on purpose and its version with it.
"""

import json
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

import webdataset as wds
from webdataset.fluent.elastic_dataset import ElasticDataset

SHARDS = ("a.tar", "b.tar")
TIME = 1_700_000_000  # of every member and file
CACHED = "pipe:cat a.tar"
SEEN = 5  # items before a state is saved; batches of two, of a loader


def make_dataset() -> ElasticDataset:
    """Return the dataset whose states are kept: a saved buffer, a random stage, batches."""
    return (
        wds.WebDataset(list(SHARDS), seed=7, shardshuffle=2)
        .shuffle(6)
        .map(add_noise, rng=True)
        .to_tuple("__key__", "noise")
        .elastic(4)
    )


def add_noise(sample: dict[str, Any], rng: Random) -> dict[str, Any]:
    """Add a number drawn for the sample."""
    return {**sample, "noise": round(rng.random(), 6)}


def make_loader() -> wds.Loader:
    """Return the loader whose states are kept."""
    dataset = wds.WebDataset(list(SHARDS), seed=7, shardshuffle=2).shuffle(6).to_tuple("__key__").elastic(4)
    return wds.Loader(dataset, 2, workers=0)


def write_shards() -> None:
    """Write the shards, in the folder that the process is in."""
    for name in SHARDS:
        with wds.TarWriter(name, mtime=TIME) as sink:
            for number in range(10):
                sink.write({"__key__": f"{name[0]}{number:02d}", "txt": f"caption {number}", "cls": number})
        os.utime(name, (TIME, TIME))


def write_indexes() -> None:
    """Write an index of each kind beside the shards."""
    wds.write_indexes(list(SHARDS), ["dali", "energon", "files", "wids"])


def main() -> None:
    """Write everything."""
    os.chdir(sys.argv[1])
    write_shards()
    write_indexes()
    os.mkdir("cache")
    list(wds.WebDataset(CACHED, shardshuffle=False, cache_dir="cache"))
    dataset = make_dataset()
    run = iter(dataset)
    before = [next(run) for _ in range(SEEN)]
    Path("elastic.json").write_text(json.dumps({"before": before, "state": dataset.state_dict()}), encoding="utf-8")
    with make_loader() as loader:
        batch_run = iter(loader)
        batches = [list(next(batch_run)[0]) for _ in range(SEEN)]
        state = loader.state_dict()
    Path("loader.json").write_text(json.dumps({"before": batches, "state": state}), encoding="utf-8")


if __name__ == "__main__":
    main()
