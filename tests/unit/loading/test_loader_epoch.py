"""What ``loader.epoch`` says: the number of the epoch that the next iteration gives, whatever the kind of workers."""

from typing import Any

import pytest

import webdataset as wds

MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "threads": {"workers": 2},
    "processes": {"workers": 2, "mode": "processes"},
}


@pytest.fixture
def make(tmp_path, request):
    """Make a loader of three batches of four an epoch."""
    for number in range(2):
        with wds.TarWriter(str(tmp_path / f"{number}.tar")) as sink:
            for each in range(6):
                sink.write({"__key__": f"{number}{each}", "txt": "x"})

    def make_loader(mode, *, elastic=True):
        dataset = wds.WebDataset(str(tmp_path / "{0..1}.tar"), shardshuffle=False)
        loader = wds.Loader(dataset.elastic(streams=2) if elastic else dataset, 4, **MODES[mode])
        request.addfinalizer(loader.close)
        return loader

    return make_loader


@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_it_moves_on_with_the_first_batch(mode, elastic, make):
    """It is the next one from the first batch of an epoch on, also after a break, and at the end."""
    loader = make(mode, elastic=elastic)
    assert loader.epoch == 0
    running = iter(loader)
    assert loader.epoch == 0
    for _ in range(2):
        next(running)
        assert loader.epoch == 1
    # given up: the next iteration begins the next epoch
    del running
    assert loader.epoch == 1
    for count, _ in enumerate(loader):
        assert loader.epoch == 2, count
    assert loader.epoch == 2


@pytest.mark.parametrize("mode", MODES)
def test_it_follows_states_and_what_is_chosen(mode, make):
    """A state brings its own epoch back, whose rest comes; one of a whole epoch the next one, which comes then."""
    loader = make(mode)
    for _ in loader:
        middle = loader.state_dict()
        break
    assert sum(1 for _ in loader) == 3
    end = loader.state_dict()
    assert (middle["epoch"], end["epoch"], loader.epoch) == (0, 1, 2)
    loader = make(mode)
    loader.load_state_dict(middle)
    assert loader.epoch == 0
    counts = []
    for _ in loader:
        counts.append(loader.epoch)
    assert counts == [1, 1]
    loader.load_state_dict(end)
    assert loader.epoch == 2
    counts = [(loader.epoch, loader.state_dict()["epoch"]) for _ in loader]
    assert counts == [(3, 2)] * 3
    loader.set_epoch(7)
    assert loader.epoch == 7
    assert [loader.state_dict()["epoch"] for _ in loader] == [7] * 3
    assert loader.epoch == 8
