"""What a stream takes: shares of shards and of items, and its part of what a user said of the whole."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset.core.distributed import (
    StreamNumber,
    WorkerContext,
    detect_context,
    process_context,
    thread_context,
    use_stream,
    worker_context,
)
from webdataset.flow.elastic import streams_of_worker
from webdataset.flow.fingerprint import fingerprint
from webdataset.flow.run import ENDLESS, Bounds, build_runners
from webdataset.samples.sample_reader import take_share
from webdataset.shards.split import StreamItems, StreamShare
from webdataset.stages.base import Run
from webdataset.stages.select import Slice


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 40), st.integers(1, 17), st.lists(st.integers(0, 12), min_size=40, max_size=40))
def test_shares_of_shards(shards, streams, lengths):
    """All streams together take each sample once, and whole shards wherever there are enough."""
    taken = []
    for number in range(streams):
        for shard in StreamShare(StreamNumber(number, streams))({"url": str(url)} for url in range(shards)):
            url = int(shard["url"])
            lists = iter([(list(range(n, min(n + 3, lengths[url]))), []) for n in range(0, lengths[url], 3)])
            taken += [(url, sample) for samples, _ in take_share(lists, shard, None) for sample in samples]
            assert ("share" in shard) <= (url >= shards // streams * streams)
    assert sorted(taken) == [(url, sample) for url in range(shards) for sample in range(lengths[url])]


def test_how_even_shares_are():
    """Streams that share what is left over differ by one part of a shard."""
    sizes = []
    for number in range(24):
        shards = list(StreamShare(StreamNumber(number, 24))({"url": str(url)} for url in range(30)))
        sizes.append(sum(1 / shard.get("share", (0, 1))[1] for shard in shards))
    assert set(sizes) == {1.25}


def test_a_share_from_its_own_sample_on():
    """A reader that begins at an address begins with a sample of the share."""
    lists = iter([([20, 21, 22], [7, 8, 9]), ([23, 24], [10, 11])])
    assert list(take_share(lists, {"share": (2, 3)}, 4)) == [([20], [7]), ([23], [10])]
    assert list(take_share(iter([([1], [0])]), {}, 4)) == [([1], [0])]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_of_items(items, streams):
    """Every V-th item, from the stream's own number on."""
    shares = [list(StreamItems(StreamNumber(number, streams))(range(items))) for number in range(streams)]
    assert sorted(itertools.chain(*shares)) == list(range(items))
    assert all(share == list(range(number, items, streams)) for number, share in enumerate(shares))


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 30),
    st.none() | st.integers(0, 60),
    st.none() | st.integers(1, 7),
    st.integers(1, 9),
    st.integers(0, 60),
)
def test_slices(start, stop, step, streams, items):
    """A slice is one of positions: the parts of all streams together are it."""
    whole = Slice(start, stop, step)
    taken = []
    for number in range(streams):
        own = range(number, items, streams)
        taken += whole.for_stream(StreamNumber(number, streams))(iter(own))
    assert sorted(taken) == list(range(items))[start:stop:step]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 100), st.integers(1, 30))
def test_bounds(items, streams):
    """A bound on items is the positions below it; a run without end fails where it gives nothing."""
    parts = [Bounds(2, items).share_for(StreamNumber(number, streams)) for number in range(streams)]
    assert sum(part.items for part in parts) == items
    assert max(part.items for part in parts) - min(part.items for part in parts) <= 1
    assert Bounds(ENDLESS).share_for(StreamNumber(0, 2)).endless
    assert not Bounds(3).share_for(StreamNumber(0, 2)).endless


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 6))
def test_ownership(streams, ranks, workers):
    """Each stream has one owner."""
    ranks = min(ranks, streams)
    own = [
        streams_of_worker(streams, WorkerContext(r, ranks, w, workers)) for r in range(ranks) for w in range(workers)
    ]
    assert sorted(itertools.chain(*own)) == list(range(streams))


def test_places_within_streams(monkeypatch):
    """Within a stream nobody is a rank, except for whoever asks for the physical place; streams may be nested."""
    for name, value in {"RANK": "2", "WORLD_SIZE": "3", "WORKER": "1", "NUM_WORKERS": "2"}.items():
        monkeypatch.setenv(name, value)
    here = WorkerContext(2, 3, 1, 2)
    with use_stream(StreamNumber(1, 4)):
        with use_stream(StreamNumber(2, 4)):
            assert thread_context.stream == (2, 4)
        assert thread_context.stream == (1, 4)
        assert worker_context() == detect_context() == WorkerContext(0, 1, 0, 1)
        assert process_context() == here
    assert worker_context() == detect_context() == here


