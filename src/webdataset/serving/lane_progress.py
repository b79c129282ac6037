"""How far a trainer's lane is: what it was asked for, what it has accepted, and whether two servers agree on it.

Theory. A lane can be opened anew at any server after the part that was accepted last, since each part says what changed
in the states of streams. Two servers that made the same part after the same state must be in the same state after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from webdataset.core.errors import StateMismatch
from webdataset.flow.elastic_state import ReceivedState
from webdataset.loading.batching import BatchMark
from webdataset.loading.partition import EpochStart
from webdataset.stages.base import Json


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
