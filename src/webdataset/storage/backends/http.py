"""Web servers: reads ``http:`` and ``https:`` urls, and uploads to them by PUT; a backend that cannot list.

The stream gives the body as the server stores it (never decompressed on the way), all of it, through the resumable
stream: the number of bytes is compared with Content-Length, and a connection that drops is resumed where it stopped
if the server can prove that the object is still the same. Waiting is bounded: 10 s to connect, 60 s without a byte, a
few quick retries where a server is busy. An upload is one PUT of known length, sent when all bytes are there.

:class:`HttpSession` sends requests with the user's headers, tokens and certificates. What may be a secret goes to the
first host only: a redirect to another host takes no header of the user along. Each request asks for the url anew, so
that redirects to signed urls, which expire, are resolved again; secrets are read anew, too.
"""

import contextlib
import email.utils
import os
import re
from collections.abc import Mapping
from typing import Any

from webdataset.core import settings
from webdataset.core.errors import ConfigError, NoRandomAccess, NotFound, SourceError
from webdataset.core.redaction import redact
from webdataset.storage import http_client
from webdataset.storage.http_client import BUSY, parse_body_range, range_header
from webdataset.storage.object_store import (
    ObjectResponse,
    ObjectVersion,
    RetryableError,
    find_digest,
    object_changed_error,
)
from webdataset.storage.profile_selection import options_for
from webdataset.storage.resumable_stream import ResumableStream, parse_retry_after
from webdataset.storage.s3_profile import Secret
from webdataset.storage.uploads import SinglePutUpload

_ABSENT = frozenset((404, 410))
_SIGNED = re.compile(r"[?&](?:x-(?:amz|goog)-signature|signature|sig)=", re.IGNORECASE)
_WILD = re.compile(r"\A[^?#]*[*]")
_WAYS_OUT = {
    401: "check the credentials",
    403: "check the credentials",
    407: "a proxy wants credentials: check the user and password in HTTP_PROXY or HTTPS_PROXY, or except the host by "
    "NO_PROXY",
}
_EXPIRED = "the url is signed: its signature may have expired, or is of another object; sign it anew"
_WAYS_OUT_OF_PUT = {
    405: "this server does not take uploads by PUT",
    409: "a folder is missing on the server",
    411: "this server wants a length",
    413: "it is larger than this server takes",
    507: "no space is left there",
}


