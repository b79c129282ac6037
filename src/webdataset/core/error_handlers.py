"""Handlers that decide what happens after an item fails, and counts of what a run skips.

A handler is ``f(error) -> bool``: true continues with the next item (a sample, or a whole shard where the reader
fails), false ends the stage quietly, and raising ends everything. No handler sleeps: the warning handlers of upstream
slow training by half a second per bad sample.

Skips (failures that a handler lets pass) and drops (samples for which a function returned None) belong to the item
that is given next: they are counted while that item is made. So the counts after an item follow from the items alone,
whichever worker made them and however far ahead. What a restored run makes again (buffers, the past of a replayed
stage) was counted before its state was saved, and must not be counted again. Counts go, by stage, to the collector of
the current thread (a worker of a loader, a timed run). Counting costs nothing where nothing fails or is dropped.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from webdataset.core.errors import UsageError, WebDatasetError, remove_addresses
from webdataset.core.logs import log
from webdataset.core.process_limits import is_out_of_resources
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user

Handler = Callable[[Exception], bool]

_DEBUG = 10  # logging.DEBUG
# how a note begins that says where an error of other code happened
_PLACES = "in "
# stages that lose a shard, or the rest of one; where this process lacks something, that is not the shard's fault
_READING = ("opening", "reading")


def reraise_exception(exn: Exception) -> bool:
    """Raise the error again (the default everywhere).

    Args:
        exn: what went wrong.

    Raises:
        Exception: always, the same error.
    """
    raise exn


def ignore_and_continue(exn: Exception) -> bool:
    """Continue with the next item; the failure is logged at DEBUG level.

    Args:
        exn: what went wrong.
    """
    if log.isEnabledFor(_DEBUG):
        log.debug("ignored: %s", _describe_failure(exn))
    return True


def warn_and_continue(exn: Exception) -> bool:
    """Warn, then continue with the next item.

    Args:
        exn: what went wrong.
    """
    warn_user(_describe_failure(exn))
    return True


def ignore_and_stop(exn: Exception) -> bool:
    """End this stage quietly; the failure is logged at DEBUG level.

    Args:
        exn: what went wrong.
    """
    if log.isEnabledFor(_DEBUG):
        log.debug("stopped at: %s", _describe_failure(exn))
    return False


def warn_and_stop(exn: Exception) -> bool:
    """Warn, then end this stage.

    Args:
        exn: what went wrong.
    """
    warn_user(_describe_failure(exn))
    return False


def _describe_failure(exn: Exception) -> str:
    if isinstance(exn, WebDatasetError):
        return f"{type(exn).__name__}: {exn}"
    places = [note for note in getattr(exn, "__notes__", ()) if isinstance(note, str) and note.startswith(_PLACES)]
    return " ".join((remove_addresses(redact(repr(exn))), *places))


def with_location(exn: Exception, **places: object) -> Exception:
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
        shown = [f"{name}={(redact(place) if isinstance(place, str) else place)!r}" for name, place in known.items()]
        exn.add_note(_PLACES + ", ".join(shown))
    return exn


SkipCounts = Counter[str]


class _ThreadCounts(threading.local):
    skips: SkipCounts | None = None
    drops: SkipCounts | None = None


_thread_counts = _ThreadCounts()


def make_handler_error(handler: object) -> UsageError:
    """Return the error for a handler that is no function; for a dictionary, how it is written."""
    if isinstance(handler, dict):
        return UsageError(
            "a dictionary stands in the place of handler=; what it holds is given by name: map_dict(**{...})"
        )
    return UsageError(
        f"handler={handler!r}: a function of the exception, such as wds.warn_and_continue, or one of your own that "
        "returns True to skip and continue"
    )


def should_continue(handler: Handler | None, exn: Exception, stage: str) -> bool:
    """Ask a handler about a failure, and count it where the run continues without what failed.

    Args:
        handler: true continues, false ends the stage; it may raise.
        exn: what went wrong.
        stage: under which name it is counted.

    Returns:
        Whether to continue.

    Raises:
        Exception: whatever the handler raises; the error itself where a source was not read because this process has
            no more files, threads or processes.
    """
    # None: programs write it and mean the default
    if handler is None or (stage in _READING and is_out_of_resources(exn)):
        raise exn
    answer = bool(handler(exn))
    skips = _thread_counts.skips
    if answer and skips is not None:
        skips[stage] += 1
    return answer


def count_drop(stage: str) -> None:
    """Count a sample that a function dropped by returning None."""
    drops = _thread_counts.drops
    if drops is not None:
        drops[stage] += 1


class count_skipped:  # noqa: N801  reads as what it does: with counting(skips)
    """Count in this thread, within a ``with`` block, what is skipped. May be entered again, not twice at once.

    Args:
        skips: failures that handlers let pass, by stage; added to. None counts nothing.
        drops: samples that functions dropped, by stage; added to. None counts none.
    """

    __slots__ = ("_before", "_counts")

    def __init__(self, skips: SkipCounts | None, drops: SkipCounts | None = None) -> None:
        self._counts = skips, drops
        self._before: tuple[SkipCounts | None, SkipCounts | None] = (None, None)

    def __enter__(self) -> None:
        self._before = _thread_counts.skips, _thread_counts.drops
        _thread_counts.skips, _thread_counts.drops = self._counts

    def __exit__(self, *failure: object) -> None:
        _thread_counts.skips, _thread_counts.drops = self._before


def skip_items(items: Iterator[Any], count: int) -> int:
    """Draw items that were given before a run was saved; what happens on the way has been counted then.

    Returns:
        How many there were.
    """
    with count_skipped(None):
        return sum(1 for _ in islice(items, count))
