"""Web servers on this machine, each in a thread: how they start, stop, keep silent, and send.

Flows in: a class of handlers, and what they should know. Flows out: a running server. What it answers, the handlers
say; they are subclasses of :class:`Answering`, or any others of ``http.server``.
"""

import os
import re
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")


class Listening(ThreadingHTTPServer):
    """A server on a free port of this machine; as a context it runs from the beginning to the end of the block.

    Args:
        answers: the class of the handlers.
        rules: what they should know.
        host: by which name clients are to call it.
        **known: further attributes of the server, for handlers.

    Attributes:
        rules: as given.
        port: where it listens.
        url: ``http://host:port``, or ``https:``.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self, answers: type[BaseHTTPRequestHandler], rules: Any = None, /, *, host: str = "127.0.0.1", **known: Any
    ) -> None:
        super().__init__(("127.0.0.1", 0), answers)
        self.rules = rules
        self.port = int(self.server_address[1])
        self.url = f"http://{host}:{self.port}"
        vars(self).update(known)
        self._thread: Thread | None = None

    def secure(self, certificate: str | os.PathLike[str]) -> Self:
        """Speak TLS from now on.

        Args:
            certificate: a file with certificate and key in PEM.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.url = self.url.replace("http:", "https:", 1)
        return self

    def start(self) -> Self:
        """Begin to serve, in a thread."""
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop, and free the port; nothing happens where that is done already."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self.shutdown()
            thread.join()
        self.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.stop()


class Answering(BaseHTTPRequestHandler):
    """Answers one connection, silently; clients that go away, or are killed, are nothing unusual."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Listening

    def log_message(self, *_: Any) -> None:
        """Keep silent."""

    def handle(self) -> None:
        """Serve one connection."""
        try:
            super().handle()
        except OSError:
            self.close_connection = True

    def send(self, status: int, content: bytes = b"", **headers: str) -> None:
        """Send a whole answer; no content follows where the headers alone were asked for.

        Args:
            status: of the answer.
            content: what it brings.
            **headers: names with ``_`` for ``-``; ``Content-Length`` is that of the content, unless given.
        """
        self.send_response(status)
        for name, text in {"Content_Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def wanted(self, length: int) -> range | None:
        """Return the bytes that are asked for: empty where there are none of them, None where no range is named.

        Args:
            length: bytes that there are.
        """
        found = _RANGE.match(self.headers.get("Range", ""))
        return None if found is None else range(int(found[1]), min(int(found[2] or length), length - 1) + 1)
