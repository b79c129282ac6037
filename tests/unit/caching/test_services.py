"""Copies of equal urls of two services are two files."""

import io

import pytest

import webdataset as wds
from support.profiles import bare_home
from webdataset import config
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.error_handlers import reraise_exception


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    bare_home(monkeypatch, tmp_path)
    with config.temporary():
        yield


def shard(text):
    """Return a shard with one sample."""
    stream = io.BytesIO()
    with wds.TarWriter(stream) as sink:
        sink.write({"__key__": "a", "txt": text})
    return stream.getvalue()


def read(cache, url, body, **options):
    """Return what the cache gives for a url whose source has this body."""

    def source(shards, _handler):
        return ({**each, "stream": io.BytesIO(body)} for each in shards)

    (opened,) = cache.open_shards([{"url": url}], source, reraise_exception, **options)
    with opened["stream"] as stream:
        return stream.read()


def test_profiles_keep_their_own_copies(tmp_path):
    """One bucket and key at two endpoints: neither is read for the other."""
    folder = tmp_path / "cache"
    folder.mkdir()
    cache = ShardCache(str(folder))
    for name in ("here", "there"):
        config.profile(name, endpoint_url=f"http://{name}.example:9000")
    urls = ("s3+here://bucket/a.tar", "s3+there://bucket/a.tar")
    bodies = [shard("first"), shard("second")]
    assert [read(cache, url, body) for url, body in zip(urls, bodies, strict=True)] == bodies
    assert [read(cache, url, b"") for url in urls] == bodies


def test_storage_options_tell_services_apart(tmp_path):
    """The url is the same, the dataset's options are not."""
    folder = tmp_path / "cache"
    folder.mkdir()
    cache = ShardCache(str(folder))
    config.profile("here", endpoint_url="http://here.example:9000")
    options = ({"profile": "here"}, {"endpoint_url": "http://there.example"}, None)
    bodies = [shard(str(number)) for number in range(3)]
    for _ in range(2):
        for chosen, body in zip(options, bodies, strict=True):
            assert read(cache, "s3://bucket/a.tar", body, storage_options=chosen) == body
    assert len(list(folder.glob("*.tar"))) == 3
