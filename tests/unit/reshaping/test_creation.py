"""Samples of folders, tables and recipes."""

import contextlib
import csv
import io
import json
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webdataset.cli.main import main
from webdataset.core.errors import FormatError, NotFound, SampleError, SourceError, UnsafeSpec, UsageError
from webdataset.reshaping import creation
from webdataset.reshaping.creation import check_sources, choose_kind, create_samples
from webdataset.storage.open_url import open_url


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a few files in a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files/deep").mkdir(parents=True)
    for name in ("a-1.txt", "a.txt", "a.jpg", "deep/b.seg.png", "README", ".hidden.txt"):
        (tmp_path / "files" / name).write_bytes(name.encode())
    return tmp_path


def outline(*arguments, **options):
    """Key and payloads of the samples of a source."""
    return [(sample.key, sample.payloads()) for sample in create_samples(*arguments, **options)]


def test_kinds(here):
    """Folders and the endings of tables are recognised; everything else is a recipe."""
    assert [choose_kind(name) for name in ("files", "x.csv", "x.TSV", "s3://b/x.jsonl?v=1", "-", "x.txt")] == [
        "folder", "csv", "tsv", "jsonl", "recipe", "recipe",
    ]  # fmt: skip


def test_folder(here):
    """Files of one key stand together, also where their names do not sort so; others are left out."""
    assert outline("files") == [
        ("a", {"jpg": b"a.jpg", "txt": b"a.txt"}),
        ("a-1", {"txt": b"a-1.txt"}),
        ("deep/b", {"seg.png": b"deep/b.seg.png"}),
    ]


@pytest.mark.parametrize(("name", "delimiter"), [("t.csv", ","), ("t.tsv", "\t")])
def test_table(here, name, delimiter):
    """Columns are fields, @columns name files beside the table, __key__ the key; quotes are those of CSV."""
    rows = [["__key__", "txt", "@jpg"], ["k1", '"two\nlines, ""quoted"""', "a.jpg"], ["k2", "", ""]]
    (here / "files" / name).write_text("\n".join(delimiter.join(row) for row in rows) + "\n")
    assert outline(f"files/{name}") == [("k1", {"txt": b'two\nlines, "quoted"', "jpg": b"a.jpg"}), ("k2", {"txt": b""})]


def test_table_without_keys_is_numbered(here):
    """Rows without a key get one that sorts; --base says where files are."""
    (here / "t.csv").write_text("cls,@txt\n3,a.txt\n4,a-1.txt\n")
    assert outline("t.csv", base="files") == [
        ("000000000", {"cls": b"3", "txt": b"a.txt"}),
        ("000000001", {"cls": b"4", "txt": b"a-1.txt"}),
    ]


def test_json_lines(here):
    """Texts are written as they are, other values as JSON, null not at all."""
    lines = [{"__key__": "k", "txt": "é", "json": {"a": [1]}, "cls": 3, "no": None}, {"@txt": "files/a.txt"}]
    (here / "t.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    assert outline("t.jsonl") == [
        ("k", {"txt": "é".encode(), "json": b'{"a": [1]}', "cls": b"3"}),
        ("000000001", {"txt": b"a.txt"}),
    ]


def test_recipe_of_tarp(here):
    """The recipe that tarp's documentation has: files, texts and commands, in the order of the lines."""
    (here / "r.txt").write_text(
        "a.txt /dev/null\na.more.txt text:more\n\nb.txt pipe:echo b\nb.more.txt  text:two words \n"
    )
    assert outline("r.txt") == [
        ("a", {"txt": b"", "more.txt": b"more"}),
        ("b", {"txt": b"b\n", "more.txt": b"two words "}),
    ]


@pytest.mark.parametrize(
    ("name", "text", "error", "said"),
    [
        ("r", "a.txt\n", FormatError, "line 1 of the recipe has no source"),
        ("r", "README files/README\n", SampleError, "belongs to no sample"),
        ("r", "a.txt text:1\na.TXT text:2\n", SampleError, "twice in the sample"),
        ("r", "a.txt none\n", NotFound, "none"),
        ("t.csv", "", FormatError, "table is empty"),
        ("t.csv", "a,a\n1,2\n", FormatError, "names a column twice"),
        ("t.csv", "a,b\n1\n", FormatError, "line 2 has 1 columns"),
        ("t.csv", 'a,b\n1,"2\n', FormatError, "line 2"),
        ("t.csv", "__key__,a\nk,1\nk,2\n", SampleError, "twice in a row, in line 3"),
        ("t.csv", "__key__,a\nk.x,1\n", SampleError, "cannot be a field of the key"),
        ("t.csv", "__key__\nk\n", FormatError, "has no field"),
        ("t.jsonl", "[1]\n", FormatError, "no JSON object"),
        ("t.jsonl", "{\n", FormatError, "line 1 is no JSON"),
    ],
)
def test_errors_name_the_line(here, name, text, error, said):
    """What makes no sense is an error that says where."""
    (here / name).write_text(text)
    with pytest.raises(error, match=said):
        outline(name)


