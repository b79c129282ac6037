"""Forks while threads speak TLS: no child inherits a lock of OpenSSL that nobody will ever open."""

import multiprocessing
import os
import signal
import ssl
import threading
import time
from types import SimpleNamespace

import pytest

import webdataset as wds
from support.after_forks import ended, forked
from support.scheme_servers import certified
from webdataset.storage import http_client
from webdataset.testing.sources import Answering, Listening

# half of them for each way; scripts/test_all.py forks ten times as often
FORKS = int(os.environ.get("TLS_FORKS", "200"))
BODY = bytes(range(256)) * 100


class Whole(Answering):
    """Gives the object, and closes: every request has a handshake of its own."""

    def do_GET(self):
        """Answer."""
        self.send(200, BODY, ETag='"1"', Connection="close")
        self.close_connection = True


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate, and who signed it."""
    pytest.importorskip("trustme")
    return certified(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def server(certificate, monkeypatch):
    """A server over TLS."""
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
    # in a process of its own: its threads are within OpenSSL, too, and no fork waits for them
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=serve, args=(str(certificate[0]), far), daemon=True)
    process.start()
    yield SimpleNamespace(url=near.recv())
    process.kill()
    process.join()


def serve(certificate, line):
    """Serve until the end of the process; say where."""
    with Listening(Whole).secure(certificate) as running:
        line.send(running.url)
        threading.Event().wait()


def read(url, **options):
    """Read an object."""
    with wds.gopen(url, **options) as stream:
        return stream.read() == BODY


def outcome(child, seconds=20):
    """Return how a child ended; ``hangs`` where it did not."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGALRM)  # it shows where it stands, and ends
    ended(child)
    return "hangs"


@pytest.mark.parametrize("way", ["one context", "a context each time"])
@pytest.mark.timeout(1200)
def test_forks_while_threads_read(server, certificate, way):
    """Children forked at any moment read over TLS themselves; also where contexts are made again and again."""
    url, stop = f"{server.url}/x.tar", threading.Event()
    wrong = []

    def reads():
        while not stop.is_set():
            if way != "one context":
                forget()
            if not read(url):
                wrong.append(1)

    threads = [threading.Thread(target=reads, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()

    def child():
        forget()
        return read(url)

    try:
        found = {outcome(forked(child)) for _ in range(FORKS // 2)}
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert found == {0}
    assert not wrong


def forget():
    """Let the next request make its pool and its context anew."""
    http_client._pools.clear()
    contexts = getattr(__import__("webdataset.storage.tls", fromlist=["tls"]), "_contexts", None)
    if contexts is not None:
        contexts.clear()


def test_a_handshake_waits_no_longer_than_said(certificate, monkeypatch):
    """A server that is silent during the handshake: the time is bounded, and forks do not wait for it."""
    import socket

    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/x"
        failed = []

        def reads():
            try:
                read(url, attempts=1, connect_seconds=2.0, read_seconds=2.0)
            except wds.WebDatasetError as error:
                failed.append(str(error))

        thread = threading.Thread(target=reads)
        thread.start()
        line, _ = silent.accept()
        line.recv(1, socket.MSG_PEEK)  # the handshake has begun
        assert ended(forked(lambda: True)) == 0
        assert thread.is_alive()  # the fork did not wait for the other side
        thread.join(30)
        line.close()
    assert len(failed) == 1
    assert "timed out" in failed[0]


@pytest.mark.parametrize("kind", ["name", "authority", "none"])
def test_whom_is_trusted(certificate, server, monkeypatch, tmp_path, kind):
    """Names are compared, foreign authorities refused, and ``verify=False`` trusts everybody."""
    from webdataset.core.errors import SourceError

    if kind == "name":
        authority = pytest.importorskip("trustme").CA()
        made = authority.issue_cert("elsewhere.example")
        authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
        made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
        with Listening(Whole).secure(tmp_path / "server.pem") as other, pytest.raises(SourceError, match="not trusted"):
            read(f"{other.url}/x", storage_options={"verify": str(tmp_path / "authority.pem")})
    elif kind == "authority":
        (other := tmp_path / "other").mkdir()
        with pytest.raises(SourceError, match="not trusted"):
            read(f"{server.url}/x", storage_options={"verify": str(certified(other)[1])})
    else:
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.warns(Warning, match="Unverified"):
            assert read(f"{server.url}/x", storage_options={"verify": False})
    assert ssl.HAS_SNI
