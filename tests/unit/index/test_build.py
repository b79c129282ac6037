"""Indexes from headers and from streams: always the samples of the stream reader."""

import gzip
import hashlib
import io
import os
import warnings

import pytest

import webdataset as wds
from support import zoo
from webdataset.core.error_handlers import ignore_and_continue
from webdataset.core.errors import DuplicateField, NotFound, Truncated, UsageError
from webdataset.index.build import index_shard, index_shards, walk_ranges
from webdataset.samples.sample_reader import Reading
from webdataset.storage.random_access import open_ranges
from webdataset.testing import archives
from webdataset.testing.sources import RangeServer

WHOLE = [exhibit for exhibit in zoo.exhibits() if exhibit.samples is not None]


def plain(index, archive):
    """Key and fields' bytes of each sample of an index, taken from the archive by offset."""
    return [
        (entry.key, {field.name: archive[field.offset : field.offset + field.size] for field in entry.fields})
        for entry in index.entries
    ]


def streamed(url, **options):
    """Samples of the stream reader, with their addresses."""
    return list(wds.WebDataset(str(url), addresses=True, empty_check=False, **options))


@pytest.mark.usefixtures("ends_unmarked")
@pytest.mark.parametrize("exhibit", WHOLE, ids=lambda exhibit: exhibit.name)
def test_an_index_has_the_samples_of_the_stream(tmp_path, exhibit):
    """Keys, fields, order and offsets are those of the stream reader; payloads lie where the index says."""
    path = zoo.build(tmp_path, [exhibit.name])[exhibit.name]
    index = index_shard(path)
    if exhibit.name == "sparse":
        assert index.sparse == {1, 2}
        assert [field.size for entry in index.entries for field in entry.fields] == [1, 5120, 5120]
    else:
        assert plain(index, exhibit.archive) == exhibit.samples
    assert [entry.offset for entry in index.entries] == [sample["__address__"].offset for sample in streamed(path)]
    assert index.size_bytes == len(exhibit.archive)
    assert index.url == str(path)


@pytest.mark.usefixtures("ends_unmarked")
@pytest.mark.parametrize("exhibit", WHOLE, ids=lambda exhibit: exhibit.name)
def test_streaming_gives_the_same_index(tmp_path, exhibit):
    """With digests the shard is read whole, and nothing else changes."""
    path = zoo.build(tmp_path, [exhibit.name])[exhibit.name]
    index, whole = index_shard(path), index_shard(path, hashes=["md5", "sha256"])
    assert (whole.entries, whole.end, whole.sparse) == (index.entries, index.end, index.sparse)
    assert whole.md5 == hashlib.md5(exhibit.archive).hexdigest()
    assert whole.hashes["sha256"] == hashlib.sha256(exhibit.archive).hexdigest()


@pytest.mark.parametrize("kind", archives.COMPRESSIONS)
def test_compressed_shards_are_counted(tmp_path, kind):
    """Entries are those of the plain shard, and the index says that they cannot be read at."""
    archive = zoo.exhibit("gnu_long").archive
    path = tmp_path / f"x.tar.{kind}"
    path.write_bytes(archives.compressed(archive, kind))
    (tmp_path / "x.tar").write_bytes(archive)
    index = index_shard(path, hashes=["sha1"])
    assert index.entries == index_shard(tmp_path / "x.tar").entries
    assert index.compression == kind
    assert not index.addressable
    assert index.size_bytes == path.stat().st_size
    assert index.hashes["sha1"] == hashlib.sha1(path.read_bytes()).hexdigest()


def test_pipes_are_streamed(tmp_path):
    """A source without random access gives the same entries; its size is what came."""
    path = zoo.build(tmp_path, ["plain"])["plain"]
    index = index_shard(f"pipe:cat {path}")
    assert index.entries == index_shard(path).entries
    assert index.size_bytes == path.stat().st_size