def test_where_the_share_is_taken(tmp_path):
    """Right in front of the reader, behind the shuffle of shards, which draws alike in all streams."""
    with wds.TarWriter(str(tmp_path / "0.tar")):
        pass
    stages = wds.WebDataset(str(tmp_path / "0.tar"), shardshuffle=5).pipeline
    first, levels = build_runners(stages, Run(stream=StreamNumber(1, 3)))
    names = [level.name for level in levels]
    assert names[-3:] == ["Shuffle", "StreamShare", "TarSamples"]
    assert [level.run.shared for level in levels[-3:]] == [True, False, False]
    assert first == len(levels) - 1


def test_a_description_is_that_of_the_dataset(tmp_path):
    """Numbers of stages, urls without their queries, bounds, and the datasets in a mix; never a url itself."""
    one = fingerprint([wds.SimpleShardList(["s3://b/0.tar?sig=1", "s3://b/1.tar"]), wds.shuffle(7)], Bounds(2, 9))
    other = fingerprint([wds.SimpleShardList(["s3://b/0.tar?sig=2", "s3://b/1.tar"]), wds.shuffle(7)], Bounds(2, 9))
    assert one == other
    assert one["shards"] == 2
    assert (one["passes"], one["items"]) == (2, 9)
    assert "bufsize=7" in one["stages"][1]
    assert "s3://" not in str(one)
    mixed = fingerprint([wds.RandomMix([wds.DataPipeline(wds.SimpleShardList(["a", "b"])), [1]], [1, 3])], Bounds())
    assert mixed["shards"] == 2
    assert mixed["stages"][0] == "RandomMix(longest=False, probs=[1.0, 3.0], seed=None)"


def _specified(shards, **options):
    return [wds.MultiShardSample({"datasets": [{"name": "a", "shards": shards, **options}]})]


def _mixed(dataset):
    return [wds.RandomMix([dataset])]


FIVE = [f"{number}.tar" for number in range(5)]
ORDERS = {
    "shards of a specification": (_specified(FIVE), _specified(FIVE[::-1])),
    "draws of a specification": (_specified(FIVE, resample=3), _specified(FIVE, resample=4)),
    "seed of a list": ([wds.SimpleShardList(FIVE, seed=1)], [wds.SimpleShardList(FIVE, seed=2)]),
    "number of draws": ([wds.ResampledShards(FIVE, nshards=7)], [wds.ResampledShards(FIVE, nshards=8)]),
    "bounds of a slice": ([FIVE, wds.slice(2, 40, 3)], [FIVE, wds.slice(2, 40, 2)]),
    "seed in a mix": (_mixed(wds.WebDataset(FIVE, seed=1)), _mixed(wds.WebDataset(FIVE, seed=2))),
    "bounds in a mix": (
        _mixed(wds.WebDataset(FIVE, seed=1).with_epoch(3)),
        _mixed(wds.WebDataset(FIVE, seed=1).with_epoch(4)),
    ),
    "shards moved in a mix": tuple(
        [wds.RandomMix([wds.DataPipeline(wds.SimpleShardList(part)) for part in (FIVE[:cut], FIVE[cut:])])]
        for cut in (2, 3)
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_what_changes_the_order_is_described(name):
    """Whatever a dataset is made of that decides which sample comes when, its description tells."""
    one, other = ORDERS[name]
    assert fingerprint(one, Bounds()) == fingerprint(one, Bounds())
    assert fingerprint(one, Bounds()) != fingerprint(other, Bounds())


def test_passes_do_not_change_a_description():
    """A description holds in every pass: it is the same before and after an iteration."""
    for source in (wds.ResampledShards(FIVE, nshards=3), *_specified(FIVE), wds.SimpleShardList(FIVE, seed=1)):
        before = fingerprint([source], Bounds())
        list(source)
        list(source)
        assert fingerprint([source], Bounds()) == before


def test_replaced_readers_are_refused(tmp_path, monkeypatch):
    """A reader that was put in the place of ours cannot share a shard by sample, and is not asked to."""
    from webdataset import tariterators

    with wds.TarWriter(str(tmp_path / "0.tar")) as sink:
        sink.write({"__key__": "a", "txt": "x"})
    monkeypatch.setattr(tariterators, "group_by_keys", lambda source, **_: source)
    with pytest.raises(wds.WebDatasetError, match="replaced"):
        list(wds.WebDataset(str(tmp_path / "0.tar")).elastic(2))
