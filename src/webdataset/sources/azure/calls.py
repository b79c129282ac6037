"""Requests to Azure Storage, and what its answers mean.

Flows in: a method and an address. Flows out: an answer, or an error of ours: ``Again`` where asking again may help,
else one that says what to do. The service's own words are not quoted: it may repeat signatures; its codes are.
"""

from collections.abc import Container
from typing import Any

from webdataset.ground.errors import NotFound, SourceError
from webdataset.sources.objects import Again, changed
from webdataset.sources.patience import wish_of
from webdataset.sources.rest import BUSY, exchanged, patiently

from . import signing
from .places import Place

GOOD = frozenset((200, 201, 202, 206))
_CHANGED = frozenset((412, 416))
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


class Calls:
    """Requests about one blob or container.

    Args:
        place: where, and who asks.
        url: what the user calls it.
        attempts: failures in a row after which a request is given up.

    Attributes:
        requests: requests sent so far.
    """

    def __init__(self, place: Place, url: str, attempts: int | None = None) -> None:
        self._service = place.service
        self._url = url
        self._attempts = attempts
        self._doubted = False
        self.requests = 0

    def refresh(self) -> None:
        """Look for credentials anew."""
        signing.forget(self._service)

    def ask(
        self,
        method: str,
        address: str,
        headers: dict[str, str] | None = None,
        *,
        body: bytes | None = None,
        streamed: bool = False,
        good: Container[int] = GOOD,
        offset: int = 0,
    ) -> Any:
        """Send a request once.

        Args:
            method: ``GET`` ….
            address: where to.
            headers: beside those that say who asks.
            body: what is sent along.
            streamed: leave the body of the answer unread.
            good: statuses that the caller understands.
            offset: where in the blob we are, for messages.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it is another blob by now.
            SourceError: the service refuses.
        """
        target, sent = signing.signed(
            self._service, method, address, headers or {}, size=len(body or b""), url=self._url
        )
        self.requests += 1
        response = exchanged(method, target, sent, url=self._url, body=body, streamed=streamed)
        if response.status in good:
            self._doubted = False
            return response
        response.close()
        raise self._refused(response, offset)

    def call(self, method: str, address: str, headers: dict[str, str] | None = None, **options: Any) -> Any:
        """Send a request until it is answered.

        Args:
            method: ``GET`` ….
            address: where to.
            headers: beside those that say who asks.
            **options: as for :meth:`ask`.

        Raises:
            NotFound: nothing is there.
            SourceError: the service refuses, or does not answer.
        """
        return patiently(lambda: self.ask(method, address, headers, **options), self._url, self.refresh, self._attempts)

    def _refused(self, response: Any, offset: int) -> Again | SourceError:
        status, code = response.status, response.headers.get("x-ms-error-code", "")
        said = f"the service answered {status} {code or response.reason or ''}".rstrip()
        if status in BUSY:
            return Again(said, wait_seconds=wish_of(response.headers.get("Retry-After")))
        stale = status == 401 or code in _STALE
        if stale and not self._doubted and signing.refreshable(self._service):
            self._doubted = True
            return Again(said, expired=True)
        if status in _CHANGED:
            return changed(self._url, offset)
        way_out = _WAYS_OUT.get(code) or ("check the credentials" if status in (401, 403) else "")
        said = f"{said}; {way_out}" if way_out else said
        return (NotFound if status == 404 else SourceError)(said, url=self._url)
