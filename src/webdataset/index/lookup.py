"""Finds the index of a shard, and the number of samples in each shard.

An index is the one given, one beside the shard, or built from the shard's headers; it is checked against the shard.
Counts are searched in this order: what the caller says; ``sizes.json`` in the folder of the shards
(``{"part-00.tar": 1000, …}``); an index beside each shard; the shards' headers, where the caller asks for it.

Never reads pickled index files (``.index``).
"""

import contextlib
import json
import logging
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from webdataset.core.errors import BadIndex, NoRandomAccess, SourceError, StaleIndex, UsageError
from webdataset.core.redaction import redact
from webdataset.index.build import index_shards, shard_urls, walk_ranges
from webdataset.index.convert import COMPRESSED, check_size, convert_binary, convert_dali, convert_offsets, convert_rows
from webdataset.index.entries import ShardIndex
from webdataset.index.formats import binary, dali, energon, files_json
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_reader import check_end_mark
from webdataset.storage.local_files import is_safe_to_map, open_raw
from webdataset.storage.open_url import local_path, open_stream
from webdataset.storage.random_access import RandomAccess, open_ranges
from webdataset.storage.streams import read_full
from webdataset.tar.header import BLOCK

IndexSpec = ShardIndex | str | os.PathLike[str] | Literal[False] | None

_LARGEST = 1 << 28
_USUAL = 1 << 24
_MARK_BYTES = 16

log = logging.getLogger("webdataset")


def find_index(url: str, ranges: RandomAccess, index: IndexSpec, reading: Reading) -> ShardIndex:
    """Return the index of a shard.

    Args:
        url: the shard.
        ranges: the shard, open for positioned reads.
        index: a shard index; a path or url of an index file (binary, DALI, energon, files-JSON); False to read the
            shard's headers; None to look for ``X.wdsindex``, ``X.json``, ``X.idx`` and ``X.tar.idx`` beside the shard.
        reading: the rules of reading.

    Raises:
        StaleIndex: an index that does not describe the shard.
        BadIndex: a file that is no index.
        NoRandomAccess: the shard is compressed.
        TarError: the shard is damaged.
    """
    if isinstance(index, ShardIndex):
        if not index.addressable:
            raise NoRandomAccess(f"the shard is compressed ({index.compression}): decompress it", url=url)
        check_size(url, index.size_bytes, ranges)
        # other rules may have made it
        if ranges.length - index.end < BLOCK:
            check_end_mark(url, index.end, chosen=reading.missing_end)
        return index
    if index is not None and index is not False:
        # options of one store are none of another
        same = os.fspath(index).partition(":")[0] == url.partition(":")[0]
        content = _read_index(index, _limit_bytes(ranges), reading.trust, reading.storage_options if same else None)
        return _load_index(url, ranges, content, os.fspath(index), reading, as_listed=True)
    found = find_index_beside(url, ranges, reading) if index is None else None
    if found is not None:
        return found
    found = walk_ranges(url, ranges, reading)
    if found is None:
        raise NoRandomAccess(COMPRESSED, url=url)
    return found


def count_samples_beside(url: str, ranges: RandomAccess, reading: Reading) -> int | None:
    """Return how many samples the index beside a shard lists; None where no index lies there.

    Raises:
        StaleIndex: an index that does not describe the shard.
    """
    found = find_index_beside(url, ranges, reading)
    return None if found is None else len(found)


def _candidates(url: str) -> list[str]:
    """Return the names that indexes of a shard have; none for urls that carry a query."""
    if "?" in url and local_path(url) is None:
        return []
    names = [
        binary.index_name(url),
        files_json.index_name(url),
        dali.index_name(url),
        energon.index_name(url),
        dali.tool_name(url),
    ]
    return [name for place, name in enumerate(names) if name != url and name not in names[:place]]


