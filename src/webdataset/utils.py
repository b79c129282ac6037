"""Door: stage base class, worker information, seeds, small functions.

``utils.enforce_security = True`` turns on strict trust for the whole process, at once.
"""

import sys
from types import ModuleType

from .ground import settings, trust
from .ground.iteration import PipelineStage, guess_batchsize, identity, is_iterable, lookup_sym, repeatedly
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


class _Switched(ModuleType):
    """This module, whose ``enforce_security`` is the switch in ``ground.trust``."""

    @property
    def enforce_security(self) -> bool:
        """Whether trust is strict in the whole process; ``WDS_SECURE`` unless assigned."""
        enforced = trust.switch.enforced
        return settings.SECURE.get() if enforced is None else enforced

    @enforce_security.setter
    def enforce_security(self, enforced: bool) -> None:
        trust.switch.enforced = bool(enforced) if enforced or settings.SECURE.get() else None


sys.modules[__name__].__class__ = _Switched
