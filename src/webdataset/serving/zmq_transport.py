"""Messages over ZeroMQ: one socket of a server for all trainers, one socket of a trainer for a server.

Theory. The rest of ``serving`` knows two protocols of three methods each, :class:`Channel` and :class:`Listener`, so
that another transport can take the place of this one. A process has one ZeroMQ context, made at the first use. Sockets
never linger: what was not sent when a program ends is of no use to anybody. A sent frame is not copied; its memory
belongs to ZeroMQ until it was sent, and the memoryview that is given keeps it from being used again.
"""

import contextlib
import os
import socket
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from webdataset.core.errors import UsageError
from webdataset.core.optional_imports import require
from webdataset.serving.wire_format import LARGEST_BATCH_BYTES, LARGEST_STATE_BYTES, Frame

if TYPE_CHECKING:
    from zmq import Context, Socket
    from zmq import Frame as ZmqFrame

    from webdataset.serving.curve_keys import KeyPair

# ends of frames, and a handshake that does not come to its end
_QUEUED_MESSAGES = 16
_HANDSHAKE_MILLISECONDS = 2000
_MOST_IO_THREADS = 4
_LARGEST_PORT = 65535
_RECONNECT_MILLISECONDS = 100
_MOST_RECONNECT_MILLISECONDS = 1000


class Channel(Protocol):
    """A trainer's line to a server."""

    def send(self, frames: Sequence[Frame]) -> bool:
        """Send a message; return False where nothing can be sent now."""

    def receive(self, timeout_seconds: float, wake: socket.socket) -> list[memoryview] | None:
        """Wait for a message; return None after the timeout, or when ``wake`` can be read."""

    def close(self) -> None:
        """Close the line; what was not sent is dropped."""


class Listener(Protocol):
    """A server's lines to all trainers; a trainer is named by bytes that a new connection changes."""

    def send(self, peer: bytes, frames: Sequence[Frame]) -> bool:
        """Send a message; return False where the trainer's line is full.

        Raises:
            ConnectionError: there is no such trainer any more.
        """

    def receive(self, timeout_seconds: float, wake: socket.socket) -> tuple[bytes, list[memoryview]] | None:
        """Wait for a message; return None after the timeout, or when ``wake`` can be read."""

    def close(self) -> None:
        """Close all lines."""


def _import_zmq() -> ModuleType:
    return require("zmq", extra="serve", purpose="a data server or a RemoteLoader")


def _find_context(zmq: ModuleType) -> "Context[Socket[bytes]]":
    """Return the context of this process; its threads encrypt, each for some of the lines."""
    found: Context[Socket[bytes]] = zmq.Context.instance(min(_MOST_IO_THREADS, os.cpu_count() or 1))
    return found


