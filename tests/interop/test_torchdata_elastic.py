"""torchdata's StatefulDataLoader over elastic datasets: our iterators' own states, at every step."""

import itertools

import pytest

import webdataset as wds

stateful = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

STREAMS = 12


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Five shards of unequal size."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(5):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(9 + 4 * number):
                sink.write({"__key__": f"{number}-{index:03d}", "txt": "x"})
    return str(folder / "s-{0..4}.tar")


def dataset(urls, *, epoch=None, seed=2):
    """Return a shuffled elastic dataset of keys."""
    key = lambda sample: sample["__key__"]  # travels by value: a worker that is spawned cannot import this file
    made = wds.WebDataset(urls, shardshuffle=10, seed=seed).shuffle(24).map(key)
    return (made if epoch is None else made.with_epoch(epoch)).elastic(STREAMS)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("every", [1, 4])
def test_stateful_loader_at_every_step(urls, workers, every):
    """The loader is stopped at each step, and goes on exactly, with states from its workers."""
    options = {"batch_size": None, "num_workers": workers, "snapshot_every_n_steps": every}
    make = lambda: stateful.StatefulDataLoader(dataset(urls), **options)
    first, seen, states = make(), [], []
    for item in first:
        seen.append(item)
        states.append(first.state_dict())
    assert sorted(seen) == sorted(dataset(urls))
    for step in range(1, len(seen) + 1, 1 if workers == 0 else 13):
        again = make()
        again.load_state_dict(states[step - 1])
        assert list(again) == seen[step:], step
    second, ended = dataset(urls), make()
    second.set_epoch(1)
    ended.load_state_dict(first.state_dict())
    assert sorted(ended) == sorted(second), "behind an exhausted epoch comes the next one, whole"


def test_stateful_loader_with_persistent_workers(urls):
    """Epochs go on behind a state where workers live on."""
    make = lambda: stateful.StatefulDataLoader(
        dataset(urls, epoch=36), batch_size=None, num_workers=2, persistent_workers=True
    )
    first = make()
    head = list(itertools.islice(first, 14))
    state = first.state_dict()
    whole = list(dataset(urls, epoch=36))
    again = make()
    again.load_state_dict(state)
    assert head + list(again) == whole
    plain = dataset(urls, epoch=36)
    list(plain)
    assert list(again) == list(plain)


def test_states_of_workers_are_small(urls):
    """What a worker sends along does not hold the state twice."""
    made = stateful.StatefulDataLoader(dataset(urls), batch_size=None, num_workers=2)
    list(itertools.islice(made, 20))
    workers = made.state_dict()["_snapshot"]["_worker_snapshots"]
    assert all(not worker["dataset_state"] for worker in workers.values())
    assert all(worker["fetcher_state"]["dataset_iter_state"]["memories"] for worker in workers.values())
