"""A large body to a gateway that does not want it: asked first, sent where the gateway says.

Flows in: a file. Flows out: the answer of who took it. A gateway answers a PUT as soon as it has read the headers, and
closes the connection on whoever goes on sending; so that the headers go first, and the body only if no answer comes.
urllib3 cannot do this, and the standard library can. Proxies of the environment are not asked: uploads go to the
cluster directly.
"""

import contextlib
import http.client
import importlib
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from webdataset.sources.connections import refuse_unsendable
from webdataset.sources.tls import context_for

PIECE = 1 << 20
ANSWER_SECONDS = 2.0
"""How long a gateway may take to answer before the body is sent after all."""

STORED_SECONDS = 600.0
"""How long the cluster may take to store what has been sent: it may send it on to another store first."""


class Reply(NamedTuple):
    """What came back.

    Args:
        status: of the answer.
        headers: of the answer, by name in any case.
        said: the beginning of its body.
    """

    status: int
    headers: Any
    said: bytes


def put(
    url: str,
    headers: Mapping[str, str],
    file: Any,
    size: int,
    tls: Mapping[str, str],
    *,
    seconds: float,
    asking: bool,
) -> Reply:
    """Send a file by PUT.

    Args:
        url: where to.
        headers: request headers.
        file: what to send, from its beginning.
        size: bytes of it.
        tls: whom to trust; names as for :func:`webdataset.sources.connections.send`.
        seconds: bound on each wait.
        asking: give the server time to answer before the body is sent.

    Raises:
        OSError: the connection failed.
        http.client.HTTPException: what came is no answer.
        ConfigError: a header that cannot be.
    """
    refuse_unsendable(headers)
    parts = urllib.parse.urlsplit(url)
    with _connected(parts, tls, seconds) as connection:
        connection.putrequest("PUT", urllib.parse.urlunsplit(("", "", parts.path, parts.query, "")))
        for name, text in {**headers, "User-Agent": "webdataset", "Content-Length": str(size)}.items():
            connection.putheader(name, text)
        connection.endheaders()
        response = _answered(connection) if asking else None
        if response is None:
            connection.sock.settimeout(seconds)
            _send(connection, file)
            response = connection.getresponse()
        return Reply(response.status, response.headers, response.read(2000))


def _answered(connection: http.client.HTTPConnection) -> http.client.HTTPResponse | None:
    """Return the answer to the headers, or None where none comes: the server waits for the body."""
    response = http.client.HTTPResponse(connection.sock, method="PUT")
    connection.sock.settimeout(ANSWER_SECONDS)
    try:
        response.fp.peek(1)
    except TimeoutError:
        response.close()
        return None
    response.begin()
    return response


def _send(connection: http.client.HTTPConnection, file: Any) -> None:
    file.seek(0)
    try:
        while piece := file.read(PIECE):
            connection.send(piece)
    except (BrokenPipeError, ConnectionResetError):
        connection.sock.settimeout(1.0)  # an answer may have come before
    else:
        connection.sock.settimeout(STORED_SECONDS)


@contextlib.contextmanager
def _connected(
    parts: urllib.parse.SplitResult, tls: Mapping[str, str], seconds: float
) -> Iterator[http.client.HTTPConnection]:
    if parts.scheme == "https":
        context = context_for(tls, importlib.import_module("urllib3"))
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.netloc, timeout=seconds, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=seconds)
    try:
        connection.connect()
        yield connection
    finally:
        connection.close()
