"""``wds.states``: a trace is what a real run delivers, on every topology, and an advanced state is a real one."""

import json
import threading
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import StateMismatch, UsageError

torch_data = pytest.importorskip("torch.utils.data")

TOPOLOGIES = [(1, 0), (2, 2), (3, 1)]


@pytest.fixture(scope="module", params=["read", "indexed"])
def urls(request, tmp_path_factory):
    """Seven shards of 20 to 38 samples, without and with indexes beside all but one, by which a trace then goes."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(7):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(20 + 3 * number):
                sink.write({"__key__": f"{number}-{index:03d}", "txt": "x" * (index % 11), "cls": index})
    if request.param == "indexed":
        wds.write_indexes([str(folder / f"s-{number}.tar") for number in (0, 1, 2, 4, 5, 6)], "dali")
    return str(folder / "s-{0..6}.tar")


def keep_some(sample):
    """Drop every fifth sample."""
    return None if sample["cls"] % 5 == 0 else sample


def is_short(sample):
    """Tell whether a sample has a short text."""
    return len(sample["txt"]) < 8


def double(source):
    """Give every third sample twice."""
    for number, sample in enumerate(source):
        yield sample
        if number % 3 == 0:
            yield sample


def skip_odd(key, data):
    """Fail on odd classes."""
    if key == ".cls" and int(data) % 2:
        raise ValueError(data)


def base(urls, **options):
    """Return a shuffled dataset."""
    return wds.WebDataset(
        urls, shardshuffle=100, seed=1, nodesplitter=wds.split_by_node, empty_check=False, **options
    ).shuffle(25)


DATASETS = {
    "plain": lambda urls: base(urls).decode().to_tuple("__key__", "cls"),
    "batched": lambda urls: base(urls).decode().to_tuple("__key__", "cls").batched(4),
    "partial": lambda urls: base(urls).to_tuple("__key__", "cls").batched(4, partial=False),
    "map": lambda urls: base(urls).decode().map(keep_some).to_tuple("__key__").batched(3),
    "map with rng": lambda urls: (
        base(urls).decode().map(lambda s, rng: s if rng.random() < 0.7 else None, rng=True).to_tuple("__key__")
    ),
    "select": lambda urls: base(urls).decode().select(is_short).shuffle(10).to_tuple("__key__"),
    "handler": lambda urls: base(urls).decode(skip_odd, handler=wds.ignore_and_continue).to_tuple("__key__"),
    "bytes": lambda urls: (
        wds.WebDataset(urls, shardshuffle=7, seed=3, nodesplitter=wds.split_by_node, empty_check=False)
        .shuffle(20, max_bytes=60).decode().to_tuple("__key__")
    ),
    "unbatched": lambda urls: base(urls).to_tuple("__key__", "cls").batched(4).unbatched().shuffle(9).batched(5),
    "unbatched values": lambda urls: (
        base(urls).decode().to_tuple("__key__", "cls").batched(4).map(lambda b: b).unbatched().shuffle(9).batched(5)
    ),
    "generator": lambda urls: base(urls).decode().compose(double).to_tuple("__key__").batched(4),
    "slice": lambda urls: base(urls).slice(50).rsample(0.6).to_tuple("__key__"),
    "blocks": lambda urls: base(urls, open_shards=2).block_shuffle(8).to_tuple("__key__"),
    "epoch": lambda urls: (
        wds.WebDataset(urls, resampled=True, seed=5).shuffle(20).to_tuple("__key__").with_epoch(48)
    ),
}  # fmt: skip
RESUMABLE = [name for name in DATASETS if name != "generator"]  # which gives a sample twice, so that keys are no order


def keys(item):
    """Return the keys in an item that a dataset or a loader gives."""
    column = item[0] if isinstance(item, tuple | list) else item
    return [column] if isinstance(column, str) else [key for part in column for key in keys((part,))]


def deliveries(kind, dataset, workers, batch_size=None):
    """Return a loader over a dataset."""
    if kind == "torch":
        return torch_data.DataLoader(
            dataset, batch_size=batch_size, num_workers=workers, multiprocessing_context="fork" if workers else None
        )
    return wds.Loader(dataset, batch_size, workers=workers)


@pytest.fixture
def use_rank(monkeypatch):
    """Return a function that makes this process another rank."""

    def use(rank, ranks):
        monkeypatch.setenv("WDS_RANK", str(rank))
        monkeypatch.setenv("WDS_WORLD_SIZE", str(ranks))

    return use


def traced(source, **place):
    """Return the keys of each batch that a trace tells."""
    return [batch.keys for batch in wds.states.trace(source, **place)]


@pytest.mark.parametrize("elastic", [False, True], ids=["plain", "elastic"])
@pytest.mark.parametrize("name", DATASETS)
def test_a_trace_is_what_a_dataset_gives(urls, use_rank, name, elastic):
    """Keys and batches of bare datasets, on one and on several ranks, in epochs 0 and 1."""
    for ranks, rank in ((1, 0), (2, 1), (3, 0)):
        use_rank(rank, ranks)
        dataset = DATASETS[name](urls)
        dataset = dataset.elastic(6) if elastic else dataset
        for epoch in (0, 1):
            dataset.set_epoch(epoch)
            assert traced(dataset, rank=rank, world_size=ranks, epoch=epoch) == list(map(keys, dataset))


@pytest.mark.repeats
@pytest.mark.parametrize("kind", ["loader", "torch"])
@pytest.mark.parametrize("elastic", [False, True], ids=["plain", "elastic"])
@pytest.mark.parametrize("name", ["batched", "map"])
@pytest.mark.parametrize(("ranks", "workers"), TOPOLOGIES)
def test_a_trace_is_what_a_loader_gives(urls, use_rank, kind, elastic, name, ranks, workers):  # noqa: PLR0917  a matrix
    """Keys and batches of the library's loader and of torch's, in epochs 0 and 1."""
    for rank in range(ranks):
        use_rank(rank, ranks)
        dataset = DATASETS[name](urls)
        loader = deliveries(kind, dataset.elastic(6) if elastic else dataset, workers)
        for epoch in (0, 1):
            found = traced(loader, rank=rank, world_size=ranks, epoch=epoch)
            (loader if kind == "loader" else loader.dataset).set_epoch(epoch)
            assert found == list(map(keys, loader)) != []


@pytest.mark.parametrize("kind", ["loader", "torch"])
@pytest.mark.parametrize("elastic", [False, True], ids=["plain", "elastic"])
@pytest.mark.parametrize(("ranks", "workers"), TOPOLOGIES)
def test_batches_that_a_loader_makes(urls, use_rank, kind, elastic, ranks, workers):
    """The batch size of a loader counts, across workers in one, within a worker in the other."""
    use_rank(ranks - 1, ranks)
    dataset = DATASETS["plain"](urls)
    loader = deliveries(kind, dataset.elastic(6) if elastic else dataset, workers, 8)
    assert traced(loader, rank=ranks - 1, world_size=ranks) == list(map(keys, loader))


@pytest.mark.parametrize("rules", [{"drop_last": True}, {"exact": True}], ids=str)
def test_rules_of_the_last_batch(urls, rules):
    """``drop_last`` and ``exact`` of a loader hold for its trace."""
    loader = wds.Loader(DATASETS["plain"](urls).elastic(6), 8, workers=2, **rules)
    assert traced(loader) == list(map(keys, loader))


@pytest.mark.repeats
@pytest.mark.parametrize("name", RESUMABLE)
@pytest.mark.parametrize(("ranks", "workers"), TOPOLOGIES)
def test_a_trace_from_a_state(urls, use_rank, name, ranks, workers):
    """The rest of an epoch after a state that another topology saved; epoch 1."""
    saved = []
    for rank in range(2):
        use_rank(rank, 2)
        dataset = DATASETS[name](urls).elastic(6)
        dataset.set_epoch(1)
        run = iter(dataset)
        for _ in range(7):
            next(run)
        saved.append(run.state_dict())
    state = json.loads(json.dumps(wds.merge_states(saved)))
    for rank in range(ranks):
        use_rank(rank, ranks)
        loader = wds.Loader(DATASETS[name](urls).elastic(6), None, workers=workers)
        found = traced(loader, state=state, rank=rank, world_size=ranks)
        loader.load_state_dict(state)
        assert found == list(map(keys, loader))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trace_from_the_state_of_a_torch_loader(urls, workers):
    """The worker whose turn it is goes on first."""
    make = DATASETS["batched"]
    loader = wds.WebLoader(make(urls).elastic(6), batch_size=None, num_workers=workers)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    again = wds.WebLoader(make(urls).elastic(6), batch_size=None, num_workers=workers)
    found = list(wds.states.trace(again, state))
    assert [batch.keys for batch in found] == list(map(keys, batches))
    assert [batch.worker for batch in found[:4]] == ([1, 0, 1, 0] if workers else [None] * 4)


def test_the_end_of_an_epoch(urls):
    """After the last item of an epoch, the next one follows, as in a run."""
    dataset = DATASETS["batched"](urls).elastic(6)
    run = iter(dataset)
    items = [next(run) for _ in range(len(list(DATASETS["batched"](urls).elastic(6))))]
    state = run.state_dict()
    following = list(map(keys, dataset))
    assert items
    found = list(wds.states.trace(dataset, state))
    assert [batch.keys for batch in found] == following
    assert {batch.epoch for batch in found} == {1}


def test_mixes(urls):
    """A mix is followed into its sources."""

    def make():
        parts = [base(urls).decode().map(keep_some), base(urls).decode()]
        return wds.RandomMix(parts, probs=[0.7, 0.3], longest=True)

    for dataset in (wds.DataPipeline(make(), wds.shuffle(9), wds.to_tuple("__key__")), None):
        mix = dataset or wds.DataPipeline(make(), wds.shuffle(9), wds.to_tuple("__key__")).elastic(5)
        mix.seed = 4
        mix.set_epoch(1)
        assert traced(mix, epoch=1) == list(map(keys, mix))


def test_equal_epochs(urls):
    """Equal shares of a pass."""
    for elastic in (False, True):
        dataset = wds.WebDataset(urls, shardshuffle=100, seed=1).to_tuple("__key__").equal_epochs(counts=True)
        dataset = dataset.elastic(6) if elastic else dataset
        assert traced(dataset) == list(map(keys, dataset))


@pytest.mark.parametrize("name", RESUMABLE)
def test_an_advanced_state_is_that_of_a_run(urls, name):
    """Equal to what a run has after as many items, from its start and from a state."""
    make = DATASETS[name]
    run = iter(make(urls).elastic(6))
    for _ in range(5):
        next(run)
    first = wds.states.advance(make(urls).elastic(6), batches=5)
    assert first == run.state_dict()
    again = make(urls).elastic(6).elastic_run(state=first)
    for _ in range(4):
        next(again)
    assert wds.states.advance(make(urls).elastic(6), first, batches=4) == again.state_dict()
    assert first["received"] == 5


@pytest.mark.parametrize("workers", [0, 2])
def test_an_advanced_state_of_exact_batches(urls, workers):
    """Where windows have holes, a state stands after the last item of its batch, and a trace goes on from there."""

    def make():
        return wds.Loader(DATASETS["plain"](urls).elastic(6), 8, workers=workers, exact=True)

    for count in (5, 25, 29):
        batches = iter(make())
        for _ in range(count):
            next(batches)
        state, rest = wds.states.advance(make(), batches=count), list(map(keys, batches))
        loader = make()
        loader.load_state_dict(state)
        assert traced(make(), state=state) == list(map(keys, loader)) == rest


def test_the_next_epoch_of_a_source(urls):
    """Without a number, the epoch is the one that the dataset or loader would begin with."""
    dataset = DATASETS["batched"](urls).elastic(6)
    dataset.set_epoch(2)
    assert {batch.epoch for batch in wds.states.trace(dataset)} == {2}
    assert traced(dataset) == list(map(keys, dataset))
    loader = wds.Loader(DATASETS["batched"](urls), None)
    list(loader)
    assert traced(loader) == list(map(keys, loader))


@pytest.mark.parametrize("kind", ["loader", "torch"])
@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_advanced_state_of_loaders(urls, kind, batch_size, workers):
    """A loader goes on after it as after its own state."""

    def make():
        dataset = DATASETS["plain"](urls).elastic(6)
        if kind == "torch":
            return wds.WebLoader(dataset, batch_size=batch_size, num_workers=workers)
        return wds.Loader(dataset, batch_size, workers=workers)

    state = wds.states.advance(make(), batches=11)
    batches = iter(make())
    for _ in range(11):
        next(batches)
    loader = make()
    loader.load_state_dict(state)
    assert list(map(keys, loader)) == list(map(keys, batches))


def test_advance_all_ranks(urls, use_rank):
    """Without a rank, the states of all ranks are merged, to be loaded under any topology."""
    dataset = DATASETS["batched"](urls).elastic(6)
    merged = wds.states.advance(dataset, batches=3, world_size=3)
    saved = []
    for rank in range(3):
        use_rank(rank, 3)
        run = iter(DATASETS["batched"](urls).elastic(6))
        for _ in range(3):
            next(run)
        saved.append(run.state_dict())
    assert merged == wds.merge_states(saved)
    assert wds.states.advance(dataset, batches=3, world_size=3, rank=1) == saved[1]


def test_advance_by_samples(urls):
    """Samples are counted through batches; one that ends within a batch is refused with what fits."""
    dataset = DATASETS["batched"](urls).elastic(6)
    assert wds.states.advance(dataset, samples=12) == wds.states.advance(dataset, batches=3)
    with pytest.raises(UsageError, match="take 12 or 16"):
        wds.states.advance(dataset, samples=14)
    with pytest.raises(UsageError, match="only .* batches left in epoch 0"):
        wds.states.advance(dataset, batches=10_000)


def test_a_part_of_a_trace(urls):
    """``start``, ``stop`` and ``worker`` choose; numbers are those of the whole."""
    loader = torch_data.DataLoader(DATASETS["batched"](urls).elastic(6), batch_size=None, num_workers=2)
    whole = list(wds.states.trace(loader))
    assert list(wds.states.trace(loader, start=4, stop=9)) == whole[4:9]
    assert list(wds.states.trace(loader, worker=1, stop=9)) == [batch for batch in whole[:9] if batch.worker == 1]


def test_nothing_is_decoded_where_no_stage_looks_at_values(urls):
    """Functions of users that make one item of each are not called; those that may drop samples are, and are named."""

    def refuse(*_):
        raise AssertionError("called")

    dataset = base(urls).decode(refuse).map_dict(cls=refuse).to_tuple("__key__", "cls").map_tuple(refuse)
    dataset = dataset.batched(4, collation_fn=refuse)
    assert wds.states.plan_delivery(dataset).deciding_stages() == []
    assert sum(len(batch.keys) for batch in wds.states.trace(dataset)) == sum(20 + 3 * n for n in range(7))
    deciding = wds.states.plan_delivery(DATASETS["select"](urls)).deciding_stages()
    assert len(deciding) == 1
    assert "select" in deciding[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 3, "world_size": 3}, "no rank 3"),
        ({"worker": 2, "workers": 2}, "no worker 2"),
        ({"worker": 0, "workers": 2, "batch_size": 4}, "several workers"),
        ({"order": "any"}, "'loader' or 'torch'"),
        ({"workers": -1}, "0 or more workers"),
    ],
)
def test_what_cannot_be_is_refused(urls, options, message):
    """Topologies and options that no run has."""
    with pytest.raises(UsageError, match=message):
        list(wds.states.trace(DATASETS["plain"](urls), **options))


def test_a_seed_is_needed(urls):
    """Without one the order is not known; any other than the run's gives another order."""
    dataset = wds.WebDataset(urls, shardshuffle=100).shuffle(9)
    with pytest.raises(UsageError, match="no seed"):
        list(wds.states.trace(dataset))
    seeded = wds.WebDataset(urls, shardshuffle=100, seed=7).shuffle(9).to_tuple("__key__")
    assert traced(dataset, seed=7) == list(map(keys, seeded)) != traced(dataset, seed=8)


