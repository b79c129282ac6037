"""Floor 7: loaders: threads and processes that decode into batches; torch's DataLoader.

The names here are loaded when they are first used.
"""

import importlib
from typing import Any

_HOMES = {
    "check_ranks": "torch_ranks",
    "DatasetNode": "torch_nodes",
    "equal_steps": "torch_equal",
    "for_accelerate": "torch_trainers",
    "for_trainer": "torch_trainers",
    "Loader": "loader",
    "LoaderStats": "statistics",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load the module that holds ``name`` and return it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
