"""Memory for batches that is used again as soon as nobody looks at it any more.

Theory. New memory is slow: the system clears each page when it is first touched, which takes longer than writing a
batch into warm memory. A block is therefore lent: arrays over it refer to a *lease*, and when the last of them is gone
(batch, view of a batch, tensor, JAX array alike) the block is back. A program that keeps its batches keeps their
memory, and gets new blocks. What notices that a lease is gone runs none of Python's code: an interrupt from the
keyboard that came within it would be lost.

Flows in: sizes. Flows out: blocks. No block is ever written to while an array over it lives.
"""

import contextlib
import ctypes
import mmap
import os
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np


class Block:
    """A block of memory that can be lent, once at a time.

    Args:
        number: names it between processes.
        memory: an anonymous or shared map, which lives as long as any array over it.
    """

    def __init__(self, number: int, memory: mmap.mmap) -> None:
        self.number = number
        self.memory = memory
        with contextlib.suppress(OSError, AttributeError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)  # one address translation for 2 MB in place of 512
        self.size_bytes = len(memory)

    def lend(self, loans: "Loans | None" = None, note: Any = None) -> Any:
        """Return a uint8 array over the block.

        Args:
            loans: learns when the last array over it is gone.
            note: what is to be known then.
        """
        lease = (ctypes.c_ubyte * self.size_bytes).from_buffer(self.memory)
        if loans is not None:
            loans.add(lease, note)
        return np.frombuffer(lease, np.uint8)  # type: ignore[call-overload]  # a buffer, though not in its list


class _Loan(weakref.ref[Any]):
    """Dead when a block is back; what is to be known then."""

    __slots__ = ("note",)

    note: Any


class Loans:
    """Blocks that are lent, and those of them that are back."""

    def __init__(self) -> None:
        self._lent: dict[int, _Loan] = {}  # a weak reference that is not kept tells nobody anything
        self._back: deque[_Loan] = deque()  # appended to in any thread

    def add(self, lease: Any, note: Any) -> None:
        """Take note of a loan.

        Args:
            lease: goes with the last array over the block.
            note: anything but None.
        """
        loan = _Loan(lease, self._back.append)
        loan.note = note
        self._lent[id(loan)] = loan

    def back(self) -> Any:
        """Return the note on the loan that ended last and was not told of yet; None where there is none."""
        try:
            loan = self._back.pop()
        except IndexError:
            return None
        return self._lent.pop(id(loan)).note


class Blocks:
    """Blocks of one size, made when none is free.

    Args:
        size_bytes: of each.
        make: from a number to a block; None for private memory.
        most: how many there may be before batches are copied out of them; None for no limit.
    """

    def __init__(self, size_bytes: int, make: Callable[[int], Block] | None = None, *, most: int | None = None) -> None:
        self.size_bytes = size_bytes
        self.made = 0
        self.most = most
        self._make = make or self._private
        self._free: deque[Block] = deque()  # appended to by finalizers, in any thread

    @property
    def scarce(self) -> bool:
        """True where about as many blocks are in use as there may be."""
        return self.most is not None and self.made >= self.most and len(self._free) < self.most // 2

    def take(self) -> Block:
        """Return a block that nobody uses."""
        try:
            return self._free.pop()  # the warmest
        except IndexError:
            self.made += 1
            return self._make(self.made - 1)

    def give_back(self, block: Block) -> None:
        """Let a block be used again."""
        self._free.append(block)

    def _private(self, number: int) -> Block:
        return Block(number, mmap.mmap(-1, max(self.size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def shared_file(size_bytes: int) -> int:
    """Return the descriptor of a new file in memory that has no name, so that nothing can be left behind.

    Args:
        size_bytes: of the file.

    Raises:
        OSError: no memory.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("webdataset", os.MFD_CLOEXEC)
    else:
        descriptor, path = tempfile.mkstemp(prefix="webdataset-")
        os.unlink(path)  # noqa: PTH108  before anything can happen
    os.ftruncate(descriptor, max(size_bytes, 1))
    return descriptor