def _wait(
    zmq: ModuleType, zmq_socket: "Socket[bytes]", timeout_seconds: float, wake: socket.socket
) -> "list[ZmqFrame] | None":
    """Return the frames of the next message, or None."""
    poller = zmq.Poller()
    poller.register(zmq_socket, zmq.POLLIN)
    poller.register(wake, zmq.POLLIN)
    ready = dict(poller.poll(max(0, int(timeout_seconds * 1000))))
    if ready.get(wake.fileno()):
        with contextlib.suppress(BlockingIOError):
            wake.recv(4096)
    if zmq_socket not in ready:
        return None
    try:
        return zmq_socket.recv_multipart(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None


def check_server_url(url: str) -> None:
    """Refuse what is no address: ZeroMQ would take a port beyond 65535 for another one.

    Args:
        url: of a data server.

    Raises:
        UsageError: it is none.
    """
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    numbered = port == "*" or (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= _LARGEST_PORT)
    if scheme not in ("tcp", "ipc") or not rest or (scheme == "tcp" and not (host and numbered)):
        raise UsageError(
            f"{url!r} is no address of a data server: tcp://host:5600, with a port up to 65535, or ipc:///path"
        )


class ZmqChannel:
    """A line to a server.

    Args:
        url: ``tcp://host:port`` or ``ipc://path``.
        keys: of this trainer, where the line is encrypted.
        server_key: public key of the server.

    Raises:
        UsageError: no such url.
        MissingExtra: pyzmq is not installed.
    """

    def __init__(self, url: str, keys: "KeyPair | None" = None, server_key: bytes | None = None) -> None:
        self._zmq = zmq = _import_zmq()
        self._socket = made = _find_context(zmq).socket(zmq.DEALER)
        made.linger = 0
        made.rcvhwm = made.sndhwm = _QUEUED_MESSAGES * 64
        made.setsockopt(zmq.MAXMSGSIZE, LARGEST_BATCH_BYTES)
        made.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS)
        made.setsockopt(zmq.RECONNECT_IVL_MAX, _MOST_RECONNECT_MILLISECONDS)
        made.setsockopt(zmq.IPV6, int("[" in url))
        if keys is not None and server_key is not None:
            made.curve_publickey, made.curve_secretkey, made.curve_serverkey = keys.public, keys.secret, server_key
        try:
            made.connect(url)
        except zmq.ZMQError as error:
            made.close()
            raise UsageError(f"{url!r} cannot be the address of a data server ({error}): tcp://host:port") from error

    def send(self, frames: Sequence[Frame]) -> bool:
        """Send a message; return False where nothing can be sent now."""
        try:
            self._socket.send_multipart(frames, self._zmq.NOBLOCK, copy=False)
        except self._zmq.Again:
            return False
        return True

    def receive(self, timeout_seconds: float, wake: socket.socket) -> list[memoryview] | None:
        """Wait for a message; return None after the timeout, or when ``wake`` can be read."""
        frames = _wait(self._zmq, self._socket, timeout_seconds, wake)
        return None if frames is None else [frame.buffer for frame in frames]

    def close(self) -> None:
        """Close the line; what was not sent is dropped."""
        self._socket.close(linger=0)


class ZmqListener:
    """The lines of a server.

    Args:
        url: to bind; port 0 is any free port.
        keys: of this server, where lines are encrypted.

    Attributes:
        url: that is bound.

    Raises:
        UsageError: the address cannot be bound.
        MissingExtra: pyzmq is not installed.
    """

    def __init__(self, url: str, keys: "KeyPair | None" = None) -> None:
        self._zmq = zmq = _import_zmq()
        self._socket = made = _find_context(zmq).socket(zmq.ROUTER)
        made.linger = 0
        made.rcvhwm = made.sndhwm = _QUEUED_MESSAGES * 4
        made.setsockopt(zmq.ROUTER_MANDATORY, 1)
        made.setsockopt(zmq.MAXMSGSIZE, LARGEST_STATE_BYTES)
        made.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MILLISECONDS)
        made.setsockopt(zmq.IPV6, int("[" in url))
        if keys is not None:
            made.curve_server = True
            made.curve_publickey, made.curve_secretkey = keys.public, keys.secret
        try:
            made.bind(url if not url.endswith(":0") else f"{url[:-1]}*")
        except zmq.ZMQError as error:
            made.close()
            raise UsageError(f"{url!r} cannot be bound ({error}): tcp://127.0.0.1:5600, say") from error
        self.url = bytes(made.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def send(self, peer: bytes, frames: Sequence[Frame]) -> bool:
        """Send a message; return False where the trainer's line is full.

        Raises:
            ConnectionError: there is no such trainer any more.
        """
        try:
            self._socket.send_multipart([peer, *frames], self._zmq.NOBLOCK, copy=False)
        except self._zmq.Again:
            return False
        except self._zmq.ZMQError as error:
            raise ConnectionError(str(error)) from error
        return True

    def receive(self, timeout_seconds: float, wake: socket.socket) -> tuple[bytes, list[memoryview]] | None:
        """Wait for a message; return None after the timeout, or when ``wake`` can be read."""
        frames = _wait(self._zmq, self._socket, timeout_seconds, wake)
        return None if frames is None else (frames[0].bytes, [frame.buffer for frame in frames[1:]])

    def close(self) -> None:
        """Close all lines."""
        self._socket.close(linger=0)
