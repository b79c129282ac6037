"""A web server of files on this machine that counts requests and bytes, and can keep answers back.

It reads files by ranges, so that a sparse file of many gigabytes is served as any other.
"""

import os
from pathlib import Path
from threading import Event, Lock
from typing import Any, NamedTuple, Self

from webdataset.testing.sources import Answering, Listening

_PIECE = 256 * 1024


class RangeRequest(NamedTuple):
    """One request.

    Args:
        path: with its query.
        start: first byte.
        size: bytes of the answer's body; 0 of refusals.
    """

    path: str
    start: int
    size: int


class RangeServer:
    """The server.

    Args:
        folder: what it serves.

    Attributes:
        root: its url, without a slash at its end.
        requests: answered so far, refusals included.
        held: paths whose answers wait for :meth:`release`.
        waiting: set once an answer waits.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = ""
        self.requests: list[RangeRequest] = []
        self.held: set[str] = set()
        self.waiting = Event()
        self._free = Event()
        self._lock = Lock()

    @property
    def sent_bytes(self) -> int:
        """Bytes of all bodies so far."""
        with self._lock:
            return sum(request.size for request in self.requests)

    def note(self, request: RangeRequest) -> None:
        """Count a request.

        Args:
            request: it.
        """
        with self._lock:
            self.requests.append(request)

    def wait(self, path: str) -> None:
        """Wait where a path is held.

        Args:
            path: of a request.
        """
        if path in self.held:
            self.waiting.set()
            self._free.wait()

    def release(self) -> None:
        """Let all answers go."""
        self.held.clear()
        self._free.set()

    def __enter__(self) -> Self:
        self._server = Listening(_Files, self).start()
        self.root = self._server.url
        return self

    def __exit__(self, *failure: object) -> None:
        self.release()
        self._server.stop()


class _Files(Answering):
    def do_GET(self) -> None:  # noqa: N802  a name of the base class
        """Answer with the file, a range of it, or a refusal."""
        rules: Any = self.server.rules
        path = self.path.partition("?")[0]
        rules.wait(path)
        file = rules.folder / path.lstrip("/")
        if not file.is_file():
            rules.note(RangeRequest(self.path, 0, 0))
            self._head(404, {"Content-Length": "0"})
            return
        length = file.stat().st_size
        wanted = self.headers.get("Range")
        first, _, last = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last) + 1, length) if last else length
        if start >= length:
            rules.note(RangeRequest(self.path, start, 0))
            self._head(416 if wanted else 200, {"Content-Length": "0", "Content-Range": f"bytes */{length}"})
            return
        headers = {"ETag": f'"{length}-{file.stat().st_mtime_ns}"', "Content-Length": str(stop - start)}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{length}"
        self._head(206 if wanted else 200, headers)
        rules.note(RangeRequest(self.path, start, stop - start))
        with file.open("rb") as content:
            while start < stop:
                piece = os.pread(content.fileno(), min(_PIECE, stop - start), start)
                self.wfile.write(piece)
                start += len(piece)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
