"""Whether all ranks of a job are set up alike.

Flows in: a dataset on each rank. Flows out: nothing, or an error that names what differs and where. One collective.
"""

from typing import Any

from webdataset.flow.equal_fingerprint import fingerprint, shares_between_ranks
from webdataset.ground.errors import UsageError
from webdataset.ground.extras import require
from webdataset.ground.topology import place

_ORDER = "order of shards before they are shared out"
_WAYS_OUT = {
    "seed": "give all ranks the same seed=",
    "urls": "give all ranks the same list of shards in the same order (sort what a folder listing gives)",
    "shards": "give all ranks the same list of shards",
    _ORDER: (
        "a shuffle before the split draws differently: give the dataset a seed=, or put the shuffle behind the split"
    ),
    "ranks": "one process does not know of the others: set WDS_RANK and WDS_WORLD_SIZE, or unset RANK and WORLD_SIZE",
    "workers": "use the same num_workers on all ranks",
    "epoch": "call set_epoch on all ranks alike",
}
_SHOWN = 60


def check_ranks(dataset: Any, *, same_samples: bool = False, group: Any = None) -> None:
    """Compare a dataset between all ranks, and raise on all of them where it is not set up alike.

    Call it on every rank, before the first epoch, in the process that torch.distributed was initialised in. Shards are
    listed, none is opened. Without torch.distributed it does nothing.

    Args:
        dataset: a dataset, or a loader over one.
        same_samples: all ranks are meant to read all samples (``nodesplitter=None``).
        group: a process group; None for the default one.

    Raises:
        UsageError: ranks differ in seed, shards, stages, workers, the order before a split, …; or all would read the
            same shards; the message says what differs on which rank, and what to do.
        MissingExtra: torch is not installed.
    """
    distributed = require("torch.distributed", extra="torch", purpose="check_ranks")
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    world, own = distributed.get_world_size(group=group), distributed.get_rank(group=group)
    found: list[Any] = [None] * world
    distributed.all_gather_object(found, _told(dataset, own, world, whole=group is None), group=group)
    failed = {rank: told["error"] for rank, told in enumerate(found) if "error" in told}
    if failed:
        raise UsageError("; ".join(f"rank {rank}: {error}" for rank, error in failed.items()))
    differing = [line for name in _names(found) if (line := _differing(name, [told.get(name) for told in found]))]
    if differing:
        raise UsageError(f"the {world} ranks are not set up alike: {'; '.join(differing)}")
    if world > 1 and not same_samples and not all(told["shared"] for told in found):
        raise UsageError(
            f"all {world} ranks would read the same {found[0]['shards']} shards, as nothing shares them out: pass "
            "nodesplitter=wds.split_by_node (in a DataPipeline: put wds.split_by_node behind the list of shards), or "
            "same_samples=True where it is meant so"
        )


def _told(dataset: Any, own: int, world: int, *, whole: bool) -> dict[str, Any]:
    """Return what a rank says of itself; an error is said too, so that no rank waits for it."""
    try:
        where = place()
        if whole and (where.rank, where.world_size) != (own, world):
            return {"error": f"torch.distributed says {own} of {world}, and the dataset sees {where.rank} of "
                             f"{where.world_size}: {_WAYS_OUT['ranks']}"}  # fmt: skip
        return {**fingerprint(dataset), "shared": shares_between_ranks(dataset)}
    except Exception as error:  # noqa: BLE001  whatever a source of the user's raised: all ranks are to hear of it
        return {"error": f"{type(error).__name__}: {error}"}


def _names(found: list[dict[str, Any]]) -> list[str]:
    """Return what is compared; where the shards are others, so is their order."""
    names = dict.fromkeys(name for told in found for name in told)
    if len({told["urls"] for told in found}) > 1:
        del names[_ORDER]
    return list(names)


def _differing(name: str, values: list[Any]) -> str:
    """Return a line on one part, where it is not the same on all ranks."""
    if all(value == values[0] for value in values):
        return ""
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(str(value)[:_SHOWN], []).append(rank)
    shown = ", ".join(
        f"{value} on rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks))}"
        for value, ranks in by_value.items()
    )
    advice = _WAYS_OUT.get(name)
    return f"{name}: {shown}" + (f" ({advice})" if advice else "")
