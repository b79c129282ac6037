"""Google Cloud Storage locations, credentials, requests and error translation.

In ``gs://bucket/key`` the key is taken as it stands: nothing in it is decoded. ``#`` and sixteen digits at the end
name one generation, as in Google's own programs.

``google-auth`` finds and refreshes access tokens: without options, by the application default credentials of this
machine. A refused token is looked up once more, if there may be another. No token survives a fork together with the
lock or the connection of another process.
"""

import contextlib
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast

from webdataset.core import settings
from webdataset.core.errors import ConfigError, SourceError, UsageError
from webdataset.core.fork_safety import PerProcessCache
from webdataset.core.optional_imports import require
from webdataset.core.redaction import redact
from webdataset.storage import http_client
from webdataset.storage.http_client import HttpResponse, translate_status
from webdataset.storage.http_object import ServiceClient
from webdataset.storage.path_errors import suggest_object
from webdataset.storage.retries import RetryableError
from webdataset.storage.s3_profile import Secret
from webdataset.storage.storage_options import PicklesNoObjects, options_for

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

ENDPOINT = "https://storage.googleapis.com"
ANONYMOUS = "anon"

_URL = re.compile(
    r"(?:gs|gcs)://(?P<bucket>[^/]+)/(?P<key>.*?)(?:#(?P<generation>[0-9]{16}))?\Z", re.IGNORECASE | re.DOTALL
)
_FOUND = frozenset(("google_default", "cloud"))  # as gcsfs has them


@dataclass(frozen=True)
class GcsService(PicklesNoObjects):
    """A service and the credentials for it.

    Args:
        endpoint: its url, without a slash at the end.
        token: an access token.
        credentials: ``anon``; the path or the content of a file of credentials; an object of ``google.auth``; or
            None for the application default credentials.
        user_project: the project that pays.
    """

    endpoint: str = ENDPOINT
    token: Secret | None = None
    credentials: object = field(default=None, repr=False)
    user_project: str | None = None


class GcsLocation(NamedTuple):
    """Where an object lies.

    Args:
        service: the service and the credentials.
        bucket: the bucket.
        key: the object's name.
        generation: one generation of it, or None for the present one.
    """

    service: GcsService
    bucket: str
    key: str
    generation: str | None

    def address(self, kind: str = "", **query: str | None) -> str:
        """Return the address of this object.

        Args:
            kind: ``"upload/"`` for uploads: the address of the bucket's objects.
            **query: parameters; None leaves one out.
        """
        quote = urllib.parse.quote
        query["userProject"] = self.service.user_project
        parameters = "&".join(f"{name}={quote(text, safe='')}" for name, text in query.items() if text is not None)
        name = "" if kind or not self.key else f"/{quote(self.key, safe='')}"
        objects = f"{kind}storage/v1/b/{quote(self.bucket, safe='')}/o{name}"
        return f"{self.service.endpoint}/{objects}" + (f"?{parameters}" if parameters else "")


def parse_url(url: str, storage_options: object = None) -> GcsLocation:
    """Return the object that a url names.

    Raises:
        UsageError: no bucket.
        ConfigError: options that make no sense.
    """
    match = _URL.match(url)
    if match is None:
        raise UsageError("a url of Google Cloud Storage is gs://bucket/key", url=url)
    if match["key"] in (".", ".."):
        raise UsageError("no object has the name '.' or '..'", url=url)
    return GcsLocation(find_service(storage_options, url), match["bucket"], match["key"], match["generation"])


