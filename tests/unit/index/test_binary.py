"""Our own index files: equal samples, opened without being read, and never believed where they are damaged or stale."""

import os
import pickle
import random
import tarfile

import pytest

import webdataset as wds
from support import zoo
from webdataset.core.errors import AlreadyExists, BadIndex, NotRepresentable, StaleIndex, UsageError, WebDatasetError
from webdataset.index.build import index_shard
from webdataset.index.formats import binary
from webdataset.index.indexed_dataset import IndexedDataset
from webdataset.index.indexed_shard import IndexedShard

WHOLE = [exhibit for exhibit in zoo.exhibits() if exhibit.samples is not None]
COUNT = 40


@pytest.fixture
def shard(tmp_path):
    """A shard of samples with one to three fields, and its index."""
    path, rng = tmp_path / "a.tar", random.Random(0)
    with wds.TarWriter(str(path), encoder=False) as sink:
        for number in range(COUNT):
            fields = {
                name: rng.randbytes(rng.choice([0, 1, 600])) for name in ("cls", "txt", "seg.png")[: number % 3 + 1]
            }
            sink.write({"__key__": f"d/{number:04d}", **fields})
    assert wds.write_indexes([str(path)], "binary") == [str(tmp_path / "a.wdsindex")]
    return path


@pytest.mark.usefixtures("ends_unmarked")
@pytest.mark.parametrize("exhibit", WHOLE, ids=lambda exhibit: exhibit.name)
def test_every_archive_is_read_as_without_it(tmp_path, exhibit):
    """What an index says survives its file, and samples by number are those of the headers."""
    path = zoo.build(tmp_path, [exhibit.name])[exhibit.name]
    index = index_shard(path)
    found = binary.loads(binary.dumps(index))
    assert list(found.entries) == list(index.entries)
    assert (found.size_bytes, found.end, found.sparse, found.joins) == (
        index.size_bytes,
        index.end,
        index.sparse,
        index.joins,
    )
    place = tmp_path / "own.wdsindex"
    place.write_bytes(binary.dumps(index))
    expected = list(IndexedShard(path, index=False))
    for _ in range(2):
        shard = IndexedShard(path, index=place)
        assert list(shard) == expected
        assert list(shard) == expected
    assert len(shard) == len(expected)


def test_it_is_found_beside_the_shard_and_mapped(shard):
    """Opening reads no header of the shard but the first and the last, and copies no column."""
    opened = IndexedShard(shard)
    assert len(opened) == COUNT
    assert opened.index.entries.is_mapped
    assert list(opened) == list(IndexedShard(shard, index=False))
    assert opened.by_key("d/0007") == opened[7]
    assert len(IndexedDataset([str(shard)] * 3)) == 3 * COUNT


def test_it_travels(shard):
    """A shard that is sent to another process opens the file again; entries that are sent are copies."""
    opened = IndexedShard(shard)
    assert opened[3]["__key__"] == "d/0003"
    assert len(pickle.dumps(opened)) < 2000
    assert pickle.loads(pickle.dumps(opened))[3] == opened[3]
    entries = pickle.loads(pickle.dumps(opened.index.entries))
    assert not entries.is_mapped
    assert entries == opened.index.entries


def test_other_rules_read_the_headers(shard):
    """An index of the usual samples says nothing about others, and is written of no others."""
    assert [len(sample) for sample in IndexedShard(shard, suffixes={"txt"})] == [
        len(sample) for sample in IndexedShard(shard, index=False, suffixes={"txt"})
    ]
    for rules in ({"suffixes": {"txt"}}, {"duplicates": "last"}, {"lcase": False}, {"split_samples": "ignore"}):
        with pytest.raises(UsageError, match="by default"):
            wds.write_indexes([str(shard)], "binary", **rules)


def test_a_sample_in_parts_is_an_error_as_without_it(tmp_path):
    """A writer of indexes does not look for parts: where keys stand twice, the headers are read."""
    path = tmp_path / "parts.tar"
    with wds.TarWriter(str(path), encoder=False, index=["binary"]) as sink:
        for key, field in (("a", "x"), ("b", "x"), ("a", "y")):
            sink.write({"__key__": key, field: b"1"})
    with pytest.raises(WebDatasetError, match="in parts"):
        len(IndexedShard(path))
    assert len(IndexedShard(path, split_samples="ignore")) == 3


