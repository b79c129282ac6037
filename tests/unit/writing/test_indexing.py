"""Indexes made in the pass that writes the shard."""

import hashlib
import io
import json
import os
import subprocess
import sys

import pytest

import webdataset as wds
from webdataset.core.errors import AlreadyExists, DuplicateField, NotRepresentable, SourceError, UsageError
from webdataset.index import energon_shards
from webdataset.index.build import index_shard
from webdataset.index.formats import dali, energon, files_json

FORMATS = ["dali", "energon", "files"]
SAMPLES = [
    {"__key__": f"{'d' * 60}/{n:03d}" if n % 3 else f"{'x' * 90}/{'y' * 190}{n}", "jpg": bytes(n * 77), "Cls": b"1"}
    for n in range(12)
]


def write(path, samples=SAMPLES, **options):
    """Write a shard; return the writer."""
    with wds.TarWriter(str(path), encoder=False, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return writer


def sidecars(folder):
    """Contents of the files that are no shards, by name."""
    return {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder)) if not name.endswith(".tar")}


@pytest.mark.parametrize("form", [None, "gnu", "pax"])
def test_writing_gives_the_index_that_reading_gives(tmp_path, form):
    """Every format, byte for byte, with long names in every dialect; and as an object."""
    path = tmp_path / "x.tar"
    writer = write(path, index=FORMATS, format=form)
    index = index_shard(path, hashes=["sha1", "sha256"])
    assert sidecars(tmp_path) == {
        "x.idx": dali.dumps(index), "x.json": files_json.dumps(index), "x.tar.idx": energon.dumps(index),
    }  # fmt: skip
    assert writer.shard_index == index


def test_an_index_changes_no_byte_of_the_shard(tmp_path):
    """The same shard comes out, with and without."""
    write(tmp_path / "x.tar", index=FORMATS)
    write(tmp_path / "y.tar")
    assert (tmp_path / "x.tar").read_bytes() == (tmp_path / "y.tar").read_bytes()


def test_samples_that_a_format_cannot_hold_are_refused(tmp_path):
    """Before anything of them is written, so that the writer goes on."""
    with wds.TarWriter(str(tmp_path / "x.tar"), encoder=False, index=FORMATS, check_keys="ignore") as writer:
        writer.write({"__key__": "a", "txt": b"1"})
        with pytest.raises(NotRepresentable, match="blanks") as caught:
            writer.write({"__key__": "b", "0 (clean).mp3": b"1"})
        assert (caught.value.key, caught.value.field) == ("b", "b.0 (clean).mp3")
        with pytest.raises(NotRepresentable, match="UTF-8"):
            writer.write({"__key__": "caf\udce9", "txt": b"1"})
        with pytest.raises(NotRepresentable, match="twice"):
            writer.write({"__key__": "a", "txt": b"2"})
        with pytest.raises(DuplicateField, match="every reader"):
            writer.write({"__key__": "a", "TXT": b"2"})
        writer.write({"__key__": "a", "cls": b"3"})
        writer.write({"__key__": "c", "txt": b"4"})
    assert [entry.key for entry in writer.shard_index.entries] == ["a", "c"]
    assert writer.shard_index == index_shard(tmp_path / "x.tar", hashes=["sha1", "sha256"])


def test_keys_with_dots_are_indexed_as_they_read_back(tmp_path):
    """The index has the reader's keys, not the writer's."""
    with pytest.warns(UserWarning, match="dot"):
        writer = write(tmp_path / "x.tar", [{"__key__": "v1.0", "txt": b"1"}], index="dali")
    assert [entry.key for entry in writer.shard_index.entries] == ["v1"]
    assert writer.shard_index == index_shard(tmp_path / "x.tar")


@pytest.mark.parametrize("how", ["abort", "exception", "refused"])
def test_no_shard_no_index(tmp_path, how):
    """A shard that is given up leaves no index and no partial file."""
    writer = wds.TarWriter(str(tmp_path / "x.tar"), encoder=False, index=FORMATS)
    if how == "abort":
        writer.write(SAMPLES[0])
        writer.abort()
    elif how == "exception":
        writer.write(SAMPLES[0])
        writer.__exit__(KeyError, KeyError(), None)
    else:
        with pytest.raises(NotRepresentable, match="at least one"):
            writer.close()
    assert os.listdir(tmp_path) == []


