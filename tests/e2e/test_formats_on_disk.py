"""What an earlier commit wrote on disk is still read: indexes of each kind, a cache, states of datasets and loaders."""

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

import webdataset as wds
import wids
from support import format_files

RECORDED = Path(__file__).with_name("formats_recorded.tar.gz")
SAMPLES = [f"{shard}{number:02d}" for shard in "ab" for number in range(10)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The recorded files, in the folder that the process is in."""
    with tarfile.open(RECORDED) as tar:
        tar.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without_noise(index: bytes) -> bytes:
    """An index without what no two writings share: pages of SQLite are compared as rows."""
    if not index.startswith(b"SQLite"):
        return index
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(index)
        return "\n".join(database.iterdump()).encode()


@pytest.mark.parametrize("name", ["a.idx", "b.idx", "a.tar.idx", "b.tar.idx", "a.json", "b.json", "shardindex.json"])
def test_indexes_are_written_as_they_were(folder, name):
    """The same bytes."""
    before = (folder / name).read_bytes()
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    format_files.write_shards()
    format_files.write_indexes()
    assert (folder / name).read_bytes() == before


def test_the_index_of_energon_has_the_rows_that_it_had(folder):
    """SQLite's file may differ, its rows may not."""
    place = folder / ".nv-meta" / "index.sqlite"
    before = without_noise(place.read_bytes())
    place.unlink()
    format_files.write_indexes()
    assert without_noise(place.read_bytes()) == before
    assert b"INSERT" in before


@pytest.mark.parametrize("index", ["a.idx", "a.tar.idx", "a.json"])
def test_indexes_are_read(folder, index):
    """Each kind gives the samples of its shard, without the others beside it."""
    for other in {"a.idx", "a.tar.idx", "a.json"} - {index}:
        (folder / other).unlink()
    shard = wds.IndexedShard("a.tar", index=index)
    assert [sample["__key__"] for sample in shard] == SAMPLES[:10]
    assert shard[3]["txt"] == b"caption 3"


def test_a_table_of_shards_is_read(folder):
    """The index of wids, which names both shards."""
    dataset = wids.ShardListDataset("shardindex.json")
    assert [dataset[number]["__key__"] for number in range(len(dataset))] == SAMPLES
    assert folder.exists()


def test_a_cache_is_read(folder):
    """The copy is used where the source is gone."""
    (folder / "a.tar").unlink()
    dataset = wds.WebDataset(format_files.CACHED, shardshuffle=False, cache_dir="cache")
    assert [sample["__key__"] for sample in dataset] == SAMPLES[:10]


def test_a_state_of_a_dataset_is_continued(folder):
    """What was given before and what is given after are the whole epoch, in the order of an unbroken run."""
    recorded = json.loads((folder / "elastic.json").read_text())
    dataset = format_files.make_dataset()
    dataset.load_state_dict(recorded["state"])
    after = [list(item) for item in dataset]
    straight = [list(item) for item in format_files.make_dataset()]
    assert recorded["before"] + after == straight
    assert len(straight) == len(SAMPLES)


def test_a_state_of_a_loader_is_continued(folder):
    """Batches likewise."""
    recorded = json.loads((folder / "loader.json").read_text())
    with format_files.make_loader() as loader:
        loader.load_state_dict(recorded["state"])
        after = [list(batch[0]) for batch in loader]
    with format_files.make_loader() as loader:
        straight = [list(batch[0]) for batch in loader]
    assert recorded["before"] + after == straight
    assert sorted(key for batch in straight for key in batch) == SAMPLES
