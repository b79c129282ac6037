"""Google Cloud Storage: reads, uploads and lists objects.

A response holds bytes as they are stored, their generation, and the CRC32C of the whole object. Objects that are
stored compressed are not decompressed on the way. Every later request names the generation of the first, so that a
bucket that keeps old generations gives it to its end.

An upload is one request, or the chunks of a resumable upload, one after the other. After a failure the service is
asked how much of a chunk it has, and the rest is sent. At the end its length and CRC32C are compared with what was
written. A list has a thousand names a request, in the order of the service.
"""

import functools
import json
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.storage import http_client
from webdataset.storage.backends.gcs_client import ENDPOINT, GcsClient, parse_url
from webdataset.storage.backends.gcs_client import service_id as service_id
from webdataset.storage.http_client import GOOD, next_page, parse_body_range, range_header, retry
from webdataset.storage.object_store import (
    ObjectResponse,
    ObjectVersion,
    RetryableError,
    crc32c_function,
    object_changed_error,
    parse_crc32,
    parse_digest,
)
from webdataset.storage.uploads import MultipartUpload

PAGE = 1000
"""Objects a request."""


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key; see :mod:`webdataset.storage.open_url`."""
    parse_url(url)
    start = url.index("/", url.index("://") + 3) + 1
    return url[:start], url[start:]


def list_keys(stem: str, prefix: str, storage_options: Any = None) -> Iterator[str]:
    """Give the keys in a bucket that begin with a text.

    Args:
        stem: ``gs://bucket/``.
        prefix: what keys begin with.
        storage_options: what a dataset says about its storage.

    Raises:
        NotFound: no such bucket.
        SourceError: the service refuses, or does not answer.
    """
    place = parse_url(stem, storage_options)
    calls, token = GcsClient(place, stem), None
    while True:
        address = place.address(
            prefix=prefix or None, fields="items/name,nextPageToken", pageToken=token, maxResults=str(PAGE)
        )
        page = retry(functools.partial(_fetch_page, calls, address), stem, calls.refresh)
        yield from (found["name"] for found in page.get("items", ()))
        token = next_page(page.get("nextPageToken"), token, stem)
        if token is None:
            return


def _fetch_page(calls: GcsClient, address: str) -> dict[str, Any]:
    try:
        page: dict[str, Any] = json.loads(calls.ask("GET", address).data)
    except ValueError as error:  # an answer without a length that broke off looks like a whole one
        raise RetryableError(f"the service's list cannot be read: {error}") from None
    return page


class GcsObject:
    """One object.

    Args:
        url: the url as the user wrote it.
        storage_options: what a dataset says about its storage.

    Raises:
        UsageError: the url names no object.
    """

    def __init__(self, url: str, storage_options: Any = None) -> None:
        self.url = url
        self.place = parse_url(url, storage_options)
        if not self.place.key or self.place.key.endswith("/"):
            raise UsageError(
                "names no object: a url of Google Cloud Storage is gs://bucket/key (wds.expand_urls lists a folder)",
                url=url,
            )
        self._calls = GcsClient(self.place, url)

    @property
    def requests(self) -> int:
        """Requests sent so far."""
        return self._calls.requests

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return http_client.failures()

    def refresh(self) -> None:
        """Look for credentials anew."""
        self._calls.refresh()

    def open_at(self, offset: int, known: ObjectVersion | None, size: int | None = None) -> ObjectResponse:
        """Send one request for the object's content; see :class:`~webdataset.storage.object_store.RemoteObject`.

        Args:
            offset: the first byte wanted.
            known: who the object was at first.
            size: bytes wanted; None for all.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it is another object by now.
            SourceError: the service refuses.
        """
        generation = self.place.generation or (known.version if known else None)
        address = self.place.address(alt="media", generation=generation)
        # "gzip" asks for the bytes as they are stored; with "identity" the service would decompress, and lose ranges
        headers = {"Accept-Encoding": "gzip", **range_header(offset, size)}
        try:
            response = self._calls.ask("GET", address, headers, streamed=True, offset=offset)
        except NotFound:
            if known is None or self.place.generation or not self._is_there():
                raise
        else:
            return self._answer(response)
        raise object_changed_error(self.url, offset)

    def _is_there(self) -> bool:
        """Tell whether another generation has taken the place of the one that is gone."""
        try:
            self._calls.ask("GET", self.place.address(fields="generation"))
        except NotFound:
            return False
        return True

    def _answer(self, response: Any) -> ObjectResponse:
        headers = response.headers
        encoding = headers.get("Content-Encoding", "identity")
        stored = headers.get("X-Goog-Stored-Content-Encoding", encoding)
        if stored != encoding:
            response.close()
            raise SourceError(
                f"what is stored as {stored} came as {encoding}: something on the way changes it, so that ranges fit "
                "nothing",
                url=self.url,
            )
        start, total, size = parse_body_range(response)
        version = headers.get("X-Goog-Generation")
        identity = ObjectVersion(None if version else headers.get("ETag"), version, headers.get("Last-Modified"), total)
        sums = dict(text.strip().partition("=")[::2] for text in headers.get("X-Goog-Hash", "").split(","))
        return ObjectResponse(
            response,
            start,
            identity,
            size,
            crc32c=parse_crc32(sums.get("crc32c")),
            digest=parse_digest(sums.get("md5"), "md5"),
        )


def remote_object(url: str, storage_options: Any = None) -> GcsObject:
    """Return the object of a url; see :mod:`webdataset.storage.open_url`."""
    return GcsObject(url, storage_options)


def create_upload(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new object; see :class:`~webdataset.storage.backends.gcs.GcsUpload`."""
    return GcsUpload(url, storage_options, **options)


