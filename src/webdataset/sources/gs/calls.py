"""Requests to Google Cloud Storage, and what its answers mean.

Flows in: a method and an address. Flows out: an answer, or an error of ours: ``Again`` where asking again may help,
else one that says what to do. A token that is refused is looked up once more, if there may be another.
"""

import json
from typing import Any

from webdataset.ground.errors import NotFound, SourceError
from webdataset.ground.redaction import redacted
from webdataset.sources.objects import Again, changed
from webdataset.sources.patience import wish_of
from webdataset.sources.rest import BUSY, CHANGED, Calls

from . import credentials
from .places import ANONYMOUS, Place

_THROTTLED = b"ateLimitExceeded"  # rateLimitExceeded, userRateLimitExceeded: with this status, too


class GsCalls(Calls):
    """Requests about one object or bucket.

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
        credentials.forget(self._service)

    def _signed(self, method: str, address: str, headers: dict[str, str], size: int) -> tuple[str, dict[str, str]]:  # noqa: ARG002  this service signs no requests
        return address, {**credentials.authorization(self._service, address, self.url), **headers}

    def _refused(self, response: Any, offset: int) -> Again | SourceError:
        status = response.status
        said = f"the service answered {status}: {_message(response)}".rstrip(": ")
        if status in BUSY or (status == 403 and _THROTTLED in response.data):
            return Again(said, wait_seconds=wish_of(response.headers.get("Retry-After"), response.headers.get("Date")))
        if status == 401 and credentials.refreshable(self._service) and self._doubt():
            return Again(said, expired=True)
        if status in CHANGED:
            return changed(self.url, offset)
        if status in (401, 403):
            said += f"; {self._way_out(status)}"
        return (NotFound if status == 404 else SourceError)(said, url=self.url)

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
