"""Who asks Azure Storage: account keys, shared access signatures, tokens of ``azure-identity``.

Flows in: a request. Flows out: the same with what proves who asks. An account key signs the request (HMAC-SHA256 over
its parts, "Authorize with Shared Key" in Azure's documentation) and never leaves this machine. Credentials of this
machine are those of ``DefaultAzureCredential``: environment, workload and managed identities, ``az login``.
"""

import base64
import binascii
import email.utils
import hashlib
import hmac
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from webdataset.ground.errors import ConfigError, SourceError
from webdataset.ground.extras import require
from webdataset.ground.redaction import redacted
from webdataset.sources.forks import PerProcess
from webdataset.sources.objects import Again

from .accounts import Service, is_numbered

SCOPE = "https://storage.azure.com/.default"
VERSION = "2021-12-02"
EARLY_SECONDS = 300
_SIGNED = (
    "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
    "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
)  # fmt: skip

_kept: PerProcess["Tokens"] = PerProcess()


def signed(
    service: Service, method: str, address: str, headers: Mapping[str, str], *, size: int, url: str
) -> tuple[str, dict[str, str]]:
    """Return the address and the headers of a request that says who asks.

    Args:
        service: the account, and who asks.
        method: ``GET`` ….
        address: where to.
        headers: of the request.
        size: bytes of its body.
        url: what the user calls it.

    Raises:
        Again: a token could not be fetched this time.
        ConfigError: a key that is none.
        MissingExtra: azure-identity is not installed.
        SourceError: no credentials.
    """
    sent = {**headers, "x-ms-version": VERSION, "x-ms-date": email.utils.formatdate(usegmt=True)}
    if service.anonymous:
        return address, sent
    if service.account_key is not None:
        sent["Authorization"] = shared_key(service, method, address, sent, size=size, url=url)
    elif service.sas_token is not None:
        address += ("&" if "?" in address else "?") + service.sas_token.reveal().lstrip("?&")
    else:
        parts = urllib.parse.urlsplit(service.endpoint)
        if parts.scheme != "https" and not is_numbered(parts.hostname or ""):
            raise ConfigError("tokens are sent over https only: write https in endpoint_url", url=url)
        sent["Authorization"] = f"Bearer {_kept.get(service, lambda: Tokens(service)).token(url)}"
    return address, sent


def shared_key(service: Service, method: str, address: str, headers: Mapping[str, str], *, size: int, url: str) -> str:
    """Return the ``Authorization`` header of a request that an account key signs.

    Args:
        service: the account and its key.
        method: ``GET`` ….
        address: where to.
        headers: of the request.
        size: bytes of its body.
        url: what the user calls it.

    Raises:
        ConfigError: the key is no base64.
    """
    parts = urllib.parse.urlsplit(address)
    lower = {name.lower(): text for name, text in headers.items()}
    lower["content-length"] = str(size) if size else ""
    lines = [method, *(lower.get(name, "") for name in _SIGNED)]
    lines += [f"{name}:{lower[name]}" for name in sorted(lower) if name.startswith("x-ms-")]
    lines.append(f"/{service.account}{parts.path}")
    query = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
    lines += [f"{name.lower()}:{','.join(sorted(query[name]))}" for name in sorted(query, key=str.lower)]
    key = _decoded("" if service.account_key is None else service.account_key.reveal(), url)
    proof = base64.b64encode(hmac.digest(key, "\n".join(lines).encode(), hashlib.sha256)).decode()
    return f"SharedKey {service.account}:{proof}"


def _decoded(text: str, url: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:  # raised here: the text is a secret
        raise ConfigError("the account key is no base64: copy it whole, as the portal shows it", url=url)
    return key


class Tokens:
    """Access tokens of one account, each used until shortly before it expires.

    Args:
        service: the account, and who asks.

    Raises:
        MissingExtra: azure-identity is not installed.
    """

    def __init__(self, service: Service) -> None:
        self._credential = service.credential
        if self._credential is None:
            identity = require("azure.identity", extra="azure", purpose="az:// urls without a key or a signature")
            self._credential = identity.DefaultAzureCredential()
        self._token: Any = None

    def token(self, url: str) -> str:
        """Return a token.

        Args:
            url: what the user calls it.

        Raises:
            Again: it could not be fetched this time.
            SourceError: no credentials.
        """
        if self._token is None or self._token.expires_on - EARLY_SECONDS < time.time():
            self._token = self._fetched(url)
        return str(self._token.token)

    def _fetched(self, url: str) -> Any:
        try:
            return self._credential.get_token(SCOPE)
        except Exception as error:  # noqa: BLE001  the user's object; and Azure's errors, whose package may be absent
            kinds = {kind.__name__ for kind in type(error).__mro__}
            said = redacted(f"{type(error).__name__}: {str(error)[:300]}")
        if "ClientAuthenticationError" in kinds or "AzureError" not in kinds:
            raise SourceError(
                f"no token for Azure Storage: {said}; run 'az login', set AZURE_STORAGE_KEY or "
                "AZURE_STORAGE_SAS_TOKEN, or pass storage_options={'anonymous': True} for public data",
                url=url,
            )
        raise Again(f"no token for Azure Storage: {said}")


def refreshable(service: Service) -> bool:
    """Tell whether asking for new credentials can give others.

    Args:
        service: the account, and who asks.
    """
    given = service.account_key or service.sas_token
    return not service.anonymous and (given is None or given.reference is not None)


def forget(service: Service) -> None:
    """Let go of a token, so that the next request fetches a new one.

    Args:
        service: the account, and who asks.
    """
    _kept.forget(service)