class HttpSession:
    """Requests about one url.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        storage_options: options of this store.
        headers: further request headers.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(self, url: str, storage_options: Any = None, headers: Mapping[str, str] | None = None) -> None:
        self.url = url
        found = options_for("http", storage_options, url)
        given = [*found.get("headers", ()), *((headers or {}).items())]
        self._headers = {name: _hide_secret(value) for name, value in given}
        self._token: Secret | None = found.get("token")
        self._tls = _tls_options(found.get("verify"), url)

    def ask(
        self,
        method: str,
        wanted: Mapping[str, str],
        timeouts: tuple[float, float],
        body: Any = None,
    ) -> Any:
        """Send one request.

        Args:
            method: ``GET`` or ``PUT``.
            wanted: request headers beside those of the user.
            timeouts: seconds to connect, seconds without a byte.
            body: what is sent along.

        Returns:
            An answer, its body unread, whatever its status.

        Raises:
            Again: no answer came.
            SourceError: the certificate is not trusted, or redirects lead nowhere.
            UsageError: the url makes no sense.
        """
        private = {name: value.reveal() for name, value in self._headers.items()}
        if self._token is not None:
            private["Authorization"] = f"Bearer {self._token.reveal()}"
        response, reason = None, ""
        try:
            response = http_client.send(
                method, self.url, {**private, **wanted}, timeouts, body, tls=self._tls, private=frozenset(private)
            )
        except http_client.no_answer_errors() as error:
            reason = redact(str(getattr(error, "reason", None) or error))
        if response is not None:
            return response
        # raised here, since the errors of urllib3 show the url as it is
        if "Tunnel connection failed: 40" in reason:  # 407, 403: nothing that waiting would change
            raise SourceError(f"a proxy refuses ({reason}): {_WAYS_OUT[407]}", url=self.url)
        if "redirects" in reason:
            raise SourceError(reason, url=self.url)
        if "CERTIFICATE_VERIFY_FAILED" in reason or "doesn't match" in reason:
            raise SourceError(
                f"the server's certificate is not trusted ({reason}): name the certificates of whoever signed it by "
                "verify in storage_options, or by SSL_CERT_FILE or REQUESTS_CA_BUNDLE",
                url=self.url,
            )
        raise RetryableError(f"no answer from the server: {reason}")

    def translate_refusal(
        self, response: Any, *, reading: bool = False, upload: bool = False
    ) -> RetryableError | SourceError:
        """Return the error to raise for an answer that is no success; its connection is given back.

        Args:
            response: the answer.
            reading: bytes of the object were had before, so that the credentials were good then.
            upload: something was to be written.
        """
        response.close()
        status = f"the server answered {response.status} {response.reason or ''}".rstrip()
        if response.status in BUSY:
            return RetryableError(
                status,
                wait_seconds=parse_retry_after(response.headers.get("Retry-After"), response.headers.get("Date")),
            )
        if response.status in _ABSENT:
            wild = "; web servers give no lists, and wildcards are taken as they stand: write {000..099}"
            return NotFound(status + (wild if _WILD.search(self.url) else ""), url=self.url)
        hints = {**_WAYS_OUT, **(_WAYS_OUT_OF_PUT if upload else {})}
        hint = _EXPIRED if response.status in (401, 403) and _SIGNED.search(self.url) else hints.get(response.status)
        status = f"{status}; {hint}" if hint else status
        if reading and response.status in (401, 403):  # a token, or the place redirected to, has expired
            return RetryableError(status, expired=True)
        return SourceError(status, url=self.url)


def _hide_secret(value: Any) -> Secret:
    return value if isinstance(value, Secret) else Secret.literal(str(value))


def _tls_options(verify: Any, url: str) -> http_client.TlsOptions:
    """Return which certificates to trust; certificates that ``SSL_CERT_FILE`` names are known to OpenSSL itself."""
    if verify is False:
        return (("cert_reqs", "CERT_NONE"),)
    place = settings.REQUESTS_CA_BUNDLE.get() if verify in (None, True) else verify
    if place is None:
        return ()
    if not isinstance(place, str):
        raise ConfigError("verify is the path of a file of certificates, or False", url=url)
    if url[:6].lower() != "https:":
        return ()
    path = settings.expand_home(place)
    if os.path.isdir(path):  # noqa: PTH112  as other programs take it
        return (("ca_cert_dir", path),)
    if not os.path.exists(path):  # noqa: PTH110  urllib3 would say it at each attempt, and not which file
        source = "verify in storage_options" if isinstance(verify, str) else "REQUESTS_CA_BUNDLE"
        raise ConfigError(f"{source} names certificates that are not there: {path}", url=url)
    return (("ca_certs", path),)


def service_id(url: str, storage_options: Any = None) -> str:
    """Return which account a url is opened with, without secrets; see :mod:`webdataset.storage.open_url`."""
    found = options_for("http", storage_options, url)
    given = [*found.get("headers", ()), *([("token", found["token"])] if "token" in found else ())]
    return " ".join(sorted(f"{name}={value.reference or ''}" for name, value in given))


CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
ATTEMPTS = 7

_CHANGED = frozenset((412, 416))


class HttpObject:
    """One object on a web server, as the resuming reader asks for it.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        storage_options: options of this store.
        headers: further request headers.
        timeouts: seconds to connect, seconds without a byte.
    """

    latency_bytes = 64 * 1024
    judges_ranges = True
    """A server that ignores ranges is refused here, by its status; one that gives more than was asked for is not."""

    def __init__(
        self,
        url: str,
        storage_options: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeouts: tuple[float, float] | None = None,
    ) -> None:
        self.url = url
        self._asking = HttpSession(url, storage_options, headers)
        self._timeouts = timeouts or (CONNECT_SECONDS, READ_SECONDS)

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return http_client.failures()

    def refresh(self) -> None:
        """Nothing is kept between two requests."""

    def open_at(self, offset: int, known: ObjectVersion | None, size: int | None = None) -> ObjectResponse:
        """Send one GET; see :class:`~webdataset.storage.object_store.RemoteObject`.

        Args:
            offset: the first byte wanted.
            known: who the object was at first.
            size: bytes wanted; None for all.

        Raises:
            Again: asking again may help.
            NotFound: status 404 or 410.
            NoRandomAccess: a range was asked for, and the server gives none, or none of the bytes that it stores.
            ShardChanged: the server says that it is another object by now.
            SourceError: another status.
        """
        wanted = range_header(offset, size)
        if known is not None and known.provable():
            wanted.update(_condition_headers(known))
        response = self._asking.ask("GET", wanted, self._timeouts)
        if response.status >= 300:
            refusal = self._asking.translate_refusal(response, reading=known is not None)
            raise object_changed_error(self.url, offset) if wanted and response.status in _CHANGED else refusal
        if size is not None:
            self._refuse_whole(response, known)
        start, total, length = parse_body_range(response)
        etag = response.headers.get("ETag")
        strong = etag if etag and not etag.startswith("W/") else None
        modified = response.headers.get("Last-Modified")
        if known is None and strong is None and _is_recent(modified, response.headers.get("Date")):
            modified = None
        digest = find_digest(response.headers, whole=response.status == 200)
        return ObjectResponse(response, start, ObjectVersion(strong, None, modified, total), length, digest=digest)

    def _refuse_whole(self, response: Any, known: ObjectVersion | None) -> None:
        """Raise where the answer to a request for a range is none that can be used."""
        if response.status != 206:
            if response.headers.get("Content-Length") == "0":  # of nothing there is no range
                return
            response.close()
            if known is not None:  # it could before
                raise RetryableError(f"the server answered a range request with status {response.status}")
            raise NoRandomAccess(
                f"the server answers a range request with status {response.status}: it can be read front to back only",
                url=self.url,
            )
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            response.close()
            raise NoRandomAccess(
                f"the server compresses what it sends ({encoding}), so that no range of it is one of the shard: it can "
                "be read front to back only",
                url=self.url,
            )


class HttpStream(ResumableStream):
    """The body of one GET request, unbuffered.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        storage_options: options of this store: ``headers``, ``token``, ``verify``.
        headers: further request headers.
        connect_seconds: bound on connecting.
        read_seconds: bound on waiting for the next byte.
        attempts: failures in a row, without progress between them, after which reading is given up.
        **places: where to begin, as for :class:`ResumingStream`.

    Raises:
        NotFound: status 404 or 410.
        SourceError: another error status, or no connection after a few attempts.
    """

    def __init__(
        self,
        url: str,
        *,
        storage_options: Any = None,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float | None = None,
        read_seconds: float | None = None,
        attempts: int = ATTEMPTS,
        **places: Any,
    ) -> None:
        timeouts = (connect_seconds or CONNECT_SECONDS, read_seconds or READ_SECONDS)
        source = HttpObject(url, storage_options, headers=headers, timeouts=timeouts)
        super().__init__(source, attempts=attempts, **places)


def _is_recent(modified: str | None, now: str | None) -> bool:
    """Tell whether an object was changed within the second of the answer: its date may soon be another's (RFC 9110)."""
    try:
        changed_at, answered_at = (email.utils.parsedate_to_datetime(text or "") for text in (modified, now))
        return (answered_at - changed_at).total_seconds() < 1
    except (ValueError, TypeError, OverflowError):
        return False


