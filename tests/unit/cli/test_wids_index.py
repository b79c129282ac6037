"""The program ``wids-index``: what it writes, prints and returns."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from webdataset.cli.wids_index import main
from webdataset.index.wids.dataset import ShardListDataset
from webdataset.testing import archives
from webdataset.testing.sources import RangeServer


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with three shards in a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wd").mkdir()
    for shard in range(3):
        members = [
            (f"k{shard}{place}.{field}", b"hello %d" % place) for place in range(shard + 1) for field in ("txt", "bin")
        ]
        (tmp_path / f"wd/s-{shard}.tar").write_bytes(archives.by_hand(members))
    return tmp_path


def said(capsys, *arguments):
    """Status, output and error output of a command line."""
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = ended.code
    output = capsys.readouterr()
    return status, output.out, output.err


def document(path):
    """An index file."""
    return json.loads(Path(path).read_text())


def urls(path):
    """The urls in an index file."""
    return [shard["url"] for shard in document(path)["shardlist"]]


def test_create(here, capsys):
    """Shards by braces, counted, measured and digested; the index reads back."""
    assert said(capsys, "create", "wd/s-{0..2}.tar", "-o", "i.json", "-n", "nm") == (
        0, f"i.json: 3 shards, 6 samples, {sum(path.stat().st_size for path in here.glob('wd/*'))} bytes\n", "",
    )  # fmt: skip
    made = document("i.json")
    assert (made["__kind__"], made["wids_version"], made["name"]) == ("wids-shard-index-v1", 1, "nm")
    assert [shard["nsamples"] for shard in made["shardlist"]] == [1, 2, 3]
    digest = subprocess.run(["md5sum", "wd/s-1.tar"], capture_output=True, text=True, check=True).stdout.split()[0]
    assert made["shardlist"][1] == {
        "url": "wd/s-1.tar", "md5sum": digest, "nsamples": 2, "filesize": os.path.getsize("wd/s-1.tar"),
    }  # fmt: skip
    assert [sample["__key__"] for sample in ShardListDataset("i.json")] == ["k00", "k10", "k11", "k20", "k21", "k22"]


def test_an_index_in_another_folder_finds_its_shards(here, capsys):
    """Urls are written relative to the index, wherever it is: the published versions double the folder."""
    for output, named in (("wd/i.json", "s-0.tar"), ("other/i.json", "../wd/s-0.tar")):
        Path(output).parent.mkdir(exist_ok=True)
        assert said(capsys, "create", "wd/s-0.tar", "-o", output)[0] == 0
        assert urls(output) == [named]
        assert ShardListDataset(output)[0]["__key__"] == "k00"
    assert said(capsys, "create", str(here / "wd/s-0.tar"), "-o", "/dev/null/x.json")[0] == 1
    assert said(capsys, "create", "wd/s-0.tar", "-o", "wd/g.json", "--as-given")[0] == 0
    assert urls("wd/g.json") == ["wd/s-0.tar"]


def test_create_from_stdin_and_globs(here, capsys, monkeypatch):
    """``-`` reads names, with braces and globs of their own; a shard that is named twice is indexed once."""
    monkeypatch.setattr("sys.stdin", io.StringIO("wd/s-2.tar\n\nwd/s-{0..1}.tar\n"))
    assert said(capsys, "create", "-", "wd/*.tar")[0] == 0
    assert urls("shardindex.json") == ["wd/s-0.tar", "wd/s-1.tar", "wd/s-2.tar"]
    assert document("shardindex.json")["name"] == "wd-s"
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert said(capsys, "create", "-")[0] == 2


def test_create_with_base_info_and_flags(here, capsys):
    """A base, a description out of a file, keep, no digests, several jobs, JSON."""
    Path("about").write_text("some info")
    status, out, _ = said(
        capsys, "create", "wd/s-0.tar", str(here / "wd/s-1.tar"), "-o", "i.json", "-b", "http://b/c/", "-i", "about",
        "-k", "--no-md5", "-j", "1", "--json",
    )  # fmt: skip
    assert (status, json.loads(out)["samples"]) == (0, 3)
    made = document("i.json")
    assert (made["base"], made["info"], made["keep"]) == ("http://b/c/", "some info", True)
    assert urls("i.json") == ["s-1.tar", "wd/s-0.tar"]
    assert "md5sum" not in made["shardlist"][0]


def test_create_to_stdout(here, capsys):
    """``-o -`` prints the index; the summary goes to stderr."""
    status, out, err = said(capsys, "create", "wd/s-0.tar", "-o", "-")
    assert (status, json.loads(out)["shardlist"][0]["url"]) == (0, "wd/s-0.tar")
    assert "1 shards" in err


def test_shards_that_cannot_be_read(here, capsys):
    """One bad shard fails the command and leaves the old index; with --skip-bad it is left out, and the status is 3."""
    Path("i.json").write_text("old")
    Path("wd/bad.tar").write_bytes(b"x" * 2000)
    status, _, err = said(capsys, "create", "wd/s-0.tar", "wd/bad.tar", "-o", "i.json")
    assert (status, Path("i.json").read_text()) == (1, "old")
    assert "wd/bad.tar" in err
    status, out, err = said(
        capsys, "create", "wd/s-0.tar", "wd/bad.tar", "wd/none.tar", "-o", "i.json", "--skip-bad", "--json"
    )
    assert (status, urls("i.json"), json.loads(out)["failed"]) == (3, ["wd/s-0.tar"], 2)
    assert "wd/none.tar" in err
    assert not list(here.glob(".*partial"))


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (["-n", "new"], {"name": "new"}),
        (["-k"], {"keep": True}),
        (["-K"], {"keep": False}),
        (["-i", "about"], {"info": "some info"}),
        (["-i", "plain text"], {"info": "plain text"}),
        (["-b", "http://q"], {"base": "http://q"}),
        (["-D"], {"urls": ["s-0.tar", "s-1.tar"]}),
        (["-d", "http://h/p"], {"urls": ["http://h/p/s-0.tar", "http://h/p/s-1.tar"]}),
        (["-B", "-b", "http://q"], {"urls": ["http://q/wd/s-0.tar", "http://q/wd/s-1.tar"]}),
    ],
)
def test_update(here, capsys, arguments, changed):
    """Each option changes what it says and nothing else; the old index stays beside."""
    Path("about").write_text("some info")
    said(capsys, "create", "wd/s-{0..1}.tar", "-o", "i.json")
    before = document("i.json")
    assert said(capsys, "update", "i.json", *arguments)[0] == 0
    after = document("i.json")
    if "urls" in changed:
        assert urls("i.json") == changed["urls"]
        for shard, old in zip(after["shardlist"], before["shardlist"], strict=True):
            shard["url"] = old["url"]
        changed = {}
    assert after == {**before, **changed}
    assert document("i.json.bak") == before


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["i.json"], 2),
        (["i.json", "-B"], 2),
        (["i.json", "-k", "-K"], 2),
        (["i.json", "-D", "-d", "x"], 2),
        (["none.json", "-n", "x"], 2),
        (["broken.json", "-n", "x"], 1),
        (["other.json", "-n", "x"], 1),
    ],
)
def test_updates_that_make_no_sense(here, capsys, arguments, status):
    """Nothing is changed, and the status says whose fault it is."""
    said(capsys, "create", "wd/s-0.tar", "-o", "i.json")
    Path("broken.json").write_text("{")
    Path("other.json").write_text("{}")
    before = Path("i.json").read_bytes()
    assert said(capsys, "update", *arguments)[0] == status
    assert Path("i.json").read_bytes() == before


def test_info(here, capsys, monkeypatch):
    """Sums and names, in long, as a table, as JSON, and from stdin."""
    said(capsys, "create", "wd/s-{0..2}.tar", "-o", "i.json", "-n", "nm")
    status, out, _ = said(capsys, "info", "i.json")
    assert status == 0
    assert ["samples:", "6"] in [line.split() for line in out.splitlines()]
    assert said(capsys, "info", "-t", "i.json", "i.json")[1].count("nm ") == 2
    summary = json.loads(said(capsys, "info", "--json", "i.json")[1])
    assert (summary["name"], summary["shards"], summary["samples"]) == ("nm", 3, 6)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path("i.json").read_bytes())))
    assert json.loads(said(capsys, "info", "--json", "-")[1])["samples"] == 6
    assert said(capsys, "info", "none.json")[0] == 1


def test_sample(here, capfdbinary):
    """One sample, shortened, raw, as Python, as JSON; the bytes of one field; errors."""
    main(["create", "wd/s-{0..2}.tar", "-o", "i.json"])
    capfdbinary.readouterr()

    def shown(*arguments):
        return main(["sample", "i.json", *arguments]), capfdbinary.readouterr()

    assert [b".txt", b"'hello", b"1'"] in [line.split() for line in shown("2")[1].out.splitlines()]
    assert [b".txt", b"b'h..."] in [line.split() for line in shown("2", "-r", "-w", "6")[1].out.splitlines()]
    assert b"'.txt': 'hello 2'" in shown("-p", "--", "-1")[1].out
    assert json.loads(shown("0", "--json")[1].out)[".bin"] == {"bytes": 7}
    for field in ("txt", ".txt"):
        assert shown("0", "-c", field)[1].out == b"hello 0"
    status, output = shown("0", "-c", "jpg")
    assert (status, output.out) == (1, b"")
    assert b".txt .bin" in output.err
    assert shown("99")[0] == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_devices_and_pipes_are_written_to(here, capsys):
    """A named pipe as output is written to, not replaced by a file."""
    os.mkfifo("out")
    reader = os.open("out", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert said(capsys, "create", "wd/s-0.tar", "-o", "out")[0] == 0
        assert json.loads(os.read(reader, 100_000))["shardlist"][0]["nsamples"] == 1
        assert Path("out").is_fifo()
    finally:
        os.close(reader)


def test_secrets(here, capsys):
    """Who publishes an index with passwords or tokens in it is told; ``info`` does not show them."""
    with RangeServer({"/s.tar?token=hush": (here / "wd/s-1.tar").read_bytes()}) as server:
        status, _, error = said(capsys, "create", f"{server.root}/s.tar?token=hush", "-o", "i.json")
        assert status == 0
        assert "1 urls in the index hold passwords or tokens" in error
        assert "hush" not in error
        assert "hush" in urls("i.json")[0]
        for arguments in (["info", "i.json"], ["info", "-t", "i.json"]):
            assert "hush" not in said(capsys, *arguments)[1]


def test_descriptions_of_any_kind(here, capsys):
    """``info`` shows a description that is no text."""
    Path("i.json").write_text(json.dumps({"wids_version": 1, "shardlist": [], "info": {"license": "CC0"}}))
    status, output, _ = said(capsys, "info", "i.json")
    assert (status, output.splitlines()[-1]) == (0, "{'license': 'CC0'}")


def test_the_installed_program(here):
    """Both names of the program and the old module run; help loads neither numpy nor torch."""
    script = (
        "import sys; from webdataset.cli.wids_index import main\ntry: main(['create', '-h'])\n"
        "finally: print([name for name in ('numpy', 'torch', 'PIL', 'urllib3') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]"
    for program in ([sys.executable, "-m", "wids.wids_index"], [sys.executable, "-m", "webdataset.cli.wids_index"]):
        done = subprocess.run(
            [*program, "create", "wd/s-0.tar", "-o", "i.json"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert subprocess.run([*program, "nonsense"], capture_output=True, check=False).returncode == 2
    for name in ("wids-index", "widsindex"):
        program = Path(sys.executable).with_name(name)
        assert subprocess.run([program, "info", "i.json"], capture_output=True, check=False).returncode == 0
