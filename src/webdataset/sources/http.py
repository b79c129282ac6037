"""Streams over http and https, read in this process.

Flows in: a url. Flows out: the body as the server stores it (never decompressed on the way), all of it: the number of
bytes is compared with Content-Length, and a connection that drops is taken up again where it stopped if the server
can prove that the object is still the same. Anything less is :class:`ShortRead`, never a quiet end.

Waiting is bounded: 10 s to connect, 60 s without a byte, a few quick attempts where a server is busy.
"""

import io
import re
import time
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from webdataset.ground.errors import NotFound, ShortRead, SourceError
from webdataset.ground.redaction import redacted
from webdataset.ground.seeds import fresh

from . import connections

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
ATTEMPTS = 7
FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 10.0
RESUMES_WITHOUT_PROGRESS = 3

_BUSY = frozenset((408, 425, 429, 500, 502, 503, 504))
_ABSENT = frozenset((404, 410))
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)$")


class Identity(NamedTuple):
    """What must not change between two answers about one object."""

    etag: str | None
    modified: str | None
    length: int | None

    def provable(self) -> bool:
        """Tell whether a second answer can be recognised as being about the same bytes."""
        return self.length is not None and (self.etag is not None or self.modified is not None)


class HttpStream(io.RawIOBase):
    """The body of one GET request, unbuffered.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        headers: further request headers.
        connect_seconds: bound on connecting.
        read_seconds: bound on waiting for the next byte.

    Raises:
        NotFound: status 404 or 410.
        SourceError: another error status, or no connection after a few attempts.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        super().__init__()
        self.name = url
        self._headers = dict(headers or {})
        self._timeouts = (connect_seconds, read_seconds)
        self._received = 0
        self._response = answered(url, self._headers, self._timeouts)
        self._read = self._response.read
        self._identity = _identity(self._response)
        self.length = self._identity.length
        self._resumes = 0

    def __repr__(self) -> str:
        return f"<HttpStream {redacted(self.name)} at {self._received} of {self.length}>"

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes, all the rest where ``size`` is negative, ``b""`` at the end.

        Raises:
            ShortRead: the body ended early and could not be taken up again.
        """
        if size is None or size < 0:
            return self.readall()
        if self.closed:
            raise ValueError("read from a closed stream")
        while True:
            try:
                content: bytes = self._read(size, decode_content=False)
            except connections.failures() as error:
                self._resume(error)
                continue
            if content:
                self._received += len(content)
                self._resumes = 0
                return content
            if size == 0 or self.length is None or self._received >= self.length:
                return content
            self._resume(None)

    def readall(self) -> bytes:
        """Return the rest."""
        pieces = []
        while piece := self.read(1 << 20):
            pieces.append(piece)
        return b"".join(pieces)

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, in part or whole; returns the number of bytes, 0 at the end."""
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def readable(self) -> bool:
        """Tell that this can be read."""
        return True

    def tell(self) -> int:
        """Return the number of bytes read so far."""
        return self._received

    def close(self) -> None:
        """Give the connection back if the body was read to its end, drop it otherwise."""
        if not self.closed:
            super().close()
            if "_response" in self.__dict__:
                self._drop()

    def _drop(self) -> None:
        if self.length is not None and self._received == self.length:
            self._response.release_conn()
        else:
            self._response.close()

    def _resume(self, cause: Exception | None) -> None:
        """Ask for the rest of the same object, or raise ShortRead."""
        self._drop()
        self._resumes += 1
        if not self._identity.provable():
            raise self._short("the server gives no ETag or date by which the rest could be asked for") from cause
        if self._resumes > RESUMES_WITHOUT_PROGRESS:
            raise self._short(f"{RESUMES_WITHOUT_PROGRESS} attempts to take it up again gave nothing") from cause
        time.sleep(FIRST_DELAY_SECONDS * (self._resumes - 1))
        wanted = {**self._headers, "Range": f"bytes={self._received}-", **_condition(self._identity)}
        try:
            response = answered(self.name, wanted, self._timeouts)
        except SourceError as error:
            raise self._short(f"asking for the rest failed: {error}") from error
        if not self._continues(response):
            response.close()
            raise self._short("the server did not answer with the rest of the same object") from cause
        self._response, self._read = response, response.read

    def _continues(self, response: Any) -> bool:
        """Tell whether an answer holds the bytes from here to the end of the same object."""
        found = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        if response.status != 206 or found is None:
            return False
        etag, modified, _ = _identity(response)
        same = etag == self._identity.etag if self._identity.etag else modified == self._identity.modified
        return same and (int(found[1]), int(found[2])) == (self._received, self.length)

    def _short(self, reason: str) -> ShortRead:
        promised = "an unknown number of" if self.length is None else self.length
        return ShortRead(f"the body ended after {self._received} of {promised} bytes, and {reason}", url=self.name)


def answered(url: str, headers: Mapping[str, str], timeouts: tuple[float, float], also: Container[int] = ()) -> Any:
    """Send a GET and return the answer once it is a success; a busy server is asked again.

    Args:
        url: the url.
        headers: request headers.
        timeouts: seconds to connect, seconds without a byte.
        also: further statuses that the caller understands.

    Raises:
        NotFound: status 404 or 410.
        SourceError: another status, or no answer after a few attempts.
    """
    for attempt in range(ATTEMPTS):
        response = failure = None
        try:
            response = connections.get(url, headers, timeouts)
        except connections.unanswered() as error:
            failure = getattr(error, "reason", error)
        if response is not None and (response.status < 300 or response.status in also):
            return response
        if response is not None:
            response.close()
        if attempt + 1 == ATTEMPTS or (response is not None and response.status not in _BUSY):
            break
        time.sleep(_pause(response, attempt))
    raise _refusal(url, response, failure) from (failure if isinstance(failure, BaseException) else None)


def _pause(response: Any, attempt: int) -> float:
    """Return seconds to wait: doubling, spread so that ranks do not return together; a server's wish is heard."""
    pause = FIRST_DELAY_SECONDS * 2.0**attempt * (0.5 + fresh() / 2**64)
    wish = response.headers.get("Retry-After", "") if response is not None else ""
    return min(max(pause, float(wish)) if wish.isdigit() else pause, LONGEST_DELAY_SECONDS)


