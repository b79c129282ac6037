"""Samples by AIStore's GetBatch: in the order asked for, complete, and nothing left out in silence."""

import io
import os
import pickle
import random
import tarfile
from typing import Any

import pytest

import webdataset as wds
from support import ais_server as doubles
from support.ais_server import ais_server
from webdataset.core.errors import BadHeader, ConfigError, NotFound, SourceError, UsageError


@pytest.fixture
def cluster(monkeypatch):
    """A cluster with two shards of 50 samples, and some loose objects."""
    monkeypatch.delenv("AIS_AUTHN_TOKEN", raising=False)
    with ais_server() as running:
        for name in ("a.tar", "b.tar"):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as tar:
                for number in range(50):
                    for field in ("txt", "cls"):
                        content = f"{name} {number} {field}".encode()
                        member = tarfile.TarInfo(f"d/{number:03}.{field}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
            running.put("bucket", name, buffer.getvalue())
        running.put("bucket", "loose/1.TXT", b"loose")
        running.put("cold", "2.txt", b"behind", provider="aws")
        monkeypatch.setenv("AIS_ENDPOINT", running.endpoints[0])
        yield running


def entries(samples, fields=("txt", "cls")):
    """Return the entries of samples: (shard, number) to members."""
    return [(f"ais://bucket/{shard}", f"d/{number:03}.{field}") for shard, number in samples for field in fields]


def test_any_order(cluster):
    """Samples of two shards at random, in few requests: as reading the shards gives them."""
    wanted = [(shard, number) for shard in ("a.tar", "b.tar") for number in range(50)]
    random.Random(0).shuffle(wanted)
    samples = list(wds.AISBatch(entries(wanted), at_once=60))
    read = list(wds.WebDataset(["ais://bucket/a.tar", "ais://bucket/b.tar"], shardshuffle=False))
    known = {(sample["__url__"], sample["__key__"]): sample for sample in read}
    assert samples == [known[f"ais://bucket/{shard}", f"d/{number:03}"] for shard, number in wanted]
    batches = [request for request in cluster.requests if "/moss" in request.path and request.node == "gateway"]
    assert len(batches) == 4


def test_a_source_of_a_pipeline(cluster):
    """It stands first in a DataPipeline, is gone through again, and travels to other processes."""
    source = wds.AISBatch(entries([("a.tar", 1), ("b.tar", 2), ("a.tar", 3)]))
    pipeline = wds.DataPipeline(
        pickle.loads(pickle.dumps(source)), wds.decode(only="txt"), wds.to_tuple("__key__", "txt")
    )
    for _ in range(2):
        assert list(pipeline) == [("d/001", "a.tar 1 txt"), ("d/002", "b.tar 2 txt"), ("d/003", "a.tar 3 txt")]


def test_forms_of_entries(cluster):
    """Urls with and without scheme, with archpath, pairs; other providers; extensions in lower case."""
    given: list[Any] = [
        "bucket/loose/1.TXT",
        "ais://bucket/a.tar?archpath=d/007.cls",
        ("bucket/a.tar", "d/007.txt"),
        "s3://cold/2.txt",
    ]
    first, second, third = wds.AISBatch(given)
    assert first == {"__key__": "loose/1", "__url__": "ais://bucket/loose/1.TXT", "txt": b"loose"}
    assert second == {"__key__": "d/007", "__url__": "ais://bucket/a.tar", "cls": b"a.tar 7 cls", "txt": b"a.tar 7 txt"}
    assert (third["__url__"], third["txt"]) == ("s3://cold/2.txt", b"behind")


def test_repeated_samples_stay_apart(cluster):
    """The same sample twice in a row is two samples, as drawing with replacement gives them."""
    samples = list(wds.AISBatch(entries([("a.tar", 1)] * 3)))
    assert [sample["cls"] for sample in samples] == [b"a.tar 1 cls"] * 3


def test_what_does_not_exist_is_told(cluster):
    """With url and key of the sample that lacks it; who steps over it gets the others, complete."""
    given = entries([("a.tar", 1), ("a.tar", 2), ("a.tar", 99), ("c.tar", 1), ("a.tar", 3)])
    given[2] = ("ais://bucket/a.tar", "d/002.json")
    with pytest.raises(NotFound, match=r"does not have d/002\.json") as caught:
        list(wds.AISBatch(given))
    assert (caught.value.url, caught.value.key) == ("ais://bucket/a.tar", "d/002")
    handled = []
    samples = list(wds.AISBatch(given, handler=lambda error: handled.append((error.url, error.key)) or True))
    assert [sample["__key__"] for sample in samples] == ["d/001", "d/003"]
    assert handled == [
        ("ais://bucket/a.tar", "d/002"),
        ("ais://bucket/a.tar", "d/099"),
        ("ais://bucket/c.tar", "d/001"),
    ]
    assert [sample["__key__"] for sample in wds.AISBatch(given, handler=wds.ignore_and_stop)] == ["d/001"]


def test_requests_that_fail(cluster):
    """The handler is asked once for each request; others go on."""
    cluster.token = "t"
    with pytest.raises(SourceError, match="401"):
        list(wds.AISBatch(entries([("a.tar", 1)])))
    handled = []
    given = entries([("a.tar", number) for number in range(6)])
    assert list(wds.AISBatch(given, at_once=4, handler=lambda error: handled.append(error) or True)) == []
    assert len(handled) == 3
    assert list(wds.AISBatch(given, at_once=4, handler=wds.ignore_and_stop)) == []


def test_shares(cluster, monkeypatch):
    """Ranks and workers get different samples, all of them together; split=False gives everybody all."""
    given = entries([("a.tar", number) for number in range(50)])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("NUM_WORKERS", "2")
    found = []
    for rank in range(2):
        for worker in range(2):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORKER", str(worker))
            found.append([sample["__key__"] for sample in wds.AISBatch(given, at_once=10)])
            assert len(list(wds.AISBatch(given, split=False))) == 50
    assert sorted(map(len, found)) == [12, 12, 13, 13]
    assert sorted(key for keys in found for key in keys) == [f"d/{number:03}" for number in range(50)]


def test_another_order_is_an_error(cluster, monkeypatch):
    """Nothing is taken for what it is not."""
    tar = doubles.tar_of
    monkeypatch.setattr(doubles, "tar_of", lambda members: tar(members[::-1]))
    with pytest.raises(BadHeader, match="in the place of"):
        list(wds.AISBatch(entries([("a.tar", 1)])))


def test_a_damaged_stream_is_an_error(cluster, monkeypatch):
    """What the tar reader finds wrong is raised, and not taken for an end that asking again would mend."""
    tar = doubles.tar_of
    damage = bytearray(tar([("d/001.txt", b"one"), ("d/002.txt", b"two")]))
    damage[1024 + 150] ^= 0xFF
    monkeypatch.setattr(doubles, "tar_of", lambda members: bytes(damage))
    with pytest.raises(BadHeader, match="checksum"):
        list(wds.AISBatch(entries([("a.tar", 1), ("a.tar", 2)], fields=("txt",))))


@pytest.mark.parametrize(
    "given",
    ["bucket", "bucket/", "bucket/noextension", ("bucket/a.tar",), 5, "bucket/a.tar?etl_name=x", "ais://#ns/b/a.txt"],
)
def test_entries_that_make_no_sense(cluster, given):
    """They are refused before anything is asked."""
    with pytest.raises(UsageError):
        list(wds.AISBatch([given]))
    assert cluster.requests == []


def test_arguments_that_make_no_sense(monkeypatch):
    """One url, an iterator, no room, no gateway, options of others."""
    for call in (lambda: wds.AISBatch("b/x.txt"), lambda: wds.AISBatch(iter([])), lambda: wds.AISBatch([], at_once=0)):
        with pytest.raises(UsageError):
            call()
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with pytest.raises(ConfigError, match="AIS_ENDPOINT"):
        list(wds.AISBatch(["b/x.txt"]))
    with pytest.raises(ConfigError, match="does not apply"):
        list(wds.AISBatch(["b/x.txt"], storage_options={"profile": "x"}))
    assert list(wds.AISBatch([])) == []


def test_in_the_workers_of_a_loader(cluster):
    """Each worker asks for its share; together they give all samples once."""
    data = pytest.importorskip("torch.utils.data")
    given = entries([("a.tar", number) for number in range(20)])
    list(wds.AISBatch(given))
    loader = data.DataLoader(
        wds.AISBatch(given, storage_options={"endpoint_url": os.environ["AIS_ENDPOINT"]}),
        batch_size=None,
        num_workers=2,
        multiprocessing_context="fork",
    )
    assert sorted(sample["__key__"] for sample in loader) == [f"d/{number:03}" for number in range(20)]
