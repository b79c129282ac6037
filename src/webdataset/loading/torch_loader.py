"""torch's DataLoader, made when it is asked for."""

from typing import Any

from webdataset.ground.extras import require


def data_loader(*args: Any, **kw: Any) -> Any:
    """Return a ``torch.utils.data.DataLoader``.

    Args:
        *args: its arguments.
        **kw: its arguments.

    Raises:
        MissingExtra: torch is not installed.
    """
    return require("torch.utils.data", extra="torch", purpose="WebLoader").DataLoader(*args, **kw)


def announce_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader's dataset the number of the epoch that begins.

    Workers that are not persistent start from a copy of the dataset that has never been iterated, so that a seeded
    dataset would give the same order in every epoch.

    Args:
        loader: a DataLoader, or anything else (then nothing happens).
        epoch: from 0.
    """
    set_epoch = getattr(getattr(loader, "dataset", None), "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
