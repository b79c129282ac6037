"""Objects of services that speak HTTP: the read path of http, gcs, azure, aistore, huggingface and s3; a client.

A backend derives its object from :class:`HttpRemoteObject`: ``request`` sends one request for a range of the known
version and translates refusals, ``version`` reads the version from the headers. :class:`ServiceClient` sends the
requests of services that sign them. A response that does not say which bytes it holds is never passed on as a range.
"""

import json
import re
from collections.abc import Callable, Container, Mapping
from typing import ClassVar, NamedTuple, TypeVar

from webdataset.core.errors import SourceError
from webdataset.storage import http_client
from webdataset.storage.http_client import HttpResponse, describe_error, retry, send_once
from webdataset.storage.object_store import (
    Checksums,
    ObjectBody,
    ObjectResponse,
    ObjectVersion,
    RetryableError,
    find_digest,
)

GOOD = frozenset((200, 201, 202, 204, 206))
WITH_BYTES = frozenset((200, 203, 206))
"""Statuses of responses whose body is the object, or a part of it."""

T = TypeVar("T")
_LENGTH = re.compile(r"[0-9]{1,19}\Z")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/([0-9]{1,19})$")


def parse_body_range(status: int, headers: Mapping[str, str]) -> tuple[int, int | None, int | None]:
    """Return where in the object a body begins (-1: not said), the length of the object, and that of the body.

    Args:
        status: of the response; a good one.
        headers: of the response.

    Raises:
        RetryableError: the response holds no object: nothing, or a promise.
    """
    if status not in WITH_BYTES:
        raise RetryableError(f"status {status} came, and no object")
    size = parse_length(headers.get("Content-Length", ""))
    return (0, size, size) if status != 206 else (*parse_content_range(headers.get("Content-Range", "")), size)


def parse_content_range(text: str) -> tuple[int, int | None]:
    """Return where in the object a range begins, and the length of the object; -1 and None where that is not said."""
    found = _CONTENT_RANGE.match(text)
    return (int(found[1]), int(found[2])) if found else (-1, None)


def parse_length(text: str) -> int | None:
    """Return the number in a header; None where there is none."""
    return int(text) if _LENGTH.match(text) else None


def range_header(offset: int, size: int | None) -> dict[str, str]:
    """Return the header that requests some bytes; none for the whole object."""
    if not offset and size is None:
        return {}
    return {"Range": f"bytes={offset}-" if size is None else f"bytes={offset}-{offset + size - 1}"}


def condition_header(known: ObjectVersion | None) -> dict[str, str]:
    """Return the header that makes a request fail if the object has changed; none where nothing could prove that."""
    if known is None:
        return {}
    if known.etag is not None:
        return {"If-Match": known.etag}
    return {"If-Unmodified-Since": known.modified} if known.modified and known.length is not None else {}


def override_headers(headers: Mapping[str, str], changes: Mapping[str, str | None]) -> Mapping[str, str]:
    """Return headers, found by their names in any case, with some replaced."""
    from urllib3 import HTTPHeaderDict  # noqa: PLC0415  loaded by now: the response is of urllib3

    replaced = {name.lower() for name in changes}
    kept = {name: headers[name] for name in headers if name.lower() not in replaced}
    return HTTPHeaderDict({**kept, **{name: text for name, text in changes.items() if text is not None}})


class HttpAnswer(NamedTuple):
    """A response that holds bytes of an object.

    Args:
        status: 200 for the whole object, 206 for a range.
        headers: what tells the range and the version; a backend may combine those of several responses.
        body: unread.
    """

    status: int
    headers: Mapping[str, str]
    body: ObjectBody


