"""Streams over http: complete, resumed, or an error; never a quiet end."""

import os
import pickle
import subprocess
import sys

import pytest

from webdataset.core.errors import NotFound, ShardChanged, ShortRead, SourceError, UsageError
from webdataset.storage import http_client
from webdataset.storage.backends.http import HttpStream, gopen_http
from webdataset.storage.open_url import open_url
from webdataset.storage.streams import length_known, stream_length


def drained(stream, size=65536):
    """Read a stream to its end in pieces."""
    with stream:
        return b"".join(iter(lambda: stream.read(size), b""))


def collect(stream, received):
    """Read a stream to its end into a buffer."""
    while piece := stream.read(65536):
        received += piece


@pytest.mark.parametrize("size", [1 << 18, 65536, 1000, -1])
def test_a_body_comes_whole(web, size):
    """All bytes arrive, whatever the size of the pieces."""
    assert drained(open_url(web.url("whole/x")), size) == web.body


def test_readinto_fills_buffers(web):
    """``readinto`` gives the same bytes."""
    received, buffer = bytearray(), bytearray(100_000)
    with gopen_http(web.url("whole/x")) as stream:
        while count := stream.readinto(buffer):
            received += buffer[:count]
    assert received == web.body


def test_the_length_is_known(web):
    """A Content-Length makes the length known; chunked and unsized bodies do not."""
    with gopen_http(web.url("whole/x")) as stream:
        assert length_known(stream)
        assert stream_length(stream) == len(web.body)
    for path in ("chunked/x", "unsized/x"):
        with gopen_http(web.url(path)) as stream:
            assert not length_known(stream)
            assert stream.read() == b"hello"


@pytest.mark.parametrize("fault", ["cut", "reset", "rangeless"])
def test_a_dropped_connection_is_taken_up_where_it_stopped(web, fault):
    """After a cut or a reset, the rest of the same ETag is asked for; ranges may be ignored by the server."""
    assert drained(gopen_http(web.url(f"{fault}/x"))) == web.body
    again = web.seen[-1].headers
    assert again["If-Match"] == '"one"'
    assert again["Range"].startswith("bytes=")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("anonymous", ShortRead), ("hopeless", ShortRead), ("replaced", ShardChanged), ("disguised", ShardChanged)],
)
def test_what_cannot_be_taken_up_is_an_error(web, fault, kind, monkeypatch):
    """Without proof that the rest belongs to the same object, an error is raised, again and again, no foreign byte."""
    monkeypatch.setattr("webdataset.storage.retries.FIRST_SECONDS", 0.001)
    received = bytearray()
    with gopen_http(web.url(f"{fault}/x")) as stream:
        with pytest.raises(kind) as caught:
            collect(stream, received)
        with pytest.raises(kind):
            stream.read(1)
    assert received
    assert web.body.startswith(received)
    assert caught.value.url == web.url(f"{fault}/x")
    assert isinstance(caught.value, EOFError) == (kind is ShortRead)
    assert isinstance(caught.value, OSError)


def test_a_chunked_body_that_breaks_is_a_short_read(web):
    """A chunked body without its last chunk is an error."""
    with gopen_http(web.url("chunked/broken")) as stream, pytest.raises(ShortRead, match="unknown number"):
        drained(stream)


def test_a_busy_server_is_asked_again(web):
    """503 twice, then success: one open."""
    assert drained(gopen_http(web.url("busy/x"))) == web.body
    assert len(web.seen) == 3


def test_a_server_that_stays_busy_is_an_error(web):
    """Attempts are bounded."""
    with pytest.raises(SourceError, match="503"):
        gopen_http(web.url("refused/x"))
    assert len(web.seen) == 7


def test_nothing_there(web):
    """404 is NotFound, at once."""
    with pytest.raises(NotFound, match="404") as caught:
        gopen_http(web.url("absent/x"))
    assert isinstance(caught.value, FileNotFoundError)
    assert len(web.seen) == 1


def test_forbidden(web):
    """403 speaks of credentials, or of the signature in the url, which is not shown."""
    with pytest.raises(SourceError, match="credentials"):
        gopen_http(web.url("forbidden/x"))
    with pytest.raises(SourceError, match="signature may have expired") as caught:
        gopen_http(web.url("forbidden/x?X-Amz-Signature=topsecret"))
    assert "topsecret" not in str(caught.value)


def test_no_server():
    """A refused connection is an error after a few attempts, and shows no secrets in its chain."""
    with pytest.raises(SourceError, match="no answer") as caught:
        gopen_http("http://127.0.0.1:9/x?token=topsecret")
    chain, texts = caught.value, []
    while chain is not None:
        texts.append(str(chain))
        chain = chain.__cause__ or chain.__context__
    assert "topsecret" not in " ".join(texts)


