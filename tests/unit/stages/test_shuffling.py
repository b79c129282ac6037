"""shuffle, _shuffle, detshuffle."""

import random

import pytest

from webdataset.core.error_handlers import warn_and_continue
from webdataset.core.errors import FlowError, UsageError
from webdataset.core.upstream_utils import PipelineStage
from webdataset.stages.base import Run
from webdataset.stages.shuffle import DetShuffle, _shuffle, detshuffle, pick, shuffle

PINNED = [1, 2, 0, 4, 7, 8, 6, 10, 9, 11, 5, 3]


def under(stage, run, n=12):
    """Run a stage over 0..n-1."""
    return list(stage.flow(iter(range(n)), stage.begin(run)))


def test_the_order_is_upstreams():
    """The same generator gives the same order as the published packages."""
    assert list(shuffle(4, 2, random.Random(0))(range(12))) == PINNED
    assert list(shuffle(bufsize=4, initial=2, rng=random.Random(0))(iter(range(12)))) == PINNED
    assert list(_shuffle(iter(range(12)), 4, 2, random.Random(0))) == PINNED


def test_lists_can_be_shuffled():
    """The source need not be an iterator."""
    assert list(_shuffle(list(range(12)), 4, 2, random.Random(0))) == PINNED


class Recorded(random.Random):
    """A generator of another type, which is asked for randint."""

    asked = 0

    def randint(self, a, b):
        Recorded.asked += 1
        return super().randint(a, b)


def test_generators_of_other_types_are_asked_for_randint():
    """And give what they give."""
    assert list(shuffle(4, 2, Recorded(0))(range(12))) == PINNED
    assert Recorded.asked == 12


def test_the_global_generator_can_be_given():
    """The module itself, as rng."""
    random.seed(0)
    assert list(shuffle(4, 2, random)(range(12))) == PINNED


@pytest.mark.parametrize("size", [1, 0, -3])
def test_small_buffers_leave_the_order_alone(size):
    """Below 2 there is nothing to choose from."""
    assert list(shuffle(size)(range(12))) == list(range(12))


def test_an_unseeded_shuffle_follows_the_run():
    """Equal runs give equal orders, the next epoch another one, and two stages of a run differ."""
    stage = shuffle(8, initial=8)
    first = under(stage, Run(seed=1))
    assert sorted(first) == list(range(12))
    assert first == under(stage, Run(seed=1))
    assert first != under(stage, Run(seed=1, epoch=1))
    assert first != under(stage, Run(seed=1, position=1))


def test_a_seed_starts_afresh_in_every_epoch():
    """As upstream's does."""
    stage = shuffle(8, seed=3)
    assert under(stage, Run(seed=1)) == under(stage, Run(seed=2, epoch=5))


def test_seed_and_rng_exclude_each_other():
    """Which of them should count?"""
    with pytest.raises(UsageError, match="not both"):
        list(shuffle(4, seed=1, rng=random.Random(0))(range(3)))


def test_a_handler_is_accepted():
    """Public code passes one."""
    assert sorted(shuffle(690, handler=warn_and_continue)(range(5))) == list(range(5))


def test_the_buffer_fills_two_by_two():
    """The first output needs `initial` items; each later one two more, until the buffer is full."""
    read = []

    def source():
        for n in range(100):
            read.append(n)
            yield n

    shuffled = shuffle(10, initial=4)(source())
    counts = []
    for _ in range(12):
        next(shuffled)
        counts.append(len(read))
    assert counts == [4, 6, 8, 10, 12, 14, 16, 17, 18, 19, 20, 21]


def test_detshuffle_is_a_function_of_seed_and_epoch():
    """In a run by the run's epoch; by itself each call is an epoch; ``epoch`` is that of the last pass."""
    stage = detshuffle(bufsize=4, initial=2, seed=7)
    epochs = [under(stage, Run(seed=n, epoch=n)) for n in (0, 1)]
    assert epochs == [list(_shuffle(range(12), 4, 2, random.Random(7 + n))) for n in (0, 1)]
    assert stage.epoch == 1
    stage = detshuffle(bufsize=4, initial=2, seed=7)
    assert [list(stage.run(iter(range(12)))), list(stage(range(12)))] == epochs
    assert stage.epoch == 1
    assert under(DetShuffle(4, 2, 5, epoch=1), Run()) == epochs[0]


def test_detshuffle_is_a_pipeline_stage():
    """Public code asks for the class and calls run."""
    assert isinstance(detshuffle(), PipelineStage)
    assert isinstance(detshuffle(), detshuffle)


def test_repr_names_the_shuffle():
    """Public tests look for the name."""
    assert repr(shuffle(1000)) == "shuffle(1000, initial=100)"
    assert repr(detshuffle(5, 2, 7)) == "detshuffle(5, initial=2, seed=7, epoch=-1)"


def test_generators_that_cannot_be_saved_are_told():
    """A snapshot of a foreign generator says what to give instead."""

    class Dice:
        def randint(self, low, high):
            return high

    stage = shuffle(4, 2, Dice())
    memory = stage.begin(Run())
    with pytest.raises(FlowError, match=r"Dice.*seed="):
        memory.snapshot()


def test_pick_takes_an_item_out():
    """The last one takes its place."""
    buffer = [10, 11, 12, 13]
    taken = pick(buffer, random.Random(0))
    assert sorted([taken, *buffer]) == [10, 11, 12, 13]
    assert pick([5], random.Random(0)) == 5


@pytest.mark.parametrize("make", [
    lambda size: shuffle(size, size, seed=3),
    lambda size: shuffle(size, size, rng=random.Random(1)),
    lambda size: shuffle(size, size, seed=1, max_bytes=10**6),
    lambda size: detshuffle(size, size),
    lambda size: lambda data: _shuffle(data, size, size, random.Random(2)),
])  # fmt: skip
def test_sizes_that_programs_compute(make):
    """``1e1`` and ``count / 4`` are sizes, too: a fraction is rounded up; what is no number of samples is refused."""
    assert list(make(1e1)(iter(range(50)))) == list(make(10)(iter(range(50))))
    assert list(make(9.25)(iter(range(50)))) == list(make(10)(iter(range(50))))
    for wrong in (float("inf"), float("nan")):
        with pytest.raises(UsageError, match="finite number"):
            list(make(wrong)(iter(range(50))))
