"""One entry: its states, and how often a miss and a hit ask the directory, the record and the url."""

import collections
import contextlib
import os
import sys
import threading
import time

import pytest

from support.paced_server import PacedServer
from webdataset.caching import metadata
from webdataset.caching.entry import CacheEntry, EntryState
from webdataset.caching.eviction import Quota
from webdataset.caching.names import EntryPaths
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.error_handlers import reraise_exception
from webdataset.samples.shard_opener import open_shards
from webdataset.storage.open_url import resolve_url
from webdataset.testing import archives

SHARD = archives.by_tarfile([(f"{index}.bin", os.urandom(60_000)) for index in range(8)])
FUNCTIONS = ("open_whole", "read_metadata", "resolve_url", "rewrite_url", "find_opener", "open_source", "open_rest")

SYSTEM = ("open", "stat", "fstat", "lstat")


@pytest.fixture
def server():
    """A server with one shard."""
    with PacedServer({"/x.tar": SHARD}) as running:
        yield running


def open_one(server, near, **options):
    """Open the shard through the cache."""
    cache = ShardCache(str(near), **options)
    shards = [{"url": f"{server.root}/x.tar"}]
    (one,) = cache.open_shards(shards, open_shards, reraise_exception, resolve=resolve_url)
    return one["stream"]


def complain(reason):
    """Fail: the directory is fine."""
    pytest.fail(str(reason))


def entry_of(server, near):
    """Return the entry of the shard, as another process would see it."""
    resolved = resolve_url(f"{server.root}/x.tar")
    (name,) = {path.name.rpartition(".")[0] for path in near.glob(".wds/*.json")} or {"x.tar"}
    quota = Quota(str(near), -1, verbose=False)
    return CacheEntry(EntryPaths(str(near), name), {"url": resolved.url}, None, resolved, quota, complain)


def wait_until(condition):
    """Wait until something is the case."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_states(server, tmp_path):
    """A shard is absent, partial while it grows and when its writer has left, then whole; a user's file is no entry."""
    assert entry_of(server, tmp_path).state is EntryState.ABSENT
    server.hold("/x.tar", 100_000)
    stream = open_one(server, tmp_path)
    stream.read(1)
    assert entry_of(server, tmp_path).state is EntryState.PARTIAL
    stream.close()
    server.release()
    wait_until(lambda: not list(tmp_path.glob(".wds/*.lock")))
    assert entry_of(server, tmp_path).state is EntryState.PARTIAL
    with open_one(server, tmp_path) as stream:
        assert stream.read() == SHARD
    wait_until(lambda: entry_of(server, tmp_path).state is EntryState.WHOLE)
    (copy,) = tmp_path.glob("*.tar")
    copy.write_bytes(SHARD + b"more")
    assert entry_of(server, tmp_path).state is EntryState.ABSENT


class Counts(collections.Counter):
    """Counts what a block asks, in all threads: system calls about a folder, and some functions of ours.

    Args:
        folder: the cache directory.
        patch: replaces the system calls.
    """

    def __init__(self, folder, patch):
        super().__init__()
        self.folder = str(folder)
        for name in SYSTEM:
            patch.setattr(os, name, self.watched(name, getattr(os, name)))

    def watched(self, name, function):
        """Return a system call that is counted."""

        def call(place, *arguments, **options):
            path = place
            if isinstance(place, int):
                with contextlib.suppress(OSError):
                    path = os.readlink(f"/proc/self/fd/{place}")
            if str(path).startswith(self.folder) and ".lock" not in str(path):
                self[name] += 1
            return function(place, *arguments, **options)

        return call

    def note(self, frame, event, _argument):
        """Count a function."""
        if event == "call" and frame.f_code.co_name in FUNCTIONS and "webdataset" in frame.f_code.co_filename:
            self[frame.f_code.co_name] += 1

    def __enter__(self):
        """Begin."""
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_failure):
        """End."""
        sys.setprofile(None)
        threading.setprofile(None)


def count(server, near, patch):
    """Return what opening and reading the shard asks."""
    with patch.context() as patches, Counts(near, patches) as counts, open_one(server, near) as stream:
        assert stream.read() == SHARD
        wait_until(lambda: is_quiet(near))
    return counts


def is_quiet(near):
    """Tell whether no process writes."""
    return not any(name.endswith((".lock", ".part")) for name in os.listdir(near / ".wds"))


def test_what_a_miss_and_a_hit_ask(server, tmp_path, monkeypatch):
    """Each resolves the url once; a miss looks for the file before and after it takes the lock."""
    near = tmp_path / "near"
    near.mkdir()
    with open_one(server, tmp_path / "other") as stream:
        assert stream.read() == SHARD
    miss = count(server, near, monkeypatch)
    metadata._checked_paths.clear()
    asked = count(server, near, monkeypatch)
    hit = count(server, near, monkeypatch)
    once = {"resolve_url": 1, "rewrite_url": 1, "find_opener": 1}
    # under the user's name, before the lock and after it; the record of before for the store and to be removed
    assert pick(miss) == {**once, "open_source": 1, "open_whole": 3, "read_metadata": 2}
    # under the user's name and its own; the record to ask the store, then beside the open file
    assert pick(asked) == {**once, "open_whole": 2, "read_metadata": 2}
    assert pick(hit) == {**once, "open_whole": 2, "read_metadata": 1}
    # a hit: the file under two names; its status once as it is opened, and as each of two pieces is read
    assert system_calls(hit) == {"open": 2, "stat": 1, "fstat": 3}
    assert system_calls(miss) == {"open": 9, "stat": 4, "fstat": 3, "lstat": 1}


def pick(counts):
    """Return how often our functions were called."""
    return {name: count for name, count in counts.items() if name in FUNCTIONS}


def system_calls(counts):
    """Return how often the system was asked."""
    return {name: count for name, count in counts.items() if name in SYSTEM}
