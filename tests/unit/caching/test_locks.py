"""Locks between processes, leases on files, and what stands in for them where there are none."""

import errno
import os
import subprocess
import sys

import pytest

import webdataset as wds
from support.paced_server import PacedServer
from webdataset.caching import eviction, locks
from webdataset.caching.eviction import CachedShardFile, Quota
from webdataset.caching.metadata import make_metadata
from webdataset.caching.names import EntryPaths, control_name, space_lock_path
from webdataset.testing import archives

fcntl = pytest.importorskip("fcntl")

SHARD = archives.by_tarfile([("a.txt", b"1"), ("b.txt", b"2")])


@pytest.fixture
def unlocked(monkeypatch):
    """A file system without flock."""

    def refuse(*_):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_one_holder(tmp_path):
    """A lock that is held cannot be had; its file goes with it, and a second release is nothing."""
    path = str(tmp_path / "x.lock")
    lock = locks.try_lock(path)
    assert locks.try_lock(path) is None
    assert locks.wait_for_lock(path, 0.01) is None
    lock.release()
    assert not os.path.exists(path)
    second = locks.wait_for_lock(path, 1)
    lock.release()
    assert locks.try_lock(path) is None
    second.release()


def test_a_deleted_lock_is_none(tmp_path, monkeypatch):
    """Who gets the lock of a file that its holder has just deleted tries again on the new one."""
    path = str(tmp_path / "x.lock")
    first = locks.try_lock(path)
    flock = fcntl.flock
    calls = []

    def late(descriptor, how):
        if how & fcntl.LOCK_EX and not calls:
            calls.append(descriptor)
            first.release()  # between opening the file and locking it
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    second = locks.try_lock(path)
    assert calls
    assert locks.try_lock(path) is None
    second.release()


