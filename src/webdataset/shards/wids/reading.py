"""Shard indexes in wids JSON.

Flows in: a file or document of this form; flows out: its shards, each with a url that can be opened::

    {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "...", "base": "...",
     "shardlist": [{"url": "a.tar", "nsamples": 100, "filesize": 10240, "md5sum": "..."}],
     "datasets": [{"source_url": "other.json", "weight": 2}, {"shardlist": [...], "name": "..."}]}

Relative urls are joined to ``base``, which itself is joined to the folder of the index. Nothing is opened but indexes.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from webdataset.ground.errors import FormatError, UsageError
from webdataset.shards import places
from webdataset.sources.open import open_url

from .checks import check_entry, check_version, list_of, text_or_none, weight_or_none
from .document import VERSION, WidsIndex, WidsShard

MOST_BYTES = 1 << 30
MOST_SHARDS = 10_000_000
MOST_INDEXES = 10_000
MOST_LEVELS = 32
_KNOWN = frozenset({"url", "nsamples", "filesize", "md5sum", "dataset", "weight", "source_url"})


def read_wids_json(
    source: Any,
    *,
    base: str | None = None,
    options: Mapping[str, Any] | None = None,
    trust: str | None = None,
    network: bool = False,
) -> WidsIndex:
    """Read an index and those that it names.

    Args:
        source: url or path of an index, an open file, the document itself (a dict), or a list of its shards
            (``{"url", "nsamples"}`` dicts).
        base: what relative urls of the index are joined to; it wins over the ``base`` in the index.
        options: replace or add keys of the document; a base in it counts as ``base``.
        trust: ``full`` lets an index from the network name commands and local files.
        network: it came over the network, wherever its text is taken from now.

    Raises:
        NotFound: no such index.
        SourceError: it cannot be read.
        FormatError: it is no index: what is wrong, where; ``field`` names the place in the document.
        UsageError: it names what an index from the network may not name, or relative urls where it has no place.
    """
    place, document = loaded(source, trust=trust)
    if options:
        document = {**document, **options}
        base = options.get("base") if base is None else base
    reader = _Reader(trust, network=network)
    reader.read(document, _Here(place), base)
    return WidsIndex(place, tuple(reader.shards), text_or_none(document, "name", "", place), document)


def loaded(source: Any, *, trust: str | None = None) -> tuple[str | None, dict[str, Any]]:
    """Return the place and the document of an index, nothing in it resolved.

    Args:
        source: as for :func:`read_wids_json`.
        trust: the trust level under which it is opened.

    Raises:
        NotFound: no such index.
        SourceError: it cannot be read.
        FormatError: it is no JSON, or no object.
        UsageError: nothing that can be an index.
    """
    if isinstance(source, Mapping):
        return getattr(source, "place", None), dict(source)
    if isinstance(source, list | tuple):
        return None, {"wids_version": VERSION, "shardlist": list(source)}
    if hasattr(source, "read"):
        names = [getattr(source, name, None) for name in ("url", "name")]
        # an open answer of a server: no more is allowed to it than to its url
        place = next((name for name in names if isinstance(name, str) and places.from_network(name)), None)
        return place, _parsed(source.read(), place or names[1])
    if not isinstance(source, str | os.PathLike):
        raise UsageError(
            f"an index is a url, a path, an open file, a dict or a list of {{'url', 'nsamples'}}, not "
            f"{type(source).__name__}"
        )
    place = os.fsdecode(source)
    return place, _parsed(_text(place, trust), place)


def _text(url: str, trust: str | None) -> bytes:
    stream = open_url(url, "rb", raw=True, level=trust)
    pieces, size = [], 0
    try:
        while piece := stream.read(1 << 20):
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BYTES:
                raise FormatError(f"an index of more than {MOST_BYTES} bytes is not read", url=url)
    finally:
        stream.close()
    return b"".join(pieces)


def _parsed(text: bytes | str, place: Any) -> dict[str, Any]:
    shown = str(place) if place is not None else None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a shard index: it is no JSON ({error})", url=shown) from error
    if not isinstance(document, dict):
        raise FormatError(
            f"not a shard index: expected an object with 'wids_version', got a {type(document).__name__}", url=shown
        )
    return document


@dataclass(frozen=True)
class _Here:
    """A dataset's place in a tree of indexes, and what its shards take over from the datasets around it.

    Args:
        place: the index that it stands in.
        folder: to which relative urls are joined; None: there is none.
        where: its place in the document, with a dot at the end; ``""`` is the whole of it.
        around: identities of this index and those around it.
        name: dataset name.
        weight: weight.
        source_url: the nested index, or None.
    """

    place: str | None
    folder: str | None = None
    where: str = ""
    around: tuple[str, ...] = ()
    name: str | None = None
    weight: float | None = None
    source_url: str | None = None

    def within(self, dataset: Mapping[str, Any]) -> "_Here":
        """Return this place with the name and weight that a dataset gives."""
        name = text_or_none(dataset, "name", self.where, self.place)
        weight = weight_or_none(dataset, self.where, self.place)
        return replace(self, name=self.name if name is None else name, weight=self.weight if weight is None else weight)

    def error(self, message: str) -> FormatError:
        """Return an error that names this place."""
        return FormatError(message, url=self.place, field=self.where.rstrip(".") or None)

    def url(self, named: str, trust: str | None, *, network: bool) -> str:
        """Return what a url in this dataset points to, if it may."""
        url = places.without_double(self.folder, named, places.joined(self.folder, named))
        return places.refuse_local(url, self.place, level=trust, network=network)


class _Reader:
    """Walks a tree of indexes and collects shards.

    Args:
        trust: the level that the caller names.
        network: the outermost index came over the network.
    """

    def __init__(self, trust: str | None, *, network: bool) -> None:
        self.trust = trust
        self.network = network
        self.shards: list[WidsShard] = []
        self._indexes = 0

    def read(self, document: Mapping[str, Any], here: _Here, base: str | None) -> None:
        """Collect the shards of a whole index.

        Args:
            document: the index.
            here: its place.
            base: overrides the base that it names.
        """
        check_version(document, here.place, VERSION)
        if "shardlist" not in document and "datasets" not in document:
            raise here.error("a shard index without 'shardlist' and without 'datasets'")
        folder = places.folder_of(here.place) if base is None else base
        around = (*here.around, _identity(here.place))
        if len(around) > MOST_LEVELS:
            raise here.error(f"indexes nested more than {MOST_LEVELS} deep")
        self._dataset(document, replace(here, folder=folder, around=around), based=base is not None)

    def _dataset(self, dataset: Mapping[str, Any], here: _Here, *, based: bool = False) -> None:
        """Collect the shards of an index, or of a dataset in it."""
        if here.where.count("[") > MOST_LEVELS:
            raise here.error(f"datasets nested more than {MOST_LEVELS} deep")
        base = text_or_none(dataset, "base", here.where, here.place)
        if base is not None and not based:
            here = replace(here, folder=base if here.folder is None else places.joined(here.folder, base))
        here = here.within(dataset)
        for number, entry in enumerate(list_of(dataset, "shardlist", here.where, here.place)):
            self._shard(entry, here, f"{here.where}shardlist[{number}].")
        for number, nested in enumerate(list_of(dataset, "datasets", here.where, here.place)):
            inner = replace(here, where=f"{here.where}datasets[{number}].")
            if not isinstance(nested, Mapping):
                raise inner.error(f"a dataset is an object, not {nested!r}")
            if "source_url" in nested:
                self._other(nested, inner)
            elif "shardlist" in nested or "datasets" in nested:
                self._dataset(nested, inner)
            else:
                raise inner.error("a dataset needs 'source_url', 'shardlist' or 'datasets'")

    def _shard(self, entry: Any, here: _Here, where: str) -> None:
        check_entry(entry, where, here.place)
        if len(self.shards) >= MOST_SHARDS:
            raise here.error(f"more than {MOST_SHARDS} shards")
        weight = weight_or_none(entry, where, here.place)
        self.shards.append(
            WidsShard(
                here.url(entry["url"], self.trust, network=self.network),
                entry["nsamples"],
                entry.get("filesize"),
                entry.get("md5sum"),
                entry.get("dataset", here.name),
                here.weight if weight is None else weight,
                entry.get("source_url", here.source_url),
                {key: value for key, value in entry.items() if key not in _KNOWN},
            )
        )

    def _other(self, nested: Mapping[str, Any], here: _Here) -> None:
        """Collect the shards of an index that another one names."""
        named = nested["source_url"]
        if not isinstance(named, str) or not named:
            raise here.error(f"'source_url' is a url, not {named!r}")
        url = here.url(named, self.trust, network=self.network)
        if _identity(url) in here.around:
            raise here.error(f"indexes name each other in a circle: {' -> '.join([*here.around, url])}")
        self._indexes += 1
        if self._indexes > MOST_INDEXES:
            raise here.error(f"more than {MOST_INDEXES} nested indexes")
        base = text_or_none(nested, "base", here.where, here.place)
        if base is not None and here.folder is not None:
            base = places.joined(here.folder, base)
        inner = replace(here.within(nested), place=url, where="", source_url=url)
        self.read(_parsed(_text(url, self.trust), url), inner, base)


def _identity(place: str | None) -> str:
    """Return what two names of one index have in common."""
    if place is None or place == "-" or places.is_url(place):
        return place or "(the document given)"
    return os.path.realpath(place)
