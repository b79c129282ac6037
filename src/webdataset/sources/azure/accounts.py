"""Accounts of Azure Storage, and who asks them.

Flows in: what a url, storage options and the environment say. Flows out: a :class:`Service`. Who asks is taken from
one place: storage options, else the environment, else what this machine has (``DefaultAzureCredential``). What the
environment holds for one account is never shown to another.
"""

import ipaddress
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import ConfigError
from webdataset.sources.profiles.options import options_for
from webdataset.sources.profiles.secret import Secret

SUFFIX = "core.windows.net"
_EMULATED = (  # the emulator's account; its key is public
    "AccountName=devstoreaccount1;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;AccountKey="
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_WHO = ("account_key", "sas_token", "credential", "anonymous")


@dataclass(frozen=True)
class Service:
    """An account and who asks it.

    Args:
        account: its name.
        endpoint: url of its blobs, without a slash at the end.
        account_key: signs requests.
        sas_token: a shared access signature, put into addresses.
        credential: an object with ``get_token``; None for what this machine has.
        anonymous: ask without credentials.
    """

    account: str
    endpoint: str
    account_key: Secret | None = None
    sas_token: Secret | None = None
    credential: Any = None
    anonymous: bool = False


def service(storage_options: Any, url: str, account: str | None, endpoint: str | None) -> Service:
    """Return the account that a url is of, and who asks.

    Args:
        storage_options: ``account_name``, ``account_key``, ``sas_token``, ``connection_string``, ``credential``,
            ``anonymous``, ``endpoint_url``.
        url: what is being opened, for messages.
        account: what the url names.
        endpoint: where the url says that it is.

    Raises:
        ConfigError: no account, or options that make no sense.
    """
    given = _plain(options_for("azure", storage_options, url), url)
    named = account or given.get("account_name")
    if account is not None and given.get("account_name") not in (None, account):
        raise ConfigError("the url names another account than storage_options, whose keys it must not see", url=url)
    if not any(given.get(name) is not None for name in (*_WHO, "endpoint")):
        found = _environment(url)
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
    return Service(
        name,
        _complete(str(place), name),
        given.get("account_key"),
        given.get("sas_token"),
        given.get("credential"),
        bool(given.get("anonymous")),
    )


def _plain(options: dict[str, Any], url: str) -> dict[str, Any]:
    """Return options with what connection strings and texts as credentials stand for."""
    found = dict(options)
    text = found.pop("connection_string", None)
    if text is not None:
        found = {**connection(text.reveal(), url), **found}
    credential = found.get("credential")
    if isinstance(credential, Secret):  # Azure's own clients take keys and signatures by this name, too
        name = "sas_token" if "sig=" in credential.reveal() else "account_key"
        found[name] = found.pop("credential")
    if sum(found.get(name) not in (None, False) for name in _WHO) > 1:
        raise ConfigError(f"storage_options: at most one of {', '.join(_WHO)}", url=url)
    return found


def _environment(url: str) -> dict[str, Any]:
    """Return what the environment says: a connection string, or an account with a key or a signature."""
    text = settings.AZURE_STORAGE_CONNECTION_STRING.get()
    if text:
        return connection(text, url)
    name = settings.AZURE_STORAGE_ACCOUNT.get() or settings.AZURE_STORAGE_ACCOUNT_NAME.get()
    found: dict[str, Any] = {"account_name": name} if name else {}
    for variable, name in (
        (settings.AZURE_STORAGE_KEY, "account_key"),
        (settings.AZURE_STORAGE_ACCOUNT_KEY, "account_key"),
        (settings.AZURE_STORAGE_SAS_TOKEN, "sas_token"),
    ):
        if variable.get():
            return {**found, name: Secret(f"env:{variable.name}")}
    return found


def connection(text: str, url: str) -> dict[str, Any]:
    """Return what a connection string says.

    Args:
        text: ``AccountName=…;AccountKey=…``.
        url: what is being opened, for messages.

    Raises:
        ConfigError: it cannot be read; it is not shown.
    """
    parts = _parts(text)
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        parts = _parts(_EMULATED)
    endpoint, name = parts.get("blobendpoint"), parts.get("accountname")
    if endpoint is None and name is None:
        raise ConfigError("a connection string has AccountName or BlobEndpoint; this one has neither", url=url)
    if name is None:
        place = urllib.parse.urlsplit(str(endpoint))
        host = place.hostname or ""
        name = place.path.split("/")[1] if is_numbered(host) and "/" in place.path else host.partition(".")[0]
    if endpoint is None:
        scheme, suffix = parts.get("defaultendpointsprotocol", "https"), parts.get("endpointsuffix", SUFFIX)
        endpoint = f"{scheme}://{name}.blob.{suffix}"
    found: dict[str, Any] = {"account_name": name, "endpoint": endpoint}
    if "accountkey" in parts:
        found["account_key"] = Secret.literal(parts["accountkey"])
    elif "sharedaccesssignature" in parts:
        found["sas_token"] = Secret.literal(parts["sharedaccesssignature"])
    return found


def _parts(text: str) -> Mapping[str, str]:
    pairs = (part.partition("=") for part in text.split(";"))
    return {name.strip().lower(): value.strip() for name, is_, value in pairs if is_}


def _complete(endpoint: str, account: str) -> str:
    """Return an endpoint without a slash at its end; where the host is no name, the account stands in the path."""
    endpoint = endpoint.rstrip("/")
    parts = urllib.parse.urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    if not parts.path and is_numbered(parts.hostname or ""):
        parts = parts._replace(path=f"/{account}")
    return urllib.parse.urlunsplit(parts)


def is_numbered(host: str) -> bool:
    """Tell whether a host is a number, or this machine.

    Args:
        host: of a url.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True
