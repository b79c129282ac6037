"""Azure Storage: reads, uploads and lists blobs.

A response holds bytes as they are stored, and their version. Every later request carries the ETag of the first
(``If-Match``).

An upload is one request, or blocks, a few at a time. Each block is retried until the service has it; the list of
blocks makes the blob. Blocks that no list names are not visible, and Azure removes them after a week. A list has five
thousand names a request, in the order of the service. Folders of accounts that have them (Data Lake) are left out.
"""

import base64
import functools
import urllib.parse
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

from webdataset.core.errors import UsageError
from webdataset.storage import http_client
from webdataset.storage.backends.azure_client import AzureClient, parse_url, refuse_signature
from webdataset.storage.backends.azure_client import service_id as service_id
from webdataset.storage.http_client import next_page, parse_body_range, range_header, retry
from webdataset.storage.object_store import ObjectResponse, ObjectVersion, RetryableError, find_digest
from webdataset.storage.uploads import MultipartUpload

PAGE = 5000
"""Blobs a request."""


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key; see :mod:`webdataset.storage.open_url`.

    Raises:
        UsageError: a signature in the url, which must not be taken for a wildcard.
    """
    refuse_signature(url)
    start = url.index("://") + 3
    end = url.find("/", start) + 1 or len(url)
    return url[:end], url[end:]


def list_keys(stem: str, prefix: str, storage_options: Any = None) -> Iterator[str]:
    """Give the names in a container that begin with a text.

    Args:
        stem: ``az://container/``, as the user writes it.
        prefix: what names begin with.
        storage_options: what a dataset says about its storage.

    Raises:
        NotFound: no such container.
        SourceError: the service refuses, or does not answer.
    """
    place = parse_url(stem, storage_options)
    calls, marker = AzureClient(place, stem), None
    while True:
        address = place.address(
            restype="container", comp="list", prefix=prefix or None, marker=marker, maxresults=str(PAGE)
        )
        page = retry(functools.partial(_fetch_page, calls, address), stem, calls.refresh)
        yield from (_blob_name(blob) for blob in page.iterfind("Blobs/Blob") if not _is_folder(blob))
        marker = next_page(page.findtext("NextMarker"), marker, stem)
        if marker is None:
            return


def _fetch_page(calls: AzureClient, address: str) -> ET.Element:
    try:
        return ET.fromstring(calls.ask("GET", address).data)  # noqa: S314  of the service that was asked; expat is bounded
    except ET.ParseError as error:  # lists have no length: one that broke off looks like a whole answer
        raise RetryableError(f"the service's list cannot be read: {error}") from None


def _blob_name(blob: ET.Element) -> str:
    name = blob.find("Name")
    text = "" if name is None else name.text or ""
    encoded = name is not None and name.get("Encoded") == "true"
    return urllib.parse.unquote(text) if encoded else text


def _is_folder(blob: ET.Element) -> bool:
    return blob.findtext("Properties/ResourceType") == "directory"


class AzureObject:
    """One blob.

    Args:
        url: the url as the user wrote it.
        storage_options: what a dataset says about its storage.

    Raises:
        UsageError: the url names no blob.
        ConfigError: no account, or options that make no sense.
    """

    def __init__(self, url: str, storage_options: Any = None) -> None:
        self.url = url
        self.place = parse_url(url, storage_options)
        if not self.place.key or self.place.key.endswith("/"):
            raise UsageError(
                "names no blob: a url of Azure Storage is az://container/blob (wds.expand_urls lists a folder)", url=url
            )
        self._calls = AzureClient(self.place, url)

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
        """Send one Get Blob; see :class:`~webdataset.storage.object_store.RemoteObject`.

        Args:
            offset: the first byte wanted.
            known: who the blob was at first.
            size: bytes wanted; None for all.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it is another blob by now.
            SourceError: the service refuses.
        """
        headers = range_header(offset, size)
        if known is not None and known.etag:
            headers["If-Match"] = known.etag
        response = self._calls.ask("GET", self.place.address(), headers, streamed=True, offset=offset)
        start, total, length = parse_body_range(response)
        etag, modified = response.headers.get("ETag"), response.headers.get("Last-Modified")
        digest = find_digest(response.headers, whole=response.status == 200)
        return ObjectResponse(response, start, ObjectVersion(etag, None, modified, total), length, digest=digest)


def remote_object(url: str, storage_options: Any = None) -> AzureObject:
    """Return the object of a url; see :mod:`webdataset.storage.open_url`."""
    return AzureObject(url, storage_options)


def create_upload(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new blob; see :class:`~webdataset.storage.backends.azure.AzureUpload`."""
    return AzureUpload(url, storage_options, **options)


PART_BYTES = 16 << 20
_XML = {"Content-Type": "application/xml"}
_KIND = {"Content-Type": "application/octet-stream"}


class AzureUpload(MultipartUpload):
    """A stream to a new blob.

    Args:
        url: the blob.
        storage_options: what a dataset says about its storage.
        part_bytes: size of a block; a blob has at most 50,000 of them, and up to five are in memory.
        attempts: failures in a row after which a request is given up.

    Raises:
        UsageError: the url names no blob.
        ConfigError: no account, or options that make no sense.
    """

    most_parts = 50_000

    def __init__(
        self, url: str, storage_options: Any = None, *, part_bytes: int = PART_BYTES, attempts: int | None = None
    ) -> None:
        self._place = parse_url(url, storage_options)
        if not self._place.key or self._place.key.endswith("/"):
            raise UsageError("names no blob that can be written: az://container/blob", url=url)
        self._calls = AzureClient(self._place, url, attempts)
        self._name = uuid.uuid4().hex  # blocks of two writers of one blob must not mix
        super().__init__(url, part_bytes)

    def _begin(self) -> None:
        """Nothing comes before the first block."""

    def _send_part(self, number: int, body: bytes) -> str:
        name = base64.b64encode(f"{self._name}-{number:06}".encode()).decode()
        self._calls.call("PUT", self._place.address(comp="block", blockid=name), _KIND, body=body)
        return name

    def _whole(self, body: bytes) -> None:
        self._calls.call("PUT", self._place.address(), {**_KIND, "x-ms-blob-type": "BlockBlob"}, body=body)

    def _join(self, tags: list[str]) -> None:
        names = "".join(f"<Latest>{name}</Latest>" for name in tags)
        content = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{names}</BlockList>'.encode()
        headers = {**_XML, "x-ms-blob-content-type": _KIND["Content-Type"]}
        self._calls.call("PUT", self._place.address(comp="blocklist"), headers, body=content)

    def _remove(self) -> None:
        """Nothing can be removed, and nothing is to be: Azure forgets blocks that are in no list."""
