"""Objects that were written in the second in which they are first asked for: their date proves nothing alone."""

import http.server
import threading

import pytest

import webdataset as wds
from webdataset.core.errors import ShardChanged
from webdataset.testing import archives

NOW = "Thu, 26 Nov 2026 12:00:00 GMT"
LATER = "Thu, 26 Nov 2026 12:00:03 GMT"


class DatedHandler(http.server.BaseHTTPRequestHandler):
    """Answers ranges with a date and no ETag."""

    def log_message(self, *_):
        """Say nothing."""

    def date_time_string(self, timestamp=None):  # noqa: ARG002  the caller's
        """Return the server's time."""
        return NOW

    def do_GET(self):  # noqa: N802  the name that http.server calls
        """Send a range."""
        content, modified = self.server.page
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        piece = content[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(piece) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(piece)))
        if modified is not None:
            self.send_header("Last-Modified", modified)
        self.end_headers()
        self.wfile.write(piece)


@pytest.fixture
def server():
    """A server of one page, which may be changed."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), DatedHandler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def make(letter):
    """Return a shard of three samples that are larger than what is read at once."""
    return archives.by_hand([(f"{number}.bin", letter * 200_000) for number in range(3)])


@pytest.mark.parametrize(("before", "after"), [(NOW, LATER), (LATER, NOW)])
def test_another_date_is_another_object(server, before, after):
    """Old and new bytes are never mixed; the same date goes on, and so does a server that says none."""
    server.page = make(b"A"), before
    shard = wds.IndexedShard(f"http://127.0.0.1:{server.server_port}/a.tar", index=False)
    assert [set(shard[number]["bin"]) for number in range(3)] == [{65}] * 3
    server.page = make(b"B"), after
    with pytest.raises(ShardChanged):
        shard[1]
    server.page = make(b"A"), None
    assert set(shard[2]["bin"]) == {65}
