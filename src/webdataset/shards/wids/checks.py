"""Checks of the parts of a wids index; each failure names the place in the document.

Flows in: parts of a parsed document. Flows out: the same, known to be what they should be.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from webdataset.ground.errors import FormatError
from webdataset.sources.files import nameable

_MOST = {"nsamples": 1 << 39, "filesize": 1 << 60}  # so that sums over all shards stay numbers of a length


def check_version(document: Mapping[str, Any], place: str | None, version: int) -> None:
    """Check that a document is an index of a version that is read here.

    Args:
        document: the index.
        place: where it was read from.
        version: the one version.

    Raises:
        FormatError: it is none.
    """
    found = document.get("wids_version")
    if found is None:
        raise FormatError(
            f"not a shard index: it has no 'wids_version': {version} (its keys are {sorted(map(str, document))[:10]})",
            url=place,
        )
    if isinstance(found, bool) or found != version:
        raise FormatError(f"'wids_version' is {found!r}; this version reads {version}", url=place, field="wids_version")


def check_entry(entry: Any, where: str, place: str | None) -> None:
    """Check one shard of a list.

    Args:
        entry: what stands in the list.
        where: its place in the document, with a dot at the end.
        place: the document's place.

    Raises:
        FormatError: it is no shard.
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
    if not nameable(url):
        raise FormatError(f"a shard's 'url' is {url!r}, which nothing can be called", url=place, field=where + "url")
    _check_count(entry, "nsamples", where, place, needed=True)
    _check_count(entry, "filesize", where, place)
    text_or_none(entry, "md5sum", where, place)
    text_or_none(entry, "dataset", where, place)


def _check_count(entry: Mapping[str, Any], key: str, where: str, place: str | None, *, needed: bool = False) -> None:
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


def text_or_none(part: Mapping[str, Any], key: str, where: str, place: str | None) -> str | None:
    """Return a text of a part of the document, or None where it has none.

    Args:
        part: a dataset or shard.
        key: which text.
        where: what stands before the key in the place in the document.
        place: the document's place.

    Raises:
        FormatError: something else stands there.
    """
    text = part.get(key)
    if text is None or isinstance(text, str):
        return text
    raise FormatError(f"{key!r} is a text, not {text!r}", url=place, field=where + key)


def list_of(part: Mapping[str, Any], key: str, where: str, place: str | None) -> Sequence[Any]:
    """Return a list of a part of the document, empty where it has none.

    Args:
        part: a dataset.
        key: which list.
        where: what stands before the key in the place in the document.
        place: the document's place.

    Raises:
        FormatError: something else stands there.
    """
    found = part.get(key, ())
    if not isinstance(found, list | tuple):
        raise FormatError(f"{key!r} is a list, not {type(found).__name__}", url=place, field=where + key)
    return found


def weight_or_none(part: Mapping[str, Any], where: str, place: str | None) -> float | None:
    """Return the weight of a dataset or shard, or None where it has none.

    Args:
        part: a dataset or shard.
        where: what stands before the key in the place in the document.
        place: the document's place.

    Raises:
        FormatError: it is no number from 0.
    """
    weight = part.get("weight")
    if weight is None:
        return None
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= sys.float_info.max:
        raise FormatError(f"'weight' is a number from 0, not {weight!r}", url=place, field=where + "weight")
    return weight
