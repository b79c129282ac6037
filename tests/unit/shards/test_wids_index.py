"""Shard indexes in wids JSON: what is read, where urls point to, and what is refused."""

import io
import json
import pickle
import urllib.request

import pytest

import webdataset as wds
from webdataset.core.errors import FormatError, NoShards, NotFound, UsageError
from webdataset.shards import urls, wids_index, wids_lists
from webdataset.shards.wids_index import WidsShard, make_document, read_wids_json
from webdataset.shards.wids_lists import WidsShardList
from webdataset.testing import archives
from webdataset.testing.sources import RangeServer


def entry(url, nsamples=1, **more):
    """A shard as an index lists it."""
    return {"url": url, "nsamples": nsamples, **more}


def index(*shards, **more):
    """An index of shards."""
    return {"wids_version": 1, "shardlist": list(shards), **more}


@pytest.fixture
def write(tmp_path):
    """A writer of JSON files in a folder, which returns their paths."""

    def written(name, document):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    return written


def test_what_an_index_says(write, tmp_path):
    """Counts, sizes, digests, names, weights and unknown keys of shards arrive; urls are joined to the folder."""
    path = write("i.json", index(entry("a.tar", 3, filesize=10, md5sum="ff", note=[1]), name="nm", weight=2, info="x"))
    found = read_wids_json(path)
    assert found.shards == (WidsShard(str(tmp_path / "a.tar"), 3, 10, "ff", "nm", 2, None, {"note": [1]}),)
    assert (found.nsamples, found.name, found.place, found.document["info"]) == (3, "nm", path, "x")
    assert found.shards[0].to_entry() == {
        "url": str(tmp_path / "a.tar"), "nsamples": 3, "filesize": 10, "md5sum": "ff", "dataset": "nm", "weight": 2,
        "note": [1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "url", "found"),
    [
        ("d", "x.tar", "d/x.tar"),
        ("d", "./x.tar", "d/x.tar"),
        ("d", "/abs/x.tar", "/abs/x.tar"),
        ("d", "http://q/x.tar", "http://q/x.tar"),
        ("d", "pipe:cat x.tar", "pipe:cat x.tar"),
        ("d", "odd:name.tar", "d/odd:name.tar"),
        ("", "x.tar", "x.tar"),
        ("", "./x.tar", "x.tar"),
        ("", "./pipe:cat x.tar", "./pipe:cat x.tar"),
        ("", "././/pipe:cat x.tar", "././/pipe:cat x.tar"),
        ("", "./-", "./-"),
        ("d", "./pipe:cat x.tar", "d/pipe:cat x.tar"),
        ("http://h/p", "x.tar", "http://h/p/x.tar"),
        ("http://h/p/", "../x.tar", "http://h/x.tar"),
        ("http://h", "../../x.tar", "http://h/x.tar"),
        ("http://h/p?sig=1", "x.tar", "http://h/p/x.tar"),
        ("gs://b/c", "x.tar", "gs://b/c/x.tar"),
        ("file:///a", "x.tar", "/a/x.tar"),
    ],
)
def test_urls_are_joined_to_a_folder(folder, url, found):
    """Relative urls are joined, in paths and urls alike; others stay."""
    assert urls.join_url(folder, url) == found


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        ("i.json", ""), ("d/i.json", "d"), ("/a/b/i.json", "/a/b"), ("http://h/p/i.json?x=1", "http://h/p"),
        ("http://h/i.json", "http://h"), ("file:///a/i.json", "/a"), (None, ""), ("-", ""), ("pipe:cat d/i.json", None),
    ],
)  # fmt: skip
def test_the_folder_of_an_index(place, folder):
    """An index's folder is that of its path or url; a command has none."""
    assert urls.parent_folder(place) == folder


@pytest.mark.parametrize(
    ("folder", "url", "named"),
    [
        ("", "d/x.tar", "d/x.tar"), ("d", "d/x.tar", "x.tar"), ("d/e", "d/x.tar", "../x.tar"),
        ("/q", "/q/r/x.tar", "r/x.tar"), ("/q", "/r/x.tar", "/r/x.tar"), ("d", "http://h/x.tar", "http://h/x.tar"),
        ("http://h", "http://h/p/x.tar", "p/x.tar"),
    ],
)  # fmt: skip
def test_what_is_written_is_read_again(folder, url, named):
    """Urls are written such that reading joins them to the same file."""
    assert urls.relative_url(folder, url) == named
    assert urls.join_url(folder, named).replace("d/e/../", "d/") == url


