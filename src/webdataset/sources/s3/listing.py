"""Lists of S3 objects, a thousand keys a request.

Flows in: a bucket's url and the text that keys begin with. Flows out: keys, in the service's order.
"""

from collections.abc import Iterator
from typing import Any

from webdataset.ground.errors import SourceError, UsageError
from webdataset.sources.rest import next_page

from .calls import Calls
from .places import key_of, place_of, written_key


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key; see :mod:`webdataset.sources.stores`.

    A route may put folders before what the url says: they belong to the stem.
    """
    place = place_of(url)
    if place.version:
        raise UsageError("a list of objects has no versionId", url=url)
    key = written_key(place.key)
    start = max(len(url) - len(key), url.index("://") + 3)
    while start < len(url) and not (key.endswith(url[start:]) and url[start - 1] == "/"):
        start += 1
    return url[:start], url[start:]


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
    place = place_of(f"{stem}x", storage_options)
    folder = place.key[:-1]  # a route's
    calls = Calls(place.profile, stem)
    arguments = {**place.named(), "Prefix": folder + key_of(prefix)}
    del arguments["Key"]
    token = None
    while True:
        answer = calls.call("list_objects_v2", **arguments)
        for found in answer.get("Contents", ()):
            if found["Key"].startswith(folder):
                yield written_key(found["Key"][len(folder) :])
        if not answer.get("IsTruncated"):
            return
        token = next_page(answer.get("NextContinuationToken"), token, stem)
        if token is None:
            raise SourceError("the service says that its list goes on, and not where", url=stem)
        arguments["ContinuationToken"] = token
