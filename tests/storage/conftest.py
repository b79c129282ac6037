"""Real services, shared by the processes of one test run, and proxies that break their answers."""

import contextlib
import datetime as dt
import json
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from support import azure_server, gcs_server, s3_server
from support.proxy import FaultyProxy
from webdataset.core.errors import NotFound
from webdataset.storage import retries
from webdataset.storage.backends import s3_client as s3_clients


def folder_of_run(tmp_path_factory, request):
    """Return the folder that all processes of this run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if hasattr(request.config, "workerinput") else folder


def installed(program):
    """Skip the test where a server is not installed."""
    try:
        program()
    except NotFound as error:
        pytest.skip(str(error))


@pytest.fixture
def ran_page():
    """Return a function that runs the Python blocks of a page, or those with a word in them; it counts them."""

    def run(name, word=""):
        page = Path(__file__).resolve().parents[2] / "docs" / name
        blocks = re.findall(r"^```python[^\n]*\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        chosen = [block for block in blocks if word in block]
        names = {}
        for block in chosen:
            exec(compile(block, str(page), "exec"), names)
        return len(chosen)

    return run


@pytest.fixture(scope="session")
def service(tmp_path_factory, request):
    """SeaweedFS with the buckets ``shards``, ``open`` and ``other``."""
    pytest.importorskip("botocore")
    installed(s3_server.weed)
    with s3_server.shared_s3(folder_of_run(tmp_path_factory, request) / "s3") as running:
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
    noted, sleep = [], retries.sleep

    def note(seconds):
        noted.append(seconds)
        sleep(seconds / 100)

    monkeypatch.setattr(retries, "sleep", note)
    return noted


@pytest.fixture
def before():
    """Return a function that puts a faulty proxy before a server, until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda url, plan, **rules: stack.enter_context(FaultyProxy(urlsplit(url).netloc, plan, **rules))


@pytest.fixture
def proxied(environment, service, before):
    """Return a function that puts a faulty proxy before the service, for clients that ask the environment."""

    def start(plan, **options):
        proxy = before(service.endpoint, plan, **options)
        environment.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        s3_clients._clients.clear()
        return proxy

    return start


class Store:
    """One container of objects, reached not by us; and how urls of ours lead there, through a proxy or not.

    Args:
        scheme: ``gs`` or ``az``.
        container: bucket or container.
        running: the service.
        environment: monkeypatch.
    """

    part_bytes = 256 << 10

    def __init__(self, scheme, container, running, environment):
        self.scheme, self.container, self.running, self.environment = scheme, container, running, environment
        self.proxies = []
        self.use(running.endpoint)

    def url(self, key):
        """Return the url of an object."""
        return f"{self.scheme}://{self.container}/{key}"

    def gated(self):
        """Return the endpoint that a proxy is put before."""
        return self.running.endpoint

    def proxied(self, plan, **options):
        """Put a faulty proxy before the service."""
        parts = urlsplit(self.gated())
        proxy = FaultyProxy(parts.netloc, plan, **options).__enter__()
        self.proxies.append(proxy)
        self.use(proxy.url + parts.path, proxied=True)
        return proxy


class Gs(Store):
    """A bucket of fake-gcs-server."""

    def gated(self, **options):
        """Put a gate before the service, which knows how much of an upload is there."""
        gate = gcs_server.Gate(urlsplit(self.running.endpoint).netloc, **options).__enter__()
        self.proxies.append(gate)
        self.use(gate.url)
        return gate.url

    def use(self, endpoint, *, proxied=False):
        """Ask this endpoint."""
        self.environment.setenv("STORAGE_EMULATOR_HOST", endpoint)

    def _ask(self, path, content=None, method=None):
        request = urllib.request.Request(self.running.endpoint + path, content, method=method)
        with urllib.request.urlopen(request) as answer:
            return answer.read()

    def put(self, key, body):
        """Put an object there; return its url."""
        name = quote(key, safe="")
        self._ask(f"/upload/storage/v1/b/{self.container}/o?uploadType=media&name={name}", body, "POST")
        return self.url(key)

    def get(self, key):
        """Return an object's content, or None."""
        try:
            return self._ask(f"/storage/v1/b/{self.container}/o/{quote(key, safe='')}?alt=media")
        except urllib.error.HTTPError as error:
            error.close()
            return None

    def facts(self, key):
        """Return what the service says about an object."""
        return json.loads(self._ask(f"/storage/v1/b/{self.container}/o/{quote(key, safe='')}"))

    def delete(self, key):
        """Remove an object."""
        self._ask(f"/storage/v1/b/{self.container}/o/{quote(key, safe='')}", method="DELETE")


