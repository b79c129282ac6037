"""Requests to Google Cloud Storage, and what its answers mean.

Flows in: a method and an address. Flows out: an answer, or an error of ours: ``Again`` where asking again may help,
else one that says what to do. A token that is refused is looked up once more, if there may be another.
"""

import json
from collections.abc import Container
from typing import Any

from webdataset.ground.errors import NotFound, SourceError
from webdataset.ground.redaction import redacted
from webdataset.sources.objects import Again, changed
from webdataset.sources.patience import wish_of
from webdataset.sources.rest import BUSY, exchanged, patiently

from . import credentials
from .places import ANONYMOUS, Place

GOOD = frozenset((200, 201, 204, 206))
_CHANGED = frozenset((412, 416))
_THROTTLED = b"ateLimitExceeded"  # rateLimitExceeded, userRateLimitExceeded: with this status, too


class Calls:
    """Requests about one object or bucket.

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
        credentials.forget(self._service)

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
            offset: where in the object we are, for messages.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it is another object by now.
            SourceError: the service refuses.
        """
        sent = {**credentials.authorization(self._service, address, self._url), **(headers or {})}
        self.requests += 1
        response = exchanged(method, address, sent, url=self._url, body=body, streamed=streamed)
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
        status = response.status
        said = f"the service answered {status}: {_message(response)}".rstrip(": ")
        if status in BUSY or (status == 403 and _THROTTLED in response.data):
            return Again(said, wait_seconds=wish_of(response.headers.get("Retry-After")))
        if status == 401 and not self._doubted and credentials.refreshable(self._service):
            self._doubted = True
            return Again(said, expired=True)
        if status in _CHANGED:
            return changed(self._url, offset)
        if status in (401, 403):
            said += f"; {self._way_out(status)}"
        return (NotFound if status == 404 else SourceError)(said, url=self._url)

    def _way_out(self, status: int) -> str:
        if self._service.credentials == ANONYMOUS:
            return "asked without credentials; leave anonymous out, or check that everybody may do this"
        if status == 401:
            return "the access token is wrong or has expired"
        return "these credentials may not do this; check the bucket's policy, or anonymous=True for public data"


def _message(response: Any) -> str:
    """Return what an answer with an error status says."""
    try:
        text = response.data[:10_000].decode(errors="replace")
        fault = json.loads(text)["error"]
        text = fault["message"] if isinstance(fault, dict) else str(fault)
    except (ValueError, KeyError, TypeError):
        pass
    return redacted(" ".join(text.split())[:300])
