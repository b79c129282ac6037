"""Lists of S3 objects: ``s3://bucket/folder/`` and ``s3://bucket/train-*.tar``.

Flows in: a url that ends with ``/`` or holds wildcards. Flows out: the urls of the objects, sorted, as the user
writes them (profile and all). ``*``, ``?`` and ``[…]`` match within one folder, ``**`` over all of them, as for local
files; an object whose key is just the text is taken before wildcards are tried.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from webdataset.ground.errors import NotFound

from .calls import Calls
from .objects import Place, place_of

_WILD = re.compile(r"[*\[]|\?(?!versionId=)")
_PIECES = re.compile(
    r"(?P<any>\*\*/?)|(?P<some>\*)|(?P<one>\?)|\[(?P<not>[!^]?)(?P<set>[^]]+)\]|(?P<text>.)", re.DOTALL
)


def is_pattern(url: str) -> bool:
    """Tell whether a url stands for a list of objects.

    Args:
        url: an S3 url.
    """
    return url.endswith("/") or _WILD.search(url) is not None


def list_urls(url: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the urls of the objects that a folder or a pattern stands for.

    Args:
        url: ``s3://bucket/folder/`` gives every object under it; ``s3://bucket/train-*.tar`` those whose keys match.
        storage_options: fields of the profile, or the name of one.

    Returns:
        The urls, sorted by key; keys that end with ``/`` (markers of folders) are left out.

    Raises:
        NotFound: no object, or no bucket.
        SourceError: the service refuses, or does not answer.
        UsageError: not an S3 url.
        MissingExtra: botocore is not installed.
    """
    place = place_of(url, storage_options)
    key = place.key
    stem = url[: len(url) - len(key)] if key else url
    wild = _WILD.search(key)
    keys = [name for name in _keys(place, url, key[: wild.start()] if wild else key) if not name.endswith("/")]
    if wild and key in keys:
        return [url]
    if wild:
        pattern = re.compile(_regex(key), re.DOTALL)
        keys = [name for name in keys if pattern.fullmatch(name)]
    if not keys:
        raise NotFound("no object matches" if wild else "no objects are in this folder", url=url)
    return [stem + name for name in sorted(keys)]


def _keys(place: Place, url: str, prefix: str) -> Iterator[str]:
    calls = Calls(place.profile, url)
    arguments = {**place.named(), "Prefix": prefix}
    del arguments["Key"]
    while True:
        answer = calls.call("list_objects_v2", **arguments)
        yield from (found["Key"] for found in answer.get("Contents", ()))
        if not answer.get("IsTruncated"):
            return
        arguments["ContinuationToken"] = answer["NextContinuationToken"]


def _regex(pattern: str) -> str:
    return "".join(map(_translated, _PIECES.finditer(pattern)))


def _translated(piece: re.Match[str]) -> str:
    if piece["any"]:
        return "(?:.*/)?" if piece["any"].endswith("/") else ".*"
    if piece["some"]:
        return "[^/]*"
    if piece["one"]:
        return "[^/]"
    if piece["set"]:
        return ("[^/" if piece["not"] else "[") + re.sub(r"([\\\[^])", r"\\\1", piece["set"]) + "]"
    return re.escape(piece["text"])
