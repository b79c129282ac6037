"""torch's DataLoader, made when it is asked for."""

from typing import Any

from webdataset.flow.in_streams import InStreams
from webdataset.ground.extras import require


def data_loader(*args: Any, **kw: Any) -> Any:
    """Return a ``torch.utils.data.DataLoader``; over an elastic dataset, one with a state.

    Args:
        *args: its arguments.
        **kw: its arguments.

    Raises:
        MissingExtra: torch is not installed.
    """
    torch_data = require("torch.utils.data", extra="torch", purpose="WebLoader")
    if isinstance(args[0] if args else kw.get("dataset"), InStreams):
        from .torch_state import StateLoader  # noqa: PLC0415  it imports torch

        return StateLoader(*args, **kw)
    return torch_data.DataLoader(*args, **kw)
