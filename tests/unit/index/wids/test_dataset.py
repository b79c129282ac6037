"""Samples of many shards by number: always those of the stream, wherever the shards are."""

import gzip
import io
import json
import multiprocessing
import os
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import webdataset as wds
import wids
from support import zoo
from webdataset.core.errors import (
    DecodingError,
    DuplicateField,
    NoSuchSample,
    NotFound,
    StaleIndex,
    Truncated,
    UnsafeContent,
    UsageError,
)
from webdataset.index.wids.dataset import ShardListDataset
from webdataset.testing import archives
from webdataset.testing.sources import RangeServer

READABLE = [exhibit for exhibit in zoo.exhibits() if exhibit.samples]


def members(*keys):
    """Members of samples with two fields."""
    return [(f"{key}.{field}", f"{key} {field}".encode()) for key in keys for field in ("txt", "bin")]


def archive(*keys):
    """A shard of such samples."""
    return archives.by_hand(members(*keys))


@pytest.fixture
def shards(tmp_path):
    """Three shards, the second empty, as a list of dicts."""
    made = []
    for name, keys in (("a", ("a0", "a1", "a2")), ("b", ()), ("c", ("c0", "c1"))):
        (tmp_path / f"{name}.tar").write_bytes(archive(*keys))
        made.append({"url": str(tmp_path / f"{name}.tar"), "nsamples": len(keys)})
    return made


def keys(dataset):
    """The keys of all samples, by number."""
    return [dataset[place]["__key__"] for place in range(len(dataset))]


def test_samples_by_number(shards):
    """Fields have a dot and are streams unless decoded; empty shards are stepped over."""
    dataset = ShardListDataset(shards)
    assert len(dataset) == 5
    sample = dataset[3]
    assert list(sample) == [".txt", ".bin", "__key__", "__dataset__", "__index__", "__shard__", "__shardindex__"]
    assert (sample[".txt"], sample[".bin"].read()) == ("c0 txt", b"c0 bin")
    assert (sample["__index__"], sample["__shard__"], sample["__shardindex__"]) == (3, shards[2]["url"], 0)
    assert keys(dataset) == [each["__key__"] for each in dataset] == ["a0", "a1", "a2", "c0", "c1"]


def test_numbers_of_any_kind(shards):
    """Negative numbers count from the end; numpy's numbers and slices work; others are an IndexError."""
    dataset = ShardListDataset(shards)
    assert [dataset[place]["__key__"] for place in (-1, -3, -5)] == ["c1", "a2", "a0"]
    assert dataset[np.int64(4)]["__key__"] == "c1"
    assert [each["__key__"] for each in dataset[1:4]] == ["a1", "a2", "c0"]
    assert [each["__key__"] for each in dataset[::-2]] == ["c1", "a2", "a0"]
    for place in (5, -6):
        with pytest.raises(NoSuchSample, match="has 5") as caught:
            dataset[place]
        assert isinstance(caught.value, IndexError)
    with pytest.raises(TypeError):
        dataset["a0"]


@pytest.mark.usefixtures("ends_unmarked")
@pytest.mark.parametrize("exhibit", READABLE, ids=lambda exhibit: exhibit.name)
def test_samples_are_those_of_the_stream(tmp_path, exhibit):
    """Long names, odd names, compressed shards: each sample is that of the stream reader."""
    path = str(zoo.build(tmp_path, [exhibit.name])[exhibit.name])
    dataset = ShardListDataset([path], transformations=None)
    found = [
        (each["__key__"], {name[1:].lower(): value.read() for name, value in each.items() if name[0] == "."})
        for each in dataset
    ]
    streamed = list(wds.WebDataset(path, empty_check=False, shardshuffle=False))
    wanted = [(each["__key__"], {name: each[name] for name in each if name[:2] != "__"}) for each in streamed]
    assert found == wanted
    dataset.close()


