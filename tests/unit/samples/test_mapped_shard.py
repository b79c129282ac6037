"""``memory_map=True``: what fields are, what is read, when maps are let go, and what changed files do."""

import copy
import gc
import gzip
import io
import json
import mmap
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import webdataset as wds
from webdataset.codecs.decoder import Decoder
from webdataset.core.errors import DecodingError, ShardChanged, UsageError
from webdataset.samples import mapped_shard, native_core
from webdataset.testing import sources
from webdataset.writer import bytestr

COUNT, SIZE = 60, 90_000


@pytest.fixture(params=["1", "0"], ids=["native", "python"])
def native(request, monkeypatch):
    """With the native core and without."""
    if request.param == "1" and native_core.load_native()[0] is None:
        pytest.skip("the native core was not compiled")
    monkeypatch.setenv("WDS_NATIVE", request.param)


def write(path, count=COUNT, size=SIZE, first=0):
    """Write a shard of large and small fields; return its name."""
    with wds.TarWriter(str(path), encoder=False) as sink:
        for number in range(first, first + count):
            meta = b'{"width": %d}' % number
            sample = {"__key__": f"{number:06d}", "jpg": bytes([number % 251]) * (size + number)}
            sink.write({**sample, "json": meta, "cls": b"%d" % number})
    return str(path)


def read(urls, **options):
    """Return the samples of shards, mapped."""
    return wds.WebDataset(urls, shardshuffle=False, memory_map=True, **options)


def plain(urls, **options):
    """Return the samples of shards, as bytes."""
    return list(wds.WebDataset(urls, shardshuffle=False, **options))


def owners(samples):
    """Return the kinds of memory that fields are views of."""
    return {type(value.obj) for sample in samples for name, value in sample.items() if name[:2] != "__"}


def count_descriptors():
    """Return how many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


def count_maps(path):
    """Return how many maps of a file there are."""
    return Path("/proc/self/maps").read_text().count(str(path))


def test_fields_are_read_only_views_of_the_file(tmp_path, native):
    """All fields, small ones too; what is equal to bytes, hashes as bytes, and can be sliced."""
    path = write(tmp_path / "a.tar")
    found = list(read(path))
    assert found == plain(path)
    assert owners(found) == {mmap.mmap}
    view = found[3]["jpg"]
    assert view.readonly
    assert (hash(view), bytes(view[5:9])) == (hash(bytes(view)), b"\3\3\3\3")
    assert np.frombuffer(view, np.uint8).sum() == 3 * len(view)
    with pytest.raises(TypeError):
        view[0] = 1
    # the default is as it was
    assert {type(value) for value in plain(path)[0].values()} == {str, bytes}


def test_only_headers_are_read(tmp_path, monkeypatch, native):
    """Payloads are not read, whoever reads the headers, also of members that are left out."""
    path = write(tmp_path / "a.tar", count=40)
    counted = []
    for options in ({}, {"select_files": lambda name: not name.endswith("jpg")}):
        before = read_bytes()
        samples = list(read(path, **options))
        counted.append(read_bytes() - before)
        assert len(samples) == 40
    assert max(counted) < os.path.getsize(path) / 8


def read_bytes():
    """Return how many bytes this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_map_is_let_go_with_its_last_view(tmp_path, native):
    """Neither a map nor a descriptor stays after the views of a shard, and both stay while there is one."""
    path = write(tmp_path / "a.tar")
    gc.collect()
    before = count_descriptors()
    samples = list(read(path))
    view = samples[5]["jpg"]
    del samples
    gc.collect()
    assert count_maps(path) == 1
    assert bytes(view) == b"\5" * (SIZE + 5)
    del view
    gc.collect()
    assert (count_maps(path), count_descriptors()) == (0, before)


def test_a_dataset_that_is_left_keeps_nothing(tmp_path, native):
    """A run that is left in the midst of a shard, or fails, lets go of map and descriptor."""
    path = write(tmp_path / "a.tar")
    gc.collect()
    before = count_descriptors()
    running = iter(read(path))
    first = next(running)
    running.close()
    del running, first
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(wds.errors.Truncated):
        list(read(path))
    gc.collect()
    assert (count_maps(path), count_descriptors()) == (0, before)


