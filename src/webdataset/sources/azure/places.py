"""Where a blob lies.

Flows in: ``az://container/blob``, ``abfs://container@account.dfs.core.windows.net/blob``, storage options. Flows out: a
:class:`Place`. Names are taken as they stand: nothing in them is decoded. A url may name an account of Azure, but no
other host: tokens would go there.
"""

import re
import urllib.parse
from typing import Any, NamedTuple

from webdataset.ground.errors import UsageError

from .accounts import Service, service

_PLACE = re.compile(
    r"(?:az|abfss?)://(?P<container>[^/@]+)(?:@(?P<host>[^/@]+))?/(?P<key>.*)\Z", re.IGNORECASE | re.DOTALL
)
_HOST = re.compile(
    r"(?P<account>[a-z0-9-]{3,63})\.(?P<zone>z[0-9]+\.)?(?:blob|dfs)\."
    r"(?P<suffix>core\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net|cloudapi\.de)"
    r"|storage\.azure\.net|fabric\.microsoft\.com)\Z",
    re.IGNORECASE,
)
_ACCOUNT = re.compile(r"[a-z0-9-]{3,63}\Z", re.IGNORECASE)
_SIGNED = re.compile(r"\?.*\bsig=", re.DOTALL)


class Place(NamedTuple):
    """Where a blob lies.

    Args:
        service: the account, and who asks.
        container: the container.
        key: the blob's name.
    """

    service: Service
    container: str
    key: str

    def address(self, **query: str | None) -> str:
        """Return the address of this blob, or of its container where there is no name.

        Args:
            **query: parameters; those that are None are left out.
        """
        quote = urllib.parse.quote
        parameters = "&".join(f"{name}={quote(text, safe='')}" for name, text in query.items() if text is not None)
        key = f"/{quote(self.key, safe='/~')}" if self.key else ""
        path = f"{self.service.endpoint}/{quote(self.container, safe='$')}{key}"
        return f"{path}?{parameters}" if parameters else path


def place_of(url: str, storage_options: Any = None) -> Place:
    """Return the blob that a url names.

    Args:
        url: the url.
        storage_options: what a dataset says about its storage.

    Raises:
        UsageError: no container, a host that is none of Azure's, or a signature in the url.
        ConfigError: no account, or options that make no sense.
    """
    match = _PLACE.match(url)
    if match is None:
        raise UsageError(
            "a url of Azure Storage is az://container/blob or abfs://container@account.dfs.core.windows.net/blob",
            url=url,
        )
    refuse_signed(url)
    if not {".", ".."}.isdisjoint(match["key"].split("/")):
        raise UsageError("a blob's name has no parts '.' and '..'", url=url)
    account, endpoint = _account(match["host"], url)
    return Place(service(storage_options, url, account, endpoint), match["container"], match["key"])


def refuse_signed(url: str) -> None:
    """Refuse a url with a signature in it: urls get into samples and logs.

    Args:
        url: the url.

    Raises:
        UsageError: it holds one.
    """
    if _SIGNED.search(url):
        raise UsageError(
            "a shared access signature does not belong in a url: pass storage_options={'sas_token': 'env:NAME'}, or "
            "set AZURE_STORAGE_SAS_TOKEN",
            url=url,
        )


def _account(host: str | None, url: str) -> tuple[str | None, str | None]:
    """Return the account and the endpoint that a url's host names."""
    if host is None or _ACCOUNT.match(host):
        return host, None
    match = _HOST.match(host)
    if match is None:
        raise UsageError("the host is none of Azure Storage: pass storage_options={'endpoint_url': …}", url=url)
    return match["account"], f"https://{match['account']}.{match['zone'] or ''}blob.{match['suffix']}".lower()


def service_of(url: str, storage_options: Any = None) -> str:
    """Return the account's address; see :mod:`webdataset.sources.stores`."""
    return place_of(url, storage_options).service.endpoint
