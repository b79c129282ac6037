"""Door: stage base class, worker information, seeds, small functions.

``utils.enforce_security = True`` turns on strict trust for the whole process, at once. ``pytorch_worker_info`` may be
replaced here: whatever asks for rank and worker then asks the new one.
"""

import sys
from typing import Any

from .ground import topology
from .ground.inherited import ObsoleteException, compute_sample_weights, deprecated, obsolete, repeatedly0, safe_eval
from .ground.iteration import PipelineStage, guess_batchsize, identity, is_iterable, lookup_sym, repeatedly
from .ground.trust import SwitchedModule
from .shards.draws import make_seed, pytorch_worker_info, pytorch_worker_seed
from .shards.patterns import fnmatch_with_braces, glob_with_braces

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


class _Hinge(SwitchedModule):
    """This module: a replaced ``pytorch_worker_info`` is handed to the floor that answers for it."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "pytorch_worker_info":
            topology.switch.replaced = None if value is _own else value


sys.modules[__name__].__class__ = _Hinge
