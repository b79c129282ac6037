"""Counting what a run goes on without: failures that handlers let pass, and samples that functions dropped.

Theory. What is counted belongs to the item that is given next: it is counted while that item is being made. So the
counts behind an item follow from the items alone, whoever made them and however far ahead. What a restored run makes
once more (buffers, the past of a replayed stage) was counted before its state was saved, and is not counted again.

Flows in: a handler's answer, a function's None. Flows out: counts by stage, to whoever counts in this thread (a
loader's worker, a timed run). Costs nothing where nothing fails and nothing is dropped.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

from .policies import Handler

Skips = Counter[str]


class _Here(threading.local):
    skips: Skips | None = None
    drops: Skips | None = None


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


def count_dropped(stage: str) -> None:
    """Count a sample that a function dropped by returning None.

    Args:
        stage: under which name it is counted.
    """
    drops = _here.drops
    if drops is not None:
        drops[stage] += 1


class counting:  # noqa: N801  reads as what it does: with counting(skips)
    """Count in this thread, within a ``with`` block, what is gone on without. May be entered again, not twice at once.

    Args:
        skips: failures that handlers let pass, by stage; added to. None counts nothing.
        drops: samples that functions dropped, by stage; added to. None counts none.
    """

    __slots__ = ("_before", "_counts")

    def __init__(self, skips: Skips | None, drops: Skips | None = None) -> None:
        self._counts = skips, drops
        self._before: tuple[Skips | None, Skips | None] = (None, None)

    def __enter__(self) -> None:
        self._before = _here.skips, _here.drops
        _here.skips, _here.drops = self._counts

    def __exit__(self, *failure: object) -> None:
        _here.skips, _here.drops = self._before


def pass_over(items: Iterator[Any], count: int) -> int:
    """Draw items that were given before a run was saved; what happens on the way has been counted then.

    Args:
        items: made once more.
        count: how many to draw.

    Returns:
        How many there were.
    """
    with counting(None):
        return sum(1 for _ in islice(items, count))