def test_compressed_shards_leave_no_files(tmp_path, monkeypatch):
    """A compressed shard is unpacked to a temporary file, which has no name once it is open."""
    (tmp_path / "near").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "near"))
    for name in ("x", "y"):
        (tmp_path / f"{name}.tar.gz").write_bytes(gzip.compress(archive(f"{name}0", f"{name}1")))
    with ShardListDataset([str(tmp_path / "x.tar.gz"), str(tmp_path / "y.tar.gz")], lru_size=1) as dataset:
        assert keys(dataset) == ["x0", "x1", "y0", "y1"]
        assert list((tmp_path / "near").iterdir()) == []
        shard, ordinal, _ = dataset.get_shard(0)
        assert dataset[3]["__key__"] == "y1"
        assert shard[ordinal]["__key__"] == "x0"  # a shard in use stays readable, though another one took its place
    assert dataset[0]["__key__"] == "x0"


def reads(dataset, found):
    """Put the keys of a dataset into a queue, in another process."""
    found.put(keys(dataset))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_workers_leave_no_files(tmp_path, monkeypatch):
    """Forked processes, which end without tidying up, leave no unpacked shards behind."""
    (tmp_path / "near").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "near"))
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(archive("a", "b")))
    dataset = ShardListDataset([{"url": str(tmp_path / "x.tar.gz"), "nsamples": 2}])
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    worker = context.Process(target=reads, args=(dataset, found))
    worker.start()
    assert found.get(timeout=60) == ["a", "b"]
    worker.join()
    assert list((tmp_path / "near").iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_while_another_thread_opens_a_shard(shards):
    """The child does not wait for a lock that nobody in it will give back."""
    dataset = ShardListDataset(shards)
    held, done = threading.Event(), threading.Event()

    def hold():
        with dataset._locks[os.getpid()]:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    worker = context.Process(target=reads, args=(dataset, found))
    worker.start()
    try:
        assert found.get(timeout=30) == ["a0", "a1", "a2", "c0", "c1"]
    finally:
        done.set()
        worker.kill()
        worker.join()
        thread.join()


def test_a_cut_stream_is_an_error(tmp_path):
    """What comes from a command without an end mark is not taken for a whole shard."""
    (tmp_path / "x.tar").write_bytes(archive("a", "b")[:2048])
    with pytest.raises(Truncated):
        ShardListDataset([{"url": f"pipe:cat {tmp_path}/x.tar", "nsamples": 1}])[0]
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(archive("a", "b"))[:-20])
    with pytest.raises(ValueError, match="x.tar.gz"):
        ShardListDataset([{"url": f"{tmp_path}/x.tar.gz", "nsamples": 2}])[0]


def test_an_index_file(tmp_path, shards):
    """An index beside its shards is read by path, by open file with a base, and from a server."""
    document = {
        "wids_version": 1,
        "name": "nm",
        "shardlist": [{**each, "url": Path(each["url"]).name} for each in shards],
    }
    path = tmp_path / "index.json"
    path.write_text(json.dumps(document))
    for dataset in (
        ShardListDataset(path), wids.ShardListDataset(str(path)), ShardListDataset(document, base=str(tmp_path)),
        ShardListDataset(io.StringIO(path.read_text()), base=str(tmp_path)),
    ):  # fmt: skip
        assert keys(dataset) == ["a0", "a1", "a2", "c0", "c1"]
        assert (dataset[0]["__dataset__"], dataset.dataset_name) == ("nm", "nm")
    assert ShardListDataset(path, dataset_name="other")[0]["__dataset__"] == "nm"
    assert ShardListDataset(shards, dataset_name="other")[0]["__dataset__"] == "other"
    assert ShardListDataset(shards)[0]["__dataset__"] is None


def test_urls_alone_are_counted(tmp_path, shards):
    """Urls without numbers of samples are counted from their headers; one path may be a Path."""
    assert ShardListDataset(Path(shards[0]["url"])).lengths == [3]
    assert ShardListDataset([each["url"] for each in shards]).lengths == [3, 0, 2]
    assert keys(ShardListDataset(f"{tmp_path}/{{a,c}}.tar")) == ["a0", "a1", "a2", "c0", "c1"]
    with pytest.raises(UsageError, match="set"):
        ShardListDataset({"a.tar"})


