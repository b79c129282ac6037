"""Reading a sample again whose headers were verified when the shard was indexed: by fewer reads, and no less surely."""

import os

import pytest

import webdataset as wds
from webdataset.core.errors import ShardChanged, StaleIndex
from webdataset.index.indexed_shard import IndexedShard
from webdataset.testing import archives

LARGE = 32 * 1024


def shard_of(path, *samples):
    """Write samples of fields ``a``, ``b``, … of these sizes, and return the shard, indexed from its headers."""
    members = [
        (f"{number}.{name}", bytes([(number * 4 + place) % 256]) * size)
        for number, sizes in enumerate(samples)
        for place, (name, size) in enumerate(zip("abcd", sizes, strict=False))
    ]
    path.write_bytes(archives.by_hand(members))
    shard = IndexedShard(str(path), False)
    assert len(shard) == len(samples)
    return shard


def test_fields_of_any_size(tmp_path):
    """Small, large and empty fields beside each other are those of the stream, in its order."""
    sizes = (0, 1, 511, 512, LARGE - 1024, LARGE - 512, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE)
    samples = [(one, two, 7, one) for one in sizes for two in sizes]
    shard = shard_of(tmp_path / "x.tar", *samples[:15], *samples[40:55])
    stream = list(wds.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False))
    assert [list(sample.items()) for sample in shard] == [
        [(name, value) for name, value in sample.items() if name != "__local_path__"] for sample in stream
    ]
    assert [shard.read(place, {"c"})["c"] for place in range(len(shard))] == [sample["c"] for sample in stream]


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize(
    ("place", "new"),
    [(0, b"9"), (124, b"00000000001\0"), (156, b"5"), (345, b"folder")],
    ids=["name", "size", "kind", "prefix"],
)
def test_a_header_that_changes_in_place(tmp_path, size, place, new):
    """Another name, size, kind or folder before a payload is an error, though the shard stays open.

    Its time is put back, as a change that came too soon after the last one to show in it: the header itself is proof.
    """
    path = tmp_path / "x.tar"
    shard = shard_of(path, (size, 20), (size, 20))
    start = shard.index.entries[1].fields[1].offset - 512
    assert shard[1]["b"] == shard.read(1)["b"]
    changed = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.seek(start + place)
        file.write(new)
    os.utime(path, ns=(changed, changed + 10**9))
    with pytest.raises(ShardChanged):
        shard.read(1)
    os.utime(path, ns=(changed, changed))
    with pytest.raises(StaleIndex):
        shard.read(1)
    assert len(shard[0]["a"]) == size


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_shard_that_is_cut_in_place(tmp_path, size):
    """A sample that is not all there any more is an error, never a shorter one."""
    path = tmp_path / "x.tar"
    shard = shard_of(path, (20, size), (20, size))
    field = shard.index.entries[1].fields[1]
    with path.open("r+b") as file:
        file.truncate(field.offset + field.size - 1)
    for number in (1, 0):
        with pytest.raises(ShardChanged, match="size"):
            shard.read(number)
