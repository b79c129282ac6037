"""When a trainer asks a second server for a batch that the first one does not send, and what came of it.

Theory. A server that lives and sends nothing (an overloaded host, a hung disk) costs the whole training its pace. After
the longest of a second and five times what 95 of 100 parts took, the trainer opens its lane a second time, at another
server and from the same state. The first part wins, and the lane stays with its server (Dean and Barroso 2013, *The
Tail at Scale*). What follows a state is the same at every server; so the part of the loser is waited for a while and
compared, and servers that differ are an error.

Bounds keep an overload from feeding itself: a trainer opens one second lane for twenty parts at most, one at a time,
and a server takes second lanes up to a twentieth of its lanes.
"""

import math
from collections import deque
from typing import Final

HEDGED_SHARE: Final = 0.05
"""Of a server's lanes, and of a trainer's parts."""
# how long the loser's part is waited for
COMPARE_SECONDS: Final = 10.0
_FACTOR = 5.0
_PERCENTILE = 0.95
_KEPT_PARTS = 100
# before so many parts are known, a server is starting, or restoring
_FEWEST_PARTS = 8
_FIRST_SECONDS = 30.0


class HedgeRule:
    """Tells when a lane is opened a second time.

    Args:
        least_seconds: that a part may take in any case; None opens no second lane.
    """

    def __init__(self, least_seconds: float | None) -> None:
        self._least = least_seconds
        self._taken: deque[float] = deque(maxlen=_KEPT_PARTS)
        self._parts = 0
        self.opened = 0
        self.won = 0

    def note_part(self, seconds: float) -> None:
        """Take note of a part, and how long it was waited for."""
        self._parts += 1
        self._taken.append(seconds)

    def is_due(self, waited_seconds: float) -> bool:
        """Tell whether a part that was waited for so long is asked for elsewhere."""
        if self._least is None or self.opened >= 1 + self._parts * HEDGED_SHARE:
            return False
        if len(self._taken) < _FEWEST_PARTS:
            return waited_seconds > max(_FIRST_SECONDS, self._least)
        usual = sorted(self._taken)[math.ceil(_PERCENTILE * len(self._taken)) - 1]
        return waited_seconds > max(self._least, _FACTOR * usual)


def count_allowed_hedges(lanes: int) -> int:
    """Return how many second lanes a server takes.

    Args:
        lanes: that it has.
    """
    return max(1, math.floor(lanes * HEDGED_SHARE))
