"""What a worker has to tell beside its samples: what its stages took, and what handlers let pass.

Flows in: a meter, counts. Flows out: at most four times a second, and at the end, what came since the last time. Small,
so that it travels with a part. Keeps no sample.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from webdataset.flow.timing import Row
from webdataset.ground.skips import Skips, counting

_OFTEN_SECONDS = 0.25


@dataclass
class Findings:
    """What a worker found since it last said so.

    Args:
        stages: name, samples and seconds of each stage, in the order of the pipeline.
        skips: how many failures handlers let pass, by stage.
    """

    stages: list[Row] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)


class Notes:
    """A worker's notes on one epoch.

    Args:
        share: its samples; has a ``meter`` where its stages are timed.
    """

    def __init__(self, share: Any) -> None:
        self._meter = getattr(share, "meter", None)
        self.skips = Skips()
        self.counting = counting(self.skips)
        self._drawn = 0
        self._told = time.perf_counter()

    def told(self, count: int, *, over: bool) -> Findings | None:
        """Return what is to be told with a part.

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
        skips = dict(self.skips)
        self.skips.clear()
        return Findings(stages, skips) if stages or skips else None
