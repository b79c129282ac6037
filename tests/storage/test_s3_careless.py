"""S3 services that are less careful than AWS: what they ignore does no harm."""

import os

import pytest

import webdataset as wds
from support import s3_server
from support.proxy import Fault, FaultyProxy, planned
from webdataset.core.errors import ShardChanged, SourceError
from webdataset.storage.backends import s3_client as s3_clients
from webdataset.storage.random_access import open_ranges

PART = 5 << 20


@pytest.fixture(scope="session")
def careless(tmp_path_factory, request):
    """s3rver, which heeds no conditions."""
    pytest.importorskip("botocore")
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    try:
        s3_server.careless()
    except OSError as error:
        pytest.skip(str(error))
    with s3_server.shared_careless_s3(folder / "careless") as running:
        yield running


@pytest.fixture
def url(careless, monkeypatch, request):
    """An object of this test, and the environment of somebody who uses the service."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", careless.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.CARELESS[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.CARELESS[1])
    s3_clients._clients.clear()
    yield f"s3://shards/{request.node.name.translate(str.maketrans('[]', '__'))}/object"
    s3_clients._clients.clear()


def put(url, body):
    """Write an object."""
    with wds.gopen(url, "wb", part_bytes=PART) as stream:
        stream.write(body)


@pytest.mark.parametrize("size", [0, 1000, 2 * PART + 1])
def test_written_and_read(url, size):
    """In one request and in parts; also by ranges and in lists."""
    body = os.urandom(size)
    put(url, body)
    with wds.gopen(url) as stream:
        assert stream.read() == body
    with open_ranges(url) as ranges:
        assert ranges.read_at(size // 2, 10) == body[size // 2 :][:10]
    assert wds.expand_urls(url.replace("object", "o*")) == [url]


@pytest.mark.parametrize("kind", ["cut", "rangeless", "swapped"])
def test_conditions_that_are_ignored(url, careless, monkeypatch, waits, kind):
    """The rest of the same object is taken up; another object under its name is an error, never a mixture."""
    body, other = os.urandom(400_000), os.urandom(400_000)
    put(url, body)
    plan = planned([Fault("swapped" if kind == "swapped" else "cut", 150_000), Fault(kind, 300_000)])
    client = s3_clients.client_for(s3_profile(url), url)
    bucket, _, key = url.removeprefix("s3://").partition("/")

    def swap():
        client.put_object(Bucket=bucket, Key=key, Body=other)

    with FaultyProxy(careless.endpoint.removeprefix("http://"), plan, swap=swap) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        s3_clients._clients.clear()
        with wds.gopen(url) as stream:
            if kind == "swapped":
                with pytest.raises(ShardChanged):
                    stream.read()
            else:
                assert stream.read() == body


def s3_profile(url):
    """Return the profile of a url."""
    from webdataset.storage.backends.s3_client import parse_url

    return parse_url(url).profile


def test_a_key_that_nobody_has(url, monkeypatch):
    """It is refused, and the error says so."""
    put(url, b"x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SOMEBODY")
    s3_clients._clients.clear()
    with pytest.raises(SourceError, match="does not know this key"):
        wds.gopen(url)