def test_remote_shards_are_read_by_ranges(tmp_path):
    """Samples come by range requests, without a download of the shard."""
    big = archives.by_hand([(f"k{place}.bin", bytes([place]) * 200_000) for place in range(10)])
    with RangeServer({"/x.tar": big}) as server:
        dataset = ShardListDataset([{"url": f"{server.root}/x.tar", "nsamples": 10}])
        assert dataset[7][".bin"].read() == bytes([7]) * 200_000
        assert server.sent < len(big) / 2
        dataset.close()


def test_a_server_without_ranges(tmp_path, monkeypatch):
    """The shard comes whole, once, into a temporary file."""
    (tmp_path / "near").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "near"))
    with RangeServer({"/x.tar": archive("a", "b")}, ranges=False) as server:
        with ShardListDataset([{"url": f"{server.root}/x.tar", "nsamples": 2}]) as dataset:
            assert keys(dataset) == ["a", "b"]
            asked = len(server.asked)
            assert keys(dataset) == ["a", "b"]
            assert len(server.asked) == asked
    assert list((tmp_path / "near").iterdir()) == []


def test_a_cache_directory_keeps_shards(tmp_path, monkeypatch):
    """Remote shards are downloaded once, two of one name apart; WIDS_CACHE does the same; local ones stay."""
    pages = {"/p/x.tar": archive("p"), "/q/x.tar": archive("q")}
    with RangeServer(pages) as server:
        listed = [{"url": f"{server.root}/{folder}/x.tar", "nsamples": 1} for folder in "pq"]
        assert keys(ShardListDataset(listed, cache_dir=tmp_path / "c")) == ["p", "q"]
        asked = len(server.asked)
        monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "c"))
        again = ShardListDataset(listed)
        assert (keys(again), len(server.asked), again.cache_dir) == (["p", "q"], asked, str(tmp_path / "c"))
    assert len([path for path in (tmp_path / "c").iterdir() if path.suffix == ".tar"]) == 2


def test_the_cache_is_bounded(tmp_path):
    """``cache_size`` in bytes bounds the directory, unless ``keep`` is set; a small number is how many stay open."""
    pages = {f"/{name}.tar": archives.by_hand([(f"{name}.bin", b"x" * 1_500_000)]) for name in "abcd"}
    with RangeServer(pages) as server:
        listed = [{"url": f"{server.root}/{name}.tar", "nsamples": 1} for name in "abcd"]
        for keep, count in ((False, 2), (True, 4)):
            folder = tmp_path / f"c{keep}"
            dataset = ShardListDataset(listed, cache_size=3_500_000, cache_dir=folder, keep=keep, lru_size=1)
            assert keys(dataset) == ["a", "b", "c", "d"]
            dataset.close()
            assert len([path for path in folder.iterdir() if path.suffix == ".tar"]) <= count
            assert sum(path.stat().st_size for path in folder.iterdir()) >= (count - 1) * 1_500_000
    assert ShardListDataset(listed, 3, str(tmp_path)).lru_size == 3


def test_copies_by_localname(tmp_path, shards):
    """``localname`` says where shards are copied to, local ones too; a copy is not made again."""
    dataset = ShardListDataset(shards, localname=lambda url: str(tmp_path / "copies" / Path(url).name))
    assert keys(dataset) == ["a0", "a1", "a2", "c0", "c1"]
    assert sorted(os.listdir(tmp_path / "copies")) == ["a.tar", "c.tar"]
    Path(shards[0]["url"]).unlink()
    dataset.close()
    assert dataset[0]["__key__"] == "a0"
    with pytest.raises(UsageError, match="no path"):
        ShardListDataset(shards, localname=lambda _: "")[3]


