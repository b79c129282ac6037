"""Files of counts in stores that ask who one is."""

import http.server
import json
import threading

import pytest

from webdataset.core.errors import SourceError
from webdataset.index.lookup import sample_counts
from webdataset.samples.sample_reader import Reading

COUNTS = json.dumps({"a.tar": 3, "b.tar": 4}).encode()


class Guarded(http.server.BaseHTTPRequestHandler):
    """Gives counts to whoever shows the token."""

    def do_GET(self):
        """Answer."""
        allowed = self.headers.get("Authorization") == "Bearer SECRET"
        self.send_response(200 if allowed else 403)
        self.send_header("Content-Length", str(len(COUNTS) if allowed else 0))
        self.end_headers()
        self.wfile.write(COUNTS if allowed else b"")

    def log_message(self, *_arguments):
        """Say nothing."""


@pytest.fixture
def root():
    """The server's root url."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield "http://127.0.0.1:%d" % server.server_address[1]
        server.shutdown()


def test_counts_beside_guarded_shards(root):
    """``sizes.json`` is asked for with what the shards are asked for with."""
    urls = [f"{root}/a.tar", f"{root}/b.tar"]
    reading = Reading(storage_options={"token": "SECRET"})
    assert sample_counts(urls, None, reading) == dict(zip(urls, (3, 4), strict=True))
    assert sample_counts(urls, f"{root}/counts.json", reading) == dict(zip(urls, (3, 4), strict=True))
    with pytest.raises(SourceError, match="403"):
        sample_counts(urls, None, Reading())


def test_options_of_one_store_go_to_no_other(root):
    """Counts on a web server, of shards that are elsewhere: the server is shown nothing that is for the shards."""
    with pytest.raises(SourceError, match="403"):
        sample_counts(["s3://bucket/a.tar"], f"{root}/counts.json", Reading(storage_options={"token": "SECRET"}))
