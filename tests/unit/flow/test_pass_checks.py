"""A declared length that differs from the pass."""

import copy
import gc
import itertools
import json
import random
import warnings
from typing import Any

import pytest

import webdataset as wds

MODES: list[dict[str, Any]] = [{}, {"workers": 2}, {"workers": 2, "mode": "processes", "start_method": "fork"}]


@pytest.fixture(scope="module")
def shards(write_shards):
    """Return the urls of 4 shards of 24 samples."""
    return write_shards(4, 24)


def read(shards, **options):
    """Return a dataset of the 96 classes."""
    return wds.WebDataset(shards, shardshuffle=False, seed=1, **options).decode().to_tuple("cls")


def said(use, *args):
    """Return what is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use(*args)
        gc.collect()
    return [str(each.message) for each in caught if issubclass(each.category, UserWarning)]


def passes(made, count=2):
    """Iterate to the end, more than once."""
    for _ in range(count):
        list(made)


def trained(loader, epochs=2):
    """Go by the length, as trainers do: nothing is asked for behind it."""
    for _ in range(epochs):
        items = iter(loader)
        for _ in range(len(loader)):
            next(items)


WHOLE = {
    "plain": lambda made, n: made.with_length(n),
    "elastic": lambda made, n: made.with_length(n).elastic(5),
    "of an elastic one": lambda made, n: made.elastic(5).with_length(n),
    "loop": lambda made, n: made.repeat(1, 500).with_length(n),
    "loader": lambda made, n: wds.Loader(made.with_length(n), 8),
    "threads": lambda made, n: wds.Loader(made.with_length(n), None, workers=2),
    "processes": lambda made, n: wds.Loader(made.elastic(5).with_length(n), 8, **MODES[2]),
}


@pytest.mark.parametrize("way", WHOLE)
@pytest.mark.parametrize("declared", [90, 96, 100])
def test_one_warning_with_both_numbers(shards, way, declared):
    """Once for each pipeline, at the end of its first pass, and only where the numbers differ."""
    messages = said(passes, WHOLE[way](read(shards), declared))
    if declared == 96:
        assert not messages
        return
    (message,) = messages
    assert message.startswith(f"with_length({declared}): this pass has 96 items")
    assert ("leaves out the rest" if declared < 96 else "waits for more") in message


@pytest.mark.torch
@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 0}], ids=str)
def test_a_loader_of_torch_counts_for_its_workers(shards, options):
    """Workers see shares and say nothing; the loader sees what came of a dataset that declares its length."""
    pytest.importorskip("torch")
    for kind in (lambda made: made, lambda made: made.elastic(4)):
        for declared, count in ((90, 1), (96, 0)):
            made = kind(read(shards).with_length(declared))
            messages = said(passes, wds.WebLoader(made, batch_size=None, **options))
            assert len(messages) == count
            assert all("with_length(90): this pass has 96 items" in message for message in messages)
    loader = wds.WebLoader(kind(read(shards)), batch_size=None, num_workers=2).batched(10).with_length(9)
    (message,) = said(passes, loader)
    assert "with_length(9): this pass has 10 items" in message


@pytest.mark.torch
def test_a_trainer_that_stops_at_the_length(shards):
    """It sees no end; that there was more is told all the same, and the order is as it was."""
    torch = pytest.importorskip("torch")
    batched = read(shards).batched(9)  # two workers give 6 batches each, of which the last is smaller
    (message,) = said(trained, wds.WebLoader(batched, batch_size=None, num_workers=2).with_length(11))
    assert message.startswith("with_length(11): this pass has at least 12 items; who goes by the length leaves out")
    assert not said(trained, wds.WebLoader(batched, batch_size=None, num_workers=2).with_length(12))
    assert not said(trained, wds.WebLoader(batched, batch_size=None, num_workers=2).with_length(5, silent=True))
    whole = list(wds.WebLoader(batched, batch_size=None, num_workers=2))
    (message,) = said(passes, loader := wds.WebLoader(batched, batch_size=None, num_workers=2).with_length(5))
    assert "has 12 items" in message
    assert all(torch.equal(one[0], other[0]) for one, other in zip(loader, whole, strict=True))


def test_what_has_no_end_of_its_own(shards, monkeypatch):
    """An endless source is cut by its length rightly; a foreign one may be endless, and is not asked for more."""

    def endless():
        for number in itertools.count():
            assert number < 30, "asked for more than the length"
            yield number

    def pairs(samples):
        asked = 0
        for sample in samples:
            asked += 1
            assert asked <= 30
            yield sample

    monkeypatch.setattr(wds.DataPipeline, "__del__", lambda self: None, raising=False)
    for made in (
        read(shards, resampled=True),
        read(shards, repeat=True),
        wds.DataPipeline(endless),
        read(shards).compose(pairs),
        wds.FluidWrapper(wds.RandomMix([read(shards)])),
    ):
        assert not said(trained, made.with_length(30), 1)
    assert not said(passes, read(shards).with_epoch(30).with_length(30))
    assert not said(trained, read(shards).with_epoch(30).with_length(30))
    assert not said(passes, read(shards).with_epoch(30).elastic(4).with_length(30))
    (message,) = said(passes, read(shards).with_epoch(30).elastic(4).with_length(31))
    assert "has 30 items" in message


@pytest.mark.parametrize("place", [("WORKER", "NUM_WORKERS"), ("RANK", "WORLD_SIZE")])
def test_a_share_says_nothing(shards, monkeypatch, place):
    """A worker or rank sees a part of what the length counts."""
    monkeypatch.setenv(place[0], "0")
    monkeypatch.setenv(place[1], "2")
    for made in (read(shards, nodesplitter=wds.split_by_node), read(shards).elastic(4)):
        assert not said(passes, made.with_length(96))
        assert not said(passes, wds.Loader(made.with_length(96), 8))


def test_what_is_silent(shards):
    """``silent=True`` is kept by copies; declaring another length speaks again."""
    made = read(shards).with_length(3, silent=True)
    assert not said(passes, made)
    assert not said(passes, copy.copy(made).map(tuple))
    assert not said(passes, made.elastic(3))
    assert not said(passes, wds.Loader(made, 4))
    assert len(said(passes, made.with_length(4))) == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_resumed_pass_is_a_whole_one(shards, seed):
    """What came before the cut counts: a length that is right is right, wherever the pass was cut."""
    rng = random.Random(seed)
    for declared, count in ((96, 0), (97, 1)):
        made = read(shards).with_length(declared).elastic(rng.choice([1, 5]))
        run = iter(made)
        for _ in range(rng.randrange(1, 97)):
            next(run)
        state = json.loads(json.dumps(run.state_dict()))
        made.load_state_dict(state)
        messages = said(passes, made, 1)
        assert len(messages) == count
        assert all("with_length(97): this pass has 96 items" in message for message in messages)
        with wds.Loader(read(shards).with_length(declared).elastic(made.streams), 4, **rng.choice(MODES)) as loader:
            loader.load_state_dict(state)
            assert len(said(passes, loader, 1)) == count


@pytest.mark.torch
def test_a_resumed_loader_of_torch(shards):
    """The rest of an epoch is no epoch: a WebLoader that goes on behind a state says nothing of it."""
    pytest.importorskip("torch")

    def loader():
        return wds.WebLoader(read(shards).elastic(4), batch_size=None, num_workers=2).with_length(96)

    first = loader()
    state = [first.state_dict() for _ in itertools.islice(iter(first), 50)][-1]
    again = loader()
    again.load_state_dict(json.loads(json.dumps(state)))
    assert not said(passes, again, 2)


def test_an_error_behind_the_length_stands_where_it_stood(shards):
    """Looking for one item more takes nothing away: the last item of the length comes, then the error."""

    def breaks(row):
        if row[0] == 40:
            raise ValueError("forty")
        return row

    items = iter(read(shards).map(breaks).with_length(40))
    assert [next(items)[0] for _ in range(40)] == list(range(40))
    with pytest.raises(ValueError, match="forty"):
        next(items)
