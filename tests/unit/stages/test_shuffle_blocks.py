"""block_shuffle."""

import pytest

from webdataset import filters
from webdataset.core.distributed import StreamNumber
from webdataset.core.errors import UsageError
from webdataset.stages.base import Run
from webdataset.stages.shuffle_blocks import BlockShuffle


def under(stage, run, n=20):
    """Run a stage over 0..n-1."""
    return list(stage.flow(iter(range(n)), stage.begin(run)))


def test_each_block_is_a_permutation_of_its_own():
    """Nothing leaves its block, and blocks are shuffled differently."""
    order = under(filters.block_shuffle(8), Run(seed=1))
    blocks = [order[:8], order[8:16], order[16:]]
    assert [sorted(block) for block in blocks] == [list(range(8)), list(range(8, 16)), list(range(16, 20))]
    assert [n - 8 for n in blocks[1]] != blocks[0]


def test_the_order_follows_the_run():
    """Seed, epoch and place in the pipeline."""
    stage = filters.block_shuffle(20)
    first = under(stage, Run(seed=1))
    assert first == under(stage, Run(seed=1))
    others = [under(stage, run) for run in (Run(seed=2), Run(seed=1, epoch=1), Run(seed=1, position=1))]
    assert all(sorted(other) == list(range(20)) and other != first for other in others)


def test_a_seed_of_its_own_still_differs_by_epoch():
    """The run's seed does not count then."""
    stage = filters.block_shuffle(20, seed=3)
    assert under(stage, Run(seed=1)) == under(stage, Run(seed=2))
    assert under(stage, Run(seed=1)) != under(stage, Run(seed=1, epoch=1))


def test_no_more_than_a_block_is_held():
    """The next block is read when the last one has been given."""
    read = []

    def source():
        for n in range(20):
            read.append(n)
            yield n

    items = filters.block_shuffle(5)(source())
    for given in range(1, 21):
        next(items)
        assert len(read) == -(-given // 5) * 5


def test_streams_share_the_size():
    """All blocks together are as large as one would be."""
    assert BlockShuffle(100).for_stream(StreamNumber(0, 24)).size == 5
    assert BlockShuffle(10, 3).for_stream(StreamNumber(0, 24)).size == 1


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_below_one_are_refused(size):
    """There is no such block."""
    with pytest.raises(UsageError, match="size="):
        filters.block_shuffle(size)


def test_repr_names_the_stage():
    """With what it was given."""
    assert repr(filters.block_shuffle(5)) == "block_shuffle(5)"
    assert repr(filters.block_shuffle(5, seed=1)) == "block_shuffle(5, seed=1)"
