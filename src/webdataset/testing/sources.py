"""Streams that misbehave on purpose (short reads, early ends, failures at the n-th read), and local web servers.

The streams count what was requested; ``RangeServer`` misbehaves in the same ways. Each server runs in a thread and
answers by its handlers: subclasses of :class:`Answering`, or any others of ``http.server``.
"""

import io
import os
import re
import ssl
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

from webdataset.core.seeds import make_rng

_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")


class Listening(ThreadingHTTPServer):
    """A server on a free port of this machine; as a context it runs from the beginning to the end of the block.

    Args:
        answers: the class of the handlers.
        rules: what they should know.
        host: by which name clients are to call it.
        **known: further attributes of the server, for handlers.

    Attributes:
        rules: as given.
        port: where it listens.
        url: ``http://host:port``, or ``https:``.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self, answers: type[BaseHTTPRequestHandler], rules: Any = None, /, *, host: str = "127.0.0.1", **known: Any
    ) -> None:
        super().__init__(("127.0.0.1", 0), answers)
        self.rules = rules
        self.port = int(self.server_address[1])
        self.url = f"http://{host}:{self.port}"
        vars(self).update(known)
        self._thread: Thread | None = None

    def secure(self, certificate: str | os.PathLike[str]) -> Self:
        """Speak TLS from now on.

        Args:
            certificate: a file with certificate and key in PEM.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.url = self.url.replace("http:", "https:", 1)
        return self

    def start(self) -> Self:
        """Begin to serve, in a thread."""
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop, and free the port; nothing happens where that is done already."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self.shutdown()
            thread.join()
        self.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.stop()