def test_an_old_index_goes_before_its_shard(tmp_path, monkeypatch):
    """A writer that fails between shard and index leaves no index of another shard."""
    path = tmp_path / "x.tar"
    write(path, index=FORMATS)
    old = path.read_bytes()
    from webdataset.writing import indexing

    def full(*_):
        raise OSError(28, "no space")

    monkeypatch.setattr(indexing.os, "replace", full)
    with pytest.raises(SourceError):
        write(path, SAMPLES[:3], index=FORMATS)
    assert path.read_bytes() == old
    monkeypatch.undo()
    assert sidecars(tmp_path) == {}
    write(path, SAMPLES[:3], index=FORMATS)
    assert len(wds.IndexedShard(path)) == 3


def test_a_refused_name_keeps_the_old_files(tmp_path):
    """Without ``overwrite`` neither the shard nor its index is touched."""
    path = tmp_path / "x.tar"
    write(path, index=FORMATS)
    before = sidecars(tmp_path)
    with pytest.raises(AlreadyExists):
        write(path, SAMPLES[:1], index=FORMATS, overwrite=False)
    assert sidecars(tmp_path) == before


@pytest.mark.parametrize("target", ["-", "pipe:cat > /dev/null"])
def test_only_local_files_have_files_beside_them(target):
    """Streams and urls are refused when the writer is made."""
    with pytest.raises(UsageError, match="local file"):
        wds.TarWriter(target, index="dali")
    with pytest.raises(UsageError, match="local file"):
        wds.TarWriter(io.BytesIO(), index="dali")


def test_arguments_that_mean_nothing(tmp_path):
    """Unknown formats, offsets into compressed shards, lists of one shard; nothing is left behind."""
    for options in ({"index": "dahli"}, {"index": "dali", "compress": "gz"}, {"index": "wids"}, {"index": 3}):
        with pytest.raises(UsageError):
            wds.TarWriter(str(tmp_path / "x.tar"), **options)
    with pytest.raises(UsageError):
        wds.ShardWriter(f"{tmp_path}/%d.tar", index="dahli")
    with pytest.raises(UsageError, match="opener"):
        wds.ShardWriter(f"{tmp_path}/%d.tar", index="dali", opener=open)
    assert os.listdir(tmp_path) == []


def test_a_series_has_its_lists(tmp_path):
    """Each shard its own files, and all of them one wids index and one energon folder."""
    with wds.ShardWriter(f"{tmp_path}/x-%02d.tar", maxcount=5, encoder=False, index=[*FORMATS, "wids"]) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    listed = json.loads((tmp_path / "shardindex.json").read_text())
    assert [(shard["url"], shard["nsamples"]) for shard in listed["shardlist"]] == [
        ("x-00.tar", 5), ("x-01.tar", 5), ("x-02.tar", 2),
    ]  # fmt: skip
    for shard in listed["shardlist"]:
        content = (tmp_path / shard["url"]).read_bytes()
        assert shard["filesize"] == len(content)
        assert shard["md5sum"] == hashlib.md5(content).hexdigest()
    dataset = wds.IndexedDataset(energon_shards(tmp_path))
    assert [sample["__key__"] for sample in dataset] == [sample["__key__"] for sample in SAMPLES]
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if name.endswith(("idx", "json"))}
    wds.write_indexes(sorted(tmp_path.glob("*.tar")), [*FORMATS, "wids"])
    assert before == {name: (tmp_path / name).read_bytes() for name in before}


def test_a_series_of_compressed_shards_has_a_wids_index(tmp_path):
    """Counts, sizes and digests are those of the compressed files."""
    with wds.ShardWriter(f"{tmp_path}/x-%d.tar.gz", maxcount=5, encoder=False, index="wids") as writer:
        for sample in SAMPLES:
            writer.write(sample)
    for shard in json.loads((tmp_path / "shardindex.json").read_text())["shardlist"]:
        content = (tmp_path / shard["url"]).read_bytes()
        assert (shard["filesize"], shard["md5sum"]) == (len(content), hashlib.md5(content).hexdigest())


