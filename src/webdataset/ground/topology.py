"""Which rank and which worker this process is, and which virtual stream runs in it at the moment.

Flows in: the environment, torch.distributed and torch's worker information where torch is loaded already.
Flows out: (rank, world_size, worker, num_workers). Never imports torch.

A virtual stream is a run that does not depend on who owns it: while one runs, ``place`` says 0 of 1 to everybody, so
that splitters pass everything on; the stream's own share is taken right before its shards are read.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from . import environment, settings
from .extras import loaded


class Place(NamedTuple):
    """Where this process stands in the job."""

    rank: int
    world_size: int
    worker: int
    num_workers: int


ALONE = Place(0, 1, 0, 1)


class Stream(NamedTuple):
    """One of the virtual streams of an elastic dataset."""

    number: int
    of: int


class _Standing(threading.local):
    """What runs in this thread at the moment."""

    stream: Stream | None = None
    worker: tuple[int, int] | None = None  # of a loader of ours: number, count


standing = _Standing()


@contextmanager
def within(stream: Stream) -> Iterator[None]:
    """Run the block as a part of a virtual stream.

    Args:
        stream: which one.
    """
    before = standing.stream
    standing.stream = stream
    try:
        yield
    finally:
        standing.stream = before


class Switch:
    """What a program has put in the place of ``utils.pytorch_worker_info``."""

    replaced: Callable[..., tuple[int, int, int, int]] | None = None


switch = Switch()


def place(group: Any = None) -> Place:
    """Return rank, world size, worker and number of workers of this process, as the program says where it does.

    Args:
        group: a torch.distributed process group, or None for the default one.

    Returns:
        What :func:`physical` says; 0 of 1 within a virtual stream.
    """
    return physical(group) if standing.stream is None else ALONE


def physical(group: Any = None) -> Place:
    """Return rank, world size, worker and number of workers of this process, within a virtual stream too.

    Args:
        group: a torch.distributed process group, or None for the default one.
    """
    return _looked_up(group) if switch.replaced is None else Place(*switch.replaced(group=group))


def alone() -> bool:
    """Tell whether this process is the only worker of the only rank, so that it sees all of a pass."""
    where = physical()
    return where.world_size * where.num_workers == 1


def found(group: Any = None) -> Place:
    """Return rank, world size, worker and number of workers of this process.

    Args:
        group: a torch.distributed process group, or None for the default one.

    Returns:
        What :mod:`webdataset.ground.environment` finds out about the rank; ``WORKER``/``NUM_WORKERS`` from the
        environment first, else torch's DataLoader worker, else 0 of 1. Within a virtual stream, 0 of 1.
    """
    return _looked_up(group) if standing.stream is None else ALONE


def only_launched(group: Any = None) -> bool:
    """Tell whether only a launcher (MPI, SLURM) says that there are several ranks: they may know nothing of each other.

    Args:
        group: a torch.distributed process group, or None for the default one.
    """
    return switch.replaced is None and environment.rank(group).launcher


def _looked_up(group: Any) -> Place:
    said = environment.rank(group)
    return Place(said.rank, said.world_size, *_worker())


def _worker() -> tuple[int, int]:
    if standing.worker is not None:
        return standing.worker
    worker, num_workers = settings.WORKER.get(), settings.NUM_WORKERS.get()
    if worker is not None and num_workers is not None:
        return worker, num_workers
    info = worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)


def worker_info() -> Any:
    """Return torch's information on this DataLoader worker, or None outside of one."""
    data = loaded("torch.utils.data")
    return data.get_worker_info() if data is not None else None
