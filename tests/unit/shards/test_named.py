"""Shard lists with the dataset's name first."""

import logging
from itertools import islice

import pytest

import webdataset as wds
from webdataset import shardlists
from webdataset.core.errors import NoShards

URLS = ["a.tar", "b.tar", "c.tar"]


def drawn(shards, count):
    """The first urls."""
    return [shard["url"] for shard in islice(iter(shards), count)]


def test_an_infinite_list_goes_round_and_says_so(caplog):
    """The same order in each round; each new round is logged with the dataset's name."""
    with caplog.at_level(logging.WARNING, "webdataset"):
        assert drawn(wds.InfiniteShardList("mmc4", URLS), 7) == [*URLS, *URLS, "a.tar"]
    assert [record.getMessage() for record in caplog.records] == [
        f"dataset mmc4: all 3 shards were given {count} times" for count in (1, 2)
    ]
    seeded = wds.InfiniteShardList("mmc4", URLS, seed=3)
    assert drawn(seeded, 3) == drawn(seeded, 6)[3:] == drawn(wds.SimpleShardList(URLS, seed=3), 3)
    assert len(seeded) == 3
    assert "mmc4" in repr(seeded)
    with pytest.raises(NoShards):
        wds.InfiniteShardList("mmc4", [])


@pytest.mark.parametrize(
    "make",
    [
        lambda: wds.ResampledShards("mmc4", URLS, 7, None, True),
        lambda: wds.ResampledShards("mmc4", URLS, 7, deterministic=True),
        lambda: wds.ResampledShards(URLS, 7, None, deterministic=True, dataset_name="mmc4"),
        lambda: wds.NamedResampledShards("mmc4", URLS, nshards=7, deterministic=True),
        lambda: shardlists.NamedResampledShards("mmc4", "{a,b,c}.tar", 7, None, True),
    ],
)
def test_the_name_may_come_first(make, caplog):
    """All ways of saying it give the draws of webdataset 0.2, and log each round's worth of draws."""
    shards = make()
    with caplog.at_level(logging.WARNING, "webdataset"):
        assert drawn(shards, 10) == drawn(wds.ResampledShards(URLS, 7, None, deterministic=True), 10)
    assert (shards.dataset_name, shards.nshards, len(drawn(shards, 10))) == ("mmc4", 7, 7)
    assert [record.getMessage() for record in caplog.records][:2] == [
        "dataset mmc4: 3 shards were drawn, 1 times all", "dataset mmc4: 6 shards were drawn, 2 times all",
    ]  # fmt: skip


def test_a_name_and_urls_alone_draw_for_ever():
    """The usual call."""
    assert len(drawn(wds.ResampledShards("mmc4", URLS), 1000)) == 1000
    assert wds.ResampledShards(URLS).dataset_name is None
