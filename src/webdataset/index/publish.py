"""Writes index files beside shards: for shards that exist, or while shards are read for another purpose.

Every shard is read once, whatever the number of formats; only its headers, unless a format holds digests. While the
stream reader reads a shard anyway (the first epoch of a training, say), its bytes are enough: the index is written, or
handed to a function, for each shard that was read from start to end without an error.

Each index file is complete under its name, or not there, also after a power failure.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal

from webdataset.core.durable_files import replace_and_sync, write_and_sync
from webdataset.core.errors import SourceError, UsageError
from webdataset.index.build import IndexBuilder, choose_reading, index_shards, shard_urls
from webdataset.index.entries import ShardIndex
from webdataset.index.formats import dali
from webdataset.index.formats.energon import EnergonDatasetWriter
from webdataset.index.formats.table import (
    SHARD_FORMATS,
    ShardFormat,
    check_rules,
    parse_formats,
    refuse_to_replace,
    select_hashes,
)
from webdataset.samples.links import open_random_access
from webdataset.samples.sample_reader import Reading
from webdataset.shards.wids_index import WidsShard, make_document
from webdataset.storage.open_url import local_path

WIDS_NAME = "shardindex.json"


def publish_file(path: str, content: bytes) -> None:
    """Write a file that appears under its name when it is complete.

    Raises:
        SourceError: it cannot be written.
    """
    partial = prepare_file(path, content)
    try:
        replace_and_sync(partial, path)
    except OSError as error:
        # why it is given up matters more
        with contextlib.suppress(SourceError):
            remove_file(partial)
        raise SourceError(f"cannot complete: {error.strerror}", url=path) from error


def prepare_file(path: str, content: bytes) -> str:
    """Write a file to the disk under a partial name beside its final one; return the partial name.

    Raises:
        SourceError: it cannot be written.
    """
    folder, name = os.path.split(path)
    partial = os.path.join(folder, f".{name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.partial")  # noqa: PTH118
    try:
        write_and_sync(partial, content)
    except OSError as error:
        raise SourceError(f"cannot write: {error.strerror}", url=path) from error
    return partial


def remove_file(path: str) -> None:
    """Remove a file, if it is there.

    Raises:
        SourceError: the system refuses.
    """
    try:
        os.unlink(path)  # noqa: PTH108  bytes of names stay
    except FileNotFoundError:
        pass
    except OSError as error:
        raise SourceError(f"cannot remove: {error.strerror}", url=path) from error


def write_indexes(
    shards: object,
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
        shards: as ``WebDataset`` takes them; see :func:`webdataset.index.build.shard_urls`.
        formats: ``dali``, ``energon``, ``files``, ``wids``, or several.
        folder: where to put them; None is beside each shard, and beside the first for files about all of them.
            ``wids`` is one ``shardindex.json``; ``energon`` writes the folder ``.nv-meta`` besides.
        unfit: what a DALI index does about components that it cannot hold: ``error``, or ``omit`` with a warning.
        threads: shards read at the same time.
        reading: the rules of reading.
        **rules: fields of :class:`~webdataset.samples.sample_reader.Reading` in place of ``reading``.

    Returns:
        The names of the files written.

    Raises:
        NotRepresentable: samples that a format cannot hold.
        AlreadyExists: a file that is no index has the name of one.
        UsageError: an unknown format, remote shards without ``folder``, or shards that would share an index.
        WebDatasetError: a shard that cannot be indexed.
    """
    names = parse_formats(formats)
    reading = choose_reading("write_indexes", reading, rules)
    urls = [os.fsdecode(url) for url in shard_urls(shards, reading.storage_options)]
    check_rules(names, reading)
    if not names or not urls:
        raise UsageError("write_indexes needs at least one shard and one format")
    targets = [_find_target(url, folder) for url in urls]
    _check_targets(targets, names)
    root = os.path.dirname(targets[0]) or "."  # noqa: PTH120
    energon = EnergonDatasetWriter(root) if "energon" in names else None
    written: list[str] = []
    listed: list[WidsShard] = []
    try:
        found = index_shards(urls, threads=threads, hashes=select_hashes(names), reading=reading)
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


