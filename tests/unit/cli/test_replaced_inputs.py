"""Outputs that would replace an input that is still to be read: refused before anything is written."""

from pathlib import Path

import pytest

import webdataset as wds
from webdataset.cli import exit_status
from webdataset.cli.main import main
from webdataset.testing import archives

SHARDS, SAMPLES = 4, 5
STREAMS = [
    "cat -c 2 -F -o in-%02d.tar",
    "split -c 2 -F -o in-%02d.tar",
    "select -c 2 -F -o in-%02d.tar",
    "reshard -N 9 -F -o in-%02d.tar",
    "shuffle --seed 1 -c 2 -F -o in-%02d.tar",
    "sort -c 2 -F -o in-%02d.tar",
    "proc true -c 2 -F -o in-%02d.tar",
    "map -c 2 -F -o in-%02d.tar os:fspath",
    "tarp split -c 2 -F -o in-%02d.tar",
    "convert -c 2 -F --to parquet -o in-%02d.tar",
    "convert -c 2 -F --to arrow -o in-%02d.tar",
    "recompress --to gz -F -o .",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with shards, in which the test runs."""
    for shard in range(SHARDS):
        members = [(f"k{shard}{sample}.txt", b"%d" % sample) for sample in range(SAMPLES)]
        (tmp_path / f"in-{shard:02}.tar").write_bytes(archives.by_hand(members))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _keys(*names: str) -> list[str]:
    return [sample["__key__"] for sample in wds.WebDataset(list(names), shardshuffle=False)]


def _refuse(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _contents(folder)
    assert main(arguments) == exit_status.WRONG_USE
    assert "would replace an input" in capsys.readouterr().err
    assert _contents(folder) == before


def _order(command: str) -> list[str]:
    """Put the inputs, the last first, where the command takes them."""
    inputs = [f"in-{shard:02}.tar" for shard in reversed(range(SHARDS))]
    return [*command.split(), *inputs]


@pytest.mark.parametrize("command", STREAMS[:-1])
def test_pattern_over_the_inputs(command, here, capsys):
    """Numbered outputs whose names are those of inputs are refused, by every command that writes several."""
    if "parquet" in command or "arrow" in command:
        pytest.importorskip("pyarrow")
    _refuse(_order(command), here, capsys)


@pytest.mark.parametrize("spelling", ["./in-%02d.tar", "file:in-%02d.tar", "sub/../in-%02d.tar", "link/in-%02d.tar"])
def test_other_spellings(spelling, here, capsys):
    """Whatever the spelling is, the file is the same."""
    (here / "sub").mkdir()
    (here / "link").symlink_to(here)
    _refuse(["split", "-c", "2", "-F", "-o", spelling, "in-01.tar", "in-00.tar"], here, capsys)


def test_links_to_the_inputs(here, capsys):
    """An output that is a symbolic link to an input replaces that input."""
    (here / "out-00.tar").symlink_to(here / "in-03.tar")
    _refuse(["split", "-c", "2", "-F", "-o", "out-%02d.tar", "in-00.tar", "in-03.tar"], here, capsys)


def test_hard_links_to_the_inputs(here):
    """An output that is another hard link to an input is replaced, and the input stays as it is."""
    (here / "out-00.tar").hardlink_to(here / "in-03.tar")
    before = (here / "in-03.tar").read_bytes()
    assert main(["split", "-c", "9", "-F", "-o", "out-%02d.tar", "in-00.tar", "in-03.tar"]) == exit_status.DONE
    assert (here / "in-03.tar").read_bytes() == before
    assert sorted(_keys("out-00.tar", "out-01.tar")) == sorted(_keys("in-00.tar", "in-03.tar"))


def test_inputs_that_are_links(here, capsys):
    """An input that is a symbolic link is the file that it leads to."""
    (here / "x.tar").symlink_to("in-03.tar")
    _refuse(["split", "-c", "2", "-F", "-o", "in-%02d.tar", "x.tar"], here, capsys)


def test_number_in_a_folder_name(here, capsys):
    """The number of a pattern may be that of a folder."""
    for shard in range(2):
        (here / f"d{shard}").mkdir()
        (here / f"in-{shard:02}.tar").rename(here / f"d{shard}" / "x.tar")
    arguments = ["split", "-c", "2", "-F", "-o", "d%d/x.tar", "d1/x.tar", "d0/x.tar"]
    assert main(arguments) == exit_status.WRONG_USE
    assert "would replace an input" in capsys.readouterr().err


def test_join_and_mix(here, capsys):
    """Commands that take datasets in other ways than a list of shards, too."""
    (here / "s.yaml").write_text('version: 1\nsplits:\n  train:\n    mix: concat\n    sources: ["in-{00..01}.tar"]\n')
    _refuse(["mix", "s.yaml", "-c", "2", "-F", "-o", "in-%02d.tar"], here, capsys)
    join = ["join", "--missing", "keep", "-c", "2", "-F", "-o", "in-%02d.tar", "in-01.tar", "in-00.tar"]
    _refuse(join, here, capsys)


def test_store(here, capsys):
    """Objects of a store are known by their urls."""
    for shard in range(2):
        url = f"memory://replaced/in-{shard:02}.tar"
        assert main(["cat", "-F", "-o", url, f"in-{shard:02}.tar"]) == exit_status.DONE
    urls = [f"memory://replaced/in-{shard:02}.tar" for shard in (1, 0)]
    _refuse(["split", "-c", "2", "-F", "-o", "memory://replaced/in-%02d.tar", *urls], here, capsys)


def test_sources_of_create_and_convert(here, capsys):
    """Files in a folder, and tables, are inputs too."""
    (here / "files").mkdir()
    for number in range(3):
        (here / "files" / f"a{number}.txt").write_text("x")
    (here / "files" / "z-00.tar").write_text("the field tar of z-00")
    before = _contents(here / "files")
    for command in ("create", "convert --from folder --to shards"):
        _refuse([*command.split(), "-F", "-c", "1", "-o", "files/z-%02d.tar", "files"], here, capsys)
    assert _contents(here / "files") == before
    (here / "t-00.csv").write_text("txt\na\nb\n")
    (here / "t-01.csv").write_text("txt\nc\nd\n")
    _refuse(["create", "-F", "-c", "1", "-o", "t-%02d.csv", "t-01.csv", "t-00.csv"], here, capsys)


def test_recompression_over_another_input(here, capsys):
    """The copy of one shard never takes the place of another shard, nor the place of another copy, by a link."""
    (here / "sub").mkdir()
    (here / "sub" / "x.tar").symlink_to(here / "in-03.tar")
    (here / "in-02.tar").rename(here / "x.tgz")
    _refuse(["recompress", "--to", "none", "-F", "-o", "sub", "x.tgz", "in-03.tar"], here, capsys)
    (here / "sub" / "in-00.tar").symlink_to(here / "sub" / "in-01.tar")
    assert main(["recompress", "--to", "none", "-F", "-o", "sub", "in-00.tar", "in-01.tar"]) == exit_status.WRONG_USE
    assert "the same" in capsys.readouterr().err


def test_repaired_copy_over_an_input(here, capsys):
    """A repaired copy never takes the place of a shard, by a link in its folder."""
    (here / "sub").mkdir()
    (here / "sub" / "in-00.tar").symlink_to(here / "in-00.tar")
    (here / "in-00.tar").write_bytes((here / "in-00.tar").read_bytes()[:-700])
    _refuse(["check", "--fix", "sub", "--force", "in-00.tar"], here, capsys)


def test_hugging_face_folder_around_an_input(here, capsys):
    """A dataset folder that is replaced with all that is in it must not hold an input."""
    pytest.importorskip("pyarrow")
    assert main(["convert", "in-00.tar", "-o", "hf", "--to", "hf"]) == exit_status.DONE
    (here / "in-01.tar").rename(here / "hf" / "in-01.tar")
    arguments = ["convert", "hf/in-01.tar", "-F", "-o", "hf", "--to", "hf"]
    assert main(arguments) == exit_status.WRONG_USE
    assert "would replace an input" in capsys.readouterr().err
    assert (here / "hf" / "in-01.tar").exists()


def test_index_over_a_shard(here, capsys):
    """``-o in-*.tar`` that the shell expands names a shard as the index: refused."""
    (here / "in-02").write_bytes((here / "in-02.tar").read_bytes())
    _refuse(["index", "create", "-o", "in-02", "in-02"], here, capsys)
    before = _contents(here)
    assert main(["index", "create", "-o", "in-00.tar", "in-01.tar"]) == exit_status.WRONG_USE
    assert _contents(here) == before


def test_job_over_an_input(here, capsys):
    """The outputs of a job neither, by a link."""
    (here / "sub").mkdir()
    (here / "sub" / "in-00.tar").symlink_to(here / "in-01.tar")
    (here / "mapped.py").write_text("def same(sample):\n    return sample\n")
    _refuse(["map", "-F", "-o", "sub/", "mapped:same", "in-00.tar", "in-01.tar"], here, capsys)


def test_outputs_beside_the_inputs(here):
    """Other names in the folder of the inputs, and a pattern without --force, are taken as before."""
    (here / "in-x.tar").write_bytes((here / "in-00.tar").read_bytes())
    assert main(["split", "-c", "2", "-F", "-o", "out-%02d.tar", "in-00.tar"]) == exit_status.DONE
    assert main(["split", "-c", "2", "-F", "-o", "out-%02d.tar", "in-01.tar"]) == exit_status.DONE
    assert main(["split", "-c", "2", "-F", "-o", "in-%02d.tar", "in-x.tar"]) == exit_status.DONE
    assert main(["sort", "-r", "-F", "-o", "in-03.tar", "in-03.tar"]) == exit_status.DONE
