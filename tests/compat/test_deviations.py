"""One behaviour for each thing that upstream left unsettled, and its sentence in ``docs/deviations.md``.

``row(number, *sentences)`` names the row of the list of discrepancies; a row without a test, or a test whose sentences
are not on the page, fails the last tests of this file.
"""

import io
import os
import pickle
import random
import re
import subprocess
import sys
import tarfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import (
    BadHeader,
    CommandFailed,
    DuplicateField,
    EncodingError,
    MissingExtra,
    NoSamples,
    SourceError,
    Truncated,
    UnsafeContent,
    UsageError,
)
from webdataset.index.wids.samplers import DistributedChunkedSampler
from webdataset.testing import archives
from webdataset.testing.sources import served

PAGE = " ".join(Path(__file__).parents[2].joinpath("docs/deviations.md").read_text(encoding="utf-8").split())
ROWS = {}


def row(number, *sentences):
    """Register a test as a row's, with what the page says of it."""

    def register(test):
        ROWS.setdefault(number, []).extend(sentences)
        return test

    return register


def tar(path, members, **options):
    """Write a shard and return its path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(archives.by_hand(members, **options))
    return str(path)


@pytest.fixture
def shards(tmp_path):
    """Ten shards of two samples."""
    return [tar(tmp_path / f"shard-{n}.tar", [(f"{n}-{m}.txt", b"%d%d" % (n, m)) for m in range(2)]) for n in range(10)]


def keys(dataset):
    """Keys, in order."""
    return [sample["__key__"] for sample in dataset]


def plain(urls, **options):
    """A dataset in the order of its shards."""
    return wds.WebDataset(urls, shardshuffle=False, **options)


# -- order and epochs


@row(1, "Without a seed each epoch is new; with `seed=` or `WDS_SEED` the order is a function of seed and epoch")
def test_row_01_each_epoch_has_its_order(shards, monkeypatch):
    """Unseeded epochs differ; seeded ones differ too, and come again."""
    unseeded = wds.WebDataset(shards, shardshuffle=10)
    assert len({tuple(keys(unseeded)) for _ in range(4)}) > 1
    seeded, again = (wds.WebDataset(shards, shardshuffle=10, seed=7) for _ in range(2))
    passes = [keys(seeded) for _ in range(3)]
    assert [keys(again) for _ in range(3)] == passes
    assert passes[0] != passes[1]
    monkeypatch.setenv("WDS_SEED", "7")
    assert keys(wds.WebDataset(shards, shardshuffle=10)) == passes[0]


@row(2, "Workers know their epoch, under fork, forkserver and spawn", "`set_epoch(n)` chooses one")
def test_row_02_workers_know_the_epoch(shards):
    """A seeded dataset gives another order in each epoch under short-lived workers, and set_epoch brings one back."""
    data = pytest.importorskip("torch.utils.data")
    dataset = wds.WebDataset(shards, shardshuffle=10, seed=7).map(lambda sample: sample["__key__"])
    loader = data.DataLoader(dataset, batch_size=None, num_workers=1)
    first, second = list(loader), list(loader)
    assert sorted(first) == sorted(second)
    assert first != second
    dataset.set_epoch(0)
    assert list(loader) == first


@row(3, "A sample in progress is dropped, and the error names it. Samples never span shards")
def test_row_03_a_broken_shard_gives_no_half_sample(tmp_path):
    """The half before the damage is dropped, and not joined with the next shard's sample of the same key."""
    whole = archives.by_hand([("a.txt", b"1"), ("k.txt", b"2"), ("k.cls", b"3" * 600)])
    (tmp_path / "0.tar").write_bytes(whole[:-1700])
    urls = [str(tmp_path / "0.tar"), tar(tmp_path / "1.tar", [("k.cls", b"4"), ("z.txt", b"5")])]
    seen = []
    found = list(plain(urls, handler=lambda error: seen.append(error) or True))
    assert [sorted(set(sample) - {"__url__"}) for sample in found] == [
        ["__key__", "txt"], ["__key__", "cls"], ["__key__", "txt"]
    ]  # fmt: skip
    assert isinstance(seen[0], Truncated)
    assert "k" in str(seen[0])


