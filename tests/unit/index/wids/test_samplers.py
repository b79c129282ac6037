"""Samplers: every index as often as promised, in an order that seed and epoch decide."""

import pickle
from collections import Counter

import pytest

from webdataset.core.errors import UsageError
from webdataset.index.wids.samplers import ChunkedSampler, DistributedChunkedSampler, ShardedSampler, ShardListSampler


class Sized:
    """A dataset of which only lengths matter."""

    def __init__(self, *lengths):
        self.lengths = list(lengths)

    def __len__(self):
        return sum(self.lengths)


def shards_of(order, lengths):
    """The shard of each index, runs of one shard once."""
    owners = [shard for shard, length in enumerate(lengths) for _ in range(length)]
    seen = [owners[index] for index in order]
    return [shard for place, shard in enumerate(seen) if place == 0 or seen[place - 1] != shard]


def test_shards_are_read_one_after_another():
    """Each index comes once, each shard in one run; shards keep their order in epoch 0 alone."""
    sampler = ShardListSampler(Sized(3, 4, 5), seed=4)
    passes = [list(sampler) for _ in range(6)]
    assert all(sorted(order) == list(range(12)) for order in passes)
    assert shards_of(passes[0], [3, 4, 5]) == [0, 1, 2]
    assert all(len(shards_of(order, [3, 4, 5])) == 3 for order in passes)
    assert len({tuple(shards_of(order, [3, 4, 5])) for order in passes}) > 1
    assert len(sampler) == 12
    assert ShardedSampler is ShardListSampler


def test_seed_and_epoch_decide():
    """The same seed and epoch give the same order, another seed or epoch another; a pass left early is counted."""
    first, second = ChunkedSampler(Sized(30), seed=1), ChunkedSampler(Sized(30), seed=1)
    assert [list(first) for _ in range(3)] == [list(second) for _ in range(3)]
    assert list(ChunkedSampler(Sized(30), seed=2)) != list(ChunkedSampler(Sized(30), seed=1))
    third = pickle.loads(pickle.dumps(ChunkedSampler(Sized(30), seed=1)))
    next(iter(third))
    first.set_epoch(1)
    assert list(third) == list(first)


def test_a_sampler_as_in_0286():
    """Batch size and shuffle by position are understood: shards are always shuffled, no two samplers alike."""
    orders = [list(ShardedSampler(Sized(9, 9), [5, 6, 7], 2, True)) for _ in range(40)]
    assert all(sorted(order) == list(range(18)) for order in orders)
    assert len({tuple(shards_of(order, [5, 6, 7])) for order in orders}) > 1
    assert len({tuple(order) for order in orders}) > 30
    assert list(ShardedSampler(Sized(2, 3), shuffle=False)) == [0, 1, 2, 3, 4]


def test_lengths_are_needed():
    """Without lengths the error says what to pass."""
    with pytest.raises(UsageError, match="lengths="):
        ShardListSampler(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, 1, 11, 12, 13, 40])
def test_a_pass_is_as_long_as_promised(length):
    """``dslength_per_replica`` cuts the pass, or begins the range again."""
    sampler = ChunkedSampler(Sized(25), num_samples=(5, 17), chunksize=5, dslength_per_replica=length)
    order = list(sampler)
    assert len(order) == len(sampler) == length
    assert set(order) <= set(range(5, 17))
    if length >= 12:
        assert sorted(order[:12]) == list(range(5, 17))


@pytest.mark.parametrize("wrong", [{"num_samples": 26}, {"num_samples": (3, 2)}, {"num_samples": -1}, {"chunksize": 0}])
def test_samples_that_there_are_not(wrong):
    """Samples outside of the dataset are refused, not given."""
    with pytest.raises(UsageError):
        ChunkedSampler(Sized(25), **wrong)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 24, 25, 100])
@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
@pytest.mark.parametrize("drop_last", [None, False, True])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_get_equally_many(count, replicas, drop_last, shuffle):
    """All ranks give len() indices in every epoch; together everything, or less than a rank's share is dropped."""
    samplers = [
        DistributedChunkedSampler(
            Sized(count), num_replicas=replicas, rank=rank, chunksize=3, drop_last=drop_last, shuffle=shuffle
        )
        for rank in range(replicas)
    ]
    for _ in range(2):
        orders = [list(sampler) for sampler in samplers]
        share = count // replicas if drop_last else -(-count // replicas)
        assert {len(order) for order in orders} == {share} == {len(sampler) for sampler in samplers}
        times = Counter(index for order in orders for index in order)
        if drop_last:
            assert sorted(times) == list(range(share * replicas))
            assert set(times.values()) <= {1}
        else:
            assert sorted(times) == list(range(count))
            assert sum(times.values()) == share * replicas


def test_ranks_of_the_job(monkeypatch):
    """Ranks come from the job; without one, a warning says that the sampler reads everything."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.warns(UserWarning, match="num_replicas="):
        assert len(DistributedChunkedSampler(Sized(10))) == 10
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert sorted(DistributedChunkedSampler(Sized(10))) == [5, 6, 7, 8, 9]
    assert sorted(DistributedChunkedSampler(Sized(10), num_samples=(2, 8))) == [5, 6, 7]


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"num_replicas": 2}, {"rank": 2, "num_replicas": 2}])
def test_ranks_that_there_are_not(wrong):
    """A rank without a number of ranks, or beyond it, is refused."""
    with pytest.raises(UsageError, match="rank"):
        DistributedChunkedSampler(Sized(10), **wrong)
