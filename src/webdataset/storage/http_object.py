"""Objects of services that speak HTTP: the read path of http, gcs, azure, aistore, huggingface and s3; a client.

A backend derives its object from :class:`HttpRemoteObject`: ``request`` sends one request for a range of the known
version and translates refusals, ``version`` reads the version from the headers. :class:`ServiceClient` sends the
requests of services that sign them. A response that does not say which bytes it holds is never passed on as a range.
"""

import io
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from webdataset.core.errors import SourceError
from webdataset.storage import http_client
from webdataset.storage.http_client import HttpResponse, describe_error, send_once
from webdataset.storage.object_store import Checksums, ObjectBody, ObjectResponse, ObjectVersion, find_digest
from webdataset.storage.retries import RetryableError, retry

if TYPE_CHECKING:
    import http.client

    from urllib3 import HTTPResponse

GOOD = frozenset((200, 201, 202, 204, 206))
WITH_BYTES = frozenset((200, 203, 206))
"""Statuses of responses whose body is the object, or a part of it."""

T = TypeVar("T")


class _ThreadRequests(threading.local):
    """What a client knows of the requests of one thread: those of others prove nothing about its own."""

    # a request was refused, and none has succeeded since
    doubted = False
    # when the last one was signed, on the monotonic clock
    signed = 0.0


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


# how the system takes the seconds that a read may wait; elsewhere a read gives what there is
_SECONDS = struct.Struct("ll")
_GATHERS = sys.platform == "linux" and _SECONDS.size == 16
_LONG_BODY_BYTES = 256 << 10
"""Shorter bodies are read through all layers: preparing their sockets would cost more than it spares."""


class SocketBody:
    """A body of known length, read from its socket: the layers of urllib3 and ``http.client`` cost too much a read.

    What those two count is kept right. The first bytes, which ``http.client`` may have read with the headers, and the
    last one, with which they give the connection back, come through them; so does what follows a socket that gives
    nothing, which they judge.

    On Linux a read of a plain socket waits in the system until all of its bytes are there: waking up here for a part of
    them costs more than the part. What has come within the bound on silence is given all the same.

    Args:
        response: of urllib3, its body unread.
        counter: the response of ``http.client`` in it.
        line: the socket.
    """

    # Invariants, before and after each read:
    # counter.length bytes of the body have not been given; length_remaining of the response is the same number.
    # _bare is False, or the reader of http.client holds nothing: the next byte of the body is the socket's next one.
    # _silence is None, or the socket blocks, and has this bound on silence by its own options: only _gather reads then.

    def __init__(self, response: "HTTPResponse", counter: "http.client.HTTPResponse", line: socket.socket) -> None:
        self._response = response
        self._counter = counter
        self._line = line
        self._bare = False
        # neither TLS, whose bytes come in records, nor the class of a library that waits in another way (gevent)
        system = type(line) is socket.socket and socket.socket.__module__ == "socket"
        self._gathers = _GATHERS and system and bool(line.gettimeout())
        self._silence: float | None = None
        self.close = response.close
        self.shutdown: Callable[[], None] = response.shutdown
        self.receive_into = None if self._gathers else self._receive_into

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, ``b""`` at the end.

        Raises:
            OSError: the connection failed.
            urllib3.exceptions.HTTPError: likewise, or the body ended early.
        """
        count = self._count_free(size)
        if count:
            piece = self._gather(count) if self._gathers else self._line.recv(count)
            if piece:
                self._pass(len(piece))
                return piece
        return self._ask(size)

    read1 = read

    def _gather(self, count: int) -> bytes:
        """Return bytes once there are so many of them, or fewer where the connection ends or is silent."""
        line = self._line
        if self._silence is None and not self._block():
            return line.recv(count)
        try:
            return line.recv(count, socket.MSG_WAITALL)
        # so says a socket that blocks when its time is over; one whose bytes have come in part gives them
        except BlockingIOError:
            raise TimeoutError("timed out") from None

    def _block(self) -> bool:
        """Let reads wait in the system, no longer than so far; tell whether it can."""
        seconds = self._line.gettimeout() or 0.0
        # a bound of nothing would be none
        bound = divmod(max(1, round(seconds * 1e6)), 1_000_000)
        try:
            self._line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SECONDS.pack(*bound))
        # a system that cannot do it, or a connection that is closed: the read tells
        except OSError:
            self._gathers = False
            return False
        self._line.settimeout(None)
        self._silence = seconds
        return True

    def _receive_into(self, place: memoryview) -> int:
        """Read once into a buffer; return the number of bytes, 0 at the end. Raises as :meth:`read`."""
        count = self._count_free(len(place))
        count = self._line.recv_into(place, count) if count else 0
        if count:
            self._pass(count)
            return count
        piece = self._ask(len(place))
        place[: len(piece)] = piece
        return len(piece)

    def _count_free(self, size: int) -> int:
        """Return how many bytes may come from the socket, 0 for none."""
        length = self._counter.length
        return min(size, length - 1) if self._bare and length else 0

    def _pass(self, count: int) -> None:
        """Count bytes as those that come through the layers are counted."""
        length = (self._counter.length or 0) - count
        self._counter.length = self._response.length_remaining = length
        self._response._fp_bytes_read += count  # noqa: SLF001  named in its errors

    def _ask(self, size: int) -> bytes:
        """Read once through the layers, which expect the socket as they left it."""
        if self._silence is not None:
            self._line.settimeout(self._silence)
            self._silence = None
        piece: bytes = self._response.read1(size)
        # a read that gives less took all that is buffered, and so does one that is as large as the buffer
        self._bare = self._bare or len(piece) < size or size >= io.DEFAULT_BUFFER_SIZE
        return piece


def find_socket_body(body: ObjectBody) -> ObjectBody:
    """Return a body that is read from its socket, where that is the same and worthwhile; else the body."""
    if not type(body).__module__.startswith("urllib3."):
        return body
    import http.client  # noqa: PLC0415  loaded by now

    import urllib3  # noqa: PLC0415  as above

    counter = getattr(body, "_fp", None)
    buffered = getattr(counter, "fp", None)
    line = getattr(getattr(buffered, "raw", None), "_sock", None)
    if (
        isinstance(body, urllib3.HTTPResponse)
        and isinstance(counter, http.client.HTTPResponse)
        and isinstance(line, socket.socket)
        and type(buffered) is io.BufferedReader
        # None where the body comes in chunks, or ends with its connection
        and (counter.length or 0) >= _LONG_BODY_BYTES
        and counter.length == body.length_remaining
        and body.decode_content is False
        and hasattr(body, "_fp_bytes_read")
    ):
        return SocketBody(body, counter, line)
    return body


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
        return ObjectResponse(
            find_socket_body(body), start, version, body_length, self.checksums(headers, whole=status == 200)
        )

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
        self._own = _ThreadRequests()

    def __getstate__(self) -> dict[str, object]:
        """Pickle all but what is known of this process's threads; a secret that was given as text refuses."""
        return {name: value for name, value in dict(self.__dict__).items() if name != "_own"}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take the attributes back; threads begin anew."""
        self.__dict__.update(state, _own=_ThreadRequests())

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
        """Tell whether to look up refused credentials again: once between two good responses to this thread."""
        before, self._own.doubted = self._own.doubted, True
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
        self._own.signed = time.monotonic()
        self.requests += 1
        response = send_once(method, target, sent, self.url, body=body)
        if not streamed or response.status >= 300:
            self._load_body(response)
        if response.status in good:
            self._own.doubted = False
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
