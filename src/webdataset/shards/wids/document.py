"""What a wids index says, as values.

Flows in: what a reader found. Flows out: shards with their counts, and documents to be written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from webdataset.ground.redaction import redacted

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
        return f"<WidsShard {redacted(self.url)!r}: {self.nsamples} samples>"

    def described(self) -> dict[str, Any]:
        """Return the shard as a dict in the index's words; what is not known is left out."""
        known = {name: getattr(self, name) for name in ("md5sum", "filesize", "dataset", "weight", "source_url")}
        said = {name: value for name, value in known.items() if value is not None}
        return {"url": self.url, "nsamples": self.nsamples, **said, **self.extra}


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
        return f"<WidsIndex {redacted(self.place or '')!r}: {len(self.shards)} shards, {self.nsamples} samples>"

    @property
    def nsamples(self) -> int:
        """Number of samples in all shards."""
        return sum(shard.nsamples for shard in self.shards)

    @property
    def urls(self) -> list[str]:
        """The urls of all shards, in order."""
        return [shard.url for shard in self.shards]


def document_of(shards: Iterable[WidsShard], **header: Any) -> dict[str, Any]:
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
