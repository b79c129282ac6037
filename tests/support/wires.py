"""A wire on this machine that is cut on purpose, below whatever is spoken over it: TLS, ssh, anything on TCP.

As many bytes pass as the plan allows; then comes a reset, an orderly end, or silence. One entry of the plan is used up
by each connection; the connections after the last one are left alone.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterable
from typing import Self

_PIECE = 1 << 14


class CutWire:
    """A TCP proxy.

    Args:
        port: of the server, at 127.0.0.1.
        plan: for each connection in turn, after how many bytes from the server it is cut; None: never.
        kind: ``reset`` (RST), ``end`` (FIN), or ``silence``: nothing more comes, and nothing is closed.

    Attributes:
        port: where it listens.
        connections: how many there were.
        sent: bytes that came from the server, over all of them.
    """

    def __init__(self, port: int, plan: Iterable[int | None] = (), kind: str = "reset") -> None:
        self._target, self.plan, self.kind = port, list(plan), kind
        self.connections = self.sent = 0
        self.port = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *failure: object) -> None:
        self.cut("end")
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(5)

    def cut(self, kind: str = "reset") -> None:
        """Cut all connections there are, now.

        Args:
            kind: as for the wire.
        """
        ended, self._open = self._open, []
        for line in ended:
            _cut(line, kind)

    def _start(self, work: object, *words: object) -> None:
        thread = threading.Thread(target=work, args=words, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self.connections += 1
                allowed = self.plan.pop(0) if self.plan else None
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                self._start(self._carry, near, far, None, False)
                self._start(self._carry, far, near, allowed, True)

    def _carry(self, source: socket.socket, target: socket.socket, allowed: int | None, answers: bool) -> None:  # noqa: FBT001
        with contextlib.suppress(OSError):
            while allowed is None or allowed > 0:
                piece = source.recv(_PIECE if allowed is None else min(_PIECE, allowed))
                target.sendall(piece)
                if answers:
                    with self._lock:
                        self.sent += len(piece)
                if not piece:
                    target.shutdown(socket.SHUT_WR)
                    return
                allowed = None if allowed is None else allowed - len(piece)
            if self.kind != "silence":
                _cut(source, self.kind)
                _cut(target, self.kind)


def _cut(line: socket.socket, kind: str) -> None:
    with contextlib.suppress(OSError):
        if kind == "reset":
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.shutdown(socket.SHUT_RD if kind == "reset" else socket.SHUT_RDWR)  # wakes the thread that waits for it
    line.close()
