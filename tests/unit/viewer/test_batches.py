"""Batches: the keys and places of a batch are those that a real loader then gives, on every topology."""

import itertools
import json
import shutil
from pathlib import Path

import pytest

import webdataset as wds
from support.view_sides import make_view
from webdataset.core.errors import FlowError, NoSuchSample, UsageError
from webdataset.viewer.batches import Batches, BatchRequest
from webdataset.viewer.search import Budget
from webdataset.viewer.session import DatasetArguments, SavedState, Session

torch_data = pytest.importorskip("torch.utils.data")

LONG = Budget(seconds=1000)


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Five shards of 20 to 32 samples, with indexes; two of them hold a key twice, in other shards."""
    folder = tmp_path_factory.mktemp("shards")
    found = []
    for number in range(5):
        path = str(folder / f"s-{number}.tar")
        with wds.TarWriter(path) as sink:
            for index in range(20 + 3 * number):
                key = "twice" if number in (1, 3) and index == 7 else f"{number}-{index:03d}"
                sink.write({"__key__": key, "txt": "x" * (index % 11), "cls": index})
        found.append(path)
    wds.write_indexes(found, "dali")
    return found


@pytest.fixture
def use_rank(monkeypatch):
    """Return a function that makes this process another rank."""

    def use(rank, ranks):
        monkeypatch.setenv("WDS_RANK", str(rank))
        monkeypatch.setenv("WDS_WORLD_SIZE", str(ranks))

    return use


def base(urls, *, batched=None, elastic=False):
    """Return a shuffled dataset."""
    dataset = wds.WebDataset(urls, shardshuffle=100, seed=1, nodesplitter=wds.split_by_node, empty_check=False)
    dataset = dataset.shuffle(25).to_tuple("__key__", "__url__")
    dataset = dataset if batched is None else dataset.batched(batched, collation_fn=None)
    return dataset.elastic(6) if elastic else dataset


def make_loader(kind, urls, workers, *, elastic):
    """Return a dataset or loader of each kind."""
    if kind == "loader":
        return wds.Loader(base(urls, elastic=elastic), 4, workers=workers)
    dataset = base(urls, batched=4, elastic=elastic)
    if kind == "dataset":
        return dataset
    kinds = {"webloader": wds.WebLoader, "torch": torch_data.DataLoader}
    return kinds[kind](
        dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None
    )


def pairs(item):
    """Return key and url of each sample of a batch that a loader gave."""
    if item and isinstance(item[0], str):
        return [tuple(item)]
    if len(item) == 2 and len(item[0]) and isinstance(item[0][0], str) and item[1] and "s-" in str(item[1][0]):
        return list(zip(*item, strict=True))
    return [tuple(each) for each in item]


def make_batches(urls, load, states=()):
    """Return the batches of a session, and the session."""
    saved = tuple(SavedState(f"state-{number}", state) for number, state in enumerate(states))
    session = Session({"a": make_view("a", urls)}, dataset_arguments=DatasetArguments(load, states=saved))
    return Batches(session), session


def check_batch(batches, session, request, item):
    """The batch has the keys of an item, and its places hold samples of these keys, in these shards."""
    batch = batches.find_batch(request, LONG)
    assert list(zip(batch.keys, batch.shards, strict=True)) == pairs(item)
    view = session.side("a")
    for place, (key, url) in zip(batches.locate("a", batch), pairs(item), strict=True):
        assert place.key == key
        assert view.urls[place.shard] == url
        assert view.shard(place.shard).entry(place.ordinal).key == key
        assert not place.repeated


@pytest.mark.parametrize("elastic", [False, True], ids=["plain", "elastic"])
@pytest.mark.parametrize("kind", ["dataset", "loader", "webloader", "torch"])
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 2), (3, 1)])
def test_batches_are_those_of_a_loader(urls, use_rank, kind, elastic, ranks, workers):  # noqa: PLR0917  a matrix
    """Each batch of epochs 0 and 1, and none after the last."""
    for rank in range(ranks):
        use_rank(rank, ranks)
        loader = make_loader(kind, urls, workers, elastic=elastic)
        batches, session = make_batches(urls, lambda: make_loader(kind, urls, workers, elastic=elastic))
        for epoch in (0, 1):
            given = list(loader)
            place = {"rank": rank, "world_size": ranks, "epoch": epoch}
            for step in (0, len(given) - 1, len(given) // 2):
                check_batch(batches, session, BatchRequest(step, **place), given[step])
            with pytest.raises(NoSuchSample, match=f"has {len(given)} batches"):
                batches.find_batch(BatchRequest(len(given), **place), LONG)


@pytest.mark.parametrize("kind", ["loader", "webloader"])
@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 1)])
def test_batches_from_a_state(urls, use_rank, kind, ranks, workers):
    """From a state in the middle of epoch 0 or 1, and one at the end of an epoch, the batches that then come."""
    use_rank(0, ranks)
    for epoch, taken in ((0, 3), (0, None), (1, 3)):
        loader = make_loader(kind, urls, workers, elastic=True)
        if epoch:
            list(loader)
        items = iter(loader)
        list(itertools.islice(items, taken))
        state = json.loads(json.dumps(loader.state_dict()))
        del items
        again = make_loader(kind, urls, workers, elastic=True)
        again.load_state_dict(state)
        given = list(itertools.islice(again, 5))
        batches, session = make_batches(urls, lambda: make_loader(kind, urls, workers, elastic=True), [state])
        for step in range(len(given)):
            request = BatchRequest(step, rank=0, world_size=ranks, state=0)
            check_batch(batches, session, request, given[step])
        options = batches.describe_options()
        assert options["states"][0]["state"] == "0"
        assert f"epoch {state.get('epoch', 0)}" in options["states"][0]["description"] or kind == "loader"


def test_worker(urls, use_rank):
    """The steps of one worker are the batches of the rank that this worker made."""
    use_rank(1, 2)
    loader = make_loader("torch", urls, 2, elastic=False)
    given = list(loader)
    batches, _ = make_batches(urls, lambda: make_loader("torch", urls, 2, elastic=False))
    found = [
        [batches.find_batch(BatchRequest(step, rank=1, world_size=2, worker=worker), LONG).batch for step in range(3)]
        for worker in range(2)
    ]
    assert sorted(found[0] + found[1]) == list(range(6))
    for worker in range(2):
        for step, number in enumerate(found[worker]):
            batch = batches.find_batch(BatchRequest(step, rank=1, world_size=2, worker=worker), LONG)
            assert batch.worker == worker
            assert batch.keys == [key for key, _ in pairs(given[number])]


def test_a_key_that_stands_twice(tmp_path):
    """Where a shard holds a key twice, the place is that of the first, and this is said."""
    path = str(tmp_path / "x.tar")
    with wds.TarWriter(path) as sink:
        for key in ("a", "b", "a"):
            sink.write({"__key__": key, "txt": key})
    batches, _ = make_batches([path], lambda: wds.WebDataset(path, shardshuffle=False, seed=1, split_samples="ignore"))
    found = batches.locate("a", batches.find_batch(BatchRequest(2), LONG))
    assert (found[0].ordinal, found[0].repeated) == (0, True)


def test_shards_that_are_not_shown(urls):
    """A batch of shards that the session does not show has keys and no places."""
    batches, _ = make_batches(urls[:1], lambda: base(urls[1:], batched=4))
    found = batches.locate("a", batches.find_batch(BatchRequest(0), LONG))
    assert {each.shard for each in found} == {None}


def test_needs(urls, tmp_path):
    """What is read is said first; nothing where indexes tell, unless stages look at values."""
    plain = [shutil.copy(url, tmp_path) for url in urls]
    batches, _ = make_batches(plain, lambda: base(plain, batched=4))
    needs = batches.find_needs("a", BatchRequest())
    assert needs is not None
    assert (needs.shards, needs.size_bytes) == (5, sum(Path(url).stat().st_size for url in plain))
    assert f"5 shards without an index: up to {needs.size_bytes / 1000:.3g} kB are read" in needs.message
    batches, _ = make_batches(urls, lambda: base(urls, batched=4))
    assert batches.find_needs("a", BatchRequest()) is None
    dropping = lambda: base(urls).map(lambda item: item if item[0] > "2" else None)  # noqa: E731
    batches, _ = make_batches(urls, dropping)
    needs = batches.find_needs("a", BatchRequest())
    assert needs is not None
    assert needs.shards == 5
    assert "depends on what is in them" in needs.message


def test_time(urls):
    """A trace whose time is over goes on at the next request, and an old batch can be asked for again."""
    batches, _ = make_batches(urls, lambda: base(urls, batched=1))
    with pytest.raises(FlowError, match="ask again"):
        batches.find_batch(BatchRequest(60), Budget(seconds=0))
    want = batches.find_batch(BatchRequest(60), LONG)
    assert batches.find_batch(BatchRequest(3), LONG).batch == 3
    assert batches.find_batch(BatchRequest(60), LONG) == want


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (BatchRequest(rank=2, world_size=2), UsageError),
        (BatchRequest(worker=3), UsageError),
        (BatchRequest(order="random"), UsageError),
        (BatchRequest(batch_size=0), UsageError),
        (BatchRequest(state=0), NoSuchSample),
    ],
)
def test_refusals(urls, request_, error):
    """What cannot be is refused, and the next request is answered."""
    batches, _ = make_batches(urls, lambda: base(urls, batched=4))
    for _ in range(2):
        with pytest.raises(error):
            batches.find_batch(request_, LONG)
    assert batches.find_batch(BatchRequest(0), LONG).keys


def test_a_dataset_that_cannot_be_made(urls):
    """A function of the user's that fails: the options say so."""

    def fail():
        raise UsageError("no such thing")

    batches, _ = make_batches(urls, fail)
    assert "no such thing" in batches.describe_options()["error"]
