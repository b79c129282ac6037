"""Whoever asks a loader for states often pays for saying them, and for nothing twice."""

import threading

import pytest

import webdataset as wds
from webdataset.loading import loader as module


class Counting:
    """A function that counts its calls, in any thread."""

    def __init__(self):
        self.calls = 0
        self.lock = threading.Lock()

    def __call__(self, sample):
        with self.lock:
            self.calls += 1
        return int(sample["__key__"])


@pytest.fixture
def urls(tmp_path):
    """Four shards of 40 samples."""
    found = []
    for number in range(4):
        found.append(str(tmp_path / f"{number}.tar"))
        with wds.TarWriter(found[-1]) as sink:
            for index in range(40):
                sink.write({"__key__": str(number * 40 + index), "txt": "x"})
    return found


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_states_from_the_first_batch_on_make_no_sample_twice(urls, workers):
    """Behind every batch of two epochs: each sample is made once, and each state is where its batch ends."""
    counting = Counting()
    dataset = wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(20).map(counting).elastic(4)
    with wds.Loader(dataset, 8, workers=workers) as loader:
        for _ in range(2):
            counting.calls = received = 0
            for batch in loader:
                received += len(batch)
                assert loader.state_dict()["received"] == received
            assert received == counting.calls == 160


@pytest.mark.parametrize("asked", [False, True])
def test_who_never_asks_is_told_less(urls, monkeypatch, asked):
    """After some batches without a state, workers need not say theirs with every part; with states they go on."""
    monkeypatch.setattr(module, "_OFTEN", 5)
    dataset = wds.WebDataset(urls, shardshuffle=10, seed=1).elastic(4)
    with wds.Loader(dataset, 8, workers=1) as loader:
        eager = []
        for number, _ in enumerate(loader):
            if asked and number % 3 == 0:
                loader.state_dict()
            eager.append(loader._windows.eager)
    assert eager[:4] == [True] * 4
    assert eager[-10:] == [asked] * 10
