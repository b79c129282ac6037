"""Splitting: every shard goes to exactly one worker of one rank."""

from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from webdataset.shards.lists import SimpleShardList
from webdataset.shards.split import split_by_node, split_by_worker

small = st.integers(min_value=1, max_value=9)


@contextmanager
def standing(rank, world_size, worker, num_workers):
    """Stand at a place of a job."""
    place = {"RANK": rank, "WORLD_SIZE": world_size, "WORKER": worker, "NUM_WORKERS": num_workers}
    with patch.dict("os.environ", {name: str(number) for name, number in place.items()}):
        yield


def shares(count, ranks, workers, seed, *, node_first=True):
    """Return what each worker of each rank reads."""
    found = []
    for rank in range(ranks):
        for worker in range(workers):
            with standing(rank, ranks, worker, workers):
                shards = iter(SimpleShardList([str(n) for n in range(count)], seed))
                splits = (split_by_node, split_by_worker) if node_first else (split_by_worker, split_by_node)
                for split in splits:
                    shards = split(shards)
                found.append([shard["url"] for shard in shards])
    return found


@given(count=st.integers(1, 60), ranks=small, workers=small, seed=st.none() | st.integers(), node_first=st.booleans())
def test_shares_cover_exactly_once(count, ranks, workers, seed, node_first):
    """For any number of shards, ranks and workers, the shares are disjoint and complete, in either order of splits."""
    found = shares(count, ranks, workers, seed, node_first=node_first)
    assert sorted(int(url) for share in found for url in share) == list(range(count))


@given(count=st.integers(1, 60), ranks=small, workers=small)
def test_shares_are_balanced(count, ranks, workers):
    """Shares of ranks differ by at most one shard, and so do those of one rank's workers."""
    sizes = [len(share) for share in shares(count, ranks, workers, None)]
    by_rank = [sum(sizes[rank * workers : (rank + 1) * workers]) for rank in range(ranks)]
    assert max(by_rank) - min(by_rank) <= 1
    for rank in range(ranks):
        own = sizes[rank * workers : (rank + 1) * workers]
        assert max(own) - min(own) <= 1


@given(count=st.integers(1, 60), ranks=small, workers=small, seed=st.none() | st.integers())
def test_shares_keep_the_order(count, ranks, workers, seed):
    """Each share is a subsequence of the whole list."""
    whole = [shard["url"] for shard in SimpleShardList([str(n) for n in range(count)], seed)]
    for share in shares(count, ranks, workers, seed):
        positions = [whole.index(url) for url in share]
        assert positions == sorted(positions)
