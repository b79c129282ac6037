"""Behind a cache the next shards are brought while one is read."""

import contextlib
import os
import threading
import time
from typing import Any

import pytest

import webdataset as wds
from support.paced_server import PacedServer
from webdataset.caching import shard_cache as shards_module
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.error_handlers import reraise_exception
from webdataset.samples.shard_opener import open_shards
from webdataset.testing import archives

COUNT = 5


def shard(number):
    """Return a shard of four samples of 600 kB."""
    return archives.by_tarfile([(f"{number}{index}.bin", os.urandom(600_000)) for index in range(4)])


@pytest.fixture
def server():
    """A server with five shards."""
    with PacedServer({f"/{number}.tar": shard(number) for number in range(COUNT)}) as running:
        yield running


def urls(server):
    """Return the urls of the shards in their order."""
    return [server.root + path for path in server.pages]


def opening(server, near, source=open_shards, **options):
    """Open all shards, the next ones beforehand."""
    places = [{"url": url} for url in urls(server)]
    return ShardCache(str(near), **options).open_shards(places, source, reraise_exception, prefetch=None)


def begun(stream):
    """Read so much of a shard that the next are begun; return it."""
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < 1 << 20:
        pieces.append(stream.read(200_000))
    return b"".join([*pieces, stream.read(1)])


def until(condition):
    """Wait until something is the case."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def threads():
    """Return the cache's threads."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("webdataset-cache")]


def asked(server):
    """Return which pages were asked for."""
    return {one.path for one in server.asked}


def test_the_next_two_come_while_one_is_read(server, near):
    """They are there before the first is read to its end, and no others; each is downloaded once."""
    opened = opening(server, near)
    first = next(opened)["stream"]
    first.read(1000)
    assert asked(server) == {"/0.tar"}
    begun(first)
    until(lambda: len(list(near.glob("*.tar"))) == 3)
    assert asked(server) == {"/0.tar", "/1.tar", "/2.tar"}
    second = next(opened)["stream"]
    until(lambda: len(list(near.glob("*.tar"))) == 4)
    bodies = [second.read(), *(one["stream"].read() for one in opened)]
    assert bodies == list(server.pages.values())[1:]
    assert server.downloads() == COUNT
    opened.close()
    first.close()
    second.close()
    until(lambda: not threads())


def test_datasets_bring_the_next(server, near, monkeypatch):
    """WebDataset does so, in order and completely; ``prefetch=0`` and WDS_PREFETCH_BYTES=0 do not."""
    ways: list[tuple[str, dict[str, Any], str | None, int]]
    ways = [("a", {}, None, 3), ("b", {"prefetch": 0}, None, 1), ("c", {}, "0", 1)]
    for folder, options, bytes_ahead, expected in ways:
        (near / folder).mkdir()
        if bytes_ahead is not None:
            monkeypatch.setenv("WDS_PREFETCH_BYTES", bytes_ahead)
        dataset = wds.WebDataset(urls(server), shardshuffle=False, cache_dir=near / folder, **options)
        samples = iter(dataset)
        keys = [next(samples)["__key__"] for _ in range(4)]
        until(lambda folder=folder, expected=expected: len(list((near / folder).glob("*.tar"))) >= expected)
        assert len(list((near / folder).glob("*.tar"))) == expected
        keys += [sample["__key__"] for sample in samples]
        assert keys == [f"{number}{index}" for number in range(COUNT) for index in range(4)]


def test_who_leaves_early_begins_nothing(server, near):
    """One sample costs one request; and what was begun ends quietly when nobody reads any more."""
    samples = iter(wds.WebDataset(urls(server), shardshuffle=False, cache_dir=near))
    next(samples)
    samples.close()
    assert asked(server) == {"/0.tar"}
    server.hold("/1.tar", 100_000)
    server.hold("/2.tar", 0)
    opened = opening(server, near)
    stream = next(opened)["stream"]
    begun(stream)
    until(lambda: len(asked(server)) == 3)
    opened.close()
    stream.close()
    server.release()
    until(lambda: not threads() and not list(near.glob(".wds/*.lock")))
    assert [one["stream"].read() for one in opening(server, near)] == list(server.pages.values())


