"""What a newcomer meets: keys that are corrected, services that come back, mistakes that should say how to go on."""

import hashlib
import os
import socket
import threading

import pytest

import webdataset as wds
from support import s3_server
from webdataset.core.errors import ConfigError, NotFound, SourceError, UsageError

BODY = hashlib.shake_256(b"stranger").digest(700_000)
FOLDER = f"stranger-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
URL = f"s3://shards/{FOLDER}/object"


def raw_server(answer, family=socket.AF_INET):
    """Serve connections by ``answer(request, connection)`` in threads; return the listening socket."""
    listener = socket.socket(family)
    listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    listener.listen()

    def one(connection):
        with connection:
            request = b""
            while b"\r\n\r\n" not in request and (piece := connection.recv(65536)):
                request += piece
            if request:
                answer(request.decode("latin-1"), connection)

    def run():
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=run, daemon=True).start()
    return listener


@pytest.fixture
def served():
    """Return a function that answers every request in one way; it gives the address."""
    listeners = []

    def start(answer, family=socket.AF_INET):
        listeners.append(raw_server(answer, family))
        return listeners[-1].getsockname()[:2]

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def said(status, headers=(), body=b""):
    """Return what answers with a status."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    content = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    return lambda _, connection: connection.sendall(content)


@pytest.fixture
def object_(client):
    """An object of S3."""
    client.put_object(Bucket="shards", Key=f"{FOLDER}/object", Body=BODY)


@pytest.mark.usefixtures("object_")
def test_keys_that_were_corrected_are_taken_up_without_a_new_process(environment):
    """Wrong keys, no keys, and then the right ones in the environment, as in a notebook."""
    from webdataset.storage.backends import s3_client

    for name, text in (("AWS_SECRET_ACCESS_KEY", "wrong"), ("AWS_ACCESS_KEY_ID", "AKIDNOBODY")):
        right = os.environ[name]
        environment.setenv(name, text)
        s3_client._clients.clear()
        with pytest.raises(SourceError, match="SignatureDoesNotMatch|InvalidAccessKeyId"):
            wds.gopen(URL)
        with pytest.raises(SourceError, match="SignatureDoesNotMatch|InvalidAccessKeyId"):
            wds.expand_urls(f"s3://shards/{FOLDER}/")
        environment.setenv(name, right)
        assert wds.expand_urls(f"s3://shards/{FOLDER}/") == [URL]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name)
    s3_client._clients.clear()
    with pytest.raises(SourceError, match="no credentials were found"):
        wds.gopen(URL)
    environment.setenv("AWS_ACCESS_KEY_ID", s3_server.WRITER[0])
    environment.setenv("AWS_SECRET_ACCESS_KEY", s3_server.WRITER[1])
    with wds.gopen(URL) as stream:
        assert stream.read() == BODY


@pytest.mark.usefixtures("object_", "waits")
def test_keys_that_are_replaced_while_a_shard_is_read_are_looked_up_again(proxied, environment):
    """The service knows the old key no more; a file has the new one by then."""
    from support.proxy import Fault, planned
    from webdataset.storage.backends import s3_client

    proxied(planned([Fault("cut", 100_000)]))
    with wds.gopen(URL) as stream:
        begun = stream.read(1000)
        made = s3_client.client_for(stream._source.place.profile, URL)
        made._request_signer._credentials.secret_key = "no longer valid"  # the service would know the new one
        assert begun + stream.readall() == BODY


@pytest.mark.usefixtures("object_")
def test_a_service_that_refuses_connections_is_asked_again(environment, service, monkeypatch):
    """A gateway of S3 that is started anew, just when a shard is opened: nobody listens for a while."""
    from webdataset.storage import retries
    from webdataset.storage.backends import s3_client

    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        address = placeholder.getsockname()
    started = []
    host, port = service.endpoint.removeprefix("http://").split(":")

    def forward(request, connection):
        with socket.create_connection((host, int(port))) as behind:
            behind.sendall(request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").encode("latin-1"))
            while piece := behind.recv(65536):
                connection.sendall(piece)

    def wait(_seconds):
        if not started:
            started.append(socket.socket())
            started[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            started[0].bind(address)
            started[0].listen()

            def one():
                connection = started[0].accept()[0]
                with connection:
                    forward(connection.recv(65536).decode("latin-1"), connection)

            threading.Thread(target=one, daemon=True).start()

    environment.setenv("AWS_ENDPOINT_URL_S3", "http://%s:%d" % address)
    s3_client._clients.clear()
    monkeypatch.setattr(retries, "sleep", wait)
    try:
        with wds.gopen(URL) as stream:
            assert stream.read(-1) == BODY
    finally:
        for listener in started:
            listener.close()
    assert started


@pytest.mark.parametrize(
    ("status", "code", "headers", "hint"),
    [
        ("301 Moved", "PermanentRedirect", ["x-amz-bucket-region: eu-west-1"], "another region.*'eu-west-1'"),
        ("403 Forbidden", "InvalidObjectState", [], "restore it"),
    ],
)
def test_what_s3_refuses_says_what_to_do(environment, served, status, code, headers, hint):
    """A bucket of another region, an object in an archive."""
    from webdataset.storage.backends import s3_client

    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    environment.setenv("AWS_ENDPOINT_URL_S3", "http://%s:%d" % served(said(status, headers, body)))
    s3_client._clients.clear()
    with pytest.raises(SourceError, match=hint):
        wds.gopen(URL)


def test_a_signature_is_not_taken_for_a_wildcard(monkeypatch):
    """The address of a blob with its signature, as portals give it out."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    with pytest.raises(UsageError, match="does not belong in a url") as caught:
        wds.WebDataset("az://shards/train-000000.tar?sv=2020&sig=SECRET")
    assert "SECRET" not in str(caught.value)


