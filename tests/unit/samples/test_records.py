"""Record shards: every shard read, every truncation noticed, every sample found again."""

import gzip
import io
import json
import os

import numpy as np
import pytest

import webdataset as wds
from webdataset import cborsiterators
from webdataset.core.errors import FormatError, LimitExceeded, MissingExtra, StateMismatch, Truncated, UsageError
from webdataset.testing.stages import Samples, check_resume, check_stage

cbor2 = pytest.importorskip("cbor2")
msgpack = pytest.importorskip("msgpack")

ITEMS = [(n / 2, str(n), {"n": [n] * 20}) for n in range(300)]
SAMPLES = [{"__key__": f"{n:04d}", "cls": n, "txt": "é" * (n % 7), "bin": bytes(n % 50)} for n in range(300)]
FORMATS = {
    "cbors": (cbor2.dumps, wds.cbors_to_samples),
    "msgpack": (msgpack.packb, wds.msgpacks_to_samples),
}


@pytest.fixture
def shards(tmp_path):
    """Two shards of 300 CBOR items that are no samples."""
    names = [str(tmp_path / f"s-{n}.cbors") for n in range(2)]
    for name in names:
        with open(name, "wb") as stream:
            for item in ITEMS:
                cbor2.dump(item, stream)
    return names


@pytest.fixture(params=FORMATS)
def kind(request, tmp_path):
    """One of the formats: what encodes, what reads, and two shards of 300 samples."""
    dumps, stage = FORMATS[request.param]
    names = [str(tmp_path / f"s-{n}.{request.param}") for n in range(2)]
    for name in names:
        with open(name, "wb") as stream:
            stream.write(b"".join(map(dumps, SAMPLES)))
    return dumps, stage, names


def read(names, stage):
    """Return what a stage reads from shards."""
    return list(wds.DataPipeline(wds.SimpleShardList(names), stage))


def plain(samples):
    """Return samples without their urls."""
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in samples]


def test_all_items_of_all_shards(shards):
    """Version 0.2.86 stopped at the end of the first shard; items that are no dicts come as they are."""
    assert read(shards, wds.cbors_to_samples()) == [list(item) for item in ITEMS] * 2
    assert read(shards, wds.cbors2_to_samples()) == [list(item) for item in ITEMS] * 2


def test_samples_of_all_shards(kind):
    """Dicts come with the url of their shard."""
    _, stage, names = kind
    samples = read(names, stage())
    assert plain(samples) == SAMPLES * 2
    assert [sample["__url__"] for sample in samples] == [name for name in names for _ in SAMPLES]


@pytest.mark.parametrize("size", [1, 7, 100, 4096, 1 << 20])
def test_pieces_of_any_size(kind, size, monkeypatch):
    """Items are found however the bytes come in."""
    from webdataset.samples import records

    monkeypatch.setattr(records, "_CHUNK", size)
    _, stage, names = kind
    assert plain(read(names[:1], stage())) == SAMPLES


def test_large_items_in_small_pieces(kind, monkeypatch):
    """Items of many pieces are found, those around them too, and arrays in them."""
    from webdataset.samples import records

    monkeypatch.setattr(records, "_CHUNK", 1000)
    dumps, stage, names = kind
    items = [{"a": bytes(size)} for size in (10, 70_000, 3, 999, 200_000, 1)]
    with open(names[0], "wb") as stream:
        stream.write(b"".join(map(dumps, items)))
    assert plain(read(names[:1], stage())) == items


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz", "zst"])
def test_compressed_shards(kind, compression, tmp_path):
    """Compression is told by the bytes."""
    if compression == "zst":
        pytest.importorskip("zstandard")
    from webdataset.codecs.compression import compress_field

    _, stage, names = kind
    name = str(tmp_path / "shard")
    with open(names[0], "rb") as stream, open(name, "wb") as out:
        out.write(compress_field(stream.read(), compression))
    assert plain(read([name], stage())) == SAMPLES
    with open(name, "r+b") as out:
        out.truncate(200)
    with pytest.raises(FormatError):
        read([name], stage())


def test_items_that_start_like_a_compressed_shard(tmp_path):
    """CBOR items may start with the three letters that bzip2 files start with."""
    name = str(tmp_path / "x.cbors")
    with open(name, "wb") as stream:
        stream.write(cbor2.dumps(b"Zh") + cbor2.dumps([1, 2, 3]))
    assert cbor2.dumps(b"Zh") == b"BZh"
    assert read([name], wds.cbors_to_samples()) == [b"Zh", [1, 2, 3]]


def test_cut_shards(shards):
    """A shard that ends inside an item is an error with its offset; version 0.2.86 never returned."""
    with open(shards[0], "r+b") as stream:
        stream.truncate(5000)
    with pytest.raises(Truncated, match=r"\d+ whole items stand before it") as caught:
        read(shards, wds.cbors_to_samples())
    assert 4000 < caught.value.offset < 5000
    assert caught.value.url == shards[0]
    assert caught.value.stage == "cbors_to_samples"
    go_on = read(shards, wds.cbors_to_samples(handler=wds.ignore_and_continue))
    assert go_on[-300:] == [list(item) for item in ITEMS]
    stop = read(shards, wds.cbors_to_samples(handler=wds.ignore_and_stop))
    assert len(stop) < 300


