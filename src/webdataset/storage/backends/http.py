"""Web servers: reads ``http:`` and ``https:`` urls, and uploads to them by PUT; a backend that cannot list.

The stream gives the body as the server stores it, never decompressed on the way. An upload is one PUT of known
length, sent when all bytes are there.

A header of the user never follows a redirect to another host: it may hold a secret. Each request begins at the url
itself, so that redirects to signed urls, which expire, are resolved anew; secrets are read anew, too.
"""

import email.utils
import os
import re
from collections.abc import Callable, Mapping
from typing import IO, cast

from webdataset.core import settings
from webdataset.core.errors import ConfigError, NoRandomAccess, NotFound, SourceError
from webdataset.storage import http_client
from webdataset.storage.http_client import ABSENT, CHANGED, PROXY_HINT, HttpResponse, Transport
from webdataset.storage.http_object import (
    HttpAnswer,
    HttpRemoteObject,
    condition_header,
    override_headers,
    range_header,
    strong_etag,
)
from webdataset.storage.object_store import ObjectVersion, object_changed_error
from webdataset.storage.resumable_stream import ResumableStream
from webdataset.storage.retries import RetryableError
from webdataset.storage.s3_profile import Secret
from webdataset.storage.storage_options import options_for
from webdataset.storage.uploads import SinglePutUpload

_SIGNED = re.compile(r"[?&](?:x-(?:amz|goog)-signature|signature|sig)=", re.IGNORECASE)
_WILD = re.compile(r"\A[^?#]*[*]")
_WAYS_OUT = {401: "check the credentials", 403: "check the credentials", 407: PROXY_HINT}
_TRUST_HINT = (
    "name the certificates of its issuer by verify in storage_options, or by SSL_CERT_FILE or REQUESTS_CA_BUNDLE"
)
_EXPIRED = "the url is signed: its signature may have expired, or is of another object; sign it anew"
_WAYS_OUT_OF_PUT = {
    405: "this server does not take uploads by PUT",
    409: "a folder is missing on the server",
    411: "this server wants a length",
    413: "it is larger than this server takes",
    507: "no space is left there",
}


