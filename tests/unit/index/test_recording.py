"""Indexes made while shards are read for another purpose."""

import os
from typing import Any

import pytest

import webdataset as wds
from support import zoo
from webdataset.core.error_handlers import ignore_and_continue
from webdataset.core.errors import UsageError
from webdataset.index.build import index_shard
from webdataset.samples.sample_reader import Reading
from webdataset.testing import archives

WHOLE = [name for name in zoo.names() if name not in ("duplicate_member", "split_samples", "no_end_mark")]


@pytest.mark.parametrize("name", WHOLE)
def test_reading_gives_the_index(tmp_path, name):
    """One pass gives the samples and the same index that the headers give."""
    path = zoo.build(tmp_path, [name])[name]
    found = []
    dataset = wds.WebDataset(str(path), observer=wds.IndexWhileReading(then=found.append), empty_check=False)
    assert [sample["__key__"] for sample in dataset] == [key for key, _ in zoo.exhibit(name).samples]
    assert found == [index_shard(path)]


def test_files_are_written_beside_the_shards(tmp_path):
    """In the formats asked for, or in a folder; equal to those made from the headers."""
    paths = zoo.build(tmp_path, ["plain", "gnu_long"])
    urls = [str(path) for path in paths.values()]
    (tmp_path / "there").mkdir()
    for folder in (None, tmp_path / "there"):
        list(wds.WebDataset(urls, observer=wds.IndexWhileReading(["dali", "energon", "files"], folder=folder)))
    names = sorted(f"{name}.{end}" for name in paths for end in ("idx", "tar.idx", "json"))
    assert sorted(os.listdir(tmp_path / "there")) == names
    read = {name: (tmp_path / name).read_bytes() for name in names}
    assert read == {name: (tmp_path / "there" / name).read_bytes() for name in names}
    wds.write_indexes(urls, ["dali", "energon"])
    for name in names:
        if name.endswith("idx"):
            assert (tmp_path / name).read_bytes() == read[name]


@pytest.mark.parametrize("kind", archives.COMPRESSIONS)
def test_compressed_shards_are_counted(tmp_path, kind):
    """The index of a compressed shard says so, with the size that is stored."""
    path = tmp_path / f"x.tar.{kind}"
    path.write_bytes(archives.compressed(zoo.exhibit("plain").archive, kind))
    found = []
    list(wds.WebDataset(str(path), observer=wds.IndexWhileReading(then=found.append)))
    assert found == [index_shard(path)]


def test_payloads_that_are_stepped_over(tmp_path):
    """Members that the reader seeks over are passed in the index, too."""
    path = tmp_path / "x.tar"
    members = [(f"{n}.{ext}", bytes(size)) for n in range(3) for ext, size in (("bin", 3 << 20), ("txt", 5))]
    path.write_bytes(archives.by_hand(members))
    found = []
    rules: dict[str, Any] = {"select_files": lambda name: name.endswith("txt")}
    assert len(list(wds.WebDataset(str(path), observer=wds.IndexWhileReading(then=found.append), **rules))) == 3
    assert found == [index_shard(path, **rules)]


def test_shards_that_are_not_read_whole_have_no_index(tmp_path):
    """Neither one that is given up, nor a damaged one, nor one that is resumed in its middle."""
    path = tmp_path / "x.tar"
    path.write_bytes(archives.by_hand([(f"{n}.txt", b"1" * 70_000) for n in range(20)]))
    found = []
    observer = wds.IndexWhileReading(then=found.append)
    next(iter(wds.WebDataset(str(path), observer=observer)))
    bad = tmp_path / "bad.tar"
    bad.write_bytes(path.read_bytes()[:200_000])
    dataset = wds.WebDataset([str(bad), str(path)], observer=observer, handler=ignore_and_continue)
    # of the bad one the first sample, too: the header behind it names another
    assert len(list(dataset)) == 22
    assert [index.url for index in found] == [str(path)]
    whole = wds.WebDataset(str(path), observer=observer)
    run = whole.start()
    for _ in range(10):
        next(run)
    state = run.snapshot()
    found.clear()
    assert len(list(whole.start(state=state))) == 10
    assert found == []


def test_errors_are_those_of_reading(tmp_path):
    """An observer changes neither the error nor the samples before it."""
    path = tmp_path / "x.tar"
    archive = bytearray(archives.by_hand([(f"{n}.txt", b"1") for n in range(20)]))
    archive[10 * 1024] ^= 1
    path.write_bytes(archive)

    def outcome(**options):
        seen = []
        with pytest.raises(wds.WebDatasetError) as caught:
            seen.extend(sample["__key__"] for sample in wds.WebDataset(str(path), **options))
        return seen, str(caught.value)

    assert outcome(observer=wds.IndexWhileReading(then=print)) == outcome()


def test_duplicates_that_a_handler_steps_over(tmp_path):
    """The index follows what the reader delivers."""
    path = zoo.build(tmp_path, ["duplicate_member"])["duplicate_member"]
    found = []
    rules: dict[str, Any] = {"handler": ignore_and_continue}
    samples = list(wds.WebDataset(str(path), observer=wds.IndexWhileReading(then=found.append), **rules))
    assert [entry.key for entry in found[0].entries] == [sample["__key__"] for sample in samples]


def test_arguments_that_mean_nothing():
    """Nothing to do, lists of shards, remote shards without a folder."""
    with pytest.raises(UsageError):
        wds.IndexWhileReading()
    with pytest.raises(UsageError, match="wids"):
        wds.IndexWhileReading("wids")
    with pytest.raises(UsageError, match="folder="):
        wds.IndexWhileReading("dali")("http://host/x.tar", Reading())
