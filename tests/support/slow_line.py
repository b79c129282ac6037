"""A slow line to a server on this machine: each request takes its time, each connection has a bound of its own.

The line runs in a process of its own, so that it takes nothing from the interpreter under test; it passes bytes on and
knows nothing of what they mean. As on a long way, what is asked arrives late, connections share no bound, and an idle
one saves nothing up.

``slow_line.py HOST PORT SECONDS BYTES_PER_SECOND`` prints the port, and ends with its input.
"""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

_CHUNK = 64 * 1024
_BURST_SECONDS = 0.005
_WORDS = 5


@contextlib.contextmanager
def slow_line(host: str, port: int, *, latency_seconds: float, bytes_per_second: float) -> Iterator[str]:
    """Run a line.

    Args:
        host: of the server.
        port: of the server.
        latency_seconds: by which each piece of a request comes late.
        bytes_per_second: of answers, for each connection.

    Yields:
        ``http://127.0.0.1:port``.
    """
    words = [sys.executable, __file__, host, str(port), str(latency_seconds), str(bytes_per_second)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603  our own
        if child.stdin is None or child.stdout is None:
            raise OSError("the line has no pipes")
        try:
            yield f"http://127.0.0.1:{int(child.stdout.readline())}"
        finally:
            child.stdin.close()
            child.wait()


def _late(source: socket.socket, sink: socket.socket, latency_seconds: float) -> None:
    """Pass requests on, late."""
    with contextlib.suppress(OSError):
        while piece := source.recv(_CHUNK):
            time.sleep(latency_seconds)
            sink.sendall(piece)
    for end in (sink, source):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _bounded(source: socket.socket, sink: socket.socket, bytes_per_second: float) -> None:
    """Pass answers on, at most so fast."""
    due, space = 0.0, memoryview(bytearray(_CHUNK))
    with contextlib.suppress(OSError):
        while count := source.recv_into(space):
            now = time.monotonic()
            due = max(due, now - _BURST_SECONDS)
            sink.sendall(space[:count])
            due += count / bytes_per_second
            if due - now > _BURST_SECONDS:
                time.sleep(due - now)
    for end in (sink, source):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _joined(client: socket.socket, server: tuple[str, int], latency_seconds: float, bytes_per_second: float) -> None:
    """Serve one connection."""
    with client, contextlib.suppress(OSError), socket.create_connection(server) as far:
        for end in (client, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asking = threading.Thread(target=_late, args=(client, far, latency_seconds), daemon=True)
        asking.start()
        _bounded(far, client, bytes_per_second)
        asking.join()


def _serve(server: tuple[str, int], latency_seconds: float, bytes_per_second: float) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _CHUNK)  # no more may lie about on the way
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(
                target=_joined, args=(client, server, latency_seconds, bytes_per_second), daemon=True
            ).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


def main(words: list[str]) -> None:
    """Run the line until the input ends.

    Args:
        words: of the command line.

    Raises:
        SystemExit: other words than four.
    """
    if len(words) != _WORDS:
        raise SystemExit(__doc__)
    _, host, port, latency, rate = words
    _serve((host, int(port)), float(latency), float(rate))


if __name__ == "__main__":
    main(sys.argv)