def test_small_shards_and_members(tmp_path, native):
    """Shards below the first chunk are mapped, too, with empty members, links and sparse ones."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as sink:
        for name, size in (("a.txt", 0), ("a.bin", 700), ("b.bin", 3)):
            member = tarfile.TarInfo(name)
            member.size = size
            sink.addfile(member, io.BytesIO(b"x" * size))
        link = tarfile.TarInfo("b.txt")
        link.type, link.linkname = tarfile.LNKTYPE, "a.bin"
        sink.addfile(link)
    found = list(read(str(path)))
    assert found == plain(str(path))
    assert [bytes(found[1]["txt"]), bytes(found[0]["txt"])] == [b"x" * 700, b""]
    assert {type(found[number][name]) for number in (0, 1) for name in ("txt", "bin")} == {memoryview}


@pytest.mark.parametrize("how", ["gz", "pipe", "stream", "observed"])
def test_what_cannot_be_mapped_gives_views_of_bytes(how, tmp_path, native):
    """Compressed and piped shards, streams and observed reads: the same type, of copied bytes."""
    path = write(tmp_path / "a.tar", count=3)
    if how == "gz":
        os.system(f"gzip -k {path}")
    url = {"gz": f"{path}.gz", "pipe": f"pipe:cat {path}"}.get(how, path)
    options = {"observer": wds.IndexWhileReading(["binary"])} if how == "observed" else {}
    if how == "stream":
        url = [{"url": io.BytesIO(Path(path).read_bytes())}]
    found = list(read(url, **options))
    assert [{**each, "__url__": ""} for each in found] == [{**each, "__url__": ""} for each in plain(path)]
    assert owners(found) == {bytes}


def test_shards_in_the_cache(tmp_path, native):
    """They come as copies while they are downloaded, and as views of the file after that; an evicted file stays."""
    content = Path(write(tmp_path / "a.tar", count=20)).read_bytes()
    near = tmp_path / "near"
    with sources.served({"/a.tar": content}) as root:
        first = list(read(f"{root}/a.tar", cache_dir=str(near)))
        second = list(read(f"{root}/a.tar", cache_dir=str(near)))
        assert first == second == plain(f"{root}/a.tar", cache_dir=str(near))
    assert owners(second) == {mmap.mmap}
    kept = [path for path in near.rglob("*.tar") if path.is_file()]
    assert kept
    for path in kept:
        path.unlink()
    assert bytes(second[7]["jpg"]) == b"\7" * (SIZE + 7)


@pytest.mark.parametrize("change", ["cut", "grown", "overwritten"])
def test_file_that_is_written_to(change, tmp_path, native):
    """It ends with ``ShardChanged``, as without a map; the views before are not looked at by the reader."""
    path = write(tmp_path / "a.tar", count=300)
    os.utime(path, ns=(10**18, 10**18))
    running, given = iter(read(path)), 0
    while given < 20:
        given += bool(next(running))
    whole = os.path.getsize(path)
    if change == "cut":
        os.truncate(path, whole // 2)
    elif change == "grown":
        with open(path, "ab") as file:
            file.write(b"x")
    else:
        with open(path, "r+b") as file:
            file.write(b"y")
    rest = []
    with pytest.raises(ShardChanged):
        rest.extend(running)
    assert given + len(rest) < 200


def test_file_that_is_replaced(tmp_path, native):
    """A new file under the name changes nothing for views of the old one, nor for the rest of the shard."""
    path = write(tmp_path / "a.tar")
    running = iter(read(path))
    given = [next(running)]
    os.replace(write(tmp_path / "b.tar", first=100), path)
    given += running
    assert [bytes(each["cls"]) for each in given] == [b"%d" % number for number in range(COUNT)]
    assert given[1]["jpg"] == b"\1" * (SIZE + 1)


def test_without_descriptors_it_reads(tmp_path, monkeypatch, native):
    """Where a file cannot be mapped (too many maps or descriptors), its bytes are read."""

    def refuse(*args, **options):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(mapped_shard, "mmap", SimpleNamespace(mmap=refuse, ACCESS_READ=mmap.ACCESS_READ))
    path = write(tmp_path / "a.tar", count=5)
    found = list(read(path))
    assert found == plain(path)
    assert owners(found) == {bytes}


def test_where_elastic_and_shuffle(tmp_path, native):
    """Selections, orders, states and resumed runs are those of bytes; a large buffer holds addresses, not memory."""
    urls = [write(tmp_path / f"{number}.tar", count=20, first=20 * number) for number in range(3)]

    def run(mapped, state=None, stop=None):
        dataset = wds.WebDataset(urls, shardshuffle=10, seed=1, where="json.width % 3 < 2", memory_map=mapped)
        dataset = dataset.shuffle(20, max_bytes=900_000).elastic(streams=2)
        if state is not None:
            dataset.load_state_dict(state)
        found = []
        for number, sample in enumerate(dataset, 1):
            found.append((sample["__key__"], bytes(sample["jpg"][:3]), type(sample["jpg"])))
            if number == stop:
                return found, json.loads(json.dumps(dataset.state_dict()))
        return found, None

    whole, _ = run(mapped=False)
    mapped, _ = run(mapped=True)
    assert [each[:2] for each in mapped] == [each[:2] for each in whole]
    assert len(whole) == 40
    for before, after in ((True, True), (True, False), (False, True)):
        first, state = run(mapped=before, stop=17)
        rest, _ = run(mapped=after, state=state)
        assert [each[:2] for each in first + rest] == [each[:2] for each in whole]
        assert {each[2] for each in rest} == {memoryview if after else bytes}


def test_memory_of_a_large_buffer(tmp_path):
    """A shuffle buffer of all samples takes no memory for payloads that nobody looks at."""
    path = write(tmp_path / "a.tar", count=400, size=400_000)
    before = resident_bytes()
    held = list(read(path).shuffle(400, initial=400))
    assert len(held) == 400
    assert resident_bytes() - before < 40_000_000


def resident_bytes():
    """Return the bytes of memory that this process has touched."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_views_are_written_pickled_and_copied(tmp_path, native):
    """Writers, pickles, copies and hashes take views; the pickle is a view of its bytes."""
    path = write(tmp_path / "a.tar", count=4)
    samples = list(read(path))
    for encoder in (False, True):
        with wds.TarWriter(str(tmp_path / "b.tar"), encoder=encoder) as sink:
            for sample in samples:
                sink.write(sample)
        again = plain(str(tmp_path / "b.tar"))
        assert [{**each, "__url__": ""} for each in again] == [{**each, "__url__": ""} for each in samples]
    loaded = pickle.loads(pickle.dumps(samples))
    assert loaded == samples
    assert type(loaded[0]["jpg"].obj) is bytes
    assert copy.deepcopy(samples[0]) == samples[0]
    shaped = memoryview(np.arange(6, dtype=np.float32).tobytes()).cast("f", [2, 3])
    back = pickle.loads(pickle.dumps(shaped))
    assert (back.format, back.shape, back.tolist()) == ("f", (2, 3), shaped.tolist())
    assert bytestr(samples[0]["cls"]) == b"0"


