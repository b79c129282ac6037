"""Numbering epochs over worker processes that live for one epoch only.

Theory. torch's DataLoader starts new workers for each epoch (unless they are persistent), each with a copy of a dataset
that was never iterated: a count kept in the dataset is lost, and a seeded one would give one order for ever. Workers
that are forked share a page of memory with their parent, in which each worker number counts its epochs. Workers that
are spawned get the dataset by pickle, once for each worker and epoch: the parent counts the pickles.

Flows in: the start of an iteration. Flows out: its epoch. Only counts where nobody says the epoch (``set_epoch``).
"""

import mmap
import struct
from typing import Any

from webdataset.ground.environment import spawning
from webdataset.ground.topology import worker_info

_SLOT = struct.Struct("q")


class EpochCount:
    """The epochs of one dataset, by worker.

    Args:
        travelled: how often the dataset had been sent to a worker when this copy was.
        first: number of the first epoch, where it is not 0: that of a state which was loaded.
    """

    def __init__(self, travelled: int | None = None, first: int = 0) -> None:
        self._first = first
        self._arrived = travelled
        self._sent = 0
        self._page: mmap.mmap | None = None if travelled is not None else mmap.mmap(-1, mmap.PAGESIZE)

    def epoch(self, own: int) -> int:
        """Return the number of the epoch that begins.

        Args:
            own: the dataset's own count, which holds outside of DataLoader workers.
        """
        info = worker_info()
        if info is None:
            return own
        if self._page is None:
            return (self._arrived or 0) // int(info.num_workers) + own
        (count,) = _SLOT.unpack_from(self._page, _place(info))
        _SLOT.pack_into(self._page, _place(info), count + 1)
        return self._first + int(count)

    def reached(self, epoch: int) -> None:
        """Take note, in a worker, which epoch comes next: it was told which one it is in.

        Args:
            epoch: number of the next epoch, which is also the dataset's own count by now.
        """
        info = worker_info()
        if info is None:
            return
        if self._page is None:
            self._arrived = 0
        else:
            _SLOT.pack_into(self._page, _place(info), epoch - self._first)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel with the number of travels before, if this is a journey to a new process."""
        if not spawning():
            return EpochCount, ()
        self._sent += 1
        return EpochCount, (self._sent - 1,)


def _place(info: Any) -> int:
    """Return where in the page a worker counts."""
    return int(info.id) % (mmap.PAGESIZE // _SLOT.size) * _SLOT.size
