"""Entries in arrays."""

import pickle

import pytest

from webdataset.index.entries import FieldEntry, SampleEntries, SampleEntry, ShardIndex
from webdataset.index.formats import binary

ROWS = [
    SampleEntry("a/b.c/d", 0, (FieldEntry("jpg", "a/b.c/d.JPG", 512, 3), FieldEntry("cls", "a/b.c/d.cls", 1536, 1))),
    SampleEntry("e", 2048, ()),
    SampleEntry("caf\udce9", 4096, (FieldEntry("txt", "elsewhere.txt", 5120, 1 << 40),)),
]


def test_entries_come_back_as_they_went_in():
    """Keys of any bytes, names that do not start with the key, capitals, samples without a field."""
    entries = SampleEntries(ROWS)
    assert list(entries) == ROWS
    assert entries == ROWS
    assert entries[-1] == ROWS[-1]
    assert entries[::-1] == ROWS[::-1]
    assert list(entries.keys()) == [row.key for row in ROWS]
    assert [entries.start(place) for place in range(3)] == [0, 2048, 4096]
    assert pickle.loads(pickle.dumps(entries)) == entries
    assert entries != ROWS[:2]
    assert entries != 3


@pytest.mark.parametrize("place", [3, -4, 100])
def test_places_that_are_not_there(place):
    """An IndexError, as for any sequence."""
    with pytest.raises(IndexError):
        SampleEntries(ROWS)[place]


def test_entries_are_small():
    """A sample of two fields takes less than 100 bytes."""
    entries = SampleEntries(
        SampleEntry(f"{n:09d}", n * 2048, (FieldEntry("jpg", f"{n:09d}.jpg", n * 2048 + 512, 9),
                                           FieldEntry("cls", f"{n:09d}.cls", n * 2048 + 1536, 1)))
        for n in range(2000)
    )  # fmt: skip
    assert len(pickle.dumps(entries)) < 100 * 2000


def test_a_shard_index_shows_no_secrets():
    """Its repr has the url without signatures; len is the number of samples."""
    index = ShardIndex("https://u:p@host/x.tar?sig=abc", 10240, 8192, SampleEntries(ROWS), hashes={"md5": "0"})
    assert "p@" not in repr(index)
    assert "abc" not in repr(index)
    assert len(index) == 3
    assert index.addressable
    assert index.md5 == "0"
    assert ShardIndex("x", None, 0, [], compression="gz").addressable is False
    assert ShardIndex("x", None, 0, []).md5 is None


def test_two_threads_compare_columns_with_their_checksum():
    """A thread that finds them unverified may go on while another one has just verified them."""
    asked, answers = [], [lambda: asked.append(True), None]

    class Watched(SampleEntries):
        _unverified = property(lambda _: answers.pop(0) if answers else None, lambda *_: None)

    entries = Watched.from_columns(SampleEntries(ROWS).columns(), lambda: None)
    entries.verify()
    assert asked == [True]


def test_threads_slice_no_view(monkeypatch):
    """Where Python has no global lock, keys of a mapped index are no view any more: its slices are counted wrongly."""
    monkeypatch.setattr("webdataset.index.entries.FREE_THREADED", True)
    index = ShardIndex("x.tar", 1 << 50, 6144, SampleEntries(ROWS))
    entries = binary.loads(binary.dumps(index)).entries
    assert list(entries) == ROWS
    assert entries.is_mapped
    assert not isinstance(entries.columns().keys, memoryview)
    assert pickle.loads(pickle.dumps(entries)) == entries
