"""Bodies that are read from their socket: equal bytes, connections that are used again, and failures as before."""

import contextlib
import io
import queue
import re
import socket
import ssl
import sys
import threading
import time

import pytest

from webdataset.core.seeds import make_rng
from webdataset.storage import http_client, http_object, retries
from webdataset.storage.backends.http import HttpStream
from webdataset.storage.http_object import SocketBody, find_socket_body
from webdataset.storage.object_store import LosslessBody

BODY = make_rng("socket", 0).randbytes(700_000)
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads gather on Linux alone")


class Server:
    """Answers each request over a bare socket, by a function of the connection and the bytes that are wanted."""

    def __init__(self, send, context=None):
        self.send, self.context, self.asked, self.connections = send, context, [], 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.port}/x.tar"
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.over = threading.Event()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        # a listener that is only closed goes on accepting in the other thread
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)

    def serve(self):
        """Take connections."""
        with contextlib.suppress(OSError):
            while True:
                line, _ = self.listener.accept()
                self.connections += 1
                threading.Thread(target=self.talk, args=(line,), daemon=True).start()

    def talk(self, line):
        """Answer the requests of a connection."""
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            stack.enter_context(line)
            if self.context is not None:
                line = stack.enter_context(self.context.wrap_socket(line, server_side=True))
            held = b""
            while True:
                while b"\r\n\r\n" not in held:
                    piece = line.recv(65536)
                    if not piece:
                        return
                    held += piece
                request, _, held = held.partition(b"\r\n\r\n")
                found = re.search(rb"[Rr]ange: bytes=(\d+)-", request)
                self.asked.append(int(found[1]) if found else 0)
                if self.send(self, line, self.asked[-1]) is False:
                    return


def head(start, length=len(BODY), extra=""):
    """The head of an answer that holds a body from a byte on."""
    kind = f"206 Partial Content\r\nContent-Range: bytes {start}-{length - 1}/{length}" if start else "200 OK"
    return f'HTTP/1.1 {kind}\r\nContent-Length: {length - start}\r\nETag: "1"\r\n{extra}\r\n'.encode()


