"""The state of WebLoader: what its consumer received, with workers that ran ahead, and stages behind the loader."""

import gc
import itertools
import json
import multiprocessing
import weakref

import pytest

import webdataset as wds
from webdataset.core.errors import StateMismatch, UsageError

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*os.fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Five shards of unequal size: 85 samples."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(5):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(9 + 4 * number):
                sink.write({"__key__": f"{number}-{index:03d}", "txt": "x"})
    return str(folder / "s-{0..4}.tar")


def dataset(urls, *, batch=None, epoch=None, seed=2):
    """Return an elastic dataset of one-tuples with a key."""
    key = lambda sample: (sample["__key__"],)  # travels by value: a worker that is spawned cannot import this file
    made = wds.WebDataset(urls, shardshuffle=10, seed=seed).shuffle(24).map(key)
    made = made if batch is None else made.batched(batch)
    return (made if epoch is None else made.with_epoch(epoch)).elastic(12)


def plain(urls, workers):
    """The loader alone."""
    return wds.WebLoader(dataset(urls), batch_size=None, num_workers=workers)


def persistent(urls, workers):
    """Epochs of a fixed length, workers that live on."""
    return wds.WebLoader(dataset(urls, epoch=40), batch_size=None, num_workers=workers, persistent_workers=workers > 0)


def collated(urls, workers):
    """Batches that torch makes, by a collate function of the user's."""
    return wds.WebLoader(dataset(urls), batch_size=4, num_workers=workers, collate_fn=list)


def rebatched(urls, workers):
    """Batches taken apart, shuffled over workers, and batched anew."""
    loader = wds.WebLoader(dataset(urls, batch=4), batch_size=None, num_workers=workers)
    return loader.unbatched().shuffle(20).batched(5)


def endless(urls, workers):
    """The same, in epochs that are longer than a pass."""
    return rebatched(urls, workers).with_epoch(24)


def bounded(urls, workers):
    """The loader alone, in epochs that are longer than a pass."""
    return plain(urls, workers).with_epoch(130)


def stopped(loader, step):
    """Take some steps, and return what was received and the state, as text."""
    received = list(itertools.islice(batches := iter(loader), step))
    state = json.dumps(loader.state_dict())
    del batches
    return received, json.loads(state)


@pytest.mark.parametrize(
    ("make", "workers", "steps"),
    [
        (plain, 0, range(0, 86, 5)),
        (plain, 1, [7]),
        (plain, 2, [0, 43, 84, 85]),
        (plain, 4, [31]),
        (persistent, 2, [3, 40]),
        (collated, 0, [1, 10]),
        (collated, 2, [10]),
        (rebatched, 0, range(0, 17, 3)),
        (rebatched, 2, [4, 15]),
        (rebatched, 4, [9]),
        (endless, 0, [3, 17, 20, 24]),
        (endless, 2, [18, 24]),
        (bounded, 0, [90, 130]),
        (bounded, 2, [90]),
    ],
)
def test_continues_as_if_never_stopped(urls, make, steps, workers):
    """The rest of the epoch, and the next one, are those of a loader that was not stopped."""
    uninterrupted = make(urls, workers)
    first, second = list(uninterrupted), list(uninterrupted)
    assert first != second
    for step in steps:
        received, state = stopped(make(urls, workers), step)
        again = make(urls, workers)
        again.load_state_dict(state)
        assert again.state_dict() == state
        if len(received) < len(first):
            assert received + list(again) == first, step
        assert list(again) == second, step


@pytest.mark.parametrize(("before", "after"), [(2, 3), (0, 2), (3, 0)])
def test_another_number_of_workers(urls, before, after):
    """Every sample of the epoch comes once, whatever the numbers; with stages behind the loader too."""
    everything = sorted(key for (key,) in dataset(urls))
    received, state = stopped(plain(urls, before), 31)
    again = plain(urls, after)
    again.load_state_dict(state)
    assert sorted(key for (key,) in received + list(again)) == everything
    received, state = stopped(rebatched(urls, before), 2)
    again = rebatched(urls, after)
    again.load_state_dict(state)
    batches = received + list(again)
    assert sorted(key for (keys,) in batches for key in keys) == everything


def test_behind_the_end_stands_the_next_epoch(urls):
    """A state taken when the loader has ended goes on with the next epoch; it is of the epoch that it is behind."""
    loader = plain(urls, 2)
    first, state = stopped(loader, 1000)
    again = plain(urls, 2)
    again.load_state_dict(state)
    second = list(again)
    assert state["epoch"] == 0
    assert len(second) == len(first)
    assert second == list(loader)


def test_set_epoch_reaches_living_workers(urls):
    """An epoch that was set, or a state, starts persistent workers anew; else they live on."""
    loader = persistent(urls, 2)
    epochs = [list(loader) for _ in range(3)]
    alive = loader.pipeline[0]._iterator
    list(loader)
    assert loader.pipeline[0]._iterator is alive
    loader.pipeline[0].dataset.set_epoch(1)
    assert list(loader) == epochs[1]
    assert list(loader) == epochs[2]
    received, state = stopped(persistent(urls, 2), 7)
    loader.load_state_dict(state)
    assert received + list(loader) == epochs[0]
    assert list(loader) == epochs[1]


