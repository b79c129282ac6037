"""Door: stage base class, worker information, seeds, small functions.

``utils.enforce_security = True`` turns on strict trust for the whole process, at once.
"""

import sys

from .ground.iteration import PipelineStage, guess_batchsize, identity, is_iterable, lookup_sym, repeatedly
from .ground.trust import SwitchedModule
from .shards.draws import make_seed, pytorch_worker_info, pytorch_worker_seed

__all__ = [
    "PipelineStage",
    "enforce_security",  # noqa: F822  a property of this module
    "guess_batchsize",
    "identity",
    "is_iterable",
    "lookup_sym",
    "make_seed",
    "pytorch_worker_info",
    "pytorch_worker_seed",
    "repeatedly",
]


sys.modules[__name__].__class__ = SwitchedModule
