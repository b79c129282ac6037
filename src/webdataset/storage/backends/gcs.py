"""Google Cloud Storage: reads, uploads and lists objects.

Objects that are stored compressed are read as they are stored: a range of decompressed bytes would fit nothing. Every
request after the first names the generation of the first, so that a bucket that keeps old generations gives it to its
end.

A large upload is a resumable one: chunks, one after the other. After a failure the service says how much of a chunk
it has, and the rest is sent. The object is never published unless its length and CRC32C are those of what was written.
"""

import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.storage.backends.gcs_client import ENDPOINT, GcsClient, parse_url
from webdataset.storage.backends.gcs_client import service_id as service_id
from webdataset.storage.http_client import HttpResponse, list_pages
from webdataset.storage.http_object import GOOD, HttpAnswer, HttpRemoteObject, range_header
from webdataset.storage.object_store import (
    Checksums,
    ObjectVersion,
    crc32c_function,
    object_changed_error,
    parse_crc32,
    parse_digest,
    refuse_folder,
)
from webdataset.storage.retries import RetryableError, retry
from webdataset.storage.uploads import MultipartUpload

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PAGE = 1000
"""Objects a request."""


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key."""
    parse_url(url)
    start = url.index("/", url.index("://") + 3) + 1
    return url[:start], url[start:]


def list_keys(stem: str, prefix: str, storage_options: object = None) -> Iterator[str]:
    """Yield the keys of a bucket that begin with a prefix, in the order of the service."""
    place = parse_url(stem, storage_options)
    client = GcsClient(place, stem)

    def page(token: str | None) -> tuple[Iterable[str], str | None]:
        address = place.address(
            prefix=prefix or None, fields="items/name,nextPageToken", pageToken=token, maxResults=str(PAGE)
        )
        found = client.fetch(address, json.loads)
        return (entry["name"] for entry in found.get("items", ())), found.get("nextPageToken")

    return list_pages(page, stem)


class GcsObject(HttpRemoteObject):
    """One object.

    Args:
        url: the url as the user wrote it.
        storage_options: credentials and endpoint.

    Raises:
        UsageError: the url names no object.
    """

    def __init__(self, url: str, storage_options: object = None) -> None:
        super().__init__(url)
        self.place = parse_url(url, storage_options)
        refuse_folder(self.place.key, "a url of Google Cloud Storage is gs://bucket/key", url)
        self._client = GcsClient(self.place, url)

    def refresh(self) -> None:
        """Look for credentials anew."""
        self._client.refresh()

    def request(self, offset: int, size: int | None, known: ObjectVersion | None) -> HttpAnswer:
        """Send one request for the object's content, of the known generation."""
        generation = self.place.generation or (known.version if known else None)
        address = self.place.address(alt="media", generation=generation)
        # "gzip" asks for the bytes as they are stored; with "identity" the service would decompress, and lose ranges
        headers = {"Accept-Encoding": "gzip", **range_header(offset, size)}
        try:
            response = self._client.ask("GET", address, headers, streamed=True, offset=offset)
        except NotFound:
            if known is None or self.place.generation or not self._exists():
                raise
        else:
            return self._refuse_changed_encoding(response)
        raise object_changed_error(self.url, offset)

    def _exists(self) -> bool:
        """Tell whether another generation has replaced the known one."""
        try:
            self._client.ask("GET", self.place.address(fields="generation"))
        except NotFound:
            return False
        return True

    def _refuse_changed_encoding(self, response: HttpResponse) -> HttpAnswer:
        """Raise where a response holds other bytes than those stored."""
        encoding = response.headers.get("Content-Encoding", "identity")
        stored = response.headers.get("X-Goog-Stored-Content-Encoding", encoding)
        if stored == encoding:
            return HttpAnswer(response.status, response.headers, response)
        response.close()
        raise SourceError(
            f"what is stored as {stored} came as {encoding}: something on the way changes it, so that ranges fit "
            "nothing",
            url=self.url,
        )

    def version(self, headers: Mapping[str, str], length: int | None) -> ObjectVersion:
        """Return the generation, else the ETag."""
        generation = headers.get("X-Goog-Generation")
        etag = None if generation else headers.get("ETag")
        return ObjectVersion(etag, generation, headers.get("Last-Modified"), length)

    def checksums(self, headers: Mapping[str, str], *, whole: bool) -> Checksums:  # noqa: ARG002  of any answer
        """Return CRC32C and MD5 of the whole object, which every response names."""
        sums = dict(text.strip().partition("=")[::2] for text in headers.get("X-Goog-Hash", "").split(","))
        return Checksums(crc32c=parse_crc32(sums.get("crc32c")), digest=parse_digest(sums.get("md5"), "md5"))


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
        storage_options: credentials and endpoint.
        part_bytes: bytes of a chunk, a multiple of 256 KiB; two or three of them are in memory.
        attempts: failures in a row after which to give up a request.

    Raises:
        UsageError: the url names no object, or ``part_bytes`` is no multiple of 256 KiB.
    """

    least_part_bytes = QUANTUM_BYTES
    most_parts = 1 << 30  # an object may have 5 TiB, whatever the chunks
    at_once = 1

    def __init__(
        self, url: str, storage_options: object = None, *, part_bytes: int = PART_BYTES, attempts: int | None = None
    ) -> None:
        self._place = place = parse_url(url, storage_options)
        if not place.key or place.key.endswith("/") or place.generation:
            raise UsageError("names no object that can be written: gs://bucket/key", url=url)
        if part_bytes % QUANTUM_BYTES:
            raise UsageError(f"part_bytes is a multiple of {QUANTUM_BYTES}, not {part_bytes}", url=url)
        self._client = GcsClient(place, url, attempts)
        self._attempts = attempts
        self._session = ""
        self._sum = 0
        self._summing = crc32c_function()
        super().__init__(url, part_bytes)

    def write(self, content: "ReadableBuffer", /) -> int:
        """Take bytes; see :class:`~webdataset.storage.uploads.AtomicUpload`."""
        count = super().write(content)
        if self._summing is not None:
            self._sum = self._summing(bytes(content), self._sum)
        return count

    def _whole(self, body: bytes) -> None:
        address = self._place.address("upload/", uploadType="media", name=self._place.key)
        headers = {"Content-Type": "application/octet-stream"}
        self._check(self._client.call("POST", address, headers, body=body))

    def _begin(self) -> None:
        address = self._place.address("upload/", uploadType="resumable", name=self._place.key)
        headers = {"Content-Type": "application/json", "X-Upload-Content-Type": "application/octet-stream"}
        session = self._client.call("POST", address, headers, body=b"{}").headers.get("Location")
        if not session:
            raise SourceError("the service did not begin an upload", url=self.name)
        endpoint = self._place.service.endpoint
        if endpoint != ENDPOINT:  # the way to the service that the user chose, not the one that it knows itself by
            session = endpoint + urllib.parse.urlunsplit(urllib.parse.urlsplit(session)._replace(scheme="", netloc=""))
        self._session = session

    def _send_part(self, number: int, body: bytes) -> str:
        self._chunk((number - 1) * self._part_bytes, body, None)
        return ""

    def _finish(self) -> None:
        """Send the last chunk: it names the length of the object, and so publishes it."""
        self._await_parts()
        self._check(self._chunk(self._size - len(self._buffer), bytes(self._buffer), self._size))

    def _chunk(self, offset: int, body: bytes, total: int | None) -> HttpResponse | None:
        """Send a chunk until the service has it; return its response where that completes the object."""
        place, end, unsure = offset, offset + len(body), False

        def ask() -> HttpResponse | None:
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

        done = retry(ask, self.name, self._client.refresh, self._attempts)
        if (done is None) != (total is None):
            raise SourceError("the service did not end an upload where its bytes ended", url=self.name)
        return done

    def _offer_chunk(self, place: int, body: bytes, total: int | None) -> HttpResponse:
        headers = {"Content-Range": f"bytes {place}-{place + len(body) - 1}/{'*' if total is None else total}"}
        return self._client.ask("PUT", self._session, headers, body=body, good=_UNDER_WAY)

    def _request_progress(self) -> HttpResponse:
        """Request how much is there; a service that has forgotten the upload may have completed it."""
        headers = {"Content-Range": "bytes */*"}
        response = self._client.ask("PUT", self._session, headers, body=b"", good=_UNDER_WAY | _FORGOTTEN)
        if response.status not in _FORGOTTEN:
            return response
        facts = self._client.ask("GET", self._place.address(fields="size,crc32c"), good=GOOD | _FORGOTTEN)
        if facts.status in _FORGOTTEN or self._parse_description(facts) != (self._size, self._sum):
            raise SourceError("the service has forgotten this upload: write it again", url=self.name)
        return facts

    def _join(self, tags: list[str]) -> None:
        """Do nothing: the last chunk has published the object."""

    def _check(self, response: HttpResponse | None) -> None:
        """Compare what is there with what was written."""
        if response is not None and self._parse_description(response) != (self._size, self._sum):
            raise SourceError("what the service stored is not what was written: write it again", url=self.name)

    def _parse_description(self, response: HttpResponse) -> tuple[int, int]:
        """Return length and checksum that a response names; what it leaves out counts as right."""
        try:
            found = json.loads(response.data)
            size, checksum = int(found.get("size", self._size)), parse_crc32(found.get("crc32c"))
        except (ValueError, AttributeError):
            return self._size, self._sum
        return size, self._sum if checksum is None or self._summing is None else checksum

    def _remove(self) -> None:
        if self._session:
            try:
                self._client.ask("DELETE", self._session, good=_CANCELLED)
            except RetryableError as again:
                raise SourceError(str(again), url=self.name) from None


remote_object = GcsObject
create_upload = GcsUpload