def test_stages_that_cannot_be_followed(urls):
    """A generator whose items have no key is named; so is a cache, and a loader with stages behind it."""
    with pytest.raises(UsageError, match="cannot be followed through"):
        list(wds.states.trace(base(urls).to_tuple("__key__").compose(double)))
    with pytest.raises(UsageError, match="an order of its own"):
        list(wds.states.trace(base(urls).compose(wds.Cached())))
    with pytest.raises(UsageError, match="stages after a loader"):
        list(wds.states.trace(wds.WebLoader(base(urls), batch_size=None).batched(3)))
    with pytest.raises(UsageError, match="only datasets"):
        list(wds.states.trace([1, 2]))
    with pytest.raises(UsageError, match="only an elastic dataset"):
        wds.states.advance(base(urls), batches=1)


def test_a_state_of_another_dataset_is_refused(urls):
    """As by the dataset itself."""
    state = wds.states.advance(DATASETS["plain"](urls).elastic(6), batches=1)
    with pytest.raises(StateMismatch, match="another dataset"):
        list(wds.states.trace(DATASETS["batched"](urls).elastic(6), state))
    with pytest.raises(UsageError, match="leave the epoch out"):
        list(wds.states.trace(DATASETS["plain"](urls).elastic(6), state, epoch=0))


