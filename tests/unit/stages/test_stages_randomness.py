"""Random generators in memories."""

import json
import random
from typing import Any

import pytest

from webdataset.core.errors import StateMismatch
from webdataset.stages.base import Run
from webdataset.stages.randomness import randbelow, restore_rng, rng_state, run_rng
from webdataset.stages.shuffle import shuffle


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 8, 9, 1000, 1024, 1025, 2**31, 2**33 + 1])
def test_below_draws_as_randint_does(bound):
    """Number for number, and the generators stay in step."""
    ours, theirs = random.Random(bound), random.Random(bound)
    assert [randbelow(ours, bound) for _ in range(200)] == [theirs.randint(0, bound - 1) for _ in range(200)]
    assert ours.getstate() == theirs.getstate()


def test_states_survive_json():
    """Gaussian half included."""
    rng = random.Random(3)
    rng.gauss()
    state = json.loads(json.dumps(rng_state(rng)))
    other = random.Random(99)
    restore_rng(other, state)
    assert other.getstate() == rng.getstate()


@pytest.mark.parametrize("state", [None, [], "x", [3, "short", None], [9, "0001", None, 1]])
def test_other_states_are_refused(state):
    """A snapshot of something else."""
    with pytest.raises(StateMismatch):
        restore_rng(random.Random(), state)


def test_the_own_generator_of_a_stage_is_one_number():
    """A function of the run; its state is its position, and continues anywhere."""
    rng = run_rng(Run(seed=1), "mix")
    first = [randbelow(rng, 10) for _ in range(2000)]
    state = json.loads(json.dumps(rng_state(rng)))
    assert state == 2000
    other = run_rng(Run(seed=1), "mix")
    assert [randbelow(other, 10) for _ in range(2000)] == first
    again = run_rng(Run(seed=1), "mix")
    restore_rng(again, state)
    assert [randbelow(again, 10) for _ in range(50)] == [randbelow(rng, 10) for _ in range(50)]
    third = run_rng(Run(seed=1), "other")
    assert [randbelow(third, 10) for _ in range(2000)] != first


@pytest.mark.parametrize("state", [None, -1, 1.5, "3", True, [3, "", None]])
def test_other_states_of_the_own_generator_are_refused(state):
    """A snapshot of something else."""
    with pytest.raises(StateMismatch):
        restore_rng(run_rng(Run()), state)


def test_an_unseeded_shuffle_has_a_small_state():
    """Its generator takes no more than a number, where one that was given takes 3 KB."""
    sizes = []
    ways: list[dict[str, Any]] = [{}, {"seed": 1}]
    for options in ways:
        stage = shuffle(20, **options)
        memory = stage.begin(Run(seed=1))
        memory.origin = lambda: 0
        items = stage.flow(iter(range(100)), memory)
        next(items)
        sizes.append(len(json.dumps(memory.snapshot())))
    assert sizes[0] < 600 < 3000 < sizes[1]
