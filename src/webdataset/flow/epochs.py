"""Chooses the seed of a run, and numbers epochs across worker processes that live for one epoch only.

Theory. torch's DataLoader starts new workers for each epoch (unless they are persistent), each with a copy of a
dataset that was never iterated: a count kept in the dataset is lost, and a seeded one would give one order forever.
Workers that are forked share a page of memory with their parent, in which each worker number counts its epochs.
Workers that are spawned get the dataset by pickle, once for each worker and epoch: the parent counts the pickles.

Counts only where the program does not name the epoch with ``set_epoch``.
"""

import contextlib
import mmap
import os
import struct
import weakref
from typing import Any, Protocol

from webdataset.core import settings
from webdataset.core.distributed import TorchWorker, is_spawning, worker_context, worker_info
from webdataset.core.seeds import hash_seed, random_seed


def choose_seeds(seed: int | None) -> tuple[int, int]:
    """Return the seed of a run, and the seed that all ranks and workers of the job have in common.

    Returns:
        ``seed`` twice where there is one (``WDS_SEED`` counts). Otherwise fresh entropy: within a torch DataLoader, the
        seed that torch drew for all workers of this epoch; across ranks, one derived from the job's name (torchrun,
        SLURM, PMIx), or a constant, since ranks that draw different orders before splitting shards would lose some and
        repeat others.
    """
    if seed is None:
        seed = settings.SEED.get()
    if seed is not None:
        return seed, seed
    info = worker_info()
    own = info.seed - info.id if info is not None else random_seed()
    if worker_context().world_size == 1:
        return own, own
    job = settings.RUN_ID.get() or settings.SLURM_JOB_ID.get() or settings.PMIX_NAMESPACE.get()
    return own, hash_seed("job", job)


_SLOT = struct.Struct("q")


class EpochCounter:
    """The epochs of one dataset, by worker.

    Args:
        travelled: how often the dataset had been sent to a worker when this copy was.
        first: number of the first epoch, where it is not 0: that of a state which was loaded.
        resumed: a state was loaded; after its last item workers continue with the next epoch.
        further: whether the first ones did, as the workers of all epochs share it.
    """

    def __init__(
        self,
        travelled: int | None = None,
        first: int = 0,
        *,
        resumed: bool = False,
        further: "ContinuedEpochFlag | ContinuedEpochFile | None" = None,
    ) -> None:
        self._first = first
        self._resumed = resumed
        self._further = further
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
            rounds = (self._arrived or 0) // int(info.num_workers)
            return rounds + own + (rounds > 0 and bool(self._further))
        (count,) = _SLOT.unpack_from(self._page, _slot_offset(info))
        _SLOT.pack_into(self._page, _slot_offset(info), count + 1)
        return self._first + int(count)

    @property
    def began(self) -> bool:
        """True where workers have begun an epoch, or are on their way to."""
        return self._sent > 0 or (self._page is not None and any(self._page[:]))

    def record_epoch(self, epoch: int, *, further: bool) -> None:
        """Take note, in a worker, which epoch comes next: it was told which one it is in.

        Args:
            epoch: number of the next epoch, which is also the dataset's own count by now.
            further: nothing was left of the epoch of a state, and the one after it was begun in its place.
        """
        info = worker_info()
        if info is None:
            return
        if further and self._further is not None:
            self._further.tell()
        if self._page is None:
            self._arrived = 0
        else:
            _SLOT.pack_into(self._page, _slot_offset(info), epoch - self._first)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel with the number of travels before, if this is a journey to a new process."""
        if not is_spawning():
            return EpochCounter, ()
        self._sent += 1
        if self._resumed and self._further is None:
            self._further = ContinuedEpochFile() if os.name == "nt" else ContinuedEpochFlag()
        return _restore_counter, (self._sent - 1, self._further)


def _restore_counter(travelled: int, further: "ContinuedEpochFlag | ContinuedEpochFile | None") -> EpochCounter:
    return EpochCounter(travelled, further=further)


class DupFd(Protocol):
    """A descriptor on its way to another process, as ``multiprocessing`` sends it."""

    def detach(self) -> int:
        """Return the descriptor in this process."""


class ContinuedEpochFlag:
    """Whether workers that were spawned after a state continued with the next epoch, told to those of later epochs.

    Args:
        descriptor: of a file that they share; None makes one that has no name.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            import tempfile  # noqa: PLC0415  only after a state, and where workers are spawned

            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        self._descriptor = descriptor

    def __bool__(self) -> bool:
        return bool(os.pread(self._descriptor, 1, 0))

    def tell(self) -> None:
        """Take note that they did."""
        os.pwrite(self._descriptor, b"1", 0)

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing import reduction  # noqa: PLC0415  only where a process is being started

        return _restore_flag, (reduction.DupFd(self._descriptor),)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._descriptor)


def _restore_flag(descriptor: "DupFd") -> ContinuedEpochFlag:
    return ContinuedEpochFlag(descriptor.detach())


class ContinuedEpochFile:
    """A :class:`ContinuedEpochFlag` for Windows, where processes cannot send descriptors.

    It is a file, which is removed with the object that made it.

    Args:
        path: of the file; None makes one.
    """

    def __init__(self, path: str | None = None) -> None:
        if path is None:
            import tempfile  # noqa: PLC0415  as above

            descriptor, path = tempfile.mkstemp(prefix="webdataset-")
            os.close(descriptor)
            weakref.finalize(self, _remove_file, path, os.getpid())
        self._path = path

    def __bool__(self) -> bool:
        return os.path.getsize(self._path) > 0  # noqa: PTH202

    def tell(self) -> None:
        """Take note that they did."""
        with open(self._path, "ab") as file:  # noqa: PTH123
            file.write(b"1")

    def __reduce__(self) -> "tuple[type[ContinuedEpochFile], tuple[str]]":
        return ContinuedEpochFile, (self._path,)


def _remove_file(path: str, process: int) -> None:
    """Remove a file, in the process that made it."""
    if process == os.getpid():
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108


def _slot_offset(info: TorchWorker) -> int:
    """Return where in the page a worker counts."""
    return int(info.id) % (mmap.PAGESIZE // _SLOT.size) * _SLOT.size
