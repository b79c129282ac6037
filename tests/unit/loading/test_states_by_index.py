"""A trace goes by the indexes beside shards: it reads no payload, and says the same as one that reads."""

import io
import random

import pytest

import webdataset as wds
from webdataset.testing.sources import RangeServer


def make_shard(number, samples=30, size_bytes=20_000):
    """Return the bytes of a shard whose fields do not compress."""
    stream, draw = io.BytesIO(), random.Random(number)
    with wds.TarWriter(stream) as sink:
        for index in range(samples):
            sink.write({"__key__": f"{number}-{index:02d}", "bin": draw.randbytes(size_bytes)})
    return stream.getvalue()


@pytest.fixture
def pages(tmp_path):
    """Six shards with their indexes."""
    found = {}
    for number in range(6):
        path = tmp_path / f"s-{number}.tar"
        path.write_bytes(make_shard(number))
        wds.write_indexes([str(path)], "dali")
        found |= {f"/{name}": (tmp_path / name).read_bytes() for name in (path.name, f"s-{number}.idx")}
    assert len(found) == 12
    return found


def make(urls, **rules):
    """Return a dataset whose trace needs no values."""
    dataset = wds.WebDataset(urls, shardshuffle=10, seed=4, **rules).shuffle(20)
    return dataset.decode().to_tuple("__key__", "bin").batched(5)


def trace(dataset, **place):
    """Return the keys of all batches."""
    return [batch.keys for batch in wds.states.trace(dataset, **place)]


def keys(dataset):
    """Return what a run gives."""
    return [list(batch[0]) for batch in dataset]


@pytest.mark.parametrize("elastic", [False, True])
def test_no_payload_is_read(pages, elastic):
    """Of a store, a trace takes the indexes and the first bytes of each shard: a tenth; the same batches as a run."""
    with RangeServer(pages) as server:
        urls = server.root + "/s-{0..5}.tar"
        dataset = make(urls).elastic(3) if elastic else make(urls)
        found = trace(dataset)
        sent = server.sent
        assert found == keys(make(urls).elastic(3) if elastic else make(urls))
        assert 0 < sent < 6 * (64 * 1024 + 8192)
        assert sent * 6 < sum(map(len, pages.values()))
        for name in [name for name in pages if name.endswith(".idx")]:
            del server.pages[name]
        before = server.sent
        assert trace(make(urls)) == keys(make(urls))
        assert server.sent - before > sum(map(len, server.pages.values()))


def test_where_an_index_does_not_tell(pages, tmp_path):
    """An index of another shard, a key that comes again, and rules that choose members: the shards are read."""
    for name, content in pages.items():
        (tmp_path / name[1:]).write_bytes(content)
    urls = str(tmp_path / "s-{0..5}.tar")
    expected = keys(make(urls))
    (tmp_path / "s-2.idx").write_bytes(pages["/s-3.idx"])
    (tmp_path / "s-2.tar").write_bytes(make_shard(2, 20))
    (tmp_path / "s-0.idx").write_bytes(b"nonsense")
    assert trace(make(urls)) == keys(make(urls)) != expected

    def is_even(name):
        return int(name.partition("-")[2][:2]) % 2 == 0

    chosen = trace(make(urls, select_files=is_even))
    assert chosen == keys(make(urls, select_files=is_even))
    assert {int(key[2:]) % 2 for batch in chosen for key in batch} == {0}


def test_a_part_of_a_sample_is_an_error_of_the_trace_too(tmp_path):
    """A key that comes again with other fields ends the trace as it ends the run."""
    path = tmp_path / "x.tar"
    with wds.TarWriter(str(path)) as sink:
        for key, field in (("a", "txt"), ("b", "txt"), ("a", "cls")):
            sink.write({"__key__": key, field: b"1"})
    wds.write_indexes([str(path)], "dali", split_samples="ignore")
    dataset = wds.WebDataset(str(path), shardshuffle=False, seed=1).to_tuple("__key__")
    with pytest.raises(wds.WebDatasetError) as run:
        list(dataset)
    with pytest.raises(wds.WebDatasetError) as traced:
        trace(dataset)
    assert type(traced.value) is type(run.value)


def test_shards_that_are_missing_are_told_by_the_reader(pages, tmp_path):
    """A shard that is not there is the same error, or is left out by the same handler."""
    for name, content in pages.items():
        (tmp_path / name[1:]).write_bytes(content)
    (tmp_path / "s-3.tar").unlink()
    urls = str(tmp_path / "s-{0..5}.tar")
    with pytest.raises(wds.errors.NotFound):
        trace(make(urls))
    left = make(urls, handler=wds.ignore_and_continue)
    assert trace(left) == keys(make(urls, handler=wds.ignore_and_continue))