def read_all(url, sizes, seed=0, **options):
    """The bytes of an object, in reads of some sizes, and the stream."""
    rng, pieces = make_rng("reads", seed), []
    with HttpStream(url, **options) as stream:
        while piece := stream.read(rng.choice(sizes)):
            pieces.append(piece)
        return b"".join(pieces), stream


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """A context for servers, and the file of what to trust."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    trusted = tmp_path_factory.mktemp("tls") / "trusted.pem"
    authority.cert_pem.write_to_path(str(trusted))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context, str(trusted)


SIZES = [[1, 100, 8191], [8192, 8193], [393_216], [32_768, 65_536, 131_072], [5 << 20]]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("split", [1, 150, 5000, 1 << 20])
def test_equal_bytes_over_one_connection(sizes, split):
    """Whatever is read at once, and however headers and body arrive, bytes are equal and connections are used again."""

    def send(_server, line, start):
        content = head(start) + BODY[start:]
        line.sendall(content[:split])
        line.sendall(content[split:])

    with Server(send) as server:
        for seed in range(3):
            assert read_all(server.url, sizes, seed)[0] == BODY
        assert (server.connections, server.asked) == (1, [0, 0, 0])


@pytest.mark.parametrize("sizes", SIZES)
def test_equal_bytes_over_tls(sizes, certified):
    """The same over TLS, where bytes are in records and the socket alone tells nothing."""
    context, trusted = certified

    def send(_server, line, start):
        line.sendall(head(start) + BODY[start:])

    with Server(send, context) as server:
        for seed in range(2):
            assert read_all(server.url, sizes, seed, storage_options={"verify": trusted})[0] == BODY
        assert server.connections == 1


def test_a_socket_goes_back_as_it_came():
    """Whoever gets the connection next finds the bound on silence that its socket had."""

    def send(_server, line, start):
        line.sendall(head(start) + BODY[start:])

    with Server(send) as server:
        response = answered(server, 20.0)
        line = response._fp.fp.raw._sock
        body = find_socket_body(response)
        assert isinstance(body, SocketBody)
        assert b"".join(iter(lambda: body.read(100_000), b"")) == BODY
        assert line.gettimeout() == 20.0


def test_a_short_answer_after_a_long_read():
    """A connection that waited for many bytes does not wait for as many of the next headers, nor for ever."""
    bodies = iter([BODY, b"abc", BODY])

    def send(_server, line, _start):
        content = next(bodies)
        line.sendall(head(0, len(content)) + content)

    with Server(send) as server:
        assert read_all(server.url, [393_216], read_seconds=20.0)[0] == BODY
        assert read_all(server.url, [393_216], read_seconds=20.0)[0] == b"abc"
        assert read_all(server.url, [393_216], read_seconds=20.0)[0] == BODY
        assert server.connections == 1


def test_the_bound_on_silence_is_that_of_each_answer():
    """A connection that comes from the pool waits as long as its present reader wants to, not as the one before."""
    answers, seen = iter([False, True, True]), queue.SimpleQueue()

    def send(_server, line, start):
        silent = next(answers) and not start
        line.sendall(head(start) + BODY[start : 300_000 if silent else len(BODY)])
        if silent:
            line.settimeout(15)
            try:
                seen.put(line.recv(1))
            except TimeoutError:
                seen.put("the reader still waits")
        return not silent

    with Server(send) as server:
        assert read_all(server.url, [393_216], read_seconds=60.0)[0] == BODY
        assert read_all(server.url, [393_216], read_seconds=0.3)[0] == BODY
        assert server.asked == [0, 0, 300_000]
        # the server's thread may learn it after the reader is done
        assert seen.get(timeout=30) == b""


@pytest.mark.parametrize("silent", [300_000, len(BODY) - 1])
def test_what_came_before_a_silence_is_used(silent):
    """A read that waits for more than comes gives what there is; the rest is requested from there on."""

    def send(server, line, start):
        if not start:
            line.sendall(head(0) + BODY[:silent])
            server.over.wait(30)
            return False
        line.sendall(head(start) + BODY[start:])
        return True

    with Server(send) as server:
        content, stream = read_all(server.url, [393_216], read_seconds=0.3)
        assert content == BODY
        assert (server.asked, stream.resumes) == ([0, silent], 1)


def test_a_line_that_drips_is_no_silence():
    """Bytes that come slower than a read wants them, but come, are progress: nothing is requested again."""
    size = 400_000

    def send(_server, line, _start):
        line.sendall(head(0, size))
        for place in range(0, size, 50_000):
            time.sleep(0.25)
            line.sendall(BODY[place : min(size, place + 50_000)])

    with Server(send) as server:
        assert read_all(server.url, [393_216], read_seconds=0.6)[0] == BODY[:size]
        assert server.asked == [0]


@pytest.mark.parametrize("stop", [1, 100, 20_000, len(BODY) - 1])
@pytest.mark.parametrize("reset", [False, True])
def test_an_early_end_is_taken_up(stop, reset):
    """A connection that ends in the middle, in either way, is no end of the body."""

    def send(_server, line, start):
        if start:
            line.sendall(head(start) + BODY[start:])
            return True
        line.sendall(head(0) + BODY[:stop])
        if reset:
            time.sleep(0.1)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        return False

    with Server(send) as server:
        content, stream = read_all(server.url, [393_216])
        assert content == BODY
        assert stream.resumes == 1
        assert server.asked[0] == 0
        assert server.asked[1] <= stop
        if not reset:
            assert server.asked[1] == stop


def test_bytes_after_the_body_are_not_read():
    """A server that sends more than it promised does not lengthen the body."""

    def send(_server, line, _start):
        line.sendall(head(0, 300_000, "Connection: close\r\n") + BODY)
        return False

    with Server(send) as server:
        assert read_all(server.url, [393_216])[0] == BODY[:300_000]


def answered(server, read_seconds=20.0):
    """An answer, its body unread."""
    transport = http_client.Transport((20.0, read_seconds))
    return http_client.send_once("GET", server.url, {}, server.url, transport=transport)


def test_an_early_end_is_never_quiet():
    """Where not even the length of the object is known, the body itself says that it is not whole."""

    def send(_server, line, _start):
        line.sendall(head(0) + BODY[:500_000])
        return False

    with Server(send) as server:
        body = find_socket_body(answered(server))
        assert isinstance(body, SocketBody)
        whole = LosslessBody(body, http_client.failures())
        assert whole.read(1 << 20) == BODY[:500_000]
        with pytest.raises(http_client.failures(), match="500000"):
            whole.read(1 << 20)


def test_a_read_that_waits_can_be_woken():
    """Another thread lets a read fail that would wait for a minute: what came is given, then that it is not whole."""

    def send(server, line, _start):
        line.sendall(head(0) + BODY[:400_000])
        server.over.wait(90)
        return False

    with Server(send) as server:
        whole = LosslessBody(find_socket_body(answered(server, 60.0)), http_client.failures())
        waker = threading.Timer(0.5, whole.shutdown)
        waker.start()
        assert whole.read(1 << 20) == BODY[:400_000]
        # one that was not woken says after a minute that its time is over
        with pytest.raises(http_client.failures(), match="400000 bytes read"):
            whole.read(1 << 20)
        waker.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"Content-Length: 5\r\n\r\nhello",
        b"Connection: close\r\n\r\nhello",
    ],
)
def test_other_bodies_keep_their_layers(answer):
    """A body without a length is read through the layers that know where it ends, and a short one too."""

    def send(_server, line, _start):
        line.sendall(b"HTTP/1.1 200 OK\r\n" + answer)
        return False

    with Server(send) as server:
        response = answered(server)
        assert find_socket_body(response) is response
        assert response.read(100) == b"hello"


@linux
@pytest.mark.parametrize("buffer_bytes", [8 << 10, 128 << 10], ids=["Python 3.13", "Python 3.14"])
def test_a_read_waits_for_all_of_its_bytes_once(monkeypatch, buffer_bytes):
    """One call of the system gives what many would give, also where http.client's buffer is larger than a read."""
    monkeypatch.setattr(io, "DEFAULT_BUFFER_SIZE", buffer_bytes)
    counted = []

    def send(_server, line, start):
        for place in range(0, len(BODY), 7000):
            line.sendall((head(start) if not place else b"") + BODY[place : place + 7000])
            time.sleep(0.0005)

    with Server(send) as server:
        body = find_socket_body(answered(server))
        while piece := body.read(100_000):
            counted.append(len(piece))
    assert sum(counted) == len(BODY)
    assert len(counted) < 12


