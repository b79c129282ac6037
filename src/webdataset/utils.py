"""Compatibility import path of worker information, seeds and helpers; the code lives in :mod:`webdataset.core`.

``utils.enforce_security = True`` turns on strict trust for the whole process, at once. Late-bound: replacing
``pytorch_worker_info`` in this module changes the rank and worker that every part of this library sees.
"""

import sys
from typing import Any

from webdataset.core import distributed
from webdataset.core.trust import SecurityModule
from webdataset.core.upstream_utils import (
    ObsoleteException,
    PipelineStage,
    compute_sample_weights,
    deprecated,
    guess_batchsize,
    identity,
    is_iterable,
    lookup_sym,
    obsolete,
    repeatedly,
    repeatedly0,
    safe_eval,
)
from webdataset.shards.expand import fnmatch_with_braces, glob_with_braces
from webdataset.shards.lists import make_seed, pytorch_worker_info, pytorch_worker_seed

__all__ = [
    "ObsoleteException",
    "PipelineStage",
    "compute_sample_weights",
    "deprecated",
    "enforce_security",  # noqa: F822  a property of this module
    "fnmatch_with_braces",
    "glob_with_braces",
    "guess_batchsize",
    "identity",
    "is_iterable",
    "lookup_sym",
    "make_seed",
    "obsolete",
    "pytorch_worker_info",
    "pytorch_worker_seed",
    "repeatedly",
    "repeatedly0",
    "safe_eval",
]


_own = pytorch_worker_info


class _LateBoundModule(SecurityModule):
    """This module: a replaced ``pytorch_worker_info`` is handed to :mod:`webdataset.core.distributed`."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "pytorch_worker_info":
            distributed.worker_info_override.replaced = None if value is _own else value


sys.modules[__name__].__class__ = _LateBoundModule