def test_doubled_folders_of_published_indexes_are_undone(write, tmp_path, monkeypatch):
    """Where only the file without the repetition exists it is meant; where the other exists, that one."""
    monkeypatch.chdir(tmp_path)
    write("d/i.json", index(entry("d/x.tar")))
    write("d/x.tar", "")
    assert read_wids_json("d/i.json").urls == ["d/x.tar"]
    write("d/d/x.tar", "")
    assert read_wids_json("d/i.json").urls == ["d/d/x.tar"]


def test_a_base_is_joined_to_the_folder_and_given_bases_win(write, tmp_path):
    """The index's own base is relative to its folder; base= and options= come before it."""
    path = write("i.json", index(entry("x.tar"), base="sub"))
    assert read_wids_json(path).urls == [str(tmp_path / "sub/x.tar")]
    assert read_wids_json(path, base="http://h/p").urls == ["http://h/p/x.tar"]
    assert read_wids_json(path, options={"base": "/q", "name": "n"}).urls == ["/q/x.tar"]
    assert read_wids_json(path, options={"name": "n"}).shards[0].dataset == "n"


def test_nested_indexes(write, tmp_path):
    """Indexes name indexes at any depth, relative to themselves; the innermost name and weight count."""
    write("deep/er/c.json", index(entry("c.tar", 4, weight=7), entry("d.tar", 5)))
    write("deep/b.json", {"wids_version": 1, "name": "b", "datasets": [{"source_url": "er/c.json", "weight": 3}]})
    inner = {"shardlist": [entry("k.tar")], "base": "kb", "name": "kk"}
    path = write(
        "a.json", index(entry("a.tar"), name="top", datasets=[{"source_url": "deep/b.json", "weight": 2}, inner])
    )
    found = read_wids_json(path)
    assert [shard.url.removeprefix(str(tmp_path) + "/") for shard in found.shards] == [
        "a.tar", "deep/er/c.tar", "deep/er/d.tar", "kb/k.tar",
    ]  # fmt: skip
    assert [(shard.dataset, shard.weight) for shard in found.shards] == [
        ("top", None), ("b", 7), ("b", 3), ("kk", None),
    ]  # fmt: skip
    assert [shard.source_url and shard.source_url.rpartition("/")[2] for shard in found.shards] == [
        None, "c.json", "c.json", None,
    ]  # fmt: skip


def test_indexes_that_name_each_other(write):
    """A circle is an error that shows it, under whatever names."""
    write("d/a.json", {"wids_version": 1, "datasets": [{"source_url": "../d/b.json"}]})
    path = write("d/b.json", {"wids_version": 1, "datasets": [{"source_url": "a.json"}]})
    with pytest.raises(FormatError, match="in a circle") as caught:
        read_wids_json(path)
    assert caught.value.field == "datasets[0]"


@pytest.mark.limited
def test_a_bomb_of_nested_indexes_ends(write, monkeypatch):
    """Indexes that name many others many times are given up before memory is."""
    monkeypatch.setattr(wids_index, "MOST_INDEXES", 50)
    for level in range(8):
        nested = [{"source_url": f"{level + 1}.json"}] * 10
        path = write(f"{level}.json", {"wids_version": 1, "datasets": nested, "shardlist": []})
    write("8.json", index(entry("x.tar")))
    with pytest.raises(FormatError, match="more than 50 nested"):
        read_wids_json(path.replace("7.json", "0.json"))


