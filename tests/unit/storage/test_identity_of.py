"""Which object a stream reads: each kind of stream that this library or other code opens."""

import gzip
import io
import os
import tempfile

import pytest

import webdataset as wds
from webdataset.caching.shard_cache import ShardCache
from webdataset.samples.shard_opener import open_shards
from webdataset.storage.backends import memory
from webdataset.storage.open_url import open_stream
from webdataset.storage.prefetch import PrefetchedStream
from webdataset.storage.prefetch_worker import ReadRate
from webdataset.storage.random_access import open_ranges
from webdataset.storage.streams import stream_identity
from webdataset.testing import archives
from webdataset.testing.sources import Answering, FaultyStream, Listening

BODY = archives.by_tarfile([("a.txt", b"one"), ("b.txt", b"two")])


@pytest.fixture
def path(tmp_path):
    """A local shard with a time of its own."""
    file = tmp_path / "x.tar"
    file.write_bytes(BODY)
    os.utime(file, ns=(5, 1_600_000_000_123_456_789))
    return file


LOCAL = (len(BODY), "1600000000123456789")


def test_a_local_file_is_named_by_size_and_time(path):
    """As a path, as a url, and after it was closed; a copy with the same time is the same, wherever it lies."""
    for url in (path, str(path), f"file:{path}"):
        stream = open_stream(url)
        assert stream_identity(stream) == LOCAL
        stream.close()
        assert stream_identity(stream) == LOCAL
    with open_ranges(str(path)) as ranges:
        assert stream_identity(ranges) == LOCAL
    copy = path.with_name("copy.tar")
    copy.write_bytes(BODY)
    os.utime(copy, ns=(7, int(LOCAL[1])))
    with open_stream(copy) as stream:
        assert stream_identity(stream) == LOCAL
    os.utime(copy, ns=(7, int(LOCAL[1]) + 1))
    with open_stream(copy) as stream:
        assert stream_identity(stream) == (len(BODY), "1600000000123456790")


def test_what_is_opened_is_named_not_what_comes_later(path):
    """An open file keeps the name that it had, also where another file has taken its place."""
    with open_stream(path) as stream:
        path.write_bytes(b"another")
        assert stream_identity(stream) == LOCAL


def test_files_of_other_people_are_asked(path):
    """Buffered, wrapped, a decompressor over a file (the file is what is stored), stdin from a file."""
    with open(path, "rb") as stream:
        assert stream_identity(stream) == stream_identity(open_stream(stream)) == LOCAL
    with open(path, "rb", buffering=0) as stream:
        assert stream_identity(stream) == LOCAL
    with wds.gopen(str(path)) as stream:
        assert stream_identity(stream) == LOCAL
    packed = path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(BODY))
    status = packed.stat()
    with gzip.open(packed) as stream:
        assert stream_identity(stream) == (status.st_size, str(status.st_mtime_ns))
    assert stream_identity(stream) == (None, None)


def test_what_does_not_say_has_no_name(tmp_path):
    """Pipes, memory without a version, foreign objects; a spooled file stays in memory."""
    with wds.gopen("pipe:printf x") as stream:
        assert stream_identity(stream) == (None, None)
        stream.read()
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        assert stream_identity(stream) == (None, None)
    assert stream_identity(FaultyStream(BODY)) == stream_identity(object()) == (None, None)
    assert stream_identity(io.BytesIO(BODY)) == (len(BODY), None)
    with tempfile.SpooledTemporaryFile() as stream:
        stream.write(b"x")
        assert stream_identity(stream) == (None, None)
        assert not stream._rolled


def test_named_pipes_have_no_name(tmp_path):
    """A file that is no regular file says nothing of its size."""
    os.mkfifo(tmp_path / "pipe")
    holder = os.open(tmp_path / "pipe", os.O_RDWR)
    with open_stream(tmp_path / "pipe") as stream:
        assert stream_identity(stream) == (None, None)
    os.close(holder)


def test_a_stream_that_is_read_ahead_is_what_it_wraps(path):
    """Before and after it was closed."""
    stream = PrefetchedStream(open_stream(path), ReadRate())
    assert stream_identity(stream) == LOCAL
    stream.close()
    assert stream_identity(stream) == LOCAL


@pytest.mark.parametrize(
    ("etag", "modified", "validator"),
    [
        ('"one"', None, '"one"'),
        ('W/"one"', "Wed, 01 Jan 2025 00:00:00 GMT", "Wed, 01 Jan 2025 00:00:00 GMT"),
        (None, "Wed, 01 Jan 2025 00:00:00 GMT", "Wed, 01 Jan 2025 00:00:00 GMT"),
        (None, None, None),
    ],
)
def test_strong_etag_then_date(etag, modified, validator):
    """A weak ETag says nothing of bytes; a server that says nothing gives a size alone."""

    class Telling(Answering):
        def do_GET(self):
            """Give the shard, with the headers of this case."""
            headers = {"ETag": etag, "Last-Modified": modified}
            self.send(200, BODY, **{name: text for name, text in headers.items() if text is not None})

    with Listening(Telling) as server, open_stream(f"{server.url}/x.tar") as stream:
        assert stream_identity(stream) == (len(BODY), validator)
        stream.read()
    assert stream_identity(stream) == (len(BODY), validator)


def test_open_files_of_fsspec():
    """What the file system has said of it at the opening; nothing is asked again."""
    fsspec = pytest.importorskip("fsspec")
    filesystem = fsspec.filesystem("memory", skip_instance_cache=True)
    filesystem.pipe_file("/identity.tar", BODY)

    class Buffered(fsspec.spec.AbstractBufferedFile):
        def _fetch_range(self, start, end):
            return BODY[start:end]

    facts = {"name": "/identity.tar", "size": len(BODY), "type": "file", "ETag": '"one"', "mtime": 7}
    filesystem.info = lambda *_, **_k: facts
    with Buffered(filesystem, "/identity.tar") as stream:
        filesystem.info = None
        assert stream_identity(stream) == (len(BODY), '"one"')
        del facts["ETag"]
        assert stream_identity(stream) == (len(BODY), "7")


def test_the_cache_names_the_source(path, tmp_path):
    """A copy, growing or whole, is what its source is; a user's file in its place is itself."""
    folder = tmp_path / "cache"
    folder.mkdir()
    memory.clear()
    with wds.gopen("memory://demo/x.tar", "wb") as stream:
        stream.write(BODY)
    with open_stream("memory://demo/x.tar") as stream:
        named = stream_identity(stream)
    assert named[0] == len(BODY)
    assert named[1]
    cache = ShardCache(str(folder), always=True)
    for url, expected in (("memory://demo/x.tar", named), (str(path), LOCAL), ("pipe:cat " + str(path), None)):
        for time in range(2):
            (shard,) = cache.open_shards([{"url": url}], open_shards, None)
            if expected is not None:
                assert stream_identity(shard["stream"]) == expected, (url, time)
            else:
                assert stream_identity(shard["stream"])[1] is None
            assert shard["stream"].read() == BODY
            shard["stream"].close()
    mine = folder / "y.tar"
    mine.write_bytes(BODY)
    (shard,) = cache.open_shards([{"url": "memory://demo/y.tar"}], open_shards, None)
    assert stream_identity(shard["stream"]) == (len(BODY), str(mine.stat().st_mtime_ns))
    shard["stream"].close()
    memory.clear()