def test_recipe_from_the_network_names_neither_files_nor_commands():
    """A recipe that came from elsewhere cannot read this machine's files into a shard, nor run anything."""
    for place in ("pipe:id", "/etc/hostname"):
        with open_url("memory://recipes/r.txt", "wb") as stream:
            stream.write(f"a.txt {place}\n".encode())
        with pytest.raises(UnsafeSpec):
            outline("memory://recipes/r.txt")


@pytest.mark.parametrize("place", ["pipe:echo made", "PIPE:echo made", "-"])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl"])
def test_cells_of_tables_are_no_commands(here, name, place, monkeypatch):
    """A table that is data runs nothing and reads no standard input; under full trust its commands run."""
    line = json.dumps({"@txt": place}) if name == "t.jsonl" else f"@txt\n{place}"
    (here / name).write_text(line + "\n")
    with pytest.raises(FormatError, match=r"line \d names .* Write a recipe .* WDS_TRUST=full"):
        outline(name)
    monkeypatch.setenv("WDS_TRUST", "full")
    if place.endswith("pipe:echo made"):
        assert outline(name) == [("000000000", {"txt": b"made\n"})]


def test_cells_of_tables_name_files_anywhere(here):
    """Absolute paths, paths with dots, urls and texts in a table of the user's own are read."""
    with open_url("memory://cells/a.txt", "wb") as stream:
        stream.write(b"far")
    (here / "pipe:echo made").write_bytes(b"a file")
    (here / "-").write_bytes(b"a file")
    places = (
        here / "files/a.txt",
        "files/deep/../a.txt",
        "memory://cells/a.txt",
        "text:pipe:x",
        "./pipe:echo made",
        "./-",
    )
    (here / "t.csv").write_text("@txt\n" + "".join(f"{place}\n" for place in places))
    assert [fields["txt"] for _, fields in outline("t.csv")] == [
        b"a.txt", b"a.txt", b"far", b"pipe:x", b"a file", b"a file",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"), [("t.csv", "txt\nx\n"), ("t.jsonl", '{"txt": "x"}'), ("r", "000000000.txt text:x\n")]
)
def test_byte_order_mark(here, name, text):
    """The mark that spreadsheets write in front of a text is no part of it; a second one is."""
    (here / name).write_text("\ufeff" + text, encoding="utf-8")
    assert outline(name) == [("000000000", {"txt": b"x"})]
    (here / "b.csv").write_text("\ufeff\ufefftxt\n\ufeffx\n", encoding="utf-8")
    assert outline("b.csv") == [("000000000", {"\ufefftxt": b"\xef\xbb\xbfx"})]


def test_large_cells(here, monkeypatch):
    """Cells of more than 131072 characters are read, up to a bound; the limit of the process stays as it was."""
    before = csv.field_size_limit()
    (here / "t.csv").write_text(f"txt\n{'x' * 200_000}\n")
    samples = create_samples("t.csv")
    assert len(next(samples).payloads()["txt"]) == 200_000
    assert csv.field_size_limit() == before
    monkeypatch.setattr(creation, "_MOST_CELL", 100_000)
    with pytest.raises(FormatError, match="field limit"):
        outline("t.csv")
    assert csv.field_size_limit() == before


def test_standard_input_once():
    """Standard input cannot be two sources."""
    with pytest.raises(UsageError, match="only once"):
        check_sources(["-", "-"])


def test_shards_are_no_sources(tmp_path):
    """What makes shards of shards is named; a folder may be called so."""
    with pytest.raises(UsageError, match="'wds reshard' make shards of shards") as caught:
        check_sources(["photos", "train-000.tar.gz"])
    assert caught.value.url == "train-000.tar.gz"
    (tmp_path / "photos.tar").mkdir()
    check_sources([str(tmp_path / "photos.tar")])


@pytest.mark.parametrize(
    "row", ['{"txt": "a\\ud83d"}', '{"txt": "\\udc80"}', '{"__key__": "\\uDC80", "txt": "a"}', '{"\\udc80": "a"}']
)
def test_half_of_a_surrogate_pair(here, row):
    """Half of a character is an error that names line and column: as text it has no bytes, and none are made up."""
    (here / "x.jsonl").write_text('{"txt": "\\ud83d\\ude00"}\n' + row)
    with pytest.raises(FormatError, match="line 2 has one half of a surrogate pair"):
        outline("x.jsonl", "jsonl")


def test_half_of_a_surrogate_pair_within_json(here):
    """Within a JSON value it stays, as the escape that it was."""
    (here / "x.jsonl").write_text('{"json": {"a": "\\udc80", "b": "\\ud83d\\ude00"}}')
    [(_, fields)] = outline("x.jsonl", "jsonl")
    assert json.loads(fields["json"]) == {"a": "\udc80", "b": "\U0001f600"}