@pytest.mark.parametrize(
    ("document", "message", "field"),
    [
        ("nonsense", "no JSON", None),
        ("[" * 100_000, "no JSON", None),
        ([1], "got a list", None),
        ({}, "no 'wids_version'", None),
        ({"wids_version": 2, "shardlist": []}, "reads 1", "wids_version"),
        ({"wids_version": True, "shardlist": []}, "reads 1", "wids_version"),
        ({"wids_version": 1}, "without 'shardlist'", None),
        ({"wids_version": 1, "shardlist": {}}, "is a list", "shardlist"),
        (index("a.tar"), "is an object", "shardlist[0]"),
        (index(entry("a.tar"), {"nsamples": 1}), "'url' is a", "shardlist[1].url"),
        (index({"url": "a.tar"}), "without 'nsamples'", "shardlist[0].nsamples"),
        (index(entry("a.tar", -1)), "from 0", "shardlist[0].nsamples"),
        (index(entry("a.tar", True)), "from 0", "shardlist[0].nsamples"),
        (index(entry("a.tar", filesize="1")), "from 0", "shardlist[0].filesize"),
        (index(entry("a.tar", md5sum=1)), "is a text", "shardlist[0].md5sum"),
        (index(entry("a.tar", weight=-1)), "from 0", "shardlist[0].weight"),
        (index(entry("a.tar"), weight=float("nan")), "from 0", "weight"),
        (index(entry("a.tar"), weight=10**400), "from 0", "weight"),
        (index(entry("a.tar", 10**30)), "beyond", "shardlist[0].nsamples"),
        (index(entry("a\0.tar")), "nothing can be called", "shardlist[0].url"),
        (index(entry("a\ud800.tar")), "nothing can be called", "shardlist[0].url"),
        (index(name=1), "is a text", "name"),
        (index(datasets=[3]), "is an object", "datasets[0]"),
        (index(datasets=[{}]), "needs 'source_url'", "datasets[0]"),
        (index(datasets=[{"source_url": 1}]), "is a url", "datasets[0]"),
        (index(datasets=[{"shardlist": [{}]}]), "'url' is a", "datasets[0].shardlist[0].url"),
    ],
)
def test_what_is_no_index(write, document, message, field):
    """Each thing that is wrong is told, with the file and the place in it."""
    path = write("i.json", document)
    with pytest.raises(FormatError, match=message) as caught:
        read_wids_json(path)
    assert (caught.value.url, caught.value.field) == (path, field)


def test_what_cannot_be_read(tmp_path):
    """A missing index, and things that are none."""
    with pytest.raises(NotFound):
        read_wids_json(tmp_path / "none.json")
    with pytest.raises(UsageError, match="not int"):
        read_wids_json(3)


def test_kinds_of_sources(write, tmp_path):
    """Paths, open files, documents and lists of shards are read; only paths have a folder of their own."""
    path = write("i.json", index(entry("a.tar")))
    assert read_wids_json(tmp_path / "i.json").urls == [str(tmp_path / "a.tar")]
    with open(path) as stream:
        assert read_wids_json(stream).urls == ["a.tar"]
    assert read_wids_json(io.BytesIO(json.dumps(index(entry("a.tar"))).encode()), base="b").urls == ["b/a.tar"]
    assert read_wids_json(index(entry("a.tar"))).urls == ["a.tar"]
    assert read_wids_json([entry("a.tar", 2), entry("b.tar", 3)]).nsamples == 5
    assert read_wids_json([]).shards == ()


def naming(form, url):
    """An index that names a url in one of the ways there are."""
    if form == "shard":
        return index(entry(url))
    if form == "source_url":
        return {"wids_version": 1, "datasets": [{"source_url": url}]}
    return index(entry("x.tar"), base=url)


@pytest.mark.parametrize("url", ["pipe:touch marker", "file:///etc/hosts", "ssh://host/x.tar"])
@pytest.mark.parametrize("form", ["shard", "source_url", "base"])
def test_an_index_from_the_network_names_urls_only(url, form, monkeypatch, tmp_path):
    """Commands, local files and logins in it are refused, and nothing is run; full trust allows them."""
    monkeypatch.chdir(tmp_path)
    with RangeServer({"/d/i.json": json.dumps(naming(form, url)).encode()}) as server:
        with pytest.raises(UsageError, match="may name urls only"):
            read_wids_json(f"{server.root}/d/i.json")
        if form == "shard":
            assert read_wids_json(f"{server.root}/d/i.json", trust="full").urls == [url]
    assert list(tmp_path.iterdir()) == []


