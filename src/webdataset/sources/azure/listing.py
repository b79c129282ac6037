"""Lists of blobs, five thousand names a request.

Flows in: a container's url and the text that names begin with. Flows out: names, in the service's order. Folders of
accounts that have them (Data Lake) are left out.
"""

import functools
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

from webdataset.sources.objects import Again
from webdataset.sources.rest import next_page, patiently

from .calls import AzureCalls
from .places import place_of, refuse_signed

PAGE = 5000
"""Blobs a request."""


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key; see :mod:`webdataset.sources.stores`.

    Raises:
        UsageError: a signature in the url, which must not be taken for a wildcard.
    """
    refuse_signed(url)
    start = url.index("://") + 3
    end = url.find("/", start) + 1 or len(url)
    return url[:end], url[end:]


def keys(stem: str, prefix: str, storage_options: Any = None) -> Iterator[str]:
    """Give the names in a container that begin with a text.

    Args:
        stem: ``az://container/``, as the user writes it.
        prefix: what names begin with.
        storage_options: what a dataset says about its storage.

    Raises:
        NotFound: no such container.
        SourceError: the service refuses, or does not answer.
    """
    place = place_of(stem, storage_options)
    calls, marker = AzureCalls(place, stem), None
    while True:
        address = place.address(
            restype="container", comp="list", prefix=prefix or None, marker=marker, maxresults=str(PAGE)
        )
        page = patiently(functools.partial(_page, calls, address), stem, calls.refresh)
        yield from (_name(blob) for blob in page.iterfind("Blobs/Blob") if not _is_folder(blob))
        marker = next_page(page.findtext("NextMarker"), marker, stem)
        if marker is None:
            return


def _page(calls: AzureCalls, address: str) -> ET.Element:
    try:
        return ET.fromstring(calls.ask("GET", address).data)  # noqa: S314  of the service that was asked; expat is bounded
    except ET.ParseError as error:  # lists have no length: one that broke off looks like a whole answer
        raise Again(f"the service's list cannot be read: {error}") from None


def _name(blob: ET.Element) -> str:
    name = blob.find("Name")
    text = "" if name is None else name.text or ""
    encoded = name is not None and name.get("Encoded") == "true"
    return urllib.parse.unquote(text) if encoded else text


def _is_folder(blob: ET.Element) -> bool:
    return blob.findtext("Properties/ResourceType") == "directory"
