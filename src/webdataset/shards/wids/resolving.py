"""Wids indexes as plain dicts, as the published ``wids_specs`` hands them out.

Flows in: indexes. Flows out: the same with every shard in one list, its url resolved.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from webdataset.shards import places

from .checks import check_entry
from .reading import loaded, read_wids_json


def load_remote_dsdesc_raw(source: Any) -> dict[str, Any]:
    """Return an index as it stands.

    Args:
        source: url, path or open file.

    Raises:
        NotFound: no such index.
        FormatError: it is no JSON object.
    """
    place, document = loaded(source)
    return _Placed(document, place)


class _Placed(dict[str, Any]):
    """An index as it stands, which knows where it came from: so much, and no more, it may name."""

    def __init__(self, document: Mapping[str, Any], place: str | None) -> None:
        super().__init__(document)
        self.place = place


def load_dsdesc_and_resolve(
    source: Any, *, options: Mapping[str, Any] | None = None, base: str | None = None
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
    return {**index.document, "shardlist": [shard.described() for shard in index.shards]}


def resolve_dsdesc(
    dsdesc: Mapping[str, Any], *, options: Mapping[str, Any] | None = None, base: str | None = None
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
        {**shard, "url": shard["url"] if base is None else places.joined(base, shard["url"])} for shard in shardlist
    ]


def check_shards(l: Iterable[Any]) -> Iterable[Any]:  # noqa: E741  upstream's signature
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


def set_all(l: Iterable[dict[str, Any]], k: str, v: Any) -> None:  # noqa: E741  upstream's signature
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
    return places.folder_of(url) or ""


def urlmerge(base: str, url: str) -> str:
    """Return a url joined to a base.

    Args:
        base: a folder or url.
        url: relative or not.
    """
    return places.joined(base, url)
