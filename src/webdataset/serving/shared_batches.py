"""Batches in sealed memory files: described once by the process that makes them, mapped by those that receive them.

Theory. Arrays that lie in a loader's block (a memory file) are named by block and offset; no byte is copied. Arrays
that lie elsewhere, and texts and bytes (offsets and their joined bytes), are copied once into a block of this module.
All else must be a small JSON value. A receiver maps each file once, privately: what a trainer writes in place is seen
by it alone. A page that was written to would hide the block's later content; so a block whose pages may differ is
reset before it is given back (``PAGEMAP_SCAN`` tells; where a kernel has not got that, each block is reset).

Receivers check all of a description before they use it: types, bounds, seals. Nothing is unpickled.
"""

import bisect
import ctypes
import functools
import itertools
import json
import math
import mmap
import os
import re
import struct
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from webdataset.core.errors import EncodingError
from webdataset.loading.columns import wrap_array
from webdataset.loading.shared_memory import Array, BlockPool, Leases, MemoryBlock, as_array, create_shared_file
from webdataset.serving.unix_channel import SEALS, ChannelError, check_memory_file
from webdataset.stages.base import Json

# SharedLoader says that it needs Linux
if sys.platform != "win32":
    import fcntl

Node = dict[str, Json]

_ALIGNMENT = 64
_LEAST_BYTES = 1 << 16
_MOST_DEPTH = 16
_MOST_DIMENSIONS = 32
_MOST_BLOCK_BYTES = 1 << 40
_DTYPE = re.compile(r"[<>|]([biufc](1|2|4|8|16)|[SU]\d{1,6})\Z")
# characters of a list of texts that needs no memory of its own
_INLINE_LENGTH = 1 << 12
# of a value that is neither array, text nor bytes
_MOST_JSON_BYTES = 1 << 20


class _BlockTable:
    """Which blocks there are. It refers to none: what a finaliser refers to lives as long as the block."""

    def __init__(self) -> None:
        # start address to number and size; the sorted starts
        self.blocks: dict[int, tuple[int, int]] = {}
        self.starts: list[int] = []
        self.descriptors: dict[int, int] = {}
        self.gone: list[int] = []

    def remove(self, start: int, number: int, process: int) -> None:
        """Forget a block whose map is gone, and close its file; a forked child changes nothing."""
        if os.getpid() != process or number not in self.descriptors:
            return
        os.close(self.descriptors.pop(number))
        self.gone.append(number)
        del self.blocks[start]
        self.starts.remove(start)


class SharedBlocks:
    """The blocks of the process that makes batches, by address."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._table = _BlockTable()
        self._sealed: set[int] = set()
        self._pools: dict[int, BlockPool] = {}
        self._leases: Leases[tuple[BlockPool, MemoryBlock]] = Leases()

    def publish(self, block: MemoryBlock, descriptor: int) -> None:
        """Take note of a block, and keep a descriptor of its file for as long as it is mapped here."""
        start, table = _address(block.memory), self._table
        number = next(self._numbers)
        table.descriptors[number] = os.dup(descriptor)
        table.blocks[start] = number, block.size_bytes
        bisect.insort(table.starts, start)
        weakref.finalize(block.memory, table.remove, start, number, os.getpid())

    def close(self) -> None:
        """Close all descriptors, and forget the blocks; arrays keep theirs."""
        for start, (number, _) in list(self._table.blocks.items()):
            self._table.remove(start, number, os.getpid())
        self._pools.clear()
        self._leases = Leases()

    def take_removals(self) -> list[int]:
        """Return the numbers of blocks that are gone since this was asked last."""
        gone, self._table.gone = self._table.gone, []
        return gone

    def file(self, number: int) -> tuple[int, int]:
        """Return descriptor and size of a block's file, which from now on only the maps that there are can change."""
        descriptor = self._table.descriptors[number]
        if number not in self._sealed:
            # Workers that write into the block mapped it before it came here.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            self._sealed.add(number)
        return descriptor, os.fstat(descriptor).st_size

    def find(self, array: Array) -> tuple[int, int] | None:
        """Return block and offset of an array's memory, or None where it is in no block."""
        if not array.flags.c_contiguous or not array.nbytes:
            return None
        start = array.__array_interface__["data"][0]
        starts = self._table.starts
        place = bisect.bisect_right(starts, start) - 1
        if place < 0:
            return None
        base = starts[place]
        number, size = self._table.blocks[base]
        return (number, start - base) if start + array.nbytes <= base + size else None

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """Return an array over a block of at least so many bytes that no receiver refers to."""
        while (back := self._leases.back()) is not None:
            back[0].give_back(back[1])
        size = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        pool = self._pools.get(size)
        if pool is None:
            pool = self._pools[size] = BlockPool(size, lambda number: self._make(number, size))
        block = pool.take()
        return block.lend(self._leases, (pool, block))

    def _make(self, number: int, size: int) -> MemoryBlock:
        descriptor = create_shared_file(size)
        try:
            block = MemoryBlock(number, mmap.mmap(descriptor, size))
            self.publish(block, descriptor)
        finally:
            os.close(descriptor)
        return block


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@dataclass
class EncodedBatch:
    """A batch as a message.

    Args:
        node: its description; arrays are ``[place in blocks, offset]``.
        blocks: numbers of the blocks that it lies in.
        keep: what must not be forgotten while a receiver refers to the batch.
    """

    node: Node
    blocks: list[int] = field(default_factory=list)
    keep: list[object] = field(default_factory=list)


