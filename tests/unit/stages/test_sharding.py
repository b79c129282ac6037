"""Sharing shards out, or samples where there are too few shards."""

import pytest

from webdataset.stages.sharding import ShareSamples, ShareShards
from webdataset.testing.stages import check_stage


def everywhere(monkeypatch, ranks, workers):
    """Visit each worker of each rank."""
    for rank in range(ranks):
        for worker in range(workers):
            for name, value in (("RANK", rank), ("WORLD_SIZE", ranks), ("WORKER", worker), ("NUM_WORKERS", workers)):
                monkeypatch.setenv(name, str(value))
            yield rank, worker


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 30])
@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (2, 3), (6, 1), (1, 6), (4, 4)])
def test_each_sample_once(count, ranks, workers, monkeypatch):
    """Whatever the numbers, each sample of each shard goes to exactly one worker, and no worker of few is idle."""
    shards = [[f"{shard}-{n}" for n in range(16)] for shard in range(count)]
    parts = []
    for _ in everywhere(monkeypatch, ranks, workers):
        mine = ShareShards(count, ranks=True, workers=True)(shards)
        samples = (sample for shard in mine for sample in shard)
        parts.append(list(ShareSamples(count, ranks=True, workers=True)(samples)))
    assert sorted(sample for part in parts for sample in part) == sorted(sample for shard in shards for sample in shard)
    assert all(parts)


def test_only_among_those_that_share(monkeypatch):
    """Ranks alone, workers alone, or nobody."""
    for rank, worker in everywhere(monkeypatch, 2, 2):
        assert list(ShareShards(8, ranks=True, workers=False)(range(8))) == [rank, rank + 2, rank + 4, rank + 6]
        assert list(ShareShards(8, ranks=False, workers=True)(range(8))) == [worker, worker + 2, worker + 4, worker + 6]
        assert list(ShareShards(8, ranks=False, workers=False)(range(8))) == list(range(8))


@pytest.mark.parametrize("count", [1, 9])
def test_contract(count, monkeypatch):
    """The stage keeps the contract of stages, whether it shares out or not."""
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "3")
    check_stage(ShareSamples(count, ranks=True, workers=True), [{"__key__": str(n), "n": n} for n in range(14)])
