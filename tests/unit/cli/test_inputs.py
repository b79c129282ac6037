"""Arguments of ``wds`` become shards: braces, wildcards, lists, directories, specifications, standard input."""

import io
import json
import sys

import pytest

from support.command import run_wds
from webdataset.cli.inputs import expand_inputs
from webdataset.core.errors import NoShards, SourceError, UsageError
from webdataset.testing import archives

SHARD = archives.by_hand([("a.txt", b"1"), ("b.txt", b"2")])


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with four shards, two of them in a folder below."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep/more").mkdir(parents=True)
    for name in ("s-0.tar", "s-1.tar", "deep/t.tar.gz", "deep/more/u.tgz", "deep/.hidden.tar", "deep/notes.txt"):
        (tmp_path / name).write_bytes(SHARD)
    return tmp_path


def urls(*arguments, **options):
    """The shards of arguments."""
    return list(expand_inputs(arguments, **options))


def test_braces_wildcards_and_lists_in_a_text(here):
    """Braces, wildcards and ``::`` mean what they mean in the library."""
    assert urls("s-{0..1}.tar") == ["s-0.tar", "s-1.tar"]
    assert urls("s-*.tar", "deep/t.tar.gz") == ["s-0.tar", "s-1.tar", "deep/t.tar.gz"]
    assert urls("s-1.tar::s-0.tar") == ["s-1.tar", "s-0.tar"]


def test_directory_gives_its_shards_sorted(here):
    """A directory stands for the shards in and below it; hidden and other files are no shards."""
    assert urls("deep") == ["deep/more/u.tgz", "deep/t.tar.gz"]


def test_directory_without_shards_is_an_error(here):
    """A directory that holds none is refused rather than taken as nothing."""
    (here / "empty").mkdir()
    with pytest.raises(NoShards, match="holds no shards"):
        urls("empty")


def test_list_file(here):
    """``@list`` holds an expression a line; comments and empty lines count nothing; lists may name lists."""
    (here / "inner.txt").write_text("deep\n")
    (here / "list.txt").write_text("# first\ns-{0..1}.tar\n\n@inner.txt\n")
    assert urls("@list.txt") == ["s-0.tar", "s-1.tar", "deep/more/u.tgz", "deep/t.tar.gz"]


def test_list_that_names_itself_is_refused(here):
    """Lists that go round end in an error, not in an endless loop."""
    (here / "list.txt").write_text("@list.txt\n")
    with pytest.raises(UsageError, match="name each other"):
        urls("@list.txt")


def test_list_that_is_missing(here):
    """A list that is not there is an error of the source."""
    with pytest.raises(SourceError):
        urls("@none.txt")


def test_list_on_standard_input(here, monkeypatch):
    """``@-`` reads the list from standard input."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("s-0.tar\n"))
    assert urls("@-") == ["s-0.tar"]


def test_specification(here):
    """A specification stands for the shards of one split."""
    spec = {
        "version": 1,
        "splits": {
            "train": {"sources": [{"shards": "s-{0..1}.tar"}]},
            "val": {"sources": [{"shards": "deep/t.tar.gz"}]},
        },
    }
    (here / "spec.json").write_text(json.dumps(spec))
    assert [url.rpartition("/")[2] for url in urls("spec.json")] == ["s-0.tar", "s-1.tar"]
    assert [url.rpartition("/")[2] for url in urls("spec.json", split="val")] == ["t.tar.gz"]
    with pytest.raises(UsageError, match="train|val"):
        urls("spec.json", split="test")


def test_wids_index(here):
    """A wids index stands for its shards."""
    run_wds("index", "create", "s-0.tar", "s-1.tar", "-o", "index.json", cwd=here)
    assert [url.rpartition("/")[2] for url in urls("index.json")] == ["s-0.tar", "s-1.tar"]


def test_standard_input_once(here):
    """Standard input cannot be two shards."""
    assert urls("-") == ["-"]
    with pytest.raises(UsageError, match="only once"):
        urls("-", "-")


def test_profile_reaches_the_storage(here):
    """The name of a profile goes with each url that is opened."""
    inputs = expand_inputs(["s-0.tar"], storage_profile="mine")
    assert inputs.storage_options == {"profile": "mine"}


def test_url_schemes(here):
    """A shard may come from a command, or from the standard input of the program."""
    assert run_wds("ls", "pipe:cat s-0.tar", cwd=here).stdout == b"a\ttxt\nb\ttxt\n"
    assert run_wds("ls", "-", cwd=here, stdin=SHARD).stdout == b"a\ttxt\nb\ttxt\n"