def find_service(storage_options: object, url: str) -> GcsService:
    """Return the service that storage options and environment name.

    Args:
        storage_options: ``token``, ``credentials``, ``anonymous``, ``endpoint_url``, ``user_project``.
        url: what is being opened, for messages.

    Raises:
        ConfigError: options that make no sense.
    """
    options = options_for("gs", storage_options, url)
    emulator = settings.STORAGE_EMULATOR_HOST.get()
    endpoint = str(options.get("endpoint_url") or emulator or ENDPOINT).rstrip("/")
    endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
    token, credentials = options.get("token"), options.get("credentials")
    if isinstance(token, str):  # a keyword or a path, as gcsfs takes them
        token, credentials = None, None if token in _FOUND else token
    elif token is not None and not isinstance(token, Secret):
        token, credentials = None, token
    asked = "token" in options or "credentials" in options
    if options.get("anonymous") or (not asked and emulator and "endpoint_url" not in options):
        token, credentials = None, ANONYMOUS
    if token is not None and options.get("credentials") is not None:
        raise ConfigError("storage_options: token and credentials exclude each other", url=url)
    return GcsService(endpoint, token, credentials, options.get("user_project"))


def service_id(url: str, storage_options: object = None) -> str:
    """Return the address of the service, where it is not Google's own."""
    endpoint = find_service(storage_options, url).endpoint
    return "" if endpoint == ENDPOINT else endpoint


SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


_credentials: PerProcessCache["GcsTokens"] = PerProcessCache()
_KINDS = ("service_account", "authorized_user")
_TRANSIENT_ERRORS = ("TransportError", "TimeoutError")
_ABSENT = (
    "no Google credentials were found: run 'gcloud auth application-default login', set "
    "GOOGLE_APPLICATION_CREDENTIALS, or pass storage_options={'anonymous': True} for public data"
)


def authorization_headers(service: GcsService, address: str, url: str) -> dict[str, str]:
    """Return the headers with the credentials.

    Raises:
        RetryableError: a token could not be fetched this time.
        MissingExtra: google-auth is not installed.
        SourceError: no credentials, or they are refused.
    """
    token = "" if service.token is None else service.token.reveal()
    # a whole file of credentials is never sent
    if token and not token.lstrip().startswith("{"):
        return {"Authorization": f"Bearer {token}"}
    if service.credentials == ANONYMOUS:
        return {}
    errors = _import_google("auth.exceptions").GoogleAuthError
    headers: dict[str, str] = {}
    try:
        _credentials.get(service, lambda: GcsTokens(*_make_credentials(service))).add_header(address, headers)
    except ConfigError:
        raise
    except (errors, OSError, ValueError) as error:
        failure = _translate_error(error, url)
    else:
        return headers
    # raised outside the handler: google-auth's errors may quote what it was sent
    raise failure


def is_refreshable(service: GcsService) -> bool:
    """Tell whether a new look for credentials can find others."""
    return service.credentials != ANONYMOUS and (service.token is None or service.token.reference is not None)


def forget_tokens(service: GcsService, used: float) -> None:
    """Discard tokens that a request of the moment ``used`` had, so that the next request fetches new ones."""
    given = service.credentials if service.token is None else service.token
    if given is None or isinstance(given, str | Secret):
        _credentials.forget(service, used)
    else:
        # an object of the user's keeps its token, wherever it is used
        _credentials.get(service, lambda: GcsTokens(*_make_credentials(service))).renew(used)


class GcsTokens:
    """Access tokens of one service; google-auth fetches one when the last expires, and threads wait meanwhile."""

    def __init__(self, transport: object, credentials: "Credentials") -> None:
        self._transport = transport
        self._credentials = credentials
        self._lock = threading.Lock()
        self._renewed = 0.0

    def add_header(self, address: str, headers: dict[str, str]) -> None:
        """Add the header with a token to those of a request; raises google-auth's errors."""
        with self._lock:
            self._credentials.before_request(self._transport, "GET", address, headers)  # type: ignore[no-untyped-call]

    def renew(self, used: float) -> None:
        """Fetch another token, unless that was done since the moment ``used``; one that cannot be renewed stays."""
        with self._lock:
            if self._renewed <= used:
                with contextlib.suppress(_import_google("auth.exceptions").GoogleAuthError):
                    self._credentials.refresh(self._transport)  # type: ignore[no-untyped-call]
                self._renewed = time.monotonic()


def _import_google(part: str) -> ModuleType:
    return require(f"google.{part}", extra="gs", purpose="reading and writing gs:// urls")


