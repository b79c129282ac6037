"""Detects the rank, world size and worker of this process, and the virtual stream that runs in it.

The first source that knows rank and world size decides:

1. ``WDS_RANK`` and ``WDS_WORLD_SIZE``: the user;
2. ``RANK`` and ``WORLD_SIZE``: torchrun and compatible launchers;
3. torch.distributed, where it is initialised;
4. JAX, where ``jax.distributed`` is initialised; in a spawned worker that has neither, the claim of the parent
   process, which is pickled with the dataset;
5. Open MPI, MVAPICH, then MPICH and Intel MPI (PMI), by the variables of their launchers;
6. SLURM, for the tasks of ``srun``. The shell of ``sbatch`` or ``salloc`` is one process, however many tasks the job
   was granted, and so is a shell that ``srun`` started as its only task.

A virtual stream is a run that does not depend on its owner: while one runs, :func:`worker_context` is 0 of 1, so that
splitters pass every shard; the share of the stream is taken right before its shards are read.

This module never imports torch or JAX: it looks at them only where they are loaded already.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from webdataset.core import settings
from webdataset.core.errors import FlowError, UsageError, describe_error
from webdataset.core.lazy_modules import Override
from webdataset.core.logs import log
from webdataset.core.optional_imports import loaded_module

_SPECIAL_STEPS = 0xFFFFFFF0  # SLURM's own numbers for the steps of batch scripts and interactive shells, and above


class RankClaim(NamedTuple):
    """One source's claim about the rank of this process.

    Args:
        who: says so.
        rank: of the process.
        world_size: number of ranks.
        launcher: the source only started processes: whether they work together is not known.
    """

    who: str
    rank: int
    world_size: int
    launcher: bool = False


NO_CLAIM = RankClaim("none", 0, 1)


def detect_rank(group: object = None) -> RankClaim:
    """Return rank and number of ranks of this process; while a run begins, what it knows.

    Args:
        group: a torch.distributed process group, or None for the default one.

    Raises:
        UsageError: a rank that is not below the number of ranks, or half of a pair of variables of ours.
    """
    run = None if group is not None else thread_context.run
    if run is not None and run.claim is not None:
        return run.claim
    claims = _rank_claims(group)
    first = next(claims, NO_CLAIM)
    if not 0 <= first.rank < first.world_size:
        raise UsageError(
            f"{first.who} say that this is rank {first.rank} of {first.world_size}; ranks are numbered from 0 and "
            "below the number of ranks: set both, or neither"
        )
    if first is not NO_CLAIM and first.who != _USER_VARIABLES:
        _log_conflicts(first, claims)
    if run is not None:
        run.claim = first
    return first


_PARENT = "the process that started this one"
_USER_VARIABLES = "WDS_RANK and WDS_WORLD_SIZE"
_TORCHRUN_VARIABLES = "RANK and WORLD_SIZE"


def _rank_claims(group: object) -> Iterator[RankClaim]:
    """Yield the claims of all sources that make one, in the order of precedence."""
    yield from _user_claims()
    yield from _claims_of_pair(_TORCHRUN_VARIABLES, settings.RANK, settings.WORLD_SIZE, launcher=False)
    yield from _torch_claims(group)
    yield from _jax_claims()
    yield from _accepted_claims
    yield from _claims_of_pair("Open MPI's variables", settings.OMPI_RANK, settings.OMPI_SIZE)
    yield from _claims_of_pair("MVAPICH's variables", settings.MV2_RANK, settings.MV2_SIZE)
    yield from _claims_of_pair("PMI_RANK and PMI_SIZE", settings.PMI_RANK, settings.PMI_SIZE)
    yield from _slurm_claims()


def _user_claims() -> Iterator[RankClaim]:
    rank_, world_size = settings.WDS_RANK.get(), settings.WDS_WORLD_SIZE.get()
    if (rank_ is None) != (world_size is None):
        raise UsageError("set both WDS_RANK and WDS_WORLD_SIZE, or neither")
    if rank_ is not None and world_size is not None:
        yield RankClaim(_USER_VARIABLES, rank_, world_size)


def _claims_of_pair(
    who: str,
    rank_: settings.EnvironmentVariable[int | None],
    size: settings.EnvironmentVariable[int | None],
    *,
    launcher: bool = True,
) -> Iterator[RankClaim]:
    known, world_size = rank_.get(), size.get()
    if known is not None and world_size is not None:
        yield RankClaim(who, known, world_size, launcher)


def _torch_claims(group: object) -> Iterator[RankClaim]:
    distributed = loaded_module("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        group = group or distributed.group.WORLD
        yield RankClaim("torch.distributed", distributed.get_rank(group=group), distributed.get_world_size(group=group))


def _jax_claims() -> Iterator[RankClaim]:
    """Ask JAX, in a way that starts no device: a forked worker must not."""
    jax = loaded_module("jax")
    distributed = getattr(jax, "distributed", None)
    state = getattr(loaded_module("jax._src.distributed"), "global_state", None) or getattr(
        distributed, "global_state", None
    )
    initialised: Callable[[], bool] = getattr(distributed, "is_initialized", lambda: False)
    number, count = getattr(state, "process_id", None), getattr(state, "num_processes", None)
    if number is not None and count is not None and getattr(state, "client", None) is not None:
        yield RankClaim("jax.distributed", int(number), int(count))
    elif jax is not None and state is None and initialised():
        yield RankClaim("jax.distributed", int(jax.process_index()), int(jax.process_count()))


def _slurm_claims() -> Iterator[RankClaim]:
    task, tasks = settings.SLURM_PROCID.get(), settings.SLURM_STEP_TASKS.get()
    step = settings.SLURM_STEP_ID.get()
    if tasks is None and (step is not None or settings.SLURM_JOB_ID.get() is None or task):
        tasks = settings.SLURM_NTASKS.get()  # else: the shell of a batch job, which is in no step
    shell = step is not None and step >= _SPECIAL_STEPS
    if task is not None and tasks is not None and not shell:
        yield RankClaim("SLURM's variables", task, tasks, launcher=True)


def detect_step() -> tuple[int | str, ...] | None:
    """Return job and step of SLURM's that started this process as one of its tasks; None for shells, and elsewhere."""
    job, step = settings.SLURM_JOB_ID.get(), settings.SLURM_STEP_ID.get()
    return None if job is None or step is None or step >= _SPECIAL_STEPS else (job, step)


