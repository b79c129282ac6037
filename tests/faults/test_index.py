"""Shards cut anywhere: an index has the verdict of the stream, and an old index never gives wrong bytes."""

import pytest

import webdataset as wds
from support import zoo
from webdataset.core.errors import StaleIndex, WebDatasetError
from webdataset.index.build import index_shard
from webdataset.testing import archives
from webdataset.testing.sources import RangeServer


def verdict(call):
    """Class and message of an error, without the sample in progress; None where there is none."""
    try:
        call()
    except WebDatasetError as error:
        return type(error), error.message.partition("; sample")[0], error.offset
    return None


@pytest.mark.parametrize("name", ["plain", "gnu_long", "pax_times", "links", "joined"])
def test_a_cut_has_one_verdict(tmp_path, name):
    """Streamed, walked by headers, walked whole: the same error at the same byte, or none; the same samples."""
    archive = zoo.exhibit(name).archive
    path = tmp_path / "x.tar"
    for cut in sorted({*range(0, len(archive), 509), *range(0, len(archive), 512)}):
        path.write_bytes(archive[:cut])
        streamed = verdict(lambda: list(wds.WebDataset(str(path), empty_check=False)))
        assert verdict(lambda: index_shard(path)) == streamed, cut
        assert verdict(lambda: index_shard(path, hashes=["md5"])) == streamed, cut
        if streamed is None:
            keys = [sample["__key__"] for sample in wds.WebDataset(str(path), empty_check=False)]
            assert [entry.key for entry in index_shard(path).entries] == keys


def test_a_cut_gz_shard_has_one_verdict(tmp_path):
    """A compressed shard that ends early, likewise."""
    content = archives.compressed(archives.by_hand([(f"{n}.txt", bytes([n]) * 700) for n in range(40)]), "gz")
    path = tmp_path / "x.tar.gz"
    for cut in range(20, len(content), 37):
        path.write_bytes(content[:cut])
        assert verdict(lambda: index_shard(path)) == verdict(lambda: list(wds.WebDataset(str(path)))), cut


def test_an_old_index_of_a_shard_that_was_cut(tmp_path):
    """By its size it is stale at once."""
    path = zoo.build(tmp_path, ["plain"])["plain"]
    index = index_shard(path)
    archive = path.read_bytes()
    for cut in range(0, len(archive), 511):
        path.write_bytes(archive[:cut])
        with pytest.raises(StaleIndex):
            len(wds.IndexedShard(path, index))


@pytest.mark.parametrize("end", ["idx", "json", "tar.idx"])
def test_swapped_indexes(tmp_path, end):
    """Two shards with each other's index: every access is an error or the right sample of the shard."""
    for name, size in (("a", 100), ("b", 700)):
        members = [(f"{name}{n}.txt", name.encode() * (size + 17 * n)) for n in range(20)]
        (tmp_path / f"{name}.tar").write_bytes(archives.by_hand(members))
    wds.write_indexes([tmp_path / "a.tar", tmp_path / "b.tar"], ["dali", "files", "energon"])
    kept = {name: (tmp_path / f"{name}.{end}").read_bytes() for name in "ab"}
    for path in tmp_path.iterdir():
        if path.suffix != ".tar":
            path.unlink() if path.is_file() else None
    for name, other in ("ab", "ba"):
        (tmp_path / f"{name}.{end}").write_bytes(kept[other])
        path = tmp_path / f"{name}.tar"
        streamed = list(wds.WebDataset(str(path)))
        shard = wds.IndexedShard(path)
        with pytest.raises(StaleIndex):
            assert [shard[number] for number in range(len(shard))] == streamed


def test_a_remote_shard_that_is_replaced(monkeypatch):
    """Between two reads the object changes: an error, not a mixture."""
    first = archives.by_hand([(f"{n}.bin", b"1" * 100_000) for n in range(5)])
    second = archives.by_hand([(f"{n}.bin", b"2" * 100_000) for n in range(5)])
    with RangeServer({"/x.tar": first}) as server:
        shard = wds.IndexedShard(f"{server.root}/x.tar")
        assert shard[2]["bin"] == b"1" * 100_000
        server.pages["/x.tar"] = second
        with pytest.raises(WebDatasetError, match="replaced"):
            shard[3]
        shard = wds.IndexedShard(f"{server.root}/x.tar")
        assert shard[3]["bin"] == b"2" * 100_000
