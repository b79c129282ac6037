"""What a worker has to tell beside its samples: what its stages took, and what it went on without.

Flows in: a meter, counts. Flows out: what stages took, at most four times a second and at the end; counts, by the index
of the sample that they belong to (see :mod:`webdataset.ground.skips`). Small, so that both travel with a part. Keeps no
sample.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from webdataset.flow.timing import Row
from webdataset.ground.skips import Skips, counting

_OFTEN_SECONDS = 0.25


@dataclass
class Findings:
    """What a worker found since it last said so.

    Args:
        stages: name, samples and seconds of each stage, in the order of the pipeline.
    """

    stages: list[Row] = field(default_factory=list)


class Counted(NamedTuple):
    """What was gone on without while one sample of a window was made, or while the end of its stream was found.

    Args:
        row: of the sample, or where it would stand.
        skips: failures that handlers let pass, by stage.
        drops: samples that functions dropped, by stage.
    """

    row: int
    skips: dict[str, int]
    drops: dict[str, int]


def total(counted: Iterable[Counted]) -> tuple[Skips, Skips]:
    """Return the sums of some counts: failures that handlers let pass, and samples that functions dropped, by stage."""
    skips, drops = Skips(), Skips()
    for each in counted:
        skips.update(each.skips)
        drops.update(each.drops)
    return skips, drops


class Notes:
    """A worker's notes on one epoch.

    Args:
        share: its samples; has a ``meter`` where its stages are timed.
    """

    def __init__(self, share: Any) -> None:
        self._meter = getattr(share, "meter", None)
        self.skips, self.drops = Skips(), Skips()
        self.counting = counting(self.skips, self.drops)
        self._drawn = 0
        self._told = time.perf_counter()

    def counted(self, row: int) -> Counted:
        """Return what was counted since the last time, as what belongs to a row."""
        found = Counted(row, dict(self.skips), dict(self.drops))
        self.skips.clear()
        self.drops.clear()
        return found

    def told(self, count: int, *, over: bool) -> Findings | None:
        """Return what is to be told about stages with a part.

        Args:
            count: samples in the part.
            over: nothing comes after it.

        Returns:
            What came since the last time; None where it is too early, or there is nothing.
        """
        self._drawn += count
        now = time.perf_counter()
        if not over and now - self._told < _OFTEN_SECONDS:
            return None
        self._told = now
        stages = [] if self._meter is None else self._meter.estimate(self._drawn)
        return Findings(stages) if stages else None
