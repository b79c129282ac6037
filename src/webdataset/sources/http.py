"""Streams over http and https, read in this process.

Flows in: a url. Flows out: the body as the server stores it (never decompressed on the way), all of it, by the one
resuming reader: the number of bytes is compared with Content-Length, and a connection that drops is taken up again
where it stopped if the server can prove that the object is still the same. The url is asked for anew each time, so
that redirects to signed places are resolved again.

Waiting is bounded: 10 s to connect, 60 s without a byte, a few quick attempts where a server is busy.
"""

import re
import time
from collections.abc import Container, Mapping
from typing import Any

from webdataset.ground.errors import ConfigError, NotFound, SourceError
from webdataset.ground.redaction import redacted
from webdataset.ground.seeds import fresh

from . import connections
from .objects import Again, Answer, Identity, changed
from .patience import wish_of
from .profiles.options import options_for
from .profiles.secret import Secret
from .resuming import ResumingStream

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
ATTEMPTS = 7
FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 10.0

_BUSY = frozenset((408, 425, 429, 500, 502, 503, 504))
_ABSENT = frozenset((404, 410))
_CHANGED = frozenset((412, 416))
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/([0-9]{1,19})$")


class HttpObject:
    """One object on a web server, as the resuming reader asks for it.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        headers: further request headers.
        timeouts: seconds to connect, seconds without a byte.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None, timeouts: tuple[float, float]) -> None:
        self.url = url
        self._headers = dict(headers or {})
        self._timeouts = timeouts

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return connections.failures()

    def refresh(self) -> None:
        """Nothing is kept between two requests."""

    def open_at(self, offset: int, known: Identity | None, size: int | None = None) -> Answer:
        """Send one GET; see :class:`~webdataset.sources.objects.ObjectSource`.

        Args:
            offset: the first byte wanted.
            known: who the object was at first.
            size: bytes wanted; None for all.

        Raises:
            Again: asking again may help.
            NotFound: status 404 or 410.
            ShardChanged: the server says that it is another object by now.
            SourceError: another status.
        """
        wanted = dict(self._headers)
        if offset or size is not None:
            wanted["Range"] = f"bytes={offset}-" if size is None else f"bytes={offset}-{offset + size - 1}"
        if known is not None and known.provable():
            wanted.update(_condition(known))
        response = None
        try:
            response = connections.get(self.url, wanted, self._timeouts)
        except connections.unanswered() as error:
            said = redacted(str(getattr(error, "reason", None) or error))
        if response is None:  # raised here, since the error of urllib3 shows the url as it is
            if "redirects" in said:
                raise SourceError(said, url=self.url)
            raise Again(f"no answer from the server: {said}")
        if response.status < 300:
            return _answer(response)
        response.close()
        refusal = _refusal(self.url, response, None)
        if response.status in _BUSY:
            raise Again(refusal.message, wait_seconds=wish_of(response.headers.get("Retry-After")))
        raise changed(self.url, offset) if offset and response.status in _CHANGED else refusal


class HttpStream(ResumingStream):
    """The body of one GET request, unbuffered.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        headers: further request headers.
        connect_seconds: bound on connecting.
        read_seconds: bound on waiting for the next byte.
        attempts: failures in a row, without progress between them, after which reading is given up.

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
        attempts: int = ATTEMPTS,
    ) -> None:
        super().__init__(HttpObject(url, headers, (connect_seconds, read_seconds)), attempts=attempts)


def _answer(response: Any) -> Answer:
    """Read who the object is from an answer's headers."""
    headers = response.headers
    etag, size = headers.get("ETag"), headers.get("Content-Length", "")
    length = int(size) if size.isdigit() else None
    start, total = 0, length
    if response.status == 206:
        found = _CONTENT_RANGE.match(headers.get("Content-Range", ""))
        start, total = (int(found[1]), int(found[2])) if found else (-1, None)
    strong = etag if etag and not etag.startswith("W/") else None
    return Answer(response, start, Identity(strong, None, headers.get("Last-Modified"), total), length)


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


def _condition(identity: Identity) -> dict[str, str]:
    if identity.etag is not None:
        return {"If-Match": identity.etag}
    return {"If-Unmodified-Since": identity.modified or ""}


def object_of(url: str, storage_options: Any = None) -> HttpObject:
    """Return the object of an ``http(s):`` url; see :mod:`webdataset.sources.stores`."""
    return HttpObject(url, _headers(storage_options, url), (CONNECT_SECONDS, READ_SECONDS))


def _headers(storage_options: Any, url: str) -> dict[str, str]:
    """Return the request headers that storage options ask for."""
    found = options_for("http", storage_options, url)
    headers = {name: value.reveal() if isinstance(value, Secret) else value for name, value in found.get("headers", ())}
    if "token" in found:
        headers["Authorization"] = f"Bearer {found['token'].reveal()}"
    return headers


def upload_to(url: str, storage_options: Any = None, *, bufsize: int = 8192, **options: Any) -> Any:
    """Return a stream that ``curl`` uploads with PUT; see :mod:`webdataset.sources.stores`."""
    from .commands import gopen_curl  # noqa: PLC0415  only for uploads

    if _headers(storage_options, url):
        raise ConfigError("uploads over http take no headers and no token", url=url)
    return gopen_curl(url, "wb", bufsize, **options)


def gopen_http(url: str, mode: str = "rb", bufsize: int = 8192, *, storage_options: Any = None, **options: Any) -> Any:
    """Open an ``http:`` or ``https:`` url.

    Args:
        url: the url.
        mode: ``rb`` reads it in this process; ``wb`` uploads by ``curl`` with PUT.
        bufsize: bytes buffered when uploading.
        storage_options: ``headers``, a mapping; ``token`` for ``Authorization: Bearer``.
        **options: further arguments of :class:`HttpStream`.

    Raises:
        NotFound: nothing is there.
        SourceError: the server refuses, or does not answer.
    """
    if mode == "rb":
        headers = {**_headers(storage_options, url), **options.pop("headers", {})}
        return HttpStream(url, headers=headers, **options)
    return upload_to(url, storage_options, bufsize=bufsize)
