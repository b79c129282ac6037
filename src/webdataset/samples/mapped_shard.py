"""Reads local shards by a map of the file: samples get read-only memoryviews of it in place of copied bytes.

Theory. Headers are read by system calls, and payloads are not read at all: a field is a part of one memoryview of the
whole file, and the memory of the process is not touched. So no header is ever taken from a file that has changed, and a
file that is cut meanwhile is seen here as everywhere else. The operating system ends a process that touches a mapped
page after the end of its file; only a program that uses a view of a file that was cut does that.

A map is let go with the last view of it. A shard that cannot be mapped (compressed, piped, not complete in the cache)
is read as usual, and its fields become memoryviews of copied bytes: programs meet one type. So is each shard while
views of very many others are kept: maps take at most half of the descriptors that the process may have, and half of
the maps that Linux allows it, since the rest of the program needs both.
"""

import copyreg
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from webdataset.core.process_limits import find_file_limits
from webdataset.samples.address import Address
from webdataset.samples.grouping import Shard
from webdataset.samples.native_core import NativeTaker
from webdataset.samples.reading_rules import TarReadingRules
from webdataset.samples.seekable_source import can_seek
from webdataset.samples.shard_reader import ShardReader
from webdataset.storage.local_files import LocalFileStream
from webdataset.storage.streams import FileIdentity, file_identity
from webdataset.tar.member_assembly import Member

T = TypeVar("T")


class MappedFile(NamedTuple):
    """Which file a map is of.

    Args:
        path: its name, as it was opened.
        device: the file system that it lies on.
        inode: its number there.
        identity: its bytes, and when it was last changed.
    """

    path: str
    device: int
    inode: int
    identity: FileIdentity

    def is_same(self, status: os.stat_result) -> bool:
        """Tell whether an open file is this one, and was not written to."""
        found = status.st_dev, status.st_ino, file_identity(status)
        return found == (self.device, self.inode, self.identity)


# of all maps of this process that are in use
_files: "weakref.WeakKeyDictionary[mmap.mmap, MappedFile]" = weakref.WeakKeyDictionary()
# a map that keeps no descriptor of its own: since Python 3.13, on Windows since 3.15
_OPTIONS = {"trackfd": False} if sys.version_info >= ((3, 15) if os.name == "nt" else (3, 13)) else {}
# half of vm.max_map_count, as Linux has it by default; without maps there is no memory and no thread either
_MOST_MAPS = 32_000


class _FileSource:
    """An open file whose headers the native core reads.

    Args:
        descriptor: of the file.
        file: which one it is.
    """

    def __init__(self, descriptor: int, file: MappedFile) -> None:
        self._descriptor, self._path = descriptor, file.path
        self.identity = file.identity

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def check_identity(self) -> None:
        """Raise where the file was written to.

        Raises:
            ShardChanged: it was.
        """
        self.identity.check(self._descriptor, self._path)


def _has_room() -> bool:
    """Tell whether one more map leaves the program what it needs for everything else."""
    used = len(_files)
    return used < _MOST_MAPS and ("trackfd" in _OPTIONS or used < (find_file_limits()[0] or 2 * _MOST_MAPS) // 2)


def map_file(descriptor: int, path: str) -> memoryview | None:
    """Return a read-only memoryview of a whole file; None where it cannot be mapped, or too many others are.

    Args:
        descriptor: of the file; it may be closed then.
        path: its name.
    """
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not status.st_size or not _has_room():
            return None
        mapped = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ, **_OPTIONS)
    except (OSError, ValueError):  # too many descriptors or maps, or the file was cut
        return None
    _files[mapped] = MappedFile(path, status.st_dev, status.st_ino, file_identity(status))
    return memoryview(mapped)


def has_mapped_files() -> bool:
    """Tell whether any file is mapped here."""
    return bool(_files)


def find_mapped_file(view: memoryview) -> MappedFile | None:
    """Return which file a view is of; None for a view of other memory."""
    owner = view.obj
    return _files.get(owner) if isinstance(owner, mmap.mmap) else None


