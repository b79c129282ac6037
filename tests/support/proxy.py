"""A web proxy on this machine that breaks answers on purpose, by a seed or a plan.

Answers of a working server are cut, reset, stalled, refused, or about something else than was asked. A run replays
from its seed. Signatures stay valid: the request is passed on as it came, with the client's ``Host``;
only where a header that may be signed is left out, so is the signature: the object must be readable by everybody then.
"""

import contextlib
import http.client
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable
from threading import Event, Lock
from typing import NamedTuple, Self

from webdataset.core.seeds import make_rng
from webdataset.testing.sources import Answering, Listening

KINDS = ("reset", "cut", "stall", "busy", "throttled", "rangeless", "misplaced", "swapped", "expired")

_STATUS = {
    "busy": (503, "SlowDown"),
    "throttled": (429, "TooManyRequests"),
    "expired": (400, "ExpiredToken"),
    "denied": (403, "AuthenticationFailed"),
}
_PIECE = 1 << 16
_UNSENT = 0x894B  # SIOCOUTQNSD of Linux
_NOT_PASSED = frozenset(("connection", "transfer-encoding", "keep-alive"))
_START = re.compile(r"(bytes )(\d+)(?=-)")


class Fault(NamedTuple):
    """What goes wrong with one answer.

    Args:
        kind: one of :data:`KINDS`, or ``denied`` (403).
            ``reset`` and ``cut`` end the body after ``after`` bytes (by RST, by an orderly end), ``stall`` goes
            silent there; ``busy`` (503), ``throttled`` (429 with ``Retry-After``) and ``expired`` (400
            ``ExpiredToken``) are refusals; ``rangeless`` ignores the range, ``misplaced`` names another range than it
            sends; ``swapped`` resets after the object was replaced.
        after: bytes of body sent before.
        wait_seconds: what ``Retry-After`` says; None for no such header.
    """

    kind: str
    after: int = 0
    wait_seconds: int | None = None


class Passed(NamedTuple):
    """One request that went through the proxy.

    Args:
        method: ``GET`` ….
        path: with the query.
        range: the ``Range`` header.
        fault: what went wrong, or None.
    """

    method: str
    path: str
    range: str | None
    fault: Fault | None


Plan = Callable[[str, str], Fault | None]


class FaultyProxy:
    """The proxy.

    Args:
        upstream: ``host:port`` of the server that works.
        plan: method and path to what shall go wrong, called once for each request; see :func:`seeded` and
            :func:`planned`.
        swap: replaces the object (for ``swapped``).
        careless: conditions (``If-Match``) are not passed on, as by services that ignore them.

    Attributes:
        url: of the proxy, without a slash at its end.
        passed: requests so far.
        sent: bytes of body sent to clients.
    """

    def __init__(
        self, upstream: str, plan: Plan, *, swap: Callable[[], object] | None = None, careless: bool = False
    ) -> None:
        self.upstream, self.plan, self.swap, self.careless = upstream, plan, swap, careless
        self.url = ""
        self.passed: list[Passed] = []
        self.sent = 0
        self.released = Event()
        self.lock = Lock()

    def __enter__(self) -> Self:
        self._server = Listening(_Passing, self).start()
        self.url = self._server.url
        return self

    def __exit__(self, *failure: object) -> None:
        self.released.set()
        self._server.stop()


def planned(faults: Iterable[Fault | None], *, methods: Iterable[str] = ("GET",)) -> Plan:
    """Return a plan: the faults in turn, then none.

    Args:
        faults: one for each request; None passes it on.
        methods: requests that count; others pass.
    """
    rest, counted = iter(faults), frozenset(methods)
    return lambda method, _path: next(rest, None) if method in counted else None


