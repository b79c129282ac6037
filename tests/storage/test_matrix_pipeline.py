"""Whole datasets over ways that break: every sample once, or an error that names the shard; slow consumers."""

import contextlib
import time

import pytest

import webdataset as wds
from support import readings
from support.proxy import Fault, planned, seeded
from support.readings import digest_of, digests_of, shard
from support.scheme_servers import NAMES
from webdataset.core.errors import ShardChanged, ShortRead, SourceError
from webdataset.storage import resumable_stream

SHARDS = [shard(seed, samples=6, size_bytes=30_000) for seed in range(5)]
SIZE = len(SHARDS[0])
FAULTS = ("reset", "cut", "stall", "busy", "throttled", "rangeless", "misplaced")


@pytest.fixture
def waits(monkeypatch):
    """Waiting is noted, and a thousand times shorter; nobody waits for a byte longer than 0.3 s."""
    return readings.impatient(monkeypatch.setattr, 0.3, share=0.001)


@pytest.fixture
def five(scheme_of):
    """Return a function from a scheme's name to the scheme, with five shards there."""

    def get(name):
        scheme = scheme_of(name)
        for number, content in enumerate(SHARDS):
            scheme.put(f"five-{number}.tar", content)
        return scheme

    return get


@contextlib.contextmanager
def broken(scheme, plan, **rules):
    """Yield the urls of the five behind a proxy, and the options for them."""
    with scheme.broken(plan, "five-0.tar", **rules) as (_, target):
        yield [target.url.replace("five-0", f"five-{number}") for number in range(5)], target.options


def ways(monkeypatch, tmp_path, way):
    """Return the options of a dataset that reads in some way."""
    if way == "parallel":
        readings.starving(monkeypatch.setattr)
    if way == "cached":
        (tmp_path / "cache").mkdir()
        return {"cache_dir": str(tmp_path / "cache")}
    return {"prefetch": 0} if way == "plain" else {}


