"""The shard cache, behind a real web server: what is kept, under which name, and what is read instead."""

import contextlib
import logging
import os
import pickle
import shlex
import shutil
import tarfile
import time
import warnings
from pathlib import Path

import pytest

import webdataset as wds
from webdataset import cache, tariterators
from webdataset.caching import locks
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.errors import FormatError, NotFound, UsageError
from webdataset.testing import archives, sources
from webdataset.testing.archives import END


def shard(*keys):
    """Return a shard with these keys."""
    return archives.by_tarfile([(f"{key}.txt", key.encode()) for key in keys])


@pytest.fixture
def pages():
    """What the server has."""
    return {"/a/x.tar": shard("one", "two"), "/b/x.tar": shard("three")}


@pytest.fixture
def web(pages):
    """The server's root url."""
    with sources.served(pages) as root:
        yield root


def read(urls, **options):
    """Return the keys and payloads of a dataset."""
    return [(s["__key__"], s["txt"]) for s in wds.WebDataset(urls, shardshuffle=False, **options)]


def keys(urls, **options):
    """Return the keys of a dataset."""
    return [key for key, _ in read(urls, **options)]


def kept(folder):
    """Return the visible files of a cache."""
    return sorted(name for name in files_in(folder) if not name.startswith(".wds/"))


def files_in(folder):
    """Return all files of a cache, hidden ones included."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def test_second_pass_needs_no_server(near, pages, web):
    """A shard is downloaded once, whole; later passes and datasets read the file, also without the server."""
    dataset = wds.WebDataset(f"{web}/a/x.tar", shardshuffle=False, cache_dir=near)
    first = list(dataset)
    (name,) = kept(near)
    assert (near / name).read_bytes() == pages["/a/x.tar"]
    assert name.startswith("x.url-")
    assert name.endswith(".tar")
    assert os.stat(near / name).st_mode & 0o777 == 0o600
    pages.clear()
    assert list(dataset) == first
    assert keys(f"{web}/a/x.tar", cache_dir=near) == ["one", "two"]
    assert sorted(files_in(near)) == [f".wds/{name}.json", name]


def test_samples(near, web):
    """They are the same as without a cache, and say where the file is."""
    plain = list(wds.WebDataset(f"{web}/a/x.tar", shardshuffle=False))
    for _ in range(2):
        cached = list(wds.WebDataset(f"{web}/a/x.tar", shardshuffle=False, cache_dir=near))
        paths = {sample.pop("__local_path__") for sample in cached}
        assert cached == plain
        assert paths == {str(near / kept(near)[0])}


def test_same_basename(near, web):
    """Two urls with one basename are two shards."""
    urls = [f"{web}/a/x.tar", f"{web}/b/x.tar"]
    for _ in range(2):
        assert keys(urls, cache_dir=near) == ["one", "two", "three"]
    assert len(kept(near)) == 2


@pytest.mark.parametrize("place", ["x.tar", "a/x.tar"])
def test_placed_shards_override_downloads(near, web, place):
    """A file under the shard's plain name, or where 0.2.86 would keep it, is read instead of the url."""
    (near / place).parent.mkdir(exist_ok=True)
    (near / place).write_bytes(shard("placed"))
    for _ in range(2):
        assert keys(f"{web}/a/x.tar", cache_dir=near) == ["placed"]
        assert keys(f"pipe:curl -s {web}/a/x.tar", cache_dir=near) == ["placed"]
    assert kept(near) == [place]


def test_placed_link(near, tmp_path, web):
    """A link to a file elsewhere is read too."""
    (tmp_path / "far.tar").write_bytes(shard("placed"))
    (near / "x.tar").symlink_to(tmp_path / "far.tar")
    assert keys(f"{web}/a/x.tar", cache_dir=near) == ["placed"]


def test_placed_shard_wins_over_an_earlier_download(near, web):
    """It wins even where the url was downloaded before."""
    keys(f"{web}/a/x.tar", cache_dir=near)
    (near / "x.tar").write_bytes(shard("placed"))
    assert keys(f"{web}/a/x.tar", cache_dir=near) == ["placed"]


