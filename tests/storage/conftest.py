"""A real S3 service, shared by the processes of one test run, and proxies that break its answers."""

import os

import pytest

from webdataset.ground.errors import NotFound
from webdataset.sources import patience
from webdataset.sources.s3 import clients as s3_clients
from webdataset.testing import s3_server


@pytest.fixture(scope="session")
def service(tmp_path_factory, request):
    """SeaweedFS with the buckets ``shards``, ``open`` and ``other``."""
    pytest.importorskip("botocore")
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    try:
        s3_server.weed()
    except NotFound as error:
        pytest.skip(str(error))
    with s3_server.shared_s3(folder / "s3") as running:
        client = _client(running.endpoint)
        for bucket in ("shards", "open", "other"):
            try:
                client.create_bucket(Bucket=bucket)
            except client.exceptions.BucketAlreadyOwnedByYou:
                pass
            except client.exceptions.BucketAlreadyExists:
                pass
        yield running


def _client(endpoint):
    import botocore.session

    session = botocore.session.Session()
    session.set_credentials(*s3_server.WRITER)
    return session.create_client("s3", endpoint_url=endpoint, region_name="us-east-1")


@pytest.fixture
def client(service):
    """A client of botocore's own, beside ours."""
    return _client(service.endpoint)


@pytest.fixture
def environment(service, monkeypatch, tmp_path):
    """The environment of somebody who uses the service; nothing of this machine's own AWS settings."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", service.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.WRITER[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.WRITER[1])
    s3_clients._clients.clear()
    yield monkeypatch
    s3_clients._clients.clear()


@pytest.fixture
def waits(monkeypatch):
    """Waiting is noted, and a hundred times shorter."""
    noted, sleep = [], patience.sleep

    def note(seconds):
        noted.append(seconds)
        sleep(seconds / 100)

    monkeypatch.setattr(patience, "sleep", note)
    return noted


@pytest.fixture
def proxied(environment, service):
    """Return a function that puts a faulty proxy before the service, for clients that ask the environment."""
    from webdataset.testing.proxy import FaultyProxy

    running = []

    def start(plan, **options):
        proxy = FaultyProxy(service.endpoint.removeprefix("http://"), plan, **options).__enter__()
        running.append(proxy)
        environment.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        s3_clients._clients.clear()
        return proxy

    yield start
    for proxy in running:
        proxy.__exit__()