def test_a_series_that_is_given_up_has_no_list(tmp_path):
    """Completed shards keep their own indexes; files about all of them are not written."""
    writer = wds.ShardWriter(f"{tmp_path}/%d.tar", 5, encoder=False, index=["energon", "wids"])
    for sample in SAMPLES:
        writer.write(sample)
    writer.__exit__(KeyError, KeyError(), None)
    assert sorted(os.listdir(tmp_path)) == ["0.tar", "0.tar.idx", "1.tar", "1.tar.idx"]


def test_a_key_in_two_shards_of_an_energon_series(tmp_path):
    """Refused when the second shard is complete; the folder is not written."""
    writer = wds.ShardWriter(f"{tmp_path}/%d.tar", 2, encoder=False, index="energon")
    for key in ("a", "b", "c", "a"):
        writer.write({"__key__": key, "txt": b"1"})
    with pytest.raises(NotRepresentable, match="0.tar, too"):
        writer.close()
    assert not (tmp_path / ".nv-meta").exists()


def test_an_unused_series_writes_nothing(tmp_path):
    """No shard, no list."""
    wds.ShardWriter(f"{tmp_path}/%d.tar", index=["wids", "energon"]).close()
    assert os.listdir(tmp_path) == []


def test_processes_of_one_job_write_lists_of_their_own(tmp_path, monkeypatch):
    """Each has its name, and the energon folder is left to be written when all are done."""
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with wds.ShardWriter(f"{tmp_path}/{{rank}}-%d.tar", encoder=False, index=["wids", "energon"]) as writer:
            writer.write({"__key__": rank, "txt": b"1"})
    assert sorted(name for name in os.listdir(tmp_path) if not name.endswith(".tar")) == [
        "0-0.tar.idx", "1-0.tar.idx", "shardindex-00000-000.json", "shardindex-00001-000.json",
    ]  # fmt: skip


def test_indexing_is_loaded_only_where_it_is_asked_for(tmp_path):
    """A writer without an index does not import the index layer."""
    program = (
        "import sys, webdataset as wds\n"
        f"w = wds.TarWriter({str(tmp_path / 'x.tar')!r}, encoder=False)\n"
        "w.write({'__key__': 'a', 'b': b'c'}); w.close()\n"
        "print([name for name in sys.modules if name.startswith('webdataset.index')])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert shown.stdout.strip() == "[]"


def test_a_file_of_ones_own_is_not_replaced(tmp_path):
    """It has the sidecar's name and is none: refused before anything is written."""
    (tmp_path / "x.json").write_text('{"caption": "precious"}')
    with pytest.raises(AlreadyExists, match="no index"):
        wds.TarWriter(str(tmp_path / "x.tar"), index="files")
    assert os.listdir(tmp_path) == ["x.json"]


def test_old_indexes_of_every_format_go(tmp_path):
    """Not only those of the formats that are written anew; what is no index stays."""
    path = tmp_path / "x.tar"
    write(path, index=FORMATS)
    (tmp_path / "x.json").write_text("mine")
    write(path, SAMPLES[:3], index="energon")
    assert list(sidecars(tmp_path)) == ["x.json", "x.tar.idx"]
    assert len(wds.IndexedShard(path)) == 3


def test_indexes_stand_beside_the_name_that_was_written(tmp_path, monkeypatch):
    """Not beside what a link points to, and not where the program has gone meanwhile."""
    for name in ("here", "there", "store"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "x.tar").symlink_to(tmp_path / "store" / "0001")
    monkeypatch.chdir(tmp_path / "here")
    with wds.TarWriter("x.tar", encoder=False, index="dali") as writer:
        writer.write(SAMPLES[0])
        monkeypatch.chdir(tmp_path / "there")
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir())
    assert found == ["here/x.idx", "here/x.tar", "store/0001"]
    assert writer.shard_index == index_shard(tmp_path / "here" / "x.tar")
