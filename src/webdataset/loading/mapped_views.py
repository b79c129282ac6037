"""Sends views of mapped shards from a worker process: by file, offset and length, and without their bytes.

Theory. The worker opens the file again when a view of it is sent first, compares it with the one that it has mapped,
and sends the descriptor; the consumer maps that file, whatever its name leads to by then, and compares its size and
time. So a file that was replaced or removed meanwhile changes nothing, and one that was written to is an error, never
other bytes. Views of few bytes, of other memory, and of files that cannot be opened again are sent as bytes.

The consumer's map is let go once the worker's is, and no view of it is left. Where the consumer keeps views of so many
shards that no more can be mapped, it keeps the descriptor for as long, and reads the bytes.
"""

import mmap
import os
import pickle
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from webdataset.core.errors import ShardChanged, SourceError, describe_error
from webdataset.loading.message_pipe import MessagePipe
from webdataset.samples.mapped_shard import MappedFile, find_mapped_file, map_file, pickle_view
from webdataset.samples.native_core import load_native

if TYPE_CHECKING:
    from typing_extensions import Buffer

# below, bytes are copied as fast as pages of the map are touched
LEAST_BYTES = 1 << 13
# of a worker; each costs the consumer a descriptor
_MOST_MAPS = 24

T = TypeVar("T")
Reference: TypeAlias = tuple[int, int, int]
"""Which map, the offset in it, the length."""
# how many views of a part stand among its buffers; then for each its place, and what stands for it
_COUNT = struct.Struct("<I")
_VIEW = struct.Struct("<IIQQ")


def is_plain_view(view: memoryview) -> bool:
    """Tell whether a view is a run of bytes, and worth to be sent as a part of a file."""
    return view.nbytes >= LEAST_BYTES and view.format == "B" and view.ndim == 1 and view.contiguous and view.readonly


def reduce_view(view: memoryview) -> tuple[Callable[..., object], tuple[object, ...]]:
    """Return how a view is pickled for another process: a large one as a buffer beside the rest."""
    if is_plain_view(view):
        return open_view, (pickle.PickleBuffer(view),)
    return pickle_view(view)


def open_view(buffer: "Buffer") -> memoryview:
    """Return a read-only view of a buffer that came from another process."""
    view = memoryview(buffer)
    return view if view.readonly else view.toreadonly()


class _UnmappedFile:
    """A file that the consumer cannot map: bytes of it are read.

    Args:
        descriptor: of the file; it is closed here.
        file: which one it is.
    """

    def __init__(self, descriptor: int, file: MappedFile) -> None:
        self._descriptor, self._file = descriptor, file

    def __del__(self) -> None:
        os.close(self._descriptor)

    def __getitem__(self, part: slice) -> memoryview:
        """Return bytes of the file.

        Raises:
            ShardChanged: the file was written to.
            SourceError: it cannot be read.
        """
        left, pieces = part.stop - part.start, []
        try:
            while left and (piece := os.pread(self._descriptor, left, part.stop - left)):
                pieces.append(piece)
                left -= len(piece)
        except OSError as error:
            raise SourceError(f"a field cannot be read ({describe_error(error)})", url=self._file.path) from error
        self._file.identity.check(self._descriptor, self._file.path)
        if left:
            raise ShardChanged("the file ends before a field that was in it: read it again", url=self._file.path)
        return memoryview(b"".join(pieces))


def find_address(buffer: memoryview | mmap.mmap) -> int:
    """Return where the bytes of a buffer begin in memory."""
    place: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return place


# in a tenth of the time
_find_address: Callable[[memoryview | mmap.mmap], int] = getattr(load_native()[0], "find_address", find_address)