class HttpRemoteObject:
    """An object that is read by requests for ranges; a :class:`~webdataset.storage.object_store.RemoteObject`."""

    judges_ranges: ClassVar[bool] = False
    """True where ``request`` refuses a server that ignores ranges."""

    def __init__(self, url: str) -> None:
        self.url = url

    def request(self, offset: int, size: int | None, known: ObjectVersion | None) -> HttpAnswer:
        """Send one request, with the condition that the object is still the known one; raise as :meth:`open_at`."""
        raise NotImplementedError

    def version(self, headers: Mapping[str, str], length: int | None) -> ObjectVersion:
        """Return the version that headers name.

        Raises:
            RetryableError: they contradict each other.
        """
        raise NotImplementedError

    def checksums(self, headers: Mapping[str, str], *, whole: bool) -> Checksums:
        """Return the checksums of the whole object that headers name."""
        return Checksums(digest=find_digest(headers, whole=whole))

    def open_at(self, offset: int, known: ObjectVersion | None, size: int | None = None) -> ObjectResponse:
        """Request the object from ``offset`` on; see :class:`~webdataset.storage.object_store.RemoteObject`.

        Raises:
            RetryableError: a retry may help.
            NotFound: nothing is there.
            NoRandomAccess: the server gives no ranges.
            ShardChanged: it is another object by now.
            SourceError: the service refuses.
        """
        status, headers, body = self.request(offset, size, known)
        try:
            start, length, body_length = parse_body_range(status, headers)
            version = self.version(headers, length)
        except (RetryableError, SourceError):
            body.close()
            raise
        return ObjectResponse(body, start, version, body_length, self.checksums(headers, whole=status == 200))

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises when its connection fails."""
        return http_client.failures()

    def refresh(self) -> None:
        """Do nothing: nothing is kept between two requests."""


def read_json(response: HttpResponse) -> object:
    """Read the JSON in a body, and close it; an empty body is None.

    Args:
        response: its body unread.

    Raises:
        RetryableError: the body broke off, or is no JSON.
    """
    known: tuple[type[Exception], ...] = (*http_client.failures(), ValueError)
    try:
        found: object = json.loads(response.read(-1) or b"null")
    except known as error:
        reason = describe_error(error)
    else:
        return found
    finally:
        response.close()
    raise RetryableError(f"the answer cannot be read: {reason}")


def strong_etag(headers: Mapping[str, str]) -> str | None:
    """Return the ETag, unless it is weak: bytes may differ where a weak one is equal."""
    etag = headers.get("ETag")
    return None if not etag or etag.startswith("W/") else etag


class ServiceClient:
    """Requests about one object or container; a service adds credentials, and translates its refusals.

    Attributes:
        url: the url of the user.
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

    def _sign(self, method: str, address: str, headers: Mapping[str, str], size: int) -> tuple[str, dict[str, str]]:
        """Return address and headers with credentials, for a request with a body of ``size`` bytes."""
        raise NotImplementedError

    def _translate_refusal(self, response: HttpResponse, offset: int) -> RetryableError | SourceError:
        """Return the error to raise for a response, read, that is none of the good ones."""
        raise NotImplementedError

    def _may_refresh(self) -> bool:
        """Tell whether to look up refused credentials again: once between two good responses."""
        before, self._doubted = self._doubted, True
        return not before

    def ask(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        streamed: bool = False,
        good: Container[int] = GOOD,
        offset: int = 0,
    ) -> HttpResponse:
        """Send a request once.

        Args:
            method: ``GET`` ….
            address: where to.
            headers: without credentials.
            body: what to send along.
            streamed: leave the body of a good response unread.
            good: statuses that the caller understands.
            offset: where in the object the request begins, for messages.

        Raises:
            RetryableError: a retry may help.
            NotFound: nothing is there.
            ShardChanged: it is another object by now.
            SourceError: the service refuses.
        """
        target, sent = self._sign(method, address, headers or {}, len(body or b""))
        self.requests += 1
        response = send_once(method, target, sent, self.url, body=body)
        if not streamed or response.status >= 300:
            self._load_body(response)
        if response.status in good:
            self._doubted = False
            return response
        response.close()
        raise self._translate_refusal(response, offset)

    def _load_body(self, response: HttpResponse) -> None:
        """Read a body, which the response keeps."""
        try:
            response.data  # noqa: B018  read and kept
        except http_client.failures() as error:
            reason = describe_error(error)
        else:
            return
        raise http_client.no_answer_error(reason, self.url)

    def call(
        self, method: str, address: str, headers: Mapping[str, str] | None = None, *, body: bytes | None = None
    ) -> HttpResponse:
        """Send a request until it has a response; arguments as for :meth:`ask`.

        Raises:
            NotFound: nothing is there.
            SourceError: the service refuses, or does not answer.
        """
        return retry(lambda: self.ask(method, address, headers, body=body), self.url, self.refresh, self._attempts)

    def fetch(self, address: str, parse: Callable[[bytes], T]) -> T:
        """Return what a response says; one that cannot be parsed has broken off, and is requested again.

        Args:
            address: where to.
            parse: from the body to what it says; raises ``ValueError`` or ``SyntaxError``.

        Raises:
            NotFound: nothing is there.
            SourceError: the service refuses, or does not answer.
        """

        def ask() -> T:
            body = self.ask("GET", address).data
            try:
                return parse(body)
            except (ValueError, SyntaxError) as error:
                raise RetryableError(f"the service's list cannot be read: {error}") from None

        return retry(ask, self.url, self.refresh, self._attempts)