def test_every_cut_is_noticed_and_loses_no_whole_item(kind, tmp_path):
    """Whole items before the cut are delivered; a cut between items is no cut."""
    dumps, stage, _ = kind
    written = [dumps(sample) for sample in SAMPLES[:4]]
    data = b"".join(written)
    ends = [sum(map(len, written[:n])) for n in range(5)]
    name = str(tmp_path / "cut")
    for end in range(1, len(data) + 1):
        with open(name, "wb") as stream:
            stream.write(data[:end])
        given = []
        errors = []
        for sample in wds.DataPipeline(
            wds.SimpleShardList([name]), stage(handler=lambda error: bool(errors.append(error)) or True)
        ):
            given.append(sample["__key__"])
        assert given == [sample["__key__"] for sample, last in zip(SAMPLES, ends[1:]) if last <= end]
        assert [error.offset for error in errors] == ([] if end in ends else [max(e for e in ends if e < end)])
        assert all(f"; {len(given)} whole items" in str(error) for error in errors)


def test_bytes_that_are_no_items(tmp_path):
    """Other bytes are an error; items before them are delivered."""
    name = str(tmp_path / "x")
    for stage, dumps, junk in (
        (wds.cbors_to_samples, cbor2.dumps, b"\xff\xff"),
        (wds.msgpacks_to_samples, msgpack.packb, b"\xc1"),
    ):
        with open(name, "wb") as stream:
            stream.write(dumps({"a": 1}) + junk)
        given = []
        with pytest.raises(FormatError, match="that can be read at byte 4") as caught:
            given.extend(wds.DataPipeline(wds.SimpleShardList(name), stage()))
        assert caught.value.offset == 4
        assert len(read([name], stage(handler=wds.ignore_and_continue))) == 1


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_a_tar_is_no_record_shard(tmp_path, ending):
    """The letters of a header are CBOR items, too; the error names the reader."""
    name = str(tmp_path / f"s.{ending}")
    with wds.TarWriter(name) as sink:
        sink.write({"__key__": "a", "txt": "b"})
    for stage in (wds.cbors_to_samples(), wds.msgpacks_to_samples(items="any")):
        with pytest.raises(
            FormatError, match=r"its content is a tar archive; read it with wds.WebDataset\(\); 0 whole"
        ):
            read([name], stage)


def test_lists_as_keys_of_msgpack(tmp_path):
    """Other programs write such maps; the error says where and what to write, and samples before it are given."""
    name = str(tmp_path / "keys.msgpack")
    with open(name, "wb") as stream:
        stream.write(msgpack.packb({"__key__": "a"}) + msgpack.packb({"__key__": "b", "x": {(1, 2): 3}}))
    samples = iter(wds.DataPipeline(wds.SimpleShardList([name]), wds.msgpacks_to_samples()))
    assert next(samples)["__key__"] == "a"
    with pytest.raises(FormatError, match="at byte 11: a map has a list or a map as key.*write a list of pairs"):
        next(samples)


def test_items_that_are_no_samples(kind, tmp_path):
    """Nearly any bytes are msgpack numbers: there, items that are no dicts are an error unless asked for."""
    name = str(tmp_path / "x")
    with open(name, "wb") as stream:
        stream.write(msgpack.packb({"a": 1}) + b"hello")
    with pytest.raises(FormatError, match="item at byte 4 is of type int") as caught:
        read([name], wds.msgpacks_to_samples())
    assert caught.value.offset == 4
    assert read([name], wds.msgpacks_to_samples(items="any"))[1:] == list(b"hello")
    dumps, stage, _ = kind
    with open(name, "wb") as stream:
        stream.write(dumps({"a": 1}) + dumps([1]))
    assert len(read([name], stage(items="any"))) == 2
    with pytest.raises(FormatError, match="type list"):
        read([name], stage(items="samples"))
    with pytest.raises(UsageError, match="'samples' or 'any'"):
        stage(items="some")


@pytest.mark.limited
def test_items_larger_than_the_limit(kind):
    """One item may be as large as the limit; beyond, the message says what to pass."""
    dumps, stage, names = kind
    with open(names[0], "wb") as stream:
        stream.write(dumps({"a": 1}) + dumps({"a": bytes(4_000_000)}))
    assert len(read(names[:1], stage(limit_bytes=4_000_100))) == 2
    with pytest.raises(LimitExceeded, match="pass limit_bytes=") as caught:
        read(names[:1], stage(limit_bytes=100_000))
    assert caught.value.offset == 4


