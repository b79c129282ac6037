"""Arguments of ``wds`` become shards: braces, wildcards, lists, directories, specifications, standard input."""

import io
import json
import os
import sys

import pytest

from support.command import run_wds
from webdataset.cli import inputs
from webdataset.cli.inputs import expand_inputs
from webdataset.core.errors import NoShards, SourceError, UnsafeSpec, UsageError
from webdataset.storage.open_url import gopen_schemes, open_url
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


@pytest.mark.parametrize("argument", [".", "*.tar", "spec.json", None])
def test_names_of_found_files_are_no_commands(here, argument):
    """Files that are called like commands are read as files: in a directory, by wildcards, from a specification."""
    folder = here / "odd"
    folder.mkdir()
    names = ["-x.tar", "@x.tar", "a::b.tar", "a{1,2}.tar", "pipe:touch made; cat *.tar"]
    for name in names:
        (folder / name).write_bytes(SHARD)
    (folder / "spec.json").write_text(json.dumps({"version": 1, "sources": ["*.tar"]}))
    # the shell gives names as they are
    arguments = [argument] if argument else [f"./{name}" if name[0] == "-" else name for name in names]
    assert run_wds("ls", *arguments, cwd=folder).stdout.count(b"\n") == 2 * len(names)
    assert sorted(each.name for each in folder.iterdir()) == sorted([*names, "spec.json"])


def test_pipes_in_folders_are_left_out(here):
    """Commands do not wait for a named pipe in a folder; one warning counts them."""
    folder = here / "held"
    folder.mkdir()
    (folder / "s.tar").write_bytes(SHARD)
    (folder / "a.txt").write_bytes(b"1")
    for name in ("p.tar", "p.txt", "p.parquet"):
        os.mkfifo(folder / name)
    for command in (["ls", "held"], ["create", "-o", "out.tar", "held"]):
        assert run_wds(*command, cwd=here).stderr.count(b"3 pipes, sockets or devices are left out") == 1
    assert (
        b"holds no files" in run_wds("convert", "--from", "parquet", "held", "-o", "x.tar", cwd=here, status=2).stderr
    )


def test_directories_and_specifications_that_look_like_urls(here):
    """A name that is there is a file or folder also where it would be a url, or several."""
    (here / "pipe:d").mkdir()
    (here / "pipe:d/x.tar").write_bytes(SHARD)
    (here / "pipe:s.json").write_text(json.dumps({"version": 1, "sources": ["s-0.tar"]}))
    assert urls("pipe:d", "pipe:s.json") == ["./pipe:d/x.tar", "s-0.tar"]


def test_directory_without_shards_is_an_error(here):
    """A directory that holds none is refused rather than taken as nothing."""
    (here / "empty").mkdir()
    with pytest.raises(NoShards, match="holds no shards"):
        urls("empty")


def test_folders_without_lists(here):
    """A folder of a web server is no shard: nothing is asked for, and the message says what to write."""
    for name in ("http://127.0.0.1:9/", "https://127.0.0.1:9/train/"):
        with pytest.raises(UsageError, match=r"has no lists of a folder: write the shards' urls out"):
            urls(name)
    assert urls("pipe:cat s-0.tar deep/", "nowhere/") == ["pipe:cat s-0.tar deep/", "nowhere/"]


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


@pytest.fixture
def lists():
    """Write lists to a server of this process, which counts as the network; gives a function that does."""

    def write(text, name="sub/list.txt"):
        with open_url(f"memory://lists/{name}", "wb") as stream:
            stream.write(text.encode())
        return f"@memory://lists/{name}"

    return write