def find_index_beside(url: str, ranges: RandomAccess, reading: Reading) -> ShardIndex | None:
    """Return the index that lies beside a shard, or None; names like ``X.json`` are used for other things, too.

    Args:
        url: the shard.
        ranges: the shard, open for positioned reads.
        reading: the rules of reading.

    Raises:
        StaleIndex: an index that does not describe the shard.
        SourceError: the shard cannot be read.
    """
    for name in _candidates(url):
        content = _read_beside(name, _limit_bytes(ranges), reading)
        if content is None:
            continue
        try:
            return _load_index(url, ranges, content, name, reading, as_listed=False)
        except StaleIndex:
            if name != dali.tool_name(url) or name == dali.index_name(url):
                # else it may be about another shard: several may share such a name
                raise
        except BadIndex as error:
            log.debug("%s is no index: %s", redact(name), error)
    return None


def _read_beside(name: str, most: int, reading: Reading) -> bytes | mmap.mmap | None:
    """Return what lies beside the shard if it may be an index, else None; a binary index is mapped."""
    path = local_path(name, level=reading.trust)
    if path is not None and not os.path.isfile(path):  # noqa: PTH113  names need not be UTF-8
        return None
    try:
        return _read_index(name, most, reading.trust, reading.storage_options, beside=True)
    except (SourceError, BadIndex):  # not there, not for us, or something else: the headers say it, too
        return None


def _limit_bytes(ranges: RandomAccess) -> int:
    """Return how many bytes an index may have: about those of the shard, within reason."""
    return min(max(ranges.length, _USUAL), _LARGEST)


def _read_index(
    name: str | os.PathLike[str],
    most: int,
    level: str | None,
    storage_options: object,
    *,
    beside: bool = False,
) -> bytes | mmap.mmap:
    """Return the bytes of an index file; of one that only lies there, no more than is needed to see that it is none."""
    path = local_path(name, level=level)
    mapped = _map_binary(path, most) if path is not None and os.path.isfile(path) else None  # noqa: PTH113  names need not be UTF-8
    if mapped is not None:
        return mapped
    stream = open_stream(name, level=level, storage_options=storage_options)
    try:
        pieces: list[bytes] = []
        size = 0
        # the first has the whole mark
        while piece := stream.read(1 << 20) if pieces else read_full(stream.read, _MARK_BYTES):
            if beside and not pieces and not _may_be_index(os.fspath(name), piece):
                raise BadIndex("it starts otherwise")
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise BadIndex(f"an index of more than {most} bytes", url=os.fspath(name))
    finally:
        stream.close()
    return b"".join(pieces)


def _map_binary(path: str, most: int) -> mmap.mmap | None:
    """Map a binary index of so many bytes at most; None where the file is none, or cannot be mapped safely."""
    with open_raw(path) as file:
        fits = file.identity is not None and file.identity.length <= most
        if not fits or read_full(file.read, len(binary.MAGIC)) != binary.MAGIC or not is_safe_to_map(file.fileno()):
            return None
        # it may still be refused
        with contextlib.suppress(OSError):
            # files of ours are replaced, never written to
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return None


def _may_be_index(name: str, start: bytes) -> bool:
    """Tell whether a file of some name may be an index, from its first bytes."""
    if name.endswith(".wdsindex"):
        return start.startswith(binary.MAGIC)
    if name.endswith(".json"):
        return start[:1] == b"{"
    return (start[:3] == b"v1.") != name.endswith(".tar.idx")


def _load_index(
    url: str, ranges: RandomAccess, mapped: bytes | mmap.mmap, name: str, reading: Reading, *, as_listed: bool
) -> ShardIndex:
    if mapped[: len(binary.MAGIC)] == binary.MAGIC:
        return convert_binary(url, ranges, binary.loads(mapped, url=name), reading)
    content = bytes(mapped)
    if content[:1] == b"{":
        sidecar = files_json.loads(content, url=name)
        check_size(url, sidecar.size_bytes, ranges)
        return convert_rows(url, ranges, sidecar.rows, reading)
    if content[:3] == b"v1.":
        return convert_dali(url, ranges, dali.loads(content, url=name), reading, as_listed=as_listed)
    if not content or len(content) % 8:
        raise BadIndex("neither a binary index, nor one of DALI or energon, nor a files-JSON", url=name)
    return convert_offsets(url, ranges, energon.loads(content, url=name), reading)


