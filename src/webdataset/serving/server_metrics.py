"""The counters of a data server over HTTP, for monitoring: ``/metrics`` and ``/healthz``.

They listen on a port of their own, on the loopback address unless told otherwise. They show numbers only: no url, no
name of a sample.
"""

import http.server
import threading
from http import HTTPStatus
from typing import Final

from webdataset.core.errors import UsageError
from webdataset.serving.data_server import DataServer

_NAMES: Final = {
    "lanes": ("gauge", "trainers that are served"),
    "draining": ("gauge", "1 once the server was told to end"),
    "samples": ("counter", "samples sent"),
    "bytes": ("counter", "bytes sent"),
    "opened": ("counter", "lanes that trainers opened"),
    "hedged": ("counter", "lanes that trainers opened since another server was slow"),
    "asked": ("counter", "questions about states"),
    "messages": ("counter", "messages received"),
    "malformed": ("counter", "messages that were dropped"),
    "silent": ("counter", "trainers that were dropped, since they said nothing"),
}


def format_metrics(counts: dict[str, int]) -> str:
    """Return counters in the text format of Prometheus."""
    lines = []
    for name, (kind, words) in _NAMES.items():
        metric = f"wds_serve_{name}" + ("_total" if kind == "counter" else "")
        lines += [f"# HELP {metric} {words}", f"# TYPE {metric} {kind}", f"{metric} {counts.get(name, 0)}"]
    return "\n".join(lines) + "\n"


def start_metrics(server: DataServer, host: str, port: int) -> http.server.ThreadingHTTPServer:
    """Answer HTTP requests in a thread; return what ``shutdown()`` ends.

    Args:
        server: whose counters to show.
        host: to listen at.
        port: the same; 0 for any that is free.

    Raises:
        UsageError: the address cannot be bound.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            """Answer."""
            if self.path == "/metrics":
                self._answer(HTTPStatus.OK, format_metrics(server.read_counts()))
            elif self.path == "/healthz":
                status = HTTPStatus.SERVICE_UNAVAILABLE if server.is_draining else HTTPStatus.OK
                self._answer(status, "draining\n" if server.is_draining else "ok\n")
            else:
                self._answer(HTTPStatus.NOT_FOUND, "there are /metrics and /healthz\n")

        def _answer(self, status: HTTPStatus, text: str) -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    try:
        listening = http.server.ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise UsageError(f"metrics cannot listen at {host}:{port}: {error.strerror}") from error
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, name="webdataset-metrics", daemon=True).start()
    return listening
