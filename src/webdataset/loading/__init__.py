"""Layer 7: loaders: threads and processes that decode into batches; torch's DataLoader.

* ``loader``: Loader and its state; ``loader_progress``: its iterator, and what has been received of an epoch;
  ``loader_checks``: checks of arguments and of an epoch's end
* ``partition``: what each worker of a Loader gets
* ``worker``: the loop of a worker, and its metrics; ``thread_workers``, ``process_workers``: the pools of them
* ``worker_process``: what runs in a worker process; ``ipc``: parts sent from it; ``message_pipe``: the pipes;
  ``mapped_views``: views of mapped shards on their way
* ``shared_memory``: the layout of batches in blocks of memory, and leases on them
* ``rows``, ``columns``, ``windows``, ``batching``: samples to rows of blocks and to columns, parts to windows, windows
  to batches; ``ready_order``: parts as they become ready
* ``stats``: counters, stage times, Prometheus text
* ``states``: which samples a run delivers, and states further on; ``read_plan``: what each worker reads;
  ``read_speed``: how fast shards are read here
* ``torch_loader``: torch's DataLoader with a state; ``loader_stage``: the loader as the source of a pipeline
* ``torch_device``: copies to a device
* ``torch_distributed``: checks and equal steps across ranks; ``torch_trainers``: trainers;
  ``torch_nodes``: a dataset as a node of torchdata

The public names are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from webdataset.loading.loader import Loader
    from webdataset.loading.stats import LoaderStats
    from webdataset.loading.torch_distributed import check_ranks, equal_steps
    from webdataset.loading.torch_nodes import DatasetNode
    from webdataset.loading.torch_trainers import for_accelerate, for_trainer

_HOMES = {
    "check_ranks": "torch_distributed",
    "DatasetNode": "torch_nodes",
    "equal_steps": "torch_distributed",
    "for_accelerate": "torch_trainers",
    "for_trainer": "torch_trainers",
    "Loader": "loader",
    "LoaderStats": "stats",
}

__all__ = [
    "DatasetNode",
    "Loader",
    "LoaderStats",
    "check_ranks",
    "equal_steps",
    "for_accelerate",
    "for_trainer",
]


def __getattr__(name: str) -> object:
    """Load the module that holds ``name`` and return it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
