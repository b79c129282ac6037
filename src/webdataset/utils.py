"""Door: stage base class, worker information, seeds, small functions.

``utils.enforce_security = True`` turns on strict trust for the whole process, at once.
"""

import sys

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


sys.modules[__name__].__class__ = SwitchedModule
