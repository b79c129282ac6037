"""Samples by number and key out of one shard, with and without an index beside it."""

import json
import multiprocessing
import os
import pickle
import threading
from array import array

import pytest

import webdataset as wds
from support import zoo
from webdataset.core.errors import (
    BadIndex,
    NoRandomAccess,
    NoSuchSample,
    ShardChanged,
    StaleIndex,
    TarError,
    UsageError,
)
from webdataset.index import indexed_shard
from webdataset.index.build import index_shard
from webdataset.index.convert import OffsetEntries
from webdataset.index.entries import SampleEntries, ShardIndex
from webdataset.index.formats import dali, energon, files_json
from webdataset.index.indexed_shard import IndexedShard
from webdataset.index.local_samples import open_local_samples
from webdataset.testing import archives
from webdataset.testing.sources import RangeServer

WHOLE = [exhibit for exhibit in zoo.exhibits() if exhibit.samples is not None]
FORMATS = (dali, energon, files_json)
NOT_HELD = {  # as test_formats shows
    dali: ("empty_extension", "space_in_extension", "sparse", "empty"),
    energon: ("sparse", "joined"),
    files_json: ("sparse", "not_utf8"),
}
HELD = [(module, exhibit) for module in FORMATS for exhibit in WHOLE if exhibit.name not in NOT_HELD[module]]


def plain(sample):
    """Key and fields of a sample."""
    return sample["__key__"], {name: value for name, value in sample.items() if name[:2] != "__"}


def shard_of(tmp_path, members=None, name="x.tar"):
    """Write a shard; by default of ten samples of two fields."""
    path = tmp_path / name
    members = members or [(f"{n:02d}.{ext}", f"{ext}{n}".encode()) for n in range(10) for ext in ("cls", "txt")]
    path.write_bytes(archives.by_hand(members))
    return path


def sidecars(path, *modules):
    """Write indexes beside a shard."""
    index = index_shard(path)
    for module in modules:
        with open(module.index_name(str(path)), "wb") as stream:
            stream.write(module.dumps(index))
    return index


@pytest.mark.usefixtures("ends_unmarked")
@pytest.mark.parametrize("exhibit", WHOLE, ids=lambda exhibit: exhibit.name)
def test_samples_are_those_of_the_stream(tmp_path, exhibit):
    """By number, by negative number, by key, by slice, all in turn; with the stream's own dicts."""
    path = zoo.build(tmp_path, [exhibit.name])[exhibit.name]
    streamed = list(wds.WebDataset(str(path), empty_check=False))
    with wds.IndexedShard(path) as shard:
        assert list(shard) == streamed
        assert [plain(sample) for sample in shard[:]] == exhibit.samples
        assert [list(sample) for sample in shard] == [list(sample) for sample in streamed]
        for number in range(-len(shard), len(shard)):
            assert shard[number] == streamed[number]
        for key, _ in exhibit.samples:
            assert [sample["__key__"] for sample in shard.by_key(key, all=True)] == [
                each for each, _ in exhibit.samples if each == key
            ]
            assert shard.by_key(key) == shard.by_key(key, all=True)[0]


@pytest.mark.usefixtures("ends_unmarked")
@pytest.mark.parametrize(("module", "exhibit"), HELD, ids=lambda part: getattr(part, "name", None))
def test_an_index_beside_the_shard_is_used(tmp_path, exhibit, module):
    """Where a format holds the shard, reading through it gives the same samples."""
    path = zoo.build(tmp_path, [exhibit.name])[exhibit.name]
    sidecars(path, module)
    with IndexedShard(path) as found, IndexedShard(path, module.index_name(str(path))) as given:
        assert [plain(sample) for sample in found] == exhibit.samples
        assert [plain(sample) for sample in given] == exhibit.samples
        assert [entry.offset for entry in found.index.entries] == [entry.offset for entry in index_shard(path).entries]


