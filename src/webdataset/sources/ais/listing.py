"""Lists of AIStore objects, page by page.

Flows in: a bucket's url and the text that names begin with. Flows out: names, in the cluster's order.
"""

from collections.abc import Iterator
from typing import Any

from webdataset.sources.rest import next_page

from .cluster import Cluster
from .places import place_of


def keys(stem: str, prefix: str, storage_options: Any = None) -> Iterator[str]:
    """Give the names in a bucket that begin with a text.

    Args:
        stem: ``ais://bucket/``, as the user writes it.
        prefix: what names begin with.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.

    Raises:
        NotFound: no such bucket.
        SourceError: the cluster refuses, or does not answer.
        ConfigError: no gateway is known.
    """
    cluster = Cluster(storage_options, stem)
    place = place_of(stem, cluster.provider)
    wanted: dict[str, Any] = {"prefix": prefix, "props": "name", "pagesize": 0, "flags": "0", "uuid": ""}
    wanted["continuation_token"] = ""
    path, query = place.bucket_path(), place.of_bucket()
    while True:
        page = cluster.call("GET", path, query, {"action": "list", "name": "", "value": wanted}) or {}
        for entry in page.get("entries") or ():
            if str(entry["name"]).startswith(prefix):
                yield entry["name"]
        token = next_page(page.get("continuation_token"), wanted["continuation_token"], stem)
        if token is None:
            return
        wanted = {**wanted, "uuid": page.get("uuid", ""), "continuation_token": token}