_accepted_claims: list[RankClaim] = []


def is_spawning() -> bool:
    """Tell whether something is being pickled for a process of ``multiprocessing`` that is being started."""
    context = loaded_module("multiprocessing.context")  # while it is not loaded, no process is started by it
    return context is not None and context.get_spawning_popen() is not None


class ParentContext(NamedTuple):
    """What a process that is being started has to know of the one that starts it.

    Args:
        claim: the rank that a library named there, or None.
        variables: a process that a forkserver starts has those of the moment when that server began.
    """

    claim: RankClaim | None
    variables: Mapping[str, str | None]


def describe_parent() -> ParentContext | None:
    """Return what a process that is being started should know of this one; None where none is being started."""
    if not is_spawning():
        return None
    first = next(_rank_claims(None), NO_CLAIM)
    told = first.who in ("torch.distributed", "jax.distributed", _PARENT)
    return ParentContext(first if told else None, settings.read_worker_variables())


def accept_parent(parent: ParentContext | None) -> None:
    """Take note, in a process that another one started, of what that one said."""
    if parent is None:
        return
    settings.set_worker_variables(parent.variables)
    if parent.claim is not None:
        _accepted_claims[:] = [parent.claim._replace(who=_PARENT)]


def _log_conflicts(first: RankClaim, others: Iterator[RankClaim]) -> None:
    """Log, once, that others say something else. A launcher may rightly have fewer tasks than the deciding source."""
    for other in others:
        around = other.launcher and not first.launcher
        if other[1:3] != first[1:3] and not around and (first, other) not in _logged_conflicts:
            _logged_conflicts.add((first, other))
            log.warning(
                "%s say that this is rank %d of %d, but %s says rank %d of %d; the first is taken. Set WDS_RANK and "
                "WDS_WORLD_SIZE to decide",
                *first[:3],
                *other[:3],
            )


_logged_conflicts: set[tuple[RankClaim, RankClaim]] = set()


class WorkerContext(NamedTuple):
    """Where this process stands in the job."""

    rank: int
    world_size: int
    worker: int
    num_workers: int


SINGLE_WORKER = WorkerContext(0, 1, 0, 1)


class StreamNumber(NamedTuple):
    """One of the virtual streams of an elastic dataset."""

    number: int
    of: int


class RunContext:
    """What one run knows of its process: rank and worker, detected once, and the settings, each read once.

    It holds within its ``with`` blocks: while a run begins, up to its first item, and when a pass begins. All stages
    ask for both, many times. Blocks nest, and the outermost one holds. A forked child is outside of them, since it may
    be another worker.
    """

    __slots__ = ("_settings", "claim")

    def __init__(self) -> None:
        self.claim: RankClaim | None = None
        self._settings: dict[str, object] = {}

    def worker(self) -> WorkerContext:
        """Return rank and worker; 0 of 1 within a virtual stream."""
        with self:
            return worker_context()

    def __enter__(self) -> None:
        if thread_context.run is None:
            thread_context.run, settings.snapshot.values = self, self._settings
        if thread_context.run is self:
            thread_context.depth += 1

    def __exit__(self, *failure: object) -> None:
        if thread_context.run is self:
            thread_context.depth -= 1
            if not thread_context.depth:
                _forget_run()

    def __reduce__(self) -> tuple[type["RunContext"], tuple[()]]:
        return RunContext, ()


