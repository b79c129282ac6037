"""Whole numbers of numpy, and floats that are whole, mean what Python's do; what is no number is told where given."""

import json

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import UsageError
from webdataset.stages.argument_checks import read_bound

ROWS = list(range(40))


def read():
    """Return a dataset of rows with a seed."""
    dataset = wds.DataPipeline(lambda: iter(ROWS))
    dataset.seed = 3
    return dataset


CALLS = {
    "batched": lambda number: read().compose(wds.batched(number(8), collation_fn=tuple)),
    "shuffle": lambda number: read().compose(wds.shuffle(number(8), initial=number(4), seed=number(5))),
    "block_shuffle": lambda number: read().compose(wds.block_shuffle(number(8), seed=number(1))),
    "detshuffle": lambda number: read().compose(wds.detshuffle(number(8), seed=number(1), epoch=number(4))),
    "slice": lambda number: read().compose(wds.slice(number(3), number(30), number(2))),
    "with_epoch": lambda number: read().with_epoch(number(12)),
    "repeat": lambda number: read().repeat(number(2), number(70)),
}
NUMPY = [np.int64, np.int32, np.uint8]


@pytest.mark.parametrize("kind", [*NUMPY, float])
@pytest.mark.parametrize("call", CALLS)
def test_equal_numbers_mean_the_same(call, kind):
    """The same items, and, in streams, a state that can be saved as JSON and loaded where Python's numbers stand."""
    make = CALLS[call]
    if call == "slice" and kind is float:
        with pytest.raises(UsageError, match="positions are whole numbers"):
            make(kind)
        return
    assert list(make(kind)) == list(make(int))
    given = iter(make(kind).elastic(4))
    items = [next(given), next(given)]
    expected = iter(make(int).elastic(4))
    assert items == [next(expected), next(expected)]
    expected.load_state_dict(json.loads(json.dumps(given.state_dict())))
    assert list(given) == list(expected)


@pytest.mark.parametrize("kind", NUMPY)
def test_numbers_of_streams_and_steps(kind):
    """elastic(streams) and equal_epochs(steps=)."""
    assert list(read().elastic(kind(4))) == list(read().elastic(4))
    assert json.dumps(read().elastic(kind(4)).state_dict()) == json.dumps(read().elastic(4).state_dict())
    steps = [list(read().equal_epochs("resample", steps=number(5))) for number in (int, kind)]
    assert steps[0] == steps[1] == ROWS[:5]
    for wrong in (True, 2.5, "4", kind(0)):
        with pytest.raises(UsageError, match="streams="):
            read().elastic(wrong)
        with pytest.raises(UsageError, match="steps="):
            read().equal_epochs("resample", steps=wrong)


def test_other_bounds_are_told():
    """A fraction is rounded up, an infinite number bounds nothing; text, lists and not-a-number are none."""
    assert [read_bound("repeat", number, "n") for number in (2.5, 3.0, float("inf"), np.float64(4), -1)] == [
        3, 3, -1, 4, -1,
    ]  # fmt: skip
    for wrong in ("4", [4], float("nan"), None):
        with pytest.raises(UsageError, match=r"with_epoch\(nsamples="):
            read().with_epoch(wrong)
    for seed in ("1", 1.5, [1]):
        with pytest.raises(UsageError, match="seed="):
            wds.block_shuffle(4, seed=seed)  # type: ignore[arg-type]