@row(
    4,
    "`Truncated`, for local files, commands and objects alike; the sample in progress is not delivered.",
    "a body that comes short is an error",
)
def test_row_04_what_is_cut_is_not_complete(tmp_path):
    """At a member boundary: an error, on demand a warning; a damaged header is no end; HTTP is counted."""
    url = tar(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2")], end=b"")
    with pytest.warns(UserWarning, match="end"):
        assert keys(plain(url, missing_end="warn")) == ["a", "b"]
    for cut in (url, f"pipe:cat {url}"):
        with pytest.raises(Truncated):
            list(plain(cut))
    damaged = bytearray(archives.by_hand([("a.txt", b"1"), ("b.txt", b"2")]))
    damaged[1024 + 5] ^= 0xFF
    (tmp_path / "b.tar").write_bytes(damaged)
    with pytest.raises(BadHeader) as caught:
        list(plain(str(tmp_path / "b.tar")))
    assert caught.value.offset == 1024


# -- sources


@row(5, "Both are, `WDS_REWRITE` first")
def test_row_05_both_names_of_the_rewriting_variable(shards, tmp_path, monkeypatch):
    """The documented name works, and the one that the code had."""
    monkeypatch.setenv("WDS_REWRITE", f"mine:/=here:{tmp_path}/")
    monkeypatch.setenv("GOPEN_REWRITE", "here:=file:")
    assert keys(plain("mine:/shard-0.tar")) == ["0-0", "0-1"]


@row(
    6,
    "`htgs:` urls: it is said when one is asked for",
    "Streams and children are closed when a shard ends or the iteration is given up",
)
@pytest.mark.filterwarnings("ignore:.*keys come again:UserWarning")  # the command repeats its shard
def test_row_06_unserved_schemes_say_the_way_out_and_children_end(shards):
    """The error for htgs names what to write; a command that is given up half way does not stay."""
    with pytest.raises(ValueError, match="meanwhile write the https: url"):
        wds.gopen("htgs://bucket/x.tar")
    pidfile = Path(shards[0]).with_suffix(".pid")
    iterator = iter(plain(f"pipe:echo $$ > {pidfile}; while :; do cat {shards[0]}; done"))
    next(iterator)
    iterator.close()
    pid = int(pidfile.read_text())
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists():
            break
        time.sleep(0.02)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@row(7, "All work; an argument goes before the environment", "A file is named after the shard and a hash of its url")
def test_row_07_cache_arguments_and_variables_work(shards, tmp_path, monkeypatch):
    """WDS_CACHE, url_to_name, verbose, repeat; two urls of one name are two files; local files with always=."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("WDS_CACHE", str(folder))
    pair = [tar(tmp_path / name / "x.tar", [(f"{name}.txt", b"1")]) for name in ("a", "b")]
    urls = [f"pipe:cat {path}" for path in pair]
    assert keys(plain(urls)) == keys(plain(urls)) == ["a", "b"]
    assert len(list(folder.glob("[!.]*"))) == 2
    plain_name = plain(urls[0], url_to_name=lambda url: "chosen.tar")
    assert keys(plain_name) == ["a"]
    assert (folder / "chosen.tar").exists()
    assert keys(plain(urls[0], repeat=3)) == ["a"] * 3
    near = tmp_path / "near"
    stage = wds.cached_tarfile_to_samples(cache_dir=near, always=True)
    assert keys(wds.DataPipeline(wds.SimpleShardList(pair[0]), stage)) == ["a"]
    assert len(list(near.glob("[!.]*"))) == 1


@row(8, "Every node draws its own shards")
def test_row_08_resampled_over_nodes(shards, monkeypatch):
    """resampled=True needs no node splitter."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    samples = iter(wds.WebDataset(shards, resampled=True))
    assert len([next(samples) for _ in range(50)]) == 50
    with pytest.raises(ValueError, match="nodesplitter"):
        list(plain(shards))


@row(9, "The message says which rank and worker went without, of how many, and what to do")
def test_row_09_more_workers_than_shards(shards, monkeypatch):
    """The counts are in the message; empty_check=False lets such a worker give nothing."""
    for name, text in (("WORKER", "3"), ("NUM_WORKERS", "4")):
        monkeypatch.setenv(name, text)
    with pytest.raises(NoSamples, match="worker 3 of 4"):
        list(plain(shards[:2]))
    assert list(plain(shards[:2], empty_check=False)) == []


@row(10, "Both are accepted", "All work; a name is a url only if it begins with a scheme")
def test_row_10_everything_that_names_shards(shards, tmp_path):
    """Lists in expand_urls; Path, list, tuple, generator, glob, shard lists and datasets of urls in WebDataset."""
    assert wds.expand_urls(shards) == shards
    assert wds.expand_urls("a{0..1}.tar::b.tar") == ["a0.tar", "a1.tar", "b.tar"]
    sources = [
        Path(shards[0]).parent / "shard-0.tar",
        shards[:1],
        tuple(shards[:1]),
        (url for url in shards[:1]),
        f"{tmp_path}/shard-[0].tar",
        wds.SimpleShardList(shards[:1]),
        wds.ResampledShards(shards[:1], 1),
    ]
    for source in sources:
        assert keys(plain(source)) == ["0-0", "0-1"]


@pytest.mark.parametrize("name", ["a#b.tar", "a?b.tar", "a;b.tar", "a b.tar", "a:b.tar", "a%20b.tar"])
@row(11, "`#`, `?`, `;` and spaces in local names fail in 1.0.2; `Path` objects and globs fail in both")
def test_row_11_names_of_local_files(tmp_path, name):
    """Any name of a local file is one."""
    assert keys(plain(tar(tmp_path / name, [("k.txt", b"1")]))) == ["k"]


# -- batches, lengths, epochs


@row(12, "Dicts, tuples and nested values, in the samples' own order")
def test_row_12_batches_of_dicts():
    """Dicts collate in the order of their fields, nested ones too, and come apart again."""
    samples = [{"z": n, "a": {"y": float(n)}, "m": (n, "t")} for n in range(4)]
    batch = next(iter(wds.FluidWrapper(samples).batched(4)))
    assert list(batch) == ["z", "a", "m"]
    assert isinstance(batch["z"], np.ndarray)
    again = list(wds.FluidWrapper(samples).batched(2).unbatched())
    assert [sample["z"] for sample in again] == [0, 1, 2, 3]
    assert [list(sample) for sample in again] == [["z", "a", "m"]] * 4


@row(13, "An ordinary `__len__`; datasets with lambdas reach spawned workers", "They return a copy.")
def test_row_13_lengths_pickle_and_calls_copy(shards):
    """with_length pickles; compose leaves the original alone; the three bounds return a copy."""
    dataset = plain(shards).map(lambda sample: sample["__key__"])
    sized = dataset.with_length(20)
    assert len(pickle.loads(pickle.dumps(sized))) == len(sized) == 20
    assert sized is not dataset
    assert dataset.repeat(2) is not dataset
    assert len(dataset.pipeline) == len(dataset.compose(wds.slice(1)).pipeline) - 1


@row(14, "`with_epoch` counts items at its own place", "snapshot")
def test_row_14_epochs_count_and_resume(shards):
    """Items where it stands; every iteration gives exactly that many; a run goes on from its snapshot."""
    dataset = plain(shards).map(lambda sample: sample["__key__"])
    batches = dataset.batched(3).with_epoch(4)
    assert [len(list(batches)) for _ in range(3)] == [4, 4, 4]
    run = plain(shards, seed=1).shuffle(5).with_epoch(30).start()
    ahead = [next(run)["__key__"] for _ in range(12)]
    state = run.snapshot()
    rest = [sample["__key__"] for sample in run]
    again = plain(shards, seed=1).shuffle(5).with_epoch(30).start(state)
    assert [sample["__key__"] for sample in again] == rest
    assert len(ahead + rest) == 30


# -- samples


def last_dot(path):
    """Split at the last dot."""
    stem, dot, extension = path.rpartition(".")
    return (stem, extension) if dot else (None, None)


@row(15, "`keys=` splits names otherwise", "Keys that will not read back as they were written")
def test_row_15_dots_in_names(tmp_path):
    """The rule stays, a function of one's own replaces it, and the writer warns."""
    url = tar(tmp_path / "a.tar", [("Track 2.0 (Clean).mp3", b"1"), ("Track 2.0 (Clean).txt", b"2")])
    assert keys(plain(url)) == ["Track 2"]
    assert keys(plain(url, keys=last_dot)) == ["Track 2.0 (Clean)"]
    with wds.TarWriter(str(tmp_path / "b.tar")) as sink, pytest.warns(UserWarning, match=r"Track 2\.0"):
        sink.write({"__key__": "Track 2.0", "txt": "x"})


@row(16, '`DuplicateField` with url, key and offset; `duplicates="first"`, `"last"` or `"new"`')
def test_row_16_a_field_twice(tmp_path):
    """The error says where; three rules go on."""
    url = tar(tmp_path / "a.tar", [("k.txt", b"1"), ("k.txt", b"2"), ("k.cls", b"3")])
    with pytest.raises(DuplicateField) as caught:
        list(plain(url))
    assert (caught.value.url, caught.value.key, caught.value.offset) == (url, "k", 1024)
    assert [sample["txt"] for sample in plain(url, duplicates="first")] == [b"1"]
    assert [sample["txt"] for sample in plain(url, duplicates="last")] == [b"2"]
    assert [sample.get("txt") for sample in plain(url, duplicates="new")] == [b"1", b"2"]


@row(17, "The default pattern matches", "JSON index", "Every worker draws alike")
def test_row_17_directories_lists_and_indexes(shards, tmp_path):
    """A directory is read with the default pattern; a YAML list of shards works as it is; so does a wids index."""
    listed = wds.DirectoryShardList(f"{tmp_path}/", mode="keep", select="oldest", poll=None)
    assert len(keys(wds.DataPipeline(listed, wds.tarfile_to_samples()))) == 20
    for path in tmp_path.glob("*._done_"):
        path.rename(str(path).removesuffix("._done_"))
    (tmp_path / "spec.yaml").write_text(
        f"prefix: {tmp_path}/\ndatasets:\n  - name: a\n    shards: shard-{{0..3}}.tar\n"
    )
    sample = wds.MultiShardSample(str(tmp_path / "spec.yaml"))
    sample.set_epoch(3)
    first = [shard["url"] for shard in sample]
    other = wds.MultiShardSample(str(tmp_path / "spec.yaml"))
    random.random()
    other.set_epoch(3)
    assert [shard["url"] for shard in other] == first
    assert len(first) == 4
    (tmp_path / "index.json").write_text(
        '{"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": '
        '[{"url": "shard-0.tar", "nsamples": 2}, {"url": "shard-1.tar", "nsamples": 2}]}'
    )
    assert keys(plain(str(tmp_path / "index.json"))) == ["0-0", "0-1", "1-0", "1-1"]


@row(18, "`wds.Decoder(f, g)(dataset)`", "`wds.Processor`", "Names that only the documentation had")
def test_row_18_names_that_only_documentation_had(shards):
    """They work, or say what to write, on access and on import."""
    assert wds.ShardList is wds.SimpleShardList
    dataset = plain(shards[0])
    assert keys(wds.Processor(wds.map, lambda sample: {"__key__": "x"})(dataset)) == ["0-0", "0-1"]
    opened = list(wds.url_opener(wds.ShardList(shards[0])))
    assert [sorted(entry) for entry in opened] == [["stream", "url"]]
    opened[0]["stream"].close()
    decoded = wds.Decoder(wds.handle_extension("txt", int))(dataset)
    assert [sample["txt"] for sample in decoded] == [0, 1]
    for name, hint in (
        ("Dataset", "wds.WebDataset"),
        ("PytorchShardList", "wds.SimpleShardList"),
        ("ShardedWriter", "wds.ShardWriter"),
        ("ddp_equalize", "with_epoch"),
    ):
        assert not hasattr(wds, name)
        with pytest.raises(AttributeError, match=hint):
            getattr(wds, name)
        with pytest.raises(ImportError, match=hint):
            exec(f"from webdataset import {name}")


@row(19, "Every shard is read, and one that ends inside an item is an error", "msgpack")
def test_row_19_record_shards(tmp_path):
    """CBOR: all shards; a cut one is an error and not an endless loop. msgpack: the same."""
    cbor2 = pytest.importorskip("cbor2")
    items = [{"__key__": str(n), "x": n} for n in range(4)]
    for name in range(2):
        (tmp_path / f"{name}.cbors").write_bytes(b"".join(map(cbor2.dumps, items[2 * name : 2 * name + 2])))
    urls = f"{tmp_path}/{{0..1}}.cbors"
    assert keys(wds.DataPipeline(wds.SimpleShardList(urls), wds.cbors_to_samples())) == ["0", "1", "2", "3"]
    (tmp_path / "1.cbors").write_bytes((tmp_path / "1.cbors").read_bytes()[:-3])
    with pytest.raises(Truncated):
        list(wds.DataPipeline(wds.SimpleShardList(urls), wds.cbors_to_samples()))
    msgpack = pytest.importorskip("msgpack")
    (tmp_path / "0.msgpacks").write_bytes(b"".join(map(msgpack.packb, items)))
    (tmp_path / "1.msgpacks").write_bytes(b"".join(map(msgpack.packb, items))[:-3])
    urls = f"{tmp_path}/{{0..1}}.msgpacks"
    assert keys(wds.DataPipeline(wds.SimpleShardList(urls[:-16] + "/0.msgpacks"), wds.msgpacks_to_samples()))
    with pytest.raises(Truncated):
        list(wds.DataPipeline(wds.SimpleShardList(urls), wds.msgpacks_to_samples()))


# -- writing


@row(
    20,
    "Plain USTAR where a member fits, PAX where it does not",
    "Honoured: `ustar`, `gnu`, `pax`",
    "The shard gets its name when it is complete; after an exception there is none",
    '`decode("auto")` reads the others back as they were',
)
def test_row_20_what_the_writer_writes(tmp_path):
    """Small, complete or absent, and read back: no PAX header a member, text under json encoded, format honoured."""
    path = tmp_path / "a.tar"
    sample = {"__key__": "k", "json": "text", "html": "<p>", "class": 3, "count": 4, "txt": "t"}
    with wds.TarWriter(str(path)) as sink:
        sink.write(sample)
    assert path.stat().st_size == 5 * (512 + 512) + 1024
    found = next(iter(plain(str(path)).decode("auto")))
    assert {name: found[name] for name in sample} == sample
    long = io.BytesIO()
    with wds.TarWriter(long, format="gnu") as sink:
        sink.write({"__key__": "x" * 150, "txt": "t"})
    assert b"././@LongLink" in long.getvalue()
    assert tarfile.open(fileobj=io.BytesIO(long.getvalue())).getnames() == ["x" * 150 + ".txt"]
    with pytest.raises(ZeroDivisionError), wds.TarWriter(str(tmp_path / "b.tar")) as sink:
        sink.write(sample | {"cls": 1 / 0})
    assert not (tmp_path / "b.tar").exists()


@row(20, "webp is not written")
def test_row_20_webp_is_written(tmp_path):
    """And comes back as an image."""
    pytest.importorskip("PIL")
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "k", "webp": np.zeros((4, 5, 3), np.uint8)})
    assert next(iter(plain(str(tmp_path / "a.tar")).decode("rgb8")))["webp"].shape == (4, 5, 3)