def test_a_file_of_google_credentials_that_is_not_there(monkeypatch):
    """The error names the file."""
    pytest.importorskip("google.auth")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    with pytest.raises(ConfigError, match=r"/nosuch\.json.*No such file"):
        wds.gopen("gs://bucket/key", storage_options={"credentials": "/nosuch.json"})


def test_ipv6(served, tmp_path):
    """Colons of an address do not separate urls."""
    with wds.TarWriter(str(tmp_path / "x.tar")) as sink:
        sink.write({"__key__": "a", "txt": "b"})
    port = served(said("200 OK", body=(tmp_path / "x.tar").read_bytes()), socket.AF_INET6)[1]
    urls = f"http://[::1]:{port}/{{0..1}}.tar"
    assert [sample["__key__"] for sample in wds.WebDataset(f"{urls}::{tmp_path}/x.tar", shardshuffle=False)] == [
        "a"
    ] * 3


def test_a_proxy_that_refuses(served, monkeypatch):
    """No attempt after attempt: the error names the variable; nor does a url that makes no sense show its password."""
    for name in ("no_proxy", "NO_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    asked = []

    def refuse(request, connection):
        asked.append(request)
        said("407 Proxy Authentication Required")(request, connection)

    monkeypatch.setenv("https_proxy", "http://me:SECRET@%s:%d" % served(refuse))
    with pytest.raises(SourceError, match="HTTPS_PROXY") as caught:
        wds.gopen("https://example.org/x.tar")
    assert len(asked) == 1
    assert "SECRET" not in str(caught.value)
    monkeypatch.setenv("https_proxy", "http://me:SECRET@[::1")
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as caught:
        wds.gopen("https://example.org/x.tar")
    assert "SECRET" not in repr(vars(caught.value))


def test_certificates_that_are_not_there(monkeypatch, tmp_path):
    """The file is named, at once; a folder of certificates will do."""
    with pytest.raises(ConfigError, match=r"verify.*/nosuch\.pem"):
        wds.gopen("https://127.0.0.1:1/x.tar", storage_options={"verify": "/nosuch.pem"})
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nosuch.pem")
    with pytest.raises(ConfigError, match=r"REQUESTS_CA_BUNDLE.*/nosuch\.pem"):
        wds.gopen("https://127.0.0.1:1/x.tar")
    from webdataset.storage.backends.http import HttpSession

    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path))
    assert HttpSession("https://host/x")._tls == (("ca_cert_dir", str(tmp_path)),)
    assert HttpSession("http://host/x")._tls == ()


def test_what_web_servers_refuse(served):
    """A status of uploads is not explained by uploads where something was read; wildcards are not known to the web."""
    address = "http://%s:%d" % served(said("405 Method Not Allowed"))
    with pytest.raises(SourceError, match="405") as caught:
        wds.gopen(f"{address}/x.tar")
    assert "PUT" not in str(caught.value)
    with pytest.raises(SourceError, match="uploads by PUT"), wds.gopen(f"{address}/x.tar", "wb") as stream:
        stream.write(b"x")
    address = "http://%s:%d" % served(said("404 Not Found"))
    with pytest.raises(NotFound, match=r"\{000\.\.099\}"):
        wds.gopen(f"{address}/train-*.tar")
    with pytest.raises(NotFound) as caught:
        wds.gopen(f"{address}/train.tar?x=*")
    assert "000..099" not in str(caught.value)


@pytest.mark.parametrize(
    "query", ["X-Amz-Signature=SECRET&X-Amz-Expires=60", "Expires=1&Signature=SECRET", "sv=1&sig=SECRET"]
)
def test_a_signature_that_has_expired(served, query):
    """The error says so, and does not show it."""
    address = "http://%s:%d" % served(said("403 Forbidden"))
    with pytest.raises(SourceError, match="signature may have expired") as caught:
        wds.gopen(f"{address}/x.tar?{query}")
    assert "SECRET" not in str(caught.value) + repr(caught.value)
    assert caught.value.url == f"{address}/x.tar?{query}"
    with pytest.raises(SourceError, match="check the credentials"):
        wds.gopen(f"{address}/x.tar")


def test_a_folder_on_a_web_server_is_refused():
    """It has no list, and is no directory of this machine that could be waited for."""
    with pytest.raises(UsageError, match="write the shards' urls out"):
        wds.WebDataset("https://example.org/train/")
