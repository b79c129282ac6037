"""The state of a dataset that a loader reads is what was received from the loader, or an error."""

import gc
import random
from itertools import islice

import pytest

import webdataset as wds
from webdataset.core.errors import FlowError
from webdataset.loading.torch_distributed import equal_steps

SIZES = (7, 3, 12, 5)
KEYS = sorted(f"{number}-{index:02d}" for number, size in enumerate(SIZES) for index in range(size))


@pytest.fixture
def urls(tmp_path):
    """Four shards of unequal length."""
    for number, size in enumerate(SIZES):
        with wds.TarWriter(str(tmp_path / f"s-{number}.tar")) as sink:
            for index in range(size):
                sink.write({"__key__": f"{number}-{index:02d}", "cls": index})
    return f"{tmp_path}/s-{{0..3}}.tar"


def make(urls):
    """An elastic dataset."""
    return wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(5).to_tuple("__key__", "cls").elastic(6)


def make_loader(kind, dataset):
    """A loader over it."""
    if kind == "torch":
        pytest.importorskip("torch")
        return wds.WebLoader(dataset, batch_size=2, num_workers=2)
    workers, _, order = kind.partition(" ")
    mode = "processes" if workers == "processes" else "threads"
    return wds.Loader(dataset, 2, workers=0 if workers == "none" else 2, mode=mode, order=order or "exact")


def keys_of(batches):
    """The keys of batches."""
    return [key for keys, _ in batches for key in keys]


KINDS = ["none", "threads", "processes", "threads ready", "torch"]


@pytest.mark.parametrize("set_epoch", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taken", [1, 6, 14])
def test_it_is_that_of_the_loader(urls, kind, taken, set_epoch):
    """Who saves the dataset's state in the midst of an epoch of a loader, or after it, loses and repeats nothing."""
    dataset = make(urls)
    loader = make_loader(kind, dataset)
    if set_epoch:
        loader.set_epoch(3)
    batches = iter(loader)
    before = list(islice(batches, taken))
    state = dataset.state_dict()
    again = make(urls)
    again.load_state_dict(state)
    rest = [key for key, _ in again]
    whole = taken * 2 > len(KEYS)
    assert sorted(rest if whole else keys_of(before) + rest) == KEYS
    assert state["epoch"] == 3 * set_epoch


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_run_of_the_dataset_has_its_own(urls, kind):
    """A loader has no say any more once the dataset itself is iterated, told of an epoch, or the loader is gone."""
    dataset = make(urls)
    loader = make_loader(kind, dataset)
    list(loader)
    dataset.set_epoch(7)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["memories"]) == (7, {})
    run = iter(dataset)
    begun = [next(run)[0] for _ in range(9)]
    again = make(urls)
    again.load_state_dict(dataset.state_dict())
    assert sorted(begun + [key for key, _ in again]) == KEYS
    del run, again
    other = make(urls)
    loader = make_loader(kind, other)
    batches = iter(loader)
    next(batches)
    del batches, loader
    gc.collect()
    assert not any(other.state_dict()["memories"].values())


@pytest.mark.parametrize("set_epoch", [False, True])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_plain_data_loader_is_refused(urls, start_method, set_epoch):
    """What was received from torch's own loader is not known, so there is no state, until an epoch is named."""
    data = pytest.importorskip("torch.utils.data")
    dataset = make(urls)
    if set_epoch:
        dataset.set_epoch(2)
    loader = data.DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context=start_method)
    batches = iter(loader)
    next(batches)
    with pytest.raises(FlowError, match=r"wds\.WebLoader.* and save loader\.state_dict"):
        dataset.state_dict()
    list(batches)
    dataset.set_epoch(4)
    assert dataset.state_dict()["epoch"] == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["drop", "pad"])
@pytest.mark.parametrize("every", [1, 2, 3, 20])
def test_batches_that_equal_steps_holds_are_not_lost(urls, kind, how, every):
    """The state of the loader, of its dataset and of the steps is that after the batch that was passed on last."""
    pytest.importorskip("torch.distributed")
    dataset = make(urls)
    loader = make_loader(kind, dataset)
    steps = equal_steps(loader, how, every=every)
    batches = iter(steps)
    before = list(islice(batches, random.Random(f"{kind}{how}{every}").randrange(1, 12)))
    for source in (loader, dataset, steps):
        again = equal_steps(make_loader(kind, make(urls)), how, every=every)
        again.load_state_dict(source.state_dict())
        assert sorted(keys_of(before) + keys_of(again)) == KEYS
    rest = keys_of(batches)
    assert sorted(keys_of(before) + rest) == KEYS
    assert loader.state_dict()["epoch"] == steps.state_dict()["epoch"] == 0


def test_it_is_that_of_a_shared_loader(urls, tmp_path):
    """The loader behind a shared one is ahead of what the trainer has received, and is not asked."""
    dataset = make(urls)
    with wds.SharedLoader(dataset, str(tmp_path / "s.sock"), batch_size=2, workers=1) as loader:
        before = list(islice(iter(loader), 4))
        state = dataset.state_dict()
    again = make(urls)
    again.load_state_dict(state)
    assert sorted(keys_of(before) + [key for key, _ in again]) == KEYS
