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
    """Return the state behind some items, and what the following epochs give."""
    loader = made(**options)
    items = iter(loader)
    list(itertools.islice(items, count))
    state = json.loads(json.dumps(loader.state_dict()))
    return state, [list(items), list(loader), list(loader)]


@pytest.mark.parametrize("stages", [False, True])
def test_behind_the_last_batch_of_a_length_comes_the_next_epoch(stages):
    """Who counts by the length has counted the epoch: its empty rest would be an epoch that is left out."""
    state, (rest, second, third) = stopped(10, length=True, stages=stages)
    assert rest == []
    again = made(length=True, stages=stages)
    again.load_state_dict(state)
    assert [list(again), list(again)] == [second, third]


@pytest.mark.parametrize(("count", "length"), [(10, False), (7, True), (7, False)])
def test_elsewhere_comes_the_rest(count, length):
    """Without a length, or within the epoch, the rest comes first, though it is empty."""
    state, (rest, second, _) = stopped(count, length=length)
    again = made(length=length)
    again.load_state_dict(state)
    assert [list(again), list(again)] == [rest, second]


def test_a_chosen_epoch_is_that_epoch():
    """After set_epoch the caller's epoch holds: its rest is empty, and no other comes in its place."""
    state, (_, second, _) = stopped(10, length=True)
    again = made(length=True)
    again.load_state_dict(state)
    again.set_epoch(0)
    assert [list(again), list(again)] == [[], second]


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