def test_file_that_changes_while_it_is_read(here, monkeypatch):
    """A file that is written to meanwhile is an error: its bytes would be of two versions."""
    (here / "files" / "grows.txt").write_bytes(b"a" * 100)
    identify = creation.stream_identity

    def grow(stream):
        found = identify(stream)
        if found[0] == 100:
            with (here / "files" / "grows.txt").open("ab") as file:
                file.write(b"more")
        return found

    monkeypatch.setattr(creation, "stream_identity", grow)
    with pytest.raises(SourceError, match="changed while it was read"):
        outline("files")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"txt": "a", "txt": "b"}', "'txt' stands twice"),
        ('{"json": {"a": 1, "b": [{"c": 1, "c": 2}]}}', "'c' stands twice"),
        ('{"__key__": null, "txt": "a"}', "not null"),
        ('{"__key__": true, "txt": "a"}', "not true"),
        ('{"__key__": ["a"], "txt": "a"}', "not ..a"),
    ],
)
def test_json_that_would_lose_a_value(here, line, message):
    """A name that stands twice, and a key that is no key, are errors with the number of the line."""
    (here / "t.jsonl").write_text('{"txt": "x"}\n' + line + "\n")
    with pytest.raises(FormatError, match=f"line 2.*{message}"):
        outline("t.jsonl")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "__key__,txt\na,1\nb,2\na,3\n"),
        ("t.jsonl", '{"__key__":"a","txt":"1"}\n{"__key__":"b","txt":"2"}\n{"__key__":"a","txt":"3"}\n'),
        ("recipe", "a.txt text:1\nb.txt text:2\na.txt text:3\n"),
    ],
)
def test_keys_that_come_again_are_told(here, name, content, capsys):
    """Samples of one key that stand apart are written, counted and told; not where they get new keys."""
    (here / name).write_text(content)
    assert main(["create", "-o", "o.tar", name]) == 0
    assert "1 samples have the key of an earlier one: a;" in capsys.readouterr().err
    assert main(["create", "--rekey", "-o", "new.tar", name]) == 0
    assert "earlier" not in capsys.readouterr().err


def test_keys_of_two_folders(here, capsys):
    """The same key in two folders is told, too; and a folder without samples."""
    for folder in ("more", "empty"):
        (here / folder).mkdir()
    (here / "more" / "a-1.txt").write_text("another")
    (here / "more" / "z.txt").write_text("z")
    assert main(["create", "-o", "o.tar", "files", "more", "empty"]) == 0
    told = capsys.readouterr().err
    assert "1 samples have the key of an earlier one: a-1;" in told
    assert "no samples are in empty" in told
    assert main(["convert", "--from", "folder", "--to", "shards", "-o", "p.tar", "files", "more"]) == 0
    assert "1 samples have the key of an earlier one: a-1;" in capsys.readouterr().err


@given(
    st.dictionaries(
        st.from_regex(r"[a-c]{1,2}(/[a-c]{1,2})?\.(txt|seg\.png|TXT)|[a-c]|\.[a-c]\.txt", fullmatch=True),
        st.binary(max_size=20),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=60, deadline=None)
def test_every_file_of_a_random_folder_is_there_or_told(files):
    """Each file of a folder is a member of the shard with its bytes, or counted as left out, or an error."""
    with tempfile.TemporaryDirectory() as name:
        folder, told = Path(name, "files"), io.StringIO()
        for path, content in files.items():
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                if not (folder / path).is_dir():
                    (folder / path).write_bytes(content)
        there = {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
        with contextlib.redirect_stderr(told):
            status = main(["create", "-o", f"{name}/o.tar", str(folder)])
        if status:
            assert "stands twice" in told.getvalue()
            assert not Path(name, "o.tar").exists()
            return
        with tarfile.open(f"{name}/o.tar") as archive:
            written = {each.name: archive.extractfile(each).read() for each in archive.getmembers()}
        assert written.items() <= there.items()
        left_out = len(there) - len(written)
        assert f"left out {left_out} files of no sample" in told.getvalue() or not left_out


@pytest.mark.parametrize(
    ("names", "samples", "warns"),
    [
        ([f"cat.{number}.jpg" for number in range(5)], 1, True),
        ([f"cat.{number}.{ending}" for number in range(5) for ending in ("jpg", "txt")], 1, True),
        ([f"{letter}.{letter * 3}.jpg" for letter in "abc"], 3, False),
        ([f"cat.{chr(97 + number)}.jpg" for number in range(14)], 1, True),
        (["cat.json", *(f"cat.{number}.jpg" for number in range(5))], 1, False),
        (["cat.rgb.png", "cat.seg.png", "cat.depth.png"], 1, False),
        ([f"cat_{number}.jpg" for number in range(5)], 5, False),
    ],
)
def test_files_that_differ_after_the_first_dot_warn(names, samples, warns, tmp_path, recwarn):
    """Names as ``cat.0.jpg`` become one sample, which is seldom meant; documents and several views are."""
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    assert len(list(create_samples(str(tmp_path)))) == samples
    told = [str(each.message) for each in recwarn]
    assert len(told) == warns
    assert not warns or "become fields of one sample, 'cat', since a key ends at the first dot" in told[0]
