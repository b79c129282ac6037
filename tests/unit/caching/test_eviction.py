"""A directory kept below a size, and names of cached shards."""

import os
import subprocess
import sys
import time

import pytest

from webdataset.caching import eviction, locks
from webdataset.caching.eviction import LRUCleanup
from webdataset.caching.locks import CachedFile
from webdataset.caching.names import pipe_cleaner
from webdataset.core.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    """Six files of 1000 bytes, the first the oldest."""
    for n in range(6):
        path = tmp_path / ("sub" if n % 2 else ".") / str(n)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (n, n))
    return tmp_path


def left(folder):
    """List the files that are left."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_the_oldest_go_first(folder, caplog):
    """Files are deleted by age until the rest fits."""
    LRUCleanup(folder, 3500, keyfn=os.path.getmtime, verbose=True, interval=0).cleanup()
    assert left(folder) == ["3", "4", "5"]
    assert "deleting" in caplog.text


def test_not_too_often(folder, caplog):
    """A second call within the interval does nothing; nothing is said where nobody asks for it."""
    cleanup = LRUCleanup(folder, 3500, keyfn=os.path.getmtime)
    assert (cleanup.interval, LRUCleanup().cache_size) == (30, 10**12)
    cleanup.cleanup()
    assert caplog.text == ""
    (folder / "6").write_bytes(b"x" * 1000)
    cleanup.cleanup()
    assert left(folder) == ["3", "4", "5", "6"]


def test_a_clock_that_is_set_back(folder, monkeypatch):
    """The next cleanup does not wait until the clock has come to where it was."""
    cleanup = LRUCleanup(folder, 3500, keyfn=os.path.getmtime)
    cleanup.cleanup()
    (folder / "6").write_bytes(b"x" * 1000)
    before = time.time()
    monkeypatch.setattr(time, "time", lambda: before - 7 * 24 * 3600)
    cleanup.cleanup()
    assert left(folder) == ["4", "5", "6"]


def test_directories(folder):
    """No directory is an error, a missing one is empty, and it may be chosen later."""
    with pytest.raises(UsageError):
        LRUCleanup().cleanup()
    LRUCleanup(folder / "none", 0).cleanup()
    cleanup = LRUCleanup(cache_size=0)
    cleanup.set_cache_dir(folder)
    cleanup.cleanup()
    assert left(folder) == []


def test_files_that_vanish(folder):
    """A file that other code deletes meanwhile is no error."""

    def age(path):
        if path.endswith("0"):
            os.unlink(path)
            raise FileNotFoundError
        return os.path.getmtime(path)

    LRUCleanup(folder, 3500, keyfn=age, interval=None).cleanup()
    assert left(folder) == ["3", "4", "5"]


@pytest.mark.parametrize(
    ("spec", "url"),
    [
        ("pipe:curl http://h/a.tar", "http://h/a.tar"),
        ("pipe:aws s3 cp s3://b/k.tar -", "s3://b/k.tar"),
        ("pipe: gsutil cat gs://b/x?y=1 | foo", "gs://b/x?y=1"),
        ("pipe:hdfs dfs -cat hdfs://a/b", "hdfs://a/b"),
        ("pipe:cat a.tar", "cat a.tar"),
        ('pipe:curl "http://h/a.tar"', 'curl "http://h/a.tar"'),
        ("pipe:x HTTP://h", "x HTTP://h"),
        ("a.tar", "a.tar"),
        ("http://x/y z", "http://x/y z"),
    ],
)
def test_pipe_cleaner(spec, url):
    """The first word of a command that begins with a remote scheme."""
    assert pipe_cleaner(spec) == url


def test_what_is_in_use_stays(tmp_path):
    """Cached files that are open here, and downloads of processes that live, are not deleted, whatever the bound."""
    (tmp_path / "idle").write_bytes(b"x" * 9)
    (tmp_path / "open").write_bytes(b"x" * 9)
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    live, left = f".wds-{os.getppid()}-00.part", f".wds-{int(dead.stdout)}-00.part"
    for name in (live, left):
        (tmp_path / name).write_bytes(b"x" * 9)
    with CachedFile(str(tmp_path / "open")):
        LRUCleanup(tmp_path, 0, interval=None).cleanup()
    assert {path.name for path in tmp_path.iterdir()} == {"open", live}
    LRUCleanup(tmp_path, 0, interval=None).cleanup()
    assert [path.name for path in tmp_path.iterdir()] == [live]


def test_what_others_read_stays(tmp_path):
    """A shard on which somebody has a lease stays, and so does what belongs to the cache itself; records go along."""
    pytest.importorskip("fcntl")
    (tmp_path / ".wds").mkdir()
    for name in ("read.tar", "idle.tar", ".wds/read.tar.json", ".wds/idle.tar.json", ".wds/new.tar.part"):
        (tmp_path / name).write_bytes(b"x" * 9)
    with (tmp_path / "read.tar").open("rb") as stream:
        assert locks.take_lease(stream.fileno())
        LRUCleanup(tmp_path, 0, interval=None).cleanup()
    left_over = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left_over == {"read.tar", ".wds/read.tar.json", ".wds/new.tar.part"}


def test_listing_goes_on_after_a_file_that_vanished(tmp_path, monkeypatch):
    """Another process may delete files while this one lists them: the others are listed."""
    for name in ("a.tar", "b.tar", "c.tar"):
        (tmp_path / name).write_bytes(b"x" * 10)
    (tmp_path / ".wds").mkdir()
    walk = eviction._walk

    def deleting(folder):
        for number, (name, entry) in enumerate(list(walk(folder))):
            if number == 1:
                os.unlink(entry.path)
            yield name, entry

    monkeypatch.setattr(eviction, "_walk", deleting)
    found = eviction.list_files(str(tmp_path))
    assert len(found) == 2
    assert sorted(os.listdir(tmp_path)) == sorted([".wds", *(os.path.basename(file.path) for file in found)])


def test_only_what_may_be_deleted_is(folder):
    """``deletable`` is asked for the oldest first, only while too much is there; what it spares counts."""
    asked = []

    def deletable(path):
        asked.append(os.path.basename(path))
        return path.endswith(("1", "4"))

    cleanup = LRUCleanup(folder, 3500, keyfn=os.path.getmtime, interval=None, deletable=deletable)
    cleanup.cleanup()
    assert left(folder) == ["0", "2", "3", "5"]
    assert asked == list("012345")
    asked.clear()
    cleanup.cache_size = 4000
    cleanup.cleanup()
    assert asked == []


def test_a_question_that_fails_deletes_nothing(folder):
    """An error of ``deletable`` is the caller's, and no answer."""

    def deletable(path):
        raise ValueError(f"cannot tell of {path}")

    with pytest.raises(ValueError, match="cannot tell"):
        LRUCleanup(folder, 0, keyfn=os.path.getmtime, interval=None, deletable=deletable).cleanup()
    assert len(left(folder)) == 6


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_a_download_that_gets_its_name_meanwhile_is_counted_once(tmp_path, monkeypatch, moment):
    """Whenever it is while the directory is looked through: if it were missed, another would go over the bound."""
    control = tmp_path / ".wds"
    control.mkdir()
    part, whole = control / "a.tar.part", tmp_path / "a.tar"
    part.write_bytes(bytes(5000))
    (tmp_path / "other.tar").write_bytes(bytes(70))
    walk = eviction._walk

    def publishing(folder, above=""):
        if moment == "before":
            part.replace(whole)
        entries = list(walk(folder, above))
        if moment == "between":
            part.replace(whole)
        yield from entries
        if moment == "after":
            part.replace(whole)

    monkeypatch.setattr(eviction, "_walk", publishing)
    assert sum(file.size_bytes for file in eviction.list_files(str(tmp_path))) == 5070
    assert not part.exists()