def test_positions_of_0286(shards, tmp_path):
    """All arguments by position: cache size in shards, directory, name, localname, transformations, keep, base."""
    dataset = ShardListDataset(shards, 2, str(tmp_path), "nm", None, [], True, None, {"x": 1})
    assert (dataset.lru_size, dataset.cache_dir, dataset.dataset_name, dataset.keep) == (2, str(tmp_path), "nm", True)
    assert dataset[0][".txt"].read() == b"a0 txt"


def test_counts_that_are_wrong(shards, tmp_path):
    """A shard with fewer samples than said is an error, one with more too where an index says so."""
    more = [{**shards[0], "nsamples": 4}]
    with pytest.raises(StaleIndex, match="says 4 samples, and the shard has 3") as caught:
        ShardListDataset(more)[0]
    assert caught.value.url == shards[0]["url"]
    fewer = [{**shards[0], "nsamples": 2}]
    with pytest.warns(UserWarning, match="only 2 of 3"):
        assert keys(ShardListDataset(fewer)) == ["a0", "a1"]
    (tmp_path / "i.json").write_text(json.dumps({"wids_version": 1, "shardlist": fewer}))
    with pytest.raises(StaleIndex):
        ShardListDataset(tmp_path / "i.json")[0]


def test_duplicate_fields(tmp_path):
    """A field that stands twice is an error, or what ``duplicates`` says."""
    (tmp_path / "x.tar").write_bytes(archives.by_hand([("a.txt", b"1"), ("a.txt", b"2"), ("b.txt", b"3")]))
    listed = [{"url": str(tmp_path / "x.tar"), "nsamples": 2}]
    with pytest.raises(DuplicateField):
        ShardListDataset(listed)[0]
    assert [each[".txt"] for each in ShardListDataset(listed, duplicates="last")] == ["2", "3"]


def test_shards_that_are_missing(tmp_path):
    """A missing shard is named."""
    with pytest.raises(NotFound, match=r"none\.tar"):
        ShardListDataset([{"url": str(tmp_path / "none.tar"), "nsamples": 1}])[0]


def one(tmp_path, name, content, **options):
    """A dataset of one sample with one field."""
    path = tmp_path / f"{name}.one.tar"
    path.write_bytes(archives.by_hand([(f"k.{name}", content)]))
    return ShardListDataset([{"url": str(path), "nsamples": 1}], **options)


def picture():
    """An encoded image."""
    stream = io.BytesIO()
    Image.fromarray(np.arange(36, dtype=np.uint8).reshape(3, 4, 3)).save(stream, "png")
    return stream.getvalue()


def test_transformations(shards, tmp_path):
    """Functions, lists and added ones are called one after the other; image specs decode as a pipeline does."""
    dataset = ShardListDataset(shards, transformations=[lambda sample: sample[".txt"].read(), bytes.decode])
    assert dataset.add_transform(str.upper) is dataset
    assert dataset[0] == "A0 TXT"
    assert (
        one(tmp_path, "png", picture(), transformations="rgb8")[0][".png"].tolist()
        == np.arange(36).reshape(3, 4, 3).tolist()
    )
    assert one(tmp_path, "png", picture(), transformations="PIL")[0][".png"].size == (4, 3)
    assert one(tmp_path, "png", picture(), transformations="numpy")[0][".png"].flags.writeable
    for wrong in (True, 3, ["PIL", 3], "no spec"):
        with pytest.raises(ValueError, match=r"transformations=|spec"):
            ShardListDataset(shards, transformations=wrong)


@pytest.mark.torch
def test_images_as_tensors(tmp_path):
    """An image spec of torch gives tensors."""
    pytest.importorskip("torch")
    assert one(tmp_path, "png", picture(), transformations="torchrgb8")[0][".png"].shape == (3, 3, 4)


class Own:
    """A class that the default trust refuses."""


