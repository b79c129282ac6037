"""Memory for batches: blocks that are leased and used again, the layout of columns in them, workers' progress pages.

Theory. New memory is slow: the system clears each page at its first touch, which takes longer than writing a batch into
warm memory. A block is therefore leased: arrays over it refer to a *lease*, and when the last of them is gone (batch,
view, tensor, JAX array alike) the block is free again. A program that keeps its batches keeps their memory and gets
new blocks. A layout says which fields are arrays of one shape and where their columns stand; every worker makes the
same numpy views of a block from it. Other fields travel beside the block. Nothing is copied here.

No block is ever written to while an array over it lives.
"""

import contextlib
import ctypes
import math
import mmap
import os
import struct
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from webdataset.core.optional_imports import loaded_module

# on Windows, memory without a file is private, and takes no flags
_PRIVATE: dict[str, int] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
Array = npt.NDArray[np.generic]
Note = TypeVar("Note")


class MemoryBlock:
    """A block of memory that can be lent, once at a time.

    Args:
        number: names it between processes.
        memory: an anonymous or shared map, which lives as long as any array over it.
    """

    def __init__(self, number: int, memory: mmap.mmap) -> None:
        self.number = number
        self.memory = memory
        # a kernel without huge pages
        with contextlib.suppress(OSError, AttributeError):
            # one address translation for 2 MB in place of 512
            memory.madvise(mmap.MADV_HUGEPAGE)
        self.size_bytes = len(memory)

    def lend(self, loans: "Leases[Note] | None" = None, note: Note | None = None) -> npt.NDArray[np.uint8]:
        """Return a uint8 array over the block."""
        # Arrays made of the array below refer to the lease, not to each other: it lives exactly as long as the last of
        # them. So a block is lent once at a time, and a dead lease says that the block may be written to.
        lease = (ctypes.c_ubyte * self.size_bytes).from_buffer(self.memory)
        if loans is not None and note is not None:
            loans.add(lease, note)
        whole: npt.NDArray[np.uint8] = np.frombuffer(lease, np.uint8)  # type: ignore[call-overload]  # not in its list
        return whole


class _Lease(weakref.ref["ctypes.Array[ctypes.c_ubyte]"], Generic[Note]):
    """A weak reference that dies when a block is back, with a note on it."""

    __slots__ = ("note",)

    note: Note


class Leases(Generic[Note]):
    """Blocks that are lent, and those of them that are back."""

    def __init__(self) -> None:
        # Every lease is in `_lent` until it was reported: a weak reference that is not kept calls nothing.
        self._lent: dict[int, _Lease[Note]] = {}
        # `deque.append` is the callback itself: it is atomic in any thread, and runs no Python in which an interrupt
        # could be lost.
        self._back: deque[_Lease[Note]] = deque()

    def add(self, lease: "ctypes.Array[ctypes.c_ubyte]", note: Note) -> None:
        """Take note of a loan.

        Args:
            lease: goes with the last array over the block.
            note: anything but None.
        """
        loan: _Lease[Note] = _Lease(lease, self._back.append)
        loan.note = note
        self._lent[id(loan)] = loan

    def back(self) -> Note | None:
        """Return the note on a lease that ended and was not reported yet; None where there is none."""
        # most often
        if not self._back:
            return None
        try:
            loan = self._back.pop()
        except IndexError:  # another thread was faster
            return None
        return self._lent.pop(id(loan)).note


class BlockPool:
    """Blocks of one size, made when none is free.

    Args:
        size_bytes: of each.
        make: from a number to a block; None for private memory.
        most: how many there may be before batches are copied out of them; None for no limit.
    """

    def __init__(
        self, size_bytes: int, make: Callable[[int], MemoryBlock] | None = None, *, most: int | None = None
    ) -> None:
        self.size_bytes = size_bytes
        self.made = 0
        self.most = most
        self._make = make or self._private
        # Blocks to which no array, no worker and no lease refers. Other threads may append while one takes.
        self._free: deque[MemoryBlock] = deque()

    @property
    def scarce(self) -> bool:
        """True where about as many blocks are in use as there may be."""
        return self.most is not None and self.made >= self.most and len(self._free) < self.most // 2

    def take(self) -> MemoryBlock:
        """Return a block that is not in use."""
        try:
            # the one used last: its pages are warm
            return self._free.pop()
        except IndexError:
            self.made += 1
            return self._make(self.made - 1)

    def give_back(self, block: MemoryBlock) -> None:
        """Let a block be used again."""
        self._free.append(block)

    def _private(self, number: int) -> MemoryBlock:
        return MemoryBlock(number, mmap.mmap(-1, max(self.size_bytes, 1), **_PRIVATE))


def create_shared_file(size_bytes: int) -> int:
    """Return the descriptor of a new memory file that has no name, so that nothing can be left over.

    Raises:
        OSError: no memory.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("webdataset", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        descriptor, path = tempfile.mkstemp(prefix="webdataset-")
        os.unlink(path)  # noqa: PTH108  before anything can happen
    os.ftruncate(descriptor, max(size_bytes, 1))
    return descriptor


_ALIGNMENT = 64


@dataclass(frozen=True)
class BatchColumn:
    """One field's column: an array ``dtype[rows, *shape]``."""

    place: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    offset: int
    tensor: bool = False