def _find_target(url: str, folder: str | os.PathLike[str] | None) -> str:
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
            publish_file(path, content)
            written.append(path)
    return written


def write_wids(folder: str, shards: Iterable[WidsShard], name: str = WIDS_NAME) -> str:
    """Write a wids index of some shards; return its path."""
    path = os.path.join(folder, name)  # noqa: PTH118
    publish_file(path, json.dumps(make_document(shards), indent=2).encode())
    return path


@dataclasses.dataclass(frozen=True)
class IndexWhileReading:
    """An observer for ``WebDataset(urls, observer=...)`` that writes index files for the shards that pass.

    Args:
        formats: ``dali``, ``energon``, ``files`` or several; none with ``then`` alone.
        folder: where to put them, named after the shards, whose last parts must differ; None is beside each shard,
            which must be local.
        then: called with each shard's index. Runs where the shard is read: in a worker, if there are workers.

    Raises:
        UsageError: an unknown format, or nothing to do. A files-JSON written so has no digests of the shard.
    """

    formats: str | Iterable[str] = ()
    folder: str | os.PathLike[str] | None = None
    then: Callable[[ShardIndex], object] | None = None

    def __post_init__(self) -> None:
        names = parse_formats(self.formats)
        object.__setattr__(self, "formats", names)
        if "wids" in names or not (names or self.then):
            raise UsageError(
                "an observer writes dali, energon or files: pass formats= or then=; a wids index is about all shards "
                "of a dataset, so collect the indexes with then=, or call write_indexes(shards, 'wids')"
            )

    def __call__(self, url: str, reading: Reading) -> "ShardIndexRecorder":
        """Begin to observe a shard.

        Args:
            url: the shard.
            reading: the rules by which it is read.

        Raises:
            UsageError: there is no place for the index, or the rules do not suit it.
            AlreadyExists: a file that is no index has its name.
        """
        path = local_path(url, level=reading.trust)
        if self.formats and self.folder is None and path is None:
            raise UsageError("indexes cannot be written beside a remote shard: pass folder=", url=url)
        check_rules(self.formats, reading)
        for known, target in self._targets(url):
            refuse_to_replace(known, target)
        return ShardIndexRecorder(url, reading, self._done)

    def _targets(self, url: str) -> list[tuple[ShardFormat, str]]:
        """Return the index files of a shard."""
        target = local_path(url) or url.partition("?")[0]
        if self.folder is not None:
            target = os.path.join(os.fspath(self.folder), os.path.basename(target))  # noqa: PTH118, PTH119
        return [(known, known.index_name(target)) for known in map(SHARD_FORMATS.__getitem__, self.formats)]

    def _done(self, index: ShardIndex) -> None:
        for known, target in self._targets(index.url):
            publish_file(target, known.dumps(index))
        if self.then is not None:
            self.then(index)


class ShardIndexRecorder:
    """Looks on while one shard is read."""

    def __init__(self, url: str, reading: Reading, done: Callable[[ShardIndex], None]) -> None:
        # what the reader steps over, the index leaves out, too; it has been handled once and is not told twice
        quiet = dataclasses.replace(reading, handler=_step_over, missing_end="ignore", observer=None)
        self._builder: IndexBuilder = IndexBuilder(url, quiet, lambda: open_random_access(url, reading))
        self._builder.quiet = True
        if self._builder.finished is not None:
            self._builder.finished.silent = True
        self._done = done
        self._length = 0
        self._broken = False

    def feed(self, piece: bytes, offset: int) -> None:
        """Take bytes of the tar stream, and where they start."""
        self._length = offset + len(piece)
        if self._broken:
            return
        try:
            self._builder.feed(piece, offset)
        except Exception:  # noqa: BLE001  the reader meets the same fault, and says so
            self._broken = True

    def finish(self, length: int | None, compression: str | None) -> None:
        """Take note that the shard has been read to its end; hand on its index.

        Args:
            length: bytes of the shard as it is stored, or None.
            compression: how it is compressed, or None.
        """
        if self._broken:
            return
        self._done(self._builder.finish(self._length, stored=length, compression=compression))


def _step_over(_error: Exception) -> bool:
    return True
