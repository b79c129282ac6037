"""The compatibility module ``cache``: the names of 0.2.86 and of 1.0.2, over one cache."""

import os
from pathlib import Path

import pytest

import webdataset as wds
from webdataset import cache
from webdataset.core.errors import FormatError, NotFound, SourceError
from webdataset.testing import archives


@pytest.fixture
def shard(tmp_path):
    """One shard."""
    path = tmp_path / "a.tar"
    path.write_bytes(archives.by_hand([("k.txt", b"1"), ("k.cls", b"2")]))
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """A cache directory that is not there yet."""
    return tmp_path / "cache"


def texts(samples):
    """Fields, in order."""
    return [sample["txt"] for sample in samples]


STAGES = {
    "cached_tarfile_to_samples": lambda folder: cache.cached_tarfile_to_samples(cache_dir=folder),
    "cached_tarfile_samples": lambda folder: lambda src: cache.cached_tarfile_samples(src, cache_dir=folder),
    "maybe": lambda folder: lambda src: cache.maybe_cached_tarfile_to_samples(src, cache_dir=folder),
    "cached_url_opener": lambda folder: (
        lambda src: cache.group_by_keys(cache.tar_file_expander(cache.cached_url_opener(src, cache_dir=folder)))
    ),
    "FileCache": lambda folder: lambda src: cache.group_by_keys(cache.tar_file_expander(cache.FileCache(folder)(src))),
}


@pytest.mark.parametrize("name", STAGES)
def test_every_name_reads_through_the_cache(name, shard, folder):
    """The second pass needs no source; both give the same samples."""
    pipeline = wds.DataPipeline(wds.SimpleShardList(f"pipe:cat {shard}"), STAGES[name](folder))
    assert texts(pipeline) == [b"1"]
    os.unlink(shard)
    assert len(list(folder.glob("[!.]*"))) == 1
    assert texts(pipeline) == [b"1"]


def test_the_uncalled_name_is_a_stage(shard, tmp_path, monkeypatch):
    """As 0.2.86 shows it: the function stands in the pipeline, the directory comes from the environment."""
    monkeypatch.setenv("WDS_CACHE", str(tmp_path / "env"))
    pipeline = wds.DataPipeline(wds.SimpleShardList(f"pipe:cat {shard}"), wds.cached_tarfile_samples)
    assert texts(pipeline) == [b"1"]
    assert len(list((tmp_path / "env").glob("[!.]*"))) == 1


def test_maybe_cached_without_a_cache(shard, folder):
    """A size of 0 is no cache."""
    src = [{"url": f"pipe:cat {shard}"}]
    assert texts(wds.maybe_cached_tarfile_to_samples(src, cache_size=0, cache_dir=folder)) == [b"1"]
    assert not folder.exists()


def test_file_cache_gives_files(shard, folder):
    """Dicts with url, stream and local_path; local files are read in place."""
    stage = cache.FileCache(folder, verbose=False, cache_size=10**9, cache_cleanup_interval=1)
    opened = list(stage([{"url": f"pipe:cat {shard}"}, {"url": shard}, {"url": f"file:{shard}"}]))
    assert [entry["local_path"] for entry in opened[1:]] == [shard, shard]
    assert os.path.dirname(opened[0]["local_path"]) == str(folder)
    for entry in opened:
        with entry["stream"] as stream:
            assert stream.read() == Path(entry["local_path"]).read_bytes()


def test_get_file(shard, folder):
    """One url to one path, by the class of 1.0.2 and by the function of 0.2.86."""
    path = cache.FileCache(folder).get_file(f"pipe:cat {shard}")
    assert Path(path).read_bytes() == Path(shard).read_bytes()
    assert cache.get_file_cached(f"pipe:cat {shard}", cache_dir=folder) == path
    assert cache.get_file_cached(shard, cache_dir=folder) == shard
    with pytest.raises(NotFound):
        cache.download("nothing.tar", folder / "y.tar")
    with pytest.raises(SourceError):
        cache.FileCache(folder).get_file("pipe:false")


def test_file_cache_hands_failures_to_its_handler(shard, folder):
    """A shard that cannot be had is stepped over, and the next one comes."""
    stage = cache.FileCache(folder, handler=wds.ignore_and_continue)
    opened = list(stage([{"url": "pipe:exit 3"}, {"url": f"pipe:cat {shard}"}]))
    for entry in opened:
        entry["stream"].close()
    assert [entry["url"] for entry in opened] == [f"pipe:cat {shard}"]


