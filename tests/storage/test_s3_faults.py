"""S3 through a proxy that breaks answers: every byte, once and in order, or a typed error; never anything else."""

import contextlib
import hashlib
import os

import pytest

import webdataset as wds
from support.proxy import KINDS, Fault, planned, seeded
from webdataset.core.errors import NotFound, ShardChanged, ShortRead, SourceError
from webdataset.storage.backends import s3_client as s3_clients
from webdataset.storage.random_access import open_ranges

SIZE = 400_000  # six times what counts as progress
BODY = hashlib.shake_256(b"first").digest(SIZE)
OTHER = hashlib.shake_256(b"second").digest(SIZE)
FOLDER = f"faults-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"  # the service is shared by all workers
KEY = f"{FOLDER}/object"
URL = f"s3://open/{KEY}"


@pytest.fixture(autouse=True)
def object_(client):
    """The object is there."""
    client.put_object(Bucket="open", Key=KEY, Body=BODY)


@pytest.fixture
def swap(client):
    """Replace the object by one of the same size."""
    return lambda: client.put_object(Bucket="open", Key=KEY, Body=OTHER)


def drained(url=URL, size=50_000):
    """Read a url to its end in pieces."""
    with wds.gopen(url) as stream:
        return b"".join(iter(lambda: stream.read(size), b""))


@pytest.mark.parametrize("kind", ["reset", "cut", "misplaced", "rangeless", "busy", "throttled", "expired"])
def test_one_fault_costs_no_byte(proxied, waits, kind):
    """Whatever goes wrong once, in the first answer and in the one after it, all bytes come, in order."""
    broken = Fault("cut", 150_000)
    proxy = proxied(planned([broken, Fault(kind, 100_000, 0), Fault(kind, 10)]))
    assert drained() == BODY
    assert proxy.passed[1].range.startswith("bytes=1")
    assert waits[0] < 0.2


@pytest.mark.parametrize("kind", ["busy", "throttled", "expired", "cut", "reset"])
def test_the_first_answer_may_fail_too(proxied, waits, kind):
    """A refusal of the first request is asked again."""
    proxied(planned([Fault(kind, 0)] * 3))
    assert drained() == BODY


def test_a_stalled_connection_is_left(proxied, waits, monkeypatch):
    """No byte for the read timeout: the rest comes over another connection."""
    monkeypatch.setattr(s3_clients, "READ_SECONDS", 0.3)
    proxied(planned([Fault("stall", 100_000), Fault("stall", 0)]))
    assert drained() == BODY


@pytest.mark.parametrize("careless", [False, True])
def test_a_replaced_object_is_an_error(proxied, waits, swap, careless):
    """The object is replaced while it is read: ShardChanged, whether or not the service heeds If-Match."""
    proxied(planned([Fault("swapped", 150_000)]), swap=swap, careless=careless)
    received = bytearray()
    with wds.gopen(URL) as stream:
        with pytest.raises(ShardChanged) as caught:
            received += b"".join(iter(lambda: stream.read(10_000), b""))
        with pytest.raises(ShardChanged):  # who swallows it does not see an end afterwards
            stream.read(10)
    assert caught.value.url == URL


def test_a_replaced_object_is_not_skipped_into(proxied, waits, swap):
    """A service that ignores range and condition sends another object whole: no byte of it is given."""
    proxied(planned([Fault("swapped", 150_000), Fault("rangeless")]), swap=swap, careless=True)
    with pytest.raises(ShardChanged):
        drained()


def test_an_object_removed_meanwhile(proxied, waits, client):
    """Gone while it is read: NotFound."""
    proxied(planned([Fault("swapped", 1000)]), swap=lambda: client.delete_object(Bucket="open", Key=KEY))
    with pytest.raises(NotFound):
        drained()


def test_retry_after_is_heard(proxied, waits):
    """The service says when to come back."""
    proxied(planned([Fault("throttled", wait_seconds=7)]))
    assert drained() == BODY
    assert 7 <= waits[0] < 8.5


def test_failures_without_progress_are_counted(proxied, waits):
    """A line that drops all the time is read to its end; one that gives nothing is given up."""
    proxied(planned([Fault("cut", 66_000)] * 50))
    with wds.gopen(URL, attempts=3) as stream:
        assert stream.read() == BODY
        assert stream.resumes == 6
    proxied(planned([Fault("cut", 66_000)] + [Fault("reset", 0)] * 50))
    with pytest.raises(ShortRead, match="66000 of 400000"):
        drained()


def test_a_service_that_stays_busy(proxied, waits):
    """Attempts are bounded, and waits grow."""
    proxied(planned([Fault("busy")] * 50))
    with pytest.raises(SourceError, match=r"after 8 attempts: .*503 SlowDown"):
        drained()
    assert len(waits) == 7
    assert waits[-1] > 8 * waits[0]


