"""Targets of shards: sizes, urls that are there, and files that appear whole."""

import json

import click
import pytest

from webdataset.cli import exit_status
from webdataset.cli.main import main
from webdataset.cli.outputs import SizeType
from webdataset.storage.open_url import open_url
from webdataset.testing import archives


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("500M", 500_000_000), ("1.5GB", 1_500_000_000), ("2GiB", 2 << 30), ("10 kb", 10_000), ("1ki", 1024)],
)
def test_sizes(text, size):
    """Thousands with a letter, 1024s with an i."""
    assert SizeType().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "many", "0", "-3", "3X", "1e9"])
def test_what_is_no_size(text):
    """Anything else is an error of usage."""
    with pytest.raises(click.BadParameter):
        SizeType().convert(text, None, None)


def test_url_that_is_there_is_not_replaced(tmp_path, capsys):
    """Objects of stores, too, are replaced by --force alone."""
    (tmp_path / "s.tar").write_bytes(archives.by_hand([("a.txt", b"1")]))
    (tmp_path / "t.tar").write_bytes(archives.by_hand([("b.txt", b"2")]))
    target = "memory://command/out.tar"
    assert main(["cat", "-o", target, str(tmp_path / "s.tar")]) == exit_status.DONE
    assert main(["cat", "-o", target, str(tmp_path / "t.tar")]) == exit_status.FAILED
    assert "--force" in capsys.readouterr().err
    with open_url(target) as stream:
        assert stream.read(5) == b"a.txt"
    assert main(["cat", "--force", "-o", target, str(tmp_path / "t.tar")]) == exit_status.DONE
    with open_url(target) as stream:
        assert stream.read(5) == b"b.txt"


def test_target_that_is_missing_is_asked_for(tmp_path, capsys):
    """Without -o, the message says what to write."""
    (tmp_path / "s.tar").write_bytes(archives.by_hand([("a.txt", b"1")]))
    assert main(["sort", str(tmp_path / "s.tar")]) == exit_status.WRONG_USE
    assert "-o FILE" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["out.zip", "OUT-%03d.Parquet", "memory://command/other.npz?version=1"])
def test_names_of_other_formats_are_refused(name, tmp_path, capsys, monkeypatch):
    """No program opens a tar under such a name; a command may convert the tar that it receives."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.tar").write_bytes(archives.by_hand([("a.txt", b"1")]))
    for command in ("cat", "select", "convert"):
        source = "s.tar" if command != "convert" else "folder"
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / "a.txt").write_text("1")
        more = ["--to", "shards"] if command == "convert" else []
        assert main([command, "-o", name, *more, source]) == exit_status.WRONG_USE
        assert "shards are tar files, not ." in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"s.tar", "folder"}
    assert main(["cat", "-o", "pipe:cat > piped.zip", "s.tar"]) == exit_status.DONE
    assert (tmp_path / "piped.zip").read_bytes()[:5] == b"a.txt"


def test_cat_counts_samples(tmp_path, capsys):
    """Whole shards that are joined are told as those of other commands are: name and samples, in a dry run too."""
    names = ("a.txt", "a.cls", "__meta__", "readme", "b.txt")
    (tmp_path / "s.tar").write_bytes(archives.by_hand([(name, b"1") for name in names]))
    (tmp_path / "t.tar").write_bytes(archives.by_hand([("c.txt", b"1")]))
    sources = [str(tmp_path / "s.tar"), str(tmp_path / "t.tar")]
    target = str(tmp_path / "out.tar")
    told = {"shard": target, "samples": 3}
    for options in (["--dry-run"], []):
        assert main(["cat", "--json", *options, "-o", target, *sources]) == exit_status.DONE
        assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [told]
    assert main(["cat", "-n", "-o", str(tmp_path / "new.tar"), *sources]) == exit_status.DONE
    assert capsys.readouterr().err == f"wds: would write {tmp_path}/new.tar (3 samples)\n"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("select --keep jpg -o o.tar", "left out 2 samples without any of the fields that stay; the first is b"),
        ("select --drop t* -o o.tar", "left out 2 samples without any of the fields that stay; the first is b"),
        (
            "convert --columns jpg -o o.parquet",
            "left out 2 samples without any of the fields that stay; the first is b",
        ),
        ("convert --columns jpg --to folder -o o", "left out 2 samples without any of the fields that stay"),
        ("convert --columns txt --columns nope -o o.parquet", "no sample has a field nope"),
        ("convert --rename nope=zip -o o.parquet", "no sample has a field zip"),
    ],
)
def test_what_a_choice_of_fields_leaves_out_is_told(command, told, tmp_path, monkeypatch, capsys):
    """Samples that have none of the fields are counted, and fields that no sample has are named."""
    if "parquet" in command:
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    names = ("a.jpg", "a.txt", "b.txt", "c.txt")
    (tmp_path / "s.tar").write_bytes(archives.by_hand([(name, b"1") for name in names]))
    assert main([*command.split(), "s.tar"]) == exit_status.DONE
    assert f"wds: warning: {told}" in capsys.readouterr().err


@pytest.mark.parametrize("names", [("a=txt", "b=txt"), ("a=txt", "a=jpg"), ("a",), ("=a",)])
def test_names_that_are_given_twice(names, tmp_path, capsys):
    """A field that would get two names, or a name that two fields would get, is an error: one would be lost."""
    (tmp_path / "s.tar").write_bytes(archives.by_hand([("a.jpg", b"1"), ("a.txt", b"2")]))
    options = [option for name in names for option in ("--rename", name)]
    arguments = ["-o", str(tmp_path / "o.tar"), str(tmp_path / "s.tar")]
    assert main(["select", *options, *arguments]) == exit_status.WRONG_USE
    assert "each name once" in capsys.readouterr().err
