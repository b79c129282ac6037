"""AIStore through a proxy before its target that breaks answers: every byte, once and in order, or a typed error."""

import hashlib
import io
import tarfile

import pytest

import webdataset as wds
from support.ais_server import ais_server
from support.proxy import KINDS, Fault, planned, seeded
from webdataset.core.errors import NotFound, ShardChanged, ShortRead, SourceError
from webdataset.storage import http_client, retries
from webdataset.storage.random_access import open_ranges

SIZE = 400_000  # six times what counts as progress
BODY = hashlib.shake_256(b"first").digest(SIZE)
OTHER = hashlib.shake_256(b"second").digest(SIZE)
URL = "ais://bucket/object"
FAULTS = tuple(kind for kind in KINDS if kind not in ("expired", "swapped"))


@pytest.fixture
def cluster(monkeypatch, waits):
    """A cluster with one object; gateways name a proxy as their target."""
    monkeypatch.delenv("AIS_AUTHN_TOKEN", raising=False)
    with ais_server() as running:
        running.put("bucket", "object", BODY)
        monkeypatch.setenv("AIS_ENDPOINT", running.endpoints[0])
        yield running


@pytest.fixture
def proxied(cluster, before):
    """Return a function that puts a faulty proxy before the target."""

    def start(plan, **options):
        proxy = before(cluster.target, plan, **options)
        cluster.announced = proxy.url
        return proxy

    return start


def drained(url=URL, size=50_000):
    """Read a url to its end in pieces."""
    with wds.gopen(url) as stream:
        return b"".join(iter(lambda: stream.read(size), b""))


@pytest.mark.parametrize("ranged", [False, True])
@pytest.mark.parametrize("kind", ["reset", "cut", "misplaced", "rangeless", "busy", "throttled"])
def test_one_fault_costs_no_byte(cluster, proxied, waits, kind, ranged):
    """All bytes come, in order, and each attempt begins at the gateway; whatever checksums come with a range."""
    cluster.range_checksums = ranged
    proxy = proxied(planned([Fault("cut", 150_000), Fault(kind, 100_000, 0), Fault(kind, 10)]))
    assert drained() == BODY
    assert proxy.passed[1].range == "bytes=150000-"
    assert waits[0] < 0.2
    nodes = [request.node for request in cluster.requests if request.method == "GET"]
    assert nodes.count("gateway") == sum(request.method == "GET" for request in proxy.passed)


def test_a_stalled_connection_is_left(proxied, monkeypatch):
    """No byte for the read timeout: the rest comes over another connection."""
    monkeypatch.setattr(http_client, "READ_SECONDS", 0.3)
    proxied(planned([Fault("stall", 100_000), Fault("stall", 0)]))
    assert drained() == BODY


@pytest.mark.parametrize("how", ["put", "removed and put"])
@pytest.mark.parametrize("checksums", [True, False, "of ranges"])
@pytest.mark.parametrize("then", [None, Fault("rangeless")])
def test_a_replaced_object_is_an_error(cluster, proxied, how, checksums, then):
    """By checksum and version; without checksums nothing is taken up again: versions count from 1 after a removal."""
    cluster.checksums, cluster.range_checksums = bool(checksums), checksums == "of ranges"

    def swap():
        if how != "put":
            cluster.buckets["ais", "", "bucket"].pop("object", None)
        cluster.put("bucket", "object", OTHER)

    expected = ShardChanged if checksums else ShortRead
    proxied(planned([Fault("swapped", 150_000), then]), swap=swap)
    with wds.gopen(URL) as stream:
        with pytest.raises(expected) as caught:
            b"".join(iter(lambda: stream.read(10_000), b""))
        with pytest.raises(expected):
            stream.read(10)
    assert caught.value.url == URL


def test_an_object_removed_meanwhile(cluster, proxied):
    """Gone while it is read: NotFound."""
    proxied(planned([Fault("swapped", 1000)]), swap=cluster.buckets["ais", "", "bucket"].clear)
    with pytest.raises(NotFound):
        drained()


def test_retry_after_is_heard(proxied, waits):
    """The cluster says when to come back."""
    proxied(planned([Fault("throttled", wait_seconds=7)]))
    assert drained() == BODY
    assert 7 <= waits[0] < 8.5


def test_a_cluster_that_stays_busy(proxied, waits):
    """Attempts are bounded, and waits grow."""
    proxied(planned([Fault("busy")] * 50))
    with pytest.raises(SourceError, match=r"after 8 attempts: .*503"):
        drained()
    assert waits[-1] > 8 * waits[0]


