"""Epochs under torch's DataLoader: every epoch has an order of its own, and the seed decides all of them."""

import json

import pytest

import webdataset as wds
from webdataset.core.errors import FlowError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Four shards of ten samples."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(4):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(10):
                sink.write({"__key__": f"{number}{index}", "cls": index})
    return str(folder / "s-{0..3}.tar")


def dataset(urls, **kw):
    """Return a seeded dataset of keys."""
    return wds.WebDataset(urls, shardshuffle=10, **kw).shuffle(20).map(lambda sample: sample["__key__"])


def orders(loader, epochs=3):
    """Return the orders of some epochs."""
    return [tuple(loader) for _ in range(epochs)]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("persistent", [False, True])
def test_seeded_epochs_under_a_plain_loader(urls, method, persistent):
    """Workers that live for one epoch know which one it is, like those that live on."""
    make = lambda: torch.utils.data.DataLoader(
        dataset(urls, seed=3),
        batch_size=None,
        num_workers=1 if method == "spawn" else 2,  # one that is spawned imports torch
        multiprocessing_context=method,
        persistent_workers=persistent,
    )
    first = orders(make())
    assert len(set(first)) == 3
    assert all(len(set(order)) == 40 for order in first)
    assert orders(make(), epochs=1) == first[:1]


def test_all_ways_agree(urls):
    """Plain loader, WebLoader, persistent workers and told epochs give the same orders."""
    options = {"batch_size": None, "num_workers": 2}
    plain = orders(torch.utils.data.DataLoader(dataset(urls, seed=3), **options))
    assert orders(wds.WebLoader(dataset(urls, seed=3), **options)) == plain
    assert orders(wds.WebLoader(dataset(urls, seed=3), persistent_workers=True, **options)) == plain
    told = dataset(urls, seed=3)
    loader = torch.utils.data.DataLoader(told, **options)
    told.set_epoch(2)
    assert tuple(loader) == plain[2]


def test_seeded_draws_differ_by_epoch(urls):
    """Resampled shards with a seed do not draw the same samples in every epoch."""
    drawn = wds.WebDataset(urls, resampled=True, seed=5).shuffle(5).map(lambda s: s["__key__"]).with_epoch(15)
    assert len(set(orders(torch.utils.data.DataLoader(drawn, batch_size=None, num_workers=2)))) == 3


def test_unseeded_epochs_differ(urls):
    """Without a seed, epochs and runs differ."""
    found = [order for _ in range(2) for order in orders(wds.WebLoader(dataset(urls), batch_size=None, num_workers=2))]
    assert len(set(found)) == 6


@pytest.mark.parametrize("seed", [4, None])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_restored_loader_goes_on_exactly(urls, seed, workers):
    """A run over a loader is replayed in the same epoch with the same seed, whether the dataset has one or not."""
    make = lambda: wds.WebLoader(dataset(urls, seed=seed), batch_size=None, num_workers=workers).shuffle(10).repeat(2)
    run = make().start()
    seen = [next(run) for _ in range(55)]
    state = json.dumps(run.snapshot())
    rest = list(run)
    assert len(seen + rest) == 80
    assert list(make().start(state=json.loads(state))) == rest


def test_persistent_workers_are_not_replayed(urls):
    """They would not hear of the epoch, so a tracked run refuses them."""
    loader = wds.WebLoader(dataset(urls, seed=1), batch_size=None, num_workers=2, persistent_workers=True)
    with pytest.raises(FlowError, match="persistent_workers"):
        next(loader.start())
