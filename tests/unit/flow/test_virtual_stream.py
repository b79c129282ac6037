"""What comes after the last item of a state's epoch, and what set_epoch does with a state."""

import itertools
import json
import warnings

import pytest

import webdataset as wds
from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import StateMismatch
from webdataset.flow.elastic_state import ReceivedState
from webdataset.flow.virtual_stream import is_epoch_over

ALONE = WorkerContext(0, 1, 0, 1)


def made(*, count=41, bound=None, seed=3, kept=lambda _: True):
    """Return an elastic dataset of numbers."""
    pipeline = wds.DataPipeline([list(range(count))], wds.shuffle(9), wds.select(kept))
    pipeline.seed = seed
    return (pipeline if bound is None else pipeline.with_epoch(bound)).elastic(4)


def epochs(number, **options):
    """Return what the epochs of a run that never stopped give."""
    dataset = made(**options)
    return [list(dataset) for _ in range(number)]


def behind(count, **options):
    """Return the state after some items of the first epoch; None is behind all and the end."""
    dataset = made(**options)
    items = iter(dataset)
    list(itertools.islice(items, count))
    return json.loads(json.dumps(dataset.state_dict()))


def resumed(state, **options):
    """Return a dataset that a state was loaded into."""
    dataset = made(**options)
    dataset.load_state_dict(state)
    return dataset


@pytest.mark.parametrize("count", [None, 41], ids=["told", "taken"])
def test_behind_the_last_item_comes_the_next_epoch(count):
    """Whether the end was told or not; and then the one behind it, for the dataset and for a run of it."""
    _, second, third, fourth = epochs(4)
    state = behind(count)
    dataset = resumed(state)
    assert dataset.state_dict() == state
    assert [list(dataset) for _ in range(3)] == [second, third, fourth]
    assert list(made().elastic_run(state=state)) == second
    assert list(made().elastic_run(ALONE, state)) == [], "who names a place begins epochs himself"
    assert [item for _, item in made().elastic_run(ALONE, state, continue_epochs=True).positions()] == second


@pytest.mark.parametrize("count", [None, 41], ids=["told", "taken"])
def test_the_state_of_the_epoch_that_followed(count):
    """Saved within it, a run that went on so goes on once more; so does one loaded into an iterator that has begun."""
    _, second, third = epochs(3)
    dataset = resumed(behind(count))
    items = iter(dataset)
    head = list(itertools.islice(items, 17))
    state = json.loads(json.dumps(dataset.state_dict()))
    assert (state["epoch"], state["received"]) == (1, 17)
    again = resumed(state)
    assert [head + list(again), list(again)] == [second, third]
    begun = iter(made())
    next(begun)
    begun.load_state_dict(state)
    assert head + list(begun) == second


def test_an_iterator_is_one_epoch():
    """A state after the last item, loaded into an iterator itself, ends it: its driver asks for the next one."""
    _, second = epochs(2)
    dataset = made()
    run = iter(dataset)
    run.load_state_dict(behind(41))
    assert list(run) == []
    assert list(dataset) == second


def test_a_bound_tells_the_end_without_reading():
    """Behind the n-th item of with_epoch(n) the epoch is over, though nobody was told."""
    for bound in (20, 23, 3):
        state = behind(bound, bound=bound)
        assert is_epoch_over(state, ALONE)
        assert not is_epoch_over(behind(bound - 1, bound=bound), ALONE)
        _, second, third = epochs(3, bound=bound)
        dataset = resumed(state, bound=bound)
        assert dataset.epoch == 1
        assert [list(dataset), list(dataset)] == [second, third]
    assert not is_epoch_over(behind(41), ALONE)
    assert is_epoch_over(behind(None), ALONE)
    assert not is_epoch_over(behind(0), ALONE)


def test_epochs_without_an_item():
    """A state after an empty epoch goes on with the next, which is empty too; one before it with that epoch."""
    options = {"kept": lambda _: False}
    for count in (0, None):
        dataset = resumed(behind(count, **options), **options)
        assert [list(dataset), list(dataset)] == [[], []]
        assert dataset.epoch == 2 + (count is None)