# -- decoding


@row(21, "JSON `null` comes as bytes", "`DecodingError` with url, key, field and the chained cause", "object arrays")
def test_row_21_decoding(tmp_path):
    """JSON null is None; pkl decodes; mpg and h5 are not images; object arrays are refused; errors name their place."""
    members = [
        ("k.json", b"null"), ("k.pkl", pickle.dumps([1, 2])), ("k.mpg", b"video"), ("k.h5", b"hdf"), ("k.txt", b"t"),
    ]  # fmt: skip
    url = tar(tmp_path / "a.tar", members)
    found = next(iter(plain(url).decode("rgb8")))
    assert (found["json"], found["pkl"], found["mpg"], found["h5"], found["txt"]) == (
        None,
        [1, 2],
        b"video",
        b"hdf",
        "t",
    )
    stream = io.BytesIO()
    np.save(stream, np.array([object()], dtype=object), allow_pickle=True)
    url = tar(tmp_path / "b.tar", [("k.npy", stream.getvalue())])
    with pytest.raises(wds.DecodingError) as caught:
        list(plain(url).decode())
    assert (caught.value.url, caught.value.key, caught.value.field) == (url, "k", "npy")
    assert caught.value.__cause__ is not None
    for word in (url, "'k'", "npy"):
        assert word in str(caught.value)