def test_a_validator_of_ones_own(tmp_path, folder):
    """It is asked instead of our look at the bytes: refuses shards, and lets other files in."""
    text = tmp_path / "a.txt"
    text.write_text("no archive")
    with pytest.raises(FormatError, match="not a tar archive"):
        cache.FileCache(folder).get_file(f"pipe:cat {text}")
    kept = cache.FileCache(folder, validator=lambda path: Path(path).read_text() == "no archive").get_file(
        f"pipe:cat {text}"
    )
    assert Path(kept).read_text() == "no archive"
    with pytest.raises(FormatError, match="refuses"):
        cache.FileCache(folder, validator=lambda path: False).get_file(f"pipe:cat  {text}")


def test_streaming_open(shard):
    """Opens without a cache; an error goes to the handler."""
    stage = cache.StreamingOpen(handler=wds.ignore_and_continue)
    opened = list(stage([{"url": "/nothing.tar"}, {"url": shard}, {"url": f"pipe:cat {shard}"}]))
    assert [entry["local_path"] for entry in opened] == [shard, None]
    for entry in opened:
        with entry["stream"] as stream:
            assert stream.read() == Path(shard).read_bytes()


def test_two_hosts_do_not_share_a_file(folder):
    """The name of 1.0.2 is still computed, and by default not used: it makes two urls one file."""
    names = {cache.url_to_cache_name(url) for url in ("http://a/x/c.tar", "http://b/y/c.tar")}
    assert names == {"c.tar"}
    assert cache.FileCache(folder).cache.url_to_name is None


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("http://h/a/b/c.tar", ("c.tar", "b/c.tar", "a/b/c.tar")),
        ("s3://b/k/c.tar?x=1#y", ("c.tar", "k/c.tar", "k/c.tar")),
        ("file:a/b.tar", ("b.tar", "a/b.tar", "a/b.tar")),
        ("a/b.tar", ("b.tar", "a/b.tar", "a/b.tar")),
        ("pipe:cat x/y.tar", ("pipe%3Acat%20x%2Fy.tar",) * 3),
    ],
)
def test_url_to_cache_name(url, names):
    """Equal to what 0.2.111 and 1.0.2 give, folder by folder."""
    assert tuple(cache.url_to_cache_name(url, ndir) for ndir in range(3)) == names


def test_small_functions(shard, tmp_path):
    """What kind of file it is, whether a url is local, one download."""
    text = tmp_path / "a.txt"
    text.write_text("x")
    assert cache.check_tar_format(shard)
    assert not cache.check_tar_format(text)
    assert not cache.check_tar_format(tmp_path / "nothing")
    assert "tar archive" in cache.get_filetype(shard)
    assert cache.magic_filetype(str(text)).endswith("data")
    assert [cache.islocal(url) for url in ("a", "file:a", "http://x", "pipe:x")] == [True, True, False, False]
    cache.download(f"pipe:cat {shard}", tmp_path / "copy.tar", verbose=True)
    assert (tmp_path / "copy.tar").read_bytes() == Path(shard).read_bytes()
    with pytest.raises(SourceError):
        cache.download("pipe:echo half; exit 1", tmp_path / "half.tar")
    assert not (tmp_path / "half.tar").exists()


def test_defaults_follow_the_environment_and_assignment(shard, tmp_path, monkeypatch):
    """Read when asked for; a directory assigned in the module is used."""
    monkeypatch.chdir(tmp_path)
    assert (cache.default_cache_dir, cache.default_cache_size, cache.verbose_cache) == ("./_cache", 1e18, 0)
    monkeypatch.setenv("WDS_CACHE", "elsewhere")
    monkeypatch.setenv("WDS_CACHE_SIZE", "5")
    monkeypatch.setenv("WDS_VERBOSE_CACHE", "1")
    assert (cache.default_cache_dir, cache.default_cache_size, cache.verbose_cache) == ("elsewhere", 5, 1)
    monkeypatch.setattr(cache, "default_cache_dir", "mine", raising=False)
    path = cache.get_file_cached(f"pipe:cat {shard}")
    assert os.path.relpath(os.path.dirname(path)) == "mine"
