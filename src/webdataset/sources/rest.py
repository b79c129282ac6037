"""Requests to services over http, sent once or with patience.

Flows in: a request, signed by whoever knows how. Flows out: an answer, or ``Again`` where none came. Who asks, and what
a status means, is for each service to say (:class:`Calls`). Neither an address nor a header is ever quoted: there may
be secrets in both.
"""

import re
from collections.abc import Callable, Container, Mapping
from typing import Any, TypeVar

from webdataset.ground.errors import SourceError
from webdataset.ground.redaction import redacted

from . import connections
from .objects import Again
from .patience import ATTEMPTS, Patience

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
BUSY = frozenset((408, 425, 429, 500, 502, 503, 504, 509))
"""Statuses after which asking again may help."""
GOOD = frozenset((200, 201, 202, 204, 206))
WITH_BYTES = frozenset((200, 203, 206))
"""Statuses of answers whose body is the object, or a part of it."""
CHANGED = frozenset((412, 416))

T = TypeVar("T")
_LENGTH = re.compile(r"[0-9]{1,19}\Z")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/([0-9]{1,19})$")


def exchanged(
    method: str,
    address: str,
    headers: Mapping[str, str],
    *,
    url: str,
    body: bytes | None = None,
    streamed: bool = False,
) -> Any:
    """Send one request; no redirect is followed.

    Args:
        method: ``GET``, ``PUT`` …
        address: where to; may hold secrets.
        headers: request headers.
        url: what the user calls it.
        body: what is sent along.
        streamed: leave the body of a good answer unread.

    Returns:
        A ``urllib3.HTTPResponse``; its ``data`` is there unless it is streamed.

    Raises:
        Again: no answer came.
        SourceError: the server's certificate is not trusted.
    """
    try:
        response = connections.send(method, address, headers, (CONNECT_SECONDS, READ_SECONDS), body, redirects=0)
        if not streamed or response.status >= 300:
            response.data  # noqa: B018  read and kept
    except connections.failures() as error:
        said = _said(error)
    else:
        return response
    if "CERTIFICATE_VERIFY_FAILED" in said:  # raised here: urllib3's errors show the address
        raise SourceError(f"the server's certificate is not trusted: {said}", url=url)
    raise Again(f"no answer from the service: {said}")


def _said(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        error = reason
    return redacted(f"{type(error).__name__}: {error}")


def patiently(ask: Callable[[], T], url: str, refresh: Callable[[], object], attempts: int | None = None) -> T:
    """Ask until there is an answer.

    Args:
        ask: asks once.
        url: what the user calls it.
        refresh: looks for new credentials.
        attempts: failures after which it is given up.

    Raises:
        SourceError: the service refuses, or does not answer.
    """
    attempts = attempts or ATTEMPTS
    patience = Patience(attempts)
    while True:
        try:
            return ask()
        except Again as again:
            failure = again
        if patience.spent():
            raise SourceError(f"no answer after {attempts} attempts: {failure}", url=url)
        patience.pause(failure.wait_seconds)
        if failure.expired:
            refresh()


def next_page(token: str | None, before: str | None, url: str) -> str | None:
    """Return what asks for the next page of a list; None after the last.

    Args:
        token: what this page says.
        before: what asked for this page.
        url: what is listed.

    Raises:
        SourceError: the list would never end.
    """
    if token and token == before:
        raise SourceError("the service gives the same page of its list over and over", url=url)
    return token or None


def placed(response: Any) -> tuple[int, int | None, int | None]:
    """Return where in the object an answer's body begins (-1: it does not say), the object's length, the body's.

    Args:
        response: an answer with a good status.

    Raises:
        Again: it holds no object: nothing, or a promise.
    """
    if response.status not in WITH_BYTES:
        response.close()
        raise Again(f"status {response.status} came, and no object")
    size = length_of(response.headers.get("Content-Length", ""))
    return (0, size, size) if response.status != 206 else (*span_of(response.headers.get("Content-Range", "")), size)


def span_of(text: str) -> tuple[int, int | None]:
    """Return where in the object a range begins, and the object's length; -1 and None where that is not said.

    Args:
        text: ``Content-Range``.
    """
    found = _CONTENT_RANGE.match(text)
    return (int(found[1]), int(found[2])) if found else (-1, None)


def length_of(text: str) -> int | None:
    """Return the number that a header with a length holds; None where it holds none.

    Args:
        text: the header.
    """
    return int(text) if _LENGTH.match(text) else None


def range_header(offset: int, size: int | None) -> dict[str, str]:
    """Return the header that asks for some bytes; none for the whole object.

    Args:
        offset: the first byte.
        size: how many; None for all to the end.
    """
    if not offset and size is None:
        return {}
    return {"Range": f"bytes={offset}-" if size is None else f"bytes={offset}-{offset + size - 1}"}


class Calls:
    """Requests about one object or container; a service says who asks, and what its refusals mean.

    Args:
        url: what the user calls it.
        attempts: failures in a row after which a request is given up.

    Attributes:
        url: what the user calls it.
        requests: requests sent so far.
    """

    def __init__(self, url: str, attempts: int | None = None) -> None:
        self.url = url
        self.requests = 0
        self._attempts = attempts
        self._doubted = False

    def refresh(self) -> None:
        """Look for credentials anew."""
        raise NotImplementedError

    def _signed(self, method: str, address: str, headers: dict[str, str], size: int) -> tuple[str, dict[str, str]]:
        """Return address and headers of a request that says who asks.

        Args:
            method: ``GET`` ….
            address: where to.
            headers: of the request.
            size: bytes of its body.
        """
        raise NotImplementedError

    def _refused(self, response: Any, offset: int) -> Again | SourceError:
        """Return the error to raise for an answer that is none of the good ones.

        Args:
            response: the answer, read.
            offset: where in the object we are.
        """
        raise NotImplementedError

    def _doubt(self) -> bool:
        """Tell whether credentials that were refused may be looked up again: once between two good answers."""
        before, self._doubted = self._doubted, True
        return not before

    def ask(
        self,
        method: str,
        address: str,
        headers: dict[str, str] | None = None,
        *,
        body: bytes | None = None,
        streamed: bool = False,
        good: Container[int] = GOOD,
        offset: int = 0,
    ) -> Any:
        """Send a request once.

        Args:
            method: ``GET`` ….
            address: where to.
            headers: beside those that say who asks.
            body: what is sent along.
            streamed: leave the body of the answer unread.
            good: statuses that the caller understands.
            offset: where in the object we are, for messages.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it is another object by now.
            SourceError: the service refuses.
        """
        target, sent = self._signed(method, address, headers or {}, len(body or b""))
        self.requests += 1
        response = exchanged(method, target, sent, url=self.url, body=body, streamed=streamed)
        if response.status in good:
            self._doubted = False
            return response
        response.close()
        raise self._refused(response, offset)

    def call(self, method: str, address: str, headers: dict[str, str] | None = None, **options: Any) -> Any:
        """Send a request until it is answered.

        Args:
            method: ``GET`` ….
            address: where to.
            headers: beside those that say who asks.
            **options: as for :meth:`ask`.

        Raises:
            NotFound: nothing is there.
            SourceError: the service refuses, or does not answer.
        """
        return patiently(lambda: self.ask(method, address, headers, **options), self.url, self.refresh, self._attempts)
