"""Many objects, or members of archives, by one request: AIStore's GetBatch, as one tar stream in the order asked for.

Flows in: entries. Flows out: a tar stream that is still to be read. What does not exist comes as an empty member below
``__404__/``.
"""

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from webdataset.ground.errors import UsageError
from webdataset.sources.objects import Again

from .cluster import Cluster
from .places import Place, place_of

MISSING = "__404__/"


class Entry(NamedTuple):
    """One object, or one member of an archive.

    Args:
        url: the object, without what is asked of it.
        place: the same, taken apart.
        member: path in the archive; empty for the object itself.
    """

    url: str
    place: Place
    member: str

    @property
    def name(self) -> str:
        """What is wanted: the member's path, or the object's name."""
        return self.member or self.place.name


def entry_of(given: Any, provider: str | None = None) -> Entry:
    """Return the entry that somebody means.

    Args:
        given: ``ais://bucket/object``, ``bucket/object``, either with ``?archpath=member``, or a pair of one of these
            and a member's path. Other schemes name their provider: ``s3://bucket/object``.
        provider: of ``ais:`` urls.

    Raises:
        UsageError: it makes no sense, or cannot be asked for in a batch.
    """
    text, member = (given, "") if isinstance(given, str | os.PathLike) else _pair(given)
    url = os.fspath(text) if "://" in os.fspath(text) else f"ais://{os.fspath(text)}"
    place = place_of(url, provider)
    asked = dict(place.asked)
    member = member or asked.pop("archpath", "")
    if asked or place.namespace or place.original or not place.name or place.name.endswith("/"):
        raise UsageError(
            "a batch has objects, and members by archpath; no namespaces, transformations or web urls", url=url
        )
    return Entry(url.partition("?archpath=")[0], place._replace(asked=()), member)


def _pair(given: Any) -> tuple[Any, str]:
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(part, str) for part in given):
        return given[0], given[1]
    raise UsageError(f"an entry of a batch is a url, or a pair of a url and a member's path, not {given!r}")


class Batch:
    """Entries that are asked for together.

    Args:
        entries: what is wanted; at least one.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(self, entries: Sequence[Entry], storage_options: Any = None) -> None:
        self.entries = entries
        self.url = f"ais://{entries[0].place.bucket}/"
        self._cluster = Cluster(storage_options, self.url)

    def open_from(self, number: int) -> Any:
        """Ask once for the entries from a number on.

        Args:
            number: of the first entry wanted.

        Returns:
            A tar stream: an object with ``read(size)`` and ``close()``.

        Raises:
            Again: asking again may help.
            SourceError: the cluster refuses.
        """
        wanted = self.entries[number:]
        first = wanted[0].place
        body = {
            "in": [_described(entry) for entry in wanted],
            "mime": ".tar",
            "coer": True,  # go on after what does not exist
            "onob": False,  # names begin with the bucket
            "strm": True,
        }
        headers, sent = {"Content-Type": "application/json"}, json.dumps(body).encode()
        return self._cluster.ask("GET", first.batch(), first.of_bucket(), headers, sent, reading=number > 0)

    def broken(self, said: str) -> Again:
        """Return the error of a stream that ended early; another gateway is asked next.

        Args:
            said: how.
        """
        self._cluster.next_gateway()
        return Again(said)


def _described(entry: Entry) -> dict[str, str]:
    named = {"objname": entry.place.name, "bucket": entry.place.bucket, "provider": entry.place.provider}
    return {**named, **({"archpath": entry.member} if entry.member else {})}