def _condition_headers(identity: ObjectVersion) -> dict[str, str]:
    if identity.etag is not None:
        return {"If-Match": identity.etag}
    return {"If-Unmodified-Since": identity.modified or ""}


def remote_object(url: str, storage_options: Any = None) -> HttpObject:
    """Return the object of an ``http(s):`` url; see :mod:`webdataset.storage.open_url`."""
    return HttpObject(url, storage_options)


def create_upload(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new object; see :class:`~webdataset.storage.backends.http.HttpUpload`."""
    return HttpUpload(url, storage_options, **options)


def gopen_http(
    url: str,
    mode: str = "rb",
    bufsize: int = 8192,  # noqa: ARG001  an opener's signature
    *,
    storage_options: Any = None,
    **options: Any,
) -> Any:
    """Open an ``http:`` or ``https:`` url.

    Args:
        url: the url.
        mode: ``rb`` reads it, ``wb`` uploads it with PUT, both in this process.
        bufsize: of no meaning here.
        storage_options: ``headers``, a mapping; ``token`` for ``Authorization: Bearer``; ``verify``, a file of
            certificates to trust, or False.
        **options: further arguments of :class:`HttpStream` or :class:`~webdataset.storage.backends.http.HttpUpload`.

    Raises:
        NotFound: nothing is there.
        SourceError: the server refuses, or does not answer.
    """
    if mode == "rb":
        return HttpStream(url, storage_options=storage_options, **options)
    return create_upload(url, storage_options, **options)


UPLOAD_READ_SECONDS = 300.0
SEE_OTHER = 303


class HttpUpload(SinglePutUpload):
    """A stream to a new object on a web server.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        storage_options: options of this store: ``headers``, ``token``, ``verify``.
        headers: further request headers.
        connect_seconds: bound on connecting.
        read_seconds: bound on waiting for the answer once all is sent.
        attempts: failures after which the upload is given up.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(
        self,
        url: str,
        storage_options: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = UPLOAD_READ_SECONDS,
        attempts: int = ATTEMPTS,
    ) -> None:
        self._asking = HttpSession(url, storage_options, headers)
        self._timeouts = (connect_seconds, read_seconds)
        super().__init__(url, attempts)

    def _send_object(self) -> None:
        self._kept.seek(0)
        body = _UploadBody(self._kept) if self._size else b""
        response = self._asking.ask("PUT", {"Content-Length": str(self._size)}, self._timeouts, body)
        if response.status >= 300:
            raise self._asking.translate_refusal(response, upload=True)
        if any(step.status == SEE_OTHER for step in response.retries.history):  # followed by a GET, without the body
            response.close()
            raise SourceError(
                "the server led the upload to another page (status 303), so that nobody knows whether it was taken: "
                "check the url, and the credentials",
                url=self.name,
            )
        with contextlib.suppress(Exception):  # the answer was good; what follows it is of no interest
            response.drain_conn()
        response.release_conn()


class _UploadBody:
    """What urllib3 reads the body from, again from the start where a redirect is followed.

    Before each request it asks where the body begins, but after a redirect it does not go back there: asking does.
    """

    def __init__(self, kept: Any) -> None:
        self._kept = kept

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._kept.read(size)
        return content

    def tell(self) -> int:
        return self.seek(0)

    def seek(self, place: int) -> int:
        self._kept.seek(place)
        return place
