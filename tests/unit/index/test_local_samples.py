"""Reading samples of local files by number, in Python and in C: what both give, and what neither may give."""

import os
import random
from array import array
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import webdataset as wds
from webdataset.index.entries import FieldEntry, SampleEntries, SampleEntry
from webdataset.index.indexed_shard import IndexedShard
from webdataset.index.local_samples import LocalSampleReader, open_local_samples
from webdataset.samples.native_core import load_native
from webdataset.storage.random_access import LocalRanges
from webdataset.testing import archives

native = pytest.mark.skipif(load_native()[0] is None, reason="the native core is not compiled")

SIZES = st.integers(0, 700) | st.sampled_from([31_744, 31_745, 32_256, 32_768, 80_000])
SHAPES = st.lists(st.lists(SIZES, min_size=1, max_size=3), min_size=1, max_size=12)
KEYS = st.sampled_from(["{:04d}", "{}", "folder/{}", "é{}", "\udcff{}", "x" * 88 + "{:04d}", "x" * 90 + "{:02d}"])
NAMES = ["a", "B", "seg.png", *(f"f{number}" for number in range(60))]
ORDINALS = [*range(14), 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**70]


def write_shard(path, shapes, key):
    """Write samples of fields of these sizes; return the index of the shard."""
    members = [
        (f"{key.format(number)}.{name}", bytes([number * 3 + place]) * size)
        for number, shape in enumerate(shapes)
        for place, (name, size) in enumerate(zip(NAMES, shape, strict=False))
    ]
    path.write_bytes(archives.by_hand(members))
    return IndexedShard(str(path), False).index


def readers(index, ranges):
    """Return the reader in Python and the one in C."""
    reader = LocalSampleReader(index, index.entries, ranges)
    return reader.read, partial(load_native()[0].read_local_sample, reader.describe_file())


@native
@given(SHAPES, KEYS)
def test_both_read_the_same(tmp_path_factory, shapes, key):
    """Samples, the order of their fields, and numbers that lead nowhere; in arrays and in a mapped file."""
    path = tmp_path_factory.mktemp("shard") / "x.tar"
    index = write_shard(path, shapes, key)
    assume(not index.entries.columns().odd)
    stream = [
        [(name, value) for name, value in sample.items() if name != "__local_path__"]
        for sample in wds.WebDataset(str(path), shardshuffle=False)
    ]
    python, used = readers(index, LocalRanges(str(path)))
    found = 0
    for ordinal in ORDINALS:
        first, second = python(ordinal), used(ordinal)
        assert first == second
        if first is not None:
            found += 1
            assert list(first.items()) == list(second.items()) == stream[ordinal]
            assert [type(value) for value in second.values()] == [type(value) for value in first.values()]
    # names of 100 bytes have no NUL at their end: another way reads them
    assert found == len(shapes) or len(key) > 80


@native
@pytest.mark.parametrize("seed", range(8))
def test_damaged_shards_and_columns(tmp_path, seed):
    """Bytes of headers and numbers of the index that are wrong: both give None, or both the same sample."""
    rng = random.Random(seed)
    path = tmp_path / "x.tar"
    outcomes = {"none": 0, "sample": 0}
    for _ in range(40):
        sizes = [0, 5, 512, 700] if rng.random() < 0.6 else [0, 700, 32_000, 50_000]
        shapes = [[rng.choice(sizes) for _ in range(rng.choice([1, 2, 2, 3]))] for _ in range(9)]
        if rng.random() < 0.5:
            shapes = [shapes[0]] * 9
        index = write_shard(path, shapes, rng.choice(["{:04d}", "{}", "a/{}"]))
        columns = index.entries.columns()
        ranges = LocalRanges(str(path))
        content = bytearray(path.read_bytes())
        copies = [array(column.typecode, column) for column in columns[1:7]]
        keys = bytearray(columns.keys)
        for _ in range(rng.choice([0, 1, 1, 3])):
            if rng.random() < 0.5:
                place = rng.choice([0, 1, 100, 124, 130, 135, 148, 150, 156, 157, 345, 511])
                offset = rng.choice(columns.offsets) - 512 + place
                content[offset] = rng.choice([0, 0x30, 0x31, 0x37, 0x20, 0x80, content[offset] ^ 1])
            elif rng.random() < 0.2:
                keys[rng.randrange(len(keys))] ^= 1
            else:
                column = rng.choice(copies)
                place, most = rng.randrange(len(column)), 2 ** (8 * column.itemsize) - 1
                wrong = [0, 1, column[place] + 1, column[place] ^ 512, 32768, 2**31, 2**63, most, len(column)]
                column[place] = rng.choice(wrong) & most
        status = path.stat()
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
        entries = SampleEntries.from_columns(
            columns._replace(keys=keys, **dict(zip(columns._fields[1:7], copies, strict=True))), lambda: None
        )
        damaged = type(index)(**{**vars(index), "entries": entries})
        python, used = readers(damaged, ranges)
        for ordinal in range(12):
            first, second = python(ordinal), used(ordinal)
            if ordinal == 8 and copies[0][8] > len(keys):
                # Python takes what there is of a key that would end after all keys, and its header proves it
                assert second is None
            else:
                assert first == second, (seed, ordinal)
            outcomes["none" if first is None else "sample"] += 1
    assert min(outcomes.values()) > 50


