"""Who asks Google Cloud Storage: access tokens, found and kept fresh by ``google-auth``.

Flows in: a :class:`~webdataset.sources.gs.places.Service`. Flows out: request headers. Credentials of this machine are
the application default ones: ``GOOGLE_APPLICATION_CREDENTIALS``, what ``gcloud`` left, the metadata server. No token
survives a fork together with the lock or connection of another process.
"""

import json
from types import ModuleType
from typing import Any

from webdataset.ground.errors import ConfigError, SourceError
from webdataset.ground.extras import require
from webdataset.ground.redaction import redacted
from webdataset.sources import connections
from webdataset.sources.forks import PerProcess
from webdataset.sources.objects import Again
from webdataset.sources.profiles.secret import Secret
from webdataset.sources.rest import CONNECT_SECONDS, READ_SECONDS

from .places import ANONYMOUS, Service

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"

_kept: PerProcess[Any] = PerProcess()
_KINDS = ("service_account", "authorized_user")
_AGAIN = ("TransportError", "TimeoutError")
_ABSENT = (
    "no Google credentials were found: run 'gcloud auth application-default login', set "
    "GOOGLE_APPLICATION_CREDENTIALS, or pass storage_options={'anonymous': True} for public data"
)


def authorization(service: Service, address: str, url: str) -> dict[str, str]:
    """Return the headers that say who asks.

    Args:
        service: the service.
        address: where the request goes.
        url: what the user calls it.

    Raises:
        Again: a token could not be fetched this time.
        MissingExtra: google-auth is not installed.
        SourceError: no credentials, or they are refused.
    """
    token = "" if service.token is None else service.token.reveal()
    if token and not token.lstrip().startswith("{"):  # a whole file of credentials is not sent to anybody
        return {"Authorization": f"Bearer {token}"}
    if service.credentials == ANONYMOUS:
        return {}
    errors = _google("auth.exceptions").GoogleAuthError
    headers: dict[str, str] = {}
    try:
        transport, credentials = _kept.get(service, lambda: _made(service))
        credentials.before_request(transport, "GET", address, headers)
    except ConfigError:
        raise
    except (errors, OSError, ValueError) as error:
        failure = _translated(error, url)
    else:
        return headers
    raise failure  # here: what google-auth raises may quote what it was sent


def refreshable(service: Service) -> bool:
    """Tell whether asking for new credentials can give others.

    Args:
        service: the service.
    """
    return service.credentials != ANONYMOUS and (service.token is None or service.token.reference is not None)


def forget(service: Service) -> None:
    """Let go of tokens, so that the next request fetches new ones.

    Args:
        service: the service.
    """
    _kept.forget(service)


def _google(part: str) -> ModuleType:
    return require(f"google.{part}", extra="gs", purpose="reading and writing gs:// urls")


class _Connections:
    """What google-auth takes for a pool of urllib3: our connections, with their proxies and their rule about forks."""

    def request(self, method: str, url: str, body: Any = None, headers: Any = None, **_: Any) -> Any:
        """Send a request."""
        return connections.send(method, url, headers or {}, (CONNECT_SECONDS, READ_SECONDS), body)


def _made(service: Service) -> tuple[Any, Any]:
    transport = _google("auth.transport.urllib3").Request(_Connections())
    given = service.credentials if service.token is None else service.token
    if given is None:
        return transport, _google("auth").default(scopes=[SCOPE])[0]
    if not isinstance(given, str | Secret):
        return transport, given
    content = _content(given if isinstance(given, Secret) else Secret(f"file:{given}"))
    if content["type"] == "service_account":
        kind = _google("oauth2.service_account").Credentials
        return transport, kind.from_service_account_info(content, scopes=[SCOPE])
    return transport, _google("oauth2.credentials").Credentials.from_authorized_user_info(content, scopes=[SCOPE])


def _content(given: Secret) -> dict[str, Any]:
    """Return credentials that were given as a mapping, as JSON or as a file."""
    try:
        content = json.loads(given.reveal())
    except ConfigError:  # no such file
        raise
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("type") not in _KINDS:  # raised here: the text is a secret
        raise ConfigError(
            f"credentials are the path or the content of a file of type {' or '.join(_KINDS)}, or an object of "
            "google.auth; other types are found by GOOGLE_APPLICATION_CREDENTIALS"
        )
    return content


def _translated(error: Exception, url: str) -> Again | SourceError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    said = redacted(f"{type(error).__name__}: {error.args[0] if error.args else ''}")
    if getattr(error, "retryable", False) or kinds.intersection(_AGAIN):
        return Again(f"no access token: {said}")
    if "default credentials were not found" in said.lower():
        return SourceError(_ABSENT, url=url)
    return SourceError(f"no access token: {said}; check the credentials", url=url)