class Answering(BaseHTTPRequestHandler):
    """Answers one connection, silently; clients that go away, or are killed, are nothing unusual."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Listening

    def log_message(self, *_: object) -> None:
        """Keep silent."""

    def handle(self) -> None:
        """Serve one connection."""
        try:
            super().handle()
        except OSError:
            self.close_connection = True

    def send(self, status: int, content: bytes = b"", **headers: str) -> None:
        """Send a whole answer; no content follows where the headers alone were asked for.

        Args:
            status: of the answer.
            content: what it brings.
            **headers: names with ``_`` for ``-``; ``Content-Length`` is that of the content, unless given.
        """
        self.send_response(status)
        for name, text in {"Content_Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def wanted(self, length: int) -> range | None:
        """Return the bytes that are asked for: empty where there are none of them, None where no range is named.

        Args:
            length: bytes that there are.
        """
        found = _RANGE.match(self.headers.get("Range", ""))
        return None if found is None else range(int(found[1]), min(int(found[2] or length), length - 1) + 1)


class FaultyStream(io.RawIOBase):
    """A binary stream, not seekable, of unknown length.

    Args:
        payload: what it gives when nothing fails.
        seed: of the sizes of short reads; None for reads as large as asked.
        most: bytes that a short read gives at most.
        ends_at: bytes after which it ends, as if there were no more.
        fails_at: ordinal (from 0) of the read that raises.
        error: what that read raises.

    Attributes:
        reads: number of reads so far.
        given: number of bytes given so far.
    """

    def __init__(
        self,
        payload: bytes,
        *,
        seed: int | None = None,
        most: int = 700,
        ends_at: int | None = None,
        fails_at: int | None = None,
        error: Exception | None = None,
    ) -> None:
        super().__init__()
        self._payload = memoryview(payload)[:ends_at]
        self._rng = None if seed is None else make_rng("reads", seed)
        self._most = most
        self._fails_at = fails_at
        self._error = error
        self.reads = 0
        self.given = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Give some bytes, or fail.

        Args:
            buffer: takes the bytes.

        Returns:
            The number of bytes given; 0 at the end.

        Raises:
            Exception: the error asked for, at the read asked for; an ``OSError`` by default.
        """
        ordinal, self.reads = self.reads, self.reads + 1
        if ordinal == self._fails_at:
            raise self._error if self._error is not None else OSError("the stream failed, as it was told to")
        space = memoryview(buffer).cast("B")
        length = len(space) if self._rng is None else min(len(space), self._rng.randint(1, self._most))
        piece = self._payload[self.given : self.given + length]
        space[: len(piece)] = piece
        self.given += len(piece)
        return len(piece)

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes; all that is left where it is negative."""
        if size is None or size < 0:
            return b"".join(iter(partial(self.read, 1 << 16), b""))
        space = bytearray(size)
        return bytes(space[: self.readinto(space)])


class _Pages(Answering):
    """Serve pages, one for each connection."""

    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        """Answer with the page, or 404."""
        page = self.server.rules.get(self.path)
        self.send(404 if page is None else 200, page or b"")


@contextmanager
def served(pages: dict[str, bytes]) -> Iterator[str]:
    """Serve bytes over HTTP on this machine.

    Args:
        pages: bytes by path (``/x.tar``).

    Yields:
        The url of the root, without a slash at its end.
    """
    with Listening(_Pages, pages) as server:
        yield server.url


class RangeServer:
    """A web server on this machine that knows ranges, counts, and misbehaves as it is told.

    Args:
        pages: bytes by path (``/x.tar``); may be changed while it runs.
        ranges: whether it honours range requests.
        etags: whether it names versions (``ETag``).
        cut: bytes after which it breaks off each of the first ``cuts`` answers.
        cuts: how many answers it breaks off.
        says: headers of partial answers, in place of the right ones.
        greedy: whether it gives all the rest where a part is asked for.

    Attributes:
        root: the url of the root, without a slash at its end.
        asked: (path, ``Range`` header) of each request.
        sent: bytes of body sent.
    """

    def __init__(
        self,
        pages: dict[str, bytes],
        *,
        ranges: bool = True,
        etags: bool = True,
        cut: int = 0,
        cuts: int = 0,
        says: dict[str, str] | None = None,
        greedy: bool = False,
    ) -> None:
        self.says, self.greedy = says or {}, greedy
        self.pages, self.ranges, self.etags, self.cut, self.cuts = pages, ranges, etags, cut, cuts
        self.root = ""
        self.asked: list[tuple[str, str | None]] = []
        self.sent = 0

    def __enter__(self) -> Self:
        self._server = Listening(_Parts, self).start()
        self.root = self._server.url
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.stop()


class _Parts(Answering):
    """Serve the pages of a :class:`RangeServer`, whole or in part."""

    def do_GET(self) -> None:
        """Answer with the page, a part of it, or a refusal."""
        rules: RangeServer = self.server.rules
        wanted = self.headers.get("Range")
        rules.asked.append((self.path, wanted))
        page = rules.pages.get(self.path)
        etag = f'"{zlib.crc32(page or b""):08x}"'
        condition = self.headers.get("If-Match")
        if page is None or (condition is not None and rules.etags and condition != etag):
            self._answer(404 if page is None else 412, b"", {})
            return
        headers = {"ETag": etag} if rules.etags else {}
        if wanted is None or not rules.ranges:
            self._answer(200, page, headers)
            return
        begin, _, end = wanted.removeprefix("bytes=").partition("-")
        first, last = int(begin), int(end or len(page))
        if first >= len(page):
            self._answer(416, b"", {**headers, "Content-Range": f"bytes */{len(page)}"})
            return
        body = page[first:] if rules.greedy else page[first : last + 1]
        span = f"bytes {first}-{first + len(body) - 1}/{len(page)}"
        self._answer(206, body, {**headers, "Content-Range": span, **rules.says})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        rules: RangeServer = self.server.rules
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if rules.cuts > 0 and len(body) > rules.cut:
            rules.cuts -= 1
            body = body[: rules.cut]
            self.close_connection = True
        rules.sent += len(body)
        self.wfile.write(body)
