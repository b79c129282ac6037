"""Columns files: values come back as they were, files of other programs stay, odd shards are refused."""

import io
import json
import sys
import tarfile
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds
from support.command import json_lines, run_wds
from support.range_server import RangeServer
from support.where_rows import key_of, write_rows
from webdataset.cli.schema import find_schemas
from webdataset.core.errors import AlreadyExists, BadIndex, MissingExtra, NotRepresentable, SourceError, UsageError
from webdataset.index.entries import SampleEntry, ShardIndex
from webdataset.index.formats import columns
from webdataset.inspection.expression import Expression
from webdataset.samples.sample_reader import Reading
from webdataset.testing.archives import archive, member

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.integers(-(2**53), 2**53), st.just("\ud800")
)
values = st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(st.text(max_size=3), scalars, max_size=2))


def index_of(count):
    """Return the index of a shard of samples without fields."""
    entries = [SampleEntry(key_of(number), 1024 * number, ()) for number in range(count)]
    return ShardIndex("s.tar", None, 1024 * count, entries)


def write_table(path, shard="s.tar", found=None):
    """Write a shard of three samples with their columns, and return the file."""
    write_rows(path / shard, [{"a": 1, "lang": "de"}, None, {"a": 2.5, "lang": ["x"]}] if found is None else found)
    (written,) = wds.write_columns(str(path / shard), "json.a, json.lang, size('bin')")
    return Path(written.path)


@settings(deadline=None)
@given(st.one_of(st.lists(values, max_size=6), st.lists(st.one_of(st.integers(), st.floats()), max_size=6),
                 st.lists(st.integers(-5, 5) | st.sampled_from([0.5, 1.25, None]), max_size=6)))  # fmt: skip
def test_values_come_back_as_they_were(found):
    """Each value has its type again: bool, int, float and text, None, and what JSON nests."""
    made = columns._make_array(pa, found)
    assert list(map(repr, columns._list_values(made[1], made[0]))) == list(map(repr, found))


def test_plain_values_are_columns_for_other_programs(tmp_path):
    """Numbers, texts and places are columns of their own types, in the order of the shard."""
    path = write_table(tmp_path, found=[{"a": 1, "lang": "de"}, {"a": None}, {"a": 3, "lang": "en"}])
    table = parquet.read_table(path)
    assert table.schema.names[:5] == ["key", "wds_ordinal", "wds_offset", "wds_size", "json.a"]
    assert table.column("json.a").to_pylist() == [1, None, 3]
    assert [str(table.schema.field(name).type) for name in ("json.a", "json.lang")] == ["int64", "string"]
    content = (tmp_path / "s.tar").read_bytes()
    for row in table.to_pylist():
        payloads = {part["name"]: content[part["offset"] :][: part["size"]] for part in row["wds_fields"]}
        assert json.loads(payloads["json"])["a"] == row["json.a"]
        with tarfile.open(fileobj=io.BytesIO(content[row["wds_offset"] :])) as shard:
            assert shard.next().name.startswith(row["key"])
    starts, sizes = (table.column(name).to_pylist() for name in ("wds_offset", "wds_size"))
    assert [start + size for start, size in zip(starts, sizes, strict=True)][:-1] == starts[1:]


def test_names_that_do_not_start_with_the_key_and_long_names_come_back(tmp_path):
    """The places of all members are those of an index, capitals and long names included."""
    with tarfile.open(tmp_path / "s.tar", "w", format=tarfile.PAX_FORMAT) as shard:
        folder = tarfile.TarInfo("d")
        folder.type = tarfile.DIRTYPE
        shard.addfile(folder)
        for name in ("d/a.JPG", "d/a.json", "d/" + "x" * 150 + ".txt", "d/ü.seg.png"):
            member_ = tarfile.TarInfo(name)
            member_.size = 0
            shard.addfile(member_)
    (written,) = wds.write_columns(str(tmp_path / "s.tar"), "size()")
    table = columns.ColumnTable.load(pa.OSFile(written.path), written.path)
    assert table.entries() == wds.index_shard(tmp_path / "s.tar").entries
    where = "has('seg.png') or has('txt')"
    assert [s["__key__"] for s in wds.WebDataset(str(tmp_path / "s.tar"), where=where)] == ["d/" + "x" * 150, "d/ü"]