class HttpSession:
    """Requests about one url, with the user's headers, token and certificates.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        storage_options: ``headers``, ``token``, ``verify``.
        headers: further request headers.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(self, url: str, storage_options: object = None, headers: Mapping[str, str] | None = None) -> None:
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
        body: bytes | IO[bytes] | None = None,
    ) -> HttpResponse:
        """Send one request.

        Args:
            method: ``GET`` or ``PUT``.
            wanted: request headers beside those of the user.
            timeouts: seconds to connect, seconds without a byte.
            body: what to send along.

        Returns:
            A response, its body unread, whatever its status.

        Raises:
            RetryableError: no response came.
            SourceError: the certificate is not trusted, or redirects lead nowhere.
            UsageError: the url makes no sense.
        """
        private = {name: value.reveal() for name, value in self._headers.items()}
        if self._token is not None:
            private["Authorization"] = f"Bearer {self._token.reveal()}"
        transport = Transport(timeouts, http_client.REDIRECTS, self._tls, frozenset(private), "the server", _TRUST_HINT)
        return http_client.send_once(method, self.url, {**private, **wanted}, self.url, body=body, transport=transport)

    def translate_refusal(
        self, response: HttpResponse, *, reading: bool = False, upload: bool = False
    ) -> RetryableError | SourceError:
        """Return the error to raise for an error status; the connection is released.

        Args:
            response: the response.
            reading: bytes of the object came before, so that the credentials were good then.
            upload: the request was an upload.
        """
        response.close()
        status = response.status
        reason = f"the server answered {status} {response.reason or ''}".rstrip()
        if status in ABSENT:
            wild = "; web servers give no lists, and wildcards are taken as they stand: write {000..099}"
            return NotFound(reason + (wild if _WILD.search(self.url) else ""), url=self.url)
        refused = status in (401, 403)
        hint = {**_WAYS_OUT, **(_WAYS_OUT_OF_PUT if upload else {})}.get(status, "")
        hint = _EXPIRED if refused and _SIGNED.search(self.url) else hint
        if status in CHANGED:
            return SourceError(reason, url=self.url)
        # a token, or the address redirected to, has expired
        expired = reading and refused
        return http_client.translate_status(status, response.headers, reason, url=self.url, hint=hint, expired=expired)


def _hide_secret(value: object) -> Secret:
    return value if isinstance(value, Secret) else Secret.literal(str(value))


def _tls_options(verify: object, url: str) -> http_client.TlsOptions:
    """Return which certificates to trust; OpenSSL itself knows those that ``SSL_CERT_FILE`` names."""
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


def service_id(url: str, storage_options: object = None) -> str:
    """Return the headers and the token of the options, without their texts."""
    found = options_for("http", storage_options, url)
    given = [*found.get("headers", ()), *([("token", found["token"])] if "token" in found else ())]
    return " ".join(sorted(f"{name}={value.reference or ''}" for name, value in given))


CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
WEB_ATTEMPTS = 7


class HttpObject(HttpRemoteObject):
    """One object on a web server.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        storage_options: ``headers``, ``token``, ``verify``.
        headers: further request headers.
        timeouts: seconds to connect, seconds without a byte.
    """

    latency_bytes = 64 * 1024
    # a server that ignores ranges is refused here, by its status; one that gives more than was asked for is not
    judges_ranges = True

    def __init__(
        self,
        url: str,
        storage_options: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeouts: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(url)
        self._session = HttpSession(url, storage_options, headers)
        self._timeouts = timeouts or (CONNECT_SECONDS, READ_SECONDS)
        self._first_date: str | None = None

    def request(self, offset: int, size: int | None, known: ObjectVersion | None) -> HttpAnswer:
        """Send one GET; a server that gives no ranges of the bytes it stores raises ``NoRandomAccess``."""
        wanted = {**range_header(offset, size), **condition_header(known)}
        response = self._session.ask("GET", wanted, self._timeouts)
        if response.status >= 300:
            refusal = self._session.translate_refusal(response, reading=known is not None)
            raise object_changed_error(self.url, offset) if wanted and response.status in CHANGED else refusal
        if size is not None:
            self._refuse_whole(response, known)
        headers = response.headers
        if self._check_date(response, offset, known) and not strong_etag(headers):
            headers = override_headers(headers, {"Last-Modified": None})
        return HttpAnswer(response.status, headers, response)

    def _check_date(self, response: HttpResponse, offset: int, known: ObjectVersion | None) -> bool:
        """Compare the date with the first one; tell whether it names no version, since the first one was too recent.

        Raises:
            ShardChanged: the first answer had another date, too recent to name a version.
        """
        date = response.headers.get("Last-Modified")
        if known is None:
            self._first_date = date
            return _is_recent(date, response.headers.get("Date"))
        if known.validator() is not None or None in (date, self._first_date):
            return False
        if date != self._first_date:
            response.close()
            raise object_changed_error(self.url, offset)
        return True

    def version(self, headers: Mapping[str, str], length: int | None) -> ObjectVersion:
        """Return the ETag, if it is strong, and the date of the last change."""
        return ObjectVersion(strong_etag(headers), None, headers.get("Last-Modified"), length)

    def _refuse_whole(self, response: HttpResponse, known: ObjectVersion | None) -> None:
        """Raise where the response to a request for a range cannot be used."""
        if response.status != 206:
            # of nothing there is no range
            if response.headers.get("Content-Length") == "0":
                return
            response.close()
            # it gave ranges before
            if known is not None:
                raise RetryableError(f"the server answered a range request with status {response.status}", refused=True)
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
        storage_options: ``headers``, ``token``, ``verify``.
        headers: further request headers.
        connect_seconds: bound on connecting.
        read_seconds: bound on waiting for the next byte.
        attempts: failures in a row, without progress between them, after which to give up.
        start: byte to begin at, as for :class:`~webdataset.storage.resumable_stream.ResumableStream`.
        known: the version of the bytes before ``start``, likewise.
        end: byte to end before, likewise.

    Raises:
        NotFound: status 404 or 410.
        SourceError: another error status, or no connection after a few attempts.
    """

    def __init__(
        self,
        url: str,
        *,
        storage_options: object = None,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float | None = None,
        read_seconds: float | None = None,
        attempts: int = WEB_ATTEMPTS,
        start: int = 0,
        known: ObjectVersion | None = None,
        end: int | None = None,
    ) -> None:
        timeouts = (connect_seconds or CONNECT_SECONDS, read_seconds or READ_SECONDS)
        source = HttpObject(url, storage_options, headers=headers, timeouts=timeouts)
        super().__init__(source, attempts=attempts, start=start, known=known, end=end)