def test_metadata_and_unknown_fields_of_views():
    """A member called ``__x`` becomes text, and a field that nothing decodes stays a view."""
    decoded = Decoder().decode(
        {"__key__": "k", "__x": memoryview(b"t"), "jpg": memoryview(b"j"), "cls": memoryview(b"7")}
    )
    assert decoded == {"__key__": "k", "__x": "t", "jpg": b"j", "cls": 7}
    assert type(decoded["jpg"]) is memoryview
    with pytest.raises(DecodingError):
        Decoder().decode({"cls": memoryview(b"seven")})


def test_arguments_and_explain(tmp_path):
    """A text is no flag, and ``explain`` says what fields are."""
    path = write(tmp_path / "a.tar", count=1)
    with pytest.raises(UsageError, match="memory_map"):
        wds.WebDataset(path, memory_map="no")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="memory_map"):
        wds.IndexedDataset(path, memory_map="no")
    assert "read-only memoryviews" in str(read(path).explain())
    assert "memoryview" not in str(wds.WebDataset(path).explain())


def test_samples_by_number(tmp_path):
    """``IndexedDataset`` gives the same views by number and by key, in any order, and keeps no map."""
    path = write(tmp_path / "a.tar", count=30)
    wanted = [{**each, "__url__": path} for each in plain(path)]
    gc.collect()
    before = count_descriptors()
    for index in (None, False):
        with wds.IndexedDataset(path, index=index, memory_map=True) as dataset:
            for number in (5, 29, 0, 5, -1):
                assert dataset[number] == wanted[number]
            assert dataset.by_key("000003")["jpg"] == wanted[3]["jpg"]
            assert owners([dataset[4]]) == {mmap.mmap}
            sent = pickle.loads(pickle.dumps(dataset))
            assert sent[2] == wanted[2]
            sent.close()
        wds.write_indexes(path, ["binary"])
    del dataset, sent
    gc.collect()
    assert (count_maps(path), count_descriptors()) == (0, before)
    decoded = wds.IndexedDataset(path, decode=True, memory_map=True)[7]
    assert (decoded["cls"], decoded["json"]) == (7, {"width": 7})


