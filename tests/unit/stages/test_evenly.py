"""Mixing in exact proportions, and one behind the other."""

import itertools
import json
from collections import Counter

import pytest

from webdataset.core.errors import UsageError
from webdataset.flow.run import Flow
from webdataset.stages.base import Run
from webdataset.stages.mix import Concat, EvenMix
from webdataset.testing.stages import check_resume


class Endless:
    """Gives one letter for ever."""

    def __init__(self, letter):
        self.letter = letter

    def __iter__(self):
        return itertools.repeat(self.letter)


def drawn(mix, count, seed=1):
    """Return the first items of a run."""
    with Flow([mix], Run(seed=seed)) as flow:
        return list(itertools.islice(iter(flow), count))


@pytest.mark.parametrize("weights", [[1], [1, 1], [1, 2, 3], [0.001, 1], [1e9, 3e9], [5, 0, 5], [0, 1], [1] * 40])
@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_shares_are_kept_everywhere(weights, seed):
    """In every window each source has its share, up to a few samples."""
    found = drawn(EvenMix([Endless(n) for n in range(len(weights))], weights), 5000, seed)
    for start, stop in ((0, 100), (37, 1037), (0, 5000), (4990, 5000)):
        counts = Counter(found[start:stop])
        for number, weight in enumerate(weights):
            assert abs(counts[number] - (stop - start) * weight / sum(weights)) <= 4
            assert weight > 0 or not counts[number]


def test_seeds():
    """The run's seed decides where it begins."""
    mix = EvenMix([Endless(n) for n in range(5)])
    orders = [tuple(drawn(mix, 40, seed)) for seed in range(20)]
    assert len(set(orders)) > 15
    assert tuple(drawn(mix, 40, 3)) == orders[3]


def test_ends():
    """It ends with its first source, or goes on with the shares of those that are left; no weight never comes."""
    assert drawn(EvenMix([range(3), Endless("x")], [1, 1]), 100).count("x") in range(2, 8)
    found = drawn(EvenMix([range(10), "ab" * 300, "c" * 300], [2, 1, 1], longest=True), 10_000)
    assert len(found) == 910
    rest = found[40:500]
    assert abs(rest.count("c") - len(rest) / 2) < 4
    assert drawn(EvenMix([range(3), "abc"], [1, 0], longest=True), 100) == [0, 1, 2]
    assert drawn(EvenMix([], []), 5) == []


def test_arguments():
    """Weights are checked as those of a random mix are."""
    for weights in ([1], [-1, 1], [0, 0], [float("nan"), 1]):
        with pytest.raises(UsageError):
            EvenMix(["a", "b"], weights)


def test_resume():
    """Snapshots after every item, of mixes that end and of mixes of mixes."""
    check_resume(lambda: [EvenMix([range(9), range(10, 14)], [2, 1], longest=True)])
    check_resume(lambda: [EvenMix([range(9), EvenMix(["abc", "defgh"])], [2, 1])])
    check_resume(lambda: [Concat([range(3), EvenMix([range(4), "xy"], longest=True), []])])


def test_concat():
    """One behind the other; empty ones are stepped over."""
    assert drawn(Concat([[], range(3), [], "ab"]), 99) == [0, 1, 2, "a", "b"]
    assert drawn(Concat([]), 9) == []


def test_snapshot_is_small():
    """All that is remembered is the number of draws."""
    flow = Flow([EvenMix([range(9), range(9)])], Run(seed=1, tracked=True))
    list(itertools.islice(iter(flow), 5))
    assert len(json.dumps(flow.snapshot())) < 300
    flow.close()
