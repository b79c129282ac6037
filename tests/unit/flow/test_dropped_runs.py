"""What is open is closed as soon as iterator and dataset are dropped, without the help of the garbage collector."""

import os

import pytest

import webdataset as wds
from support.garbage import no_collector
from webdataset.testing.archives import archive, member

SAMPLES = 60


@pytest.fixture
def urls(tmp_path):
    """Three shards, longer than what a reader takes at once."""
    names = []
    for shard in range(3):
        path = tmp_path / f"{shard}.tar"
        fields = [member(f"{shard}-{number:03}.bin".encode(), bytes(9000)) for number in range(SAMPLES)]
        path.write_bytes(archive(*fields))
        names.append(str(path))
    return names


@pytest.fixture(autouse=True)
def released_at_once():
    """The collector is off; what earlier tests left is gone."""
    with no_collector():
        yield


def opened(folder):
    """Return how many descriptors of this process are open on files of a folder."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/")
        except OSError:  # the descriptor of the listing itself
            continue
    return count


def read(urls):
    """Return a dataset of all three shards."""
    return wds.WebDataset(urls, shardshuffle=False)


def resumed(urls):
    """Return a dataset that continues after a state."""
    dataset = read(urls).elastic(8)
    items = iter(dataset)
    for _ in range(20):
        next(items)
    again = read(urls).elastic(8)
    again.load_state_dict(dataset.state_dict())
    return again


def through(samples):
    """Let samples pass: a stage of the user's own, which is replayed from time to time."""
    yield from samples


CASES = {
    "plain": read,
    "shuffled": lambda urls: read(urls).shuffle(9).batched(4),
    "one stream": lambda urls: read(urls).elastic(1),
    "shared shards": lambda urls: read(urls).elastic(24),
    "stream by stream": lambda urls: read(urls).shuffle(9).decode().elastic(3).batched(4),
    "several epochs": lambda urls: read(urls).elastic(8).repeat(3),
    "stage of its own": lambda urls: read(urls).compose(through).elastic(4),
    "two stages of its own": lambda urls: (
        read(urls).listed(3).unlisted().compose(through).shuffle(5).compose(through).elastic(3)
    ),
    "resumed": resumed,
    "mix": lambda urls: wds.RandomMix([read(urls).elastic(4), read(urls).elastic(4)], [0.5, 0.5], longest=True),
    "loader": lambda urls: wds.Loader(read(urls).elastic(8), batch_size=2),
}


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("items", [1, 11, 40])
@pytest.mark.parametrize("case", CASES)
def test_dropped_is_closed(urls, tmp_path, case, items, state):
    """Before the end of the epoch, whether or not a state was taken."""
    dataset = CASES[case](urls)
    iterator = iter(dataset)
    for _ in range(items):
        next(iterator)
    if state and hasattr(dataset, "state_dict"):
        dataset.state_dict()
    assert opened(tmp_path)
    del iterator, dataset
    assert not opened(tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_an_iterator_outlives_its_dataset(urls, tmp_path, case):
    """A dataset that nothing else holds is read to its end, and with it the epochs that follow."""
    dataset = CASES[case](urls)
    whole = sum(1 for _ in dataset)
    del dataset
    assert whole
    assert sum(1 for _ in iter(CASES[case](urls))) == whole
    assert not opened(tmp_path)


def test_states_of_an_iterator_that_outlives_its_dataset(urls):
    """Such an iterator tells its state, and takes up another one."""
    iterator = iter(read(urls).elastic(8))
    first = [next(iterator)["__key__"] for _ in range(30)]
    state = iterator.state_dict()
    rest = [sample["__key__"] for sample in iterator]
    assert sorted(first + rest) == sorted(sample["__key__"] for sample in read(urls))
    iterator.load_state_dict(state)
    assert [sample["__key__"] for sample in iterator] == rest


def test_epoch_after_a_finished_state_without_the_dataset(urls):
    """Where nothing is left of a state's epoch, the next one follows, though the dataset was dropped."""
    dataset = read(urls).elastic(8)
    items = iter(dataset)
    keys = [sample["__key__"] for sample in items]
    again = read(urls).elastic(8)
    again.load_state_dict(items.state_dict())
    iterator = iter(again)
    del again
    assert sorted(sample["__key__"] for sample in iterator) == sorted(keys)
    assert iterator.epoch == 1