def pickle_view(view: memoryview) -> tuple[Callable[..., memoryview], tuple[object, ...]]:
    """Return how a view is pickled: as a memoryview of its bytes."""
    if view.format == "B" and view.ndim == 1:
        return memoryview, (view.tobytes(),)
    return shape_view, (view.tobytes(), view.format, view.shape)


def shape_view(content: bytes, form: str, shape: tuple[int, ...]) -> memoryview:
    """Return a view of bytes as of numbers of a format, in a shape."""
    shaped: memoryview = memoryview(content).cast(form, shape)  # type: ignore[call-overload]  # as a view had them
    return shaped


# of copied bytes, too: a program has one type, whether or not any file can be mapped
copyreg.pickle(memoryview, pickle_view)


class MappedShardReader(ShardReader):
    """One shard being read, by a map where it can be mapped.

    Args:
        shard: as for :class:`ShardReader`.
        reading: how to read.
        start: address of the sample to start at.

    Attributes:
        is_mapped: the fields of samples are memoryviews of the file.
    """

    is_mapped = False

    def __init__(self, shard: Shard, reading: TarReadingRules, start: Address | None = None) -> None:
        super().__init__(shard, reading, start)
        self._source: _FileSource | None = None

    def _map(self) -> memoryview | None:
        """Map the file, if this reads all of it plainly; tell the scanner and the taker."""
        # an observer sees all bytes
        if self._watch is not None or not can_seek(self.stream):
            return None
        try:
            descriptor = self.stream.fileno()
        except (AttributeError, OSError, ValueError):
            return None
        view = map_file(descriptor, str(getattr(self.stream, "name", self.url)))
        file = None if view is None else find_mapped_file(view)
        if view is None or file is None:
            return None
        opened = getattr(self.stream, "identity", None)
        if type(self.stream) is LocalFileStream and opened != file.identity:
            return None
        self._source = _FileSource(descriptor, file)
        self.scanner.map(view)
        if isinstance(self.scanner.taker, NativeTaker):
            self.scanner.taker.read_from(self._source, view)
        self.is_mapped = True
        return view

    def _plain(self, pieces: list[bytes]) -> Iterator[bytes]:
        scanner = self.scanner
        view = None if self._start > scanner.offset else self._map()
        if view is None or self._source is None:
            yield from super()._plain(pieces)
            return
        while pieces[0]:
            yield pieces.pop()
            scanner.skip_to(len(view))
            if scanner.offset == len(view):
                self._source.check_identity()
                return
            self.stream.seek(scanner.offset)
            pieces.append(self._read(scanner.want))

    def member_lists(self) -> Iterator[list[Member]]:
        """Yield lists of members; those that were collected have memoryviews of their bytes."""
        for members in super().member_lists():
            yield self._view_payloads(members)

    def resolve(self, members: list[Member]) -> Iterator[list[Member]]:
        """Yield members with those that hard links lead to, in several lists."""
        for some in super().resolve(members):
            yield self._view_payloads(some)

    def _view_payloads(self, members: list[Member]) -> list[Member]:
        if not self.is_mapped:
            return members
        return [(name, memoryview(payload), offset) for name, payload, offset in members]  # type: ignore[misc]  # see Member


def view_lists(lists: Iterator[tuple[list[T], list[int]]], reader: object) -> Iterator[tuple[list[T], list[int]]]:
    """Yield lists of samples whose fields are memoryviews, whatever they were read by.

    Args:
        lists: samples, and where they start.
        reader: what reads them.
    """
    for samples, offsets in lists:
        if not getattr(reader, "is_mapped", False):
            view_fields(samples)
        yield samples, offsets
        del samples


def view_fields(samples: Iterable[object]) -> None:
    """Put memoryviews in the place of the bytes of samples.

    Args:
        samples: changed in place.
    """
    for sample in samples:
        if type(sample) is dict:
            for name, value in sample.items():
                if type(value) is bytes:
                    sample[name] = memoryview(value)