PART_BYTES = 16 << 20
QUANTUM_BYTES = 256 << 10

_INCOMPLETE = 308
_UNDER_WAY = GOOD | {_INCOMPLETE}
_FORGOTTEN = frozenset((404, 410))
_CANCELLED = frozenset((204, 404, 410, 499))
_RECEIVED = re.compile(r"bytes=0-([0-9]{1,19})$")


class GcsUpload(MultipartUpload):
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
        self._place = place = parse_url(url, storage_options)
        if not place.key or place.key.endswith("/") or place.generation:
            raise UsageError("names no object that can be written: gs://bucket/key", url=url)
        if part_bytes % QUANTUM_BYTES:
            raise UsageError(f"part_bytes is a multiple of {QUANTUM_BYTES}, not {part_bytes}", url=url)
        self._calls = GcsClient(place, url, attempts)
        self._attempts = attempts
        self._session = ""
        self._sum = 0
        self._summing = crc32c_function()
        super().__init__(url, part_bytes)

    def write(self, content: Any, /) -> int:
        """Take bytes; see :meth:`Upload.write`."""
        count = super().write(content)
        if self._summing is not None:
            self._sum = self._summing(bytes(content), self._sum)
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

    def _send_part(self, number: int, body: bytes) -> None:
        self._chunk((number - 1) * self._part_bytes, body, None)

    def _finish(self) -> None:
        """Send the last chunk, which says how long the object is, and so publishes it."""
        self._await_parts()
        self._check(self._chunk(self._size - len(self._buffer), bytes(self._buffer), self._size))

    def _chunk(self, offset: int, body: bytes, total: int | None) -> Any:
        """Send a chunk until the service has it; return its answer where that completes the object."""
        place, end, unsure = offset, offset + len(body), False

        def ask() -> Any:
            nonlocal place, unsure
            while place < end:
                asking, unsure = unsure, True
                response = (
                    self._request_progress() if asking else self._offer_chunk(place, body[place - offset :], total)
                )
                unsure = False
                if response.status != _INCOMPLETE:
                    return response
                found = _RECEIVED.match(response.headers.get("Range", ""))
                place = int(found[1]) + 1 if found else 0
                if not offset <= place <= end:
                    raise SourceError(f"the service has lost bytes of an upload: it has {place}", url=self.name)
            return None

        done = retry(ask, self.name, self._calls.refresh, self._attempts)
        if (done is None) != (total is None):
            raise SourceError("the service did not end an upload where its bytes ended", url=self.name)
        return done

    def _offer_chunk(self, place: int, body: bytes, total: int | None) -> Any:
        headers = {"Content-Range": f"bytes {place}-{place + len(body) - 1}/{'*' if total is None else total}"}
        return self._calls.ask("PUT", self._session, headers, body=body, good=_UNDER_WAY)

    def _request_progress(self) -> Any:
        """Ask how much is there; a service that has forgotten the upload may have completed it."""
        headers = {"Content-Range": "bytes */*"}
        response = self._calls.ask("PUT", self._session, headers, body=b"", good=_UNDER_WAY | _FORGOTTEN)
        if response.status not in _FORGOTTEN:
            return response
        facts = self._calls.ask("GET", self._place.address(fields="size,crc32c"), good=GOOD | _FORGOTTEN)
        if facts.status in _FORGOTTEN or self._parse_description(facts) != (self._size, self._sum):
            raise SourceError("the service has forgotten this upload: write it again", url=self.name)
        return facts

    def _join(self, tags: list[Any]) -> None:
        """Nothing is left to do: the last chunk published the object."""

    def _check(self, response: Any) -> None:
        """Compare what is there with what was written."""
        if self._parse_description(response) != (self._size, self._sum):
            raise SourceError("what the service stored is not what was written: write it again", url=self.name)

    def _parse_description(self, response: Any) -> tuple[int, int]:
        """Return length and checksum of the object that an answer tells of; what it leaves out is taken as right."""
        try:
            found = json.loads(response.data)
            size, checksum = int(found.get("size", self._size)), parse_crc32(found.get("crc32c"))
        except (ValueError, AttributeError):
            return self._size, self._sum
        return size, self._sum if checksum is None or self._summing is None else checksum

    def _remove(self) -> None:
        if self._session:
            try:
                self._calls.ask("DELETE", self._session, good=_CANCELLED)
            except RetryableError as again:
                raise SourceError(str(again), url=self.name) from None
