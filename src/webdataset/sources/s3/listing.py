"""Lists of S3 objects, a thousand keys a request.

Flows in: a bucket's url and the text that keys begin with. Flows out: keys, in the service's order.
"""

from collections.abc import Iterator
from typing import Any

from .calls import Calls
from .objects import place_of


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key; see :mod:`webdataset.sources.stores`."""
    key = place_of(url).key
    return (url[: len(url) - len(key)], key) if key else (url, "")


def keys(stem: str, prefix: str, storage_options: Any = None) -> Iterator[str]:
    """Give the keys in a bucket that begin with a text.

    Args:
        stem: ``s3://bucket/``, as the user writes it.
        prefix: what keys begin with.
        storage_options: fields of the profile, or the name of one.

    Raises:
        NotFound: no such bucket.
        SourceError: the service refuses, or does not answer.
        MissingExtra: botocore is not installed.
    """
    place = place_of(stem, storage_options)
    calls = Calls(place.profile, stem)
    arguments = {**place.named(), "Prefix": prefix}
    del arguments["Key"]
    while True:
        answer = calls.call("list_objects_v2", **arguments)
        yield from (found["Key"] for found in answer.get("Contents", ()))
        if not answer.get("IsTruncated"):
            return
        arguments["ContinuationToken"] = answer["NextContinuationToken"]
