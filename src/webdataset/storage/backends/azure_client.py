"""Azure Storage locations, accounts, signatures, requests and error translation.

In ``az://container/blob`` and ``abfs://container@account.dfs.core.windows.net/blob`` names are taken as they stand:
nothing in them is decoded. A url may name an account of Azure, but no other host: tokens would go there.

Credentials come from one place: storage options, else the environment, else this machine (``DefaultAzureCredential``:
environment, workload and managed identities, ``az login``). What the environment holds for one account is never sent
to another. An account key signs the request (HMAC-SHA256, "Authorize with Shared Key" in Azure's documentation) and
never leaves this machine. Errors quote the service's codes, never its text, which may repeat signatures.
"""

import base64
import binascii
import contextlib
import email.utils
import hashlib
import hmac
import ipaddress
import re
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from webdataset.core import settings
from webdataset.core.errors import ConfigError, SourceError, UsageError
from webdataset.core.fork_safety import PerProcessCache
from webdataset.core.optional_imports import require
from webdataset.core.redaction import redact
from webdataset.storage.http_client import HttpResponse, translate_status
from webdataset.storage.http_object import ServiceClient
from webdataset.storage.path_errors import suggest_object
from webdataset.storage.retries import RetryableError
from webdataset.storage.s3_profile import Secret
from webdataset.storage.storage_options import PicklesNoObjects, options_for

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken, TokenCredential

