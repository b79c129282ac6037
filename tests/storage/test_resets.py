"""Connections that are reset (RST) or go silent after any number of bytes: all bytes come, and few of them twice."""

import contextlib
import hashlib

import pytest

import webdataset as wds
from support import readings
from support.proxy import Fault
from webdataset.core.errors import ShortRead
from webdataset.storage.random_access import open_ranges
from webdataset.testing.archives import archive, member

SIZES = (4_000, 4_096, 20_000, 65_536, 100_000, 300_000, 384 << 10, 500_000, 1 << 20)
SCHEMES = ("http", "https", "s3", "gs", "az", "hf", "ais")
KEY = "resets.tar"


def shard_of(size_bytes):
    """Return a shard of one large member, about as long as said."""
    content = hashlib.shake_256(b"%d" % size_bytes).digest(size_bytes)
    return archive(member(b"one.bin", content))


def length_for(after):
    """Return how long an object must be to be interrupted some times."""
    return min(max(12 * after, 200_000), 5 << 20)


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Waiting is noted, and a thousand times shorter."""
    return readings.impatient(monkeypatch.setattr, 20.0, share=0.001)


@contextlib.contextmanager
def interrupted(scheme, body, after, kind="reset"):
    """Every answer breaks off after so many bytes."""
    scheme.put(KEY, body)
    with scheme.broken(lambda method, _path: Fault(kind, after) if method == "GET" else None, KEY) as (proxy, target):
        yield proxy, target


def whole(target):
    """Read all at once."""
    return readings.drained(target.url, storage_options=target.options)


def in_ranges(target):
    """Read all by positions."""
    with open_ranges(target.url, storage_options=target.options) as ranges:
        return ranges.read_at(0, ranges.length)


def cached(target, folder):
    """Read all through the cache; what it keeps is the object."""
    dataset = wds.WebDataset(
        [target.url], shardshuffle=False, cache_dir=str(folder), storage_options=target.options, prefetch=0
    )
    (sample,) = dataset
    kept = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    assert sample["bin"] in kept.read_bytes()
    return kept.read_bytes()


@pytest.mark.parametrize("after", SIZES)
@pytest.mark.parametrize("name", SCHEMES)
def test_a_reset_every_so_many_bytes(scheme_of, name, after):
    """Whatever the server sends before each reset is used: at most 1.3 times the bytes are sent."""
    body = shard_of(length_for(after))
    with interrupted(scheme_of(name), body, after) as (proxy, target):
        assert whole(target) == body
    assert len(body) <= proxy.sent <= 1.3 * len(body)
    assert sum(passed.fault is not None for passed in proxy.passed) >= 4


@pytest.mark.parametrize("after", SIZES)
@pytest.mark.parametrize("name", ["http", "s3"])
def test_the_cache_under_resets(scheme_of, tmp_path, name, after):
    """The cache fetches all bytes, and few of them twice."""
    body = shard_of(length_for(after))
    with interrupted(scheme_of(name), body, after) as (proxy, target):
        assert cached(target, tmp_path) == body
    assert proxy.sent <= 1.3 * len(body)


@pytest.mark.parametrize("after", SIZES)
@pytest.mark.parametrize("name", ["http", "s3", "gs", "az"])
def test_ranges_under_resets(scheme_of, name, after):
    """One large positioned read survives all resets within it."""
    body = shard_of(length_for(after))
    with interrupted(scheme_of(name), body, after) as (proxy, target):
        with open_ranges(target.url, storage_options=target.options) as ranges:
            assert ranges.read_at(0, ranges.length) == body
    assert proxy.sent <= 1.3 * len(body) + (128 << 10)  # the head is asked for before


@pytest.mark.parametrize("after", [4_000, 20_000, 300_000])
@pytest.mark.parametrize("name", ["http", "s3", "gs", "az"])
def test_a_stall_every_so_many_bytes(scheme_of, monkeypatch, name, after):
    """What came in front of a silence is used too."""
    readings.impatient(monkeypatch.setattr, 0.2, share=0.001)
    body = shard_of(6 * after)
    with interrupted(scheme_of(name), body, after, "stall") as (proxy, target):
        assert whole(target) == body
    assert proxy.sent <= 1.3 * len(body)


@pytest.mark.parametrize("name", ["http", "s3"])
def test_a_trickle_is_given_up(scheme_of, name):
    """Resets after some bytes each are too little progress: the number of requests is bounded."""
    body = shard_of(200_000)
    with interrupted(scheme_of(name), body, 100) as (proxy, target), pytest.raises(ShortRead, match="attempts"):
        whole(target)
    assert len(proxy.passed) <= 10


@pytest.mark.parametrize("after", [20, 40, 80, 120, 160])
@pytest.mark.parametrize("name", ["http", "s3", "gs", "az", "hf", "ais"])
def test_an_end_within_the_headers(scheme_of, name, after):
    """Headers that a connection ended are no answer: neither an empty object, nor another version, nor no ranges."""
    scheme, body = scheme_of(name), shard_of(20_000)
    scheme.put(KEY, body)
    for read in (whole, in_ranges):
        with scheme.torn([after, after], KEY, kind="end") as (wire, target):
            assert read(target) == body
            assert not wire.plan
