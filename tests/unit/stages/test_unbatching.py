"""unbatched and unlisted."""

import numpy as np
import pytest

from webdataset.core.errors import SampleError
from webdataset.stages.batch import _unbatched, _unlisted, split_rows, unbatched, unlisted


def test_tuples_and_lists_give_tuples():
    """Columns of any kind that has an order."""
    assert list(unbatched()([((1, 2), ["a", "b"]), [[3], "c"]])) == [(1, "a"), (2, "b"), (3, "c")]
    assert [value.tolist() for (value,) in unbatched()([(np.eye(2),)])] == [[1, 0], [0, 1]]
    assert list(_unbatched([((1,), (2,))])) == [(1, 2)]


def test_dictionaries_give_dictionaries():
    """Nested ones too."""
    batch = {"a": [1, 2], "meta": {"x": [3, 4], "y": "pq"}}
    assert list(unbatched()([batch])) == [{"a": 1, "meta": {"x": 3, "y": "p"}}, {"a": 2, "meta": {"x": 4, "y": "q"}}]


@pytest.mark.parametrize("batch", [((1, 2), (3,)), {"a": [1], "b": []}, (), {}, "text", (1, 2), 5])
def test_what_is_no_batch_is_told(batch):
    """Columns of different lengths lose nothing silently."""
    with pytest.raises(SampleError):
        list(unbatched()([batch]))


def test_the_lengths_are_named():
    """By column."""
    with pytest.raises(SampleError, match=r"\{'a': 2, 'b': 1\}"):
        split_rows({"a": [1, 2], "b": [1]})


def test_unlisted_takes_lists_apart():
    """Lists and tuples of anything; empty ones give nothing."""
    assert list(unlisted()([[1, 2], [], (3,)])) == [1, 2, 3]
    assert list(_unlisted([[1]])) == [1]
    with pytest.raises(SampleError, match="str"):
        list(unlisted()(["ab"]))


@pytest.mark.torch
def test_tensors_are_taken_apart():
    """Along their first axis."""
    torch = pytest.importorskip("torch")
    samples = list(unbatched()([(torch.arange(6).reshape(3, 2), [1, 2, 3])]))
    assert [(pair.tolist(), number) for pair, number in samples] == [([0, 1], 1), ([2, 3], 2), ([4, 5], 3)]