def test_one_placed_file_for_two_urls(near, web):
    """Where it stands for two urls a warning says so."""
    (near / "x.tar").write_bytes(shard("placed"))
    with pytest.warns(UserWarning, match="is read for two urls"):
        assert keys([f"{web}/a/x.tar", f"{web}/b/x.tar"], cache_dir=near) == ["placed", "placed"]


def test_url_to_name(near, pages, web):
    """It names the file, in one folder as 0.2.86 has it; what lies there wins."""
    assert keys(f"{web}/a/x.tar", cache_dir=near, url_to_name=lambda url: "p/q/" + url.rpartition("/")[2]) == [
        "one",
        "two",
    ]
    assert kept(near) == ["p_q/x.tar"]
    pages.clear()
    assert keys(f"{web}/a/x.tar?token=signed", cache_dir=near, url_to_name=lambda _: "p/q/x.tar") == ["one", "two"]
    (near / "mine.tar").write_bytes(shard("placed"))
    assert keys(f"{web}/b/x.tar", cache_dir=near, url_to_name=lambda _: "mine.tar") == ["placed"]
    with pytest.raises(UsageError, match="url_to_name"):
        keys(f"{web}/b/x.tar", cache_dir=near, url_to_name=lambda _: "../x.tar")


def test_url_to_name_without_a_cache(tmp_path, web):
    """There is nothing to name, and nothing is wrong."""
    assert keys(f"{web}/a/x.tar", url_to_name=lambda _: "x") == ["one", "two"]


def test_local_files_are_read_in_place(near, tmp_path):
    """Paths and file: urls are not copied, and their samples are as ever."""
    path = tmp_path / "local.tar"
    path.write_bytes(shard("local"))
    for url in (str(path), path, f"file:{path}"):
        (sample,) = wds.WebDataset([url], shardshuffle=False, cache_dir=near)
        assert list(sample) == ["__key__", "__url__", "txt"]
    assert kept(near) == []


def test_a_path_is_no_url(near, tmp_path, monkeypatch):
    """A Path that looks like a url is a local file."""
    monkeypatch.chdir(tmp_path)
    Path("gs:x.tar").write_bytes(shard("local"))
    stage = tariterators.tarfile_to_samples(cache=ShardCache(str(near)))
    assert [list(sample) for sample in stage([{"url": Path("gs:x.tar")}])] == [["__key__", "__url__", "txt"]]
    assert kept(near) == []


def test_rewritten_urls(near, tmp_path, web, monkeypatch):
    """A url that is rewritten to a local file is read in place; rewritten elsewhere, it is another object."""
    (tmp_path / "y.tar").write_bytes(shard("local"))
    monkeypatch.setenv("WDS_REWRITE", f"gs://={tmp_path}/")
    assert keys("gs://y.tar", cache_dir=near) == ["local"]
    assert kept(near) == []
    for folder, expected in (("a", ["one", "two"]), ("b", ["three"])):
        monkeypatch.setenv("WDS_REWRITE", f"gs://={web}/{folder}/")
        assert keys("gs://x.tar", cache_dir=near) == expected
    assert len(kept(near)) == 2


def test_pipes(near, tmp_path, web):
    """Commands are kept by all that they say, whatever url they name."""
    path = shlex.quote(str(tmp_path / "x.tar"))
    (tmp_path / "x.tar").write_bytes(shard("local"))
    commands = [f"pipe:cat {path}", f"pipe:curl -s {web}/a/x.tar", f"pipe:curl -s {web}/a/x.tar | cat"]
    for _ in range(2):
        assert keys(commands, cache_dir=near) == ["local", "one", "two", "one", "two"]
    assert len(kept(near)) == 3
    (tmp_path / "x.tar").unlink()
    assert keys(commands[0], cache_dir=near) == ["local"]


