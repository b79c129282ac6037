"""Requests to Azure Storage, and what its answers mean.

Flows in: a method and an address. Flows out: an answer, or an error of ours: ``Again`` where asking again may help,
else one that says what to do. The service's own words are not quoted: it may repeat signatures; its codes are.
"""

from typing import Any

from webdataset.ground.errors import NotFound, SourceError
from webdataset.sources.objects import Again, changed
from webdataset.sources.patience import wish_of
from webdataset.sources.rest import BUSY, CHANGED, Calls

from . import signing
from .places import Place

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
    "PublicAccessNotPermitted": "the account allows nobody to ask without credentials; leave anonymous out",
    "ContainerNotFound": "check the container's name, and the account",
    "ResourceNotFound": "check the container's name and the account; what is private looks absent without credentials",
    "InvalidBlockList": "somebody else wrote the same blob at the same time",
    "LeaseIdMissing": "somebody holds a lease on the blob",
}


class AzureCalls(Calls):
    """Requests about one blob or container.

    Args:
        place: where, and who asks.
        url: what the user calls it.
        attempts: failures in a row after which a request is given up.
    """

    def __init__(self, place: Place, url: str, attempts: int | None = None) -> None:
        super().__init__(url, attempts)
        self._service = place.service

    def refresh(self) -> None:
        """Look for credentials anew."""
        signing.forget(self._service)

    def _signed(self, method: str, address: str, headers: dict[str, str], size: int) -> tuple[str, dict[str, str]]:
        return signing.signed(self._service, method, address, headers, size=size, url=self.url)

    def _refused(self, response: Any, offset: int) -> Again | SourceError:
        status, code = response.status, response.headers.get("x-ms-error-code", "")
        said = f"the service answered {status} {code or response.reason or ''}".rstrip()
        if status in BUSY:
            return Again(said, wait_seconds=wish_of(response.headers.get("Retry-After"), response.headers.get("Date")))
        stale = status == 401 or code in _STALE
        if stale and signing.refreshable(self._service) and self._doubt():
            return Again(said, expired=True)
        if status in CHANGED:
            return changed(self.url, offset)
        way_out = _WAYS_OUT.get(code) or ("check the credentials" if status in (401, 403) else "")
        said = f"{said}; {way_out}" if way_out else said
        return (NotFound if status == 404 else SourceError)(said, url=self.url)