def test_ranges_survive_faults(proxied, waits, swap):
    """Positioned reads are complete or an error, too."""
    faults = [None, Fault("cut", 100), Fault("busy"), Fault("misplaced"), Fault("reset", 500), None, None]
    proxied(planned([*faults, Fault("swapped", 10)]), swap=swap, careless=True)
    with open_ranges(URL) as ranges:
        assert ranges.read_at(100_000, 1000) == BODY[100_000:101_000]
        assert ranges.read_at(399_000, 5000) == BODY[399_000:]
        with pytest.raises(ShardChanged):
            ranges.read_at(200_000, 1000)


@pytest.mark.parametrize("block", range(8))
def test_seeded_faults_are_never_silent(proxied, waits, monkeypatch, swap, client, block):
    """Two hundred seeds, all faults, services that heed conditions and that do not: equal bytes or a typed error."""
    monkeypatch.setattr(s3_clients, "READ_SECONDS", 0.15)
    errors, proxy = 0, proxied(planned(()), swap=swap)
    for seed in range(25 * block, 25 * block + 25):
        swapping = seed % 4 == 0
        if swapping:
            client.put_object(Bucket="open", Key=KEY, Body=BODY)
        kinds = KINDS if swapping else tuple(kind for kind in KINDS if kind != "swapped")
        proxy.plan, proxy.careless = seeded(seed, kinds, size=SIZE), seed % 8 == 0
        try:
            found = drained()
        except (ShardChanged, ShortRead):
            errors += 1
        else:
            assert found in (BODY, OTHER), f"seed {seed}"
    assert errors <= 7


def test_cuts_cost_few_bytes(proxied, waits):
    """At 30 % of answers cut, at most 1.3 times the bytes are sent."""
    proxy = proxied(planned(()))
    for seed in range(20):
        proxy.plan = seeded(seed, ("cut", "reset"), size=SIZE, rate=0.3)
        assert drained() == BODY
    assert any(request.fault for request in proxy.passed)
    assert proxy.sent <= 1.3 * 20 * SIZE


@pytest.mark.parametrize("kinds", [("busy", "throttled", "expired"), ("reset", "cut")])
def test_uploads_survive_faults(proxied, waits, client, kinds):
    """Parts are sent again; what is published is what was written."""
    body = os.urandom(12_000_000)
    for seed in range(3):
        plan = seeded(seed, kinds, size=200)
        proxied(plan)
        with wds.gopen(f"s3://open/{FOLDER}/up", "wb", part_bytes=5 << 20) as stream:
            for start in range(0, len(body), 1_000_000):
                stream.write(body[start : start + 1_000_000])
        found = client.get_object(Bucket="open", Key=f"{FOLDER}/up")["Body"].read()
        assert hashlib.sha256(found).digest() == hashlib.sha256(body).digest()
        client.delete_object(Bucket="open", Key=f"{FOLDER}/up")


@pytest.fixture
def versioned(client):
    """A bucket that keeps versions, with the object in it; returns its url and what replaces it."""
    bucket = f"versions-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    answer = client.put_object(Bucket=bucket, Key="object", Body=BODY)
    assert answer["VersionId"]
    return (
        f"s3://{bucket}/object",
        lambda: client.put_object(Bucket=bucket, Key="object", Body=OTHER),
        answer["VersionId"],
    )


def forbidding(faults):
    """Return a plan: requests that name a version are refused (403), the others go wrong as planned."""
    others = planned(faults)
    return lambda method, path: Fault("denied") if "versionId=" in path else others(method, path)


@pytest.mark.parametrize("way", ["stream", "ranges", "at once"])
def test_versions_may_be_forbidden(proxied, waits, versioned, way):
    """A role with GetObject but without GetObjectVersion reads a bucket that keeps versions, over interruptions."""
    url, _, _ = versioned
    proxy = proxied(forbidding([Fault("reset", 150_000), Fault("cut", 100_000), Fault("cut", 50_000)]))
    if way == "ranges":
        with open_ranges(url) as ranges:
            assert b"".join(ranges.read_at(start, 70_000) for start in range(0, SIZE, 70_000)) == BODY
    elif way == "stream":
        assert drained(url) == BODY
    else:
        with wds.gopen(url) as stream:
            assert stream.read() == BODY
    assert sum("versionId=" in passed.path for passed in proxy.passed) == 1  # not asked for again and again


def test_a_replaced_object_where_versions_are_forbidden(proxied, waits, versioned):
    """The condition is kept: another object under the key is ShardChanged, not a mixture of both."""
    url, replace, _ = versioned
    proxied(forbidding([Fault("swapped", 150_000)]), swap=replace)
    with pytest.raises(ShardChanged):
        drained(url)


def test_a_version_that_the_url_names_is_never_left_out(proxied, waits, versioned):
    """Whoever names a version in the url gets it or the refusal, not the latest."""
    url, replace, version = versioned
    replace()
    proxied(forbidding([]))
    with pytest.raises(SourceError, match="403"):
        drained(f"{url}?versionId={version}")


def test_the_version_is_read_to_its_end_where_it_may_be(proxied, waits, versioned):
    """With the right to read versions, a replaced object is read to its end."""
    url, replace, _ = versioned
    proxied(planned([Fault("swapped", 150_000)]), swap=replace)
    assert drained(url) == BODY
