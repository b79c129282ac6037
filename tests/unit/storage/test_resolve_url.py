"""What a url leads to is decided once for each shard: rewritten once, its opener and its route looked for once."""

import functools
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import webdataset as wds
from webdataset import gopen
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.errors import UsageError
from webdataset.samples.shard_opener import open_shards
from webdataset.storage import open_url, prefetch, prefetch_worker, profile_registry
from webdataset.storage.open_url import ResolvedUrl, gopen_schemes, resolve_url
from webdataset.testing.archives import archive, member
from webdataset.testing.sources import RangeServer

SHARDS = 5
BODY = archive(member(b"a.txt", b"1" * 2000), member(b"b.txt", b"2" * 2000))
COUNTED = {
    function.__code__: function.__name__
    for function in (open_url.rewrite_url, open_url.find_opener, profile_registry.has_route, profile_registry.is_s3)
}


class Calls:
    """Counts calls of functions, and of files' functions, in all threads while it is entered."""

    def __init__(self):
        self.functions, self.files = Counter(), Counter()

    def note(self, frame, event, _argument):
        """Count one call."""
        if event == "call":
            self.functions[COUNTED.get(frame.f_code)] += 1
            self.files[Path(frame.f_code.co_filename).name] += 1

    def __enter__(self):
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_failure):
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def decisions(self):
        """How often urls were rewritten, and their openers and routes looked for."""
        return tuple(self.functions[name] for name in ("rewrite_url", "find_opener", "has_route"))


@pytest.fixture
def server():
    """A server of some shards, as a bucket and as web pages."""
    with RangeServer({f"/bucket/{number}.tar": BODY for number in range(SHARDS)}) as running:
        yield running


def count_run(dataset):
    """Iterate a dataset once to load what it needs, and count in the second run."""
    assert len(list(dataset)) == 2 * SHARDS
    with Calls() as calls:
        assert len(list(dataset)) == 2 * SHARDS
    return calls


@pytest.fixture
def local(tmp_path):
    """Shards in files."""
    for number in range(SHARDS):
        (tmp_path / f"{number}.tar").write_bytes(BODY)
    return [str(tmp_path / f"{number}.tar") for number in range(SHARDS)]


def test_a_local_shard(local):
    """Its url is rewritten once, its opener looked for once; no function of a prefetch module is called."""
    calls = count_run(wds.WebDataset(local, shardshuffle=False))
    assert calls.decisions == (SHARDS, SHARDS, 0)
    assert not {name for name in calls.files if name.startswith("prefetch")}


def test_a_local_shard_of_a_dataset_with_a_cache(local, tmp_path):
    """The cache and the reader share one decision."""
    calls = count_run(wds.WebDataset(local, shardshuffle=False, cache_dir=str(tmp_path / "near")))
    assert calls.decisions == (SHARDS, SHARDS, 0)


@pytest.mark.parametrize("seconds", [-1.0, 1e9], ids=["ahead", "in turn"])
def test_a_shard_of_s3(server, monkeypatch, seconds):
    """One decision each, whether it is opened ahead of its turn or not."""
    monkeypatch.setattr(prefetch_worker, "FAR_SECONDS", seconds)
    options = {"endpoint_url": server.root, "anonymous": True}
    urls = [f"s3://bucket/{number}.tar" for number in range(SHARDS)]
    calls = count_run(wds.WebDataset(urls, shardshuffle=False, storage_options=options))
    assert calls.decisions == (SHARDS, SHARDS, SHARDS)


@pytest.mark.parametrize("prefetch", [0, None], ids=["in turn", "ahead"])
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_miss_of_the_cache(server, tmp_path, scheme, prefetch):
    """The prefetch, the cache's lookup, its name, its revalidation and the download share one decision."""
    root, options = f"{server.root}/bucket", None
    if scheme == "s3":
        root, options = "s3://bucket", {"endpoint_url": server.root, "anonymous": True}
    urls = [f"{root}/{number}.tar" for number in range(SHARDS)]
    near = tmp_path / "near"
    dataset = wds.WebDataset(urls, shardshuffle=False, storage_options=options, cache_dir=str(near), prefetch=prefetch)
    assert len(list(dataset)) == 2 * SHARDS
    shutil.rmtree(near)
    near.mkdir()
    with Calls() as calls:
        assert len(list(dataset)) == 2 * SHARDS
    assert calls.decisions == (SHARDS, SHARDS, SHARDS)
    assert len(list(near.glob("*.tar"))) == SHARDS


def test_a_hit_of_the_cache(server, tmp_path):
    """A shard that is there is looked for by one decision."""
    urls = [f"{server.root}/bucket/{number}.tar" for number in range(SHARDS)]
    calls = count_run(wds.WebDataset(urls, shardshuffle=False, cache_dir=str(tmp_path / "near")))
    assert calls.decisions == (SHARDS, SHARDS, SHARDS)