def test_what_a_consumer_received_follows():
    """Progress of workers that went on with the next epoch makes the state of that epoch."""
    state = behind(41)
    _, second = epochs(2)
    received, given = ReceivedState(state), []
    runs = [made().elastic_run(WorkerContext(0, 1, worker, 2), state, continue_epochs=True) for worker in range(2)]
    for number in range(13):
        run = runs[number % 2]
        given.append(next(run))
        received.take(json.loads(json.dumps(run.progress())))
    told = json.loads(json.dumps(received.state_dict()))
    assert (told["epoch"], told["received"]) == (1, 13)
    assert sorted(given + list(resumed(told))) == sorted(second)


def test_one_worker_alone_knows_nothing_of_the_end():
    """A worker with nothing left stays in the epoch while another has something, and where it knows only itself."""
    runs = [made().elastic_run(WorkerContext(0, 1, worker, 2)) for worker in range(2)]
    list(runs[0])
    next(runs[1])
    own, whole = runs[0].state_dict(), wds.merge_states(run.state_dict() for run in runs)
    for state in (own, whole):
        assert list(made().elastic_run(WorkerContext(0, 1, 0, 2), state, continue_epochs=True)) == []


def test_set_epoch_of_the_saved_epoch_goes_on():
    """Its rest comes, though nothing be left of it; and then the next epoch."""
    first, second = epochs(2)
    for count in (7, 41, None):
        dataset = resumed(behind(count))
        dataset.set_epoch(0)
        assert [list(dataset), list(dataset)] == [first[count:] if count is not None else [], second]


def test_set_epoch_of_another_begins_there_and_says_so():
    """Once, with both epochs; the state does not come back."""
    first, second, third = epochs(3)
    dataset = resumed(behind(7))
    with pytest.warns(UserWarning, match=r"set_epoch\(2\) begins epoch 2.* after 7 items of epoch 0") as told:
        dataset.set_epoch(2)
    assert [warning.filename for warning in told] == [__file__]
    assert list(dataset) == third
    dataset.set_epoch(0)
    assert list(dataset) == first
    for count, bound in ((None, None), (20, 20)):  # the epoch of the state is over, and this is the next one
        dataset = resumed(behind(count, bound=bound), bound=bound)
        dataset.set_epoch(1)
        assert list(dataset) == (second if bound is None else epochs(2, bound=bound)[1])


def test_a_loop_over_epochs_is_not_warned():
    """Behind the state's own epoch, later ones are nothing that leaves it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = resumed(behind(7))
        for epoch, expected in enumerate(epochs(3)):
            dataset.set_epoch(epoch)
            assert list(dataset) == expected[7 if epoch == 0 else 0 :]


def test_the_state_behind_a_chosen_epoch_is_its_beginning():
    """Between two epochs, set_epoch decides what a state goes on with."""
    *_, sixth = epochs(6)
    dataset = made()
    list(dataset)
    dataset.set_epoch(5)
    assert list(resumed(dataset.state_dict())) == sixth


def test_an_unseeded_state_before_the_first_item():
    """What is begun behind it has the seed that it tells."""
    for make in (lambda: made(seed=None), lambda: wds.Loader(made(seed=None))):
        here = make()
        state = json.loads(json.dumps(here.state_dict()))
        again = make()
        again.load_state_dict(state)
        assert list(here) == list(again)


def test_a_loader_with_stages_is_merged_before_it_begins_only():
    """What its stages hold is of one rank; a changed state is refused."""
    pytest.importorskip("torch")
    loader = wds.WebLoader(made(), batch_size=None).shuffle(5)
    state = loader.state_dict()
    assert wds.merge_states([state])["epoch"] == 0
    with pytest.raises(StateMismatch, match="was changed or damaged"):
        wds.merge_states([{**state, "items": 3}])
    next(iter(loader))
    with pytest.raises(StateMismatch, match="stages after it"):
        wds.merge_states([loader.state_dict()])


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "mode": "processes", "start_method": "fork"}])
def test_a_state_of_the_dataset_is_used_once_by_a_loader(options):
    """Behind the rest comes the next epoch, in processes too, which use the state up in copies of the dataset."""
    first, second, third = epochs(3)
    for count in (7, 41, None):
        dataset = resumed(behind(count))
        with wds.Loader(dataset, **options) as loader:
            found = [list(loader), list(loader)]
        assert found == ([first[7:], second] if count == 7 else [second, third])
