"""wids indexes as shard lists, and as the plain dicts that the published ``wids_specs`` gives.

A shard list yields ``{"url": url}`` for one shard after another, the same in every pass. A plain dict has every
shard, nested ones included, in one list, its url resolved.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from webdataset.core.errors import NoShards
from webdataset.core.redaction import redact
from webdataset.shards import urls
from webdataset.shards.lists import Shard, ShardList
from webdataset.shards.wids_index import WidsIndex, check_entry, load_document, read_wids_json


class WidsShardList(ShardList):
    """The shards of an index, in its order, the same in every pass.

    Args:
        source: an index as for :func:`~webdataset.shards.wids_index.read_wids_json`, or a :class:`WidsIndex`.
        base: what relative urls of the index are joined to, in place of its own.
        trust: ``full`` lets an index from the network name commands and local files.

    Attributes:
        index: the index.
        urls: the shards' urls.
        nsamples: number of samples in all shards, as the index says.

    Raises:
        NoShards: an index without shards.
        NotFound: no such index.
        FormatError: it is no index.
        UsageError: it names what it may not name.
    """

    def __init__(self, source: object, *, base: str | None = None, trust: str | None = None) -> None:
        self.index = source if isinstance(source, WidsIndex) else read_wids_json(source, base=base, trust=trust)
        self.urls = self.index.urls
        self.nsamples = self.index.nsamples
        if not self.urls:
            raise NoShards("an index without shards", url=self.index.place)

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.urls)

    def __repr__(self) -> str:
        place = redact(self.index.place or "")
        return f"{type(self).__name__}({place!r}, {len(self.urls)} shards, {self.nsamples} samples)"

    def shards(self, epoch: int, draw: Callable[[], random.Random]) -> Iterator[Shard]:  # noqa: ARG002
        """Yield each shard once."""
        for url in self.urls:
            yield {"url": url}


def load_remote_dsdesc_raw(source: object) -> dict[str, Any]:
    """Return an index as it stands.

    Args:
        source: url, path or open file.

    Raises:
        NotFound: no such index.
        FormatError: it is no JSON object.
    """
    place, document = load_document(source)
    return LocatedIndex(document, place)


class LocatedIndex(dict[str, Any]):
    """An index as it stands, which knows where it came from: so much, and no more, it may name.

    Args:
        document: the index.
        place: its url or path, or None.
    """

    def __init__(self, document: Mapping[str, object], place: str | None) -> None:
        super().__init__(document)
        self.place = place


def load_dsdesc_and_resolve(
    source: object, *, options: Mapping[str, object] | None = None, base: str | None = None
) -> dict[str, Any]:
    """Return an index with all its shards in ``shardlist``, nested ones included, and their urls resolved.

    Args:
        source: url, path, open file or dict.
        options: replace or add keys of the index.
        base: what relative urls are joined to.

    Raises:
        NotFound: no such index.
        FormatError: it is no index.
        UsageError: it names what it may not name.
    """
    index = read_wids_json(source, base=base, options=options)
    return {**index.document, "shardlist": [shard.to_entry() for shard in index.shards]}


def resolve_dsdesc(
    dsdesc: Mapping[str, object], *, options: Mapping[str, object] | None = None, base: str | None = None
) -> dict[str, Any]:
    """Return an index that is a dict already, resolved as by :func:`load_dsdesc_and_resolve`.

    Args:
        dsdesc: the index.
        options: replace or add keys of the index.
        base: what relative urls are joined to.

    Raises:
        FormatError: it is no index.
    """
    return load_dsdesc_and_resolve(dsdesc, options=options, base=base)


def rebase_shardlist(shardlist: Iterable[Mapping[str, Any]], base: str | None) -> list[dict[str, Any]]:
    """Return shards whose relative urls are joined to a base.

    Args:
        shardlist: ``{"url", …}`` each.
        base: a folder or url; None changes nothing.
    """
    return [
        {**shard, "url": shard["url"] if base is None else urls.join_url(base, shard["url"])} for shard in shardlist
    ]


def check_shards(l: Iterable[object]) -> Iterable[object]:  # noqa: E741  upstream's signature
    """Check that each shard has a url and a number of samples.

    Args:
        l: the shards.

    Returns:
        The shards.

    Raises:
        FormatError: one has not.
    """
    l = list(l)  # noqa: E741
    for number, shard in enumerate(l):
        check_entry(shard, f"shardlist[{number}].", None)
    return l


def set_all(l: Iterable[dict[str, object]], k: str, v: object) -> None:  # noqa: E741  upstream's signature
    """Give each shard a value that it has not.

    Args:
        l: the shards, changed in place.
        k: the key.
        v: the value; None changes nothing.
    """
    if v is not None:
        for shard in l:
            shard.setdefault(k, v)


def urldir(url: str) -> str:
    """Return the folder of a url or path.

    Args:
        url: a url or path.
    """
    return urls.parent_folder(url) or ""


def urlmerge(base: str, url: str) -> str:
    """Return a url joined to a base.

    Args:
        base: a folder or url.
        url: relative or not.
    """
    return urls.join_url(base, url)
