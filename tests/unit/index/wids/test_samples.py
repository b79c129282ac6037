"""Single tar files by member and by sample, and local copies of shards."""

import gzip
import io
import os
import pickle
from pathlib import Path

import pytest

from support import zoo
from webdataset.core.errors import FormatError, NoSuchSample, NotFound, SourceError, StaleIndex, Truncated, UsageError
from webdataset.index.wids.local_copies import (
    DefaultLocalname,
    LRUCache,
    SimpleDownloader,
    download_and_open,
    download_file,
    pipe_download,
)
from webdataset.index.wids.samples import IndexedTarSamples, LRUShards, TarMembers, compute_num_samples
from webdataset.testing import archives

MEMBERS = [("a.txt", b"1"), ("a.cls", b"22"), ("x" * 80 + ".txt", b"3" * 700), ("__meta__", b"m")]


@pytest.fixture
def tar(tmp_path):
    """A small shard."""
    path = tmp_path / "a.tar"
    path.write_bytes(archives.by_hand(MEMBERS))
    return str(path)


@pytest.mark.parametrize("form", ["path", "gz", "open", "stream"])
def test_members(tar, form):
    """All members, of files, compressed files and streams: by number, by name, in order."""
    content = Path(tar).read_bytes()
    if form == "gz":
        tar += ".gz"
        Path(tar).write_bytes(gzip.compress(content))
    opened = open(tar, "rb")
    given = {"open": opened, "stream": io.BytesIO(content)}.get(form, tar)
    with TarMembers(given) as members:
        assert list(members) == MEMBERS
        assert members.names() == [name for name, _ in MEMBERS]
        assert (len(members), members[1], members["a.txt"]) == (4, MEMBERS[1], MEMBERS[0])
        name, stream = members.get_file(2)
        assert (name, stream.read()) == MEMBERS[2]
        assert members.get_at_offset(1024) == MEMBERS[1]
        for wrong in (lambda: members["none"], lambda: members.get_at_offset(3)):
            with pytest.raises(NoSuchSample):
                wrong()
    opened.close()


@pytest.mark.parametrize("name", ["gnu_long", "pax_long"])
def test_long_names(tmp_path, name):
    """Long names arrive whole."""
    exhibit = zoo.exhibit(name)
    with TarMembers(zoo.build(tmp_path, [name])[name]) as members:
        assert dict(members) == {
            f"{key}.{field}": data for key, fields in exhibit.samples for field, data in fields.items()
        }


@pytest.mark.limited
def test_damaged_files(tar, tmp_path):
    """A cut file and what is no file are errors."""
    os.truncate(tar, 1300)
    with pytest.raises(Truncated):
        TarMembers(tar)
    with pytest.raises(NotFound):
        TarMembers(str(tmp_path / "none.tar"))
    with pytest.raises(UsageError, match="not int"):
        TarMembers(3)


def test_samples_of_a_file(tar):
    """Samples by number, after size and digest were checked; no file appears beside the shard, and none is read."""
    with open(tar + ".index", "wb") as stream:
        pickle.dump("not to be read", stream)
    samples = IndexedTarSamples(tar, None, 2)
    assert (len(samples), samples[0]["__key__"], samples[0][".cls"].read()) == (2, "a", b"22")
    samples.close()
    assert compute_num_samples(tar) == 2
    with pytest.raises(StaleIndex, match="expected 3"):
        IndexedTarSamples(path=tar, expected_size=3)
    with pytest.raises(StaleIndex, match="md5sum"):
        IndexedTarSamples(path=tar, md5sum="0" * 32)
    with pytest.raises(UsageError, match="path="):
        IndexedTarSamples()
    assert sorted(os.listdir(os.path.dirname(tar))) == ["a.tar", "a.tar.index"]


def test_copies(tar, tmp_path):
    """Copies appear whole, under folders that are made, once; commands and own functions make them too."""
    copy = str(tmp_path / "deep/er/copy.tar")
    assert download_file(tar, copy) == copy
    with download_and_open(tar + "none", copy) as stream:
        assert stream.read() == Path(tar).read_bytes()
    assert pipe_download(f"pipe:cat {tar}", str(tmp_path / "p.tar")) == str(tmp_path / "p.tar")
    assert SimpleDownloader().download(tar, str(tmp_path / "s.tar")) == str(tmp_path / "s.tar")
    own = {"mine": lambda remote, local: Path(local).write_text(remote)}
    assert Path(download_file("mine:x", str(tmp_path / "m"), handlers=own)).read_text() == "mine:x"
    with pytest.raises(UsageError, match="is a function"):
        download_file("s3://x", str(tmp_path / "n"), handlers={"s3": "aws s3 cp {url} {local}"})  # type: ignore[dict-item]


def test_copies_that_fail_leave_nothing(tar, tmp_path):
    """What is no shard, or may be cut, is not kept."""
    (tmp_path / "page.html").write_bytes(b"<html>" * 200)
    with pytest.raises(FormatError):
        download_file(str(tmp_path / "page.html"), str(tmp_path / "near/x.tar"))
    with pytest.raises(SourceError, match="end mark"):
        download_file(f"pipe:head -c 1024 {tar}", str(tmp_path / "near/x.tar"))
    with pytest.raises(NotFound):
        download_file(str(tmp_path / "none"), str(tmp_path / "near/x.tar"))
    assert os.listdir(tmp_path / "near") == []


def test_shards_nearby(tar, tmp_path, monkeypatch):
    """Shards are copied under their whole quoted url, and the ones used least recently closed."""
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "near"))
    other = str(tmp_path / "b.tar")
    Path(other).write_bytes(archives.by_hand([("b.txt", b"1")]))
    shards = LRUShards(1)
    assert [len(shards.get_shard(url)) for url in (tar, tar, other, tar)] == [2, 2, 1, 2]
    assert (shards.accesses, shards.misses, len(shards)) == (4, 3, 1)
    assert sorted(os.listdir(tmp_path / "near")) == sorted(
        os.path.basename(DefaultLocalname()(url)) for url in (tar, other)
    )
    shards.clear()
    assert len(shards) == 0


def test_the_table_of_bounded_size():
    """The least recently used goes first; what goes is handed over once; replaced values too."""
    gone = []
    table = LRUCache(2, lambda key, value: gone.append((key, value)))
    table["a"], table["b"] = 1, 2
    assert (table["a"], table["none"], list(table)) == (1, None, ["b", "a"])
    table["c"] = 3
    table["c"] = 4
    assert (gone, table.items(), "b" in table) == ([("b", 2), ("c", 3)], [("a", 1), ("c", 4)], False)
    table.clear()
    assert gone[2:] == [("a", 1), ("c", 4)]
    assert len(LRUCache(0)) == 0