class _GoogleTransport:
    """What google-auth takes for a pool of urllib3: our connections, with their proxies and their rule about forks."""

    def request(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, **_: object
    ) -> HttpResponse:
        """Send a request."""
        return http_client.send(method, url, headers or {}, body)


def _make_credentials(service: GcsService) -> tuple[object, "Credentials"]:
    transport = _import_google("auth.transport.urllib3").Request(_GoogleTransport())
    given = service.credentials if service.token is None else service.token
    if given is None:
        return transport, _import_google("auth").default(scopes=[SCOPE])[0]
    if not isinstance(given, str | Secret):
        return transport, cast("Credentials", given)
    content = _read_content(given if isinstance(given, Secret) else Secret(f"file:{given}"))
    if content["type"] == "service_account":
        kind = _import_google("oauth2.service_account").Credentials
        return transport, kind.from_service_account_info(content, scopes=[SCOPE])
    return transport, _import_google("oauth2.credentials").Credentials.from_authorized_user_info(
        content, scopes=[SCOPE]
    )


def _read_content(given: Secret) -> dict[str, object]:
    """Return credentials that were given as a mapping, as JSON or as a file."""
    try:
        content = json.loads(given.reveal())
    # no such file
    except ConfigError:
        raise
    except ValueError:
        content = None
    # raised outside the handler: the text is a secret
    if not isinstance(content, dict) or content.get("type") not in _KINDS:
        raise ConfigError(
            f"credentials are the path or the content of a file of type {' or '.join(_KINDS)}, or an object of "
            "google.auth; other types are found by GOOGLE_APPLICATION_CREDENTIALS"
        )
    return content


def _translate_error(error: Exception, url: str) -> RetryableError | SourceError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    reason = redact(f"{type(error).__name__}: {error.args[0] if error.args else ''}")
    if getattr(error, "retryable", False) or kinds.intersection(_TRANSIENT_ERRORS):
        return RetryableError(f"no access token: {reason}")
    if "default credentials were not found" in reason.lower():
        return SourceError(_ABSENT, url=url)
    return SourceError(f"no access token: {reason}; check the credentials", url=url)


_THROTTLED = b"ateLimitExceeded"  # rateLimitExceeded, userRateLimitExceeded: with this status, too


class GcsClient(ServiceClient):
    """Requests about one object or bucket."""

    def __init__(self, place: GcsLocation, url: str, attempts: int | None = None) -> None:
        super().__init__(url, attempts)
        self._service = place.service

    def refresh(self) -> None:
        """Look for credentials anew."""
        forget_tokens(self._service, self._own.signed)

    def _sign(self, method: str, address: str, headers: Mapping[str, str], size: int) -> tuple[str, dict[str, str]]:  # noqa: ARG002  this service signs no requests
        return address, {**authorization_headers(self._service, address, self.url), **headers}

    def _translate_refusal(self, response: HttpResponse, offset: int) -> RetryableError | SourceError:
        status, headers = response.status, response.headers
        reason = f"the service answered {status}: {_error_message(response)}".rstrip(": ")
        busy = status == 403 and _THROTTLED in response.data
        expired = status == 401 and is_refreshable(self._service) and self._may_refresh()
        hint, url = self._hint(status), self.url
        return translate_status(status, headers, reason, url=url, hint=hint, offset=offset, busy=busy, expired=expired)

    def _hint(self, status: int) -> str:
        """Return what to do about a refusal."""
        if status == 404:
            return suggest_object(self.url)
        if status not in (401, 403):
            return ""
        if self._service.credentials == ANONYMOUS:
            return "asked without credentials; leave anonymous out, or check that everybody may do this"
        if status == 401:
            return "the access token is wrong or has expired"
        return "these credentials may not do this; check the bucket's policy, or anonymous=True for public data"


def _error_message(response: HttpResponse) -> str:
    """Return what a response with an error status says."""
    try:
        text = response.data[:10_000].decode(errors="replace")
        fault = json.loads(text)["error"]
        text = fault["message"] if isinstance(fault, dict) else str(fault)
    except (ValueError, KeyError, TypeError):
        pass
    return redact(" ".join(text.split())[:300])
