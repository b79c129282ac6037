"""How many samples there are in each shard: from what lies beside the shards, or from their headers.

Flows in: urls. Flows out: url to number of samples. Asked in this order: what the caller says; ``sizes.json`` in the
folder of the shards (``{"part-00.tar": 1000, …}``); an index of each shard beside it. The shards' own headers are read
only where the caller wants it.
"""

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from webdataset.ground.errors import BadIndex, NoRandomAccess, SourceError, UsageError
from webdataset.ground.redaction import redacted
from webdataset.samples.reading import Reading
from webdataset.sources.open import open_stream
from webdataset.sources.ranges import local_path, open_ranges

from .building import index_shards, shard_urls
from .finding import samples_beside

Given = Mapping[str, int] | str | os.PathLike[str] | bool | None

_LARGEST = 1 << 28
_SHOWN = 3

log = logging.getLogger("webdataset")


def sample_counts(urls: Any, counts: Given = None, reading: Reading | None = None) -> dict[str, int]:
    """Return the number of samples in each shard.

    Args:
        urls: the shards, as ``WebDataset`` takes them: a text with braces, a path, a list, or a shard list object.
        counts: url (or its last part) to number; a JSON file of that, or of a wids index; True reads the shards'
            headers; None looks for ``sizes.json`` and indexes beside the shards.
        reading: the rules of reading, which decide what a sample is.

    Raises:
        UsageError: the number is not known of all shards; the message says what can be done.
        BadIndex: a file of counts that is none.
        SourceError: a file or shard that cannot be read.
    """
    reading = reading or Reading()
    wanted = list(dict.fromkeys(map(str, shard_urls(urls, reading.storage_options))))
    if counts is True:
        return {index.url: len(index) for index in index_shards(wanted, reading=reading)}
    if counts is None or counts is False:
        found = _beside(wanted, reading)
    elif isinstance(counts, Mapping):
        found = _chosen(wanted, _numbers(counts, None))
    else:
        place = os.fspath(counts)
        stores = {url.partition("://")[0] for url in wanted}
        same = stores == {place.partition("://")[0]}  # options of one store are none of another
        found = _chosen(wanted, _read(place, reading, reading.storage_options if same else None))
    missing = [url for url in wanted if url not in found]
    if missing:
        raise UsageError(_unknown(missing, len(wanted)))
    return found


def _unknown(missing: Sequence[str], among: int) -> str:
    named = ", ".join(redacted(_name(url)) for url in missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
    return (
        f"the number of samples is not known of {len(missing)} of {among} shards ({named}). Put a sizes.json "
        f'({{"{redacted(_name(missing[0]))}": 1000, …}}) beside them, write indexes with '
        "wds.write_indexes(urls, 'dali'), pass counts={url: number}, or pass counts=True to read the shards' headers. "
        "Without counts: equal_epochs('resample', steps=n), or wds.equal_steps(loader)"
    )


def _name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def _chosen(urls: Iterable[str], numbers: Mapping[str, int]) -> dict[str, int]:
    found = {}
    for url in urls:
        number = numbers.get(url, numbers.get(_name(url)))
        if number is not None:
            found[url] = number
    return found


def _numbers(document: Any, place: str | None) -> dict[str, int]:
    """Return name to number from ``{name: number}`` or from a wids index.

    Raises:
        BadIndex: neither.
    """
    if isinstance(document, Mapping) and isinstance(document.get("shardlist"), list):
        document = {str(entry.get("url")): entry.get("nsamples") for entry in document["shardlist"]}
    if not isinstance(document, Mapping):
        raise BadIndex(f"counts are {{url: number}}, and this is a {type(document).__name__}", url=place)
    found = {}
    for name, number in document.items():
        if type(number) is not int or number < 0:
            raise BadIndex(f"{name!r} has {str(number)[:80]!r} samples, which is no number of samples", url=place)
        found[str(name)] = number
    return found


def _read(place: str, reading: Reading, storage_options: Any) -> dict[str, int]:
    stream = open_stream(place, level=reading.trust, storage_options=storage_options)
    try:
        content = b""
        while piece := stream.read(1 << 20):
            content += piece
            if len(content) > _LARGEST:
                raise BadIndex(f"a file of counts with more than {_LARGEST} bytes", url=place)
    finally:
        stream.close()
    try:
        return _numbers(json.loads(content), place)
    except ValueError as error:
        if isinstance(error, BadIndex):
            raise
        raise BadIndex(f"this is no JSON file of counts: {error}", url=place) from error


def _beside(urls: Sequence[str], reading: Reading) -> dict[str, int]:
    """Return what lies beside the shards; asks for nothing more once a shard has nothing."""
    found: dict[str, int] = {}
    sizes: dict[str, dict[str, int]] = {}
    for url in urls:
        folder = url.rpartition("/")[0]
        if folder not in sizes:
            sizes[folder] = _sizes(folder, url, reading)
        number = _chosen([url], sizes[folder]).get(url)
        if number is None:
            number = _indexed(url, reading)
        if number is None:
            break
        found[url] = number
    return found


def _sizes(folder: str, url: str, reading: Reading) -> dict[str, int]:
    """Return what ``sizes.json`` in a folder says; nothing where there is none."""
    if url.startswith("pipe:") or "?" in url:
        return {}
    name = f"{folder}/sizes.json" if folder or url.startswith("/") else "sizes.json"
    path = local_path(name, level=reading.trust)
    if path is not None and not os.path.isfile(path):  # noqa: PTH113  names need not be UTF-8
        return {}
    try:
        return _read(name, reading, None if path is not None else reading.storage_options)
    except SourceError as error:
        log.debug("%s: %s", redacted(name), error)
        return {}


def _indexed(url: str, reading: Reading) -> int | None:
    """Return the number of samples that an index beside a shard lists, checked against the shard; None without one."""
    if type(reading) is not Reading or url.startswith("pipe:"):
        return None
    try:
        with open_ranges(url, level=reading.trust, storage_options=reading.storage_options) as ranges:
            return samples_beside(url, ranges, reading)
    except NoRandomAccess:
        return None