class _Encoder:
    """Describes one batch."""

    def __init__(self, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        self._copies: list[tuple[list[int], int, Json]] = []
        self._size = 0
        self.encoded = EncodedBatch({})

    def encode(self, batch: object) -> EncodedBatch:
        """Return it as a message."""
        encoded = self.encoded
        encoded.node = self._node(batch, "", 0)
        encoded.keep.append(batch)
        if self._copies:
            memory = self._blocks.take(self._size)
            found = self._blocks.find(memory)
            if found is None:
                raise ChannelError("a block of this process is not known to it")
            place = self._place(found[0])
            for where, offset, content in self._copies:
                if isinstance(content, np.ndarray):
                    np.copyto(
                        memory[offset : offset + content.nbytes].view(content.dtype).reshape(content.shape), content
                    )
                else:
                    memory[offset : offset + len(content)] = np.frombuffer(content, np.uint8)
                where[:] = [place, offset]
            encoded.keep.append(memory)
        return encoded

    def _place(self, number: int) -> int:
        blocks = self.encoded.blocks
        if number not in blocks:
            blocks.append(number)
        return blocks.index(number)

    def _copy(self, size: int, content: object) -> list[int]:
        where: list[int] = []
        if size:
            self._copies.append((where, self._size, content))
            self._size += -(-size // _ALIGNMENT) * _ALIGNMENT
        return where

    def _node(self, value: object, name: str, depth: int) -> Node:
        if depth > _MOST_DEPTH:
            raise _refuse(value, name, "it is nested too deeply")
        kind = type(value)
        if kind is dict:
            return self._dictionary(value, name, depth)  # type: ignore[arg-type]  # it is one
        if isinstance(value, np.generic):
            return {"k": "scalar", **self._array(np.asarray(value), name)}
        array = as_array(value)
        if array is None and kind is np.ndarray:
            array = value  # type: ignore[assignment]  # it is one
        if array is not None:
            return {"k": "array" if array is value else "tensor", **self._array(array, name)}
        if kind is str or kind is bytes:
            return {"k": "one", "v": self._texts((value,), name)}
        if kind is list or kind is tuple:
            return self._sequence(value, name, depth)  # type: ignore[arg-type]  # it is one
        return {"k": "json", "v": _plain(value, name)}

    def _dictionary(self, value: dict[Json, Json], name: str, depth: int) -> Node:
        for key in value:
            if type(key) not in (str, int, bool, type(None)):
                raise _refuse(key, name, "it is the key of a dictionary")
        entries = [
            [key, self._node(each, f"{name}.{key}" if name else str(key), depth + 1)] for key, each in value.items()
        ]
        return {"k": "dict", "v": entries}

    def _sequence(self, value: "list[Json] | tuple[Json, ...]", name: str, depth: int) -> Node:
        kind = type(value).__name__
        kinds = set(map(type, value))
        if kinds == {str} and sum(map(len, value)) <= _INLINE_LENGTH:
            return {"k": kind, "j": list(value)}
        if kinds in ({str}, {bytes}):
            return {"k": kind, "t": self._texts(value, name)}
        if kinds <= {int, float, bool, type(None)}:
            return {"k": kind, "j": _plain(list(value), name)}
        return {"k": kind, "v": [self._node(each, f"{name}[{n}]", depth + 1) for n, each in enumerate(value)]}

    def _texts(self, values: "list[str] | list[bytes] | tuple[Json, ...]", name: str) -> Node:
        text = type(values[0]) is str
        contents = [each.encode("utf-8", "surrogatepass") if isinstance(each, str) else each for each in values]
        stops = np.cumsum([len(each) for each in contents], dtype=np.int64)
        return {
            "s": text,
            "o": self._array(stops, name),
            "b": self._array(np.frombuffer(b"".join(contents), np.uint8), name),
        }

    def _array(self, array: Array, name: str) -> Node:
        if not _DTYPE.match(array.dtype.str):
            raise _refuse(array, name, f"its dtype is {array.dtype}")
        found = self._blocks.find(array)
        where = self._copy(array.nbytes, array) if found is None else [self._place(found[0]), found[1]]
        return {"d": array.dtype.str, "n": list(array.shape), "w": where}


def _plain(value: object, name: str) -> object:
    kind = type(value)
    if value is None or kind in (bool, int, float):
        return value
    try:
        text = json.dumps(value) if kind is list else ""
    except (TypeError, ValueError) as error:
        raise _refuse(value, name, "it has no JSON form") from error
    if not text or len(text) > _MOST_JSON_BYTES:
        raise _refuse(value, name, "it is too long a list" if text else "it is no array, text, bytes or JSON value")
    return value


def _refuse(value: object, name: str, reason: str) -> EncodingError:
    return EncodingError(
        f"values of type {type(value).__name__} cannot be shared between trainers: {reason}. Decode it to an array, a "
        "text or a number before the loader, or take the field out (map, rename(..., keep=False))",
        field=name or None,
    )


def encode_batch(batch: object, blocks: SharedBlocks) -> EncodedBatch:
    """Describe a batch, and copy those of its parts that lie in no block.

    Raises:
        EncodingError: a value that cannot be described; the error names the field.
    """
    return _Encoder(blocks).encode(batch)


class MappedBlock:
    """A block of another process, mapped privately.

    Args:
        descriptor: of its file, which the caller closes.
        size: of the file.

    Raises:
        ChannelError: it is no sealed memory file of this size.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        if type(size) is not int or not 0 < size <= _MOST_BLOCK_BYTES:
            raise ChannelError("a block came without a size")
        check_memory_file(descriptor, size)
        self.block = MemoryBlock(0, mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
        self.live = 0

    def reset(self, pagemap: int | None) -> None:
        """Drop the pages that were written to here, which would hide the block's next content.

        Args:
            pagemap: descriptor of this process's page map; None where there is none.
        """
        memory = self.block.memory
        if pagemap is None or _has_private_pages(pagemap, _address(memory), len(memory)):
            memory.madvise(mmap.MADV_DONTNEED)


# struct pm_scan_arg of the kernel's fs.h, and PAGEMAP_SCAN, since Linux 6.7
_SCAN_ARGUMENT = struct.Struct("12Q")
_PAGEMAP_SCAN = 3 << 30 | _SCAN_ARGUMENT.size << 16 | ord("f") << 8 | 16
_IS_FILE, _IS_PRESENT, _IS_SWAPPED = 1 << 2, 1 << 3, 1 << 4


def _open_pagemap() -> int | None:
    try:
        return os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _has_private_pages(pagemap: int, start: int, size: int) -> bool:
    """Tell whether a private map has pages of its own; True where the kernel does not tell."""
    regions = ctypes.create_string_buffer(24)
    stop = start + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    argument = bytearray(
        _SCAN_ARGUMENT.pack(
            _SCAN_ARGUMENT.size, 0, start, stop, 0, ctypes.addressof(regions), 1, 1,
            _IS_FILE, _IS_FILE, _IS_PRESENT | _IS_SWAPPED, _IS_FILE,
        )
    )  # fmt: skip
    try:
        return bool(fcntl.ioctl(pagemap, _PAGEMAP_SCAN, argument))
    except OSError:
        return True


class ReceivedBatches:
    """The receiver's side: its maps of blocks, and which batches it refers to.

    Args:
        writable: arrays may be written to.
    """

    def __init__(self, *, writable: bool) -> None:
        self._writable = writable
        self._blocks: dict[int, MappedBlock] = {}
        self._leases: Leases[tuple[int, MappedBlock]] = Leases()
        self._open: dict[int, int] = {}
        # of this process: a forked child gives nothing back
        self._pagemap: int | None = None
        self._ending: weakref.finalize[[int], ReceivedBatches] | None = None

    def map_block(self, number: object, size: int, descriptor: int) -> None:
        """Map a block."""
        if type(number) is not int:
            raise ChannelError("a block came without a number")
        if self._ending is None and (pagemap := _open_pagemap()) is not None:
            self._pagemap, self._ending = pagemap, weakref.finalize(self, os.close, pagemap)
        self._blocks[number] = MappedBlock(descriptor, size)

    def forget_blocks(self, numbers: object) -> None:
        """Drop the maps of blocks that are gone; arrays keep theirs."""
        for number in numbers if type(numbers) is list else ():
            self._blocks.pop(number, None)

    def close(self) -> None:
        """Drop all maps; arrays keep theirs."""
        self._blocks.clear()
        self._open.clear()
        self._leases = Leases()
        if self._ending is not None:
            self._ending()
        self._pagemap = self._ending = None

    def decode(self, sequence: int, node: object, numbers: object) -> object:
        """Return a batch.

        Args:
            sequence: its number, which :meth:`returned` gives when nothing refers to it any more.
            node: its description.
            numbers: of its blocks.

        Raises:
            ChannelError: the description is wrong.
        """
        if type(numbers) is not list or any(type(each) is not int or each not in self._blocks for each in numbers):
            raise ChannelError("a batch names a block that did not come")
        memories = []
        self._open[sequence] = len(numbers)
        for number in numbers:
            mapped = self._blocks[number]
            mapped.live += 1
            memories.append(mapped.block.lend(self._leases, (sequence, mapped)))
        try:
            return _Decoder(memories, writable=self._writable).value(node, 0)
        except (TypeError, KeyError, IndexError, ValueError, AttributeError, OverflowError) as error:
            raise ChannelError(f"a batch is described wrongly ({type(error).__name__}: {error})") from error

    def collect_returns(self) -> Iterator[int]:
        """Yield the numbers of batches that nothing refers to any more; their memory may be written to from then on."""
        for sequence in [sequence for sequence, count in self._open.items() if not count]:
            del self._open[sequence]
            yield sequence
        while (back := self._leases.back()) is not None:
            sequence, mapped = back
            mapped.live -= 1
            if not mapped.live:
                mapped.reset(self._pagemap)
            self._open[sequence] -= 1
            if not self._open[sequence]:
                del self._open[sequence]
                yield sequence


@functools.lru_cache(256)
def _parse_dtype(text: str) -> np.dtype[np.generic]:
    if not _DTYPE.match(text):
        raise ValueError("dtype")
    return np.dtype(text)


class _Decoder:
    """Makes one batch of its description."""

    def __init__(self, memories: list[npt.NDArray[np.uint8]], *, writable: bool) -> None:
        self._memories = memories
        self._writable = writable

    def value(self, node: Json, depth: int) -> object:
        """Return the value of a node."""
        if depth > _MOST_DEPTH:
            raise ValueError("too deep")
        kind = node["k"]
        if kind == "dict":
            return {key: self.value(each, depth + 1) for key, each in node["v"]}
        if kind == "list":
            return self._sequence(node, depth)
        if kind == "tuple":
            return tuple(self._sequence(node, depth))
        if kind == "one":
            return self._texts(node["v"])[0]
        return node["v"] if kind == "json" else self._single(node, kind)

    def _single(self, node: Node, kind: str) -> object:
        array = self._array(node, tensor=kind == "tensor")
        if kind == "tensor":
            return wrap_array(array, tensor=True)
        if kind == "scalar":
            return array[()]
        if kind != "array":
            raise ValueError("kind")
        return array

    def _sequence(self, node: Node, depth: int) -> list[Json]:
        if "t" in node:
            return self._texts(node["t"])
        if "j" in node:
            return list(node["j"])
        return [self.value(each, depth + 1) for each in node["v"]]

    def _texts(self, node: Node) -> list[Json]:
        stops = self._array(node["o"]).tolist()
        blob = self._array(node["b"]).tobytes()
        starts = [0, *stops[:-1]]
        if any(not 0 <= start <= stop <= len(blob) for start, stop in zip(starts, stops, strict=True)):
            raise ValueError("texts out of their bounds")
        parts = [blob[start:stop] for start, stop in zip(starts, stops, strict=True)]
        return [each.decode("utf-8", "surrogatepass") for each in parts] if node["s"] else parts

    def _array(self, node: Node, *, tensor: bool = False) -> Array:
        dtype, shape, where = _parse_dtype(node["d"]), tuple(node["n"]), node["w"]
        if len(shape) > _MOST_DIMENSIONS or any(type(each) is not int or each < 0 for each in shape):
            raise ValueError("shape")
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        place, offset = where
        if type(place) is not int or type(offset) is not int or place < 0 or offset < 0:
            raise ValueError("place")
        memory = self._memories[place]
        if offset + size > len(memory):
            raise ValueError("an array beyond its block")
        array = memory[offset : offset + size].view(dtype).reshape(shape)
        # torch has no read-only tensors; what is written is private anyway
        array.flags.writeable = self._writable or tensor
        return array
