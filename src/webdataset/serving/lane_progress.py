"""How far a trainer's lane is, when a second server is asked for its next part (hedging), and whether the two agree.

Theory. A lane can be opened anew at any server after the part that was accepted last, since each part says what changed
in the states of streams. A server that lives and sends nothing (an overloaded host, a hung disk) costs the whole
training its pace. After the longest of a second and five times what 95 of 100 parts took, the trainer opens its lane a
second time, at another server and from the same state. The first part wins, and the lane stays with its server (Dean
and Barroso 2013, *The Tail at Scale*). What follows a state is the same at every server; so the part of the loser is
waited for a while and compared, and servers that differ are an error.

Bounds keep an overload from feeding itself: a trainer opens one second lane for twenty parts at most, one at a time,
and a server takes second lanes up to a twentieth of its lanes.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from webdataset.core.errors import StateMismatch
from webdataset.flow.elastic_state import ReceivedState
from webdataset.loading.batching import BatchMark
from webdataset.loading.partition import EpochStart
from webdataset.serving.wire_format import Frame
from webdataset.serving.zmq_transport import Channel
from webdataset.stages.base import Json

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


class LaneItem(NamedTuple):
    """What a lane hands out: a batch (or END) with its mark, or an error."""

    batch: object
    mark: BatchMark
    error: BaseException | None = None
    size_bytes: int = 0


@dataclass(frozen=True)
class LaneOrder:
    """An epoch as it is asked for.

    Args:
        beginning: of the epoch.
        batch: samples in a batch; 0 for what the dataset gives.
        flags: ``drop_last``, ``exact``, ``ragged``.
        ahead: batches that may wait here.
        ahead_bytes: the memory that these may take; one is always allowed.
    """

    beginning: EpochStart
    batch: int
    flags: dict[str, bool]
    ahead: int
    ahead_bytes: int


@dataclass
class LanePosition:
    """After which part a lane is opened anew."""

    beginning: EpochStart
    received: ReceivedState
    untold: dict[int, int] = field(default_factory=dict)
    until: int = 0
    beyond: int = 0

    def take(self, mark: BatchMark) -> None:
        """Take note of a part that was accepted."""
        for worker, turns, progress in mark.progress:
            if progress is None:
                self.untold[worker] = self.untold.get(worker, 0) + turns
            else:
                self.received.take(progress)
                self.untold[worker] = 0
        self.beyond, self.until = mark.beyond, mark.until

    def find_index(self) -> int:
        """Return the first index that was not accepted where the state is before it; else 0."""
        behind = self.beyond or any(self.untold.values())
        return self.beginning.start + self.until if behind else 0


@dataclass(eq=False)
class LaneServer:
    """A server as this trainer knows it."""

    url: str
    # not to be asked before; words of what it said last
    pause_until: float = 0.0
    words: str = "not asked yet"
    # for which it was left, as the log says; until it is connected again
    told: str = ""
    refusals: int = 0
    functions: Json = None


@dataclass(eq=False)
class LaneLine:
    """A connection to a server, and the lane that is open over it."""

    server: LaneServer
    channel: Channel
    heard: float
    beaten: float = 0.0
    welcome: bool = False
    # 0: no lane is open
    nonce: int = 0
    # of parts that were accepted in the epoch before it was opened; that came over it; that may come
    before: int = 0
    seq: int = 0
    granted: int = 0
    # since when nothing came that was asked for
    waits_since: float = 0.0

    def send(self, *frames: Frame) -> None:
        """Send a message; where the line is full it is lost, and the server is taken for silent."""
        self.channel.send(frames)


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


class HedgedPart(NamedTuple):
    """What a server said with a part, to be compared with what another one says with the same part.

    Args:
        number: of the part in the trainer's epoch.
        url: of the server.
        samples: in the batch; of all before it the two agree.
        until: all indices below this one are received with it.
        aligned: nothing beyond that index is.
        state: after it.
    """

    number: int
    url: str
    samples: int
    until: int
    aligned: bool
    state: dict[str, Json]

    @classmethod
    def of_mark(cls, number: int, url: str, before: Mapping[str, Json] | None, mark: BatchMark) -> "HedgedPart":
        """Return it.

        Args:
            number: of the part.
            url: of its server.
            before: the state before it; None where none is known, so that states are not compared.
            mark: that came with it.
        """
        if before is None:
            return cls(number, url, mark.samples, mark.until, False, {})
        after = ReceivedState({**before, "memories": dict(before["memories"])})
        told = True
        for _, _, progress in mark.progress:
            told = told and progress is not None
            after.take(progress or {})
        return cls(number, url, mark.samples, mark.until, told and not mark.beyond, after.state_dict())


def compare_parts(one: HedgedPart, other: HedgedPart, functions: Mapping[str, Json]) -> None:
    """Compare what two servers made after the same state.

    Where a batch does not end on the border of a window, as when streams have ended, states are not comparable, and
    numbers of samples alone are compared.

    Args:
        one: of a server.
        other: of the other one, of the same part.
        functions: url of a server to the digests of its dataset's functions.

    Raises:
        StateMismatch: they differ; the message names both servers.
    """
    comparable = one.aligned and other.aligned and one.until == other.until
    if one.samples == other.samples and (not comparable or one.state == other.state):
        return
    described = "; ".join(
        f"{each.url} gave {each.samples} samples, functions {functions.get(each.url)}" for each in (one, other)
    )
    raise StateMismatch(
        f"two data servers made different batches after the same state ({described}): they have other shards, other "
        "code or other versions of what they import. Serve the same dataset everywhere, and continue from the last "
        "checkpoint"
    )