def test_duplicates_follow_the_rules(tmp_path):
    """An error by default; otherwise what ``duplicates`` and the handler choose, as for the stream."""
    path = zoo.build(tmp_path, ["duplicate_member"])["duplicate_member"]
    with pytest.raises(DuplicateField) as caught:
        index_shard(path)
    assert (caught.value.url, caught.value.key, caught.value.offset) == (str(path), "1", 2048)
    archive = path.read_bytes()
    for options in ({"duplicates": "first"}, {"duplicates": "last"}, {"duplicates": "new"},
                    {"handler": ignore_and_continue}):  # fmt: skip
        expected = [
            (sample["__key__"], {name: value for name, value in sample.items() if name[:2] != "__"})
            for sample in streamed(path, **options)
        ]
        assert plain(index_shard(path, **options), archive) == expected


def test_rules_of_reading_apply(tmp_path):
    """``select_files``, ``rename_files``, ``suffixes`` and ``lcase`` do what they do for the stream."""
    path = zoo.build(tmp_path, ["mixed_case"])["mixed_case"]
    for options in (
        {"select_files": lambda name: name.endswith("JPG")},
        {"rename_files": lambda name: f"new/{name}"},
        {"suffixes": ["jpg"]},
        {"lcase": False},
    ):
        expected = [(s["__key__"], [n for n in s if n[:2] != "__"]) for s in streamed(path, **options)]
        found = index_shard(path, **options)
        assert [(entry.key, [field.name for field in entry.fields]) for entry in found.entries] == expected


def test_a_missing_end_mark_is_judged_as_in_a_stream(tmp_path):
    """An error for a file as for a pipe, a warning or silence where asked for."""
    path = zoo.build(tmp_path, ["no_end_mark"])["no_end_mark"]
    for url in (path, f"pipe:cat {path}"):
        with pytest.warns(UserWarning, match="end-of-archive mark"):
            assert len(index_shard(url, missing_end="warn")) == 3
        with pytest.raises(Truncated, match="end-of-archive mark"):
            index_shard(url)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(index_shard(path, missing_end="ignore")) == 3


def test_odd_seams_are_told(tmp_path):
    """Zero blocks inside a shard, where no writer leaves them: the stream's warning."""
    path = tmp_path / "x.tar"
    path.write_bytes(archives.member(b"1.x", b"1") + bytes(3 * 512) + archives.member(b"2.x", b"2") + bytes(1024))
    with pytest.warns(UserWarning, match="zero blocks stand before byte"):
        index_shard(path)


def test_arguments_that_mean_nothing(tmp_path):
    """Unknown digests, rules given twice, nothing there."""
    with pytest.raises(UsageError, match="md5, sha1, sha256"):
        index_shard(tmp_path / "x", hashes=["crc"])
    with pytest.raises(UsageError, match="either reading="):
        index_shard(tmp_path / "x", reading=Reading(), lcase=False)
    with pytest.raises(NotFound) as caught:
        index_shard(tmp_path / "x")
    assert caught.value.url == str(tmp_path / "x")
    with pytest.raises(UsageError, match="threads"):
        list(index_shards([tmp_path / "x"], threads=0))


def counted(server, path):
    """Index a page; return the index, the share of its bytes that was sent, and the number of requests."""
    server.sent = 0
    server.asked.clear()
    index = index_shard(server.root + path)
    return index, server.sent / len(server.pages[path]), len(server.asked)


def test_a_remote_shard_of_large_members_costs_a_few_bytes():
    """Megabyte members with small ones beside them: less than 5 % of the bytes, one request a sample."""
    members = [
        (f"{n}.{ext}", bytes(size)) for n in range(10) for ext, size in (("jpg", 1 << 20), ("cls", 1), ("txt", 300))
    ]
    archive = archives.by_hand(members)
    with RangeServer({"/x.tar": archive}) as server:
        index, share, requests = counted(server, "/x.tar")
    assert [len(entry.fields) for entry in index.entries] == [3] * 10
    assert share < 0.05
    assert requests <= 12


def test_a_remote_shard_of_small_members_costs_a_few_requests():
    """Two thousand members of a few hundred bytes are not two thousand requests."""
    archive = archives.by_hand([(f"{n}.{ext}", b"x" * 300) for n in range(1000) for ext in ("cls", "txt")])
    with RangeServer({"/x.tar": archive}) as server:
        index, share, requests = counted(server, "/x.tar")
    assert len(index) == 1000
    assert share < 1.1
    assert requests < 10


