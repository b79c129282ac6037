"""Directories in which shards appear and go away."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from webdataset.core.errors import UsageError
from webdataset.shards.directory import DirectoryShardList


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with three shards, the last the oldest."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    for n in range(3):
        (tmp_path / "d" / f"{n}.tar").touch()
        os.utime(tmp_path / "d" / f"{n}.tar", (100 - n, 100 - n))
    return tmp_path / "d"


def names(folder):
    """List a folder, our process number as #."""
    return sorted(name.replace(str(os.getpid()), "#") for name in os.listdir(folder))


def seen(mode, **kw):
    """Read a directory to its end; return what was given and what the folder held at that moment."""
    shards = DirectoryShardList("d/", poll=None, mode=mode, select="oldest", **kw)
    return [(shard["url"].replace(str(os.getpid()), "#"), names("d")) for shard in shards]


def test_unlink(folder):
    """A shard is claimed, read, and deleted when the next is asked for."""
    assert seen("unlink") == [
        ("d/2.tar._#_", ["0.tar", "1.tar", "2.tar._#_"]),
        ("d/1.tar._#_", ["0.tar", "1.tar._#_"]),
        ("d/0.tar._#_", ["0.tar._#_"]),
    ]
    assert names(folder) == []


def test_keep(folder):
    """Shards that were read are renamed."""
    assert len(seen("keep")) == 3
    assert names(folder) == ["0.tar._done_", "1.tar._done_", "2.tar._done_"]


def test_a_directory_that_is_not_there_is_told_of(folder):
    """One that is waited for may be misspelt; one that is there and empty is nothing to speak of."""
    with pytest.warns(UserWarning, match=r"D/: there is no such directory; waiting until it is made"):
        assert list(DirectoryShardList("D/", poll=0.01, timeout=0.05)) == []
    (folder.parent / "D").mkdir()
    assert list(DirectoryShardList("D/", poll=0.01, timeout=0.05)) == []


def test_other_modes_leave_the_claim(folder):
    """An unknown mode leaves shards claimed."""
    assert len(seen("leave")) == 3
    assert names(folder) == ["0.tar._#_", "1.tar._#_", "2.tar._#_"]


def test_fate(folder):
    """A function decides instead."""
    fates = []
    assert len(seen("unlink", fate=fates.append)) == 3
    assert len(fates) == 3
    assert names(folder) == ["0.tar._#_", "1.tar._#_", "2.tar._#_"]


def test_resample_goes_on_for_ever(folder):
    """Shards are given back and drawn again."""
    shards = iter(DirectoryShardList(folder, poll=None))
    assert len({Path(next(shards)["url"]).name[0] for _ in range(60)}) == 3
    shards.close()
    assert names(folder) == ["0.tar", "1.tar", "2.tar"]


@pytest.mark.parametrize("mode", ["unlink", "keep", "resample", "other"])
def test_stopping_early_gives_the_shard_back(folder, mode):
    """A shard that is being read when the reader stops is not lost."""
    shards = iter(DirectoryShardList("d/", mode=mode))
    next(shards)
    shards.close()
    assert names(folder) == ["0.tar", "1.tar", "2.tar"]


def test_claims_of_dead_processes_are_undone(folder):
    """What a dead process had claimed is read; what a living one has claimed is not."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (folder / "0.tar").rename(folder / f"0.tar._{dead.pid}_")
    (folder / "1.tar").rename(folder / f"1.tar._{os.getppid()}_")
    assert [url for url, _ in seen("unlink")] == ["d/2.tar._#_", "d/0.tar._#_"]


@pytest.mark.parametrize("name", ["x.tar", "x.tgz", "x.tar.gz"])
def test_the_default_pattern_matches(tmp_path, name):
    """The default pattern's braces work."""
    (tmp_path / name).touch()
    (tmp_path / "x.txt").touch()
    assert len(list(DirectoryShardList(tmp_path, poll=None, mode="unlink"))) == 1


def test_waiting(folder):
    """An empty directory is watched for ``timeout`` seconds."""
    for path in folder.iterdir():
        path.unlink()
    shards = DirectoryShardList("d/", poll=0.01, timeout=20, mode="unlink")
    writer = threading.Thread(target=lambda: (time.sleep(0.1), (folder / "late.tar").touch()))
    writer.start()
    assert Path(next(iter(shards))["url"]).name.startswith("late.tar")
    writer.join()
    (folder.parent / "e").mkdir()
    assert list(DirectoryShardList("e/", poll=0.01, timeout=0.05)) == []


def test_arguments():
    """A text must end with a slash, and select must be known."""
    with pytest.raises(UsageError, match="'/'"):
        DirectoryShardList("d")
    with pytest.raises(UsageError, match="select"):
        DirectoryShardList("d/", select="newest")
