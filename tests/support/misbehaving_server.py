"""A web server of one object that misbehaves as a generator says: for Hypothesis, over real sockets.

Each request of the object gets the next answer of the list; when the list is over, the server behaves. An
:class:`Answer` is what is wrong with one of them. ``answers()`` generates lists. What no client can prove is left out:
a body of other bytes under the right headers.
"""

import contextlib
import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from webdataset.testing.sources import Answering, Listening

_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")

KINDS = (
    "good", "whole", "cut", "cut_headers", "silent_close", "longer", "shifted", "other_total", "no_range", "changed",
    "changed_ignoring", "redirect", "redirect_loop", "redirect_away", "not_modified", "no_content", "unsaid_range",
    "chunked", "chunked_cut", "no_length", "gzip", "no_etag", "busy", "too_many", "refused_range", "refused",
)  # fmt: skip
"""What may be wrong with an answer; each says in :meth:`_Object.answer` what it does."""


@dataclass(frozen=True)
class Answer:
    """One answer.

    Args:
        kind: one of :data:`KINDS`.
        at: which part of the body comes where it is cut, from 0 to 1; which byte a wrong range begins at.
    """

    kind: str
    at: float = 0.5


def answers(most: int = 6) -> st.SearchStrategy[list[Answer]]:
    """Generate lists of answers.

    Args:
        most: answers at most.
    """
    one = st.builds(Answer, st.sampled_from(KINDS), st.sampled_from((0.0, 0.001, 0.3, 0.5, 0.97, 1.0)))
    return st.lists(one, max_size=most)


class MisbehavingServer(Listening):
    """The server.

    Args:
        content: the object's bytes; may be replaced while it runs.
        other: the bytes of another version.

    Attributes:
        faults: what is wrong with the next answers.
        asked: the requests so far: path and ``Range``.
    """

    def __init__(self, content: bytes, other: bytes) -> None:
        super().__init__(_Object)
        self.content, self.other = content, other
        self.faults: list[Answer] = []
        self.asked: list[tuple[str, str | None]] = []

    def misbehave(self, faults: list[Answer]) -> None:
        """Begin anew, with a list of answers."""
        self.faults, self.asked = list(faults), []


class _Object(Answering):
    def do_GET(self) -> None:  # noqa: N802  a name of the base class
        """Answer as the next fault says."""
        server: Any = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        if self.path.startswith("/loop"):
            self._send(302, {"Location": self.path + "x"})
            return
        fault = server.faults.pop(0) if server.faults and not self.path.startswith("/moved") else Answer("good")
        with contextlib.suppress(OSError):
            self.answer(fault, server.content)

    def answer(self, fault: Answer, content: bytes) -> None:
        """Send one answer."""
        server: Any = self.server
        kind, etag = fault.kind, '"1"'
        if kind in ("changed", "changed_ignoring"):
            content, etag = server.other, '"2"'
        condition = self.headers.get("If-Match")
        if condition not in (None, etag) and kind != "changed_ignoring":
            self._send(412, {})
            return
        plain: dict[str, Callable[[], None]] = {
            "redirect": lambda: self._send(302, {"Location": "/moved" + self.path}),
            "redirect_loop": lambda: self._send(302, {"Location": "/loop"}),
            "redirect_away": lambda: self._send(302, {"Location": "file:///etc/hostname"}),
            "not_modified": lambda: self._send(304, {"ETag": etag}),
            "no_content": lambda: self._send(204, {}),
            "busy": lambda: self._send(503, {"Retry-After": "0"}),
            "too_many": lambda: self._send(429, {}),
            "refused": lambda: self._send(403, {}),
            "silent_close": self._hang_up,
        }
        if kind in plain:
            plain[kind]()
            return
        self._send_object(fault, content, {} if kind == "no_etag" else {"ETag": etag})

    def _send_object(self, fault: Answer, content: bytes, headers: dict[str, str]) -> None:
        """Send the object or a range of it, with what is wrong about it."""
        kind = fault.kind
        wanted = _RANGE.match(self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        stop = min(int(wanted[2]) + 1, len(content)) if wanted and wanted[2] else len(content)
        if wanted and (kind == "refused_range" or start >= len(content)):
            self._send(416, {"Content-Range": f"bytes */{len(content)}"})
            return
        status = 206 if wanted and kind not in ("whole", "chunked", "chunked_cut", "no_length", "gzip") else 200
        if kind == "unsaid_range":
            status = 206
        body = content[start:stop] if status == 206 else content
        if status == 206 and kind not in ("no_range", "unsaid_range"):
            # bytes of another place, said to be so
            begin = max(0, start - 1 - int(fault.at * 1000)) if kind == "shifted" else start
            body = content[begin : begin + len(body)]
            total = len(content) + (7 if kind == "other_total" else 0)
            headers["Content-Range"] = f"bytes {begin}-{begin + len(body) - 1}/{total}"
        if kind == "gzip":
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        if kind in ("chunked", "chunked_cut"):
            self._send_chunks(body, headers, fault)
            return
        if kind != "no_length":
            headers["Content-Length"] = str(len(body) + (1000 if kind == "longer" else 0))
        cut = {"cut": int(fault.at * len(body)), "cut_headers": 0}.get(kind, len(body))
        self._send(
            status, headers, body[:cut], ends=kind in ("cut", "longer", "no_length"), whole=kind != "cut_headers"
        )

    def _send_chunks(self, body: bytes, headers: dict[str, str], fault: Answer) -> None:
        """Send a body in chunks, and stop within one where it is cut."""
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in _pieces(body)) + b"0\r\n\r\n"
        if fault.kind == "chunked_cut":
            chunks = chunks[: int(fault.at * (len(chunks) - 5))]
        self._send(200, {**headers, "Transfer-Encoding": "chunked"}, chunks, ends=fault.kind == "chunked_cut")

    def _send(
        self, status: int, headers: dict[str, str], body: bytes = b"", *, ends: bool = False, whole: bool = True
    ) -> None:
        """Write an answer; ``ends`` closes the connection after it, ``whole`` ends its headers."""
        if not body and "Content-Length" not in headers and status not in (204, 304) and not ends:
            headers = {**headers, "Content-Length": "0"}
        lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {text}" for name, text in headers.items())]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        self.wfile.write(head + body if whole else head[: -len(lines[-1]) // 2 - 2])
        self.wfile.flush()
        if ends or not whole:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True


def _pieces(body: bytes) -> list[bytes]:
    return [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