@row(22, "`shuffle` of a list raises `TypeError`", "`shuffle(n, seed=s)`")
def test_row_22_shuffling():
    """Any iterable; a seed fixes the order; seed and rng together are an error."""
    assert sorted(wds.shuffle(3)([1, 2, 3, 4])) == [1, 2, 3, 4]
    first, second = (list(wds.FluidWrapper(list(range(50))).shuffle(20, seed=5)) for _ in range(2))
    assert first == second
    with pytest.raises(ValueError, match="seed"):
        list(wds.shuffle(3, seed=1, rng=random.Random(2))(iter(range(9))))


@row(23, "Each worker keeps a file of its own", "`wids`")
def test_row_23_caches_of_workers_and_wids(shards, tmp_path, monkeypatch):
    """Two workers with an LMDB cache give each sample once; an index beside its shards is read from anywhere."""
    pytest.importorskip("lmdb")
    dataset = plain(shards).compose(wds.LMDBCached(tmp_path / "cache.lmdb")).map(lambda sample: sample["__key__"])
    monkeypatch.setenv("NUM_WORKERS", "2")
    for _ in range(2):
        seen = []
        for worker in "01":
            monkeypatch.setenv("WORKER", worker)
            seen += list(dataset)
        assert sorted(seen) == sorted(f"{n}-{m}" for n in range(10) for m in range(2))
    wids = pytest.importorskip("wids")
    (tmp_path / "index.json").write_text(
        '{"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": [{"url": "shard-0.tar", "nsamples": 2}]}'
    )
    listed = wids.ShardListDataset(str(tmp_path / "index.json"))
    assert len(listed) == 2
    assert listed[-1]["__key__"] == "0-1"


