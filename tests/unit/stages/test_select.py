"""select, rsample, slice."""

import random

import pytest

from webdataset.stages.base import Run
from webdataset.stages.select import Slice, _rsample, _select, rsample, select
from webdataset.stages.select import slice as sliced


def test_select_keeps_what_is_true():
    """Any truth will do."""
    assert list(select(lambda n: n % 3)(range(7))) == [1, 2, 4, 5]
    assert list(_select(iter([0, 1]), bool)) == [1]


def test_rsample_keeps_a_part():
    """About p of the samples, in order; the run's seed decides which."""
    stage = rsample(0.25)
    run = Run(seed=1)
    kept = list(stage.flow(iter(range(4000)), stage.begin(run)))
    assert 850 < len(kept) < 1150
    assert kept == sorted(kept)
    assert kept == list(stage.flow(iter(range(4000)), stage.begin(run)))
    assert kept != list(stage.flow(iter(range(4000)), stage.begin(Run(seed=1, epoch=1))))


def test_rsample_at_its_ends():
    """p=0 keeps nothing, p=1 everything."""
    assert list(rsample(0)(range(9))) == []
    assert list(rsample(1.0)(range(9))) == list(range(9))
    assert list(_rsample(iter(range(9)), 1)) == list(range(9))


@pytest.mark.parametrize("bounds", [(3,), (0,), (2, 5), (1, None), (1, None, 3), (None, 7, 2), (4, 2), (None,)])
def test_slice_is_islice(bounds):
    """All forms of itertools.islice."""
    assert list(sliced(*bounds)(range(10))) == list(range(10))[slice(*bounds)]


@pytest.mark.parametrize("seed", range(40))
def test_slice_goes_on_behind_what_it_gave(seed):
    """A restored slice continues as the whole one, at every point, for any bounds."""
    rng = random.Random(seed)
    bounds = (rng.choice([None, rng.randint(0, 5)]), rng.choice([None, rng.randint(0, 20)]), rng.randint(1, 5))
    stage = Slice(*bounds)
    whole = list(range(17))[slice(*bounds)]
    for given in range(1, len(whole) + 1):
        memory = stage.begin(Run())
        memory.restore(given, list)
        rest = iter(range(whole[given - 1] + 1, 17))
        assert list(stage.flow(rest, memory)) == whole[given:]


def test_slice_checks_its_arguments_at_once():
    """As islice does, and says what to write."""
    with pytest.raises(ValueError, match="positions are whole numbers from 0"):
        sliced(-1)
    with pytest.raises(TypeError):
        sliced()


def test_slice_stops_reading_in_time():
    """What lies behind the slice is not read."""
    source = iter(range(100))
    assert list(sliced(3)(source)) == [0, 1, 2]
    assert next(source) == 3
