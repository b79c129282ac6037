"""Writers of record shards: what is written is read, complete or not at all."""

import gc
import io
import os
import warnings

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import AlreadyExists, EncodingError, SampleError, SourceError, UsageError
from webdataset.writing.records import record_format

cbor2 = pytest.importorskip("cbor2")
msgpack = pytest.importorskip("msgpack")

SAMPLES = [{"__key__": f"{n:03d}", "cls": n, "txt": "x" * n, "arr": np.full(n % 3, n)} for n in range(40)]


def read(name, **options):
    """Return the samples of a record shard."""
    stage = wds.cbors_to_samples if "cbor" in str(name) else wds.msgpacks_to_samples
    return list(wds.DataPipeline(wds.SimpleShardList([str(name)]), stage(**options)))


@pytest.mark.parametrize(
    "name", ["a.cbors", "a.cbor", "a.mp", "a.msgpack", "a.msg", "a.cbors.gz", "a.msgpack.bz2", "a.mps.xz", "a.cbor.zst"]
)
def test_written_and_read(name, tmp_path):
    """Format and compression go by the name; values come back as they were."""
    if name.endswith("zst"):
        pytest.importorskip("zstandard")
    with wds.RecordWriter(tmp_path / name) as writer:
        sizes = [writer.write(sample) for sample in SAMPLES]
        assert writer.offset == sum(sizes)
        assert os.listdir(tmp_path) != [name]
    assert os.listdir(tmp_path) == [name]
    for sample, wanted in zip(read(tmp_path / name), SAMPLES, strict=True):
        assert sample["arr"].tolist() == wanted["arr"].tolist()
        assert {n: v for n, v in sample.items() if n not in ("arr", "__url__")} == {
            n: v for n, v in wanted.items() if n != "arr"
        }


def test_formats_by_name():
    """Names that say nothing are an error that says what to pass."""
    assert record_format("s3://b/x.cbors.gz?a=b") == "cbor"
    for name in ("a.tar", "cbors", None, "x.gz"):
        with pytest.raises(UsageError, match="pass format="):
            record_format(name)
    with pytest.raises(UsageError, match="'cbor' or 'msgpack'"):
        wds.RecordWriter(io.BytesIO(), "json")


def test_the_same_every_time(tmp_path):
    """Two runs write the same bytes, and file objects get them uncompressed and stay open."""
    streams = [io.BytesIO(), io.BytesIO()]
    for stream in streams:
        with wds.RecordWriter(stream, "cbor") as writer:
            for sample in SAMPLES:
                writer.write(sample)
    assert streams[0].getvalue() == streams[1].getvalue()
    assert cbor2.loads(streams[0].getvalue())["__key__"] == "000"


def test_metadata(tmp_path):
    """What readers add is not written, unless asked for."""
    sample = {"__key__": "a", "__url__": "elsewhere", "_note": "n", "x": 1}
    for keep, wanted in ((False, {"__key__", "x", "__url__"}), (True, {"__key__", "x", "__url__", "_note"})):
        with wds.RecordWriter(tmp_path / "a.cbors", keep_meta=keep) as writer:
            writer.write(sample)
        (again,) = read(tmp_path / "a.cbors")
        assert set(again) == wanted
        assert again["__url__"] == str(tmp_path / "a.cbors")


def test_encoded_by_extension(tmp_path):
    """With encoder=True fields are bytes, which decode as those of tar shards."""
    with wds.RecordWriter(tmp_path / "a.msgpack", encoder=True) as writer:
        writer.write({"__key__": "a", "json": {"x": [1]}, "cls": 3, "npy": np.arange(3)})
    (sample,) = wds.DataPipeline(
        wds.SimpleShardList([str(tmp_path / "a.msgpack")]), wds.msgpacks_to_samples(), wds.decode()
    )
    assert (sample["json"], sample["cls"], sample["npy"].tolist()) == ({"x": [1]}, 3, [0, 1, 2])


