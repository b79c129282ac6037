"""The viewer's own server, in a thread, and a client that has its token."""

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import uvicorn

from webdataset.viewer.security import Access
from webdataset.viewer.server import make_app, open_socket
from webdataset.viewer.session import Session


class ViewClient:
    """A client of a viewer.

    Args:
        port: of the server.
        token: that it wants.
    """

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token

    def request(self, method: str, path: str, body: Any = None, **parameters: Any) -> tuple[int, bytes]:
        """Send a request; return status and content."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Authorization": f"Bearer {self.token}", "X-WDS-View": "1", "Content-Type": "application/json"}
        given = {name: value for name, value in parameters.items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def get(self, path: str, status: int = 200, **parameters: Any) -> Any:
        """Return the JSON under a path."""
        found, content = self.request("GET", path, **parameters)
        assert found == status, (found, content[:1000])
        return json.loads(content)

    def post(self, path: str, body: Any, status: int = 200) -> Any:
        """Post JSON, return JSON."""
        found, content = self.request("POST", path, body)
        assert found == status, (found, content[:1000])
        return json.loads(content)


@contextmanager
def serve_view(session: Session) -> Iterator[ViewClient]:
    """Serve a session as ``wds view`` does; end with it."""
    listener = open_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    access = Access(["127.0.0.1"], port)
    config = uvicorn.Config(
        make_app(session, access), http="h11", ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield ViewClient(port, access.token)
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
        session.close()
