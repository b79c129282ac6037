"""A web server on this machine whose bodies come as slowly as a test wants, with ranges, ETags and conditions.

It records what was requested. A body can be held back at a byte until the test lets it go on, so that a test looks at
a download that is half done without ever waiting for a clock.
"""

import time
import zlib
from threading import Event, Lock
from typing import NamedTuple, Self

from webdataset.testing.sources import Answering, Listening

_PIECE = 16 * 1024


class Asked(NamedTuple):
    """One request.

    Args:
        path: the page.
        start: first byte wanted.
        condition: the ``If-Match`` header, or None.
        whole: whether all the rest was wanted.
    """

    path: str
    start: int
    condition: str | None
    whole: bool


class PacedServer:
    """The server.

    Args:
        pages: bytes by path (``/x.tar``); may be changed while it runs.
        bytes_per_second: of each body; None for as fast as it goes.
        etags: whether it names versions.
        lengths: whether it names lengths.
        ranges: whether it honours ranges.

    Attributes:
        root: its url, without a slash at its end.
        asked: requests so far.
        sent: bytes of body sent so far.
        held: path to the byte at which its body waits for :meth:`release`.
    """

    def __init__(
        self,
        pages: dict[str, bytes],
        *,
        bytes_per_second: float | None = None,
        etags: bool = True,
        lengths: bool = True,
        ranges: bool = True,
    ) -> None:
        self.pages, self.bytes_per_second = pages, bytes_per_second
        self.etags, self.lengths, self.ranges = etags, lengths, ranges
        self.root = ""
        self.asked: list[Asked] = []
        self.sent = 0
        self.held: dict[str, int] = {}
        self._free = Event()
        self._lock = Lock()

    def hold(self, path: str, offset: int) -> None:
        """Send no byte of a page from an offset on, until :meth:`release`.

        Args:
            path: the page.
            offset: the first byte that waits.
        """
        self._free.clear()
        self.held[path] = offset

    def release(self) -> None:
        """Let all bodies go on."""
        self.held.clear()
        self._free.set()

    def downloads(self, path: str | None = None) -> int:
        """Return how often all of a page, or all of any page, was asked for.

        Args:
            path: the page; None for all.
        """
        return sum(one.whole and one.start == 0 and path in (None, one.path) for one in self.asked)

    def count(self, size_bytes: int) -> None:
        """Take note of bytes sent.

        Args:
            size_bytes: how many.
        """
        with self._lock:
            self.sent += size_bytes

    def wait(self, path: str, offset: int, end: int) -> int:
        """Wait until something of a page may be sent.

        Args:
            path: the page.
            offset: the next byte.
            end: after the last byte that is to be sent now.

        Returns:
            Behind the last byte that may be.
        """
        while path in self.held and offset >= self.held[path]:
            self._free.wait(0.05)
        return min(end, self.held.get(path, end))

    def __enter__(self) -> Self:
        self._server = Listening(_Paced, self).start()
        self.root = self._server.url
        return self

    def __exit__(self, *failure: object) -> None:
        self.release()
        self._server.stop()


class _Paced(Answering):
    """Serves the pages of a :class:`PacedServer`."""

    def do_GET(self) -> None:  # noqa: N802  a name of the base class
        """Answer with the page, the rest of it, or a refusal."""
        rules: PacedServer = self.server.rules
        page = rules.pages.get(self.path)
        wanted, condition = self.headers.get("Range"), self.headers.get("If-Match")
        first, _, last = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), int(last) + 1 if last else len(page or b"")
        rules.asked.append(Asked(self.path, start, condition, not last))
        etag = f'"{zlib.crc32(page or b""):08x}"'
        if page is None or (condition is not None and rules.etags and condition != etag):
            self._head(404 if page is None else 412, {"Content-Length": "0"})
            return
        headers = {"ETag": etag} if rules.etags else {}
        if wanted is None or not rules.ranges:
            start, end = 0, len(page)
        else:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(page)}"
        if rules.lengths:
            headers["Content-Length"] = str(end - start)
        self._head(206 if "Content-Range" in headers else 200, headers)
        self._body(rules, page, start, end)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.close_connection = "Content-Length" not in headers
        self.end_headers()

    def _body(self, rules: PacedServer, page: bytes, start: int, end: int) -> None:
        while start < end:
            stop = rules.wait(self.path, start, min(start + _PIECE, end))
            self.wfile.write(page[start:stop])
            rules.count(stop - start)
            if rules.bytes_per_second is not None:
                time.sleep((stop - start) / rules.bytes_per_second)
            start = stop