def _is_recent(modified: str | None, now: str | None) -> bool:
    """Tell whether an object was changed within the second of the answer: its date may soon be another's (RFC 9110)."""
    try:
        changed_at, answered_at = (email.utils.parsedate_to_datetime(text or "") for text in (modified, now))
        return (answered_at - changed_at).total_seconds() < 1
    except (ValueError, TypeError, OverflowError):
        return False


def gopen_http(
    url: str,
    mode: str = "rb",
    bufsize: int = 8192,  # noqa: ARG001  an opener's signature
    **options: object,
) -> "HttpStream | HttpUpload":
    """Open an ``http:`` or ``https:`` url.

    Args:
        url: the url.
        mode: ``rb`` reads it, ``wb`` uploads it with PUT, both in this process.
        bufsize: of no meaning here.
        **options: ``storage_options``: ``headers``, a mapping; ``token`` for ``Authorization: Bearer``; ``verify``, a
            file of certificates to trust, or False. The others are arguments of :class:`HttpStream` or
            :class:`HttpUpload`.

    Raises:
        NotFound: nothing is there.
        SourceError: the server refuses, or does not answer.
    """
    make: Callable[..., HttpStream | HttpUpload] = HttpStream if mode == "rb" else HttpUpload
    return make(url, **options)


UPLOAD_READ_SECONDS = 300.0
SEE_OTHER = 303


class HttpUpload(SinglePutUpload):
    """A stream to a new object on a web server.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        storage_options: ``headers``, ``token``, ``verify``.
        headers: further request headers.
        connect_seconds: bound on connecting.
        read_seconds: bound on waiting for the response once all is sent.
        attempts: failures after which to give up.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(
        self,
        url: str,
        storage_options: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = UPLOAD_READ_SECONDS,
        attempts: int = WEB_ATTEMPTS,
    ) -> None:
        self._session = HttpSession(url, storage_options, headers)
        self._timeouts = (connect_seconds, read_seconds)
        super().__init__(url, attempts)

    def _send_object(self) -> None:
        self._kept.seek(0)
        body = cast("IO[bytes]", _UploadBody(self._kept)) if self._size else b""
        response = self._session.ask("PUT", {"Content-Length": str(self._size)}, self._timeouts, body)
        if response.status >= 300:
            raise self._session.translate_refusal(response, upload=True)
        # 303 was followed by a GET, without the body
        if http_client.was_redirected_by(response, SEE_OTHER):
            response.close()
            raise SourceError(
                "the server led the upload to another page (status 303), which does not say whether it took the "
                "upload: check the url, and the credentials",
                url=self.name,
            )
        http_client.release_connection(response)


class _UploadBody:
    """What urllib3 reads the body from, again from the start where it follows a redirect.

    Before each request urllib3 calls ``tell``; after a redirect it does not seek back, so ``tell`` does.
    """

    def __init__(self, kept: IO[bytes]) -> None:
        self._kept = kept
        self.read = kept.read

    def tell(self) -> int:
        return self.seek(0)

    def seek(self, offset: int, /) -> int:
        self._kept.seek(offset)
        return offset


remote_object = HttpObject
create_upload = HttpUpload