@linux
def test_a_system_that_knows_no_bound_gives_what_there_is(monkeypatch):
    """Where a socket cannot be told how long to wait, its reads give what has come; the bytes are the same."""

    def send(_server, line, start):
        line.sendall(head(start) + BODY[start:])

    # no option of any socket
    monkeypatch.setattr(http_object.socket, "SO_RCVTIMEO", 0x7FFF_FFFF)
    with Server(send) as server:
        assert read_all(server.url, [393_216])[0] == BODY
        assert read_all(server.url, [393_216])[0] == BODY
        assert server.connections == 1


class Unreliable:
    """Sends what a seed says: pieces of any size, silences, cuts, resets, bytes after the end, bodies of any kind."""

    def __init__(self, seed):
        self.rng = make_rng("unreliable", seed)
        # one after another: what a seed does must not depend on how threads run
        self.lock = threading.Lock()
        self.faults = self.rng.randrange(6)

    def __call__(self, server, line, start):
        with self.lock:
            return self.answer(server, line, start)

    def answer(self, server, line, start):
        """Send an answer; while faults are left, perhaps not the whole, or more."""
        rng = self.rng
        kind = rng.choice(
            ["whole", "cut", "reset", "silence", "longer", "chunked", "refused"] if self.faults else ["whole"]
        )
        self.faults -= kind != "whole"
        rest = len(BODY) - start
        if kind == "refused":
            line.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
            return True
        if kind == "chunked":
            places = sorted({start, *(rng.randrange(start, len(BODY)) for _ in range(5)), len(BODY)})
            first = head(start).replace(b"Content-Length: %d\r\n" % rest, b"Transfer-Encoding: chunked\r\n")
            pieces = [BODY[low:high] for low, high in zip(places, places[1:], strict=False)]
            content = first + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        else:
            content = head(start) + BODY[start:]
        whole = kind in {"whole", "longer", "chunked"}
        content = content if whole else content[: len(content) - rng.randrange(1, rest + 1)]
        content += rng.randbytes(rng.randrange(1, 9000)) if kind == "longer" else b""
        place, widest = 0, rng.choice([3000, 40_000, 300_000])
        while place < len(content):
            size = rng.randrange(1, widest)
            line.sendall(content[place : place + size])
            place += size
            if rng.randrange(8) == 0:
                time.sleep(rng.random() * 0.01)
        if kind == "silence":
            server.over.wait(0.6)
        if kind == "reset" and not isinstance(line, ssl.SSLSocket):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        return whole


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("seed", range(12))
def test_no_byte_differs_however_a_server_behaves(seed, secure, certified, monkeypatch):
    """Objects that are read one after the other from a server with a few faults come whole, and equal."""
    sleep = retries.sleep
    monkeypatch.setattr(retries, "sleep", lambda seconds: sleep(seconds / 50))
    context, trusted = certified if secure else (None, None)
    options = {"storage_options": {"verify": trusted}} if secure else {}
    rng = make_rng("unreliable reader", seed)
    with Server(Unreliable(seed), context) as server:
        for turn in range(4):
            sizes = rng.choice(SIZES[1:])
            assert read_all(server.url, sizes, turn, read_seconds=0.4, **options)[0] == BODY, (seed, turn)