def test_an_index_spares_reading_the_headers(tmp_path):
    """With a sidecar that proves itself, a remote shard is opened without walking it."""
    archive = archives.by_hand([(f"{n}.bin", bytes(200_000)) for n in range(20)])
    (tmp_path / "x.tar").write_bytes(archive)
    index = index_shard(tmp_path / "x.tar")
    for module in FORMATS:
        pages = {"/x.tar": archive, module.index_name("/x.tar"): module.dumps(index)}
        with RangeServer(pages) as server, IndexedShard(f"{server.root}/x.tar") as shard:
            assert len(shard) == 20
            assert sum(path == "/x.tar" for path, _ in server.asked) <= 3
            assert plain(shard[7]) == ("7", {"bin": bytes(200_000)})


def test_keys_by_an_index_without_names(tmp_path):
    """An energon index has no keys: the headers are read when a key is asked for."""
    path = shard_of(tmp_path)
    sidecars(path, energon)
    with IndexedShard(path) as shard:
        assert isinstance(shard.index.entries, OffsetEntries)
        assert shard.index.entries[2:4] == index_shard(path).entries[2:4]
        assert shard.index.entries[-1] == index_shard(path).entries[-1]
        with pytest.raises(IndexError):
            shard.index.entries[10]
        assert plain(shard.by_key("07")) == ("07", {"cls": b"cls7", "txt": b"txt7"})
        assert isinstance(shard.index.entries, SampleEntries)
        assert plain(pickle.loads(pickle.dumps(shard))[3])[0] == "03"


def test_what_is_not_there(tmp_path):
    """Numbers out of range are IndexErrors, unknown keys KeyErrors; both say where."""
    shard = IndexedShard(shard_of(tmp_path))
    for number in (10, -11, 1 << 70):
        with pytest.raises(IndexError) as caught:
            shard[number]
        assert isinstance(caught.value, NoSuchSample)
        assert "the shard has 10" in str(caught.value)
    with pytest.raises(KeyError) as caught:
        shard.by_key("absent")
    assert caught.value.key == "absent"
    assert shard.ordinals("absent") == []
    assert "absent" not in shard
    assert 3 not in shard
    assert "03" in shard
    assert shard[20:] == []


def test_some_fields(tmp_path):
    """Only the fields asked for are fetched; the rest of the sample is not read."""
    members = [(f"{n}.{ext}", bytes(size)) for n in range(3) for ext, size in (("jpg", 300_000), ("json", 10))]
    with RangeServer({"/x.tar": archives.by_hand(members)}) as server:
        shard = IndexedShard(f"{server.root}/x.tar", False)
        len(shard)
        server.sent = 0
        assert plain(shard.read(1, ["json"])) == ("1", {"json": bytes(10)})
        assert server.sent == 522
        assert plain(shard.read(1, ["nothing"])) == ("1", {})
        server.asked.clear()
        assert len(plain(shard[2])[1]["jpg"]) == 300_000
        assert len(server.asked) == 1


def test_decoding(tmp_path):
    """Specs, lists, functions and True decode as ``.decode`` does."""
    path = shard_of(tmp_path, [("a.json", b'{"x": 1}'), ("a.cls", b"7")])
    assert plain(IndexedShard(path, decode=True)[0])[1] == {"json": {"x": 1}, "cls": 7}
    assert plain(IndexedShard(path, decode="rgb")[0])[1] == {"json": {"x": 1}, "cls": 7}
    hundred = [lambda key, load: 100 if key == ".cls" else None]
    assert plain(IndexedShard(path, decode=hundred)[0])[1] == {"json": {"x": 1}, "cls": 100}
    assert IndexedShard(path, decode=lambda sample: sample["__key__"])[0] == "a"
    with pytest.raises(UsageError):
        IndexedShard(path, decode=3)[0]  # type: ignore[arg-type]
    (tmp_path / "bad.tar").write_bytes(archives.by_hand([("a.json", b"{")]))
    with pytest.raises(wds.DecodingError) as caught:
        IndexedShard(tmp_path / "bad.tar", decode=True)[0]
    assert (caught.value.key, caught.value.field) == ("a", "json")


