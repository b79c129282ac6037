"""Index files written for shards that are there: beside them, in another folder, in every format at once."""

import contextlib
import hashlib
import json
import os
import sqlite3

import pytest
import yaml

import webdataset as wds
from support import zoo
from webdataset.core.errors import AlreadyExists, BadIndex, NotRepresentable, SourceError, UsageError
from webdataset.index import energon_rows, energon_shards
from webdataset.index.build import index_shard
from webdataset.index.formats import dali
from webdataset.index.formats.energon import EnergonDatasetWriter
from webdataset.index.publish import publish_file
from webdataset.testing import archives
from webdataset.testing.sources import RangeServer


@pytest.fixture
def shards(tmp_path):
    """Paths of three shards of distinct keys."""
    paths = []
    for number in range(3):
        path = tmp_path / f"x-{number}.tar"
        path.write_bytes(archives.by_hand([(f"{number}-{n}.{ext}", b"1") for n in range(4) for ext in ("CLS", "txt")]))
        paths.append(path)
    return paths


def files_in(folder):
    """Names in a folder that are no shards."""
    return sorted(name for name in os.listdir(folder) if not name.endswith(".tar"))


def test_every_format_at_once(shards, tmp_path):
    """One file a shard and format, one list, one folder; and nothing else, no partial file."""
    written = wds.write_indexes(shards, ["dali", "energon", "files", "wids"])
    names = [f"x-{n}.{end}" for n in range(3) for end in ("idx", "json", "tar.idx")]
    assert files_in(tmp_path) == sorted([*names, "shardindex.json", ".nv-meta"])
    assert files_in(tmp_path / ".nv-meta") == [".info.json", "dataset.yaml", "index.sqlite", "index.uuid", "split.yaml"]
    assert len(written) == 9 + 1 + 5
    assert all(os.path.exists(path) for path in written)
    listed = json.loads((tmp_path / "shardindex.json").read_text())
    assert listed["shardlist"][1] == {
        "url": "x-1.tar", "nsamples": 4, "filesize": shards[1].stat().st_size,
        "md5sum": hashlib.md5(shards[1].read_bytes()).hexdigest(),
    }  # fmt: skip


def test_remote_shards_need_a_folder(shards, tmp_path):
    """Their indexes go there, with whole urls in lists; beside them there is no place."""
    pages = {f"/{path.name}": path.read_bytes() for path in shards}
    (tmp_path / "here").mkdir()
    with RangeServer(pages) as server:
        urls = [server.root + page for page in pages]
        with pytest.raises(UsageError, match="folder="):
            wds.write_indexes(urls, "dali")
        wds.write_indexes(urls, ["dali", "wids"], folder=tmp_path / "here")
        listed = json.loads((tmp_path / "here" / "shardindex.json").read_text())
        assert [shard["url"] for shard in listed["shardlist"]] == urls
    assert files_in(tmp_path / "here") == ["shardindex.json", "x-0.idx", "x-1.idx", "x-2.idx"]


def test_what_cannot_be_written(tmp_path):
    """Refusals leave no file; ``unfit`` is handed on; arguments are checked."""
    path = zoo.build(tmp_path, ["empty_extension"])["empty_extension"]
    with pytest.raises(NotRepresentable):
        wds.write_indexes([path], "dali")
    assert files_in(tmp_path) == []
    with pytest.warns(UserWarning, match="left out"):
        wds.write_indexes([path], "dali", unfit="omit")
    with pytest.raises(UsageError):
        wds.write_indexes([], "dali")
    with pytest.raises(UsageError):
        wds.write_indexes([path], [])
    with pytest.raises(SourceError, match="cannot write"):
        publish_file(str(tmp_path / "absent" / "x"), b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match="cannot complete"):
        publish_file(str(tmp_path / "folder"), b"")
    assert files_in(tmp_path) == ["empty_extension.idx", "folder"]


def test_rules_of_reading_apply(tmp_path):
    """What the reader leaves out is not indexed."""
    path = zoo.build(tmp_path, ["plain"])["plain"]
    wds.write_indexes([path], "dali", select_files=lambda name: name.endswith("jpg"))
    lines = dali.loads((tmp_path / "plain.idx").read_bytes())
    assert [[part.extension for part in line] for line in lines] == [["jpg"]] * 3


