"""Runs ``wds view`` as its users do, as a program of its own, and asks it over HTTP."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from support.command import WDS, command_environment


class Answer(NamedTuple):
    """What a viewer answered.

    Args:
        status: of HTTP.
        body: its bytes.
        headers: their names in lower case.
    """

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def value(self) -> Any:
        """What its JSON says."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """Name of the error that it reports."""
        return str(self.value["error"]["type"])


class RunningViewer:
    """A viewer in a process of its own.

    Args:
        arguments: of the command.
        stdin: what it reads, or None.
        environment: changes of it.

    Attributes:
        port: that it listens on.
        token: of the printed url.
        url: as printed.
        process: the program.
    """

    def __init__(self, *arguments: str | os.PathLike[str], stdin: Any = subprocess.DEVNULL, **environment: str) -> None:
        self._log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*WDS, "view", *(os.fspath(argument) for argument in arguments), "--json"],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=command_environment(**environment),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  the suite has no threads here
        )
        self.line = self.process.stdout.readline() if self.process.stdout else b""
        if not self.line:
            raise OSError(f"the viewer did not start: {self.log()}")
        said = json.loads(self.line)
        self.url, self.port, self.token = said["url"], said["port"], said["token"]

    def log(self) -> str:
        """Return what it wrote to standard error so far."""
        self._log.seek(0)
        return self._log.read().decode()

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        known: bool = True,
        **parameters: Any,
    ) -> Answer:
        """Send a request; again, as clients do, while the answer is that its sample is not reached yet.

        Args:
            path: without the query.
            method: of HTTP.
            headers: besides the usual.
            body: its bytes.
            known: whether the token is sent.
            **parameters: of the query.
        """
        query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parameters.items())
        sent = {"Authorization": f"Bearer {self.token}"} if known else {}
        target = f"{path}?{query}" if query else path
        while (answer := self._send(method, target, body, {**sent, **(headers or {})})).status == 202:
            pass
        return answer

    def _send(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, target, body, dict(headers))
            answer = connection.getresponse()
            return Answer(answer.status, answer.read(), {name.lower(): text for name, text in answer.getheaders()})
        finally:
            connection.close()

    def ask_raw(self, request: bytes, *, end: bool = False) -> bytes:
        """Send bytes, and return what comes until the connection is closed.

        Args:
            request: as it is.
            end: whether the client says that no more comes; a server may then drop its answer.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(request)
            if end:
                connection.shutdown(socket.SHUT_WR)
            pieces = []
            with contextlib.suppress(ConnectionError):
                while piece := connection.recv(65536):
                    pieces.append(piece)
        return b"".join(pieces)

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal, and return the exit status.

        Args:
            number: of the signal.
        """
        self.process.send_signal(number)
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self._log.close()


@contextlib.contextmanager
def running_viewer(*arguments: str | os.PathLike[str], **options: Any) -> Iterator[RunningViewer]:
    """Run a viewer.

    Args:
        *arguments: of the command.
        **options: of :class:`RunningViewer`.

    Yields:
        The viewer.
    """
    with RunningViewer(*arguments, **options) as viewer:
        yield viewer
