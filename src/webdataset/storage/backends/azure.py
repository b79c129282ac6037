"""Azure Storage: reads, uploads and lists blobs.

Every request after the first carries the ETag of the first (``If-Match``). A large upload is blocks, a few at a time;
the list of blocks makes the blob. Blocks in no list are never visible, and Azure removes them after a week. A list
leaves out the folders of accounts that have them (Data Lake).
"""

import base64
import urllib.parse
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping

from webdataset.core.errors import UsageError
from webdataset.storage.backends.azure_client import AzureClient, parse_url, refuse_signature
from webdataset.storage.backends.azure_client import service_id as service_id
from webdataset.storage.http_client import list_pages
from webdataset.storage.http_object import HttpAnswer, HttpRemoteObject, condition_header, range_header
from webdataset.storage.object_store import ObjectVersion, refuse_folder
from webdataset.storage.uploads import MultipartUpload

PAGE = 5000
"""Blobs a request."""


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key.

    Raises:
        UsageError: a signature in the url, which must not pass for a wildcard.
    """
    refuse_signature(url)
    start = url.index("://") + 3
    end = url.find("/", start) + 1 or len(url)
    return url[:end], url[end:]


def list_keys(stem: str, prefix: str, storage_options: object = None) -> Iterator[str]:
    """Yield the names in a container that begin with a prefix, in the order of the service."""
    place = parse_url(stem, storage_options)
    client = AzureClient(place, stem)

    def page(marker: str | None) -> tuple[Iterable[str], str | None]:
        address = place.address(
            restype="container", comp="list", prefix=prefix or None, marker=marker, maxresults=str(PAGE)
        )
        found = client.fetch(address, ET.fromstring)
        blobs = found.iterfind("Blobs/Blob")
        return (_blob_name(blob) for blob in blobs if not _is_folder(blob)), found.findtext("NextMarker")

    return list_pages(page, stem)


def _blob_name(blob: ET.Element) -> str:
    name = blob.find("Name")
    text = "" if name is None else name.text or ""
    encoded = name is not None and name.get("Encoded") == "true"
    return urllib.parse.unquote(text) if encoded else text


def _is_folder(blob: ET.Element) -> bool:
    return blob.findtext("Properties/ResourceType") == "directory"


class AzureObject(HttpRemoteObject):
    """One blob.

    Args:
        url: the url as the user wrote it.
        storage_options: account and credentials.

    Raises:
        UsageError: the url names no blob.
        ConfigError: no account, or options that make no sense.
    """

    def __init__(self, url: str, storage_options: object = None) -> None:
        super().__init__(url)
        self.place = parse_url(url, storage_options)
        refuse_folder(self.place.key, "a url of Azure Storage is az://container/blob", url, "blob")
        self._client = AzureClient(self.place, url)

    def refresh(self) -> None:
        """Look for credentials anew."""
        self._client.refresh()

    def request(self, offset: int, size: int | None, known: ObjectVersion | None) -> HttpAnswer:
        """Send one Get Blob."""
        headers = {**range_header(offset, size), **condition_header(known)}
        response = self._client.ask("GET", self.place.address(), headers, streamed=True, offset=offset)
        return HttpAnswer(response.status, response.headers, response)

    def version(self, headers: Mapping[str, str], length: int | None) -> ObjectVersion:
        """Return the ETag, and the date of the last change."""
        return ObjectVersion(headers.get("ETag"), None, headers.get("Last-Modified"), length)


PART_BYTES = 16 << 20
_XML = {"Content-Type": "application/xml"}
_KIND = {"Content-Type": "application/octet-stream"}


class AzureUpload(MultipartUpload):
    """A stream to a new blob.

    Args:
        url: the blob.
        storage_options: account and credentials.
        part_bytes: bytes of a block; a blob has at most 50,000 of them, and up to five are in memory.
        attempts: failures in a row after which to give up a request.

    Raises:
        UsageError: the url names no blob.
        ConfigError: no account, or options that make no sense.
    """

    most_parts = 50_000

    def __init__(
        self, url: str, storage_options: object = None, *, part_bytes: int = PART_BYTES, attempts: int | None = None
    ) -> None:
        self._place = parse_url(url, storage_options)
        if not self._place.key or self._place.key.endswith("/"):
            raise UsageError("names no blob that can be written: az://container/blob", url=url)
        self._client = AzureClient(self._place, url, attempts)
        # blocks of two writers of one blob must not mix
        self._name = uuid.uuid4().hex
        super().__init__(url, part_bytes)

    def _begin(self) -> None:
        """Do nothing: no request comes before the first block."""

    def _send_part(self, number: int, body: bytes) -> str:
        name = base64.b64encode(f"{self._name}-{number:06}".encode()).decode()
        self._client.call("PUT", self._place.address(comp="block", blockid=name), _KIND, body=body)
        return name

    def _whole(self, body: bytes) -> None:
        self._client.call("PUT", self._place.address(), {**_KIND, "x-ms-blob-type": "BlockBlob"}, body=body)

    def _join(self, tags: list[str]) -> None:
        names = "".join(f"<Latest>{name}</Latest>" for name in tags)
        content = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{names}</BlockList>'.encode()
        headers = {**_XML, "x-ms-blob-content-type": _KIND["Content-Type"]}
        self._client.call("PUT", self._place.address(comp="blocklist"), headers, body=content)

    def _remove(self) -> None:
        """Do nothing: Azure removes blocks that are in no list."""


remote_object = AzureObject
create_upload = AzureUpload
