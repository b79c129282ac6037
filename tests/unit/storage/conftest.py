"""A web server on this machine that misbehaves on request."""

import contextlib
import http.server
import socket
import struct
import threading
from types import SimpleNamespace

import pytest

BODY = bytes(range(256)) * 4096  # 1 MiB


class Answers(http.server.BaseHTTPRequestHandler):
    """Serves BODY under any path; the first word of the path is the fault of the first answer."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        """Answer with or without a fault."""
        seen = self.server.seen
        seen.append(SimpleNamespace(path=self.path, headers=self.headers, peer=self.client_address))
        fault = self.path.strip("/").split("/")[0]
        times = sum(request.path == self.path for request in seen)
        getattr(self, f"do_{fault}", self.do_whole)(times)

    def start(self, status, length, **headers):
        """Send a status line and headers."""
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_whole(self, _times):
        """Serve the body, or the range that is asked for."""
        wanted = self.headers.get("Range")
        if wanted is None:
            self.start(200, len(BODY), ETag='"one"')
            self.wfile.write(BODY)
            return
        first = int(wanted.removeprefix("bytes=").rstrip("-"))
        self.start(206, len(BODY) - first, ETag='"one"', Content_Range=f"bytes {first}-{len(BODY) - 1}/{len(BODY)}")
        self.wfile.write(BODY[first:])

    def cut(self, **headers):
        """Promise the whole body, give a third."""
        self.start(200, len(BODY), **headers)
        self.wfile.write(BODY[: len(BODY) // 3])
        self.close_connection = True

    def do_cut(self, times):
        """Cut the first answer; serve the rest when asked."""
        self.cut(ETag='"one"') if times == 1 else self.do_whole(times)

    def do_reset(self, times):
        """Reset the connection in the first answer."""
        if times > 1:
            self.do_whole(times)
            return
        self.start(200, len(BODY), ETag='"one"')
        self.wfile.write(BODY[: len(BODY) // 3])
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def do_anonymous(self, _times):
        """Cut each answer, without anything that identifies the object."""
        self.cut()

    def do_replaced(self, times):
        """Cut the first answer; then be another object."""
        if times == 1:
            self.cut(ETag='"one"')
        else:
            self.start(412, 0)

    def do_disguised(self, times):
        """Cut the first answer; then ignore the condition and serve the rest of another object."""
        if times == 1:
            self.cut(ETag='"one"')
        else:
            self.start(206, 10, ETag='"two"', Content_Range=f"bytes {len(BODY) // 3}-{len(BODY) - 1}/{len(BODY)}")
            self.wfile.write(b"x" * 10)

    def do_rangeless(self, times):
        """Cut the first answer; then ignore the range."""
        if times == 1:
            self.cut(ETag='"one"')
        else:
            self.start(200, len(BODY), ETag='"one"')
            with contextlib.suppress(OSError):
                self.wfile.write(BODY)

    def do_hopeless(self, _times):
        """Cut every answer before its first byte."""
        wanted = self.headers.get("Range")
        if wanted is None:
            self.cut(ETag='"one"')
            return
        first = int(wanted.removeprefix("bytes=").rstrip("-"))
        self.start(206, len(BODY) - first, ETag='"one"', Content_Range=f"bytes {first}-{len(BODY) - 1}/{len(BODY)}")
        self.close_connection = True

    def do_chunked(self, times):
        """Serve in chunks, without a length; cut the first answer if the path says so."""
        self.start(200, None, Transfer_Encoding="chunked")
        self.wfile.write(b"5\r\nhello\r\n")
        if "broken" in self.path and times >= 1:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def do_unsized(self, _times):
        """Serve until the connection closes."""
        self.start(200, None, Connection="close")
        self.wfile.write(b"hello")
        self.close_connection = True

    def do_busy(self, times):
        """Be busy twice."""
        self.start(503, 0, Retry_After="0") if times < 3 else self.do_whole(times)

    def do_refused(self, _times):
        """Always fail."""
        self.start(503, 0)

    def do_absent(self, _times):
        """Have nothing."""
        self.start(404, 0)

    def do_forbidden(self, _times):
        """Let nobody in."""
        self.start(403, 0)

    def do_elsewhere(self, _times):
        """Redirect."""
        self.start(302, 0, Location="/whole/there")

    def do_circle(self, _times):
        """Redirect to itself."""
        self.start(302, 0, Location=self.path)

    def do_packed(self, _times):
        """Claim that the body is compressed for transport."""
        self.start(200, 5, Content_Encoding="gzip")
        self.wfile.write(b"12345")

    def do_stalled(self, _times):
        """Promise, send a little, then nothing."""
        self.start(200, len(BODY))
        self.wfile.write(b"hello")
        self.wfile.flush()
        self.server.released.wait(20)
        self.close_connection = True

    def do_PUT(self):
        """Keep what is uploaded."""
        received = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                received += self.rfile.read(size)
                self.rfile.readline()
        else:
            received = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.uploads[self.path] = received
        self.start(201, 0)


@pytest.fixture
def web(monkeypatch):
    """Run the server; gives url(path), seen requests, uploads, and the body it serves."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    server.handle_error = lambda *_: None
    server.seen, server.uploads, server.released = [], {}, threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    address = f"127.0.0.1:{server.server_port}"
    yield SimpleNamespace(
        url=lambda path: f"http://{address}/{path}",
        address=address,
        seen=server.seen,
        uploads=server.uploads,
        body=BODY,
    )
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Wait a hundredth as long between attempts."""
    from webdataset.storage import retries

    sleep = retries.sleep
    monkeypatch.setattr(retries, "sleep", lambda seconds: sleep(seconds / 100))
