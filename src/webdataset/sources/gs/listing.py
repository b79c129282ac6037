"""Lists of objects of Google Cloud Storage, a thousand names a request.

Flows in: a bucket's url and the text that names begin with. Flows out: names, in the service's order.
"""

import functools
import json
from collections.abc import Iterator
from typing import Any

from webdataset.sources.objects import Again
from webdataset.sources.rest import next_page, patiently

from .calls import GsCalls
from .places import place_of

PAGE = 1000
"""Objects a request."""


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key; see :mod:`webdataset.sources.stores`."""
    place_of(url)
    start = url.index("/", url.index("://") + 3) + 1
    return url[:start], url[start:]


def keys(stem: str, prefix: str, storage_options: Any = None) -> Iterator[str]:
    """Give the keys in a bucket that begin with a text.

    Args:
        stem: ``gs://bucket/``.
        prefix: what keys begin with.
        storage_options: what a dataset says about its storage.

    Raises:
        NotFound: no such bucket.
        SourceError: the service refuses, or does not answer.
    """
    place = place_of(stem, storage_options)
    calls, token = GsCalls(place, stem), None
    while True:
        address = place.address(
            prefix=prefix or None, fields="items/name,nextPageToken", pageToken=token, maxResults=str(PAGE)
        )
        page = patiently(functools.partial(_page, calls, address), stem, calls.refresh)
        yield from (found["name"] for found in page.get("items", ()))
        token = next_page(page.get("nextPageToken"), token, stem)
        if token is None:
            return


def _page(calls: GsCalls, address: str) -> dict[str, Any]:
    try:
        page: dict[str, Any] = json.loads(calls.ask("GET", address).data)
    except ValueError as error:  # an answer without a length that broke off looks like a whole one
        raise Again(f"the service's list cannot be read: {error}") from None
    return page
