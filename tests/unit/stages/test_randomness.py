"""Random generators in memories."""

import json
import random

import pytest

from webdataset.ground.errors import StateMismatch
from webdataset.stages.randomness import below, reread, written


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 8, 9, 1000, 1024, 1025, 2**31, 2**33 + 1])
def test_below_draws_as_randint_does(bound):
    """Number for number, and the generators stay in step."""
    ours, theirs = random.Random(bound), random.Random(bound)
    assert [below(ours, bound) for _ in range(200)] == [theirs.randint(0, bound - 1) for _ in range(200)]
    assert ours.getstate() == theirs.getstate()


def test_states_survive_json():
    """Gaussian half included."""
    rng = random.Random(3)
    rng.gauss()
    state = json.loads(json.dumps(written(rng)))
    other = random.Random(99)
    reread(other, state)
    assert other.getstate() == rng.getstate()


@pytest.mark.parametrize("state", [None, [], "x", [3, "short", None], [9, "0001", None, 1]])
def test_other_states_are_refused(state):
    """A snapshot of something else."""
    with pytest.raises(StateMismatch):
        reread(random.Random(), state)
