"""batched and listed."""

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import UsageError
from webdataset.core.json_types import as_int
from webdataset.stages.batch import batched, combine_values, listed


def test_batches_are_full_but_the_last():
    """Unless partial is off, the last one may be smaller."""
    assert list(listed(2)(range(5))) == [[0, 1], [2, 3], [4]]
    assert list(listed(2, partial=False)(range(5))) == [[0, 1], [2, 3]]
    assert list(listed(5)(range(5))) == [[0, 1, 2, 3, 4]]
    assert list(listed(2)([])) == []


def test_batched_collates():
    """By default into columns, otherwise as told; None leaves the list."""
    assert list(batched(2, collation_fn=sum)(range(5))) == [1, 5, 4]
    assert list(batched(2, collation_fn=None)(range(3))) == [[0, 1], [2]]
    numbers, names = next(batched(2)([(1, "a"), (2, "b")]))
    assert numbers.tolist() == [1, 2]
    assert names == ["a", "b"]


def test_batches_read_no_more_than_they_hold():
    """A stream that waits for its next sample gives the batch before it."""
    source = iter(range(10))
    assert next(listed(3)(source)) == [0, 1, 2]
    assert next(source) == 3


@pytest.mark.parametrize("size", [0, -1])
def test_batches_hold_at_least_one(size):
    """Anything else is refused at once."""
    with pytest.raises(UsageError, match="at least one"):
        batched(size)


def refused(samples):
    """Always fails."""
    raise ZeroDivisionError("as planned")


def test_a_collation_that_fails_is_located():
    """Stage, function, file, and the key of the batch's first sample are noted; refetching notes them, too."""
    samples = [{"__key__": "k1"}, {"__key__": "k2"}, {"__key__": "k3"}]
    stage = batched(2, refused)

    def refetched():
        stage.refetch([[0, 1]], lambda addresses: [samples[as_int(address)] for address in addresses])

    def tracked():
        list(wds.DataPipeline(lambda: iter(samples), stage).start())

    for failing in (lambda: list(stage(samples)), tracked, refetched):
        with pytest.raises(ZeroDivisionError) as caught:
            failing()
        (note,) = caught.value.__notes__
        for part in ("batched: refused (", "test_batching.py:", "key='k1'"):
            assert part in note


def test_repr_shows_what_was_written():
    """The maker's name, with what is not the default."""
    assert repr(batched(3)) == "batched(3)"
    assert repr(listed(3, partial=False)) == "listed(3, partial=False)"
    assert "collation_fn=<built-in function sum>" in repr(batched(3, sum))


def test_a_column_is_combined_unless_told_otherwise():
    """Numbers and arrays become one array; each of the two can be left as it is."""
    numbers, arrays = [1, 2, 3], [np.zeros(2), np.ones(2)]
    assert combine_values(numbers).tolist() == numbers
    assert combine_values(arrays).tolist() == [[0, 0], [1, 1]]
    assert combine_values(numbers, combine_scalars=False) is numbers
    assert combine_values(arrays, combine_tensors=False) is arrays
    assert combine_values(numbers, combine_tensors=False).tolist() == numbers
    assert combine_values(arrays, combine_scalars=False).shape == (2, 2)


@pytest.mark.parametrize(("size", "whole"), [(8.0, 8), (10 / 3, 4), (0.5, 1), (np.float32(3), 3), (np.int64(2), 2)])
def test_sizes_that_programs_compute(size, whole):
    """``64 / world_size`` is a float: a batch has as many samples as it takes to reach it."""
    expected = list(wds.batched(whole, collation_fn=None)(range(20)))
    assert list(wds.batched(size, collation_fn=None)(range(20))) == expected
    assert list(wds.listed(size)(range(20))) == expected
    assert list(wds.filters._batched(range(20), size, None)) == expected
    assert [len(batch) for batch in expected[:-1]] == [whole] * (len(expected) - 1)


@pytest.mark.parametrize("size", [0, -1, 0.0, -0.5, float("nan"), float("inf")])
def test_sizes_without_a_sample(size):
    """They are refused where the stage is made."""
    for make in (wds.batched, wds.listed):
        with pytest.raises(UsageError, match="at least one sample"):
            make(size)