class ViewSender:
    """The worker's side.

    Args:
        pipe: to the consumer.
    """

    def __init__(self, pipe: MessagePipe) -> None:
        self._pipe = pipe
        # number, and its address here; a map that was let go has lost its entry
        self._maps: weakref.WeakKeyDictionary[mmap.mmap, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._refused: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._announced: set[int] = set()
        self._next = 0

    def refer_to(self, buffers: list[pickle.PickleBuffer], payloads: list[bytes | memoryview]) -> bytes | None:
        """Send the files of views of mapped shards; return what stands for the views, None without any.

        It is sent with the part that they belong to.

        Args:
            buffers: of the part; views that are sent so are taken out.
            payloads: likewise.

        Raises:
            OSError: the consumer is gone.
        """
        found = self._take_views(buffers, [memoryview(buffer).obj for buffer in buffers])
        beside = self._take_views(payloads, payloads)
        if not found and not beside:
            return None
        views = [_VIEW.pack(place, *reference) for place, reference in chain(found, beside)]
        return _COUNT.pack(len(found)) + b"".join(views)

    def _take_views(self, values: list[T], views: Sequence[object]) -> list[tuple[int, Reference]]:
        """Take values out of a list that are views of mapped files; return their places, and what stands for them."""
        found: list[tuple[int, Reference]] = []
        others: list[T] = []
        # most are of the same shard
        owner, known = None, None
        for place, (value, view) in enumerate(zip(values, views, strict=True)):
            if type(view) is memoryview and view.obj is not owner:
                owner = view.obj
                known = self._find_map(view, owner) if isinstance(owner, mmap.mmap) else None
            if type(view) is not memoryview or known is None:
                others.append(value)
            else:
                found.append((place, (known[0], _find_address(view) - known[1], view.nbytes)))
        if found:
            values[:] = others
        return found

    def _find_map(self, view: memoryview, owner: mmap.mmap) -> tuple[int, int] | None:
        """Return number and address of a view's map, and send its file first; None where it is sent as bytes."""
        return self._maps.get(owner) or self._announce(owner, view)

    def _announce(self, owner: mmap.mmap, view: memoryview) -> tuple[int, int] | None:
        file = find_mapped_file(view)
        if file is None or owner in self._refused:
            return None
        gone = self._announced.difference(number for number, _ in self._maps.values())
        for number in gone:
            self._pipe.send(pickle.dumps(("unmap", number)))
        self._announced -= gone
        if len(self._announced) >= _MOST_MAPS or not self._send_file(file):
            self._refused.add(owner)
            return None
        known = self._maps[owner] = self._next, _find_address(memoryview(owner))
        self._announced.add(self._next)
        self._next += 1
        return known

    def _send_file(self, file: MappedFile) -> bool:
        """Send a file under the next number; tell whether it is the one that is mapped here."""
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if not file.is_same(os.fstat(descriptor)):
                return False
            self._pipe.send(pickle.dumps(("map", self._next, file)))
            self._pipe.send_descriptor(descriptor)
        finally:
            os.close(descriptor)
        return True


class ViewReceiver:
    """The consumer's side.

    Args:
        pipe: to the worker.

    Attributes:
        awaited: number and file of a map whose descriptor has not come yet, or None.
    """

    def __init__(self, pipe: MessagePipe) -> None:
        self._pipe = pipe
        self._maps: dict[int, memoryview | _UnmappedFile] = {}
        self.awaited: tuple[int, MappedFile] | None = None
        # of the part that comes next: of its buffers, and of its payloads
        self._views: Sequence[list[tuple[int, memoryview]]] = ()

    def take(self, kind: str, values: tuple[object, ...]) -> None:
        """Take a message: ``map`` or ``unmap``.

        Raises:
            ShardChanged: a file was written to.
            SourceError: it cannot be read.
            SharedMemoryError: this process can have no more descriptors.
        """
        if kind == "map":
            self.awaited = values  # type: ignore[assignment]  # as it was sent
            self.receive_file()
        else:
            self._maps.pop(values[0], None)  # type: ignore[call-overload]

    def take_views(self, references: bytes) -> None:
        """Take what stands for the views of a part; raises as :meth:`take`."""
        (count,), maps = _COUNT.unpack_from(references), self._maps
        views = [
            (place, maps[number][offset : offset + length])
            for place, number, offset, length in _VIEW.iter_unpack(references[_COUNT.size :])
        ]
        self._views = views[:count], views[count:]

    def receive_file(self) -> None:
        """Receive the descriptor that is awaited, if it has come, and map its file; raises as :meth:`take`."""
        if self.awaited is None:
            return
        number, file = self.awaited
        descriptor = self._pipe.receive_descriptor_in_time()
        if descriptor is None:
            return
        self.awaited = None
        unmapped = _UnmappedFile(descriptor, file)
        view = map_file(descriptor, file.path)
        if not file.is_same(os.fstat(descriptor)) or (view is not None and find_mapped_file(view) != file):
            file.identity.check(descriptor, file.path)
            raise ShardChanged("the file was written to while it was being read: read it again", url=file.path)
        self._maps[number] = unmapped if view is None else view

    def insert_views(
        self, buffers: Sequence[object], payloads: "Iterator[bytes | memoryview]"
    ) -> tuple[Sequence[object], "Iterator[bytes | memoryview]"]:
        """Return what belongs to a part, with the views that were sent before it.

        Args:
            buffers: those that were sent with their bytes.
            payloads: likewise.
        """
        if not self._views:
            return buffers, payloads
        (found, beside), self._views = self._views, ()
        return list(_merge_views(iter(buffers), found)), _merge_views(payloads, beside)


def _merge_views(values: Iterator[T], views: list[tuple[int, memoryview]]) -> Iterator[T | memoryview]:
    """Yield values, and views each at its place."""
    number = 0
    for place, view in views:
        while number < place:
            yield next(values)
            number += 1
        yield view
        number += 1
    yield from values
