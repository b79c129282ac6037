"""CBOR record shards: every shard read, every truncation noticed."""

import cbor2
import pytest

import webdataset as wds
from webdataset.ground.errors import FormatError, Truncated

ITEMS = [(n / 2, str(n), {"n": [n] * 20}) for n in range(300)]


@pytest.fixture
def shards(tmp_path):
    """Two shards of 300 items."""
    names = [str(tmp_path / f"s-{n}.cbors") for n in range(2)]
    for name in names:
        with open(name, "wb") as stream:
            for item in ITEMS:
                cbor2.dump(item, stream)
    return names


def test_all_items_of_all_shards(shards):
    """Version 0.2.86 stopped at the end of the first shard."""
    pipeline = wds.DataPipeline(wds.SimpleShardList(shards), wds.cbors_to_samples())
    assert list(pipeline) == [list(item) for item in ITEMS] * 2


def test_cut_shards(shards):
    """A shard that ends inside an item is an error with its offset; version 0.2.86 never returned."""
    with open(shards[0], "r+b") as stream:
        stream.truncate(5000)
    with pytest.raises(Truncated) as caught:
        list(wds.DataPipeline(wds.SimpleShardList(shards), wds.cbors_to_samples()))
    assert 4000 < caught.value.offset < 5000
    assert caught.value.url == shards[0]
    go_on = wds.DataPipeline(wds.SimpleShardList(shards), wds.cbors_to_samples(handler=wds.ignore_and_continue))
    assert list(go_on)[-300:] == [list(item) for item in ITEMS]
    stop = wds.DataPipeline(wds.SimpleShardList(shards), wds.cbors_to_samples(handler=wds.ignore_and_stop))
    assert len(list(stop)) < 300


def test_bytes_that_are_no_cbor(tmp_path):
    """Other bytes are an error."""
    (tmp_path / "x").write_bytes(b"\xff\xff")
    with pytest.raises(FormatError):
        list(wds.DataPipeline(wds.SimpleShardList(str(tmp_path / "x")), wds.cbors_to_samples()))
