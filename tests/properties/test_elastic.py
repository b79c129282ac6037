"""Elastic datasets under random shards, streams, topologies and cuts: one order, nothing lost, nothing twice."""

import functools
import io
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import UsageError

MOST = 9


@functools.cache
def shard(number, length):
    """Return the bytes of a shard of some length."""
    stream = io.BytesIO()
    with wds.TarWriter(stream) as sink:
        for index in range(length):
            sink.write({"__key__": f"{number}-{index}", "txt": "x" * (index % 5 * 300)})
    return stream.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shards of every length, each under ten names."""
    path = tmp_path_factory.mktemp("elastic")
    for number in range(10):
        for length in range(MOST + 1):
            (path / f"{number}-{length}.tar").write_bytes(shard(number, length))
    return path


@pytest.fixture(scope="module")
def equal_urls(folder):
    """Shards of different lengths, none empty."""
    return [str(folder / f"{number}-{3 + number % 5}.tar") for number in range(10)]


LENGTHS = st.lists(st.integers(0, MOST), min_size=1, max_size=10).filter(any)
TOPOLOGY = st.tuples(st.integers(1, 8), st.integers(1, 4))
STAGES = {
    "plain": lambda ds: ds,
    "shuffled": lambda ds: ds.shuffle(9, initial=4),
    "batched": lambda ds: ds.shuffle(4).batched(3, collation_fn=tuple),
    "filtered": lambda ds: ds.select(lambda key: hash_of(key) % 3).shuffle(5),
    "expanded": lambda ds: ds.shuffle(3).listed(2).unlisted().shuffle(6),
    "doubled": lambda ds: ds.compose(twice).shuffle(7),
    "epoch": lambda ds: ds.shuffle(5).repeat(2, 17),
    "repeated": lambda ds: ds.shuffle(5).repeat(2),
}
ONCE = {"plain", "shuffled", "expanded"}


def hash_of(key):
    """Return a number that a key has in every process."""
    return sum(map(ord, key))


def twice(source):
    """Give each item twice."""
    for item in source:
        yield item
        yield item


def dataset(folder, lengths, kind, streams, seed, epoch):
    """Return an elastic dataset of keys, and all the keys that its shards have."""
    urls = [str(folder / f"{number}-{length}.tar") for number, length in enumerate(lengths)]
    made = wds.WebDataset(urls, shardshuffle=20, seed=seed, empty_check=False).map(lambda sample: sample["__key__"])
    made = STAGES[kind](made).elastic(streams)
    made.set_epoch(epoch)
    return made


def runs_of(make, topology, state=None):
    """Return the runs of all workers of a job."""
    ranks, workers = topology
    return [
        make().elastic_run(WorkerContext(r, ranks, w, workers), state) for r in range(ranks) for w in range(workers)
    ]


def in_order(runs):
    """Return what the runs give, by position."""
    return sorted(pair for run in runs for pair in run.positions())


@settings(max_examples=60, deadline=None)
@given(
    lengths=LENGTHS,
    kind=st.sampled_from(sorted(STAGES)),
    streams=st.integers(1, 12),
    seed=st.integers(0, 1 << 40),
    epoch=st.integers(0, 5),
    batch=st.integers(1, 9),
    before=TOPOLOGY,
    after=TOPOLOGY,
    cut=st.integers(0, 40),
)
def test_any_topology_to_any_other(folder, lengths, kind, streams, seed, epoch, batch, before, after, cut):  # noqa: PLR0913, PLR0917  one value each
    """Stopped after any global batch, under any topology, a job goes on under any other as if nothing had happened."""
    before, after = ((min(ranks, streams), workers) for ranks, workers in (before, after))
    make = functools.partial(dataset, folder, lengths, kind, streams, seed, epoch)
    whole = in_order(runs_of(make, (1, 1)))
    if kind in ONCE:
        keys = [f"{number}-{index}" for number, length in enumerate(lengths) for index in range(length)]
        assert sorted(key for _, key in whole) == sorted(keys), "every sample of the epoch exactly once"
    end = cut * batch
    runs, given_items = runs_of(make, before), []
    for run in runs:
        mine = sum(1 for position, _ in whole if position < end and position % streams in run.owned)
        given_items += itertools.islice(run.positions(), mine)
    assert sorted(given_items) == [pair for pair in whole if pair[0] < end], "the same global batches"
    state = json.loads(json.dumps(wds.merge_states(run.state_dict() for run in runs)))
    assert state["received"] == len(given_items)
    assert in_order(runs_of(make, after, state)) == [pair for pair in whole if pair[0] >= end]
    for run in runs:  # each worker's own state is enough under its own topology
        own = make().elastic_run(WorkerContext(*run._place), json.loads(json.dumps(run.state_dict())))
        assert list(own.positions()) == list(run.positions()), "bit-identical under the same topology"


@settings(max_examples=40, deadline=None)
@given(
    lengths=LENGTHS,
    kind=st.sampled_from(sorted(STAGES)),
    streams=st.integers(1, 8),
    seed=st.integers(0, 1 << 40),
    moves=st.lists(st.tuples(TOPOLOGY, st.lists(st.integers(0, 6), min_size=1, max_size=6)), max_size=5),
)
def test_moved_again_and_again(folder, lengths, kind, streams, seed, moves):
    """Stopped with every worker somewhere else, again and again: each position comes exactly once."""
    make = functools.partial(dataset, folder, lengths, kind, streams, seed, 0)
    whole = in_order(runs_of(make, (1, 1)))
    state, seen = None, []
    for (ranks, workers), counts in moves:
        runs = runs_of(make, (min(ranks, streams), workers), state)
        for run, count in zip(runs, itertools.cycle(counts), strict=False):
            seen += itertools.islice(run.positions(), count)
        state = json.loads(json.dumps(wds.merge_states(run.state_dict() for run in runs)))
    assert sorted(seen + in_order(runs_of(make, (1, 1), state))) == whole


@settings(max_examples=30, deadline=None)
@given(lengths=LENGTHS, streams=st.integers(1, 30), seed=st.integers(0, 1 << 20), count=st.integers(0, 60))
def test_fixed_epochs_have_no_holes(folder, lengths, streams, seed, count):
    """An epoch of n items over drawn shards is the positions 0 to n - 1, whatever the streams."""
    urls = [str(folder / f"{number}-{length or 1}.tar") for number, length in enumerate(lengths)]
    made = wds.WebDataset(urls, resampled=True, seed=seed).map(lambda s: s["__key__"]).with_epoch(count or 1)
    assert [position for position, _ in made.elastic(streams).elastic_run().positions()] == list(range(count or 1))


@given(
    st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 24]),
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(1, 25),
    st.integers(0, 4),
    st.sampled_from([0, 1, 4]),
)
@settings(deadline=None, max_examples=150)
def test_all_ranks_give_equally_many_items(equal_urls, streams, ranks, workers, share, more, batch):
    """In an epoch of a fixed length, batches or not, straight and resumed; or an error names numbers that fit."""
    items = share * ranks + more

    def make(bound):
        made = wds.WebDataset(equal_urls, shardshuffle=20, seed=3).shuffle(20)
        return bound(made.batched(batch) if batch else made).elastic(streams)

    def counts(bound, state=None):
        runs = [
            [make(bound).elastic_run(WorkerContext(r, ranks, w, workers), state) for w in range(workers)]
            for r in range(ranks)
        ]
        return [sum(1 for run in of_rank for _ in run) for of_rank in runs]

    if ranks > streams:
        with pytest.raises(UsageError, match=f"{streams} streams cannot be shared out between {ranks} ranks"):
            counts(lambda ds: ds.with_epoch(items))
        return
    if streams % ranks:
        with pytest.raises(UsageError, match=rf"elastic\(streams=.*multiple of {ranks}") as caught:
            counts(lambda ds: ds.with_epoch(items))
        assert f"streams={-(-streams // ranks) * ranks})" in str(caught.value)
        assert sum(counts(lambda ds: ds.repeat(nbatches=items))) == items
        return
    found = counts(lambda ds: ds.with_epoch(items))
    assert sum(found) == items
    assert max(found) - min(found) <= (1 if items % ranks else 0)
    begun = make(lambda ds: ds.with_epoch(items)).elastic_run(WorkerContext(0, 1, 0, 1))
    cut = min(share * ranks // 2 // ranks * ranks, items)
    for _ in range(cut):
        next(begun)
    rest = counts(lambda ds: ds.with_epoch(items), begun.state_dict())
    assert sum(rest) == items - cut
    assert max(rest) - min(rest) <= (1 if items % ranks else 0)