def test_parquet_of_another_program_is_never_replaced(tmp_path):
    """Beside a foreign X.parquet ours is X.wds.parquet, which is read; the foreign one is left as it is."""
    foreign = tmp_path / "s.parquet"
    parquet.write_table(pa.table({"key": ["0000"], "width": [5]}), foreign)
    before = foreign.read_bytes()
    path = write_table(tmp_path)
    assert path.name == "s.wds.parquet"
    assert foreign.read_bytes() == before
    with RangeServer(tmp_path) as server:
        found = wds.WebDataset(f"{server.root}/s.tar", where="json.a == 1", shardshuffle=False)
        assert [sample["__key__"] for sample in found] == ["0000"]
        assert [request.path for request in server.requests][:2] == ["/s.parquet", "/s.wds.parquet"]
        assert server.requests[2].size < 2048
    assert write_table(tmp_path) == path
    foreign.write_bytes(b"not even Parquet")
    path.write_bytes(b"nor this")
    with pytest.raises(AlreadyExists):
        write_table(tmp_path)
    assert foreign.read_bytes() == b"not even Parquet"


def test_the_folder_is_made(tmp_path):
    """A folder of columns files that is not there is made; one that cannot be is told before a shard is read."""
    write_rows(tmp_path / "s.tar", [{"a": 1}])
    (written,) = wds.write_columns(str(tmp_path / "s.tar"), "json.a", folder=tmp_path / "new/deep")
    assert Path(written.path) == tmp_path / "new/deep/s.parquet"
    assert parquet.read_table(written.path).num_rows == 1
    with pytest.raises(SourceError, match="cannot make the folder"):
        wds.write_columns(str(tmp_path / "none.tar"), "json.a", folder=tmp_path / "s.tar/x")


def test_a_damaged_file_does_not_hide_the_one_that_is_written_again(tmp_path):
    """What cannot be told from a file of another program stays; the new file has the other name, and is read."""
    path = write_table(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="write it again"):
        assert len(list(wds.WebDataset(str(tmp_path / "s.tar"), where="json.a == 1"))) == 1
    assert write_table(tmp_path).name == "s.wds.parquet"
    with RangeServer(tmp_path) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        for url in (str(tmp_path / "s.tar"), f"{server.root}/s.tar"):
            found = wds.WebDataset(url, where="json.a == 1", shardshuffle=False)
            assert [sample["__key__"] for sample in found] == ["0000"]


@pytest.mark.parametrize(("make", "said"), [
    (lambda: __import__("gzip").compress(archive(member(b"a.txt", b"x"))), "compressed"),
    (lambda: archive(member(b"a.txt", b"x")) + archive(member(b"b.txt", b"x")), "several archives"),
    (lambda: archive(member(b"a.txt", b"x"), member(b"\xff.txt", b"x")), "UTF-8"),
])  # fmt: skip
def test_shards_that_cannot_be_described_are_refused(make, said, tmp_path):
    """No file is written for a shard whose samples cannot be read where it would say."""
    (tmp_path / "s.tar").write_bytes(make())
    with pytest.raises(NotRepresentable, match=said):
        wds.write_columns(str(tmp_path / "s.tar"), "txt")
    assert not list(tmp_path.glob("*.parquet"))


def test_an_empty_shard_has_an_empty_file(tmp_path):
    """A shard without samples is described, and read as such."""
    path = write_table(tmp_path, found=[])
    assert parquet.read_table(path).num_rows == 0
    assert list(wds.WebDataset(str(tmp_path / "s.tar"), where="json.a", empty_check=False)) == []