def test_missing_directory(tmp_path, monkeypatch):
    """It is made, with those above it; where it cannot be, a ValueError says why when the dataset is made."""
    (tmp_path / "file").write_bytes(b"")
    for folder in ("", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="cannot make the cache directory|an empty name") as caught:
            wds.WebDataset("x.tar", cache_dir=folder)
        assert isinstance(caught.value, ValueError)
    for number, folder in enumerate((tmp_path / "one" / "below", str(tmp_path / "two"))):
        for _ in range(2):
            wds.WebDataset("x.tar", cache_dir=folder)
            assert Path(folder).is_dir(), number
    monkeypatch.setenv("WDS_CACHE", str(tmp_path / "three"))
    wds.WebDataset("x.tar")
    assert (tmp_path / "three").is_dir()


def test_environment(near, tmp_path, web, monkeypatch):
    """WDS_CACHE and WDS_CACHE_SIZE speak where the arguments do not."""
    url = f"{web}/a/x.tar"
    monkeypatch.setenv("WDS_CACHE", str(near))
    assert keys(url, cache_size=0) == ["one", "two"]
    monkeypatch.setenv("WDS_CACHE_SIZE", "0")
    assert keys(url) == ["one", "two"]
    assert kept(near) == []
    monkeypatch.setenv("WDS_CACHE_SIZE", "1e9")
    assert keys(url) == ["one", "two"]
    assert len(kept(near)) == 1
    other = tmp_path / "other"
    other.mkdir()
    assert keys(url, cache_dir=other, cache_size=10**9) == ["one", "two"]
    assert len(kept(other)) == 1


def test_verbose(near, web, monkeypatch, caplog):
    """Downloads and hits are logged, without passwords, where verbose or the environment asks for it."""
    monkeypatch.delenv("WDS_VERBOSE_CACHE", raising=False)
    url = f"{web}/a/x.tar".replace("://", "://ann:secret@")
    with caplog.at_level(logging.DEBUG, "webdataset"):
        keys(url, cache_dir=near)
        assert caplog.text == ""
        keys(f"{web}/b/x.tar", cache_dir=near, verbose=True)
        assert "download to" in caplog.text
        monkeypatch.setenv("WDS_VERBOSE_CACHE", "1")
        keys(url, cache_dir=near)
        assert "read from" in caplog.text
    assert {record.name for record in caplog.records} == {"webdataset"}
    assert "secret" not in caplog.text


@pytest.mark.parametrize("page", [b"<!doctype html><title>Sign in</title>" * 99, b"", b"<html>", b"x" * 4096])
def test_error_pages_are_not_kept(near, pages, web, page):
    """What does not begin as a shard is an error that names the url; the next pass asks again."""
    whole, pages["/a/x.tar"] = pages["/a/x.tar"], page
    with pytest.raises(FormatError, match="not a tar archive") as caught:
        keys(f"{web}/a/x.tar", cache_dir=near)
    assert caught.value.url == f"{web}/a/x.tar"
    assert files_in(near) == []
    pages["/a/x.tar"] = whole
    assert keys(f"{web}/a/x.tar", cache_dir=near) == ["one", "two"]


@pytest.mark.parametrize("kind", archives.COMPRESSIONS)
def test_compressed_shards(near, pages, web, kind):
    """They are kept as they are."""
    pages["/c.tar"] = archives.compressed(shard("small"), kind)
    for _ in range(2):
        assert keys(f"{web}/c.tar", cache_dir=near) == ["small"]
    assert (near / kept(near)[0]).read_bytes() == pages["/c.tar"]


def test_empty_archive(near, pages, web):
    """An archive without members is a shard."""
    pages["/none.tar"] = END
    assert keys(f"{web}/none.tar", cache_dir=near, empty_check=False) == []
    assert len(kept(near)) == 1


