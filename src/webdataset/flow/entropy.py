"""Where a run's seed comes from."""

from webdataset.ground import settings
from webdataset.ground.seeds import fold, fresh
from webdataset.ground.topology import place, worker_info


def entropy(seed: int | None) -> tuple[int, int]:
    """Return the seed of a run, and the seed that all ranks and workers of the job have in common.

    Args:
        seed: what the user gave, or None.

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
    own = info.seed - info.id if info is not None else fresh()
    if place().world_size == 1:
        return own, own
    job = settings.RUN_ID.get() or settings.SLURM_JOB_ID.get() or settings.PMIX_NAMESPACE.get()
    return own, fold("job", job)