def test_no_room_for_the_next(server, near):
    """Where the directory holds one shard, one at a time is kept, and all bytes come; the bound holds."""
    size = max(map(len, server.pages.values()))
    largest = 0
    for index, one in enumerate(opening(server, near, size_bytes=size + 1000)):
        with one["stream"] as stream:
            assert stream.read() == server.pages[f"/{index}.tar"]
        # renamed by the one that reads ahead since it was listed, or deleted for it: then they were not there together
        with contextlib.suppress(FileNotFoundError):
            files = [path for path in near.rglob("*") if path.suffix in (".tar", ".part")]
            size_bytes = sum(path.stat().st_size for path in files)
            if all(path.exists() for path in files):
                largest = max(largest, size_bytes)
    assert 0 < largest <= size + 1000
    assert server.downloads() <= COUNT + 2  # each of two may have been asked for, and found no room


def test_failures_keep_their_place(server, near):
    """A shard that cannot be had is the handler's when its turn comes, after the samples of those before it."""
    server.pages.pop("/2.tar")
    places = [f"{server.root}/{number}.tar" for number in range(COUNT)]
    errors = []

    def handler(error):
        errors.append((error, len(keys)))
        return True

    keys = []
    for sample in wds.WebDataset(places, shardshuffle=False, cache_dir=near, handler=handler):
        keys.append(sample["__key__"])
    assert keys == [f"{number}{index}" for number in (0, 1, 3, 4) for index in range(4)]
    assert [(type(error).__name__, count) for error, count in errors] == [("NotFound", 8)]


def test_a_list_that_fails_keeps_its_place(server, near):
    """What the list of shards raises comes after the shards before it."""

    def places():
        for url in urls(server)[:2]:
            yield {"url": url}
        raise RuntimeError("no more")

    opened, bodies = ShardCache(str(near)).open_shards(places(), open_shards, reraise_exception, prefetch=None), []
    for _ in range(2):
        with next(opened)["stream"] as stream:
            bodies.append(begun(stream) + stream.read())
    assert bodies == list(server.pages.values())[:2]
    with pytest.raises(RuntimeError, match="no more"):
        next(opened)


def test_a_fork_before_the_next(server, near):
    """A child that goes on opens what its parent's thread had opened by itself."""
    opened = opening(server, near)
    first = next(opened)["stream"]
    body = begun(first)
    until(lambda: len(list(near.glob("*.tar"))) == 3)
    child = os.fork()
    if not child:
        try:
            bodies = [body + first.read(), *(one["stream"].read() for one in opened)]
            os._exit(0 if bodies == list(server.pages.values()) else 4)
        except BaseException:
            os._exit(3)
    assert [body + first.read(), *(one["stream"].read() for one in opened)] == list(server.pages.values())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    first.close()


def test_a_warning_from_ahead_is_not_lost(server, near, monkeypatch):
    """What a thread has to say about the directory is said once, and no sample is missing."""
    monkeypatch.setattr(shards_module, "_failed_folders", {})
    opened = opening(server, near)
    first = next(opened)["stream"]
    first.read(2)
    until(lambda: list(near.glob("*.tar")))
    (near / ".wds").rename(near / "away")
    (near / ".wds").write_bytes(b"in the way")
    with pytest.warns(UserWarning, match="cannot be used") as warned:
        bodies = [begun(first)] + [one["stream"].read() for one in opened]
    assert len(warned) == 1
    assert bodies[1:] == list(server.pages.values())[1:]
    first.close()


def test_the_same_shard_twice(near):
    """A list that names one shard again and again, of which nobody can prove anything, does not wait for itself."""
    with PacedServer({"/x.tar": shard(1)}, etags=False) as server:
        places = [{"url": f"{server.root}/x.tar"}] * 4
        for one in ShardCache(str(near)).open_shards(places, open_shards, reraise_exception, prefetch=None):
            with one["stream"] as stream:
                assert begun(stream) + stream.read() == server.pages["/x.tar"]
        assert server.downloads() == 1


def test_nothing_is_begun_for_who_has_left(server, near):
    """A stream that is read on after its list was left neither asks the list nor begins a shard."""
    given = []

    def places():
        for url in urls(server):
            given.append(url)
            yield {"url": url}

    opened = ShardCache(str(near)).open_shards(places(), open_shards, reraise_exception, prefetch=None)
    stream = next(opened)["stream"]
    opened.close()
    assert begun(stream) + stream.read() == server.pages["/0.tar"]
    assert len(given) == 1
    assert asked(server) == {"/0.tar"}
    stream.close()