def test_handlers(near, web):
    """A shard that cannot be had is the handler's: true goes on, false ends."""
    urls = [f"{web}/none.tar", f"{web}/a/x.tar"]
    with pytest.raises(NotFound) as caught:
        keys(urls, cache_dir=near)
    assert caught.value.url == urls[0]
    assert keys(urls, cache_dir=near, handler=wds.ignore_and_continue) == ["one", "two"]
    assert keys(urls, cache_dir=near, handler=wds.ignore_and_stop, empty_check=False) == []
    local = ["/no/such.tar", urls[1]]
    assert keys(local, cache_dir=near, handler=wds.ignore_and_continue) == ["one", "two"]
    assert keys(local, cache_dir=near, handler=wds.ignore_and_stop, empty_check=False) == []
    stage = tariterators.tarfile_to_samples(wds.ignore_and_continue, cache=ShardCache(str(near)))
    assert [sample["__key__"] for sample in stage([3, {}, {"url": urls[1]}])] == ["one", "two"]


def test_open_files_pass_through(near, tmp_path):
    """A shard given as an open file is read from it."""
    (tmp_path / "x.tar").write_bytes(shard("open"))
    with (tmp_path / "x.tar").open("rb") as opened:
        assert keys([opened], cache_dir=near) == ["open"]
    assert kept(near) == []


def test_replaced_url_opener(near, pages, web, monkeypatch):
    """A replaced tariterators.url_opener is what downloads."""
    asked = []
    original = tariterators.url_opener

    def opener(shards, handler, **kw):
        for shard in shards:
            asked.append(shard["url"])
            yield from original([{**shard, "url": shard["url"].replace("/none/", "/a/")}], handler=handler, **kw)

    monkeypatch.setattr(tariterators, "url_opener", opener)
    for _ in range(2):
        assert keys(f"{web}/none/x.tar", cache_dir=near) == ["one", "two"]
    assert asked == [f"{web}/none/x.tar"]
    monkeypatch.setattr(tariterators, "url_opener", lambda shards, handler, **kw: [])
    with pytest.raises(OSError, match="gave no stream"):
        keys(f"{web}/b/x.tar", cache_dir=near)


def test_replaced_expander(near, web, monkeypatch):
    """A replaced expander reads the cached file."""
    original = tariterators.tar_file_expander
    monkeypatch.setattr(tariterators, "tar_file_expander", lambda *a, **kw: original(*a, **kw))
    for _ in range(2):
        assert keys(f"{web}/a/x.tar", cache_dir=near) == ["one", "two"]


def test_pickled(near, web):
    """A dataset with a cache reaches a spawned worker, lambdas included."""
    dataset = wds.WebDataset(f"{web}/a/x.tar", cache_dir=near, url_to_name=lambda url: "named.tar")
    copy = pickle.loads(pickle.dumps(dataset))
    assert [sample["__key__"] for sample in copy] == ["one", "two"]
    assert kept(near) == ["named.tar"]


def test_resumes(near, pages, web):
    """A snapshot of a run without a cache is continued in a run with one, and in the cached file."""
    pages["/long.tar"] = shard(*(f"{index:04d}" for index in range(300)))
    expected = keys(f"{web}/long.tar")
    run = wds.WebDataset(f"{web}/long.tar", shardshuffle=False).start()
    first = [next(run)["__key__"] for _ in range(123)]
    state = run.snapshot()
    run.close()
    for _ in range(2):
        dataset = wds.WebDataset(f"{web}/long.tar", shardshuffle=False, cache_dir=near)
        assert first + [sample["__key__"] for sample in dataset.start(state=state)] == expected


def test_strict_trust(near, web):
    """Commands stay forbidden; the cache's own files can be read."""
    with pytest.raises(UsageError, match="pipe"):
        keys(f"pipe:curl -s {web}/a/x.tar", cache_dir=near, trust="strict")
    for _ in range(2):
        assert keys(f"{web}/a/x.tar", cache_dir=near, trust="strict") == ["one", "two"]


def test_bound(near, pages, web):
    """The directory stays below its size; what was used least recently goes first."""
    pages.update({f"/{index}.tar": shard(f"{index}") for index in range(4)})
    size = len(pages["/0.tar"])
    options = {"cache_dir": near, "cache_size": 3 * size}
    for index in (0, 1, 2, 0, 3):
        assert keys(f"{web}/{index}.tar", **options) == [str(index)]
        time.sleep(0.02)
    assert [name[0] for name in kept(near)] == ["0", "2", "3"]
    assert keys(f"{web}/1.tar", cache_dir=near, cache_size=1) == ["1"]
    assert [name[0] for name in kept(near)] == ["1"]
    assert keys(f"{web}/2.tar", cache_dir=near, cache_size=-1) == ["2"]
    assert len(kept(near)) == 2