def test_an_open_answer_of_a_server_names_urls_only():
    """What was read from a stream, or as a dict, may name no more than what is read by its url."""
    document = json.dumps(index(entry("pipe:touch marker"), entry("x.tar"))).encode()
    with RangeServer({"/d/i.json": document, "/d/j.json": json.dumps(index(entry("x.tar"))).encode()}) as server:
        url = f"{server.root}/d/i.json"
        with wds.gopen(url) as stream, pytest.raises(UsageError, match="may name urls only"):
            read_wids_json(stream)
        with urllib.request.urlopen(url) as stream, pytest.raises(UsageError, match="may name urls only"):
            read_wids_json(stream)
        with pytest.raises(UsageError, match="may name urls only"):
            wids_lists.resolve_dsdesc(wids_lists.load_remote_dsdesc_raw(url))
        described = wids_lists.resolve_dsdesc(wids_lists.load_remote_dsdesc_raw(f"{server.root}/d/j.json"))
        assert described["shardlist"][0]["url"] == f"{server.root}/d/x.tar"


def test_secrets_in_urls_are_not_shown():
    """Passwords and tokens appear neither in what indexes and lists show, nor in errors."""
    with RangeServer({"/i.json?token=hush": json.dumps(index(entry("x.tar"), entry("pipe:x"))).encode()}) as server:
        place = server.root.replace("://", "://user:hush@") + "/i.json?token=hush"
        with pytest.raises(UsageError, match="may name urls only") as caught:
            read_wids_json(place)
        shown = [caught.value, read_wids_json(place, trust="full"), WidsShardList(place, trust="full")]
        shown += read_wids_json(place, trust="full").shards
        assert [text for text in map(repr, shown) if "hush" in text] == []
        assert "***" in repr(shown[1])


@pytest.mark.parametrize("url", ["/etc/hosts", "-", "../../../etc/hosts"])
def test_paths_in_an_index_from_the_network_are_paths_on_the_server(url):
    """No path leads to this machine's files."""
    with RangeServer({"/d/i.json": json.dumps(naming("shard", url)).encode()}) as server:
        (found,) = read_wids_json(f"{server.root}/d/i.json").urls
        assert found.startswith(f"{server.root}/")


def test_an_index_on_a_server():
    """Relative shards and indexes are found beside it."""
    pages = {
        "/p/i.json": json.dumps({"wids_version": 1, "datasets": [{"source_url": "q/j.json"}]}).encode(),
        "/p/q/j.json": json.dumps(index(entry("a.tar"), entry("../b.tar"))).encode(),
    }
    with RangeServer(pages) as server:
        found = read_wids_json(f"{server.root}/p/i.json")
        assert found.urls == [f"{server.root}/p/q/a.tar", f"{server.root}/p/b.tar"]


def test_an_index_through_a_command(write):
    """It has no place: relative urls need a base."""
    path = write("i.json", index(entry("a.tar")))
    with pytest.raises(UsageError, match="pass base="):
        read_wids_json(f"pipe:cat {path}")
    assert read_wids_json(f"pipe:cat {path}", base="http://h/p").urls == ["http://h/p/a.tar"]


def test_documents_to_be_written():
    """Shards are sorted by url, and what is not known is left out."""
    document = make_document([WidsShard("b", 2, 20, "ff"), WidsShard("a", 1)], name="n", info=None)
    assert document == {
        "__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "n",
        "shardlist": [{"url": "a", "nsamples": 1}, {"url": "b", "md5sum": "ff", "nsamples": 2, "filesize": 20}],
    }  # fmt: skip
    assert read_wids_json(document).nsamples == 3


def test_a_shard_list_of_an_index(write, tmp_path):
    """A pipeline reads the shards of an index, in order and in every pass; the list pickles."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.tar").write_bytes(archives.by_hand([(f"{name}.txt", b"x")]))
    shards = WidsShardList(write("i.json", index(entry("b.tar"), entry("a.tar"))))
    assert (len(shards), shards.nsamples) == (2, 2)
    for _ in range(2):
        assert [shard["url"] for shard in pickle.loads(pickle.dumps(shards))] == shards.urls
    assert [sample["__key__"] for sample in wds.DataPipeline(shards, wds.tarfile_to_samples())] == ["b", "a"]
    with pytest.raises(NoShards):
        WidsShardList(write("e.json", index()))
