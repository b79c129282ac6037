"""The index of a shard: the one given, one that lies beside the shard, or its headers.

Flows in: an open shard and what the caller knows. Flows out: a shard index that has been checked against the shard.
Index files are text, JSON or plain numbers; pickled ones (``.index``) are never read.
"""

import logging
import os
from typing import Any, Literal

from webdataset.ground.errors import BadIndex, NoRandomAccess, SourceError, StaleIndex, UsageError
from webdataset.ground.redaction import redacted
from webdataset.samples.endings import judge_missing_end
from webdataset.samples.reading import Reading
from webdataset.sources.open import open_stream
from webdataset.sources.ranges import Ranges, local_path
from webdataset.tar.header import BLOCK

from .building import walk_ranges
from .entries import ShardIndex
from .formats import dali, energon, files_json
from .resolving import check_size, from_dali, from_offsets, from_rows

IndexSpec = ShardIndex | str | os.PathLike[str] | Literal[False] | None

_LARGEST = 1 << 28
_USUAL = 1 << 24

log = logging.getLogger("webdataset")


def index_of(url: str, ranges: Ranges, index: IndexSpec, reading: Reading) -> ShardIndex:
    """Return the index of a shard.

    Args:
        url: the shard.
        ranges: the shard, open for positioned reads.
        index: a shard index; a path or url of an index file (DALI, energon, files-JSON); False to read the shard's
            headers; None to look for ``X.json``, ``X.idx`` and ``X.tar.idx`` beside the shard first.
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
        if ranges.length - index.end < BLOCK:  # other rules may have made it
            judge_missing_end(url, index.end, chosen=reading.missing_end)
        return index
    if index is not None and index is not False:
        same = os.fspath(index).partition(":")[0] == url.partition(":")[0]  # options of one store are none of another
        content = _content(index, _most(ranges), reading.trust, reading.storage_options if same else None)
        return _loaded(url, ranges, content, os.fspath(index), reading, as_listed=True)
    found = _found_beside(url, ranges, reading) if index is None else None
    if found is not None:
        return found
    found = walk_ranges(url, ranges, reading)
    if found is None:
        raise NoRandomAccess("the shard is compressed: decompress it to read samples out of order", url=url)
    return found


def samples_beside(url: str, ranges: Ranges, reading: Reading) -> int | None:
    """Return how many samples the index beside a shard lists; None where no index lies there.

    Args:
        url: the shard.
        ranges: the shard, open for positioned reads.
        reading: the rules of reading.

    Raises:
        StaleIndex: an index that does not describe the shard.
    """
    found = _found_beside(url, ranges, reading)
    return None if found is None else len(found)


def _candidates(url: str) -> list[str]:
    """Return the names that indexes of a shard have; none for urls that carry a query."""
    if "?" in url and local_path(url) is None:
        return []
    names = [files_json.index_name(url), dali.index_name(url), energon.index_name(url), dali.tool_name(url)]
    return [name for place, name in enumerate(names) if name != url and name not in names[:place]]


def _found_beside(url: str, ranges: Ranges, reading: Reading) -> ShardIndex | None:
    """Return what a file beside the shard says, or None; names like ``X.json`` are used for other things, too."""
    for name in _candidates(url):
        content = _beside(name, _most(ranges), reading)
        if content is None:
            continue
        try:
            return _loaded(url, ranges, content, name, reading, as_listed=False)
        except StaleIndex:
            if name != dali.tool_name(url) or name == dali.index_name(url):
                raise  # else it may be about another shard: several may share such a name
        except BadIndex as error:
            log.debug("%s is no index: %s", redacted(name), error)
    return None


def _beside(name: str, most: int, reading: Reading) -> bytes | None:
    """Return what lies beside the shard if it may be an index, else None."""
    path = local_path(name, level=reading.trust)
    if path is not None and not os.path.isfile(path):  # noqa: PTH113  names need not be UTF-8
        return None
    try:
        return _content(name, most, reading.trust, reading.storage_options, beside=True)
    except (SourceError, BadIndex):  # not there, not for us, or something else: the headers say it, too
        return None


def _most(ranges: Ranges) -> int:
    """Return how many bytes an index may have: about those of the shard, within reason."""
    return min(max(ranges.length, _USUAL), _LARGEST)


def _content(
    name: str | os.PathLike[str], most: int, level: str | None, storage_options: Any, *, beside: bool = False
) -> bytes:
    """Return the bytes of an index file; of one that only lies there, no more than is needed to see that it is none."""
    stream = open_stream(name, level=level, storage_options=storage_options)
    try:
        pieces: list[bytes] = []
        size = 0
        while piece := stream.read(1 << 20):
            if beside and not pieces and not _may_be_index(os.fspath(name), piece):
                raise BadIndex("it starts otherwise")
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise BadIndex(f"an index of more than {most} bytes", url=os.fspath(name))
    finally:
        stream.close()
    return b"".join(pieces)


def _may_be_index(name: str, start: bytes) -> bool:
    """Tell whether a file of some name may be an index, from its first bytes."""
    if name.endswith(".json"):
        return start[:1] == b"{"
    return (start[:3] == b"v1.") != name.endswith(".tar.idx")


def _loaded(url: str, ranges: Ranges, content: bytes, name: Any, reading: Reading, *, as_listed: bool) -> ShardIndex:
    if content[:1] == b"{":
        sidecar = files_json.loads(content, url=name)
        check_size(url, sidecar.size_bytes, ranges)
        return from_rows(url, ranges, sidecar.rows, reading)
    if content[:3] == b"v1.":
        return from_dali(url, ranges, dali.loads(content, url=name), reading, as_listed=as_listed)
    if not content or len(content) % 8:
        raise BadIndex("neither a DALI index, nor an energon index, nor a files-JSON", url=name)
    return from_offsets(url, ranges, energon.loads(content, url=name), reading)


def check_spec(index: Any) -> None:
    """Raise unless something can be an index.

    Args:
        index: as for :func:`index_of`.

    Raises:
        UsageError: it cannot.
    """
    if index is not None and index is not False and not isinstance(index, ShardIndex | str | os.PathLike):
        raise UsageError(f"index={index!r}: pass a ShardIndex, the name of an index file, False or None")
