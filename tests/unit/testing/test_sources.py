"""Web servers of tests: started and stopped, ranges, TLS."""

import contextlib
import http.client
import socket
import ssl
import threading
import urllib.request

import pytest

from webdataset.testing.sources import Answering, Listening

BODY = bytes(range(200))


class Parts(Answering):
    """Sends a body, or the part of it that is asked for."""

    def do_GET(self):
        """Send it."""
        wanted = self.wanted(len(BODY))
        if wanted is None:
            self.send(200, BODY, X_Rules=str(self.server.rules))
        else:
            self.send(206 if wanted else 416, BODY[wanted.start : wanted.stop])

    do_HEAD = do_GET


def asked(server, method="GET", **headers):
    """Ask a server; return status, headers and body."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request(method, "/", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def test_it_serves_until_it_is_stopped():
    """In a thread, which is gone afterwards, as is the port; stopping twice is stopping."""
    before = threading.active_count()
    with Listening(Parts, "known", host="localhost", more=5) as server:
        assert server.url == f"http://localhost:{server.port}"
        assert server.more == 5
        status, headers, body = asked(server)
        assert (status, headers["X-Rules"], body) == (200, "known", BODY)
        assert asked(server, "HEAD")[1]["Content-Length"] == "200"
        assert asked(server, "HEAD")[2] == b""
    server.stop()
    assert threading.active_count() <= before + 1  # a connection's thread may be about to end
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), 5)


@pytest.mark.parametrize(
    ("range_", "status", "body"),
    [("bytes=0-9", 206, BODY[:10]), ("bytes=190-", 206, BODY[190:]), ("bytes=190-999", 206, BODY[190:]),
     ("bytes=200-", 416, b""), ("bytes=5-4", 416, b""), ("lines=1-2", 200, BODY)],
)  # fmt: skip
def test_ranges(range_, status, body):
    """The part that is asked for, as far as there is one; what is no range is not heeded."""
    with Listening(Parts) as server:
        found = asked(server, Range=range_)
    assert (found[0], found[2]) == (status, body)


def test_clients_that_go_away(capfd):
    """Nothing is said about a client that resets its connection."""
    with Listening(Parts) as server:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port), 5) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        assert asked(server)[0] == 200
    assert capfd.readouterr().err == ""


def test_over_tls(tmp_path):
    """With the certificate that was given."""
    trustme = pytest.importorskip("trustme")
    authority, both = trustme.CA(), tmp_path / "both.pem"
    issued = authority.issue_cert("127.0.0.1")
    both.write_bytes(issued.private_key_pem.bytes() + issued.cert_chain_pems[0].bytes())
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with Listening(Parts).secure(both) as server:
        assert server.url.startswith("https://")
        with urllib.request.urlopen(server.url, context=trusting) as answer:
            assert answer.read() == BODY