@row(24, "bounded retries", "They do not")
def test_row_24_nothing_waits(shards, monkeypatch):
    """Warning handlers do not sleep; a server that is not there is an error."""
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"slept {seconds} s"))
    with pytest.warns(UserWarning, match="x"):
        assert wds.warn_and_continue(ValueError("x")) is True
    with pytest.warns(UserWarning, match="x"):
        assert wds.warn_and_stop(ValueError("x")) is False
    monkeypatch.undo()
    with served({}) as root, pytest.raises(SourceError):
        list(plain(f"{root}/nothing.tar"))


class Opened:
    """Makes a file when it is unpickled by force."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@row(25, "Only what is on an exact list", "`WDS_SECURE`")
def test_row_25_one_policy(shards, tmp_path, monkeypatch):
    """Pickles run nothing by default; strict refuses pickles, commands, and rewriting, in datasets as in gopen."""
    marker = tmp_path / "marker"
    url = tar(tmp_path / "a.tar", [("k.pyd", pickle.dumps(Opened(str(marker))))])
    with pytest.raises(UnsafeContent, match="add_safe_globals"):
        list(plain(url).decode())
    assert not marker.exists()
    with pytest.raises(UsageError, match="pipe"):
        list(plain(f"pipe:cat {shards[0]}", trust="strict"))
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(UsageError, match="pipe"):
        list(plain(f"pipe:cat {shards[0]}"))
    with pytest.raises(UnsafeContent):
        list(plain(tar(tmp_path / "b.tar", [("k.pyd", pickle.dumps(1))])).decode())


@row(26, "torch is optional")
def test_row_26_without_torch(shards):
    """Everything but loaders works where torch is not installed; those name the extra."""
    code = f"""
