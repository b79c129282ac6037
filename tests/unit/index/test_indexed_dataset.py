"""Samples by number and key out of many shards."""

import os
import pickle

import pytest

import webdataset as wds
from webdataset.core.errors import NoShards, NoSuchSample, NotFound, StaleIndex, UsageError
from webdataset.index.build import index_shard
from webdataset.index.formats import dali
from webdataset.inspection.expression import Expression
from webdataset.samples.sample_reader import Reading
from webdataset.testing import archives

COUNTS = (3, 1, 4, 0, 2)


@pytest.fixture
def shards(tmp_path):
    """Paths of five shards, one of them empty; one key stands in two of them."""
    paths = []
    for number, count in enumerate(COUNTS):
        keys = [f"{number}-{n}" for n in range(count)]
        if number in (0, 4):
            keys[0] = "twice"
        path = tmp_path / f"x-{number}.tar"
        path.write_bytes(archives.by_hand([(f"{key}.txt", f"{number} {key}".encode()) for key in keys]))
        paths.append(path)
    return paths


def keys_of(samples):
    """The keys of samples."""
    return [sample["__key__"] for sample in samples]


def test_shards_stand_behind_each_other(shards, tmp_path):
    """Every way to name the shards gives the samples of the stream, in its order."""
    streamed = list(wds.WebDataset([str(path) for path in shards]))
    for given in (
        f"{tmp_path}/x-{{0..4}}.tar",
        shards,
        [str(path) for path in shards],
        [{"url": str(path), "nsamples": count} for path, count in zip(shards, COUNTS, strict=True)],
        [{"url": str(path)} for path in shards],
        [index_shard(path) for path in shards],
        [wds.IndexedShard(path) for path in shards],
    ):
        dataset = wds.IndexedDataset(given)
        assert len(dataset) == 10
        assert list(dataset) == streamed
        assert [dataset[number] for number in range(-10, 0)] == streamed
        assert dataset[2:9:3] == streamed[2:9:3]
        assert list(dataset.keys()) == keys_of(streamed)


def test_keys(shards):
    """The first of several, all of them, none."""
    dataset = wds.IndexedDataset(shards)
    assert dataset.by_key("2-3")["txt"] == b"2 2-3"
    assert dataset.by_key("twice")["txt"] == b"0 twice"
    assert [sample["txt"] for sample in dataset.by_key("twice", all=True)] == [b"0 twice", b"4 twice"]
    assert dataset.ordinals("twice") == [0, 8]
    assert "2-0" in dataset
    assert "absent" not in dataset
    with pytest.raises(KeyError) as caught:
        dataset.by_key("absent")
    assert isinstance(caught.value, NoSuchSample)


def test_numbers_out_of_range(shards):
    """IndexErrors, so that loops over a sequence end."""
    dataset = wds.IndexedDataset(shards)
    for number in (10, -11):
        with pytest.raises(IndexError, match="the dataset has 10"):
            dataset[number]
    assert dataset.locate(-1) == (4, 1)
    assert dataset.locate(7) == (2, 3)


def test_many_at_once(shards):
    """What torch's loader asks for with a list, in the order of the list."""
    dataset = wds.IndexedDataset(shards)
    assert keys_of(dataset.__getitems__([9, 0, 5, 0])) == ["4-1", "twice", "2-1", "twice"]


def test_few_shards_are_open(shards):
    """Descriptors are bounded, however often shards change."""
    dataset = wds.IndexedDataset(shards, open_shards=2)
    len(dataset)
    before = len(os.listdir("/proc/self/fd"))
    most = 0
    for step in range(100):
        dataset[step * 7 % 10]
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
    assert most <= 2
    dataset.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert dataset[0]["__key__"] == "twice"


def test_counts_of_a_list_are_believed_until_the_shard_is_opened(shards):
    """A list with counts opens nothing; a shard that has another count is an error."""
    dataset = wds.IndexedDataset([{"url": "/nowhere/a.tar", "nsamples": 5}, {"url": str(shards[0]), "nsamples": 2}])
    assert len(dataset) == 7
    with pytest.raises(NotFound):
        dataset[0]
    with pytest.raises(StaleIndex, match="says 2 samples, and the shard has 3"):
        dataset[5]


def test_it_pickles(shards):
    """With the indexes that are known, so that workers need not find them out again."""
    dataset = wds.IndexedDataset(shards)
    here = list(dataset)
    there = pickle.loads(pickle.dumps(dataset))
    assert list(there) == here
    assert "10 samples" in repr(there)


def test_decoding_and_rules(shards):
    """Arguments reach the shards."""
    dataset = wds.IndexedDataset(shards, decode=True, index=False, select_files=lambda name: "twice" in name)
    assert [sample["txt"] for sample in dataset] == ["0 twice", "4 twice"]


def test_indexes_beside_the_shards(shards):
    """A stale one is found out, unless the headers are asked for."""
    index = index_shard(shards[2])
    shards[0].with_suffix(".idx").write_bytes(dali.dumps(index))
    with pytest.raises(StaleIndex):
        len(wds.IndexedDataset(shards))
    assert len(wds.IndexedDataset(shards, index=False)) == 10


def test_arguments_that_mean_nothing(shards):
    """No shards, no room, things that are no shards."""
    with pytest.raises(NoShards):
        wds.IndexedDataset([])
    with pytest.raises(UsageError):
        wds.IndexedDataset(shards, open_shards=0)
    for bad in ([3], [{"path": "x"}], [{"url": "x", "nsamples": "many"}]):
        with pytest.raises(UsageError):
            wds.IndexedDataset(bad)


@pytest.mark.torch
def test_a_torch_loader_reads_it(shards):
    """As a map-style dataset, with workers and random order."""
    torch_data = pytest.importorskip("torch.utils.data")
    dataset = wds.IndexedDataset(shards)
    loader = torch_data.DataLoader(dataset, batch_size=4, num_workers=2, shuffle=True, collate_fn=list)
    assert sorted(sample["txt"] for batch in loader for sample in batch) == sorted(each["txt"] for each in dataset)


def test_an_expression_is_no_rule_of_random_access(shards):
    """`where=` would leave out samples of a stream alone: an index of all of them refuses it, and never ignores it."""
    rules = Reading(where=Expression("txt"))
    for call in (
        lambda: wds.IndexedDataset(shards, where=rules.where),
        lambda: wds.IndexedDataset(shards, where="txt"),
        lambda: wds.IndexedShard(shards[0], reading=rules),
    ):
        with pytest.raises(UsageError, match=r"all samples of its shards: where= is for WebDataset"):
            call()


def test_a_shard_that_is_closed_while_it_is_read(shards, monkeypatch):
    """Another thread reads other shards meanwhile: no more than ``open_shards`` stay open."""
    dataset = wds.IndexedDataset(shards, open_shards=1)
    assert len(dataset) == 10
    first = dataset.shards[0]
    read = first.read

    def read_others(number):
        assert dataset[9]["__key__"]
        return read(number)

    monkeypatch.setattr(first, "read", read_others)
    assert dataset[1]["__key__"] == "0-1"
    assert [shard._ranges is not None for shard in dataset.shards] == [False] * 4 + [True]
