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
