"""A loader with a length that is resumed where a program has stopped counting."""

import itertools
import json

import pytest

import webdataset as wds

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def made(*, length, stages=False):
    """Return a loader over epochs of ten items."""
    dataset = wds.DataPipeline([list(range(40))], wds.shuffle(9)).with_epoch(10)
    dataset.seed = 3
    loader = wds.WebLoader(dataset.elastic(4), batch_size=None, num_workers=0)
    loader = loader.shuffle(3) if stages else loader
    return loader.with_length(10) if length else loader


def stopped(count, **options):
    """Return the state after some items, and what the following epochs give."""
    loader = made(**options)
    items = iter(loader)
    list(itertools.islice(items, count))
    state = json.loads(json.dumps(loader.state_dict()))
    return state, [list(items), list(loader), list(loader)]


@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.parametrize("length", [False, True])
def test_behind_the_last_batch_comes_the_next_epoch(length, stages):
    """Who counts batches has counted the epoch: its empty rest would be an epoch that is left out."""
    state, (rest, second, third) = stopped(10, length=length, stages=stages)
    assert rest == []
    again = made(length=length, stages=stages)
    again.load_state_dict(state)
    assert [list(again), list(again)] == [second, third]


@pytest.mark.parametrize("length", [False, True])
def test_elsewhere_comes_the_rest(length):
    """Within the epoch, the rest comes first."""
    state, (rest, second, _) = stopped(7, length=length)
    assert rest
    again = made(length=length)
    again.load_state_dict(state)
    assert [list(again), list(again)] == [rest, second]


@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.parametrize("length", [False, True])
def test_a_chosen_epoch_is_that_epoch(length, stages):
    """After set_epoch the caller's epoch holds: its rest is empty, and no other comes in its place."""
    state, (_, second, third) = stopped(10, length=length, stages=stages)
    again = made(length=length, stages=stages)
    again.load_state_dict(state)
    again.set_epoch(0)
    assert [list(again), list(again)] == [[], second]
    again.load_state_dict(state)
    if stages:
        with pytest.warns(UserWarning, match=r"set_epoch\(2\) begins epoch 2.* after 10 items of epoch 0"):
            again.set_epoch(2)
    else:
        again.set_epoch(1)
        assert list(again) == second
        again.load_state_dict(state)
        with pytest.warns(UserWarning, match=r"set_epoch\(2\) begins epoch 2.* after 10 items of epoch 0"):
            again.set_epoch(2)
    assert list(again) == third


@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.parametrize("loaded_into_dataset", [False, True])
def test_another_epoch_than_the_states_begins_there(loaded_into_dataset, stages):
    """set_epoch of another epoch is not overridden by a state, and says once that the state is left."""
    state, (_, _, third) = stopped(4, length=False, stages=stages and not loaded_into_dataset)
    again = made(length=False, stages=stages)
    (again.pipeline[0].dataset if loaded_into_dataset else again).load_state_dict(state)
    with pytest.warns(UserWarning, match=r"set_epoch\(2\) begins epoch 2.* after 4 items of epoch 0") as told:
        again.set_epoch(2)
    assert [warning.filename for warning in told] == [__file__]
    expected = made(length=False, stages=stages)
    expected.set_epoch(2)
    expected = list(expected)
    assert list(again) == expected
    assert stages or expected == third


@pytest.mark.parametrize("given", [0, 4, None], ids=["not begun", "within an epoch", "behind an epoch"])
@pytest.mark.parametrize("stages", [False, True])
def test_the_state_of_a_chosen_epoch_is_its_beginning(stages, given):
    """A state saved between set_epoch and the first batch begins with the epoch that was chosen."""
    loader = made(length=False, stages=stages)
    items = iter(loader) if given != 0 else iter(())
    list(itertools.islice(items, given))
    loader.set_epoch(5)
    state = json.loads(json.dumps(loader.state_dict()))
    del items  # the run before has no say any more
    again = made(length=False, stages=stages)
    again.load_state_dict(state)
    chosen = made(length=False, stages=stages)
    chosen.set_epoch(5)
    assert list(loader) == list(again) == list(chosen)