def test_a_remote_shard_of_both_kinds():
    """Runs of small members and runs of large ones: each is read in its own way."""
    small = [(f"s{n}.txt", b"x" * 300) for n in range(1000)]
    large = [(f"l{n}.bin", bytes(1 << 20)) for n in range(8)]
    archive = archives.by_hand([*small, *large, *[(f"t{name}", load) for name, load in small]])
    with RangeServer({"/x.tar": archive}) as server:
        index, share, requests = counted(server, "/x.tar")
        assert len(index) == 2008
        assert share < 0.5
        assert requests < 30
        assert index.entries == index_shard(f"pipe:curl -s {server.root}/x.tar").entries


def test_a_server_without_ranges_is_streamed():
    """It gives the same index, whole."""
    archive = zoo.exhibit("plain").archive
    with RangeServer({"/x.tar": archive}, ranges=False) as server:
        index = index_shard(f"{server.root}/x.tar")
    assert plain(index, archive) == zoo.exhibit("plain").samples


def test_a_local_shard_of_large_members_is_read_at_its_headers(tmp_path):
    """Positioned reads leave out the payloads of a file, too."""
    path = tmp_path / "x.tar"
    path.write_bytes(archives.by_hand([(f"{n}.bin", bytes(1 << 20)) for n in range(5)]))

    class Counted:
        url, latency_bytes = str(path), 16384

        def __init__(self, ranges):
            self.ranges, self.length, self.taken = ranges, ranges.length, 0

        def read_at(self, offset, size):
            piece = self.ranges.read_at(offset, size)
            self.taken += len(piece)
            return piece

    with open_ranges(path) as ranges:
        counting = Counted(ranges)
        assert len(walk_ranges(str(path), counting, Reading())) == 5  # type: ignore[arg-type]
    assert counting.taken < 100_000


def test_many_shards_come_in_order(tmp_path):
    """Braces, lists and paths; several at a time; a bad one is the handler's."""
    for number in range(6):
        (tmp_path / f"x-{number}.tar").write_bytes(archives.by_hand([(f"{n}.txt", b"1") for n in range(number + 1)]))
    assert [len(index) for index in index_shards(f"{tmp_path}/x-{{0..5}}.tar")] == [1, 2, 3, 4, 5, 6]
    (tmp_path / "x-2.tar").write_bytes(b"junk" * 1000)
    urls = [tmp_path / f"x-{number}.tar" for number in range(6)]
    assert [len(index) for index in index_shards(urls, handler=ignore_and_continue, threads=2)] == [1, 2, 4, 5, 6]
    found = index_shards(urls)
    assert len(next(found)) == 1
    assert len(next(found)) == 2
    with pytest.raises(wds.WebDatasetError) as caught:
        next(found)
    assert caught.value.url == os.fspath(urls[2])


def test_a_cut_gz_stream_is_an_error(tmp_path):
    """A compressed shard that ends early is never indexed."""
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(zoo.exhibit("plain").archive)[:-20])
    with pytest.raises(wds.WebDatasetError, match="ends early"):
        index_shard(path)


def test_open_files_are_refused():
    """An index is about a url."""
    with pytest.raises(UsageError, match="BytesIO"):
        index_shard(io.BytesIO(b""))  # type: ignore[arg-type]


def test_a_member_that_is_cut_is_not_taken(tmp_path):
    """The verdict is that of the stream: a field twice, or an end too early, whichever comes first."""
    twice = archives.member(b"1.txt", b"a" * 600)
    for archive, kind in ((twice + twice[:-100], DuplicateField), (twice + twice[:-600], Truncated)):
        path = tmp_path / "x.tar"
        path.write_bytes(archive)
        for call in (lambda: index_shard(path), lambda: list(wds.WebDataset(str(path)))):  # noqa: B023  called at once
            with pytest.raises(kind):
                call()


def test_shards_that_are_no_urls():
    """The same error in a list as alone."""
    with pytest.raises(UsageError, match="not 5"):
        list(wds.index_shards([5]))
