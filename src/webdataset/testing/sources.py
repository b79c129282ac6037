"""Streams that misbehave on purpose: short reads, early ends, failures at the n-th read.

Flows in: the bytes that a well-behaved stream would give. Flows out: a file object that gives them badly, and counts
what was asked of it.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from webdataset.ground.seeds import generator


class FaultyStream(io.RawIOBase):
    """A binary stream, not seekable, whose length nobody knows.

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
        self._rng = None if seed is None else generator("reads", seed)
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


class _Pages(BaseHTTPRequestHandler):
    """Serve bytes kept in the server's ``pages``."""

    def do_GET(self) -> None:
        """Answer with the page, or 404."""
        page = self.server.pages.get(self.path)  # type: ignore[attr-defined]
        self.send_response(404 if page is None else 200)
        self.send_header("Content-Length", str(len(page or b"")))
        self.end_headers()
        self.wfile.write(page or b"")

    def log_message(self, *_: Any) -> None:
        """Keep silent."""

    def handle(self) -> None:
        """Answer one connection; a client that goes away early is nothing unusual."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True


@contextmanager
def served(pages: dict[str, bytes]) -> Iterator[str]:
    """Serve bytes over HTTP on this machine.

    Args:
        pages: bytes by path (``/x.tar``).

    Yields:
        The url of the root, without a slash at its end.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    server.daemon_threads = True
    server.pages = pages  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
