"""Every sample comes once, whatever the dataset is that several workers share."""

import functools
import random
from collections import Counter
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.distributed import worker_context


class Wrapped:
    """A dataset of a user's, with a webdataset inside that shares out by itself."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        for sample in self.dataset:
            yield {**sample, "wrapped": True}


def own_split(shards):
    """Share shards out between workers: a function that no mark tells from others."""
    where = worker_context()
    for number, shard in enumerate(shards):
        if number % where.num_workers == where.worker:
            yield shard


def own_shuffle(shards):
    """Shuffle by the global generator, which is another one in each worker."""
    shards = list(shards)
    random.shuffle(shards)
    yield from shards


def plain(urls, *stages):
    """Return a pipeline of nothing but these stages."""
    return wds.DataPipeline(wds.SimpleShardList(urls), *stages, wds.tarfile_to_samples())


def mix(urls, **arguments):
    """Return a mix of two datasets."""
    half = len(urls) // 2
    parts = wds.WebDataset(urls[:half], shardshuffle=9), wds.WebDataset(urls[half:], shardshuffle=9).shuffle(5)
    return wds.RandomMix(parts, longest=True, **arguments)


DATASETS: dict[str, Any] = {
    "mix": mix,
    "weighted mix": functools.partial(mix, probs=[0.9, 0.1]),
    "mix in turn": lambda urls: wds.RoundRobin([plain(urls[:3], wds.split_by_worker), mix(urls[3:])], longest=True),
    "pipeline of a mix": lambda urls: wds.DataPipeline(mix(urls), wds.shuffle(10)),
    "elastic pipeline of a mix": lambda urls: wds.DataPipeline(mix(urls), wds.shuffle(10)).elastic(streams=12),
    "mix with a list": lambda urls: wds.RoundRobin([plain(urls), [{"__key__": "one more"}]], longest=True),
    "pipeline in a pipeline": lambda urls: wds.DataPipeline(wds.WebDataset(urls, shardshuffle=9), wds.shuffle(10)),
    "wrapped": lambda urls: Wrapped(wds.WebDataset(urls, shardshuffle=9, seed=1).shuffle(10)),
    "wrapped and unseeded": lambda urls: Wrapped(wds.WebDataset(urls, shardshuffle=9).shuffle(10)),
    "wrapped and elastic": lambda urls: Wrapped(wds.WebDataset(urls, shardshuffle=9).elastic()),
    "loader": lambda urls: wds.Loader(wds.WebDataset(urls, shardshuffle=9)),
    "no split": plain,
    "split between ranks only": lambda urls: plain(urls, wds.split_by_node),
    "split by sample": lambda urls: plain(urls, wds.split_by_sample),
    "split by a function": lambda urls: plain(urls, own_split),
    "shuffled by a function": lambda urls: plain(urls, own_shuffle),
    "function as workersplitter": lambda urls: wds.WebDataset(urls, workersplitter=own_split, shardshuffle=9),
    "no workersplitter": lambda urls: wds.WebDataset(urls, workersplitter=None, shardshuffle=9),
}


@pytest.mark.parametrize("mode", ["threads", "processes"])
@pytest.mark.parametrize("kind", DATASETS)
def test_every_sample_comes_once(numbered, kind, mode):
    """Nothing is lost and nothing comes twice: not with two workers, and not in the second epoch."""
    dataset = DATASETS[kind](numbered)
    number = 140 + (kind == "mix with a list")
    with wds.Loader(dataset, workers=2, mode=mode) as loader:
        for _ in range(2):
            found = Counter(sample["__key__"] for sample in loader)
            assert len(found) == number
            assert set(found.values()) == {1}


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_every_worker_draws_shards_of_its_own(numbered, mode, tmp_path):
    """Shards drawn at random are read once: no worker reads what it throws away; ``with_epoch`` counts in each."""
    log = tmp_path / "log"

    def logged(sample):
        with log.open("a") as file:
            file.write(f"{worker_context().worker} {sample['__key__']}\n")
        return sample

    dataset = wds.WebDataset(numbered, resampled=True, seed=3).map(logged).with_epoch(40)
    with wds.Loader(dataset, workers=2, mode=mode) as loader:
        keys = [sample["__key__"] for sample in loader]
    lines = [line.split() for line in log.read_text().splitlines()]
    assert Counter(worker for worker, _ in lines) == {"0": 40, "1": 40}
    assert Counter(key for _, key in lines) == Counter(keys)
    drawn = [[key for worker, key in lines if worker == number] for number in "01"]
    assert drawn[0] != drawn[1]