@pytest.mark.parametrize("way", ["plain", "ahead", "parallel", "cached"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["http", "s3"])
def test_every_sample_comes(five, waits, monkeypatch, tmp_path, name, fault, way):
    """Answers break, for each shard: all thirty samples, once, in order, right."""
    options = ways(monkeypatch, tmp_path, way)
    faults = [item for number in range(5) for item in (Fault("cut", 60_000 + 9000 * number), Fault(fault, 20_000, 0))]
    with broken(five(name), planned(faults)) as (urls, storage_options):
        dataset = wds.WebDataset(urls, shardshuffle=False, storage_options=storage_options, **options)
        samples = list(dataset)
    assert len(samples) == 30
    assert [digest_of(samples[start : start + 6]) for start in range(0, 30, 6)] == [
        digests_of(one)[1] for one in SHARDS
    ]
    assert [sample["__url__"] for sample in samples] == [url for url in urls for _ in range(6)]


@pytest.mark.parametrize("way", ["plain", "ahead", "parallel", "cached"])
@pytest.mark.parametrize("name", ["http", "s3"])
def test_what_is_lost_is_told(five, waits, monkeypatch, tmp_path, name, way):
    """One shard is replaced, and one breaks for good: two errors reach the handler, which name them; the rest comes."""
    options, heard, scheme = ways(monkeypatch, tmp_path, way), [], five(name)

    def plan(_method, path):
        if "five-1.tar" in path:
            return swapping(_method, path)
        return endless(_method, path) if "five-3.tar" in path else None

    swapping, endless = planned([Fault("swapped", 90_000)]), planned([Fault("cut", 90_000), *[Fault("reset", 0)] * 99])
    swap = lambda: scheme.put("five-1.tar", shard(9, samples=6, size_bytes=30_000))
    handler = lambda error: heard.append(error) or True
    with broken(scheme, plan, swap=swap) as (urls, given):
        dataset = wds.WebDataset(urls, shardshuffle=False, storage_options=given, handler=handler, **options)
        samples = list(dataset)
    assert {type(error) for error in heard} <= {ShardChanged, ShortRead, SourceError}
    assert {error.url for error in heard} == {urls[1], urls[3]}
    assert len(heard) == 2
    by_url = {url: [sample for sample in samples if sample["__url__"] == url] for url in urls}
    for number in (0, 2, 4):
        assert digest_of(by_url[urls[number]]) == digests_of(SHARDS[number])[1]
    for number in (1, 3):  # what came before is whole, and of the first version
        assert 0 <= len(by_url[urls[number]]) < 6
        for sample in by_url[urls[number]]:
            assert sample["bin"] in SHARDS[number]


@pytest.mark.parametrize("name", ["http", "s3"])
def test_without_a_handler_it_ends_with_the_error(five, waits, name):
    """The first shard that breaks for good ends the pass, at its place, with url and offset."""
    endless = planned([Fault("cut", 90_000), *[Fault("reset", 0)] * 99])
    plan = lambda method, path: endless(method, path) if "five-2.tar" in path else None
    with broken(five(name), plan) as (urls, storage_options):
        flow = iter(wds.WebDataset(urls, shardshuffle=False, storage_options=storage_options, prefetch=0))
        samples = [next(flow) for _ in range(12)]
        with pytest.raises(ShortRead, match=f"of {SIZE} bytes") as caught:
            samples += list(flow)
    assert caught.value.url == urls[2]
    assert digest_of(samples[:6]) == digests_of(SHARDS[0])[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_slow_consumer_costs_nothing(five, monkeypatch, name):
    """Several times slower than all bounds, and than the server's patience: every byte, and no failure is counted."""
    # where many tests run at once, a server takes more than a tenth of a second for an answer
    noted = readings.impatient(monkeypatch.setattr, 0.3 if name != "ssh" else 1.0)
    monkeypatch.setattr(resumable_stream, "_IDLE_SECONDS", 0.02)
    scheme = five(name)
    target = scheme.target("five-0.tar")
    with wds.gopen(target.url, storage_options=target.options) as stream:
        content = stream.read(1000)
        time.sleep(1.0)
        content += stream.read(SIZE // 2)
        time.sleep(0.3)
        content += b"".join(iter(lambda: stream.read(50_000), b""))
    assert content == SHARDS[0]
    assert noted == []


@pytest.mark.parametrize("name", ["http", "https", "s3", "gs", "az", "hf", "ais"])
def test_servers_that_hang_up_on_slow_consumers(five, monkeypatch, name):
    """More often than any patience lasts, with few bytes between: time between two reads is nobody's failure."""
    readings.impatient(monkeypatch.setattr, 0.5, share=0.001)
    monkeypatch.setattr(resumable_stream, "_IDLE_SECONDS", 0.005)
    scheme, pieces = five(name), []
    with scheme.broken(planned([Fault("cut", 9000)] * 20), "five-0.tar") as (_, target):
        with wds.gopen(target.url, storage_options=target.options) as stream:
            while piece := stream.read(9000):
                pieces.append(piece)
                time.sleep(0.01)
            assert stream.resumes >= 15
    assert b"".join(pieces) == SHARDS[0]


@pytest.mark.parametrize("name", ["http", "s3"])
def test_seeds_over_whole_passes(five, waits, name):
    """Twenty seeds, read ahead: samples are those of the shards, in order, and what is missing was told."""
    scheme = five(name)
    whole = [digests_of(one)[1] for one in SHARDS]
    with scheme.broken(planned(()), "five-0.tar") as (proxy, target):
        urls = [target.url.replace("five-0", f"five-{number}") for number in range(5)]
        for seed in range(20):
            heard = []
            proxy.plan = seeded(seed, FAULTS, size=SIZE, rate=0.4, most=10)
            samples = list(
                wds.WebDataset(
                    urls, shardshuffle=False, storage_options=target.options,
                    handler=lambda error, heard=heard: heard.append(error) or True,  # type: ignore[misc]
                )
            )  # fmt: skip
            told = {error.url for error in heard}
            for url, digest in zip(urls, whole, strict=True):
                found = [sample for sample in samples if sample["__url__"] == url]
                assert url in told or digest_of(found) == digest, f"seed {seed}, {url}"
            assert len(told) <= 1, f"seed {seed}"