def test_the_folder_of_an_energon_dataset(shards, tmp_path):
    """Counts in the order of the shards, everything in train, and tables that say where each part lies."""
    wds.write_indexes(shards, "energon")
    folder = tmp_path / ".nv-meta"
    info = json.loads((folder / ".info.json").read_text())
    assert info["shard_counts"] == {"x-0.tar": 4, "x-1.tar": 4, "x-2.tar": 4}
    assert yaml.safe_load((folder / "split.yaml").read_text())["split_parts"]["train"] == list(info["shard_counts"])
    assert yaml.safe_load((folder / "dataset.yaml").read_text())["__module__"] == "megatron.energon"
    assert len((folder / "index.uuid").read_text()) == 36
    with contextlib.closing(sqlite3.connect(folder / "index.sqlite")) as tables:
        samples = tables.execute("SELECT * FROM samples ORDER BY 1, 3").fetchall()
        parts = tables.execute("SELECT * FROM sample_parts ORDER BY 1, 2, 4").fetchall()
    entries = [(number, index_shard(path)) for number, path in enumerate(shards)]
    assert samples == [
        (number, entry.key, place, entry.offset, 2048)
        for number, index in entries
        for place, entry in enumerate(index.entries)
    ]
    assert parts == [
        (number, place, field.member.partition(".")[2], field.offset, field.size)
        for number, index in entries
        for place, entry in enumerate(index.entries)
        for field in entry.fields
    ]


def test_an_energon_dataset_is_read(shards, tmp_path):
    """Its splits are lists of shards with counts, its tables rows of a shard."""
    wds.write_indexes(shards, "energon")
    found = energon_shards(tmp_path)
    assert found == [{"url": str(path), "nsamples": 4} for path in shards]
    assert [sample["__key__"] for sample in wds.IndexedDataset(found)] == [
        f"{n}-{k}" for n in range(3) for k in range(4)
    ]
    assert energon_shards(tmp_path, "val") == []
    split = {"split_parts": {"train": ["x-{0..2}.tar"]}, "exclude": ["x-{1..1}.tar"]}
    (tmp_path / ".nv-meta" / "split.yaml").write_text(yaml.safe_dump(split))
    assert [shard["url"] for shard in energon_shards(tmp_path)] == [str(shards[0]), str(shards[2])]
    assert energon_rows(tmp_path, "x-1.tar")[:2] == [("1-0.CLS", 512, 1), ("1-0.txt", 1536, 1)]


@pytest.mark.parametrize(
    "split",
    [
        "not: [closed", "[]", "split_parts: 3", "split_parts: {train: [absent.tar]}",
        "{split_parts: {train: []}, exclude: [x-0.tar/0-1]}",
    ],
)  # fmt: skip
def test_folders_that_cannot_be_read(shards, tmp_path, split):
    """BadIndex names the folder; an unknown split is a UsageError."""
    wds.write_indexes(shards, "energon")
    (tmp_path / ".nv-meta" / "split.yaml").write_text(split)
    with pytest.raises(BadIndex) as caught:
        energon_shards(tmp_path)
    assert str(tmp_path) in caught.value.url


def test_things_that_are_not_there(shards, tmp_path):
    """No folder, no such split, no such shard."""
    with pytest.raises(BadIndex):
        energon_shards(tmp_path)
    wds.write_indexes(shards, "energon")
    with pytest.raises(UsageError, match="train, val, test"):
        energon_shards(tmp_path, "prod")
    with pytest.raises(BadIndex):
        energon_rows(tmp_path, "x-9.tar")
    with pytest.raises(SourceError):
        EnergonDatasetWriter(tmp_path / "absent")


def test_a_key_that_stands_twice_in_an_energon_dataset(shards, tmp_path):
    """Refused with the key and both shards; nothing is left behind, and an old folder stays as it was."""
    shards[2].write_bytes(shards[0].read_bytes())
    with pytest.raises(NotRepresentable, match="x-0.tar, too") as caught:
        wds.write_indexes(shards, "energon")
    assert (caught.value.key, caught.value.url) == ("0-0", str(shards[2]))
    assert not (tmp_path / ".nv-meta").exists()
    path = tmp_path / "repeated_keys.tar"
    path.write_bytes(archives.by_hand([("1.jpg", b"1"), ("2.jpg", b"2"), ("1.jpg", b"3")]))
    wds.write_indexes(shards[:2], "energon")
    before = {name: (tmp_path / ".nv-meta" / name).read_bytes() for name in files_in(tmp_path / ".nv-meta")}
    with pytest.warns(UserWarning, match="come again"), pytest.raises(NotRepresentable, match="repeated_keys.tar, too"):
        wds.write_indexes([path], "energon")
    assert {name: (tmp_path / ".nv-meta" / name).read_bytes() for name in files_in(tmp_path / ".nv-meta")} == before


def test_splits_and_classes_of_ones_own(shards, tmp_path):
    """They are written as given; a class that is there already is kept where none is given."""
    for dataset in ({"sample_type": {"__class__": "X"}}, None):
        writer = EnergonDatasetWriter(tmp_path, split_parts={"train": ["x-0.tar"], "val": ["x-1.tar"]}, dataset=dataset)
        for path in shards[:2]:
            writer.add(path.name, index_shard(path))
        writer.close()
        writer.abort()
        assert yaml.safe_load((tmp_path / ".nv-meta" / "dataset.yaml").read_text()) == {
            "sample_type": {"__class__": "X"}
        }
    assert energon_shards(tmp_path, "val") == [{"url": str(shards[1]), "nsamples": 4}]
    with pytest.raises(UsageError, match="closed"):
        writer.add("x", index_shard(shards[2]))