def test_bound_spares_what_users_placed(near, web):
    """Only downloads are deleted, also those under names of url_to_name."""
    (near / "mine.tar").write_bytes(shard("placed") * 3)
    (near / "notes.txt").write_text("keep")
    options = {"cache_dir": near, "cache_size": 1}
    name = lambda url: url.split("/")[-2] + ".tar"
    keys(f"{web}/a/x.tar", **options)
    keys(f"{web}/a/x.tar", **options, url_to_name=name)
    assert kept(near) == ["a.tar", "mine.tar", "notes.txt"]
    keys(f"{web}/b/x.tar", **options, url_to_name=name)
    assert kept(near) == ["b.tar", "mine.tar", "notes.txt"]


def test_bound_spares_open_files(near, web):
    """A file that this process reads stays until it is closed; what finds no room beside it is not kept."""
    options = {"shardshuffle": False, "cache_dir": near, "cache_size": 1}
    reading = iter(wds.WebDataset(f"{web}/a/x.tar", **options))
    first = next(reading)
    while not kept(near):
        time.sleep(0.005)
    for _ in range(2):
        assert keys(f"{web}/b/x.tar", cache_dir=near, cache_size=1) == ["three"]
        assert kept(near) == [Path(first["__local_path__"]).name]
    assert len(list(reading)) == 1
    assert locks.open_paths() == set()
    assert keys(f"{web}/b/x.tar", cache_dir=near, cache_size=1) == ["three"]
    assert kept(near) != [Path(first["__local_path__"]).name]
    assert len(kept(near)) == 1


def test_one_chosen_name_for_two_shards(near, web):
    """The second shard gets a name of its own, with a warning, whichever comes first; mirrors share their file."""
    name = lambda url: "x.tar"
    for told in (pytest.warns(UserWarning, match="for two shards"), contextlib.nullcontext()):
        assert keys(f"{web}/a/x.tar", cache_dir=near, url_to_name=name) == ["one", "two"]
        with told:
            assert keys(f"{web}/b/x.tar", cache_dir=near, url_to_name=name) == ["three"]
    assert len(kept(near)) == 2
    mirror = web.replace("127.0.0.1", "localhost")
    assert keys(f"{mirror}/a/x.tar", cache_dir=near, url_to_name=name) == ["one", "two"]
    assert len(kept(near)) == 2


def test_stale_downloads_are_swept(near):
    """Of single downloads: partial files of dead processes go after a day; others, and what only looks so, stay."""
    dead = 2**22 + 1  # above every process number
    names = {
        f".wds-{dead}-aa.part": 2,
        f".wds-{10**30}-aa.part": 2,
        f".wds-{dead}-bb.part": 0,
        f".wds-{os.getpid()}-cc.part": 2,
        ".wds-1-dd.part": 2,
        f".wds-{dead}-aa.parts": 2,
        "x.part": 2,
    }
    for name, days in names.items():
        (near / name).write_bytes(b"")
        then = time.time() - days * 24 * 3600 - 60
        os.utime(near / name, (then, then))
    with locks.TemporaryDownload(near / "x.tar"):
        pass
    left = {path.name for path in near.iterdir()} & set(names)
    assert left == set(list(names)[2:])


def test_a_published_download_can_be_read(near):
    """The file that ``publish`` returns stays open, and under its name; one that was not published goes."""
    with locks.TemporaryDownload(near / "a.tar") as download:
        download.write(b"content")
        stream = download.publish()
    with stream:
        assert stream.read() == b"content"
    with locks.TemporaryDownload(near / "b.tar") as download:
        download.write(b"content")
    assert [path.name for path in near.iterdir()] == ["a.tar"]