import sys
sys.modules["torch"] = None
import webdataset as wds
dataset = wds.WebDataset({shards[0]!r}, shardshuffle=False).shuffle(5).decode().batched(2)
assert len(list(dataset)) == 1
from webdataset.pytorch import IterableDataset
assert isinstance(dataset, IterableDataset)
try:
    wds.WebLoader(dataset)
except ImportError as error:
    print(type(error).__name__, error)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(MissingExtra.__name__)
    assert "[torch]" in shown.stdout


@row(16, "A command's error status after a complete archive")
def test_a_command_that_fails_at_the_end(shards):
    """Always an error, though all of the archive came."""
    with pytest.raises(CommandFailed):
        list(plain(f"pipe:cat {shards[0]}; exit 3"))


# -- what programs of before may go by


@row(27, "`args` is the message alone; `exn.url` is the url")
def test_row_27_arguments_of_errors(tmp_path):
    """A handler finds the url under its name, and one argument."""
    (tmp_path / "a.tar").write_bytes(b"x" * 2000)
    seen = []
    list(plain(str(tmp_path / "a.tar"), handler=lambda error: seen.append(error) or True, empty_check=False))
    assert [error.url for error in seen] == [str(tmp_path / "a.tar")]
    assert [type(part) for error in seen for part in error.args] == [str]