def test_description(urls):
    """Kind, epoch, streams, and how far each is."""
    dataset = DATASETS["batched"](urls).elastic(6)
    run = dataset.elastic_run(wds.WorkerContext(1, 2, 0, 1))
    for _ in range(4):
        next(run)
    found = wds.states.describe(json.loads(json.dumps(run.state_dict())))
    assert (found.kind, found.seed, found.epoch, found.streams, found.known) == ("webdataset.elastic", 1, 0, 6, 3)
    assert (found.received, found.over, found.shards, found.ended) == (4, False, 7, 0)
    assert [(each.stream, each.items) for each in found.progress] == [(1, 2), (3, 1), (5, 1)]
    assert all(each.offset is not None for each in found.progress)
    assert found.stages[-1].startswith("Batched(batchsize=4")
    for _ in run:
        pass
    over = wds.states.describe(run.state_dict())
    assert (over.over, over.ended) == (True, 3)


def test_description_of_a_loader_with_stages(urls):
    """The state of a WebLoader with stages behind it says its rank, and what has come out."""
    loader = wds.WebLoader(DATASETS["batched"](urls).elastic(6), batch_size=None).unbatched().shuffle(5)
    begun = wds.states.describe(loader.state_dict())
    assert (begun.kind, begun.given, begun.ranks) == ("webdataset.loader", 0, [0, 1])
    items = iter(loader)
    for _ in range(5):
        next(items)
    assert wds.states.describe(loader.state_dict()).given == 5


