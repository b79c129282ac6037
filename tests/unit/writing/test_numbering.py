"""Names of shards from patterns."""

import warnings
from pathlib import Path

import pytest

from webdataset.core.errors import UsageError
from webdataset.writing.shard_writer import make_shard_namer


@pytest.fixture
def third_of_four(monkeypatch):
    """A process that is rank 3 of 4, worker 1 of 2."""
    for name, number in {"RANK": 3, "WORLD_SIZE": 4, "WORKER": 1, "NUM_WORKERS": 2}.items():
        monkeypatch.setenv(name, str(number))


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("a-%06d.tar", "a-000007.tar"),
        ("a-%d.tar", "a-7.tar"),
        ("a-{shard:06d}.tar", "a-000007.tar"),
        ("a-{shard:03}.tar", "a-007.tar"),
        ("100%/a-{shard}.tar", "100%/a-7.tar"),
        ("a%%-%02d.tar", "a%-07.tar"),
        ("pipe:awk '{print}' > a-%d", "pipe:awk '{print}' > a-7"),
        (Path("d/a-%02d.tar"), "d/a-07.tar"),
        (lambda shard: f"x{shard}", "x7"),
    ],
)
def test_patterns(pattern, wanted):
    """Percent and brace patterns, paths and functions give names; other braces stay."""
    assert make_shard_namer(pattern)(7) == wanted


def test_places(third_of_four):
    """Rank and worker fields are filled in, so that names of different processes differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        name = make_shard_namer("r{rank:02d}of{world_size}-w{worker}of{num_workers}-%03d.tar")
    assert name(5) == "r03of4-w1of2-005.tar"


def test_shared_names_warn(third_of_four):
    """In a job of several processes a pattern without their fields gives a warning that says what to add."""
    with pytest.warns(UserWarning, match="put {rank} and {worker}"):
        make_shard_namer("a-%06d.tar")
    with pytest.warns(UserWarning, match="put {worker} into"):
        make_shard_namer("a-{rank}-%06d.tar")


@pytest.mark.parametrize("pattern", ["a.tar", "a-{rank}.tar", "%d-%d.tar", "100%-%d.tar", "a-%s%", b"a-%d.tar"])
def test_impossible_patterns(pattern):
    """A pattern without one place for the number is an error when the writer is made."""
    with pytest.raises(UsageError, match="pattern"):
        make_shard_namer(pattern)
