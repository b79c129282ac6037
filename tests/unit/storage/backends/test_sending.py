"""Bodies that are held back until they are wanted."""

import io
import socket
import threading

import pytest

from webdataset.storage.backends import aistore_client


@pytest.fixture
def server():
    """Return a function that runs a server for one connection: it gets the connection."""
    listening = socket.create_server(("127.0.0.1", 0))
    threads = []

    def start(serve):
        def run():
            connection, _ = listening.accept()
            with connection:
                serve(connection)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}/x?y=z"

    yield start
    for thread in threads:
        thread.join(10)
    listening.close()


def put(url, body, **options):
    """Send a body."""
    return aistore_client.put_file(url, {"A": "b"}, io.BytesIO(body), len(body), {}, seconds=10, **options)


def test_an_early_answer_saves_the_body(server, monkeypatch):
    """Headers only are sent."""
    monkeypatch.setattr(aistore_client, "ANSWER_SECONDS", 60.0)  # on a busy machine the server may take long
    seen, ended = [], threading.Event()

    def serve(connection):
        seen.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 307 Go\r\nLocation: http://there/\r\nContent-Length: 0\r\n\r\n")
        seen.append(connection.recv(65536))
        ended.set()

    reply = put(server(serve), b"body" * 1000, asking=True)
    assert ended.wait(60)
    assert (reply.status, reply.headers["Location"]) == (307, "http://there/")
    assert seen[0].startswith(b"PUT /x?y=z HTTP/1.1\r\n")
    assert b"Content-Length: 4000" in seen[0]
    assert seen[1] == b""


@pytest.mark.parametrize("asking", [False, True])
def test_a_server_that_waits_gets_the_body(server, monkeypatch, asking):
    """Without an answer to the headers, or without asking for one."""
    monkeypatch.setattr(aistore_client, "ANSWER_SECONDS", 0.05)
    seen = bytearray()

    def serve(connection):
        while not seen.endswith(b"the end"):
            seen.extend(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    body = bytes(3_000_000) + b"the end"
    assert put(server(serve), body, asking=asking).status == 200
    assert seen.endswith(body)


def test_a_server_that_goes_away(server):
    """An error of the connection, which the caller may answer by trying again."""
    url = server(lambda connection: connection.recv(10))
    with pytest.raises((OSError, aistore_client.http.client.HTTPException)):
        put(url, bytes(10_000_000), asking=False)