def test_a_folder_in_the_way(near, web):
    """What cannot be replaced is said once, and shards are streamed."""
    (near / "taken.tar").mkdir()
    dataset = wds.WebDataset(f"{web}/a/x.tar", cache_dir=near, url_to_name=lambda _: "taken.tar")
    with pytest.warns(UserWarning, match="streamed") as warned:
        assert len(list(dataset)) == 2
    assert len(warned) == 1
    assert len(list(dataset)) == 2  # a second warning would be an error
    assert kept(near) == []


def test_stages_of_0_2(near, web, tmp_path, monkeypatch):
    """cached_tarfile_to_samples and cached_url_opener, as 0.2.86 has them."""
    url = {"url": f"{web}/a/x.tar"}
    for stage in (
        cache.cached_tarfile_to_samples(cache_dir=near),
        cache.cached_tarfile_to_samples(cache_dir=str(near)),
    ):
        pipeline = wds.DataPipeline(wds.SimpleShardList([url["url"]]), stage)
        assert [sample["__key__"] for sample in pipeline] == ["one", "two"]
    assert [sample["__key__"] for sample in cache.cached_tarfile_samples([url], cache_dir=near)] == ["one", "two"]
    (opened,) = cache.cached_url_opener([url], cache_dir=near)
    with opened["stream"] as stream:
        assert tarfile.open(fileobj=stream).getnames() == ["one.txt", "two.txt"]
    assert len(kept(near)) == 1
    monkeypatch.chdir(tmp_path)
    Path("local.tar").write_bytes(shard("local"))
    stage = cache.cached_tarfile_to_samples(always=True)
    assert [sample["__key__"] for sample in stage([{"url": "local.tar"}])] == ["local"]
    assert len(kept(tmp_path / "_cache")) == 1
    cache.lru_cleanup("_cache", 0)
    assert kept(tmp_path / "_cache") == []


@pytest.mark.parametrize("given", [None, lambda _url: "x.tar"])
def test_urls_that_differ_by_query_or_case_are_other_shards(given, near):
    """``?v=1`` and ``?v=2``, ``x.tar`` and ``X.tar``: each is given its own bytes, again from the cache."""
    pages = {
        "/x.tar?v=1": shard("one"),
        "/x.tar?v=2": shard("two"),
        "/X.tar?v=1": shard("three"),
        "/x.tar": shard("four"),
    }
    expected = ["one", "two", "three", "four"]
    with sources.RangeServer(pages) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        urls = [server.root + path for path in pages]
        for _ in range(2):
            assert keys(urls, cache_dir=near, url_to_name=given) == expected
        fetched = len(server.asked)
        assert keys(urls[::-1], cache_dir=near, url_to_name=given) == expected[::-1]
        assert len(server.asked) == fetched
    names = [name for name in os.listdir(near) if name.endswith(".tar")]
    assert len({name.lower() for name in names}) == len(pages)


def test_a_new_signature_is_no_other_shard(near):
    """Under a chosen name, too: what changes with each signature is left out, and what stands beside it counts."""
    options = {"cache_dir": near, "url_to_name": lambda _url: "x.tar"}
    urls = [f"/x.tar?token={token}&v=1&Expires=1{token}" for token in "ab"]
    with sources.RangeServer(dict.fromkeys(urls, shard("one"))) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        for url in urls:
            assert keys(server.root + url, **options) == ["one"]
        assert len(server.asked) == 1
    assert [name for name in os.listdir(near) if name.endswith(".tar")] == ["x.tar"]


@pytest.mark.parametrize("makes_again", [False, True])
def test_a_directory_that_vanishes_in_the_middle(web, near, makes_again):
    """All samples come, of the shard that is open and of the next ones; nothing is lost with the directory."""
    urls = [f"{web}/a/x.tar", f"{web}/b/x.tar"] * 2
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in wds.WebDataset(urls, shardshuffle=False, cache_dir=near):
            found.append(sample["__key__"])
            if len(found) in (1, 4):
                shutil.rmtree(near, ignore_errors=True)
                if makes_again:
                    # the thread that downloads may have made it already
                    near.mkdir(exist_ok=True)
    assert found == ["one", "two", "three"] * 2