def test_stale_index_with_a_map(tmp_path):
    """A shard that the index does not describe is an error, never another payload."""
    path = write(tmp_path / "a.tar", count=5)
    index = wds.index_shard(path)
    write(path, count=5, size=SIZE + 600)
    with pytest.raises(wds.errors.WebDatasetError):
        wds.IndexedShard(path, index, memory_map=True).read(3)
    dataset = wds.IndexedShard(path, memory_map=True)
    assert len(dataset[0]["jpg"]) == SIZE + 600
    os.utime(path, ns=(1, 1))
    with pytest.raises(ShardChanged):
        dataset[1]


def test_samples_by_number_of_odd_members(tmp_path):
    """Long names, links and sparse members come as views, too, whatever they are of."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as sink:
        for name, size in (("k" * 200 + ".bin", 9000), ("b.bin", 3)):
            member = tarfile.TarInfo(name)
            member.size = size
            sink.addfile(member, io.BytesIO(b"x" * size))
        link = tarfile.TarInfo("b.txt")
        link.type, link.linkname = tarfile.LNKTYPE, "b.bin"
        sink.addfile(link)
    dataset = wds.IndexedDataset(str(path), memory_map=True)
    assert [{**each} for each in dataset] == [{**each} for each in wds.IndexedDataset(str(path))]
    assert {type(dataset[0]["bin"]), type(dataset[1]["txt"])} == {memoryview}


def test_maps_leave_descriptors_and_maps(tmp_path):
    """Views of any number of shards may be kept: maps take half of the descriptors, and bytes are copied after that."""
    path = write(tmp_path / "a.tar", count=2)
    program = f"""
import os, resource, webdataset as wds
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
kept = list(wds.WebDataset([{path!r}] * 300, shardshuffle=False, memory_map=True))
print(len(kept), len({{bytes(sample["jpg"]) for sample in kept}}), len(os.listdir("/proc/self/fd")) < 130)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("600 2 True\n", "")


def test_maps_are_bounded(tmp_path, monkeypatch, native):
    """Beyond so many maps, fields are views of copied bytes; a map that is let go makes room."""
    monkeypatch.setattr(mapped_shard, "_MOST_MAPS", len(mapped_shard._files) + 2)
    urls = [write(tmp_path / f"{number}.tar", count=2) for number in range(4)]
    kept = list(read(urls))
    kinds = [type(sample["jpg"].obj) for sample in kept]
    assert kinds == [mmap.mmap] * 4 + [bytes] * 4
    assert kept == [sample for url in urls for sample in plain(url)]
    del kept[:2]
    gc.collect()
    assert owners(read(urls[3])) == {mmap.mmap}


def test_views_of_bytes_are_pickled_where_nothing_was_mapped(tmp_path):
    """A process that maps no file at all pickles and copies views as others do."""
    path = write(tmp_path / "a.tar", count=2)
    packed = f"{path}.gz"
    Path(packed).write_bytes(gzip.compress(Path(path).read_bytes(), 1))
    program = f"""
import copy, pickle, webdataset as wds
sample = next(iter(wds.WebDataset({packed!r}, shardshuffle=False, memory_map=True)))
print(pickle.loads(pickle.dumps(sample)) == sample, copy.deepcopy(sample) == sample)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True True\n", "")