def check_index_spec(index: object) -> None:
    """Raise unless something can be an index.

    Raises:
        UsageError: it cannot.
    """
    if index is not None and index is not False and not isinstance(index, ShardIndex | str | os.PathLike):
        raise UsageError(f"index={index!r}: pass a ShardIndex, the name of an index file, False or None")


GivenCounts = Mapping[str, int] | str | os.PathLike[str] | bool | None

_SHOWN = 3


def sample_counts(urls: object, counts: GivenCounts = None, reading: Reading | None = None) -> dict[str, int]:
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
        found = _read_size_files(wanted, reading)
    elif isinstance(counts, Mapping):
        found = _match_counts(wanted, _parse_counts(counts, None))
    else:
        place = os.fspath(counts)
        stores = {url.partition("://")[0] for url in wanted}
        # options of one store are none of another
        same = stores == {place.partition("://")[0]}
        found = _match_counts(wanted, _read_counts(place, reading, reading.storage_options if same else None))
    missing = [url for url in wanted if url not in found]
    if missing:
        raise UsageError(_explain_unknown(missing, len(wanted)))
    return found


def _explain_unknown(missing: Sequence[str], among: int) -> str:
    named = ", ".join(redact(_find_name(url)) for url in missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
    return (
        f"the number of samples is not known of {len(missing)} of {among} shards ({named}). Put a sizes.json "
        f'({{"{redact(_find_name(missing[0]))}": 1000, …}}) beside them, write indexes with '
        "wds.write_indexes(urls, 'dali'), pass counts={url: number}, or pass counts=True to read the shards' headers. "
        "Without counts: equal_epochs('resample', steps=n), or wds.equal_steps(loader)"
    )


def _find_name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def _match_counts(urls: Iterable[str], numbers: Mapping[str, int]) -> dict[str, int]:
    found = {}
    for url in urls:
        number = numbers.get(url, numbers.get(_find_name(url)))
        if number is not None:
            found[url] = number
    return found


def _parse_counts(document: object, place: str | None) -> dict[str, int]:
    """Return name to number from ``{name: number}`` or from a wids index."""
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


def _read_counts(place: str, reading: Reading, storage_options: object) -> dict[str, int]:
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
        return _parse_counts(json.loads(content), place)
    except ValueError as error:
        if isinstance(error, BadIndex):
            raise
        raise BadIndex(f"this is no JSON file of counts: {error}", url=place) from error


def _read_size_files(urls: Sequence[str], reading: Reading) -> dict[str, int]:
    """Return what lies beside the shards; asks for nothing more once a shard has nothing."""
    found: dict[str, int] = {}
    sizes: dict[str, dict[str, int]] = {}
    for url in urls:
        folder = url.rpartition("/")[0]
        if folder not in sizes:
            sizes[folder] = _read_sizes(folder, url, reading)
        number = _match_counts([url], sizes[folder]).get(url)
        if number is None:
            number = _count_in_index(url, reading)
        if number is None:
            break
        found[url] = number
    return found


def _read_sizes(folder: str, url: str, reading: Reading) -> dict[str, int]:
    """Return what ``sizes.json`` in a folder says; nothing where there is none."""
    if url.startswith("pipe:") or "?" in url:
        return {}
    name = f"{folder}/sizes.json" if folder or url.startswith("/") else "sizes.json"
    path = local_path(name, level=reading.trust)
    if path is not None and not os.path.isfile(path):  # noqa: PTH113  names need not be UTF-8
        return {}
    try:
        return _read_counts(name, reading, None if path is not None else reading.storage_options)
    except SourceError as error:
        log.debug("%s: %s", redact(name), error)
        return {}


def _count_in_index(url: str, reading: Reading) -> int | None:
    """Return the number of samples that an index beside a shard lists, checked against the shard; None without one."""
    if type(reading) is not Reading or url.startswith("pipe:"):
        return None
    try:
        with open_ranges(url, level=reading.trust, storage_options=reading.storage_options) as ranges:
            return count_samples_beside(url, ranges, reading)
    except NoRandomAccess:
        return None
