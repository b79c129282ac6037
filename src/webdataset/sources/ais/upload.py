"""Uploads to AIStore: an object appears when it is complete, and never before.

Flows in: bytes. Flows out: an object. ``close`` sends it by one PUT, which the cluster takes whole or not at all, and
sends it again, beginning at a gateway, while that may help.
"""

import http.client
import urllib.parse
from typing import Any

from webdataset.ground.errors import SourceError, UsageError
from webdataset.ground.redaction import redacted
from webdataset.sources import rest
from webdataset.sources.objects import Again
from webdataset.sources.patience import ATTEMPTS
from webdataset.sources.spooling import SpooledUpload

from . import cluster as known
from . import sending
from .cluster import Cluster
from .errors import refusal
from .places import place_of


class AisUpload(SpooledUpload):
    """A stream to a new object.

    Args:
        url: the object.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.
        attempts: failures in a row after which the upload is given up.

    Raises:
        UsageError: the url names no object that can be written.
        ConfigError: no gateway is known.
    """

    def __init__(self, url: str, storage_options: Any = None, *, attempts: int = ATTEMPTS) -> None:
        self._cluster = Cluster(storage_options, url)
        self._cluster.gateway()
        self._place = place_of(url, self._cluster.provider)
        writable = self._place.name and not self._place.name.endswith("/") and not self._place.asked
        if not writable or self._place.original:
            raise UsageError("names no object that can be written: an AIStore url is ais://bucket/object", url=url)
        super().__init__(url, attempts)

    def _sent(self) -> None:
        """Send the object once, beginning at a gateway; the next one is asked where that fails."""
        query = urllib.parse.urlencode(self._place.query())
        target = f"{self._cluster.gateway()}{self._place.path()}?{query}"
        try:
            for hop in range(known.HOPS):
                reply = self._answered(target, asking=hop == 0)
                if reply.status < 300:
                    return
                if reply.status not in known.REDIRECTED:
                    raise refusal(reply.status, reply.headers, reply.said, self.name)
                target = self._cluster.followed(target, reply.headers.get("Location", ""))
        except Again:
            self._cluster.next_gateway()
            raise
        raise SourceError(f"the cluster redirected the upload more than {known.HOPS} times", url=self.name)

    def _answered(self, target: str, *, asking: bool) -> sending.Reply:
        headers, tls = self._cluster.authorization(), dict(self._cluster.tls())
        try:
            return sending.put(target, headers, self._kept, self._size, tls, seconds=rest.READ_SECONDS, asking=asking)
        except (OSError, http.client.HTTPException) as error:
            said = redacted(f"{type(error).__name__}: {error}")
        raise known.unanswered(said, self.name)