def test_fields_that_do_not_decode(tmp_path):
    """The error names shard, key and field; pickles run no code unless trust is full."""
    with pytest.raises(DecodingError) as caught:
        one(tmp_path, "cls", b"x")[0]
    assert (Path(caught.value.url).name, caught.value.key, caught.value.field) == ("cls.one.tar", "k", ".cls")
    with pytest.raises(UnsafeContent) as caught:
        one(tmp_path, "pkl", pickle.dumps(Own()))[0]
    assert (caught.value.key, caught.value.field) == ("k", ".pkl")
    assert type(one(tmp_path, "pkl", pickle.dumps(Own()), trust="full")[0][".pkl"]).__name__ == "Own"
    with pytest.raises(DecodingError):
        one(tmp_path, "txt.gz", b"no gzip")[0]


def test_statistics_and_the_table_of_open_shards(shards):
    """Accesses and misses are counted; few shards stay open; many misses are a warning."""
    dataset = ShardListDataset(shards, lru_size=1)
    for place in (0, 1, 4, 0):
        dataset[place]
    assert dataset.get_stats() == (4, 3)
    assert len(dataset.cache) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset.check_cache_misses()
    for _ in range(60):
        dataset[0], dataset[4]
    with pytest.warns(UserWarning, match="ShardListSampler"):
        dataset.check_cache_misses()
    dataset.reset_stats()
    assert dataset.get_stats() == (0, 0)
    shard, ordinal, described = dataset.get_shard(4)
    assert (shard[ordinal]["__key__"], ordinal, described) == ("c1", 1, shards[2])


def test_datasets_pickle(shards):
    """Also with lambdas, and after use; what is open stays behind."""
    dataset = ShardListDataset(shards, transformations=[lambda sample: sample["__key__"]])
    dataset[0]
    again = pickle.loads(pickle.dumps(dataset))
    assert [again[place] for place in range(5)] == [dataset[place] for place in range(5)]
    assert len(pickle.dumps(dataset)) < 20_000


def test_arguments_that_mean_nothing(shards):
    """A trust level that there is not is refused at once, not when a field needs it."""
    with pytest.raises(UsageError, match="maybe"):
        ShardListDataset(shards, trust="maybe")


def test_verbose(shards, monkeypatch, caplog):
    """WIDS_VERBOSE logs what a dataset holds."""
    monkeypatch.setenv("WIDS_VERBOSE", "1")
    ShardListDataset(shards, dataset_name="nm")
    assert "'nm'" in caplog.text
    assert "3 shards, 5 samples" in caplog.text


@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "gz"])
def test_threads_share_a_dataset(tmp_path, packed):
    """Several threads read from more shards than are kept open, and each gets its own samples."""
    urls = []
    for shard in range(4):
        (tmp_path / f"{shard}.tar").write_bytes(packed(archive(*(f"{shard}-{place}" for place in range(5)))))
        urls.append(str(tmp_path / f"{shard}.tar"))
    dataset = ShardListDataset(urls, lru_size=1)
    places = [place for step in (1, 3, 7, 9) for place in (number * step % 20 for number in range(20))] * 5
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda place: dataset[place]["__key__"], places))
    assert found == [f"{place // 5}-{place % 5}" for place in places]


def test_an_index_that_is_called_like_its_shard():
    """``x.json`` beside ``x.tar`` may be a wids index: it is not taken for an index of members."""
    pages = {"/x.tar": archive("a", "b")}
    with RangeServer(pages) as server:
        pages["/x.json"] = json.dumps({"wids_version": 1, "shardlist": [{"url": "x.tar", "nsamples": 2}]}).encode()
        assert keys(ShardListDataset(f"{server.root}/x.json")) == ["a", "b"]


def test_an_index_may_ask_to_keep_downloads(tmp_path):
    """The index's flag counts as ``keep``."""
    listed = [{"url": str(tmp_path / "x.tar"), "nsamples": 1}]
    assert ShardListDataset({"wids_version": 1, "shardlist": listed, "keep": True}, cache_size=1e9).keep is True
    assert ShardListDataset({"wids_version": 1, "shardlist": listed, "keep": False}, cache_size=1e9).keep is False
