"""Index files for shards that are there already, written beside them.

Flows in: urls of shards and the formats wanted. Flows out: index files, each complete under its name or not there.
Every shard is read once, whatever the number of formats; only headers are read, unless a format holds digests.
"""

import contextlib
import json
import os
from collections.abc import Iterable
from typing import Any, Literal

from webdataset.ground.errors import SourceError, UsageError
from webdataset.samples.reading import Reading
from webdataset.shards.wids.document import WidsShard, document_of
from webdataset.sources.ranges import local_path

from .building import index_shards, reading_of, shard_urls
from .entries import ShardIndex
from .formats import dali
from .formats.energon_dataset import EnergonDatasetWriter
from .formats.table import SHARD_FORMATS, check_rules, formats_of, hashes_of, refuse_to_replace

WIDS_NAME = "shardindex.json"


def publish(path: str, content: bytes) -> None:
    """Write a file that appears under its name when it is complete.

    Args:
        path: the file.
        content: what it holds.

    Raises:
        SourceError: it cannot be written.
    """
    partial = prepare(path, content)
    try:
        os.replace(partial, path)  # noqa: PTH105  bytes of names stay
    except OSError as error:
        discard(partial)
        raise SourceError(f"cannot complete: {error.strerror}", url=path) from error


def prepare(path: str, content: bytes) -> str:
    """Write a file under a partial name beside its final one, and bring it to the disk.

    Args:
        path: the final name.
        content: what it holds.

    Returns:
        The partial name.

    Raises:
        SourceError: it cannot be written.
    """
    folder, name = os.path.split(path)
    partial = os.path.join(folder, f".{name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.partial")  # noqa: PTH118
    try:
        with open(partial, "xb") as stream:  # noqa: PTH123  bytes of names stay
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        discard(partial)
        raise SourceError(f"cannot write: {error.strerror}", url=path) from error
    return partial


def discard(path: str) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108  bytes of names stay


def write_indexes(
    shards: Any,
    formats: str | Iterable[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    unfit: Literal["error", "omit"] = "error",
    threads: int = 4,
    reading: Reading | None = None,
    **rules: Any,
) -> list[str]:
    """Write index files for shards.

    Args:
        shards: as ``WebDataset`` takes them; see :func:`webdataset.index.building.shard_urls`.
        formats: ``dali``, ``energon``, ``files``, ``wids``, or several.
        folder: where to put them; None is beside each shard, and beside the first for files about all of them.
            ``wids`` is one ``shardindex.json``; ``energon`` writes the folder ``.nv-meta`` besides.
        unfit: what a DALI index does about components that it cannot hold: ``error``, or ``omit`` with a warning.
        threads: shards read at the same time.
        reading: the rules of reading.
        **rules: fields of :class:`~webdataset.samples.reading.Reading` in place of ``reading``.

    Returns:
        The names of the files written.

    Raises:
        NotRepresentable: samples that a format cannot hold.
        AlreadyExists: a file that is no index has the name of one.
        UsageError: an unknown format, remote shards without ``folder``, or shards that would share an index.
        WebDatasetError: a shard that cannot be indexed.
    """
    names = formats_of(formats)
    reading = reading_of(reading, rules)
    urls = [os.fsdecode(url) for url in shard_urls(shards, reading.storage_options)]
    check_rules(names, reading)
    if not names or not urls:
        raise UsageError("write_indexes needs at least one shard and one format")
    targets = [_target(url, folder) for url in urls]
    _check_targets(targets, names)
    root = os.path.dirname(targets[0]) or "."  # noqa: PTH120
    energon = EnergonDatasetWriter(root) if "energon" in names else None
    written: list[str] = []
    listed: list[WidsShard] = []
    try:
        found = index_shards(urls, threads=threads, hashes=hashes_of(names), reading=reading)
        for index, target in zip(found, targets, strict=True):
            written += _write_one(index, target, names, unfit)
            relative = os.path.relpath(target, root)
            if energon is not None:
                energon.add(relative, index)
            url = relative if local_path(index.url) is not None else index.url
            listed.append(WidsShard(url, len(index), index.size_bytes, index.md5))
        if energon is not None:
            written += energon.close()
    finally:
        if energon is not None:
            energon.abort()
    if "wids" in names:
        written.append(write_wids(root, listed))
    return written


def _target(url: str, folder: str | os.PathLike[str] | None) -> str:
    """Return the path that a shard has, or would have, beside its index."""
    path = local_path(url)
    if folder is not None:
        return os.path.join(os.fspath(folder), os.path.basename(path or url.partition("?")[0]))  # noqa: PTH118, PTH119
    if path is None:
        raise UsageError("indexes cannot be written beside a remote shard: pass folder=", url=url)
    return path


def _check_targets(targets: list[str], names: Iterable[str]) -> None:
    """Raise before anything is read where an index would replace another shard's, or a file that is no index."""
    for known in (SHARD_FORMATS[name] for name in names if name in SHARD_FORMATS):
        seen: set[str] = set()
        for path in map(known.index_name, targets):
            if path in seen:
                raise UsageError("two of the shards would have this one index: give each a folder of its own", url=path)
            seen.add(path)
            refuse_to_replace(known, path)


def _write_one(index: ShardIndex, target: str, names: Iterable[str], unfit: Literal["error", "omit"]) -> list[str]:
    written = []
    for name in names:
        known = SHARD_FORMATS.get(name)
        if known is not None:
            content = dali.dumps(index, unfit=unfit) if name == "dali" else known.dumps(index)
            path = known.index_name(target)
            publish(path, content)
            written.append(path)
    return written


def write_wids(folder: str, shards: Iterable[WidsShard], name: str = WIDS_NAME) -> str:
    """Write a wids index of some shards.

    Args:
        folder: where.
        shards: with urls relative to the folder, or whole.
        name: of the file.

    Returns:
        Its path.
    """
    path = os.path.join(folder, name)  # noqa: PTH118
    publish(path, json.dumps(document_of(shards), indent=2).encode())
    return path
