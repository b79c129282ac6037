"""Trust levels of data: ``strict``, ``safe`` (the default) or ``full``.

``strict`` refuses pickles, ``.pth``, ``pipe:`` urls, local files through ``gopen`` and url rewriting. ``safe``
decodes pickles through an exact allow-list and ``.pth`` with ``weights_only=True``. ``full`` unpickles anything: for
data that the user made.
"""

from typing import Literal, cast

from webdataset.core import settings
from webdataset.core.errors import UsageError
from webdataset.core.lazy_modules import LazyModule, Override

Trust = Literal["strict", "safe", "full"]
LEVELS = ("strict", "safe", "full")


security_override = Override[bool]()
"""The process-wide switch of ``utils.enforce_security``: True makes every level strict, False does not."""


class SecurityModule(LazyModule):
    """A module whose ``enforce_security`` is the process-wide switch."""

    @property
    def enforce_security(self) -> bool:
        """Whether trust is strict in the whole process; ``WDS_SECURE`` unless assigned."""
        return settings.SECURE.get() if security_override.replaced is None else security_override.replaced

    @enforce_security.setter
    def enforce_security(self, enforced: bool) -> None:
        security_override.replaced = bool(enforced) if enforced or settings.SECURE.get() else None


def trust_level(asked: str | None = None, *, enforced: bool | None = None) -> Trust:
    """Return the trust level in force.

    Args:
        asked: the level that a dataset or call names, or None.
        enforced: True or False overrides the process-wide switch ``utils.enforce_security``; where neither is set,
            ``WDS_SECURE`` decides.

    Returns:
        ``strict`` wherever security is enforced, else ``asked``, else ``WDS_TRUST``, else ``safe``.

    Raises:
        UsageError: an unknown level.
    """
    enforced = security_override.replaced if enforced is None else enforced
    if settings.SECURE.get() if enforced is None else enforced:
        return "strict"
    chosen = asked or settings.TRUST.get() or "safe"
    if chosen not in LEVELS:
        raise UsageError(f"trust level {chosen!r} is not one of {', '.join(LEVELS)}")
    return cast("Trust", chosen)