@row(28, "It never ends: bound it with `with_epoch`. `repeat=2` gives two passes")
def test_row_28_repeat_as_an_argument(shards):
    """True goes on beyond one pass, as far as with_epoch says; a number is that of the passes."""
    assert len(keys(plain(shards[0], repeat=True).with_epoch(7))) == 7
    assert sum(1 for _ in zip(range(9), plain(shards[0], repeat=True), strict=False)) == 9
    assert keys(plain(shards[0], repeat=2)) == ["0-0", "0-1"] * 2


@row(29, "are functions. Stages without a state", "have classes of their own")
def test_row_29_what_stages_are():
    """Makers are functions; what has no state is a FilterFunction, what has one is not."""
    filter_function = wds.filters.FilterFunction
    assert not hasattr(wds.map, "f")
    for stage in (wds.map(len), wds.select(len), wds.decode()):
        assert isinstance(stage, filter_function)
    for stage in (wds.shuffle(3), wds.batched(3), wds.slice(3)):
        assert not isinstance(stage, filter_function)


@row(30, "Writable arrays")
@pytest.mark.parametrize("spec", ["rgb8", "l8", "rgba8"])
def test_row_30_images_can_be_written_to(tmp_path, spec):
    """What is decoded by an 8-bit specification may be changed in place."""
    pytest.importorskip("PIL")
    url = tar(tmp_path / "a.tar", [("a.png", wds.writer.imageencoder(np.zeros((2, 2, 3), np.uint8), "png"))])
    (sample,) = plain(url).decode(spec)
    sample["png"][0, 0] = 1


@row(31, "`EncodingError`, a `ValueError`, with url, key and field; the cause is chained")
@pytest.mark.parametrize(
    ("field", "value", "cause"),
    [("jpg", None, OSError), ("json", {1, 2}, TypeError), ("txt", 3, TypeError)],
)
def test_row_31_values_that_do_not_fit(tmp_path, field, value, cause):
    """One error for each format, which says where."""
    if field == "jpg":
        value = pytest.importorskip("PIL.Image").new("RGBA", (2, 2))
    with pytest.raises(EncodingError) as caught, wds.TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "a", field: value})
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.url, error.key, error.field) == (str(tmp_path / "a.tar"), "a", field)
    assert isinstance(error.__cause__, cause)


@row(32, "without `torch.distributed` ignores both: every rank reads everything | Honoured")
def test_row_32_ranks_of_a_sampler():
    """Two ranks share the indices though no process group is there."""
    shares = [list(DistributedChunkedSampler(range(10), num_replicas=2, rank=rank)) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(10))


# -- the page


@pytest.mark.parametrize("number", range(1, 33))
def test_every_row_has_a_test(number):
    """All 32."""
    assert number in ROWS


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(number, sentence) for number, sentences in sorted(ROWS.items()) for sentence in sentences],
)
def test_every_row_is_on_the_page(number, sentence):
    """What is tested here is told there."""
    assert sentence in PAGE


def test_the_page_is_about_nothing_that_is_there():
    """The section on what is not here yet names only what is not."""
    later = re.search(r"## Not here yet(.*)", PAGE)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for scheme in ("htgs",):
            assert f"`{scheme}:`" in later
            with pytest.raises(UsageError, match=scheme):
                wds.gopen(f"{scheme}://x/y.tar")
    for word in ("tenbin", "wids", "JSON", "msgpack", "interleaved"):
        assert word not in later
