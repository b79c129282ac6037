"""From what a user writes to a list of urls."""

import io
import os
from pathlib import Path

import pytest

from webdataset.core.errors import SourceError, UsageError
from webdataset.shards.expand import expand_source, expand_urls, glob_with_braces
from webdataset.shards.lists import SimpleShardList
from webdataset.storage.backends import memory
from webdataset.storage.local_listing import walk_folder
from webdataset.storage.open_url import open_url


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand in a folder with a few files."""
    monkeypatch.chdir(tmp_path)
    for name in ("a-1.tar", "a-0.tar", "b.tar", "sub/c.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("x.tar", ["x.tar"]),
        ("x-{000..002}.tar", ["x-000.tar", "x-001.tar", "x-002.tar"]),
        ("x{1..2}{a,b}", ["x1a", "x1b", "x2a", "x2b"]),
        ("x::y{0..1}::", ["x", "y0", "y1", ""]),
        ("pipe:cat {1..2} | x", ["pipe:cat 1 | x", "pipe:cat 2 | x"]),
        ("http://h/a?x=[{1,2}]*", ["http://h/a?x=[1]*", "http://h/a?x=[2]*"]),
        (r"x\{1..2\}", ["x{1..2}"]),
        ("", [""]),
    ],
)
def test_texts(text, urls):
    """Texts split at ``::`` and their braces expand; remote urls have no wildcards."""
    assert expand_urls(text) == urls


def test_names(monkeypatch):
    """``${NAME}`` is WDS_NAME, up to ten levels deep."""
    monkeypatch.setenv("WDS_A", "${B}-{0..1}")
    monkeypatch.setenv("WDS_B", "x")
    assert expand_urls("${A}::${B}") == ["x-0", "x-1", "x"]
    with pytest.raises(UsageError, match="WDS_NOPE"):
        expand_urls("${NOPE}")


def test_walk_of_a_folder(here):
    """Folders below it, sorted; one that cannot be listed is an error, not left out."""
    assert list(walk_folder(str(here))) == [
        (str(here), ["a-0.tar", "a-1.tar", "b.tar"]),
        (str(here / "sub"), ["c.tar"]),
    ]
    with pytest.raises(SourceError, match="cannot list: No such file"):
        list(walk_folder(str(here / "nowhere")))


def test_walk_leaves_out_what_is_no_file(here):
    """Pipes and sockets, which would be waited for, are left out with one warning; links count as what they lead to."""
    os.mkfifo(here / "p.tar")
    os.mkfifo(here / "sub/q.tar")
    (here / "link.tar").symlink_to("p.tar")
    (here / "good.tar").symlink_to("b.tar")
    (here / "broken.tar").symlink_to("nowhere")
    with pytest.warns(UserWarning, match="3 pipes, sockets or devices are left out, '.*link.tar' first") as told:
        found = list(walk_folder(str(here)))
    assert [files for _, files in found] == [["a-0.tar", "a-1.tar", "b.tar", "broken.tar", "good.tar"], ["c.tar"]]
    assert len(told) == 1


def test_braces_that_do_not_close():
    """An unbalanced brace is an error that says how to write one."""
    with pytest.raises(UsageError, match="do not close"):
        expand_urls("x{")


def test_wildcards(here):
    """Wildcards match local files, sorted; ``file:`` urls too."""
    assert expand_urls("a-?.tar") == ["a-0.tar", "a-1.tar"]
    assert expand_urls("*.tar::sub/[c].tar") == ["a-0.tar", "a-1.tar", "b.tar", "sub/c.tar"]
    assert expand_urls("{b,a-*}.tar") == ["b.tar", "a-0.tar", "a-1.tar"]
    assert expand_urls(f"file:{here}/a*") == [f"{here}/a-0.tar", f"{here}/a-1.tar"]
    assert expand_urls("**/c.tar") == ["sub/c.tar"]


def test_names_of_found_files_are_no_commands(tmp_path, monkeypatch):
    """What a wildcard finds is opened literally, whatever the file is called; also where urls are rewritten."""
    monkeypatch.chdir(tmp_path)
    names = ["-", "-x.tar", "@x.tar", "a::b.tar", "a{1,2}.tar", "file:x.tar", "pipe:touch made; cat *.tar"]
    for name in names:
        (tmp_path / name).write_text(name)

    def read(urls):
        found = []
        for url in urls:
            with open_url(url) as stream:
                found.append(stream.read().decode())
        return found

    assert read(expand_urls("*")) == read(expand_urls(expand_urls("*"))) == sorted(names)
    assert expand_urls("*") == glob_with_braces("*")
    assert expand_urls("[-@a]*") == ["./-", "./-x.tar", "./@x.tar", "a::b.tar", "a{1,2}.tar"]
    assert read(SimpleShardList("p*").urls) == [names[-1]]
    monkeypatch.setenv("WDS_REWRITE", "data:=")
    assert read(expand_urls("data:*")) == sorted(names)
    monkeypatch.setenv("WDS_REWRITE", "data:=p")
    assert read(expand_urls("data:*")) == [names[-1]]
    assert not (tmp_path / "made").exists()


def test_a_file_of_just_that_name(here):
    """A name with wildcards or braces that exists is taken literally."""
    for name in ("a-[01].tar", "x{0..1}.tar", "y{.tar"):
        (here / name).touch()
        assert expand_urls(name) == [name]


def test_wildcards_without_match(here):
    """Wildcards that match nothing stay, as in the published versions; opening the name fails."""
    assert expand_urls("z*.tar") == ["z*.tar"]
    assert expand_urls("{z*,b}.tar") == ["z*.tar", "b.tar"]


def test_rewritten_names_are_not_matched(here, monkeypatch):
    """What will be rewritten to somewhere else is left as it is."""
    monkeypatch.setenv("WDS_REWRITE", "z=http://h/z")
    assert expand_urls("z*.tar") == ["z*.tar"]


def test_paths(here):
    """Path objects give texts, expanded unless they exist."""
    assert expand_urls(here / "b.tar") == [str(here / "b.tar")]
    assert expand_urls(Path("a-{0..1}.tar")) == ["a-0.tar", "a-1.tar"]
    assert expand_urls(Path("a-*.tar")) == ["a-0.tar", "a-1.tar"]


def test_iterables_are_taken_as_they_stand(here):
    """Members of lists, tuples and iterables are not expanded; paths become texts."""
    assert expand_urls(["x{0..1}", "y*", Path("z")]) == ["x{0..1}", "y*", "z"]
    assert expand_urls(("x", "y")) == ["x", "y"]
    assert expand_urls(url for url in "xy") == ["x", "y"]
    assert expand_urls(SimpleShardList("x{0..1}")) == ["x0", "x1"]


def test_open_files():
    """An open binary file is one shard, not an iterable of lines."""
    stream = io.BytesIO(b"a\nb")
    assert expand_urls(stream) == [stream]
    assert expand_urls([stream, "x"]) == [stream, "x"]


@pytest.mark.parametrize("urls", [None, 3, b"x", [1], ["x", None], [b"x"]])
def test_what_is_no_url(urls):
    """Anything else is refused."""
    with pytest.raises(UsageError):
        expand_urls(urls)


def test_sources():
    """expand_source takes texts, lists and shard lists, and says when it cuts an iterable."""
    assert expand_source("x{0..1}") == ["x0", "x1"]
    assert expand_source(["x{0..1}"]) == ["x{0..1}"]
    assert expand_source(SimpleShardList("x{0..1}")) == ["x0", "x1"]
    assert expand_source(iter("abc"), 3) == ["a", "b", "c"]
    with pytest.warns(UserWarning, match="first 2"):
        assert expand_source(iter("abc"), 2) == ["a", "b"]


@pytest.fixture
def store():
    """Return a function that fills a folder of memory, empty before and after."""
    memory.clear("beside")

    def fill(*names):
        for name in names:
            with open_url(f"memory://beside/{name}", "wb") as stream:
                stream.write(b"x")

    yield fill
    memory.clear("beside")


def expand_folder(name="train/"):
    """Return the names below a folder that it stands for."""
    return [url.removeprefix("memory://beside/") for url in expand_urls(f"memory://beside/{name}")]


def test_a_folder_is_its_shards(store, recwarn):
    """Indexes, receipts and sizes that stand beside them are no shards, and no warning names them."""
    shards = ["train/a.TAR", "train/b.tar.zst", "train/c.tgz", "train/deep/d.tar"]
    beside = ["a.tar.idx", "a.tar.receipt.json", "sizes.json", "_wds/x/job", "_SUCCESS", ".hidden", "README.md"]
    store(*shards, *(f"train/{name}" for name in beside))
    assert expand_folder() == shards
    assert expand_folder("{train,train/deep}/") == [*shards, "train/deep/d.tar"]
    assert len(recwarn) == 0


def test_other_objects_of_a_folder_are_told(store):
    """They may be data that was meant to be read: the warning says how many, the first, and what reads them too."""
    store("train/a.tar", "train/b.bin", "train/c", "train/sizes.json")
    told = r"memory://beside/train/: 2 of 4 objects do not end as shards do, .*b\.bin first: .*write memory://beside/train/\*\*"
    with pytest.warns(UserWarning, match=told):
        assert expand_folder() == ["train/a.tar"]
    assert len(expand_folder("train/**")) == 4


def test_a_folder_without_endings_is_all_its_objects(store, recwarn):
    """Shards may be called anything where all are, as records are."""
    store("train/000", "train/001.cbor", "train/sizes.json")
    assert expand_folder() == ["train/000", "train/001.cbor", "train/sizes.json"]
    assert len(recwarn) == 0
