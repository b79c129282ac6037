"""torchdata's StatefulDataLoader over our datasets: it goes on where it was, to the sample."""

import pytest

pytest.importorskip("torch")
stateful = pytest.importorskip("torchdata.stateful_dataloader")

import webdataset as wds  # noqa: E402


@pytest.fixture(scope="module")
def pattern(tmp_path_factory):
    """Four shards of 25 samples."""
    place = tmp_path_factory.mktemp("stateful")
    with wds.ShardWriter(str(place / "s-%03d.tar"), maxcount=25, verbose=0) as sink:
        for index in range(100):
            sink.write({"__key__": f"{index:03d}", "cls": index})
    return str(place / "s-{000..003}.tar")


def loader(pattern, workers, **options):
    """A loader of shuffled, decoded batches, the same each time it is made."""
    dataset = wds.WebDataset(pattern, shardshuffle=4, seed=7, nodesplitter=None)
    dataset = dataset.shuffle(20, initial=10, seed=3).decode().to_tuple("cls").batched(3)
    return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **options)


def values(batches):
    """Plain lists."""
    return [[int(value) for value in batch[0]] for batch in batches]


@pytest.mark.parametrize("taken", [0, 1, 7, 20])
@pytest.mark.parametrize("workers", [0, 2])
def test_it_resumes_exactly(pattern, workers, taken):
    """What comes after a restore is what would have come."""
    whole = values(loader(pattern, workers))
    assert sorted(sum(whole, [])) == list(range(100))
    first = loader(pattern, workers)
    running = iter(first)
    before = values(next(running) for _ in range(taken))
    state = first.state_dict()
    second = loader(pattern, workers)
    second.load_state_dict(state)
    assert before + values(second) == whole


def test_it_resumes_between_snapshots(pattern):
    """Also where the loader takes a snapshot every few steps only."""
    whole = values(loader(pattern, 2))
    first = loader(pattern, 2, snapshot_every_n_steps=4)
    running = iter(first)
    before = values(next(running) for _ in range(10))
    second = loader(pattern, 2, snapshot_every_n_steps=4)
    second.load_state_dict(first.state_dict())
    assert before + values(second) == whole
