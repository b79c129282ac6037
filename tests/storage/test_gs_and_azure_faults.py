"""gs: and az: through a proxy that breaks answers: every byte, once and in order, or a typed error."""

import hashlib
import os

import pytest

import webdataset as wds
from support.proxy import KINDS, Fault, planned, seeded
from webdataset.core.errors import NotFound, ShardChanged, ShortRead, SourceError
from webdataset.storage import http_client
from webdataset.storage.random_access import open_ranges

SIZE = 400_000  # six times what counts as progress
PART = 256 << 10
BODY = hashlib.shake_256(b"first").digest(SIZE)
OTHER = hashlib.shake_256(b"second").digest(SIZE)
KEY = f"faults-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}/object"  # the service is shared by all workers


@pytest.fixture
def url(store):
    """The object is there."""
    return store.put(KEY, BODY)


def drained(url, size=50_000):
    """Read a url to its end in pieces."""
    with wds.gopen(url) as stream:
        return b"".join(iter(lambda: stream.read(size), b""))


@pytest.mark.parametrize("kind", ["reset", "cut", "misplaced", "rangeless", "busy", "throttled"])
def test_one_fault_costs_no_byte(store, url, waits, kind):
    """Whatever goes wrong once, in the first answer and in the one after it, all bytes come, in order."""
    proxy = store.proxied(planned([Fault("cut", 150_000), Fault(kind, 100_000, 0), Fault(kind, 10)]))
    assert drained(url) == BODY
    assert proxy.passed[1].range.startswith("bytes=1")
    assert waits[0] < 0.2


@pytest.mark.parametrize("kind", ["busy", "throttled", "cut", "reset"])
def test_the_first_answer_may_fail_too(store, url, waits, kind):
    """A refusal of the first request is asked again."""
    store.proxied(planned([Fault(kind, 0)] * 3))
    assert drained(url) == BODY


def test_a_stalled_connection_is_left(store, url, waits, monkeypatch):
    """No byte for the read timeout: the rest comes over another connection."""
    monkeypatch.setattr(http_client, "READ_SECONDS", 0.3)
    store.proxied(planned([Fault("stall", 100_000), Fault("stall", 0)]))
    assert drained(url) == BODY


@pytest.mark.parametrize("careless", [False, True])
def test_a_replaced_object_is_an_error(store, url, waits, careless):
    """The object is replaced while it is read: ShardChanged, whether or not the service heeds conditions."""
    store.proxied(planned([Fault("swapped", 150_000)]), swap=lambda: store.put(KEY, OTHER), careless=careless)
    with wds.gopen(url) as stream:
        with pytest.raises(ShardChanged) as caught:
            b"".join(iter(lambda: stream.read(10_000), b""))
        with pytest.raises(ShardChanged):  # who swallows it does not see an end afterwards
            stream.read(10)
    assert caught.value.url == url


def test_a_replaced_object_is_not_skipped_into(store, url, waits):
    """A service that ignores range and condition sends another object whole: no byte of it is given."""
    plan = planned([Fault("swapped", 150_000), Fault("rangeless")])
    store.proxied(plan, swap=lambda: store.put(KEY, OTHER), careless=True)
    with pytest.raises(ShardChanged):
        drained(url)


def test_an_object_removed_meanwhile(store, url, waits):
    """Gone while it is read: NotFound, where the service looks for the object before it looks at the condition."""
    store.proxied(planned([Fault("swapped", 1000)]), swap=lambda: store.delete(KEY))
    with pytest.raises(NotFound if store.scheme == "gs" else (NotFound, ShardChanged)):
        drained(url)


def test_retry_after_is_heard(store, url, waits):
    """The service says when to come back."""
    store.proxied(planned([Fault("throttled", wait_seconds=7)]))
    assert drained(url) == BODY
    assert 7 <= waits[0] < 8.5


