"""What to do when one item fails: the five handlers, and how a stage asks them.

A handler is ``f(error) -> bool``: true goes on with the next item (a sample, or a whole shard where the reader
fails), false ends the stage quietly, and raising ends everything. Nothing here sleeps: upstream's warning handlers
slow training by half a second per bad sample.
"""

from collections.abc import Callable

from webdataset.ground.tracebacks import warn_user

from .errors import WebDatasetError
from .logs import log
from .redaction import redacted

Handler = Callable[[Exception], bool]

_DEBUG = 10  # logging.DEBUG


def reraise_exception(exn: Exception) -> bool:
    """Raise the error again (the default everywhere).

    Args:
        exn: what went wrong.

    Raises:
        Exception: always, the same error.
    """
    raise exn


def ignore_and_continue(exn: Exception) -> bool:
    """Go on with the next item; the failure is logged at DEBUG level.

    Args:
        exn: what went wrong.
    """
    if log.isEnabledFor(_DEBUG):
        log.debug("ignored: %s", _described(exn))
    return True


def warn_and_continue(exn: Exception) -> bool:
    """Warn, then go on with the next item.

    Args:
        exn: what went wrong.
    """
    warn_user(_described(exn))
    return True


def ignore_and_stop(exn: Exception) -> bool:
    """End this stage quietly; the failure is logged at DEBUG level.

    Args:
        exn: what went wrong.
    """
    if log.isEnabledFor(_DEBUG):
        log.debug("stopped at: %s", _described(exn))
    return False


def warn_and_stop(exn: Exception) -> bool:
    """Warn, then end this stage.

    Args:
        exn: what went wrong.
    """
    warn_user(_described(exn))
    return False


def _described(exn: Exception) -> str:
    return f"{type(exn).__name__}: {exn}" if isinstance(exn, WebDatasetError) else redacted(repr(exn))


def located(exn: Exception, **places: object) -> Exception:
    """Say where an error happened: attributes on our errors, a note on foreign ones.

    Args:
        exn: any error.
        **places: ``url``, ``path``, ``key``, ``field``, ``offset``, ``stage``; None values are left out.

    Returns:
        The same error.
    """
    known = {name: place for name, place in places.items() if place is not None}
    if isinstance(exn, WebDatasetError):
        return exn.locate(**known)
    if known:
        shown = [f"{name}={(redacted(place) if isinstance(place, str) else place)!r}" for name, place in known.items()]
        exn.add_note("in " + ", ".join(shown))
    return exn
