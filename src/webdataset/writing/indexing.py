"""Makes the indexes of shards in the pass that writes them.

Index files are complete on the disk before the shard gets its name, and get theirs right after it; an old index is
removed before the old shard is. So, however the program ends, no index of another shard stands beside a shard.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from webdataset.core.distributed import worker_context
from webdataset.core.durable_files import replace_and_sync, sync_folder
from webdataset.core.errors import DuplicateField, NotRepresentable, SourceError, UsageError
from webdataset.core.logs import log
from webdataset.index.build import IndexBuilder
from webdataset.index.entries import ShardIndex
from webdataset.index.formats.energon import EnergonDatasetWriter
from webdataset.index.formats.table import SHARD_FORMATS, is_index, parse_formats, refuse_to_replace, select_hashes
from webdataset.index.publish import WIDS_NAME, prepare_file, remove_file, write_wids
from webdataset.samples.grouping import base_plus_ext, is_meta
from webdataset.samples.sample_reader import Reading
from webdataset.shards.wids_index import WidsShard
from webdataset.storage.open_url import local_path
from webdataset.tar.walker import MemberPosition
from webdataset.writing.compression import ArchiveOutput
from webdataset.writing.local_file import Buffer, LocalFileOutput, make_child_error

_COMPRESSED: Final = "offsets into the file are needed, and this shard is compressed: pass compress=False"


class HashingOutput:
    """An output that counts and digests what passes."""

    def __init__(self, output: ArchiveOutput, hashes: Iterable[str]) -> None:
        self._output = output
        self.stream = output.stream
        self._digests = {name: hashlib.new(name, usedforsecurity=False) for name in hashes}
        self.size_bytes = 0
        self.commit, self.abort, self.abandon = output.commit, output.abort, output.abandon

    def write(self, pieces: Sequence[Buffer], size: int) -> None:
        """Write pieces.

        Args:
            pieces: what to write, in order.
            size: sum of their lengths in bytes.
        """
        for digest in self._digests.values():
            for piece in pieces:
                digest.update(piece)
        self.size_bytes += size
        self._output.write(pieces, size)

    def hashes(self) -> dict[str, str]:
        """Return the digests of all that passed."""
        return {name: digest.hexdigest() for name, digest in self._digests.items()}


class ShardIndexing:
    """The index files of one shard that is being written.

    Args:
        path: the shard.
        formats: names of formats.
        output: where the shard's bytes go, as they are stored.
        compression: how they are compressed, or None.

    Raises:
        UsageError: a format that cannot describe a compressed shard.
        AlreadyExists: a file that is no index has the name that an index is to get.
    """

    def __init__(self, path: str, formats: tuple[str, ...], output: ArchiveOutput, compression: str | None) -> None:
        self._path = path
        self._formats = [SHARD_FORMATS[name] for name in formats if name in SHARD_FORMATS]
        for each in self._formats:
            refuse_to_replace(each, each.index_name(path))
        if compression is not None and self._formats:
            raise UsageError(f"index={formats!r}: {_COMPRESSED}", url=path)
        self.output = HashingOutput(output, select_hashes(formats))
        self._compression = compression
        self._builder = IndexBuilder(path, Reading(split_samples="ignore"))
        self._checks: list[Callable[[str], None]] = [each.check_member for each in self._formats if each.check_member]
        self._names: set[str] | None = set() if any(each.unique_names for each in self._formats) else None
        self._key: str | None = None
        self._fields: set[str] = set()
        self._partials: list[tuple[str, str]] = []

    def add(self, names: list[str], pieces: Sequence[Buffer], offset: int) -> None:
        """Take the members of one sample that is about to be written.

        Args:
            names: of the members.
            pieces: header, payload and padding of each member.
            offset: where the first header will stand, in bytes.

        Raises:
            NotRepresentable: a name that a format cannot hold; nothing has been taken.
            DuplicateField: a field that the reader would find twice in a sample; nothing has been taken.
        """
        for name in names:
            for check in self._checks:
                check(name)
            if self._names is not None and name in self._names:
                raise NotRepresentable(
                    "a files-JSON lists members by name, and this name stands twice in the shard", field=name
                )
        self._check_fields(names)
        places = []
        for number, name in enumerate(names):
            head, payload, padding = pieces[3 * number : 3 * number + 3]
            start = offset + len(head)
            places.append(MemberPosition(name, offset, start, len(payload)))
            offset = start + len(payload) + len(padding)
        self._builder.group(places)
        if self._names is not None:
            self._names.update(names)

    def _check_fields(self, names: list[str]) -> None:
        """Raise where a reader would find a field twice: keys with dots, or written in parts."""
        key, fields = self._key, self._fields
        for name in names:
            found, extension = base_plus_ext(name)
            if found is None or extension is None or is_meta(name):
                continue
            field = extension.lower()
            if found != key:
                key, fields = found, set()
            elif field in fields:
                raise DuplicateField(
                    f"{found}.{field} would stand twice in one sample for every reader", key=found, field=field
                )
            fields = {*fields, field}
        self._key, self._fields = key, fields

    def prepare(self, end: int) -> ShardIndex:
        """Write the index files under partial names, remove old ones; return the shard's index.

        Args:
            end: where the shard's end mark starts, in bytes.

        Raises:
            NotRepresentable: a shard that a format cannot hold.
            SourceError: they cannot be written.
        """
        index = self._builder.close(
            end, stored=self.output.size_bytes, compression=self._compression, hashes=self.output.hashes()
        )
        for each in self._formats:
            path = each.index_name(self._path)
            self._partials.append((prepare_file(path, each.dumps(index)), path))
        self.remove_old()
        return index

    def remove_old(self) -> None:
        """Remove the index files of the shard that was here before, of any format; done before it is replaced.

        Raises:
            OSError: the system refuses.
        """
        found = [known.index_name(self._path) for known in SHARD_FORMATS.values()]
        old = [path for known, path in zip(SHARD_FORMATS.values(), found, strict=True) if is_index(known, path)]
        for path in old:
            remove_file(path)
        if old:
            # the shard may be in another folder, to which a link leads
            sync_folder(os.path.dirname(self._path))  # noqa: PTH120

    def publish(self) -> None:
        """Give the index files their names.

        Raises:
            SourceError: the system refuses.
        """
        while self._partials:
            partial, path = self._partials[-1]
            try:
                replace_and_sync(partial, path)
            except OSError as error:
                raise SourceError(f"cannot complete: {error.strerror}", url=path) from error
            self._partials.pop()

    def abort(self) -> None:
        """Remove what was prepared, as far as the system lets it."""
        while self._partials:
            with contextlib.suppress(SourceError):
                remove_file(self._partials.pop()[0])


def shard_indexing(
    index: object, target: str | os.PathLike[str], output: ArchiveOutput, compression: str | None
) -> ShardIndexing:
    """Return the indexing of a shard for what a user asked for.

    Args:
        index: names of formats.
        target: of the writer, as the user named it; indexes are put beside that name, not beside what a link points to.
        output: of the shard.
        compression: how it is compressed, or None.

    Raises:
        UsageError: an unknown format, or a shard that is no local file.
    """
    formats = index if isinstance(index, _SeriesFormats) else parse_formats(index)
    if "wids" in formats and not isinstance(index, _SeriesFormats):
        raise UsageError("a wids index lists the shards of a dataset: pass index='wids' to a ShardWriter")
    path = local_path(target) if isinstance(output, LocalFileOutput) else None
    if path is None or not isinstance(output, LocalFileOutput):
        raise UsageError(
            "index= puts files beside the shard, and this shard is no local file: write to a path, or leave index= out "
            "and call wds.write_indexes(url, formats, folder=...) on the finished shard"
        )
    return ShardIndexing(os.path.abspath(path), formats, output, compression)  # noqa: PTH100  bytes of names stay


class _SeriesFormats(tuple[str, ...]):
    """Formats that a ShardWriter asks for: those about all its shards are its own business."""

    __slots__ = ()


class SeriesIndexing:
    """The index files about a series of shards.

    Attributes:
        formats: to be handed to the writer of each shard.

    Raises:
        UsageError: an unknown format.
    """

    def __init__(self, index: object) -> None:
        self.formats = _SeriesFormats(parse_formats(index))
        here = worker_context()
        self._alone = here.world_size == 1 and here.num_workers == 1
        self._name = WIDS_NAME if self._alone else f"shardindex-{here.rank:05d}-{here.worker:03d}.json"
        self._root: str | None = None
        self._shards: list[WidsShard] = []
        self._energon: EnergonDatasetWriter | None = None
        self._process = os.getpid()

    def add_shard(self, index: ShardIndex) -> None:
        """Take note of a shard that is complete.

        Raises:
            NotRepresentable: a key that stands in another shard, too, and a format forbids it.
        """
        path = index.url
        if self._root is None:
            self._root, self._process = os.path.dirname(path), os.getpid()  # noqa: PTH120
            if "energon" in self.formats and self._alone:
                self._energon = EnergonDatasetWriter(self._root)
        name = os.path.relpath(path, self._root)
        if "wids" in self.formats:
            self._shards.append(WidsShard(name, len(index), index.size_bytes, index.md5))
        if self._energon is not None:
            self._energon.add(name, index)

    def close(self) -> None:
        """Write the files about all shards.

        Raises:
            SourceError: they cannot be written.
            UsageError: a process that inherited the writer closes it.
        """
        if self._root is None:
            return
        if os.getpid() != self._process:
            raise make_child_error(self._root)
        if "wids" in self.formats:
            write_wids(self._root, self._shards, self._name)
        if self._energon is not None:
            self._energon.close()
        elif "energon" in self.formats:
            log.info("several processes write: run write_indexes(shards, 'energon') when all are done to get .nv-meta")

    def abort(self) -> None:
        """Write nothing about the series; completed shards keep their own indexes."""
        if self._energon is not None and os.getpid() == self._process:
            self._energon.abort()