class _ThreadContext(threading.local):
    """What runs in this thread at the moment."""

    stream: StreamNumber | None = None
    # of a loader of ours: number, count
    worker: tuple[int, int] | None = None
    # the run that begins, and how many of its blocks are open
    run: RunContext | None = None
    depth = 0


thread_context = _ThreadContext()


def _forget_run() -> None:
    thread_context.run = settings.snapshot.values = None
    thread_context.depth = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_run)


@contextmanager
def use_stream(stream: StreamNumber) -> Iterator[None]:
    """Run the block as a part of a virtual stream."""
    before = thread_context.stream
    thread_context.stream = stream
    try:
        yield
    finally:
        thread_context.stream = before


worker_info_override = Override[Callable[..., tuple[int, int, int, int]]]()
"""What a program has put in the place of ``utils.pytorch_worker_info``."""


@contextmanager
def use_place(place: WorkerContext, *, in_loader: bool = False) -> Iterator[None]:
    """Run the block as another worker of another rank.

    Args:
        place: which.
        in_loader: it is a worker of a loader of this library.
    """
    before, replaced = thread_context.worker, worker_info_override.replaced
    thread_context.worker = (place.worker, place.num_workers) if in_loader else None
    worker_info_override.replaced = lambda group=None: place  # noqa: ARG005
    try:
        yield
    finally:
        thread_context.worker, worker_info_override.replaced = before, replaced


def worker_context(group: object = None) -> WorkerContext:
    """Return rank, world size, worker and number of workers of this process, as the program says where it does.

    Args:
        group: a torch.distributed process group, or None for the default one.

    Returns:
        What :func:`physical` says; 0 of 1 within a virtual stream.
    """
    return process_context(group) if thread_context.stream is None else SINGLE_WORKER


def process_context(group: object = None) -> WorkerContext:
    """Return rank, world size, worker and number of workers of this process, within a virtual stream too.

    Args:
        group: a torch.distributed process group, or None for the default one.
    """
    return (
        _detect_context(group)
        if worker_info_override.replaced is None
        else WorkerContext(*worker_info_override.replaced(group=group))
    )


def is_single_worker() -> bool:
    """Tell whether this process is the only worker of the only rank, so that it sees all of a pass."""
    where = process_context()
    return where.world_size * where.num_workers == 1


def detect_context(group: object = None) -> WorkerContext:
    """Return rank, world size, worker and number of workers of this process.

    Args:
        group: a torch.distributed process group, or None for the default one.

    Returns:
        What :mod:`webdataset.core.distributed` finds out about the rank; ``WORKER``/``NUM_WORKERS`` from the
        environment first, else torch's DataLoader worker, else 0 of 1. Within a virtual stream, 0 of 1.
    """
    return _detect_context(group) if thread_context.stream is None else SINGLE_WORKER


def has_only_launcher(group: object = None) -> bool:
    """Tell whether only a launcher (MPI, SLURM) says that there are several ranks: they may know nothing of each other.

    Args:
        group: a torch.distributed process group, or None for the default one.
    """
    return worker_info_override.replaced is None and detect_rank(group).launcher


def _detect_context(group: object) -> WorkerContext:
    detected = detect_rank(group)
    return WorkerContext(detected.rank, detected.world_size, *_worker_numbers())


def _worker_numbers() -> tuple[int, int]:
    if thread_context.worker is not None:
        return thread_context.worker
    worker, num_workers = settings.WORKER.get(), settings.NUM_WORKERS.get()
    if worker is not None and num_workers is not None:
        return worker, num_workers
    info = worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)


class TorchWorker(Protocol):
    """What torch tells of a DataLoader worker."""

    id: int
    num_workers: int
    seed: int
    dataset: object


def worker_info() -> TorchWorker | None:
    """Return torch's information on this DataLoader worker, or None outside of one."""
    data = loaded_module("torch.utils.data")
    if data is None:
        return None
    info: TorchWorker | None = data.get_worker_info()
    return info


def raise_portable(error: Exception) -> None:
    """Raise ``FlowError`` in place of an error in a worker of torch's, where the class of the error cannot be pickled.

    torch sends the class. Where that fails, its queue drops the message without a word: the program waits forever, or
    takes the worker for one that has read everything.

    Raises:
        FlowError: says what the error said, and has it as its cause.
    """
    if worker_info() is None:
        return
    import pickle  # noqa: PLC0415  loaded by now: torch is

    try:
        pickle.dumps(type(error))
    except Exception:  # noqa: BLE001  whatever a user's class does when it is pickled
        raise FlowError(f"a worker process failed: {describe_error(error)}") from error
