"""Reads shard indexes in wids JSON, checks them, and makes documents to be written.

An index has this form::

    {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "...", "base": "...",
     "shardlist": [{"url": "a.tar", "nsamples": 100, "filesize": 10240, "md5sum": "..."}],
     "datasets": [{"source_url": "other.json", "weight": 2}, {"shardlist": [...], "name": "..."}]}

Relative urls are joined to ``base``, which itself is joined to the folder of the index. A failed check names the
place in the document. Nothing is opened but indexes.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from webdataset.core.errors import FormatError, UsageError
from webdataset.core.redaction import redact
from webdataset.shards import urls
from webdataset.storage.open_url import open_url
from webdataset.storage.streams import is_nameable

# so that sums over all shards stay numbers of a length
_MOST = {"nsamples": 1 << 39, "filesize": 1 << 60}


def check_version(document: Mapping[str, object], place: str | None, version: int) -> None:
    """Check that a document is an index of a version that is read here. Raises FormatError: it is none."""
    found = document.get("wids_version")
    if found is None:
        raise FormatError(
            f"not a shard index: it has no 'wids_version': {version} (its keys are {sorted(map(str, document))[:10]})",
            url=place,
        )
    if isinstance(found, bool) or found != version:
        raise FormatError(f"'wids_version' is {found!r}; this version reads {version}", url=place, field="wids_version")


def check_entry(entry: object, where: str, place: str | None) -> None:
    """Check one shard of a list. Raises FormatError: it is no shard.

    Args:
        entry: what stands in the list.
        where: its place in the document, with a dot at the end.
        place: the document's url or path.
    """
    if not isinstance(entry, Mapping):
        raise FormatError(
            f"a shard is an object with 'url' and 'nsamples', not {entry!r}: write {{'url': …, 'nsamples': …}}",
            url=place,
            field=where.rstrip("."),
        )
    url = entry.get("url")
    if not isinstance(url, str) or not url:
        raise FormatError(f"a shard's 'url' is a non-empty text, not {url!r}", url=place, field=where + "url")
    if not is_nameable(url):
        raise FormatError(f"a shard's 'url' is {url!r}, which nothing can be called", url=place, field=where + "url")
    _check_count(entry, "nsamples", where, place, needed=True)
    _check_count(entry, "filesize", where, place)
    text_or_none(entry, "md5sum", where, place)
    text_or_none(entry, "dataset", where, place)


def _check_count(entry: Mapping[str, object], key: str, where: str, place: str | None, *, needed: bool = False) -> None:
    count = entry.get(key)
    if count is None and not needed:
        return
    if count is None:
        raise FormatError(
            f"a shard without {key!r}: count its samples with `wids-index create`", url=place, field=where + key
        )
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise FormatError(f"{key!r} is a whole number from 0, not {count!r}", url=place, field=where + key)
    if count > _MOST[key]:
        raise FormatError(f"{key!r} is beyond {_MOST[key]}, the most that is read", url=place, field=where + key)


def text_or_none(part: Mapping[str, object], key: str, where: str, place: str | None) -> str | None:
    """Return a text of a dataset or shard, None where it has none; arguments as for :func:`check_entry`."""
    text = part.get(key)
    if text is None or isinstance(text, str):
        return text
    raise FormatError(f"{key!r} is a text, not {text!r}", url=place, field=where + key)


def list_of(part: Mapping[str, object], key: str, where: str, place: str | None) -> Sequence[object]:
    """Return a list of a dataset, empty where it has none; arguments as for :func:`check_entry`."""
    found = part.get(key, ())
    if not isinstance(found, list | tuple):
        raise FormatError(f"{key!r} is a list, not {type(found).__name__}", url=place, field=where + key)
    return found


def weight_or_none(part: Mapping[str, object], where: str, place: str | None) -> float | None:
    """Return the weight of a dataset or shard, None where it has none; arguments as for :func:`check_entry`."""
    weight = part.get("weight")
    if weight is None:
        return None
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= sys.float_info.max:
        raise FormatError(f"'weight' is a number from 0, not {weight!r}", url=place, field=where + "weight")
    return weight


KIND = "wids-shard-index-v1"
VERSION = 1


@dataclass(frozen=True)
class WidsShard:
    """One shard of an index.

    Args:
        url: what to open.
        nsamples: number of samples in it.
        filesize: bytes, or None.
        md5sum: of the file, hexadecimal, or None.
        dataset: name of the innermost dataset with a name around it, or None.
        weight: its own, else that of the innermost dataset with one, or None.
        source_url: the nested index that it was read from, or None.
        extra: what else the index says of it.
    """

    url: str
    nsamples: int
    filesize: int | None = None
    md5sum: str | None = None
    dataset: str | None = None
    weight: float | None = None
    source_url: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<WidsShard {redact(self.url)!r}: {self.nsamples} samples>"

    def to_entry(self) -> dict[str, Any]:
        """Return the shard as a dict in the index's words; what is not known is left out."""
        known = {name: getattr(self, name) for name in ("md5sum", "filesize", "dataset", "weight", "source_url")}
        values = {name: value for name, value in known.items() if value is not None}
        return {"url": self.url, "nsamples": self.nsamples, **values, **self.extra}


@dataclass(frozen=True)
class WidsIndex:
    """An index, nested ones included.

    Args:
        place: url or path that it was read from, or None.
        shards: all shards, the index's own before those of its datasets, each in the order of the document.
        name: of the dataset, or None.
        document: the index as it stands, with ``options`` put in.
    """

    place: str | None
    shards: tuple[WidsShard, ...]
    name: str | None = None
    document: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<WidsIndex {redact(self.place or '')!r}: {len(self.shards)} shards, {self.nsamples} samples>"

    @property
    def nsamples(self) -> int:
        """Number of samples in all shards."""
        return sum(shard.nsamples for shard in self.shards)

    @property
    def urls(self) -> list[str]:
        """The urls of all shards, in order."""
        return [shard.url for shard in self.shards]


