"""Elastic datasets under torch's DataLoader."""

import itertools
import json

import pytest

import webdataset as wds
from webdataset.core.distributed import WorkerContext

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*os.fork.*:DeprecationWarning"),
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


def loader(made, workers, **options):
    """Return a loader over single items."""
    return torch.utils.data.DataLoader(made, batch_size=None, num_workers=workers, **options)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_workers_give_the_order_of_positions(urls, workers):
    """Where the workers divide the streams, a loader gives the order of one process, up to the first hole."""
    whole = list(dataset(urls, epoch=60))
    assert list(loader(dataset(urls, epoch=60), workers)) == whole
    assert sorted(loader(dataset(urls), workers)) == sorted(dataset(urls))


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_of_loaders(urls, persistent):
    """Each iteration of a loader is the next epoch, as without workers."""
    made = dataset(urls, epoch=40)
    loaded = loader(made, 2, persistent_workers=persistent)
    plain = dataset(urls, epoch=40)
    for _ in range(3):
        assert list(loaded) == list(plain)


def test_a_loaded_state_goes_to_the_workers(urls):
    """A state that the dataset was given is where its workers go on, once; then come whole epochs."""
    made = dataset(urls, epoch=60)
    made.set_epoch(3)
    run = made.elastic_run(WorkerContext(0, 1, 0, 1))
    list(itertools.islice(run, 24))
    state = json.loads(json.dumps(run.state_dict()))
    rest = list(run)
    resumed = dataset(urls, epoch=60)
    resumed.load_state_dict(state)
    loaded = loader(resumed, 2)
    assert list(loaded) == rest
    fourth = list(made.elastic_run(state={**run.header(), "epoch": 4}))
    assert list(loaded) == fourth


def test_spawned_workers(urls):
    """The order does not depend on how workers are started, and a loaded state travels."""
    run = iter(dataset(urls, epoch=48))
    list(itertools.islice(run, 24))
    made = dataset(urls, epoch=48)
    made.load_state_dict(run.state_dict())
    assert list(loader(made, 2, multiprocessing_context="spawn")) == list(run)


@pytest.mark.parametrize("workers", [0, 2])
def test_web_loader(urls, workers):
    """A WebLoader tells its dataset the epoch; the first one behind a loaded state is that of the state."""
    run = iter(dataset(urls, epoch=40))
    list(run)
    run = dataset(urls, epoch=40).elastic_run(state={**run.header(), "epoch": 2})
    list(itertools.islice(run, 14))
    made = dataset(urls, epoch=40)
    made.load_state_dict(json.loads(json.dumps(run.state_dict())))
    loaded = wds.WebLoader(made, batch_size=None, num_workers=workers)
    assert list(loaded) == list(run)
    assert list(loaded) == list(dataset(urls, epoch=40).elastic_run(state={**run.header(), "epoch": 3}))
    with pytest.raises(wds.WebDatasetError, match="make the dataset that it loads elastic"):
        list(wds.WebLoader(made, batch_size=None).elastic())


@pytest.mark.parametrize(
    ("method", "persistent", "count", "epoch"),
    [
        *[("fork", persistent, *case) for persistent in (False, True) for case in ((85, None), (None, None), (48, 48))],
        ("fork", False, 30, None),
        ("spawn", False, 85, None),
        pytest.param("spawn", True, 85, None, marks=pytest.mark.slow),
        pytest.param("spawn", False, None, None, marks=pytest.mark.slow),
        pytest.param("spawn", False, 30, None, marks=pytest.mark.slow),
        pytest.param("forkserver", False, 85, None, marks=pytest.mark.slow),
    ],
)
def test_behind_the_last_item_comes_the_next_epoch(urls, method, persistent, count, epoch):
    """In workers of every kind, told or not; each following pass is the epoch behind it."""
    whole = dataset(urls, epoch=epoch)
    epochs = [sorted(whole) for _ in range(4)]
    run = iter(dataset(urls, epoch=epoch))
    head = list(itertools.islice(run, count))
    made = dataset(urls, epoch=epoch)
    made.load_state_dict(json.loads(json.dumps(run.state_dict())))
    # one that is spawned imports torch, and shows the same
    workers = 1 if method == "spawn" else 2
    loaded = loader(made, workers, multiprocessing_context=method, persistent_workers=persistent)
    found = [sorted(loaded) for _ in range(2 if count != 30 else 3)]
    if count == 30:
        assert sorted(head + found.pop(0)) == epochs[0]
    assert found == epochs[1:3]
    order = dataset(urls, epoch=epoch)
    orders = [list(order) for _ in range(4)]
    assert list(loaded)[:24] == orders[3][:24]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_set_epoch_in_a_loop_behind_a_state(urls, method):
    """Workers use the state up in their copies: a later epoch that is set leaves nothing, and warns of nothing."""
    orders = dataset(urls, epoch=48)
    orders = [list(orders) for _ in range(3)]
    run = iter(dataset(urls, epoch=48))
    list(itertools.islice(run, 24))
    # a pass of spawned workers imports torch
    for says in (True, False) if method == "fork" else (True,):
        made = dataset(urls, epoch=48)
        made.load_state_dict(run.state_dict())
        loaded = loader(made, 1 if method == "spawn" else 2, multiprocessing_context=method)
        for number in range(3):
            if says or number:
                made.set_epoch(number)
            assert list(loaded) == orders[number][24 if number == 0 else 0 :]
