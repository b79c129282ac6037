"""The numbers that shard lists draw from, equal to those of published versions where these are reproducible.

Flows in: rank, worker, epoch, a seed. Flows out: one 31-bit seed.
"""

from typing import Any

from webdataset.ground.seeds import fold
from webdataset.ground.topology import found, place

_MASK = 0x7FFFFFFF
_WORKERS_PER_RANK = 1000


def make_seed(*args: Any) -> int:
    """Fold any values into one seed: ``s = 31 * s + hash(x)``, 31 bits.

    Args:
        *args: numbers enter by their hash, as ever; anything else by a digest of its text, so that the seed does not
            change from process to process.

    Returns:
        An integer in [0, 2**31).
    """
    seed = 0
    for arg in args:
        number = hash(arg) if isinstance(arg, int | float | complex) else fold(str(arg))
        seed = (seed * 31 + number) & _MASK
    return seed


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Return (rank, world size, worker, number of workers) of this process.

    Args:
        group: a ``torch.distributed`` process group; None for the default one.
    """
    where = found(group)
    return where.rank, where.world_size, where.worker, where.num_workers


def pytorch_worker_seed(group: Any = None) -> int:
    """Return a number that differs between the workers of a job: ``1000 * rank + worker``.

    Args:
        group: a ``torch.distributed`` process group; None for the default one.
    """
    where = place(group)
    return where.rank * _WORKERS_PER_RANK + where.worker
