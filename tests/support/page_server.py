"""A web server of the files of a folder, as hosts of static pages are; it may lack ranges, or let others read."""

import functools
import http.server
import re
import threading
from pathlib import Path
from typing import Any, Self


class PageServer:
    """The server.

    Args:
        folder: what it serves.
        ranges: whether it sends byte ranges.
        open_to_all: whether pages of other origins may read its answers (CORS).

    Attributes:
        root: its url, without a slash at its end.
        sent_bytes: of the bodies of ranges, so far.
    """

    def __init__(self, folder: Path, *, ranges: bool = True, open_to_all: bool = False) -> None:
        self.ranges = ranges
        self.open_to_all = open_to_all
        self.sent_bytes = 0
        self.root = ""
        handler = functools.partial(_Files, self, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def __enter__(self) -> Self:
        self.root = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, rules: PageServer, *arguments: Any, **options: Any) -> None:
        self._rules = rules
        super().__init__(*arguments, **options)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def end_headers(self) -> None:
        """Add what lets other origins read."""
        if self._rules.open_to_all:
            self.send_header("Access-Control-Allow-Origin", "*")
            self.send_header("Access-Control-Allow-Headers", "Range")
        super().end_headers()

    def do_OPTIONS(self) -> None:  # noqa: N802  a name of the base class
        """Answer what browsers ask before a request with a range."""
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:  # noqa: N802  a name of the base class
        """Answer with a file, or a range of it."""
        path = Path(self.translate_path(self.path))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None or not self._rules.ranges or not path.is_file():
            super().do_GET()
            return
        size = path.stat().st_size
        start, stop = int(wanted[1]), min(int(wanted[2]) + 1, size)
        self.send_response(206 if start < size else 416)
        if start < size:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.send_header("Content-Length", str(max(0, stop - start)))
        self.end_headers()
        with path.open("rb") as file:
            file.seek(start)
            body = file.read(max(0, stop - start))
        self._rules.sent_bytes += len(body)
        self.wfile.write(body)
