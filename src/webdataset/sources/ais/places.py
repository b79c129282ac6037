"""What an AIStore url names: ``ais://bucket/name``, or a url of another store that goes by AIStore.

Flows in: a url. Flows out: provider, namespace, bucket, object, and what is asked about it. Nothing in an object's name
is decoded; a ``?`` begins a query only where all that follows it is ``known=text&known=text``.
"""

import hashlib
import re
import urllib.parse
from typing import NamedTuple

from webdataset.ground.errors import UsageError

QUERY = "archpath|archmime|archregx|archmode|etl_name|etl_args|etl_pipeline|latest-ver"
"""Names that a query may have; their texts are percent-decoded."""

PROVIDERS = {
    "ais": "ais",
    "s3": "aws", "aws": "aws",
    "gs": "gcp", "gcs": "gcp", "gcp": "gcp",
    "az": "azure", "azure": "azure", "abfs": "azure",
    "oci": "oci", "oc": "oci",
    "http": "ht", "https": "ht",
}  # fmt: skip
"""Scheme, or what ``provider`` says, to AIStore's name of the provider."""

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<namespace>(?:@[^/#]*)?#[^/]*/|@[^/#]*/)?(?P<bucket>[^/]+)"
    rf"/(?P<name>.*?)(?:\?(?P<query>(?:{QUERY})=[^&]*(?:&(?:{QUERY})=[^&]*)*))?\Z",
    re.DOTALL,
)
_MEMBER = re.compile(r"\.(?:tar|tgz|tar\.gz|tar\.lz4|zip)/", re.IGNORECASE)


class Place(NamedTuple):
    """Where an object lies.

    Args:
        provider: ``ais``, ``aws``, ``gcp``, ``azure``, ``oci`` or ``ht``.
        namespace: ``@uuid#name``, ``#name``, or empty.
        bucket: the bucket.
        name: the object's name; may be empty where a bucket is meant.
        asked: what the url's query says: a member of an archive, a transformation.
        original: the url itself, where AIStore has to fetch it from the web.
    """

    provider: str
    namespace: str
    bucket: str
    name: str
    asked: tuple[tuple[str, str], ...] = ()
    original: str = ""

    def whole(self) -> bool:
        """Tell whether the object is meant as it is stored, and not a member or a transformation of it."""
        return not any(name != "latest-ver" for name, _ in self.asked)

    def transformed(self) -> bool:
        """Tell whether the cluster computes what it sends."""
        return any(name.startswith("etl") for name, _ in self.asked)

    def path(self) -> str:
        """Return the path of a request about the object."""
        return f"/v1/objects/{urllib.parse.quote(self.bucket, safe='')}/{urllib.parse.quote(self.name, safe='/')}"

    def query(self) -> dict[str, str]:
        """Return the query of a request about the object."""
        original = {"original_url": self.original} if self.original else {}
        return {**self.of_bucket(), **original, **dict(self.asked)}

    def batch(self) -> str:
        """Return the path of a request for a batch."""
        return f"/v1/ml/moss/{urllib.parse.quote(self.bucket, safe='')}"

    def bucket_path(self) -> str:
        """Return the path of a request about the bucket."""
        return f"/v1/buckets/{urllib.parse.quote(self.bucket, safe='')}"

    def of_bucket(self) -> dict[str, str]:
        """Return what a query says about the bucket."""
        return {"provider": self.provider, **({"namespace": self.namespace} if self.namespace else {})}

    def hint(self) -> str:
        """Return what to write instead, where the name looks like a member of an archive."""
        found = _MEMBER.search(self.name)
        return "" if found is None else "; a member of an archive is written ais://bucket/shard.tar?archpath=member"


def place_of(url: str, provider: str | None = None) -> Place:
    """Return what a url names.

    Args:
        url: the url.
        provider: where the bucket of an ``ais:`` url comes from; as AIStore names it, or as a scheme.

    Raises:
        UsageError: it names no bucket, or AIStore cannot be asked about it.
    """
    match = _URL.match(url)
    scheme = url.partition(":")[0].lower()
    if match is None or "@" in match["bucket"]:
        raise UsageError("an AIStore url is ais://bucket/object", url=url)
    if scheme in ("http", "https"):
        return _of_the_web(url)
    if scheme == "ais" and provider is not None:
        scheme = provider
    if scheme not in PROVIDERS:
        raise UsageError(f"AIStore has no provider for {scheme!r}: it has {', '.join(PROVIDERS)}", url=url)
    if re.search(r"\?versionId=[\w.~-]+\Z", match["name"]):
        raise UsageError("one version of an object is not read through AIStore: leave versionId out", url=url)
    if {".", ".."}.intersection((match["bucket"], *match["name"].split("/"))):
        raise UsageError("the name of an object has no parts '.' and '..'", url=url)
    asked = tuple(urllib.parse.parse_qsl((match["query"] or "").replace("+", "%2B"), keep_blank_values=True))
    return Place(PROVIDERS[scheme], (match["namespace"] or "").rstrip("/"), match["bucket"], match["name"], asked)


def _of_the_web(url: str) -> Place:
    """Return the place of a web url: AIStore keeps the files of one folder in one bucket."""
    folder, _, name = url.partition("?")[0].partition("#")[0].rpartition("/")
    if not name:
        raise UsageError("names no object: a url of a folder cannot be read through AIStore", url=url)
    bucket = f"web-{hashlib.sha256(folder.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
    return Place("ht", "", bucket, urllib.parse.unquote(name), (), url)


def split(url: str) -> tuple[str, str]:
    """Return a url up to its object's name, and the name; see :mod:`webdataset.sources.stores`."""
    place = place_of(url)
    if place.asked:
        raise UsageError("a list of objects has no query", url=url)
    return url[: len(url) - len(place.name)], place.name