@native
@pytest.mark.parametrize(
    ("shape", "usual"),
    [([0] * 60, True), ([700] * 32, True), ([700] * 33, False), ([2000] * 32, True), ([2000] * 33, False)],
)
def test_large_samples_of_many_fields(tmp_path, shape, usual):
    """Up to 32 fields are read straight into their bytes; of more, the shard's own way reads a large sample."""
    index = write_shard(tmp_path / "x.tar", [shape] * 3, "{:04d}")
    for read in readers(index, LocalRanges(str(tmp_path / "x.tar"))):
        assert (read(1) is not None) is usual
    sample = IndexedShard(str(tmp_path / "x.tar"))[1]
    assert [len(sample[name.lower()]) for name in NAMES[: len(shape)]] == shape


@native
@pytest.mark.parametrize(("folders", "usual"), [(0, True), (60, True), (70, False)])
def test_members_between_the_fields_of_a_large_sample(tmp_path, folders, usual):
    """What lies between them is read past, up to 32 KiB."""
    between = b"".join(archives.member(f"d{number}/".encode(), b"", kind=b"5") for number in range(folders))
    path = tmp_path / "x.tar"
    first, second = (archives.by_hand([(f"k.{name}", name.encode() * 40_000)], end=b"") for name in "ab")
    path.write_bytes(first + between + second + archives.END)
    shard = IndexedShard(str(path), False)
    for read in readers(shard.index, LocalRanges(str(path))):
        assert (read(0) is not None) is usual
    assert (shard[0]["a"], shard[0]["b"]) == (b"a" * 40_000, b"b" * 40_000)


@native
def test_files_that_changed_and_what_is_no_number(tmp_path):
    """A file that was written to gives None, and so do sparse samples; what is no number is a TypeError."""
    path = tmp_path / "x.tar"
    index = write_shard(path, [[3, 4]] * 4, "{:04d}")
    ranges = LocalRanges(str(path))
    for read in readers(type(index)(**{**vars(index), "sparse": frozenset({2})}), ranges):
        assert [read(number) is None for number in range(5)] == [False, False, True, False, True]
        with pytest.raises(TypeError):
            read("1")
    python, used = readers(index, ranges)
    assert used(1) == python(1) is not None
    os.utime(path, ns=(1, 1))
    assert used(1) is python(1) is None
    with pytest.raises(TypeError, match="a description of the file"):
        load_native()[0].read_local_sample((1, 2), 3)


def test_the_reader_lets_go_of_its_shard(tmp_path):
    """No cycle keeps the file open once the shard is closed."""
    path = tmp_path / "x.tar"
    write_shard(path, [[3, 4]] * 4, "{:04d}")
    shard = IndexedShard(str(path))
    shard[0]
    assert shard.quick is not None
    assert shard.quick(1) == open_local_samples(shard.index, shard._ranges)(1)
    assert shard[1] == shard.quick(1)
    descriptor = shard._ranges.descriptor
    shard.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@native
def test_columns_are_let_go_of(tmp_path):
    """After a sample was read, or refused, entries that are not mapped may grow: no buffer of theirs is still held."""
    path = tmp_path / "x.tar"
    index = write_shard(path, [[3, 4]] * 4, "{:04d}")
    _, read = readers(index, LocalRanges(str(path)))
    assert [read(number) is None for number in (1, 4, 2**70)] == [False, True, True]
    index.entries.append(SampleEntry("z", 0, (FieldEntry("a", "z.a", 512, 3),)))
    assert len(index.entries) == 5
