"""Datasets mixed in exact proportions, and datasets one behind the other.

Theory. Drawing a source at random for each sample is off by one percent in 10 000 samples one time in twenty. Here the
n-th draw is ``u = (start + n * g) mod 1``, with the golden section g and a start that the run's seed gives: the
points of such a sequence fill every interval evenly, so that after N samples each share is off by no more than about
log(N) / N, wherever one begins to count, and nothing but n has to be remembered.

Flows in: datasets. Flows out: their items.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from .base import Run
from .mixing import Branches, Mixture, RandomMix

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 times the golden section
_MASK = (1 << 64) - 1


class EvenMix(RandomMix):
    """Mix datasets by weight, evenly: the realised shares follow the weights within about log(N) / N.

    Args:
        datasets: datasets or other iterables.
        probs: weight of each dataset, at least 0; all alike where it is None. They need not add up to 1.
        longest: drop a dataset that has ended and go on with the others; otherwise end with the first that ends.

    Raises:
        UsageError: not one weight for each dataset, a negative weight, or no weight above 0.

    Flow: in an order fixed by seed and epoch, each source in its own order; holds nothing; resumes exactly where its
    sources do.
    """

    def __init__(self, datasets: Any, probs: Any = None, *, longest: bool = False) -> None:
        super().__init__(datasets, probs, longest)

    def begin(self, run: Run) -> Branches:
        """Return the sources of one run."""
        return Branches(self.datasets, run)

    def _places(self, memory: Branches) -> Iterator[int]:
        start, live = memory.run.random("evenly").getrandbits(64), memory.live
        bounds: list[int] = []
        while live:
            if len(bounds) != len(live):  # at the start, and when a source has ended
                bounds = _bounds([self.probs[number] for number in live])
                if bounds[-1] == 0:  # what is left has no weight, and never comes
                    return
            point = (start + memory.turn * _GOLDEN) & _MASK
            memory.turn += 1
            place = 0
            while point >= bounds[place]:
                place += 1
            yield place


def _bounds(weights: list[float]) -> list[int]:
    """Return the upper ends of the intervals that belong to the weights, in 2**64ths."""
    sums = list(accumulate(weights))
    total = sums[-1]
    if not total > 0:
        return [0] * len(sums)
    ends = [int(part / total * (_MASK + 1)) for part in sums]
    last = max(number for number, weight in enumerate(weights) if weight > 0)
    return [end if number < last else _MASK + 1 for number, end in enumerate(ends)]


class Concat(Mixture):
    """Datasets one behind the other.

    Args:
        datasets: datasets or other iterables.

    Flow: each source in its own order; holds nothing; resumes exactly where its sources do.
    """

    def __init__(self, datasets: Any) -> None:
        super().__init__(datasets, True)

    def _places(self, memory: Branches) -> Iterator[int]:
        while memory.live:
            yield 0