def test_addresses(kind):
    """Samples say where they stand, and addresses ask for no more reading than needed."""
    dumps, stage, names = kind
    samples = read(names, stage(addresses=True))
    where = 0
    for index, (sample, wanted) in enumerate(zip(samples, SAMPLES * 2)):
        where = 0 if index % 300 == 0 else where
        assert sample["__address__"] == (index // 300, index % 300, where)
        where += len(dumps(wanted))


def test_contract(kind, tmp_path):
    """The stage keeps the contract of stages: it is resumed after every item, of compressed shards too."""
    dumps, stage, names = kind
    for name in names:
        with open(name, "wb") as stream:
            stream.write(b"".join(map(dumps, SAMPLES[:7])))
    gzipped = str(tmp_path / "g")
    with open(names[0], "rb") as stream, open(gzipped, "wb") as out:
        out.write(gzip.compress(stream.read()))
    sources = [{"url": name} for name in (*names, gzipped)]
    check_stage(stage(), sources, resumable=False)
    check_resume(lambda: [Samples(sources), stage()])


def test_resumed_at_a_byte(kind):
    """A restored pipeline goes on after the last sample, without the shards before it; a changed shard is noticed."""
    _, stage, names = kind
    pipeline = wds.DataPipeline(wds.SimpleShardList(names), stage())
    with pipeline.start(tracked=True) as flow:
        given = [next(flow) for _ in range(450)]
        state = json.loads(json.dumps(flow.snapshot()))
    os.truncate(names[0], 0)  # not needed any more
    with pipeline.start(state) as flow:
        assert plain(given) + plain(list(flow)) == SAMPLES * 2
    os.truncate(names[1], 10)
    with pipeline.start(state) as flow, pytest.raises(StateMismatch, match="bytes, and has 10"):
        list(flow)


def test_resumed_with_a_full_shuffle_buffer(kind):
    """Samples that waited in a shuffle are read again, at their addresses."""
    _, stage, names = kind
    pipeline = wds.DataPipeline(wds.SimpleShardList(names), stage(), wds.shuffle(50, initial=20, seed=3))
    whole = plain(pipeline)
    for given in (0, 1, 299, 301, 580):
        with pipeline.start(tracked=True) as flow:
            for _ in range(given):
                next(flow)
            state = json.loads(json.dumps(flow.snapshot()))
        with pipeline.start(state) as flow:
            assert plain(flow) == whole[given:]


def test_readers_of_opened_shards(shards):
    """The names of 0.2.86 read opened shards, and shards by url."""
    opened = lambda: [{"url": "u", "stream": io.BytesIO(cbor2.dumps({"a": 1}) + cbor2.dumps([2]))}]
    for reader in (cborsiterators.cbor_iterator, cborsiterators.cbor2_iterator):
        assert list(reader(opened(), info={"x": 1})) == [{"a": 1, "__url__": "u"}, [2]]
    for reader in (cborsiterators.cbors_samples, cborsiterators.cbors2_samples):
        assert len(list(reader([{"url": name} for name in shards]))) == 600


def test_shards_are_closed(kind):
    """A shard that was read, failed or was left is closed."""
    dumps, stage, _ = kind
    from webdataset.samples.sample_reader import read_samples

    for data, count in ((dumps({"a": 1}) * 3, 3), (dumps({"a": 1}) + b"\xc1\xff", 1), (dumps({"a": 1}) * 3, 0)):
        stream = io.BytesIO(data)
        flow = read_samples([{"url": "u", "stream": stream}], stage(handler=wds.ignore_and_continue).reading)
        if count:
            assert len(list(flow)) == count
        else:
            next(flow)
            flow.close()
        assert stream.closed


def test_a_missing_package_is_no_bad_shard(kind, monkeypatch):
    """It is an error that no handler steps over."""
    from webdataset.codecs import record_streams

    def missing(*args, **kw):
        raise MissingExtra("pip install")

    monkeypatch.setattr(record_streams, "require", missing)
    monkeypatch.setattr(record_streams, "cbor2", missing)
    _, stage, names = kind
    with pytest.raises(MissingExtra):
        read(names, stage(handler=wds.ignore_and_continue))


def test_arrays_in_records(tmp_path):
    """Arrays are read as arrays."""
    for name in ("x.cbors", "x.msgpack"):
        with wds.RecordWriter(tmp_path / name) as writer:
            writer.write({"__key__": "a", "x": np.arange(6).reshape(2, 3)})
        stage = FORMATS[name.split(".")[1]][1]
        (sample,) = read([str(tmp_path / name)], stage())
        assert sample["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_trust_level_of_one_stage(tmp_path):
    """A stage that names its trust level opens shards under it."""
    msgpack = pytest.importorskip("msgpack")
    (tmp_path / "x.msgpack").write_bytes(msgpack.packb({"__key__": "a"}))
    shard = {"url": str(tmp_path / "x.msgpack")}
    assert [sample["__key__"] for sample in wds.msgpacks_to_samples(trust="safe")([shard])] == ["a"]
    with pytest.raises(UsageError, match="trust is strict"):
        list(wds.msgpacks_to_samples(trust="strict")([{"url": f"pipe:cat {tmp_path}/x.msgpack"}]))