def test_list_from_the_network(here, lists):
    """Names in a list from elsewhere are relative to it, nested lists and specifications too."""
    lists("deep.tar\n", "sub/inner.txt")
    lists(json.dumps({"version": 1, "sources": ["spec.tar"]}), "sub/spec.json")
    lists("", "sub/w-1.tar")
    name = lists("# text\ns-{0..1}.tar\n/top.tar::https://host/x.tar\n@inner.txt\nspec.json\nw-*.tar\n./-\n")
    assert urls(name) == [
        "memory://lists/sub/s-0.tar", "memory://lists/sub/s-1.tar", "memory://lists/top.tar", "https://host/x.tar",
        "memory://lists/sub/deep.tar", "memory://lists/sub/spec.tar", "memory://lists/sub/w-1.tar",
        "memory://lists/sub/-",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "pipe:touch made", "https://host/a.tar::pipe:touch made", "{https://host/,pipe:touch }made", "file:s-0.tar",
        "file:{s-0,s-1}.tar", "@pipe:touch made", "@file:inner.txt", "file:spec.json", "https://host/${HOME}.tar",
        "ssh://host/a.tar", "https://elsewhere/a.tar", "@./inner.txt",
    ],
)  # fmt: skip
def test_list_from_the_network_names_neither_files_nor_commands(here, lists, line, monkeypatch):
    """What a list from elsewhere names is checked after all that expands and rewrites it."""
    monkeypatch.setenv("WDS_REWRITE", "https://elsewhere/=pipe:touch made ;memory://lists/sub/inner=inner")
    (here / "inner.txt").write_text("s-0.tar\n")
    with pytest.raises(UnsafeSpec):
        urls(lists(line + "\n"))
    assert not (here / "made").exists()


def test_full_trust_follows_lists_from_the_network(here, lists, monkeypatch):
    """Under full trust such a list names files and commands."""
    monkeypatch.setenv("WDS_TRUST", "full")
    assert urls(lists("pipe:cat s-0.tar\nfile:s-1.tar\n")) == ["pipe:cat s-0.tar", "file:s-1.tar"]


def test_lists_of_commands_name_urls_only(here):
    """A command that writes a list is no author to trust more; the error names the way by standard input."""
    with pytest.raises(UsageError, match="@-"):
        urls("@pipe:echo s-0.tar")
    assert urls("@pipe:echo https://host/a.tar") == ["https://host/a.tar"]


def test_lists_from_the_network_are_bounded(here, lists, monkeypatch):
    """A list that has no end, or stands for very many shards, is an error; a local one may be long."""
    monkeypatch.setattr(inputs, "_MOST_LIST_BYTES", 64)
    monkeypatch.setattr(inputs, "_MOST_LISTED", 8)
    with pytest.raises(UsageError, match="is not read from the network"):
        urls(lists("a.tar\n" * 20))
    for text in ("{0..9}.tar\n", "{0..4}.tar\n{0..4}.tar\n"):
        with pytest.raises(UsageError, match="more than 8"):
            urls(lists(text))
    (here / "list.txt").write_text("a.tar\n" * 20)
    assert len(urls("@list.txt")) == 20


def test_storage_options_reach_lists(here, monkeypatch):
    """The profile of the command line opens the list, as it opens shards."""
    given = []

    def opener(url, *arguments, **options):
        given.append(options.get("storage_options"))
        return io.BytesIO(b"a.tar\n")

    opener.store = "memory"
    monkeypatch.setitem(gopen_schemes, "listed", opener)
    assert urls("@listed://host/l.txt", storage_profile="p") == ["listed://host/a.tar"]
    assert given == [{"profile": "p"}]


@pytest.mark.parametrize("name", ["@list.txt", "@-"])
def test_byte_order_mark_of_a_list(here, name, monkeypatch):
    """A mark that editors write in front of a text is no part of the first name."""
    (here / "list.txt").write_text("\ufeffs-0.tar\n", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufeffs-0.tar\n"))
    assert urls(name) == ["s-0.tar"]


@pytest.mark.parametrize("text", ["a\n", "a\tgood\n"])
def test_byte_order_mark_of_keys(here, text):
    """Nor is it a part of the first key of a file of keys or tags."""
    (here / "keys.txt").write_text("\ufeff" + text, encoding="utf-8")
    run_wds("select", "--keys", "keys.txt", "-o", "out.tar", "s-0.tar", cwd=here)
    assert run_wds("ls", "out.tar", cwd=here).stdout.startswith(b"a\t")


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