def test_rules_of_reading_apply(tmp_path):
    """Renamed, selected and repeated members come as the stream has them."""
    path = zoo.build(tmp_path, ["duplicate_member"])["duplicate_member"]
    for options in (
        {"duplicates": "first"}, {"duplicates": "last"}, {"duplicates": "new"},
        {"duplicates": "new", "rename_files": lambda name: f"d/{name}"},
        {"select_files": lambda name: name.endswith("cls")},
    ):  # fmt: skip
        streamed = list(wds.WebDataset(str(path), **options))
        assert list(IndexedShard(path, **options)) == streamed


def test_a_dali_index_that_is_named_is_kept_to(tmp_path):
    """It may list a part of the samples, in another order, with fewer components."""
    path = shard_of(tmp_path)
    lines = sidecars(path, dali) and (tmp_path / "x.idx").read_bytes().splitlines()
    chosen = [b"v1.2 3", lines[8], lines[3], b" ".join(lines[5].split()[4:])]
    (tmp_path / "part.idx").write_bytes(b"\n".join(chosen) + b"\n")
    shard = IndexedShard(path, tmp_path / "part.idx")
    assert [plain(sample) for sample in shard] == [
        ("07", {"cls": b"cls7", "txt": b"txt7"}), ("02", {"cls": b"cls2", "txt": b"txt2"}), ("04", {"txt": b"txt4"}),
    ]  # fmt: skip
    assert shard.by_key("02")["cls"] == b"cls2"
    os.replace(tmp_path / "part.idx", tmp_path / "x.idx")
    assert len(IndexedShard(path)) == 10


def test_a_dali_index_of_version_1_1(tmp_path):
    """Without names the headers are read; the samples are all there."""
    path = shard_of(tmp_path)
    (tmp_path / "x.idx").write_bytes(dali.dumps(index_shard(path), version="v1.1"))
    assert [plain(sample)[0] for sample in IndexedShard(path)] == [f"{n:02d}" for n in range(10)]