def test_a_service_that_stays_busy(store, url, waits):
    """Attempts are bounded, and waits grow; so for reading, and for everything else."""
    store.proxied(planned([Fault("busy")] * 50, methods=("GET", "PUT", "POST")))
    with pytest.raises(SourceError, match=r"after 8 attempts: .*503"):
        drained(url)
    assert len(waits) == 7
    assert waits[-1] > 8 * waits[0]
    with pytest.raises(SourceError, match=r"after 8 attempts: .*503"):
        wds.expand_urls(store.url("*"))
    with pytest.raises(SourceError, match=r"after 2 attempts: .*503"), wds.gopen(url, "wb", attempts=2) as stream:
        stream.write(b"x")


def test_ranges_survive_faults(store, url, waits):
    """Positioned reads are complete or an error, too."""
    faults = [None, Fault("cut", 100), Fault("busy"), Fault("misplaced"), Fault("reset", 500), None, None]
    plan = planned([*faults, Fault("swapped", 10)])
    store.proxied(plan, swap=lambda: store.put(KEY, OTHER), careless=True)
    with open_ranges(url) as ranges:
        assert ranges.read_at(100_000, 1000) == BODY[100_000:101_000]
        assert ranges.read_at(399_000, 5000) == BODY[399_000:]
        with pytest.raises(ShardChanged):
            ranges.read_at(200_000, 1000)


def test_lists_survive_faults(store, url, waits):
    """A list is whole, however often its answers break."""
    store.proxied(planned([Fault("cut", 20), Fault("busy"), Fault("reset", 0)]))
    assert wds.expand_urls(store.url(KEY.replace("object", "obj*"))) == [url]


@pytest.mark.parametrize("block", range(4))
def test_seeded_faults_are_never_silent(store, url, waits, monkeypatch, block):
    """A hundred seeds for each, all faults, conditions heeded and not: equal bytes or a typed error."""
    monkeypatch.setattr(http_client, "READ_SECONDS", 0.15)
    errors, proxy = 0, store.proxied(planned(()), swap=lambda: store.put(KEY, OTHER))
    for seed in range(25 * block, 25 * block + 25):
        swapping = seed % 4 == 0
        if swapping:
            store.put(KEY, BODY)
        without = {"expired"} if swapping else {"expired", "swapped"}
        kinds = tuple(kind for kind in KINDS if kind not in without)
        proxy.plan, proxy.careless = seeded(seed, kinds, size=SIZE), seed % 8 == 0
        try:
            found = drained(url)
        except (ShardChanged, ShortRead):
            errors += 1
        else:
            assert found in (BODY, OTHER), f"seed {seed}"
    assert errors <= 7


def test_cuts_cost_few_bytes(store, url, waits):
    """At 30 % of answers cut, at most 1.3 times the bytes are sent."""
    proxy = store.proxied(planned(()))
    for seed in range(20):
        proxy.plan = seeded(seed, ("cut", "reset"), size=SIZE, rate=0.3)
        assert drained(url) == BODY
    assert any(request.fault for request in proxy.passed)
    assert proxy.sent <= 1.3 * 20 * SIZE


@pytest.mark.parametrize("kinds", [("busy", "throttled"), ("reset", "cut")])
@pytest.mark.parametrize("size", [1000, 5 * PART + 77])
def test_uploads_survive_faults(store, url, waits, kinds, size):
    """Parts are sent again, also where only the answer was lost; what is published is what was written."""
    body = os.urandom(size)
    for seed in range(6):
        store.proxied(seeded(seed, kinds, size=200))
        with wds.gopen(url, "wb", part_bytes=PART) as stream:
            for start in range(0, size, 100_000):
                stream.write(body[start : start + 100_000])
        assert store.get(KEY) == body, f"seed {seed}"
        store.delete(KEY)


def test_an_upload_that_cannot_end_publishes_nothing(store, url, waits):
    """Every request fails from the second part on: an error, and the old object stays."""
    store.proxied(planned([None] * 3 + [Fault("busy")] * 100, methods=("PUT", "POST", "DELETE")))
    with pytest.raises(SourceError, match="after 3 attempts"), wds.gopen(url, "wb", part_bytes=PART, attempts=3) as out:
        out.write(bytes(6 * PART))
    assert store.get(KEY) == BODY
