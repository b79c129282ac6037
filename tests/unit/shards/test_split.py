"""Which shards a rank and a worker read."""

import pytest

from webdataset.core.errors import NoSamples, UsageError
from webdataset.shards.lists import make_seed, pytorch_worker_info, pytorch_worker_seed
from webdataset.shards.split import non_empty, single_node_only, split_by_node, split_by_worker


@pytest.fixture
def stand(monkeypatch):
    """Stand at a place of a job."""

    def at(rank, world_size, worker=0, num_workers=1):
        for name, number in zip(
            ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS"), (rank, world_size, worker, num_workers), strict=True
        ):
            monkeypatch.setenv(name, str(number))

    return at


def test_shares(stand):
    """Rank 3 of 5 takes every fifth from 3; worker 2 of 7 every seventh from 2."""
    stand(3, 5, 2, 7)
    assert list(split_by_node(range(20))) == [3, 8, 13, 18]
    assert list(split_by_worker(range(20))) == [2, 9, 16]
    assert pytorch_worker_info() == (3, 5, 2, 7)
    assert pytorch_worker_seed() == 3002


def test_alone():
    """A single process reads everything."""
    for split in (split_by_node, split_by_worker, single_node_only, non_empty):
        assert list(split(iter([1, 2]))) == [1, 2]
    assert pytorch_worker_info() == (0, 1, 0, 1)


def test_the_place_is_asked_late(stand):
    """A split that was made before its worker existed asks when it is iterated."""
    share = split_by_worker(range(4))
    stand(0, 1, 1, 2)
    assert list(share) == [1, 3]


def test_single_node_only(stand):
    """In a larger world it raises, naming rank, world size and the way out."""
    stand(3, 5)
    with pytest.raises(UsageError, match="rank 3 of 5.*explicit nodesplitter.*nodesplitter=wds.split_by_node"):
        list(single_node_only([1]))


def test_splits_are_marked():
    """The pipeline knows before which stages workers must draw alike."""
    assert split_by_node.splits
    assert split_by_worker.splits


def test_non_empty(stand):
    """Nothing is an error that tells the place."""
    stand(0, 1, 2, 7)
    with pytest.raises(NoSamples, match="worker 2 of 7") as caught:
        list(non_empty([]))
    assert isinstance(caught.value, ValueError)


def test_make_seed():
    """Numbers fold as ever; texts fold alike in every process."""
    assert [make_seed(*parts) for parts in [(1, 2), (0,), (), (1.5,), (17, 3), (2**70,)]] == [33, 0, 0, 1, 530, 512]
    assert make_seed(1, "a") == 1666209070
