"""Which object a stream reads, for every scheme: equal through every way to it, another one once it is replaced."""

import pytest

from support.readings import shard
from support.scheme_servers import NAMES
from webdataset.caching.shard_cache import ShardCache
from webdataset.samples.shard_opener import open_shards
from webdataset.storage.open_url import open_stream
from webdataset.storage.random_access import open_ranges
from webdataset.storage.streams import stream_identity

BODY, OTHER = shard(1), shard(2)
KEY = "identity.tar"


def seen(target):
    """Return what every way to an object says it is: streamed, read ahead, from anywhere."""
    stream = open_stream(target.url, storage_options=target.options)
    found = [stream_identity(stream)]
    stream.read(10)
    stream.close()
    found.append(stream_identity(stream))
    for opened in open_shards([{"url": target.url}], storage_options=target.options):
        found.append(stream_identity(opened["stream"]))
        opened["stream"].close()
    with open_ranges(target.url, storage_options=target.options) as ranges:
        found.append(stream_identity(ranges))
    return found


def kept(target, folder):
    """Return what streams of the cache say: while it is filled, and when it is whole."""

    def source(shards, handler):
        return open_shards(shards, handler, storage_options=target.options)

    found = []
    for _ in range(2):
        cache = ShardCache(str(folder))
        (opened,) = cache.open_shards([{"url": target.url}], source, None, storage_options=target.options)
        stream = opened["stream"]
        found.append(stream_identity(stream))
        assert stream.read() == BODY
        stream.close()
        found.append(stream_identity(stream))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_way_to_an_object_names_it_alike(scheme_of, tmp_path, name):
    """Streamed, ahead of its turn, anywhere, into the cache and out of it; a replaced object is another one."""
    scheme = scheme_of(name)
    scheme.put(KEY, BODY)
    target = scheme.target(KEY)
    (first,) = set(seen(target))
    assert first[0] == len(BODY)
    assert isinstance(first[1], str)
    (tmp_path / "cache").mkdir()
    assert set(kept(target, tmp_path / "cache")) == {first}
    scheme.put(KEY, OTHER)
    (second,) = set(seen(target))
    assert second[0] == len(OTHER)
    assert second[1] != first[1]