def test_an_entry_replaced_between_two_shards(local, monkeypatch):
    """Each shard is resolved when its turn comes: a replaced opener opens the next one."""
    opened = []

    def mine(url, _mode="rb", _bufsize=0, **_options):
        opened.append(url)
        return open(local[0], "rb")

    samples = iter(open_shards([{"url": url} for url in (local[0], "file:" + local[1], "mine://2")]))
    next(samples)["stream"].close()
    monkeypatch.setitem(gopen_schemes, "mine", mine)
    for shard in samples:
        shard["stream"].close()
    assert opened == ["mine://2"]


def test_what_a_url_leads_to(monkeypatch, tmp_path):
    """Its target, backend and path, and whether it is local or remote."""
    monkeypatch.setenv("WDS_REWRITE", "old:=s3://bucket/")
    rewritten = resolve_url("old:x", level="full", storage_options={"anonymous": True})
    assert (rewritten.url, rewritten.target, rewritten.backend) == ("old:x", "s3://bucket/x", "s3")
    assert (rewritten.local, rewritten.remote, rewritten.path) == (False, True, None)
    assert (rewritten.level, rewritten.storage_options) == ("full", {"anonymous": True})
    file = resolve_url("file:x%20y")
    assert (file.local, file.remote, file.path, file.backend) == (True, False, "x y", None)
    path = resolve_url(tmp_path / "file:x")
    assert (path.local, path.path) == (True, str(tmp_path / "file:x"))
    assert resolve_url(Path("file:x")).path == "file:x"
    assert (resolve_url("memory://x").remote, resolve_url("memory://x").backend) == (False, "memory")
    assert (resolve_url("pipe:cat x").remote, resolve_url("pipe:cat x").backend) == (True, None)
    assert not resolve_url("none-such://x").remote
    for given in ("-", sys.stdin):
        assert (resolve_url(given).local, resolve_url(given).remote, resolve_url(given).path) == (False, False, None)


def test_it_is_a_value():
    """It cannot be changed, and shows no secret."""
    resolved = resolve_url("https://user:word@host/x?X-Amz-Signature=abc", storage_options={"token": "canary"})
    with pytest.raises(AttributeError):
        resolved.target = "y"  # type: ignore[misc]
    assert not {"word", "abc", "canary"} & set(repr(resolved).replace("=", " ").replace(":", " ").split())
    assert "canary" not in repr(resolved)
    assert not hasattr(resolved, "__dict__")
    assert isinstance(resolved, ResolvedUrl)


def test_a_replaced_gopen_opens_by_itself(monkeypatch, local):
    """Neither rewritten nor prefetched; its storage options come along."""
    seen = []

    def mine(url, **options):
        seen.append((url, options))
        return open(local[0], "rb")

    monkeypatch.setattr(gopen, "gopen", mine)
    monkeypatch.setenv("WDS_REWRITE", "http=https")
    resolved = gopen.resolve_shard("http://host/x", trust="strict", storage_options={"token": "t"})
    assert (resolved.local, resolved.remote, resolved.service_id(), resolved.remote_object()) == (
        False,
        False,
        "",
        None,
    )
    resolved.open_stream().close()
    assert seen == [("http://host/x", {"storage_options": {"token": "t"}})]


def test_sources_are_called_where_the_cache_is_not_told_how_to_resolve(server, tmp_path):
    """A source of the caller's own opens what the cache lacks; the cache's own resolving does not replace it."""
    asked = []

    def source(shards, handler):
        shards = list(shards)
        asked.extend(shard["url"] for shard in shards)
        return open_shards(shards, handler)

    urls = [f"{server.root}/bucket/{number}.tar" for number in range(2)]
    cache = ShardCache(str(tmp_path))
    for shard in cache.open_shards([{"url": url} for url in urls], source, None):
        shard["stream"].read()
        shard["stream"].close()
    assert asked == urls
    resolve = functools.partial(resolve_url)
    for shard in cache.open_shards([{"url": f"{server.root}/bucket/4.tar"}], source, None, resolve=resolve):
        shard["stream"].close()
    assert asked == urls


def test_what_is_no_url():
    """An error that says what was given."""
    for wrong in (b"x", 3, None):
        with pytest.raises(UsageError, match="a str or a Path, not"):
            resolve_url(wrong)
    with pytest.raises(UsageError, match="a str or a Path, not ReadOnly"):
        open_url.open_url(ReadOnly(), "wb")


class ReadOnly:
    """A stream that cannot be written to."""

    def read(self, _size=-1):
        """Give nothing."""
        return b""


def test_names_of_the_prefetch_modules():
    """The test above names them by their files."""
    assert {Path(module.__file__).name for module in (prefetch, prefetch_worker)} == {
        "prefetch.py",
        "prefetch_worker.py",
    }
