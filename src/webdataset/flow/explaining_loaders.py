"""A loader in words: its workers, and what waits between them and the consumer.

Flows in: a loader, torch's or ours. Flows out: lines of text. Starts no worker, and asks the dataset for nothing.
"""

from typing import Any

from .explaining_values import shown

_OPTIONS = (
    "batch_size", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "drop_last", "workers", "mode",
    "start_method",
)  # fmt: skip
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def is_loader(source: Any) -> bool:
    """Tell whether something loads a dataset with workers."""
    return hasattr(source, "dataset") and (hasattr(source, "num_workers") or hasattr(source, "workers"))


def loader_named(source: Any) -> str:
    """Return what a loader is called: torch's with a state as torch's."""
    loader = getattr(source, "loader", source)
    kinds = [kind.__name__ for kind in type(loader).__mro__]
    return "DataLoader" if "DataLoader" in kinds else kinds[0]


def loader_lines(source: Any) -> list[str]:
    """Return what a loader says of itself, behind its dataset.

    Args:
        source: torch's ``DataLoader``, ours, or one of them as a stage.
    """
    loader = getattr(source, "loader", source)
    told = [f"{name}={shown(value)}" for name in _OPTIONS if (value := getattr(loader, name, None)) is not None]
    workers = int(loader.num_workers if hasattr(loader, "num_workers") else loader.workers)
    return [", ".join(told), _sharing(loader, workers), _waiting(loader, workers)]


def _sharing(loader: Any, workers: int) -> str:
    if not workers:
        return "no workers: the dataset is read in the consumer's thread"
    kind = getattr(loader, "mode", "processes")
    if getattr(loader.dataset, "streams", None):
        return f"{workers} {kind} divide this rank's streams, and the bounds above, between them"
    return f"each of {workers} {kind} has such a pipeline, and its bounds, to itself"


def _waiting(loader: Any, workers: int) -> str:
    """Return what waits between workers and consumer."""
    what = "items" if loader.batch_size is None else "batches"
    if not workers:
        return f"nothing waits but the {what[:-1] if what == 'items' else 'batch'} that is made"
    bounds = getattr(loader, "ahead", None)
    if bounds is None:
        factor = getattr(loader, "prefetch_factor", None) or 2
        return f"up to {workers * factor:,} {what} wait; torch knows no bound in bytes"
    count, size_bytes = bounds
    many = "items of each worker" if loader.batch_size is None else "batches"
    return f"workers are at most {count:,} {many} ahead, and {in_units(size_bytes)} (one is always allowed)"


def in_units(size_bytes: int) -> str:
    """Return a number of bytes as people write it.

    Args:
        size_bytes: any.
    """
    power = 0
    while size_bytes >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    if not power:
        return f"{size_bytes:,} bytes"
    return f"{size_bytes / 1024**power:.4g} {_UNITS[power]}"