def test_a_state_within_a_checkpoint(urls):
    """A state is found within other values; none and several are errors."""
    state = wds.states.advance(DATASETS["plain"](urls).elastic(6), batches=1)
    assert wds.states.find_state({"step": 3, "data": [{"loader": state}]}) == state
    with pytest.raises(StateMismatch, match="no state"):
        wds.states.find_state({"step": 3})
    with pytest.raises(UsageError, match="there are 2 states"):
        wds.states.find_state([state, state])
    with pytest.raises(StateMismatch, match="changed"):
        wds.states.describe({**state, "received": 5})
    wrong: Any
    for wrong in (json.dumps(state), [state]):
        with pytest.raises(StateMismatch, match="not the state of an elastic dataset"):
            wds.states.describe(wrong)
        with pytest.raises(StateMismatch, match="not the state of an elastic dataset"):
            list(wds.states.trace(DATASETS["plain"](urls).elastic(6), wrong))


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 2)])
@pytest.mark.parametrize("workers", [2, 3])
def test_what_a_worker_of_a_loader_makes(urls, rank, world, workers, monkeypatch):
    """Sample by sample: the keys that the worker itself saw, of this rank."""
    seen = {number: [] for number in range(workers)}
    lock = threading.Lock()

    def note(sample):
        with lock:
            seen[int(threading.current_thread().name.rpartition("-")[2])].append(sample["__key__"])
        return sample

    def made(*stages):
        dataset = wds.WebDataset(urls, shardshuffle=3, seed=5)
        for stage in stages:
            dataset = dataset.map(stage)
        return wds.Loader(dataset.elastic(streams=6), workers=workers, mode="threads")

    with monkeypatch.context() as patch:
        patch.setenv("RANK", str(rank))
        patch.setenv("WORLD_SIZE", str(world))
        with made(note) as loader:
            received = [sample["__key__"] for sample in loader]
    with made() as loader:
        place = {"rank": rank, "world_size": world}
        found = {
            number: [key for batch in wds.states.trace(loader, worker=number, **place) for key in batch.keys]
            for number in range(workers)
        }
    assert all(found.values())
    assert found == seen
    assert sorted(received) == sorted(key for keys in seen.values() for key in keys)