def test_a_link_is_not_followed(tmp_path):
    """A link in the place of a lock is refused."""
    (tmp_path / "x.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="x.lock"):
        locks.try_lock(str(tmp_path / "x.lock"))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("soft", [False, True], ids=["flock", "marker"])
def test_a_fork_neither_holds_nor_releases(tmp_path, request, soft):
    """A child's exit leaves its parent's lock held; a child that lives on does not hold it."""
    if soft:
        request.getfixturevalue("unlocked")
    path = str(tmp_path / "x.lock")
    lock = locks.try_lock(path)
    if not (child := os.fork()):
        lock.release()
        del lock
        os._exit(0 if locks.try_lock(path) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert locks.try_lock(path) is None
    waiting, waking = os.pipe()
    if not (child := os.fork()):
        os.read(waiting, 1)
        os._exit(0)
    lock.release()
    again = locks.try_lock(path)
    assert again is not None
    again.release()
    os.write(waking, b"x")
    os.waitpid(child, 0)
    os.close(waiting)
    os.close(waking)


def test_markers(tmp_path, unlocked):
    """Without flock a marker file is the lock; that of a dead process is removed by the next."""
    path = str(tmp_path / "x.lock")
    program = """
import errno, fcntl, os, sys
from webdataset.caching import locks
def refuse(*_):
    raise OSError(errno.ENOTSUP, "no locks here")
fcntl.flock = refuse
lock = locks.try_lock(sys.argv[1])
os._exit(0 if lock else 1)
"""
    subprocess.run([sys.executable, "-c", program, path], check=True)
    assert os.stat(f"{path}.soft").st_mode & 0o777 == 0o600
    lock = locks.wait_for_lock(path, 10)
    assert lock is not None
    assert locks.try_lock(path) is None
    lock.release()
    assert not os.path.exists(f"{path}.soft")


def test_a_cache_without_flock(tmp_path, unlocked):
    """Shards are kept, read along, and bounded all the same."""
    pages = {f"/{number}/x.tar": archives.by_tarfile([("a.bin", os.urandom(90_000))]) for number in range(3)}
    near = tmp_path / "near"
    near.mkdir()
    with PacedServer(pages) as server:
        urls = [server.root + path for path in pages]
        for _ in range(2):
            dataset = wds.WebDataset(urls, shardshuffle=False, cache_dir=near, cache_size=10**7)
            assert len(list(dataset)) == 3
        assert server.downloads() == 3
        assert len(list(wds.WebDataset(urls[1], shardshuffle=False, cache_dir=near, cache_size=1))) == 1
        assert server.downloads() == 3
    assert [path.read_bytes() for path in near.glob("*.tar")] == [pages["/1/x.tar"]]


READER = """
import os, sys
from webdataset.caching import locks
descriptor = os.open(sys.argv[1], os.O_RDONLY)
assert locks.take_lease(descriptor)
print("open", flush=True)
sys.stdin.read()
"""


def test_what_another_process_reads_stays(tmp_path):
    """A lease of another process keeps a shard; its end frees it, and everything that belongs to the shard goes."""
    (tmp_path / ".wds").mkdir()
    place = EntryPaths(str(tmp_path), "x.url-0123456789abcdef.tar")
    path = tmp_path / place.name
    path.write_bytes(SHARD)
    with path.open("rb") as stream:
        record = make_metadata(stream, "http://h/x.tar", place.name, path.stat().st_ino).for_whole_file(path.stat())
    record.write(place)
    (file,) = eviction.list_files(str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", READER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout.readline() == "open\n"
        assert not eviction.delete_file(file)
        reader.communicate()
    assert eviction.delete_file(file)
    assert [entry.name for entry in tmp_path.rglob("*")] == [".wds"]
    assert not eviction.delete_file(file)


def test_room_counts_what_is_to_come(tmp_path):
    """A download counts with what it may grow to; a second finds no room, and a bound of nothing is none."""
    (tmp_path / ".wds").mkdir()
    quota, records, held = Quota(str(tmp_path), 1000, verbose=False), [], []
    for name in ("a.tar", "b.tar"):
        place = EntryPaths(str(tmp_path), name)
        with open(place.part, "wb") as part:
            record = make_metadata(part, f"http://h/{name}", name, os.fstat(part.fileno()).st_ino)
        held.append(locks.try_lock(place.lock))
        records.append(quota.reserve(place, record, 600))
    held[1].release()
    assert records[0].reserved_bytes == 600
    assert records[1] is None
    assert Quota(str(tmp_path), 0, verbose=False).reserve(place, record, 600).reserved_bytes == 600
    assert sum(file.size_bytes for file in eviction.list_files(str(tmp_path))) == 1200


def test_the_lock_on_room_is_not_waited_for_endlessly(tmp_path, monkeypatch):
    """Where somebody holds it and never lets go, a shard is streamed."""
    (tmp_path / ".wds").mkdir()
    monkeypatch.setattr(eviction, "_WAIT_SECONDS", 0.01)
    lock = locks.try_lock(space_lock_path(str(tmp_path)))
    place = EntryPaths(str(tmp_path), "a.tar")
    with open(place.part, "wb") as part:
        record = make_metadata(part, "http://h/a.tar", "a.tar", 1)
    assert Quota(str(tmp_path), 10, verbose=False).reserve(place, record, 1) is None
    lock.release()


def test_a_users_file_under_a_downloads_name(tmp_path):
    """A file that has taken the place of a download is its owner's, and stays."""
    (tmp_path / ".wds").mkdir()
    place = EntryPaths(str(tmp_path), "mine.tar")
    (tmp_path / "mine.tar").write_bytes(SHARD)
    with open(place.final, "rb") as stream:
        make_metadata(stream, "http://h/x.tar", place.name, 1).write(place)
    (file,) = eviction.list_files(str(tmp_path))
    assert isinstance(file, CachedShardFile)
    assert not eviction.delete_file(file)
    assert (tmp_path / "mine.tar").exists()


def test_control_names():
    """They are the shards' own where they can be, and never shared."""
    assert control_name("x.tar") == "x.tar"
    names = ["a/b.tar", "a_b.tar", "c/b.tar", "x" * 250 + ".tar", "x" * 251 + ".tar", "日" * 80 + ".tar"]
    controls = {control_name(name) for name in names}
    assert len(controls) == len(names)
    assert all(len(os.fsencode(name)) < 220 and "/" not in name for name in controls)


def test_sweeping(tmp_path):
    """Parts that cannot be resumed, records of nothing and dead markers go; what is held or can be used stays."""
    control = tmp_path / ".wds"
    control.mkdir()
    for name in ("old.tar.part", "old.tar.json.new", "gone.tar.json", "dead.tar.lock", "held.tar.part"):
        (control / name).write_bytes(b"{}")
    (tmp_path / "whole.tar").write_bytes(SHARD)
    (control / "whole.tar.json").write_bytes(b"{}")
    lock = locks.try_lock(str(control / "held.tar.lock"))
    eviction._swept_folders.discard(str(tmp_path))
    eviction.remove_leftovers(str(tmp_path))
    assert {path.name for path in control.iterdir()} == {"held.tar.part", "held.tar.lock", "whole.tar.json"}
    lock.release()


def test_systems_without_leases(tmp_path, monkeypatch):
    """Where there is no flock, every reader has a lease, and nobody is known to read."""
    monkeypatch.setattr(locks, "fcntl", None)
    with (tmp_path / "a.tar").open("wb+") as file:
        assert locks.take_lease(file.fileno()) is True
        locks.release_lease(file.fileno())
        assert locks.has_readers(file.fileno()) is False


def test_a_link_to_an_open_file_is_another(tmp_path):
    """A file is at its path, and not at that of a link to it, nor where nothing is, or another file."""
    (tmp_path / "x").write_bytes(b"x")
    (tmp_path / "other").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with (tmp_path / "x").open("rb") as file:
        found = [locks.is_at_path(file.fileno(), str(tmp_path / name)) for name in ("x", "link", "other", "none")]
    assert found == [True, False, False, False]
