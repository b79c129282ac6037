"""What strict trust forbids here: commands, url rewriting and, through ``gopen``, local files."""

from webdataset.ground import trust
from webdataset.ground.errors import UsageError


def refuse_if_strict(action: str, *, level: str | None = None, url: str | None = None) -> None:
    """Raise if trust is strict.

    Args:
        action: what is asked for and refused; begins with the name of the function.
        level: a trust level that a dataset or call names.
        url: the url concerned.

    Raises:
        UsageError: trust is strict.
    """
    if trust.level(level) == "strict":
        raise UsageError(
            f"{action}: trust is strict (trust='strict', WDS_SECURE, WDS_TRUST or utils.enforce_security)", url=url
        )