@dataclass(frozen=True)
class BatchLayout:
    """The memory of a batch.

    Args:
        kind: ``dict``, ``tuple`` or ``bare``: what samples are.
        keys: the fields' keys in order (a tuple's are its indices, a bare value's is 0).
        columns: those fields that have a column.
        rows: rows of each column.
        size_bytes: of the block.
    """

    kind: str
    keys: tuple[object, ...]
    columns: tuple[BatchColumn, ...]
    rows: int
    size_bytes: int

    def views(self, memory: npt.NDArray[np.uint8]) -> list[Array]:
        """Return the columns as arrays over a block.

        Args:
            memory: a writable uint8 array of at least ``size_bytes``.
        """
        found: list[Array] = []
        for column in self.columns:
            count = self.rows * math.prod(column.shape)
            stop = column.offset + count * column.dtype.itemsize
            view = memory[column.offset : stop].view(column.dtype)
            found.append(view.reshape((self.rows, *column.shape)))
        return found

    def values(self, sample: object) -> Sequence[object] | None:
        """Return a sample's fields in the order of ``keys``, or None where it has others."""
        if self.kind == "dict":
            if type(sample) is not dict or len(sample) != len(self.keys):
                return None
            try:
                return [sample[key] for key in self.keys]
            except KeyError:
                return None
        if self.kind == "tuple":
            if not isinstance(sample, tuple | list) or len(sample) != len(self.keys):
                return None
            return sample if type(sample) is tuple else tuple(sample)
        return None if isinstance(sample, dict | tuple | list) else (sample,)


def place_columns(kind: str, keys: tuple[object, ...], columns: Sequence[BatchColumn], rows: int) -> BatchLayout | None:
    """Return the layout of some columns, one after the other; None where there are none, or they are empty.

    Args:
        kind: what samples are.
        keys: the fields' keys.
        columns: whose offsets are to be chosen.
        rows: of each.
    """
    placed = []
    offset = 0
    for column in columns:
        placed.append(replace(column, offset=offset))
        size = rows * math.prod(column.shape) * column.dtype.itemsize
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    return BatchLayout(kind, keys, tuple(placed), rows, offset) if offset else None


def as_array(value: object) -> Array | None:
    """Return a value as an array that a column can hold, without a copy; None where it is none.

    Args:
        value: a numpy array, or a torch tensor on the CPU of a type that numpy has.
    """
    if type(value) is np.ndarray:
        kind = value.dtype
        # stacking makes foreign byte orders native; a column would not
        return None if kind.hasobject or kind.fields or not kind.isnative else value
    torch = loaded_module("torch")
    if torch is not None and type(value) is torch.Tensor:
        from webdataset.codecs.torch_codecs import tensor_to_array  # noqa: PLC0415  torch is loaded already, this module not

        return tensor_to_array(value)  # type: ignore[arg-type]  # it is a tensor
    return None


# of one worker's part of the page, of a key and of a url there
PAGE_BYTES = 1024
_KEY_BYTES, _URL_BYTES = 200, 800
# index, bytes of the key, bytes of the url, the key; the url follows
_HEAD = struct.Struct("qHH200s")


class WorkerProgressPage:
    """What one worker read last, in a page of shared memory; it can be read after the process has died.

    Written once a sample, without a system call: by the native core, where a sample is a usual one.

    Args:
        memory: uint8 array over the page.
        number: the worker's.

    Attributes:
        memory: that it is written to.
        url: that stands there, as it was given.
        look_again: until then, by ``time.monotonic()``, the worker need not look for orders.
    """

    def __init__(self, memory: npt.NDArray[np.uint8], number: int) -> None:
        self.memory = memory.data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
        self.url: object = b""
        self.look_again = 0.0
        self._url_bytes = 0

    def write(self, index: int, sample: object, reading: bytes) -> None:
        """Note a sample.

        Args:
            index: its index.
            sample: any; key and url are known where it is a dictionary that has them.
            reading: url of the shard, for other samples.
        """
        if type(sample) is dict:
            named = sample.get("__key__")
            if type(named) is str and sample.get("__url__") is self.url:
                # the usual sample: the url stands there. A key that is too long, or no UTF-8, is seen to below
                try:
                    key = named.encode()
                    _HEAD.pack_into(self.memory, 0, index + 1, len(key), self._url_bytes, key)
                except (UnicodeEncodeError, struct.error):
                    pass
                else:
                    return
        self._write_any(index, sample, reading)

    def _write_any(self, index: int, sample: object, reading: bytes) -> None:
        key, url = b"", cast("object", reading)
        if type(sample) is dict:
            named = sample.get("__key__", "")
            key = (named if type(named) is str else str(named)).encode("utf-8", "replace")[:_KEY_BYTES]
            url = sample.get("__url__") or reading
        if url is not self.url:
            self._write_url(url)
        _HEAD.pack_into(self.memory, 0, index + 1, len(key), self._url_bytes, key)

    def _write_url(self, url: object) -> None:
        shown = (url if isinstance(url, bytes) else str(url).encode("utf-8", "replace"))[:_URL_BYTES]
        self.memory[_HEAD.size : _HEAD.size + len(shown)] = shown
        self.url, self._url_bytes = url, len(shown)

    def load(self) -> tuple[int | None, str, str]:
        """Return index, key and url of the sample noted last; None and nothing before the first."""
        index, count, url, key = _HEAD.unpack_from(self.memory, 0)
        shown = key[:count].decode("utf-8", "replace")
        where = bytes(self.memory[_HEAD.size : _HEAD.size + url]).decode("utf-8", "replace")
        return (index - 1 if index else None), shown, where