def test_files_that_are_no_index_are_not_replaced(shards, tmp_path):
    """A JSON of one's own that has the sidecar's name stays, and nothing is written at all."""
    (tmp_path / "x-1.json").write_text('{"caption": "precious"}')
    with pytest.raises(AlreadyExists, match="no index"):
        wds.write_indexes(shards, ["dali", "files"])
    with pytest.raises(AlreadyExists):
        list(wds.WebDataset(str(shards[1]), observer=wds.IndexWhileReading("files")))
    assert files_in(tmp_path) == ["x-1.json"]
    (tmp_path / "x-1.json").unlink()
    for _ in range(2):
        wds.write_indexes(shards, ["dali", "files"])  # one's own are replaced


def test_two_shards_of_one_name_in_one_folder(tmp_path):
    """The second index would replace the first: refused."""
    urls = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        urls.append(zoo.build(tmp_path / folder, ["plain"])["plain"])
    (tmp_path / "c").mkdir()
    with pytest.raises(UsageError, match="one index"):
        wds.write_indexes(urls, "dali", folder=tmp_path / "c")
    assert files_in(tmp_path / "c") == []


def test_rules_that_others_do_not_have(shards, tmp_path):
    """Renamed members stand in no shard, and an energon index has no parts of one."""
    for formats, rules in (("dali", {"rename_files": str.upper}), ("energon", {"select_files": bool})):
        with pytest.raises(UsageError):
            wds.write_indexes(shards, formats, **rules)
        with pytest.raises(UsageError):
            list(wds.WebDataset(str(shards[0]), observer=wds.IndexWhileReading(formats), **rules))
    assert files_in(tmp_path) == []


def test_a_split_of_ones_own_stays(shards, tmp_path, caplog):
    """As long as it shares out the same shards."""
    wds.write_indexes(shards, "energon")
    path = tmp_path / ".nv-meta" / "split.yaml"
    mine = yaml.safe_dump({"split_parts": {"train": ["x-{0..1}.tar"], "val": ["x-2.tar"]}, "exclude": []})
    path.write_text(mine)
    wds.write_indexes(shards, "energon")
    assert path.read_text() == mine
    wds.write_indexes(shards[:2], "energon")
    assert yaml.safe_load(path.read_text())["split_parts"]["train"] == ["x-0.tar", "x-1.tar"]
    assert "replaced" in caplog.text


@pytest.mark.parametrize("name", ["pipe:touch ran", "../x.tar", "/etc/passwd", "http://h/x.tar", "a/../../x.tar"])
def test_a_split_that_names_what_is_elsewhere(tmp_path, monkeypatch, name):
    """A folder from the network names shards in itself alone, and never a command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / ".info.json").write_text(json.dumps({"shard_counts": {name: 1}}))
    (tmp_path / ".nv-meta" / "split.yaml").write_text(json.dumps({"split_parts": {"train": [name]}}))
    with pytest.raises(BadIndex, match="no shard in the folder"):
        energon_shards(".")


@pytest.mark.parametrize("counts", [{"x.tar": -1}, {"x.tar": True}, {"x.tar": "3"}, [], {}])
def test_counts_that_are_none(tmp_path, counts):
    """Negative, true, a text, no mapping, nothing; and a split of a milliard names."""
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / ".info.json").write_text(json.dumps({"shard_counts": counts}))
    (tmp_path / ".nv-meta" / "split.yaml").write_text(json.dumps({"split_parts": {"train": ["x.tar"]}}))
    with pytest.raises(BadIndex):
        energon_shards(tmp_path)
    (tmp_path / ".nv-meta" / "split.yaml").write_text(json.dumps({"split_parts": {"train": ["{0..999999999}{0..9}"]}}))
    with pytest.raises(BadIndex, match="more than"):
        energon_shards(tmp_path)


@pytest.mark.limited
@pytest.mark.parametrize(
    "script",
    [
        """DROP TABLE samples; CREATE VIEW samples AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n)
        SELECT 0 AS tar_file_id, i AS sample_index, 'k' AS sample_key FROM n""",
        """DROP TABLE sample_parts; CREATE VIEW sample_parts AS SELECT 0 AS tar_file_id, 0 AS sample_index,
        hex(randomblob(1000000000)) AS part_name, 0 AS content_byte_offset, 0 AS content_byte_size""",
        "UPDATE sample_parts SET content_byte_offset = -1",
        "UPDATE sample_parts SET content_byte_size = 'much'",
        "UPDATE sample_parts SET sample_index = 77",
    ],
    ids=["endless", "large", "negative", "text", "orphans"],
)
def test_tables_that_attack(shards, tmp_path, script):
    """Views run nothing, and what is no place is refused."""
    wds.write_indexes(shards, "energon")
    with contextlib.closing(sqlite3.connect(tmp_path / ".nv-meta" / "index.sqlite")) as tables:
        tables.executescript(script)
    with pytest.raises(BadIndex):
        energon_rows(tmp_path, "x-0.tar")