def make_document(shards: Iterable[WidsShard], **header: object) -> dict[str, Any]:
    """Return an index to be written as JSON.

    Args:
        shards: their urls are written as they are; sorted by url.
        **header: ``name``, ``base``, ``info`` and the like; None is left out.
    """
    entries = []
    for shard in sorted(shards, key=lambda shard: shard.url):
        entry = {"url": shard.url, "md5sum": shard.md5sum, "nsamples": shard.nsamples, "filesize": shard.filesize}
        entries.append({key: value for key, value in entry.items() if value is not None})
    named = {key: value for key, value in header.items() if value is not None}
    return {"__kind__": KIND, "wids_version": VERSION, "shardlist": entries, **named}


MOST_BYTES = 1 << 30
MOST_SHARDS = 10_000_000
MOST_INDEXES = 10_000
MOST_LEVELS = 32
_KNOWN = frozenset({"url", "nsamples", "filesize", "md5sum", "dataset", "weight", "source_url"})


def read_wids_json(
    source: object,
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
    place, document = load_document(source, trust=trust)
    if options:
        document = {**document, **options}
        base = options.get("base") if base is None else base
    reader = _IndexReader(trust, network=network)
    reader.collect(document, _IndexScope(place), base)
    return WidsIndex(place, tuple(reader.shards), text_or_none(document, "name", "", place), document)


def load_document(source: object, *, trust: str | None = None) -> tuple[str | None, dict[str, object]]:
    """Return the place and the document of an index, nothing in it resolved.

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
        place = next((name for name in names if isinstance(name, str) and urls.is_from_network(name)), None)
        return place, _parse_document(source.read(), place or names[1])
    if not isinstance(source, str | os.PathLike):
        raise UsageError(
            f"an index is a url, a path, an open file, a dict or a list of {{'url', 'nsamples'}}, not "
            f"{type(source).__name__}"
        )
    place = os.fsdecode(source)
    return place, _parse_document(_read_text(place, trust), place)


def _read_text(url: str, trust: str | None) -> bytes:
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


def _parse_document(text: bytes | str, place: object) -> dict[str, object]:
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
class _IndexScope:
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

    def within(self, dataset: Mapping[str, object]) -> "_IndexScope":
        """Return this place with the name and weight that a dataset gives."""
        name = text_or_none(dataset, "name", self.where, self.place)
        weight = weight_or_none(dataset, self.where, self.place)
        return replace(self, name=self.name if name is None else name, weight=self.weight if weight is None else weight)

    def error(self, message: str) -> FormatError:
        """Return an error that names this place."""
        return FormatError(message, url=self.place, field=self.where.rstrip(".") or None)

    def url(self, named: str, trust: str | None, *, network: bool) -> str:
        """Return what a url in this dataset points to, if it may."""
        url = urls.drop_repeated_folder(self.folder, named, urls.join_url(self.folder, named))
        return urls.check_document_url(url, self.place, level=trust, network=network)


class _IndexReader:
    """Walks a tree of indexes and collects shards; ``network``: the outermost one came over the network."""

    def __init__(self, trust: str | None, *, network: bool) -> None:
        self.trust = trust
        self.network = network
        self.shards: list[WidsShard] = []
        self._indexes = 0

    def collect(self, document: Mapping[str, object], here: _IndexScope, base: str | None) -> None:
        """Collect the shards of a whole index."""
        check_version(document, here.place, VERSION)
        if "shardlist" not in document and "datasets" not in document:
            raise here.error("a shard index without 'shardlist' and without 'datasets'")
        folder = urls.parent_folder(here.place) if base is None else base
        around = (*here.around, _index_identity(here.place))
        if len(around) > MOST_LEVELS:
            raise here.error(f"indexes nested more than {MOST_LEVELS} deep")
        self._dataset(document, replace(here, folder=folder, around=around), based=base is not None)

    def _dataset(self, dataset: Mapping[str, object], here: _IndexScope, *, based: bool = False) -> None:
        """Collect the shards of an index, or of a dataset in it."""
        if here.where.count("[") > MOST_LEVELS:
            raise here.error(f"datasets nested more than {MOST_LEVELS} deep")
        base = text_or_none(dataset, "base", here.where, here.place)
        if base is not None and not based:
            here = replace(here, folder=base if here.folder is None else urls.join_url(here.folder, base))
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

    def _shard(self, entry: Any, here: _IndexScope, where: str) -> None:
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

    def _other(self, nested: Mapping[str, object], here: _IndexScope) -> None:
        """Collect the shards of an index that another one names."""
        named = nested["source_url"]
        if not isinstance(named, str) or not named:
            raise here.error(f"'source_url' is a url, not {named!r}")
        url = here.url(named, self.trust, network=self.network)
        if _index_identity(url) in here.around:
            raise here.error(f"indexes name each other in a circle: {' -> '.join([*here.around, url])}")
        self._indexes += 1
        if self._indexes > MOST_INDEXES:
            raise here.error(f"more than {MOST_INDEXES} nested indexes")
        base = text_or_none(nested, "base", here.where, here.place)
        if base is not None and here.folder is not None:
            base = urls.join_url(here.folder, base)
        inner = replace(here.within(nested), place=url, where="", source_url=url)
        self.collect(_parse_document(_read_text(url, self.trust), url), inner, base)


def _index_identity(place: str | None) -> str:
    """Return what two names of one index have in common."""
    if place is None or place == "-" or urls.is_url(place):
        return place or "(the document given)"
    return os.path.realpath(place)