def test_redirects(web):
    """A redirect is followed; a circle is an error."""
    assert drained(gopen_http(web.url("elsewhere/x"))) == web.body
    with pytest.raises(SourceError):
        gopen_http(web.url("circle/x"))


def test_a_stalled_server_is_an_error(web):
    """Waiting for bytes is bounded."""
    with gopen_http(web.url("stalled/x"), read_seconds=0.2) as stream:
        assert stream.read(5) == b"hello"
        with pytest.raises(ShortRead):
            stream.read(5)


def test_the_body_is_not_decompressed(web):
    """Bytes come as stored, and no compression for transport is asked for."""
    assert drained(gopen_http(web.url("packed/x"))) == b"12345"
    assert web.seen[0].headers["Accept-Encoding"] == "identity"


def test_userinfo_becomes_basic_authorization(web):
    """A name and password in the url, percent escapes decoded, go into the header."""
    drained(gopen_http(f"http://me:p%40ss@{web.address}/whole/x"))
    assert web.seen[0].headers["Authorization"] == "Basic bWU6cEBzcw=="
    assert "me:p" not in repr(HttpStream(f"http://me:p%40ss@{web.address}/whole/x"))


def test_headers_may_be_given(web):
    """Further headers are sent."""
    drained(open_url(web.url("whole/x"), headers={"X-Name": "value"}))
    assert web.seen[0].headers["X-Name"] == "value"


def test_connections_are_used_again(web):
    """Bodies that were read to their end share a connection."""
    for _ in range(3):
        drained(gopen_http(web.url("whole/x")))
    assert len({request.peer for request in web.seen}) == 1


def test_closing_early_is_silent(web):
    """An early close raises nothing, and the next request works."""
    stream = gopen_http(web.url("whole/x"))
    assert stream.read(10) == web.body[:10]
    stream.close()
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.read(1)
    assert drained(gopen_http(web.url("whole/y"))) == web.body


def test_a_fork_gets_connections_of_its_own(web):
    """A forked child does not use its parent's sockets."""
    drained(gopen_http(web.url("whole/x")))
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(
                0
                if drained(gopen_http(web.url("whole/child"))) == web.body and len(http_client._pools._kept) == 1
                else 1
            )
        except BaseException:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert len({request.peer for request in web.seen}) == 2


def test_proxies_of_the_environment(web, monkeypatch):
    """HTTP_PROXY is used, NO_PROXY is heard."""
    monkeypatch.setenv("http_proxy", f"http://{web.address}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert drained(gopen_http("http://nowhere.invalid/whole/x")) == web.body
    assert web.seen[-1].path == "http://nowhere.invalid/whole/x" or web.seen[-1].path.endswith("/whole/x")
    assert drained(gopen_http(web.url("whole/x"))) == web.body
    assert web.seen[-1].path == "/whole/x"


def test_a_url_that_makes_no_sense():
    """Nonsense is a UsageError."""
    with pytest.raises((UsageError, SourceError)):
        gopen_http("http://")


@pytest.mark.parametrize("url", ["http://[::1/x", "http://me:CANARY@[::1/x", "https://[zz]/x"])
def test_brackets_that_hold_no_address(url):
    """A url that does not split is a UsageError with the url."""
    with pytest.raises(UsageError, match="not a url") as caught:
        open_url(url)
    assert caught.value.url == url
    assert "CANARY" not in str(caught.value)


def test_uploads_by_put(web):
    """Writing to http uploads by PUT."""
    with open_url(web.url("up/x"), "wb") as stream:
        stream.write(web.body)
    assert web.uploads["/up/x"] == web.body


def test_a_failed_upload_is_an_error():
    """An upload that nobody takes raises when closed."""
    stream = open_url("http://127.0.0.1:9/x", "wb")
    with pytest.raises(SourceError, match="no answer"), stream:
        stream.write(b"x" * 1_000_000)
    assert stream.closed


def test_http_is_not_imported_for_local_files(tmp_path):
    """Reading a file loads neither urllib3 nor subprocess, torch, numpy or Pillow."""
    (tmp_path / "x").write_bytes(b"x")
    code = (
        "import sys, webdataset as wds\n"
        "f = wds.gopen(sys.argv[1]); f.read(); f.close()\n"
        "print([m for m in ('urllib3', 'subprocess', 'torch', 'numpy', 'PIL', 'http.client') if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x")], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_errors_travel(web):
    """An error of a worker arrives in the parent with its places."""
    with pytest.raises(NotFound) as caught:
        gopen_http(web.url("absent/x"))
    assert pickle.loads(pickle.dumps(caught.value)).url == web.url("absent/x")
