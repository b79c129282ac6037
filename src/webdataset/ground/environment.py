"""Which rank this process is, by what its launcher and its libraries say.

Who is asked, in this order; the first one that knows decides:

1. ``WDS_RANK`` and ``WDS_WORLD_SIZE``: the user;
2. ``RANK`` and ``WORLD_SIZE``: torchrun, and whoever does as it does;
3. torch.distributed, where it is initialised;
4. JAX, where ``jax.distributed`` is initialised; in a worker that was spawned, and has neither, its parent's word,
   which comes with the dataset;
5. Open MPI, MVAPICH, then MPICH and Intel MPI (PMI), by their launchers' variables;
6. SLURM, for the tasks of ``srun``. The shell of ``sbatch`` or ``salloc`` is one process, however many tasks the job
   was granted, and so is a shell that ``srun`` started as its only task.

Flows in: the environment, torch and JAX where they are loaded already. Flows out: rank and number of ranks, and who
says so. Imports neither of them.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import settings
from .errors import UsageError
from .extras import loaded
from .logs import log

_SPECIAL_STEPS = 0xFFFFFFF0  # SLURM's own numbers for the steps of batch scripts and interactive shells, and above


class Claim(NamedTuple):
    """What somebody says about this process.

    Args:
        who: says so.
        rank: of the process.
        world_size: number of ranks.
        launcher: the one who says so only started processes: whether they work together is not known.
    """

    who: str
    rank: int
    world_size: int
    launcher: bool = False


ALONE = Claim("nobody", 0, 1)


def rank(group: Any = None) -> Claim:
    """Return rank and number of ranks of this process.

    Args:
        group: a torch.distributed process group, or None for the default one.

    Raises:
        UsageError: a rank that is not below the number of ranks, or half of a pair of variables of ours.
    """
    claims = _claims(group)
    first = next(claims, ALONE)
    if not 0 <= first.rank < first.world_size:
        raise UsageError(f"{first.who} say that this is rank {first.rank} of {first.world_size}, which cannot be")
    if first is not ALONE and first.who != _USER:
        _tell_conflicts(first, claims)
    return first


_PARENT = "the process that started this one"
_USER = "WDS_RANK and WDS_WORLD_SIZE"
_TORCHRUN = "RANK and WORLD_SIZE"


def _claims(group: Any) -> Iterator[Claim]:
    """Yield what everybody says, in the order of precedence; those who say nothing are passed over."""
    yield from _user()
    yield from _pair(_TORCHRUN, settings.RANK, settings.WORLD_SIZE, launcher=False)
    yield from _torch(group)
    yield from _jax()
    yield from _arrived
    yield from _pair("Open MPI's variables", settings.OMPI_RANK, settings.OMPI_SIZE)
    yield from _pair("MVAPICH's variables", settings.MV2_RANK, settings.MV2_SIZE)
    yield from _pair("PMI_RANK and PMI_SIZE", settings.PMI_RANK, settings.PMI_SIZE)
    yield from _slurm()


def _user() -> Iterator[Claim]:
    rank_, world_size = settings.WDS_RANK.get(), settings.WDS_WORLD_SIZE.get()
    if (rank_ is None) != (world_size is None):
        raise UsageError("set both WDS_RANK and WDS_WORLD_SIZE, or neither")
    if rank_ is not None and world_size is not None:
        yield Claim(_USER, rank_, world_size)


def _pair(
    who: str, rank_: settings.Variable[int | None], size: settings.Variable[int | None], *, launcher: bool = True
) -> Iterator[Claim]:
    known, world_size = rank_.get(), size.get()
    if known is not None and world_size is not None:
        yield Claim(who, known, world_size, launcher)


def _torch(group: Any) -> Iterator[Claim]:
    distributed = loaded("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        group = group or distributed.group.WORLD
        yield Claim("torch.distributed", distributed.get_rank(group=group), distributed.get_world_size(group=group))


def _jax() -> Iterator[Claim]:
    """Ask JAX, in a way that starts no device: a forked worker must not."""
    jax = loaded("jax")
    distributed = getattr(jax, "distributed", None)
    state = getattr(loaded("jax._src.distributed"), "global_state", None) or getattr(distributed, "global_state", None)
    initialised: Callable[[], bool] = getattr(distributed, "is_initialized", lambda: False)
    number, count = getattr(state, "process_id", None), getattr(state, "num_processes", None)
    if number is not None and count is not None and getattr(state, "client", None) is not None:
        yield Claim("jax.distributed", int(number), int(count))
    elif jax is not None and state is None and initialised():
        yield Claim("jax.distributed", int(jax.process_index()), int(jax.process_count()))


def _slurm() -> Iterator[Claim]:
    task, tasks = settings.SLURM_PROCID.get(), settings.SLURM_STEP_TASKS.get()
    step = settings.SLURM_STEP_ID.get()
    if tasks is None and (step is not None or settings.SLURM_JOB_ID.get() is None or task):
        tasks = settings.SLURM_NTASKS.get()  # else: the shell of a batch job, which is in no step
    shell = step is not None and step >= _SPECIAL_STEPS
    if task is not None and tasks is not None and not shell:
        yield Claim("SLURM's variables", task, tasks, launcher=True)


_arrived: list[Claim] = []


def spawning() -> bool:
    """Tell whether something is being pickled for a process of ``multiprocessing`` that is being started."""
    context = loaded("multiprocessing.context")  # where nobody has loaded it, nobody starts processes by it
    return context is not None and context.get_spawning_popen() is not None


def parting() -> Claim | None:
    """Return what a process that is being started should know of this one, and that no variable tells it."""
    if not spawning():
        return None
    first = next(_claims(None), ALONE)
    return first if first.who in ("torch.distributed", "jax.distributed", _PARENT) else None


def arrive(claim: Claim | None) -> None:
    """Take note, in a process that another one started, which rank that one is.

    Args:
        claim: what ``parting`` returned there.
    """
    if claim is not None:
        _arrived[:] = [claim._replace(who=_PARENT)]


def _tell_conflicts(first: Claim, others: Iterator[Claim]) -> None:
    """Log, once, that others say something else. A launcher around the one who decides may well have fewer tasks."""
    for other in others:
        around = other.launcher and not first.launcher
        if other[1:3] != first[1:3] and not around and (first, other) not in _told:
            _told.add((first, other))
            log.warning(
                "%s say that this is rank %d of %d, but %s says rank %d of %d; the first is taken. Set WDS_RANK and "
                "WDS_WORLD_SIZE to decide",
                *first[:3],
                *other[:3],
            )


_told: set[tuple[Claim, Claim]] = set()