def test_unseeded(urls):
    """Without a seed, runs differ, epochs differ, and a state still continues exactly."""
    make = lambda workers: wds.WebLoader(
        dataset(urls, seed=None), batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )
    for workers in (0, 2):
        loader = make(workers)
        received, state = stopped(loader, 30)
        first, second = make(workers), make(workers)
        first.load_state_dict(state)
        second.load_state_dict(state)
        rest = list(first)
        assert rest == list(second)
        assert sorted(map(tuple, received + rest)) == sorted(dataset(urls))
        assert list(first) == list(second)
        assert list(make(workers)) != list(make(workers))


@pytest.mark.slow
def test_spawned_workers(urls):
    """Progress travels from workers that are spawned, and a state to them."""
    make = lambda: wds.WebLoader(dataset(urls), batch_size=None, num_workers=2, multiprocessing_context="spawn")
    whole = list(plain(urls, 2))
    received, state = stopped(make(), 33)
    again = make()
    again.load_state_dict(state)
    assert received + list(again) == whole


def test_the_same_as_torch(urls):
    """Batches and their order are those of torch's own loader over the dataset; nothing shows that more is sent."""
    for options in ({"batch_size": None}, {"batch_size": 4}):
        theirs = torch.utils.data.DataLoader(dataset(urls), num_workers=2, **options)
        ours = wds.WebLoader(dataset(urls), num_workers=2, **options)
        assert list(ours) == list(theirs)
    loader = wds.WebLoader(dataset(urls), num_workers=2, batch_size=None).pipeline[0]
    assert isinstance(loader, torch.utils.data.DataLoader)
    again = type(loader)(dataset(urls), num_workers=2, batch_size=None, collate_fn=loader.collate_fn)
    assert list(again) == list(loader), "made again from its attributes, as trainers do"


def test_random_numbers_of_the_training_stay(urls):
    """Going on in the middle of an epoch draws nothing from torch's generator, as the uninterrupted epoch would not."""
    _, state = stopped(plain(urls, 2), 30)
    loader = plain(urls, 2)
    loader.load_state_dict(state)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    next(iter(loader))
    assert torch.equal(torch.get_rng_state(), before)


def test_states_of_ranks_are_merged(urls, monkeypatch):
    """Two ranks with two workers each are stopped; three ranks go on: each sample of the epoch once."""
    states, received = [], []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        head, state = stopped(plain(urls, 2), 17)
        states.append(state)
        received += head
    merged = json.loads(json.dumps(wds.merge_states(states)))
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        loader = plain(urls, 2)
        loader.load_state_dict(merged)
        received += list(loader)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert sorted(map(tuple, received)) == sorted(dataset(urls))


def test_what_does_not_fit_is_refused(urls, monkeypatch):
    """States of other datasets, stages or ranks, and loaders without a state, say what is wrong."""
    _, state = stopped(plain(urls, 0), 5)
    with pytest.raises(StateMismatch, match="seed 2 .here 3"):
        wds.WebLoader(dataset(urls, seed=3), batch_size=None).load_state_dict(state)
    with pytest.raises(StateMismatch, match="stages after it, which would begin empty"):
        rebatched(urls, 0).load_state_dict(state)
    _, behind = stopped(rebatched(urls, 0), 2)
    with pytest.raises(StateMismatch, match="stages after the loader"):
        plain(urls, 0).load_state_dict(behind)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(StateMismatch, match=r"ranks \[0, 1\] .here \[1, 2\]"):
        rebatched(urls, 0).load_state_dict(behind)
    loader = wds.WebLoader(wds.WebDataset(urls, shardshuffle=False), batch_size=None)
    with pytest.raises(AttributeError, match=r"make it elastic"):
        loader.state_dict()
    loader = wds.WebLoader(dataset(urls, batch=4), batch_size=2, collate_fn=list).unbatched()
    next(batches := iter(loader))
    with pytest.raises(UsageError, match="batch_size=None"):
        loader.state_dict()
    del batches


def test_states_are_small(urls):
    """Of a loader, and with a shuffle behind it."""
    for make in (plain, rebatched):
        _, state = stopped(make(urls, 2), 4)
        assert len(json.dumps(state)) < 8192


@pytest.mark.timeout(60)
@pytest.mark.parametrize("taken", [None, 3])
@pytest.mark.parametrize("options", [{"persistent_workers": True}, {}], ids=["persistent", "not"])
@pytest.mark.parametrize("kind", ["torch", "ours"])
def test_workers_of_a_forgotten_loader_are_told_to_end(urls, kind, options, taken, monkeypatch):
    """The garbage collection may take the loader, used up or not: torch waits for no worker that has heard nothing."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 10_000)
    before = {*multiprocessing.active_children()}
    loader = wds.WebLoader(dataset(urls, epoch=40), batch_size=None, num_workers=2, **options)
    loader = loader if kind == "ours" else loader.pipeline[0]
    items = iter(loader)
    received = list(itertools.islice(items, taken))
    workers = {*multiprocessing.active_children()} - before
    assert len(received) == (taken or 40)
    assert len(workers) == (2 if options or taken else 0)
    gone = weakref.ref(loader)
    del loader, items
    gc.collect()
    assert gone() is None
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
