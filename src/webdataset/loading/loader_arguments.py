"""What a loader may be given: the checks of its arguments.

Flows in: arguments. Flows out: nothing, or UsageError. See :class:`webdataset.loading.loader.Loader`.
"""

from typing import Any, SupportsIndex

from webdataset.ground.errors import UsageError


def check_arguments(batch_size: int | None, workers: int, mode: str, prefetch: int) -> None:
    """Refuse numbers that no loader has.

    Args:
        batch_size: of the loader.
        workers: the same.
        mode: the same.
        prefetch: the same.

    Raises:
        UsageError: it names the argument.
    """
    counts = {"workers": workers, "prefetch": prefetch, **({} if batch_size is None else {"batch_size": batch_size})}
    for name, count in counts.items():
        if not isinstance(count, SupportsIndex):
            raise UsageError(f"{name}={count!r}: a whole number")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size={batch_size!r}: a batch holds at least one sample; None makes no batches")
    if workers < 0:
        raise UsageError(f"workers={workers!r}: 0 loads in this thread, n in n threads or processes")
    if mode not in ("threads", "processes"):
        raise UsageError(f"mode={mode!r}: there are 'threads' and 'processes'")
    if prefetch < 0:
        raise UsageError(f"prefetch={prefetch!r}: batches that workers may be ahead by, at least 0")


def check_single_samples(**about_batches: bool) -> None:
    """Refuse what would change nothing where the loader makes no batches.

    Args:
        **about_batches: name of an argument to whether it was given.

    Raises:
        UsageError: one was.
    """
    for name, given in about_batches.items():
        if given:
            raise UsageError(
                f"{name}= is about batches that the loader makes: give it a batch_size too. Without one, it delivers "
                "what the dataset gives (batched(…) in the pipeline has a collation_fn of its own)"
            )


def device_mover(device: Any, *, pin_memory: bool) -> Any:
    """Return what moves batches to a device, or None where none is named.

    Args:
        device: of the loader.
        pin_memory: the same.

    Raises:
        UsageError: pinned memory for no device.
    """
    if device is None:
        if pin_memory:
            raise UsageError("pin_memory is for batches on their way to a device: name it, device='cuda'")
        return None
    from .torch_device import Mover  # noqa: PLC0415  needs torch

    return Mover(device, pin_memory=pin_memory)
