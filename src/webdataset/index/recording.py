"""Indexes made while shards are read for another purpose, such as the first epoch of a training.

Flows in: the bytes that the stream reader reads anyway. Flows out: index files, or indexes handed to a function, for
each shard that was read from its start to its end without fault. The reader pays for it only where it is asked for.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.samples.links import random_access
from webdataset.samples.reading import Reading
from webdataset.sources.ranges import local_path

from .builder import IndexBuilder
from .entries import ShardIndex
from .formats.table import SHARD_FORMATS, ShardFormat, check_rules, formats_of, refuse_to_replace
from .publishing import publish


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
    then: Callable[[ShardIndex], Any] | None = None

    def __post_init__(self) -> None:
        names = formats_of(self.formats)
        object.__setattr__(self, "formats", names)
        if "wids" in names or not (names or self.then):
            raise UsageError(
                "an observer writes dali, energon or files: pass formats= or then=; a wids index is about all shards "
                "of a dataset, so collect the indexes with then=, or call write_indexes(shards, 'wids')"
            )

    def __call__(self, url: str, reading: Reading) -> "ShardRecorder":
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
        return ShardRecorder(url, reading, self._done)

    def _targets(self, url: str) -> list[tuple[ShardFormat, str]]:
        """Return the index files of a shard."""
        target = local_path(url) or url.partition("?")[0]
        if self.folder is not None:
            target = os.path.join(os.fspath(self.folder), os.path.basename(target))  # noqa: PTH118, PTH119
        return [(known, known.index_name(target)) for known in map(SHARD_FORMATS.__getitem__, self.formats)]

    def _done(self, index: ShardIndex) -> None:
        for known, target in self._targets(index.url):
            publish(target, known.dumps(index))
        if self.then is not None:
            self.then(index)


class ShardRecorder:
    """Looks on while one shard is read.

    Args:
        url: the shard.
        reading: the rules by which it is read.
        done: called with its index.
    """

    def __init__(self, url: str, reading: Reading, done: Callable[[ShardIndex], None]) -> None:
        # what the reader steps over, the index leaves out, too; it has been handled once and is not told twice
        quiet = dataclasses.replace(reading, handler=_step_over, missing_end="ignore", observer=None)
        self._builder: IndexBuilder = IndexBuilder(url, quiet, lambda: random_access(url, reading))
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