def test_arguments_that_make_no_sense_are_refused(tmp_path, monkeypatch):
    """Columns of bytes, rules that choose members, remote shards without a folder, and two shards of one name."""
    write_rows(tmp_path / "s.tar", [{"a": 1}])
    shard = str(tmp_path / "s.tar")
    for call in (
        lambda: wds.write_columns(shard, "bin"),
        lambda: wds.write_columns(shard, []),
        lambda: wds.write_columns(shard, "json.a", suffixes=["json"]),
        lambda: wds.write_columns(shard, "json.a", reading=Reading(where=Expression("json.a == 1"))),
        lambda: wds.write_columns("http://127.0.0.1:1/s.tar", "json.a"),
        lambda: wds.write_columns([shard, shard], "json.a"),
    ):
        with pytest.raises(UsageError):
            call()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r"\[parquet\]"):
        wds.write_columns(shard, "json.a")


def test_a_damaged_file_is_bad(tmp_path):
    """What is no Parquet, says another number of rows, or has another checksum raises BadIndex with its path."""
    path = write_table(tmp_path)
    good = path.read_bytes()
    assert columns.ColumnTable.load(pa.BufferReader(good), "u").read(["json.a", "json.lang"]) == {
        "json.a": [1, None, 2.5], "json.lang": ["de", None, ["x"]],
    }  # fmt: skip
    place = good.index(columns.META_KEY) + len(columns.META_KEY)
    for broken in (good[:-9], good[: len(good) // 2], b"", good.replace(b'"samples":3', b'"samples":4'),
                   good[:place] + good[place:].replace(b'"json"', b'"jsom"', 1)):  # fmt: skip
        with pytest.raises(BadIndex) as found:
            columns.ColumnTable.load(pa.BufferReader(broken), "u")
        assert found.value.url == "u"
    with pytest.raises(BadIndex, match="lacks"):
        columns.ColumnTable.load(pa.BufferReader(good), "u").read(["json.b"])


def test_large_files_are_read_by_ranges(tmp_path, monkeypatch):
    """Of a file with a long text in each row, the columns that an expression reads are enough."""
    import random

    from webdataset.index import column_selection

    draws = random.Random(1)
    rows = [{"a": number, "text": draws.randbytes(4000).hex()} for number in range(60)]
    write_rows(tmp_path / "s.tar", rows)
    wds.write_columns(str(tmp_path / "s.tar"), "json.a, json.text")
    monkeypatch.setattr(column_selection, "_WHOLE_BYTES", 1 << 10)
    monkeypatch.setattr(column_selection, "_PIECE", 1 << 10)
    with RangeServer(tmp_path) as server:
        found = wds.WebDataset(f"{server.root}/s.tar", where="json.a == 7", shardshuffle=False)
        assert [sample["__key__"] for sample in found] == [key_of(7)]
        assert any(request.start > 0 for request in server.requests if request.path == "/s.parquet")


def test_the_command_writes_them(tmp_path):
    """`wds columns` writes a file for each shard and says so; the schema describes its lines."""
    jsonschema = pytest.importorskip("jsonschema")
    for name in ("a", "b"):
        write_rows(tmp_path / f"{name}.tar", [{"a": 1}, {"a": 2}, None])
    lines = json_lines(run_wds("columns", "--json", "json.a, size('bin')", str(tmp_path)))
    validator = jsonschema.Draft202012Validator(find_schemas()["columns"])
    for line, name in zip(lines, ("a", "b"), strict=True):
        validator.validate(line)
        assert (line["file"], line["samples"], line["unclear"]) == (str(tmp_path / f"{name}.parquet"), 3, 0)
        assert line["bytes"] == (tmp_path / f"{name}.parquet").stat().st_size
    assert b"a.parquet: 3 samples" in run_wds("columns", "json.a", str(tmp_path / "a.tar")).stdout
    assert b"no list of expressions" in run_wds("columns", "json.a json.b", str(tmp_path), status=2).stderr
