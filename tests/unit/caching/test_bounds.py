"""What ``cache_size`` may be, and that it holds where nothing is downloaded any more."""

import os
from typing import Any

import pytest

import webdataset as wds
from webdataset.caching import eviction
from webdataset.core.errors import UsageError
from webdataset.testing import archives, sources

SHARD = archives.by_tarfile([("a.txt", b"a" * 5000)])
NAMES = [f"{number}.tar" for number in range(5)]


@pytest.fixture
def near(tmp_path):
    """A directory in which five shards were kept without a bound, the first of them least recently used."""
    folder = tmp_path / "near"
    folder.mkdir()
    with sources.served({f"/{name}": SHARD for name in NAMES}) as root:
        for number, name in enumerate(NAMES):
            assert len(list(wds.WebDataset(f"{root}/{name}", shardshuffle=False, cache_dir=str(folder)))) == 1
            found = next(path for path in folder.glob("*.tar") if path.name.startswith(f"{number}."))
            os.utime(found, ns=(number + 1, found.stat().st_mtime_ns))
        eviction._trimmed.clear()
        yield folder, root


def kept(folder):
    """Return the numbers of the shards that are there."""
    return sorted(path.name.partition(".")[0] for path in folder.glob("*.tar"))


def test_a_smaller_bound_holds_at_once(near):
    """All shards are there already, so that no download would make room."""
    folder, root = near
    options: dict[str, Any] = {"shardshuffle": False, "cache_dir": str(folder), "cache_revalidate": "never"}
    bounded = wds.WebDataset(f"{root}/4.tar", cache_size=3 * len(SHARD), **options)
    assert len(list(bounded)) == 1
    assert kept(folder) == ["2", "3", "4"]
    assert len(list(wds.WebDataset(f"{root}/4.tar", cache_size=10**9, **options))) == 1
    assert kept(folder) == ["2", "3", "4"]


def test_a_single_shard_above_the_bound_is_not_fetched_each_time(near):
    """The one that is wanted stays, whatever the bound."""
    folder, root = near
    dataset = wds.WebDataset(f"{root}/2.tar", shardshuffle=False, cache_dir=str(folder), cache_size=100)
    assert len(list(dataset)) == 1
    assert kept(folder) == ["2"]


def test_files_of_users_are_not_trimmed(near):
    """They count, and stay."""
    folder, root = near
    (folder / "mine.tar").write_bytes(SHARD * 3)
    dataset = wds.WebDataset(f"{root}/4.tar", shardshuffle=False, cache_dir=str(folder), cache_size=4 * len(SHARD))
    assert len(list(dataset)) == 1
    assert kept(folder) == ["4", "mine"]


@pytest.mark.parametrize("size", ["10GB", float("nan"), True])
def test_a_size_that_is_no_number(tmp_path, size):
    """It is refused before anything is read, and not after the first pass."""
    with pytest.raises(UsageError, match="cache_size is a number of bytes"):
        wds.WebDataset("https://example.org/x.tar", cache_dir=str(tmp_path), cache_size=size)
