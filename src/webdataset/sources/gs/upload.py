"""Uploads to Google Cloud Storage: one request, or chunks of a resumable upload, one after the other.

Flows in: bytes. Flows out: an object; see :mod:`webdataset.sources.uploading`. After a failure the service is asked how
much of a chunk it has, and the rest is sent. At the end its length and CRC32C are compared with what was written.
"""

import json
import re
import urllib.parse
from typing import Any

from webdataset.ground.errors import SourceError, UsageError
from webdataset.sources.objects import Again, Answer, Identity, crc32_of
from webdataset.sources.rest import GOOD, patiently
from webdataset.sources.uploading import Upload

from .calls import GsCalls
from .places import ENDPOINT, place_of

PART_BYTES = 16 << 20
QUANTUM_BYTES = 256 << 10

_INCOMPLETE = 308
_UNDER_WAY = GOOD | {_INCOMPLETE}
_FORGOTTEN = frozenset((404, 410))
_CANCELLED = frozenset((204, 404, 410, 499))
_RECEIVED = re.compile(r"bytes=0-([0-9]{1,19})$")


class GsUpload(Upload):
    """A stream to a new object.

    Args:
        url: the object.
        storage_options: what a dataset says about its storage.
        part_bytes: size of a chunk, a multiple of 256 KiB; two or three of them are in memory.
        attempts: failures in a row after which a request is given up.

    Raises:
        UsageError: the url names no object, or ``part_bytes`` is no multiple of 256 KiB.
    """

    least_part_bytes = QUANTUM_BYTES
    most_parts = 1 << 30  # an object may have 5 TiB, whatever the chunks
    at_once = 1

    def __init__(
        self, url: str, storage_options: Any = None, *, part_bytes: int = PART_BYTES, attempts: int | None = None
    ) -> None:
        self._place = place = place_of(url, storage_options)
        if not place.key or place.key.endswith("/") or place.generation:
            raise UsageError("names no object that can be written: gs://bucket/key", url=url)
        if part_bytes % QUANTUM_BYTES:
            raise UsageError(f"part_bytes is a multiple of {QUANTUM_BYTES}, not {part_bytes}", url=url)
        self._calls = GsCalls(place, url, attempts)
        self._attempts = attempts
        self._session = ""
        self._sum = 0
        self._summing = Answer(None, 0, Identity(), crc32c=0).vouched()
        super().__init__(url, part_bytes)

    def write(self, content: Any, /) -> int:
        """Take bytes; see :meth:`Upload.write`."""
        count = super().write(content)
        expected, summing = self._summing
        if expected is not None:
            self._sum = summing(bytes(content), self._sum)
        return count

    def _whole(self, body: bytes) -> None:
        address = self._place.address("upload/", uploadType="media", name=self._place.key)
        headers = {"Content-Type": "application/octet-stream"}
        self._check(self._calls.call("POST", address, headers, body=body))

    def _begin(self) -> None:
        address = self._place.address("upload/", uploadType="resumable", name=self._place.key)
        headers = {"Content-Type": "application/json", "X-Upload-Content-Type": "application/octet-stream"}
        session = self._calls.call("POST", address, headers, body=b"{}").headers.get("Location")
        if not session:
            raise SourceError("the service did not begin an upload", url=self.name)
        endpoint = self._place.service.endpoint
        if endpoint != ENDPOINT:  # the way to the service that the user chose, not the one that it knows itself by
            session = endpoint + urllib.parse.urlunsplit(urllib.parse.urlsplit(session)._replace(scheme="", netloc=""))
        self._session = session

    def _put(self, number: int, body: bytes) -> None:
        self._chunk((number - 1) * self._part_bytes, body, None)

    def _finish(self) -> None:
        """Send the last chunk, which says how long the object is, and so publishes it."""
        self._sent()
        self._check(self._chunk(self._size - len(self._buffer), bytes(self._buffer), self._size))

    def _chunk(self, offset: int, body: bytes, total: int | None) -> Any:
        """Send a chunk until the service has it; return its answer where that completes the object."""
        place, end, unsure = offset, offset + len(body), False

        def ask() -> Any:
            nonlocal place, unsure
            while place < end:
                asking, unsure = unsure, True
                response = self._asked() if asking else self._offered(place, body[place - offset :], total)
                unsure = False
                if response.status != _INCOMPLETE:
                    return response
                found = _RECEIVED.match(response.headers.get("Range", ""))
                place = int(found[1]) + 1 if found else 0
                if not offset <= place <= end:
                    raise SourceError(f"the service has lost bytes of an upload: it has {place}", url=self.name)
            return None

        done = patiently(ask, self.name, self._calls.refresh, self._attempts)
        if (done is None) != (total is None):
            raise SourceError("the service did not end an upload where its bytes ended", url=self.name)
        return done

    def _offered(self, place: int, body: bytes, total: int | None) -> Any:
        headers = {"Content-Range": f"bytes {place}-{place + len(body) - 1}/{'*' if total is None else total}"}
        return self._calls.ask("PUT", self._session, headers, body=body, good=_UNDER_WAY)

    def _asked(self) -> Any:
        """Ask how much is there; a service that has forgotten the upload may have completed it."""
        headers = {"Content-Range": "bytes */*"}
        response = self._calls.ask("PUT", self._session, headers, body=b"", good=_UNDER_WAY | _FORGOTTEN)
        if response.status not in _FORGOTTEN:
            return response
        facts = self._calls.ask("GET", self._place.address(fields="size,crc32c"), good=GOOD | _FORGOTTEN)
        if facts.status in _FORGOTTEN or self._described(facts) != (self._size, self._sum):
            raise SourceError("the service has forgotten this upload: write it again", url=self.name)
        return facts

    def _join(self, tags: list[Any]) -> None:
        """Nothing is left to do: the last chunk published the object."""

    def _check(self, response: Any) -> None:
        """Compare what is there with what was written."""
        if self._described(response) != (self._size, self._sum):
            raise SourceError("what the service stored is not what was written: write it again", url=self.name)

    def _described(self, response: Any) -> tuple[int, int]:
        """Return length and checksum of the object that an answer tells of; what it leaves out is taken as right."""
        try:
            found = json.loads(response.data)
            size, checksum = int(found.get("size", self._size)), crc32_of(found.get("crc32c"))
        except (ValueError, AttributeError):
            return self._size, self._sum
        return size, self._sum if checksum is None or self._summing[0] is None else checksum

    def _remove(self) -> None:
        if self._session:
            try:
                self._calls.ask("DELETE", self._session, good=_CANCELLED)
            except Again as again:
                raise SourceError(str(again), url=self.name) from None