class Azure(Store):
    """A container of azurite."""

    def use(self, endpoint, *, proxied=False):
        """Ask this endpoint; through a proxy with a signature in the address: it leaves out headers that are signed."""
        blob = pytest.importorskip("azure.storage.blob")
        string = azure_server.connection_string(endpoint)
        self.client = blob.ContainerClient.from_connection_string(
            azure_server.connection_string(self.running.endpoint), self.container
        )
        if proxied:
            sas = blob.generate_container_sas(
                azure_server.ACCOUNT, self.container, account_key=azure_server.KEY, permission="rwdl",
                expiry=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1),
            )  # fmt: skip
            string = f"BlobEndpoint={endpoint};SharedAccessSignature={sas}"
        self.environment.setenv("AZURE_STORAGE_CONNECTION_STRING", string)

    def put(self, key, body):
        """Put a blob there; return its url."""
        self.client.upload_blob(key, body, overwrite=True)
        return self.url(key)

    def get(self, key):
        """Return a blob's content, or None."""
        blob = self.client.get_blob_client(key)
        return blob.download_blob().readall() if blob.exists() else None

    def delete(self, key):
        """Remove a blob."""
        self.client.delete_blob(key)


@pytest.fixture(scope="session")
def gcs(tmp_path_factory, request):
    """fake-gcs-server with the buckets ``shards`` and ``kept``, which keeps old generations."""
    installed(gcs_server.program)
    with gcs_server.shared_gcs(folder_of_run(tmp_path_factory, request) / "gcs") as running:
        gcs_server.create_bucket(running.endpoint, "shards")
        gcs_server.create_bucket(running.endpoint, "kept", versioned=True)
        yield running


@pytest.fixture(scope="session")
def azurite(tmp_path_factory, request):
    """Azurite with the containers ``shards``, and ``open``, whose blobs everybody may read."""
    blob = pytest.importorskip("azure.storage.blob")
    exists = pytest.importorskip("azure.core.exceptions").ResourceExistsError
    installed(azure_server.program)
    with azure_server.shared_azure(folder_of_run(tmp_path_factory, request) / "azure") as running:
        with blob.BlobServiceClient.from_connection_string(azure_server.connection_string(running.endpoint)) as client:
            for name, access in (("shards", None), ("open", "container")):
                try:
                    client.create_container(name, public_access=access)
                except exists:
                    pass
        yield running


def lent(kind, request, monkeypatch):
    """Lend a store, in the environment of somebody who uses it and nothing else."""
    for name in [
        name for name in os.environ if name.startswith(("AZURE_", "GOOGLE_", "STORAGE_EMULATOR", "CLOUDSDK_"))
    ]:
        monkeypatch.delenv(name)
    running = request.getfixturevalue({"gs": "gcs", "az": "azurite"}[kind])
    made = {"gs": Gs, "az": Azure}[kind](kind, "shards", running, monkeypatch)
    yield made
    for proxy in made.proxies:
        proxy.__exit__()


@pytest.fixture(params=["gs", "az"])
def store(request, monkeypatch):
    """A bucket of fake-gcs-server, and a container of azurite."""
    yield from lent(request.param, request, monkeypatch)


@pytest.fixture
def gs(request, monkeypatch):
    """A bucket of fake-gcs-server."""
    yield from lent("gs", request, monkeypatch)


@pytest.fixture
def az(request, monkeypatch):
    """A container of azurite."""
    yield from lent("az", request, monkeypatch)


@pytest.fixture(scope="session")
def started(tmp_path_factory, request):
    """Return a function from the name of a scheme to its running server, started when it is first asked for."""
    from support import scheme_servers
    from support.schemes import Folder
    from webdataset.core.errors import MissingExtra

    pytest.importorskip("trustme")
    own = tmp_path_factory.mktemp("schemes")
    made: dict[str, Any] = {}
    folder = Folder(own, folder_of_run(tmp_path_factory, request), *scheme_servers.certified(own))
    worker = f"matrix-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
    with contextlib.ExitStack() as stack:

        def start(name):
            if name not in made:
                try:
                    made[name] = stack.enter_context(scheme_servers.running(name, folder, worker))
                except (NotFound, MissingExtra) as error:
                    made[name] = str(error)
            if isinstance(made[name], str):
                pytest.skip(made[name])
            return made[name]

        yield start


@pytest.fixture
def scheme_of(started, monkeypatch, tmp_path):
    """Return a function as ``started``, in the environment of somebody who uses the scheme and nothing else."""
    from webdataset.storage import http_client
    from webdataset.storage.backends import sftp_client

    def clear():
        http_client._pools.clear()
        s3_clients._clients.clear()

    private = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR", "CLOUDSDK_", "HF_", "HUGGING_FACE_", "AIS_", "WDS_")
    others = ("http_proxy", "https_proxy", "all_proxy", "requests_ca_bundle", "ssl_cert_dir", "ssh_auth_sock")
    for name in [name for name in os.environ if name.startswith(private) or name.lower() in others]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "HF_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    clear()

    def get(name):
        scheme = started(name)
        monkeypatch.setenv("SSL_CERT_FILE", str(scheme.folder.authority))
        for variable, value in scheme.environment.items():
            monkeypatch.setenv(variable, value)
        return scheme

    yield get
    clear()
    for login in list(sftp_client._sessions):
        sftp_client.run_coroutine(sftp_client.drop_session(login), 10)
    from support.schemes_local import forget_far

    forget_far()
