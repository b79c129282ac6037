"""A process that downloads into the cache, and is stopped or has become a zombie: others wait a bounded time for it."""

import contextlib
import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

import webdataset as wds
from support.paced_server import PacedServer
from webdataset.caching import locks
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.error_handlers import reraise_exception
from webdataset.core.errors import SourceError
from webdataset.samples.shard_opener import open_shards
from webdataset.testing import archives

pytestmark = [pytest.mark.timeout(60)]

CONTENT = archives.by_tarfile(
    [(f"{number}.bin", hashlib.sha256(b"%d" % number).digest() * 4_000) for number in range(5)]
)
PATH = "/x.tar"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Waiting takes a second, where it takes a minute outside."""
    monkeypatch.setattr(locks, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(locks, "_stuck", {})


def source(shards, handler):
    """Open shards without the cache."""
    return open_shards(shards, handler)


def read(folder, url, **options):
    """Read a shard through the cache."""
    cache = ShardCache(str(folder), **options)
    (shard,) = cache.open_shards([{"url": url}], source, reraise_exception)
    with shard["stream"] as stream:
        return stream.read()


def waits_for(condition):
    """Wait until something is so."""
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@contextlib.contextmanager
def stopped_writer(folder, url, held):
    """A process that has begun to download, and was stopped: SIGSTOP."""
    child = os.fork()
    if not child:
        try:
            read(folder, url)
        finally:
            os._exit(0)
    try:
        waits_for(lambda: held(folder))
        os.kill(child, signal.SIGSTOP)
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def part_of(size):
    """Return what tells whether a part has come to a size."""
    return lambda folder: any(path.stat().st_size >= size for path in (folder / ".wds").glob("*.part"))


@pytest.mark.parametrize("complete", [False, True])
def test_a_stopped_writer_is_not_waited_for_for_ever(tmp_path, complete):
    """The rest is read at the source, once behind the wait; the next reader does not wait for that writer again."""
    with PacedServer({PATH: CONTENT}) as server:
        url = server.root + PATH
        server.hold(PATH, 300_000)
        with stopped_writer(tmp_path, url, part_of(200_000)):
            server.release()
            assert complete_or_not(tmp_path, url, complete) == CONTENT
            locks.SILENT_SECONDS = 1e9  # who waits now, waits for ever
            assert complete_or_not(tmp_path, url, complete) == CONTENT
        assert read(tmp_path, url) == CONTENT  # it was killed: this one takes over
        (kept,) = tmp_path.glob("*.tar")
        assert kept.read_bytes() == CONTENT


def complete_or_not(folder, url, complete):
    """Read a shard, as one who wants whole files or not: whoever wants a file is given the source, too."""
    if not complete:
        return read(folder, url)
    cache = ShardCache(str(folder), complete=True)
    (shard,) = cache.open_shards([{"url": url}], source, reraise_exception)
    with shard["stream"] as stream:
        return stream.read()


def test_a_stopped_writer_of_a_source_that_nobody_can_follow(tmp_path):
    """A pipe is read by its own command then."""
    original = tmp_path / "x.tar"
    original.write_bytes(CONTENT)
    folder = tmp_path / "near"
    folder.mkdir()
    url = (
        f"pipe:head -c 300000 {original}; while test -e {tmp_path}/hold; do sleep 0.1; done; tail -c +300001 {original}"
    )
    (tmp_path / "hold").touch()
    with stopped_writer(folder, url, part_of(200_000)):
        (tmp_path / "hold").unlink()
        assert read(folder, url) == CONTENT


def test_a_dataset_beside_a_stopped_one(tmp_path):
    """All samples come; and where a file is asked for, the error says that there is none."""
    with PacedServer({PATH: CONTENT}) as server:
        url = server.root + PATH
        server.hold(PATH, 300_000)
        with stopped_writer(tmp_path, url, part_of(200_000)):
            server.release()
            dataset = wds.WebDataset([url], shardshuffle=False, cache_dir=str(tmp_path))
            assert [sample["__key__"] for sample in dataset] == [str(number) for number in range(5)]
            with pytest.raises(SourceError, match="cannot be kept"):
                ShardCache(str(tmp_path)).fetch(url, source)


def test_a_zombie_with_a_marker(tmp_path, monkeypatch):
    """Where markers stand in for locks, that of a zombie, whose pid still is one, does not stand for ever."""
    monkeypatch.setattr(locks, "fcntl", None)
    with PacedServer({PATH: CONTENT}) as server:
        url = server.root + PATH
        server.hold(PATH, 300_000)
        child = os.fork()
        if not child:
            try:
                read(tmp_path, url)
            finally:
                os._exit(0)
        try:
            waits_for(lambda: part_of(200_000)(tmp_path))
            os.kill(child, signal.SIGKILL)
            waits_for(lambda: Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
            server.release()
            assert read(tmp_path, url) == CONTENT
        finally:
            os.waitpid(child, 0)


def test_a_slow_writer_is_waited_for(tmp_path):
    """One that goes on, however slowly, is followed: the shard is fetched once."""
    with PacedServer({PATH: CONTENT}, bytes_per_second=250_000) as server:
        url = server.root + PATH
        child = os.fork()
        if not child:
            try:
                read(tmp_path, url)
            finally:
                os._exit(0)
        waits_for(lambda: part_of(1)(tmp_path))
        assert read(tmp_path, url) == CONTENT
        os.waitpid(child, 0)
        assert server.downloads() == 1