def test_a_token_that_is_renewed_while_reading(cluster, proxied, monkeypatch, tmp_path):
    """A read goes on with the token that the file holds by then; one that was never good is told at once."""
    token = tmp_path / "token"
    token.write_text("old")
    monkeypatch.setenv("AIS_AUTHN_TOKEN_FILE", str(token))
    cluster.token = "old"

    def renew():
        cluster.token = "new"

    sleeps = []
    monkeypatch.setattr(retries, "sleep", lambda _: sleeps.append(1) or (len(sleeps) == 3 and token.write_text("new")))
    proxied(planned([Fault("swapped", 150_000)]), swap=renew)
    assert drained() == BODY
    assert len(sleeps) == 3
    token.write_text("wrong")
    with pytest.raises(SourceError, match="401"):
        drained()


def test_members_are_taken_up_again(cluster, proxied):
    """A member has no ranges: it is read again, and what is known is skipped."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("d/x.bin")
        member.size = SIZE
        tar.addfile(member, io.BytesIO(BODY))
    cluster.put("bucket", "a.tar", buffer.getvalue())
    proxy = proxied(planned([Fault("cut", 150_000), Fault("reset", 200_000)]))
    assert drained("ais://bucket/a.tar?archpath=d/x.bin") == BODY
    assert [request.range for request in proxy.passed] == [None] * 3


def test_transformations_are_not_taken_up_again(proxied, monkeypatch):
    """Nothing says that the cluster would compute the same twice: an error, and no quiet end."""
    proxied(planned([Fault("reset", 150_000)]))
    with pytest.raises(ShortRead):
        drained("ais://bucket/object?etl_name=upper")


def test_ranges_survive_faults(cluster, proxied):
    """Positioned reads are complete or an error, too."""
    faults = [None, None, Fault("cut", 100), Fault("busy"), Fault("misplaced"), Fault("reset", 500), None, None]
    swap = lambda: cluster.put("bucket", "object", OTHER)
    proxied(planned([*faults, Fault("swapped", 10)], methods=("GET", "HEAD")), swap=swap)
    with open_ranges(URL) as ranges:
        assert ranges.read_at(100_000, 1000) == BODY[100_000:101_000]
        assert ranges.read_at(399_000, 5000) == BODY[399_000:]
        with pytest.raises(ShardChanged):
            ranges.read_at(200_000, 1000)


@pytest.mark.parametrize("block", range(4))
def test_seeded_faults_are_never_silent(cluster, proxied, monkeypatch, block):
    """Hundred seeds, all faults, both kinds of checksums: equal bytes or a typed error."""
    monkeypatch.setattr(http_client, "READ_SECONDS", 0.15)
    errors, proxy = 0, proxied(planned(()), swap=lambda: cluster.put("bucket", "object", OTHER))
    for seed in range(25 * block, 25 * block + 25):
        swapping = seed % 4 == 0
        cluster.put("bucket", "object", BODY)
        kinds = (*FAULTS, "swapped") if swapping else FAULTS
        proxy.plan, cluster.range_checksums = seeded(seed, kinds, size=SIZE), seed % 3 == 0
        try:
            found = drained()
        except (ShardChanged, ShortRead):
            errors += 1
        else:
            assert found in (BODY, OTHER), f"seed {seed}"
    assert errors <= 7


@pytest.mark.parametrize("kinds", [("busy", "throttled"), ("reset", "cut")])
def test_uploads_survive_faults(cluster, proxied, kinds):
    """A PUT is sent again, beginning at the gateway; what is published is what was written."""
    for seed in range(3):
        proxied(seeded(seed, kinds, size=1, rate=0.7))
        with wds.gopen("ais://bucket/up", "wb") as stream:
            stream.write(BODY)
        assert cluster.found("bucket", "up").content == BODY
        cluster.buckets["ais", "", "bucket"].pop("up")


@pytest.mark.parametrize("kind", ["reset", "cut", "busy", "stall"])
def test_batches_are_taken_up_again(cluster, proxied, monkeypatch, kind):
    """From the first entry that has not come: none twice, none left out, in order."""
    monkeypatch.setattr(http_client, "READ_SECONDS", 0.3)
    for number in range(40):
        cluster.put("bucket", f"{number:03}.bin", bytes([number]) * 20_000)
    proxied(planned([Fault(kind, 300_000), Fault(kind, 90_000), Fault(kind, 10)]))
    samples = list(wds.AISBatch([f"bucket/{number:03}.bin" for number in range(40)]))
    assert [(sample["__key__"], sample["bin"]) for sample in samples] == [
        (f"{number:03}", bytes([number]) * 20_000) for number in range(40)
    ]
    sizes = [int(request.headers["Content-Length"]) for request in cluster.requests if request.node == "gateway"]
    assert sizes[-1] < sizes[0] or kind in ("busy", "reset")  # a reset may take everything that came with it


def test_batches_that_give_nothing(proxied):
    """Attempts are bounded."""
    proxied(planned([Fault("cut", 100)] * 50))
    with pytest.raises(ShortRead, match="8 attempts to read a batch gave 0 of 1 entries"):
        list(wds.AISBatch(["bucket/object.bin"]))