@pytest.mark.parametrize("change", ["size", "end", "first", "last", "middle", "payload moved"])
def test_a_stale_index(shard, change):
    """One of another shard is an error when it is opened, or when the sample is read; never other bytes."""
    content = bytearray(shard.read_bytes())
    entries = index_shard(shard).entries
    if change == "size":
        content += bytes(512)
    elif change == "end":
        content[-600] = 1
    elif change == "first":
        content[0:1] = b"x"
    elif change == "last":
        content[entries[-1].fields[-1].offset - 512] ^= 1
    elif change == "middle":
        content[entries[5].fields[0].offset - 500] ^= 1
    else:
        start, stop = entries[5].offset, entries[6].offset
        content[start:stop] = bytes(content[start:stop][512:]) + bytes(512)
    shard.write_bytes(bytes(content))
    opened = IndexedShard(shard)
    with pytest.raises(StaleIndex):
        list(opened)


def test_a_damaged_index(shard):
    """Whatever byte of it is damaged, samples are the right ones, or an error says so."""
    place, rng = shard.with_suffix(".wdsindex"), random.Random(1)
    whole, expected = place.read_bytes(), list(IndexedShard(shard, index=False))
    outcomes: set[type[WebDatasetError] | None] = set()
    for case in range(400):
        content = bytearray(whole)
        if case % 4 == 0:
            del content[rng.randrange(len(content)) :]
        else:
            for _ in range(rng.choice([1, 1, 3])):
                content[rng.randrange(len(content))] = rng.randrange(256)
        damaged = place.with_name(f"{case}.wdsindex")
        damaged.write_bytes(content)
        try:
            assert list(IndexedShard(shard, index=damaged)) == expected
            outcomes.add(None)
        except WebDatasetError as error:
            outcomes.add(type(error))
    assert BadIndex in outcomes


def test_entries_that_lead_out_of_a_forged_index(shard):
    """A number that leads nowhere is no end of the samples, even where the checksum is right."""
    index = index_shard(shard)
    columns = index.entries.columns()
    columns.kinds[0] = 99
    forged = shard.with_name("forged.wdsindex")
    forged.write_bytes(binary.dumps(index))
    with pytest.raises(BadIndex, match="leads out"):
        list(IndexedShard(shard, index=forged))


def test_an_older_or_newer_version(shard):
    """A version that this library does not know is an error where it is named, and passed by beside the shard."""
    place = shard.with_suffix(".wdsindex")
    place.write_bytes(place.read_bytes().replace(b'"version":1', b'"version":2'))
    assert len(IndexedShard(shard)) == COUNT
    with pytest.raises(BadIndex, match="version 2"):
        len(IndexedShard(shard, index=place))


def test_what_it_cannot_hold(tmp_path, shard):
    """Compressed shards are refused; a file that is no index is not replaced."""
    packed = tmp_path / "p.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(shard, "a.txt")
    with pytest.raises(NotRepresentable, match="compressed"):
        wds.write_indexes([str(packed)], "binary")
    place = shard.with_suffix(".wdsindex")
    place.write_bytes(b"mine")
    with pytest.raises(AlreadyExists):
        wds.write_indexes([str(shard)], "binary")
    assert len(IndexedShard(shard)) == COUNT


def test_a_changed_shard_is_seen_by_quick_reads(shard):
    """Once samples are read by one read each, a change of the file is still seen, and close and reopen still work."""
    opened = IndexedShard(shard)
    assert [opened[number] for number in range(3)] == opened[:3]
    assert opened.quick is not None
    opened.close()
    assert opened.quick is None
    assert opened[2] == IndexedShard(shard, index=False)[2]
    content = bytearray(shard.read_bytes())
    content[index_shard(shard).entries[4].fields[0].offset] ^= 1
    os.utime(shard, ns=(0, 0))
    with pytest.raises(WebDatasetError, match=r"overwritten|changed"):
        opened[4]


@pytest.mark.parametrize("index", [None, False])
def test_quick_reads_prove_each_header(shard, index):
    """A header that changed without a trace in size and time is an error, not another member's bytes."""
    opened = IndexedShard(shard, index=index)
    status = shard.stat()
    expected = list(opened)
    entry = opened.index.entries[5]
    whole = shard.read_bytes()
    for place, value in ((0, b"x"), (130, b"7"), (156, b"5"), (345, b"p")):
        content = bytearray(whole)
        at = entry.fields[0].offset - 512 + place
        content[at : at + 1] = value
        with shard.open("r+b") as file:
            file.write(content)
        os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(WebDatasetError):
            opened[5]
        assert opened[6] == expected[6]