def _refusal(url: str, response: Any, failure: Any) -> SourceError:
    if response is None:
        return SourceError(f"no answer from the server after {ATTEMPTS} attempts: {failure}", url=url)
    status = f"the server answered {response.status} {response.reason or ''}".rstrip()
    if response.status in _ABSENT:
        return NotFound(status, url=url)
    hint = "; check the credentials" if response.status in (401, 403) else ""
    return SourceError(f"{status}{hint}", url=url)


def _identity(response: Any) -> Identity:
    headers = response.headers
    etag, length = headers.get("ETag"), headers.get("Content-Length", "")
    strong = etag if etag and not etag.startswith("W/") else None
    return Identity(strong, headers.get("Last-Modified"), int(length) if length.isdigit() else None)


def _condition(identity: Identity) -> dict[str, str]:
    if identity.etag is not None:
        return {"If-Match": identity.etag}
    return {"If-Unmodified-Since": identity.modified or ""}


def gopen_http(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> Any:
    """Open an ``http:`` or ``https:`` url.

    Args:
        url: the url.
        mode: ``rb`` reads it in this process; ``wb`` uploads by ``curl`` with PUT.
        bufsize: bytes buffered when uploading.
        **options: further arguments of :class:`HttpStream`.

    Raises:
        NotFound: nothing is there.
        SourceError: the server refuses, or does not answer.
    """
    if mode == "rb":
        return HttpStream(url, **options)
    from .commands import gopen_curl  # noqa: PLC0415  only for uploads

    return gopen_curl(url, mode, bufsize)