SUFFIX = "core.windows.net"
_EMULATED = (  # the emulator's account; its key is public
    "AccountName=devstoreaccount1;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;AccountKey="
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_Options = dict[str, Any]
_CREDENTIAL_OPTIONS = ("account_key", "sas_token", "credential", "anonymous")


@dataclass(frozen=True)
class AzureService(PicklesNoObjects):
    """An account and the credentials for it.

    Args:
        account: its name.
        endpoint: url of its blobs, without a slash at the end.
        account_key: signs requests.
        sas_token: a shared access signature, for addresses.
        credential: an object with ``get_token``; None for what this machine has.
        anonymous: send no credentials.
    """

    account: str
    endpoint: str
    account_key: Secret | None = None
    sas_token: Secret | None = None
    credential: "TokenCredential | None" = field(default=None, repr=False)
    anonymous: bool = False


def find_service(storage_options: object, url: str, account: str | None, endpoint: str | None) -> AzureService:
    """Return the account of a url, and the credentials for it.

    Args:
        storage_options: ``account_name``, ``account_key``, ``sas_token``, ``connection_string``, ``credential``,
            ``anonymous``, ``endpoint_url``.
        url: the url of the user, for errors.
        account: the account that the url names.
        endpoint: the endpoint that the url names.

    Raises:
        ConfigError: no account, or options that make no sense.
    """
    given = _expand_options(options_for("azure", storage_options, url), url)
    named = account or given.get("account_name")
    if account is not None and given.get("account_name") not in (None, account):
        raise ConfigError("the url names another account than storage_options, whose keys it must not see", url=url)
    if not any(given.get(name) is not None for name in (*_CREDENTIAL_OPTIONS, "endpoint")):
        found = _read_environment(url)
        of = found.get("account_name")
        if named is None or of is None or of == named:
            given = {**found, **given}
    name = account or given.get("account_name")
    if name is None:
        raise ConfigError(
            "which storage account is not known: set AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING, pass "
            "storage_options={'account_name': …}, or write abfs://container@account.dfs.core.windows.net/blob",
            url=url,
        )
    place = given.get("endpoint_url") or endpoint or given.get("endpoint") or f"https://{name}.blob.{SUFFIX}"
    return AzureService(
        name,
        _complete_endpoint(str(place), name),
        given.get("account_key"),
        given.get("sas_token"),
        given.get("credential"),
        bool(given.get("anonymous")),
    )


def _expand_options(options: _Options, url: str) -> _Options:
    """Return options with what connection strings and texts as credentials stand for."""
    found = dict(options)
    text = found.pop("connection_string", None)
    if text is not None:
        found = {**parse_connection_string(text.reveal(), url), **found}
    credential = found.get("credential")
    # Azure's own clients take keys and signatures by this name, too
    if isinstance(credential, Secret):
        name = "sas_token" if "sig=" in credential.reveal() else "account_key"
        found[name] = found.pop("credential")
    if sum(found.get(name) not in (None, False) for name in _CREDENTIAL_OPTIONS) > 1:
        raise ConfigError(f"storage_options: at most one of {', '.join(_CREDENTIAL_OPTIONS)}", url=url)
    return found


def _read_environment(url: str) -> _Options:
    """Return the account, with a key or a signature, that the environment names."""
    text = settings.AZURE_STORAGE_CONNECTION_STRING.get()
    if text:
        return parse_connection_string(text, url)
    name = settings.AZURE_STORAGE_ACCOUNT.get() or settings.AZURE_STORAGE_ACCOUNT_NAME.get()
    found: _Options = {"account_name": name} if name else {}
    for variable, name in (
        (settings.AZURE_STORAGE_KEY, "account_key"),
        (settings.AZURE_STORAGE_ACCOUNT_KEY, "account_key"),
        (settings.AZURE_STORAGE_SAS_TOKEN, "sas_token"),
    ):
        if variable.get():
            return {**found, name: Secret(f"env:{variable.name}")}
    return found


def parse_connection_string(text: str, url: str) -> _Options:
    """Return the options that a connection string stands for.

    Args:
        text: ``AccountName=…;AccountKey=…``.
        url: the url of the user, for errors.

    Raises:
        ConfigError: it is invalid; the message does not show it.
    """
    parts = _split_parts(text)
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        parts = _split_parts(_EMULATED)
    endpoint, name = parts.get("blobendpoint"), parts.get("accountname")
    if endpoint is None and name is None:
        raise ConfigError("a connection string has AccountName or BlobEndpoint; this one has neither", url=url)
    if name is None:
        place = _split_endpoint(str(endpoint))
        host = place.hostname or ""
        name = place.path.split("/")[1] if is_ip_or_local(host) and "/" in place.path else host.partition(".")[0]
    if endpoint is None:
        scheme, suffix = parts.get("defaultendpointsprotocol", "https"), parts.get("endpointsuffix", SUFFIX)
        endpoint = f"{scheme}://{name}.blob.{suffix}"
    found: _Options = {"account_name": name, "endpoint": endpoint}
    if "accountkey" in parts:
        found["account_key"] = Secret.literal(parts["accountkey"])
    elif "sharedaccesssignature" in parts:
        found["sas_token"] = Secret.literal(parts["sharedaccesssignature"])
    return found


def _split_parts(text: str) -> Mapping[str, str]:
    pairs = (part.partition("=") for part in text.split(";"))
    return {name.strip().lower(): value.strip() for name, is_, value in pairs if is_}


def _complete_endpoint(endpoint: str, account: str) -> str:
    """Return an endpoint without a slash at its end; where the host is no name, the account stands in the path."""
    endpoint = endpoint.rstrip("/")
    parts = _split_endpoint(endpoint if "://" in endpoint else f"https://{endpoint}")
    if not parts.path and is_ip_or_local(parts.hostname or ""):
        parts = parts._replace(path=f"/{account}")
    return urllib.parse.urlunsplit(parts)


def _split_endpoint(endpoint: str) -> urllib.parse.SplitResult:
    """Return the parts of an endpoint.

    Raises:
        ConfigError: brackets without an IPv6 address, or characters that no host has.
    """
    with contextlib.suppress(ValueError):
        return urllib.parse.urlsplit(endpoint)
    # raised outside the handler: the error quotes the endpoint, which may hold a secret
    raise ConfigError("the endpoint of the storage account is no url: write https://host, or https://host:port/account")


def is_ip_or_local(host: str) -> bool:
    """Tell whether a host is a number, or this machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


_URL = re.compile(
    r"(?:az|abfss?)://(?P<container>[^/@]+)(?:@(?P<host>[^/@]+))?/(?P<key>.*)\Z", re.IGNORECASE | re.DOTALL
)
_HOST = re.compile(
    r"(?P<account>[a-z0-9-]{3,63})\.(?P<zone>z[0-9]+\.)?(?:blob|dfs)\."
    r"(?P<suffix>core\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net|cloudapi\.de)"
    r"|storage\.azure\.net|fabric\.microsoft\.com)\Z",
    re.IGNORECASE,
)
_ACCOUNT = re.compile(r"[a-z0-9-]{3,63}\Z", re.IGNORECASE)
_HAS_SIGNATURE = re.compile(r"\?.*\bsig=", re.DOTALL)


class AzureLocation(NamedTuple):
    """Where a blob lies.

    Args:
        service: the account and the credentials.
        container: the container.
        key: the blob's name.
    """

    service: AzureService
    container: str
    key: str

    def address(self, **query: str | None) -> str:
        """Return the address of this blob, or of its container where there is no name."""
        quote = urllib.parse.quote
        parameters = "&".join(f"{name}={quote(text, safe='')}" for name, text in query.items() if text is not None)
        key = f"/{quote(self.key, safe='/~')}" if self.key else ""
        path = f"{self.service.endpoint}/{quote(self.container, safe='$')}{key}"
        return f"{path}?{parameters}" if parameters else path


def parse_url(url: str, storage_options: object = None) -> AzureLocation:
    """Return the blob that a url names.

    Raises:
        UsageError: no container, a host that is none of Azure's, or a signature in the url.
        ConfigError: no account, or options that make no sense.
    """
    match = _URL.match(url)
    if match is None:
        raise UsageError(
            "a url of Azure Storage is az://container/blob or abfs://container@account.dfs.core.windows.net/blob",
            url=url,
        )
    refuse_signature(url)
    if not {".", ".."}.isdisjoint(match["key"].split("/")):
        raise UsageError("a blob's name has no parts '.' and '..'", url=url)
    account, endpoint = _split_host(match["host"], url)
    return AzureLocation(find_service(storage_options, url, account, endpoint), match["container"], match["key"])


def refuse_signature(url: str) -> None:
    """Refuse a url with a signature in it: urls get into samples and logs.

    Raises:
        UsageError: it holds one.
    """
    if _HAS_SIGNATURE.search(url):
        raise UsageError(
            "a shared access signature does not belong in a url: pass storage_options={'sas_token': 'env:NAME'}, or "
            "set AZURE_STORAGE_SAS_TOKEN",
            url=url,
        )


def _split_host(host: str | None, url: str) -> tuple[str | None, str | None]:
    """Return the account and the endpoint that a url's host names."""
    if host is None or _ACCOUNT.match(host):
        return host, None
    match = _HOST.match(host)
    if match is None:
        raise UsageError("the host is none of Azure Storage: pass storage_options={'endpoint_url': …}", url=url)
    return match["account"], f"https://{match['account']}.{match['zone'] or ''}blob.{match['suffix']}".lower()


def service_id(url: str, storage_options: object = None) -> str:
    """Return the account's address."""
    return parse_url(url, storage_options).service.endpoint


SCOPE = "https://storage.azure.com/.default"
VERSION = "2021-12-02"
EARLY_SECONDS = 300
_SIGNED_HEADERS = (
    "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
    "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
)  # fmt: skip

_token_caches: PerProcessCache["AzureTokens"] = PerProcessCache()


def sign_request(
    service: AzureService, method: str, address: str, headers: Mapping[str, str], *, size: int, url: str
) -> tuple[str, dict[str, str]]:
    """Return the address and the headers of a request, with credentials.

    Raises:
        RetryableError: a token could not be fetched this time.
        ConfigError: a key that is none.
        MissingExtra: azure-identity is not installed.
        SourceError: no credentials.
    """
    sent = {**headers, "x-ms-version": VERSION, "x-ms-date": email.utils.formatdate(usegmt=True)}
    if service.anonymous:
        return address, sent
    if service.account_key is not None:
        sent["Authorization"] = shared_key_header(service, method, address, sent, size=size, url=url)
    elif service.sas_token is not None:
        address += ("&" if "?" in address else "?") + service.sas_token.reveal().lstrip("?&")
    else:
        parts = urllib.parse.urlsplit(service.endpoint)
        if parts.scheme != "https" and not is_ip_or_local(parts.hostname or ""):
            raise ConfigError("tokens are sent over https only: write https in endpoint_url", url=url)
        sent["Authorization"] = f"Bearer {_token_caches.get(service, lambda: AzureTokens(service)).token(url)}"
    return address, sent


def shared_key_header(
    service: AzureService, method: str, address: str, headers: Mapping[str, str], *, size: int, url: str
) -> str:
    """Return the ``Authorization`` header of a request that an account key signs.

    Args:
        service: the account and its key.
        method: ``GET`` ….
        address: where to.
        headers: of the request.
        size: bytes of its body.
        url: the url of the user.

    Raises:
        ConfigError: the key is no base64.
    """
    parts = urllib.parse.urlsplit(address)
    lower = {name.lower(): text for name, text in headers.items()}
    lower["content-length"] = str(size) if size else ""
    lines = [method, *(lower.get(name, "") for name in _SIGNED_HEADERS)]
    lines += [f"{name}:{lower[name]}" for name in sorted(lower) if name.startswith("x-ms-")]
    lines.append(f"/{service.account}{parts.path}")
    query = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
    lines += [f"{name.lower()}:{','.join(sorted(query[name]))}" for name in sorted(query, key=str.lower)]
    key = _decode_key("" if service.account_key is None else service.account_key.reveal(), url)
    proof = base64.b64encode(hmac.digest(key, "\n".join(lines).encode(), hashlib.sha256)).decode()
    return f"SharedKey {service.account}:{proof}"


def _decode_key(text: str, url: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    # raised outside the handler: the text is a secret
    if not key:
        raise ConfigError("the account key is no base64: copy it whole, as the portal shows it", url=url)
    return key


class AzureTokens:
    """Access tokens of one account, each used until shortly before it expires; threads wait while one fetches.

    Raises:
        MissingExtra: azure-identity is not installed.
    """

    def __init__(self, service: AzureService) -> None:
        self._credential: TokenCredential = (
            service.credential
            or require(
                "azure.identity", extra="azure", purpose="az:// urls without a key or a signature"
            ).DefaultAzureCredential()
        )
        self._token: AccessToken | None = None
        self._lock = threading.Lock()

    def token(self, url: str) -> str:
        """Return a token.

        Raises:
            RetryableError: it could not be fetched this time.
            SourceError: no credentials.
        """
        with self._lock:
            token = self._token
            if token is None or token.expires_on - EARLY_SECONDS < time.time():
                try:
                    self._token = token = self._fetch(url)
                except (RetryableError, SourceError):
                    # it is asked for early, and the old one is good for some minutes
                    if token is None or token.expires_on <= time.time():
                        raise
        return str(token.token)

    def _fetch(self, url: str) -> "AccessToken":
        try:
            return self._credential.get_token(SCOPE)
        except Exception as error:  # noqa: BLE001  the user's object; and Azure's errors, whose package may be absent
            kinds = {kind.__name__ for kind in type(error).__mro__}
            reason = redact(f"{type(error).__name__}: {str(error)[:300]}")
        if "ClientAuthenticationError" in kinds or "AzureError" not in kinds:
            raise SourceError(
                f"no token for Azure Storage: {reason}; run 'az login', set AZURE_STORAGE_KEY or "
                "AZURE_STORAGE_SAS_TOKEN, or pass storage_options={'anonymous': True} for public data",
                url=url,
            )
        raise RetryableError(f"no token for Azure Storage: {reason}")


def is_refreshable(service: AzureService) -> bool:
    """Tell whether a new look for credentials can find others."""
    given = service.account_key or service.sas_token
    return not service.anonymous and (given is None or given.reference is not None)


def forget_token(service: AzureService, used: float) -> None:
    """Discard a token that a request of the moment ``used`` had, so that the next request fetches a new one."""
    _token_caches.forget(service, used)


_STALE = frozenset(("AuthenticationFailed", "AuthorizationFailure"))
_WAYS_OUT = {
    "AuthenticationFailed": "the key or the signature is wrong or has expired, or the clock of this machine is wrong",
    "AuthorizationFailure": "the key or the signature is wrong, or the account's firewall forbids this",
    "AuthorizationPermissionMismatch": "these credentials may not do this: the role 'Storage Blob Data Reader' (or "
    "'Contributor', to write) is needed",
    "AuthorizationProtocolMismatch": "the signature is for another protocol",
    "KeyBasedAuthenticationNotPermitted": "the account takes no keys: leave them out, and run 'az login'",
    "InvalidAuthenticationInfo": "the token is wrong or has expired",
    "NoAuthenticationInformation": "asked without credentials; leave anonymous out",
    "PublicAccessNotPermitted": "the account refuses requests without credentials; leave anonymous out",
    "ContainerNotFound": "check the container's name, and the account",
    "ResourceNotFound": "check the container's name and the account; what is private looks absent without credentials",
    "InvalidBlockList": "another program wrote the same blob at the same time",
    "LeaseIdMissing": "another program holds a lease on the blob",
}


class AzureClient(ServiceClient):
    """Requests about one blob or container."""

    def __init__(self, place: AzureLocation, url: str, attempts: int | None = None) -> None:
        super().__init__(url, attempts)
        self._service = place.service

    def refresh(self) -> None:
        """Look for credentials anew."""
        forget_token(self._service, self._own.signed)

    def _sign(self, method: str, address: str, headers: Mapping[str, str], size: int) -> tuple[str, dict[str, str]]:
        return sign_request(self._service, method, address, headers, size=size, url=self.url)

    def _translate_refusal(self, response: HttpResponse, offset: int) -> RetryableError | SourceError:
        status, code = response.status, response.headers.get("x-ms-error-code", "")
        reason = f"the service answered {status} {code or response.reason or ''}".rstrip()
        stale = status == 401 or code in _STALE
        expired = stale and is_refreshable(self._service) and self._may_refresh()
        hint = _WAYS_OUT.get(code) or ("check the credentials" if status in (401, 403) else "")
        hint = suggest_object(self.url) if code == "BlobNotFound" else hint
        return translate_status(
            status, response.headers, reason, url=self.url, hint=hint, offset=offset, expired=expired
        )