@pytest.mark.parametrize("kind", ["cbor", "msgpack"])
def test_samples_that_cannot_be_written(kind, tmp_path):
    """They are errors with their key, leave nothing behind, and the writer can go on."""
    name = tmp_path / "a"
    recursive = []
    recursive.append(recursive)
    with wds.RecordWriter(name, kind) as writer:
        for sample, error in (
            ({"x": 1}, SampleError),
            ({"__key__": 5}, SampleError),
            ([1], SampleError),
            ({"__key__": "bad", 3: 1}, SampleError),
            ({"__key__": "bad", "x": object()}, EncodingError),
            ({"__key__": "bad", "x": np.array([None])}, EncodingError),
            ({"__key__": "bad", "x": recursive}, EncodingError),
        ):
            with pytest.raises(error) as failure:
                writer.write(sample)
            assert failure.value.url == str(name)
            if isinstance(sample, dict) and sample.get("__key__") == "bad":
                assert failure.value.key == "bad"
        writer.write({"__key__": "good"})
    stage = wds.cbors_to_samples if kind == "cbor" else wds.msgpacks_to_samples
    assert [s["__key__"] for s in wds.DataPipeline(wds.SimpleShardList([str(name)]), stage())] == ["good"]


def test_items_of_any_kind(tmp_path):
    """Values that are no samples are written where they are asked for."""
    with wds.RecordWriter(tmp_path / "a.cbors", items="any") as writer:
        for value in ([1, "a"], 3, {"x": None}):
            writer.write(value)
    assert read(tmp_path / "a.cbors")[:2] == [[1, "a"], 3]


def test_complete_or_not_at_all(tmp_path):
    """After an exception or abort there is no file; after close no more is written; overwriting can be refused."""
    name = tmp_path / "a.cbors"

    def failing():
        with wds.RecordWriter(name) as writer:
            writer.write(SAMPLES[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert os.listdir(tmp_path) == []
    writer = wds.RecordWriter(name)
    writer.write(SAMPLES[0])
    assert not writer.closed
    writer.close()
    writer.close()
    assert writer.closed
    with pytest.raises(UsageError, match="closed"):
        writer.write(SAMPLES[0])
    with pytest.raises(AlreadyExists):
        wds.RecordWriter(name, overwrite=False)


def test_a_forgotten_writer_is_noticed(tmp_path):
    """What it wrote is completed, with a warning."""
    writer = wds.RecordWriter(tmp_path / "a.cbors")
    writer.write(SAMPLES[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del writer
        gc.collect()
    assert [str(w.message)[:12] for w in caught if w.category is ResourceWarning] == ["RecordWriter"]
    assert [sample["__key__"] for sample in read(tmp_path / "a.cbors")] == [SAMPLES[0]["__key__"]]


def test_a_failed_write_loses_the_shard_loudly(tmp_path):
    """A full disk, or whatever the output raises, is an error at the write and at the close."""

    class Full(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            raise OSError(28, "No space left on device")

    writer = wds.RecordWriter(Full(), "cbor")
    with pytest.raises(OSError, match="No space"):
        writer.write({"__key__": "a", "x": bytes(500_000)})
    with pytest.raises(SourceError, match="given up"):
        writer.close()


def test_series(tmp_path):
    """Shards are cut by count and by size, and reported when complete."""
    done = []
    with wds.RecordShardWriter(str(tmp_path / "s-%02d.cbors.gz"), maxcount=15, post=done.append) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    assert [os.path.basename(name) for name in done] == ["s-00.cbors.gz", "s-01.cbors.gz", "s-02.cbors.gz"]
    assert [len(read(name)) for name in done] == [15, 15, 10]
    with wds.RecordShardWriter(str(tmp_path / "t-{shard}.data"), format="msgpack", maxsize=1000) as writer:
        for n in range(10):
            writer.write({"__key__": str(n), "x": bytes(600)})
    assert writer.shard == 5
    with pytest.raises(UsageError, match="no index files"):
        wds.RecordShardWriter(str(tmp_path / "t-%d.cbors"), index="dali")