def test_files_that_are_no_index_are_passed_by(tmp_path):
    """JSON and .idx files of other kinds beside a shard, and pickled ones, are not read as indexes."""
    path = shard_of(tmp_path)
    (tmp_path / "x.json").write_text('{"caption": "a cat"}')
    (tmp_path / "x.idx").write_bytes(b"something else")
    (tmp_path / "x.tar.idx").write_bytes(b"odd")
    (tmp_path / "x.tar.index").write_bytes(pickle.dumps(print))
    assert len(IndexedShard(path)) == 10
    for name in ("x.idx", "x.tar.index"):
        with pytest.raises(BadIndex):
            len(IndexedShard(path, tmp_path / name))
    with pytest.raises(BadIndex, match="files"):
        len(IndexedShard(path, tmp_path / "x.json"))
    with pytest.raises(UsageError):
        IndexedShard(path, 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        IndexedShard(path, True)  # type: ignore[arg-type]


def test_a_files_json_of_every_member(tmp_path):
    """Sidecars list members that belong to no sample, too, and the other variant is read as well."""
    exhibit = zoo.exhibit("no_extension")
    path = zoo.build(tmp_path, ["no_extension"])["no_extension"]
    walked = {name: (entry.offset_data, entry.size) for name, entry in _by_tarfile(path).items()}
    for size in ("size", "length"):
        files = {name: {"offset": offset, size: count} for name, (offset, count) in walked.items()}
        path.with_suffix(".json").write_text(json.dumps({"filesize": path.stat().st_size, "files": files}))
        assert [plain(sample) for sample in IndexedShard(path)] == exhibit.samples


def _by_tarfile(path):
    import tarfile

    with tarfile.open(path) as archive:
        return {entry.name: entry for entry in archive if entry.isreg()}


def test_compressed_shards_and_pipes_are_refused(tmp_path):
    """With the way out, and as OSError."""
    path = tmp_path / "x.tar.gz"
    path.write_bytes(archives.compressed(zoo.exhibit("plain").archive, "gz"))
    for shard in (IndexedShard(path), IndexedShard(path, index_shard(path)), IndexedShard(f"pipe:cat {path}")):
        with pytest.raises(NoRandomAccess) as caught:
            len(shard)
        assert caught.value.url


def test_a_damaged_shard_is_refused_as_by_the_stream(tmp_path):
    """The same error, with the url."""
    path = shard_of(tmp_path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(TarError) as caught:
        len(IndexedShard(path))
    assert caught.value.url == str(path)


def _other(path, members):
    """Another shard of the same size as one that is there."""
    archive = archives.by_hand(members)
    return archive + bytes(path.stat().st_size - len(archive))


@pytest.mark.parametrize("module", FORMATS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_an_index_of_another_shard_is_found_out(tmp_path, module):
    """A shard of the same size with other members behind an index: StaleIndex, never its bytes."""
    path = shard_of(tmp_path)
    sidecars(path, module)
    others = [
        [(f"{n:02d}.{ext}", b"other") for n in range(10) for ext in ("cls", "txt")],  # sizes differ
        [(f"{n + 1:02d}.{ext}", f"{ext}{n}".encode()) for n in range(10) for ext in ("cls", "txt")],  # keys differ
        [(f"{n:02d}.txt", b"x" * 1200) for n in range(6)],  # offsets differ
    ]
    for members in others:
        path.write_bytes(_other(path, members))
        streamed = [plain(sample) for sample in wds.WebDataset(str(path))]
        shard = IndexedShard(path)
        found, refused = [], []
        for number in range(10):
            try:
                found.append(plain(shard[number]))
            except StaleIndex as error:
                refused.append(error)
        assert all(error.url == str(path) and "index=False" in str(error) for error in refused)
        assert all(sample in streamed for sample in found)
        if module is not energon:  # an energon index has offsets only: what stands there is a sample of the shard
            assert not found
            assert len(refused) == 10
        assert [plain(sample) for sample in IndexedShard(path, False)] == streamed


def test_an_index_that_shifts_by_a_record_is_found_out(tmp_path):
    """The classic mistake, offsets that forget GNU name records, gives an error and not the name as payload."""
    path = zoo.build(tmp_path, ["gnu_long"])["gnu_long"]
    lines = dali.loads(dali.dumps(index_shard(path)))
    wrong = b"\n".join(
        b" ".join(f"{part.extension} {part.offset - 1024} {part.size} {part.name}".encode() for part in line)
        for line in lines
    )
    (tmp_path / "gnu_long.idx").write_bytes(b"v1.2 3\n" + wrong + b"\n")
    with pytest.raises(StaleIndex):
        len(IndexedShard(path))


def test_a_shard_that_changes_under_an_open_index(tmp_path):
    """Same size, other bytes: each header proves itself when it is used."""
    path = shard_of(tmp_path)
    shard = IndexedShard(path)
    assert plain(shard[3])[0] == "03"
    changed = path.stat().st_mtime_ns
    with open(path, "r+b") as stream:
        stream.seek(1024 * 6)
        stream.write(b"!" * 512)
    os.utime(path, ns=(changed, changed))
    with pytest.raises(StaleIndex, match="no header stands before"):
        shard[3]
    assert plain(shard[4])[0] == "04"
    with open(path, "r+b") as stream:
        stream.truncate(1024 * 8 + 512)
    with pytest.raises(ShardChanged):
        shard[4]


def test_a_shard_that_changes_while_it_is_closed(tmp_path):
    """Whoever opens a shard again finds the same one, or says so; other payloads show in no header."""
    path = shard_of(tmp_path)
    shard = IndexedShard(path)
    before = shard[3]
    shard.close()
    changed = path.stat().st_mtime_ns
    path.with_name("other").write_bytes(path.read_bytes())
    path.with_name("other").rename(path)
    os.utime(path, ns=(changed, changed))
    assert shard[3] == before
    shard.close()
    content = bytearray(path.read_bytes())
    content[1024 * 6 + 512] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(changed, changed + 1000))
    with pytest.raises(ShardChanged, match="new IndexedShard"):
        shard[3]
    assert IndexedShard(path)[3] != before
    assert pickle.loads(pickle.dumps(shard))[3] != before


def test_an_index_in_memory_is_checked_by_size(tmp_path):
    """A ShardIndex travels; a shard of another size is not its own. It serves a moved shard."""
    path = shard_of(tmp_path)
    index = pickle.loads(pickle.dumps(index_shard(path)))
    moved = tmp_path / "moved.tar"
    moved.write_bytes(path.read_bytes())
    assert IndexedShard(moved, index)[1]["__url__"] == str(moved)
    moved.write_bytes(path.read_bytes() + bytes(512))
    with pytest.raises(StaleIndex, match="bytes"):
        len(IndexedShard(moved, index))


def test_entries_that_lie_are_stale(tmp_path):
    """An index with a wrong key, name, size or place in it is an error at that sample."""
    path = shard_of(tmp_path)
    index = index_shard(path)
    entry = index.entries[2]
    field = entry.fields[0]
    for wrong in (
        entry._replace(fields=(field._replace(size=field.size + 1),)),
        entry._replace(fields=(field._replace(member="02.xyz"),)),
        entry._replace(fields=(field._replace(offset=field.offset + 512),)),
        entry._replace(fields=(field._replace(offset=1 << 50),)),
        entry._replace(fields=(field._replace(offset=0),)),
    ):
        entries = [*index.entries[:2], wrong, *index.entries[3:]]
        lying = ShardIndex(index.url, index.size_bytes, index.end, SampleEntries(entries))
        with pytest.raises(StaleIndex):
            IndexedShard(path, lying)[2]
        assert plain(IndexedShard(path, lying)[3])[0] == "03"


def test_signed_checksums(tmp_path):
    """Headers of early writers, summed as signed bytes, prove themselves through the scanner."""
    name = "é.txt"
    archive = archives.archive(archives.member(name.encode(), b"1", signed=True))
    (tmp_path / "x.tar").write_bytes(archive)
    assert plain(IndexedShard(tmp_path / "x.tar")[0]) == ("é", {"txt": b"1"})


def test_threads_and_close(tmp_path):
    """Several threads read one shard while it is closed and opened again."""
    shard = IndexedShard(shard_of(tmp_path))
    wrong = []

    def read(seed):
        for step in range(200):
            number = (seed + step) % 10
            if plain(shard[number])[0] != f"{number:02d}":
                wrong.append(number)
            if step % 50 == 0:
                shard.close()

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes(tmp_path, method):
    """An open shard reaches forked and spawned processes."""
    shard = IndexedShard(shard_of(tmp_path))
    here = list(shard)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(list, (shard,)) == here


def test_what_it_shows(tmp_path):
    """Its repr tells the url without secrets, and how many samples are known."""
    shard = IndexedShard(shard_of(tmp_path))
    assert "not opened yet" in repr(shard)
    len(shard)
    assert "10 samples" in repr(shard)
    assert "secret" not in repr(IndexedShard("https://user:secret@host/x.tar"))


def test_names_with_percent_signs_in_other_peoples_indexes(tmp_path):
    """Whether a name was escaped or is so called, the shard's headers decide."""
    path = zoo.build(tmp_path, ["blanks"])["blanks"]
    content = dali.dumps(index_shard(path))
    assert b"per%2520cent" in content
    for text in (content, content.replace(b"%2520", b"%20")):
        (tmp_path / "blanks.idx").write_bytes(text)
        assert [plain(sample) for sample in IndexedShard(path)] == zoo.exhibit("blanks").samples


def test_a_stale_index_is_found_out_when_it_is_opened(tmp_path):
    """The first and last header are looked at, so that even a list of keys does not come from another shard."""
    path = shard_of(tmp_path)
    sidecars(path, files_json)
    path.write_bytes(_other(path, [(f"a{n}.{ext}", b"12345") for n in range(10) for ext in ("cls", "txt")]))
    with pytest.raises(StaleIndex):
        IndexedShard(path).keys()


@pytest.mark.parametrize("module", FORMATS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_rules_of_reading_apply_behind_an_index(tmp_path, module):
    """An index made under the usual rules serves under others as the headers would."""
    path = shard_of(tmp_path)
    sidecars(path, module)
    for options in ({"select_files": lambda name: name > "05.cls"}, {"suffixes": ["txt"]}, {"duplicates": "last"},
                    {"rename_files": lambda name: f"d/{name}"}, {"lcase": False}):  # fmt: skip
        assert list(IndexedShard(path, **options)) == list(wds.WebDataset(str(path), **options))


def energon_index(path, offsets):
    """Write numbers beside a shard."""
    path.with_suffix(".tar.idx").write_bytes(array("Q", offsets).tobytes())


@pytest.mark.parametrize(
    "content",
    [
        '{"name": "x", "files": ["a", "b"]}', '{"files": {"a.txt": "a digest"}}',
        '{"files": {"a.txt": {"offset": 1e999}}}', '{"files": {}, "deep": ' + "[" * 100_000, "{" + " " * (17 << 20),
    ],
    ids=["list", "mapping", "infinite", "deep", "long"],
)  # fmt: skip
def test_a_json_of_ones_own_beside_the_shard(tmp_path, content):
    """It has the name of a sidecar and is none: passed by, and an error where it is named."""
    path = shard_of(tmp_path)
    (tmp_path / "x.json").write_text(content)
    assert len(IndexedShard(path)) == 10
    with pytest.raises(BadIndex):
        len(IndexedShard(path, tmp_path / "x.json"))


@pytest.mark.parametrize("line", [b"v1.2 " + b"9" * 5000 + b"\n", b"v1.2 1\ntxt 512 " + b"9" * 5000 + b" 00.cls\n"])
def test_numbers_of_thousands_of_digits(tmp_path, line):
    """A typed error, not the interpreter's."""
    path = shard_of(tmp_path)
    (tmp_path / "other.idx").write_bytes(line)
    with pytest.raises(BadIndex):
        len(IndexedShard(path, tmp_path / "other.idx"))


def test_shards_that_share_the_name_of_dalis_tool(tmp_path):
    """``a.1.tar`` and ``a.2.tar`` have indexes of their own; ``a.idx`` is used where it fits, else passed by."""
    paths = [shard_of(tmp_path, [(f"{n}.txt", b"x" * n * 600) for n in range(3)], f"a.{size}.tar") for size in (1, 2)]
    paths[1].write_bytes(archives.by_hand([(f"{n}.txt", b"y" * 50) for n in range(4)]))
    (tmp_path / "a.idx").write_bytes(dali.dumps(index_shard(paths[0])))
    assert [len(IndexedShard(path)) for path in paths] == [3, 4]
    wds.write_indexes(paths, "dali")
    assert {path.name for path in tmp_path.glob("*.idx")} == {"a.idx", "a.1.idx", "a.2.idx"}
    assert [len(IndexedShard(path)) for path in paths] == [3, 4]


def test_an_energon_index_that_leaves_samples_out(tmp_path):
    """At the start, after the end, in zeros that look like an end mark, all of them: never fewer samples, silently."""
    path = shard_of(tmp_path, [("0.txt", b"a"), ("1.bin", bytes(20_000)), ("2.txt", b"b")])
    *starts, end = [entry.offset for entry in index_shard(path).entries] + [index_shard(path).end]
    for offsets in ([*starts[1:], end], [starts[0], starts[1] + 512], [starts[0], starts[1] + 1024], [end]):
        energon_index(path, offsets)
        with pytest.raises(StaleIndex):
            len(IndexedShard(path))
    energon_index(path, [starts[0], starts[2], end])  # in the middle: found out where it is read
    with pytest.raises(StaleIndex):
        IndexedShard(path)[0]
    energon_index(path, [*starts, end])
    assert len(IndexedShard(path)) == 3


def test_an_energon_index_of_the_first_of_joined_archives(tmp_path):
    """The end mark that it knows is not the last one."""
    path = shard_of(tmp_path, [("0.txt", b"a")])
    index = sidecars(path, energon)
    path.write_bytes(path.read_bytes() + archives.by_hand([("1.txt", b"b")]))
    with pytest.raises(StaleIndex, match="end mark"):
        len(IndexedShard(path))
    path.write_bytes(path.read_bytes()[: index.end] + bytes(40 * 1024))  # a long end mark
    assert len(IndexedShard(path)) == 1
    path.write_bytes(path.read_bytes()[: index.end])
    with pytest.raises(TarError):
        len(IndexedShard(path, missing_end="error"))


def test_folders_and_links_behind_the_last_sample(tmp_path):
    """They belong to the members: the end is behind them, in every format, with and without an end mark."""
    parts = [archives.header(b"d/", kind=b"5"), archives.member(b"d/1.txt", b"1"), archives.header(b"l", kind=b"2")]
    path = tmp_path / "x.tar"
    path.write_bytes(archives.archive(*parts))
    assert index_shard(path).end == len(archives.archive(*parts, end=b""))
    for module in FORMATS:
        sidecars(path, module)
        assert [plain(sample) for sample in IndexedShard(path)] == [("d/1", {"txt": b"1"})]
        os.unlink(module.index_name(str(path)))


def test_rows_of_members_that_the_rules_leave_out(tmp_path):
    """A name in a PAX record is not in the header: no reason to call the index stale."""
    path = tmp_path / "x.tar"
    path.write_bytes(archives.archive(archives.pax_member(b"1.txt", b"1"), archives.member(b"1.cls", b"0")))
    sidecars(path, dali, files_json)
    for name in ("x.idx", "x.json"):
        shard = IndexedShard(path, tmp_path / name, suffixes={"cls"})
        assert [plain(sample) for sample in shard] == [("1", {"cls": b"0"})]


def test_an_index_is_opened_under_the_trust_of_the_shard(tmp_path):
    """A command in place of an index is not run where commands are not trusted."""
    path = shard_of(tmp_path)
    with pytest.raises(wds.WebDatasetError):
        len(IndexedShard(path, f"pipe:touch {tmp_path}/ran", trust="strict"))
    assert not (tmp_path / "ran").exists()


def test_a_closed_shard_holds_no_file(tmp_path):
    """Behind an energon index, too, whose entries are read from the shard."""
    path = shard_of(tmp_path)
    sidecars(path, energon)
    shard = IndexedShard(path)
    entries = shard.index.entries
    shard.close()
    held = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert os.path.realpath(path) not in held
    assert entries[3].key == "03"  # opened for the moment
    assert plain(shard[3])[0] == "03"


def test_a_fork_while_a_shard_is_opened(tmp_path):
    """The child opens it, though the thread that held the lock is not there."""
    shard = IndexedShard(shard_of(tmp_path))
    with shard._opening:
        context = multiprocessing.get_context("fork")
        child = context.Process(target=len, args=(shard,))
        child.start()
        child.join(20)
        code = child.exitcode
        child.kill()
    assert code == 0


def test_closed_while_it_is_opened(tmp_path, monkeypatch):
    """Another thread may close it then: the sample comes all the same, and nothing stays open."""
    shard, find_index, open_small = IndexedShard(shard_of(tmp_path)), indexed_shard.find_index, open_local_samples

    def find(*given):
        shard.close()
        return find_index(*given)

    def open_small_and_close(*given):
        shard.close()
        return open_small(*given)

    monkeypatch.setattr(indexed_shard, "find_index", find)
    monkeypatch.setattr(indexed_shard, "open_local_samples", open_small_and_close)
    assert plain(shard[0])[0] == "00"
    assert shard.quick is None
    shard.__dict__.update(_index=None)
    assert plain(shard[1])[0] == "01"
    assert plain(shard[2])[0] == "02"
    assert (shard.quick, shard._read_local) == (None, None)
