"""Counting what handlers let pass: every failure that a run stepped over, by the stage it happened in.

Flows in: a handler's answer. Flows out: counts, to whoever counts in this thread (a loader's worker, a timed run).
Costs nothing where nothing fails.
"""

import threading
from collections import Counter

from .policies import Handler

Skips = Counter[str]


class _Here(threading.local):
    skips: Skips | None = None


_here = _Here()


def goes_on(handler: Handler, exn: Exception, stage: str) -> bool:
    """Ask a handler about a failure, and count it where the run goes on without what failed.

    Args:
        handler: true goes on, false ends the stage; it may raise.
        exn: what went wrong.
        stage: under which name it is counted.

    Returns:
        Whether to go on.

    Raises:
        Exception: whatever the handler raises.
    """
    answer = bool(handler(exn))
    skips = _here.skips
    if answer and skips is not None:
        skips[stage] += 1
    return answer


class counting:  # noqa: N801  reads as what it does: with counting(skips)
    """Count in this thread, within a ``with`` block, what handlers let pass. May be entered again, not twice at once.

    Args:
        skips: counts by stage; added to.
    """

    __slots__ = ("_before", "_skips")

    def __init__(self, skips: Skips) -> None:
        self._skips = skips
        self._before: Skips | None = None

    def __enter__(self) -> None:
        self._before, _here.skips = _here.skips, self._skips

    def __exit__(self, *failure: object) -> None:
        _here.skips = self._before