def seeded(seed: int, kinds: Iterable[str], *, size: int, rate: float = 0.5, most: int = 6) -> Plan:
    """Return a plan drawn from a seed.

    Args:
        seed: gives the same faults each time.
        kinds: of :data:`KINDS`.
        size: bytes of the objects; bodies break off before.
        rate: share of the answers that go wrong.
        most: faults in all.
    """
    rng, chosen, left = make_rng("faults", seed), tuple(kinds), [most]
    lock = Lock()

    def plan(_method: str, _path: str) -> Fault | None:
        with lock:
            if left[0] == 0 or rng.random() >= rate:
                return None
            left[0] -= 1
            return Fault(rng.choice(chosen), rng.randrange(size), rng.choice((None, 0, 1)))

    return plan


def _await_sent(connection: socket.socket) -> None:
    """Wait until the system has sent what it was given, so that a reset takes none of it back; two seconds at most."""
    until = time.monotonic() + 2
    with contextlib.suppress(ImportError, OSError):
        import fcntl  # noqa: PLC0415  not on every system

        while time.monotonic() < until:
            answer = fcntl.ioctl(connection.fileno(), _UNSENT, b"\0\0\0\0")
            if not struct.unpack("i", answer)[0]:
                return
            time.sleep(0.001)


def _left_out(fault: Fault | None, *, careless: bool) -> set[str]:
    """Return the headers of a request that are not passed on."""
    names = {"if-match", "if-unmodified-since"} if careless else set()
    if fault is not None and fault.kind == "rangeless":
        names.add("range")
    return {"connection", *names, *(("authorization", "x-amz-date", "x-amz-content-sha256") if names else ())}


class _Passing(Answering):
    """Pass one request on, and its answer back, more or less."""

    def _pass(self) -> None:
        rules: FaultyProxy = self.server.rules
        fault = rules.plan(self.command, self.path)
        with rules.lock:
            rules.passed.append(Passed(self.command, self.path, self.headers.get("Range"), fault))
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault is not None and fault.kind in _STATUS:
            self._refuse(fault)
            return
        left_out = _left_out(fault, careless=rules.careless and self.command == "GET")
        upstream = http.client.HTTPConnection(rules.upstream, timeout=30)
        with contextlib.closing(upstream):
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, text in self.headers.items():
                if name.lower() not in left_out:
                    upstream.putheader(name, text)
            upstream.endheaders(sent or None)
            self._answer(upstream.getresponse(), fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815  names of the base class

    def _refuse(self, fault: Fault) -> None:
        status, code = _STATUS[fault.kind]
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as planned</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("x-ms-error-code", code)
        self.send_header("Content-Length", str(len(body)))
        if fault.wait_seconds is not None:
            self.send_header("Retry-After", str(fault.wait_seconds))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer(self, response: http.client.HTTPResponse, fault: Fault | None) -> None:
        self.send_response_only(response.status, response.reason)
        for name, text in response.getheaders():
            if name.lower() not in _NOT_PASSED:
                misplaced = fault is not None and fault.kind == "misplaced" and name.lower() == "content-range"
                shifted = _START.sub(lambda found: f"{found[1]}{int(found[2]) + 1}", text)
                self.send_header(name, shifted if misplaced else text)
        bodiless = self.command == "HEAD" or response.status in (204, 304)
        if not bodiless and response.getheader("Content-Length") is None:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if not bodiless:
            breaks = fault is not None and fault.kind in ("reset", "cut", "stall", "swapped")
            self._body(response, fault if breaks and response.status < 300 else None)

    def _body(self, response: http.client.HTTPResponse, fault: Fault | None) -> None:
        rules: FaultyProxy = self.server.rules
        left = fault.after if fault is not None else None
        while left is None or left > 0:
            piece = response.read(_PIECE if left is None else min(_PIECE, left))
            if not piece:
                break
            self.wfile.write(piece)
            left = None if left is None else left - len(piece)
            with rules.lock:
                rules.sent += len(piece)
        if fault is not None:
            self._break(fault, rules)

    def _break(self, fault: Fault, rules: FaultyProxy) -> None:
        self.wfile.flush()
        self.close_connection = True
        if fault.kind == "stall":
            rules.released.wait(30)
        if fault.kind == "swapped" and rules.swap is not None:
            rules.swap()
        if fault.kind in ("reset", "swapped"):
            _await_sent(self.connection)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()  # RST rather than FIN: bytes on their way may be lost, too
