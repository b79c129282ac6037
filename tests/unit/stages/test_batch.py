"""default_collation_fn: samples into columns."""

import subprocess
import sys

import numpy as np
import pytest

from webdataset.core.errors import SampleError, UsageError
from webdataset.stages.batch import default_collation_fn


def test_tuples_become_a_tuple_of_columns():
    """Numbers become arrays, everything else lists; lists of samples are the same."""
    for kind in (tuple, list):
        columns = default_collation_fn([kind((1, 2.5, "a", b"x", None, {"d": 1})), kind((2, 3.5, "b", b"y", None, {}))])
        assert isinstance(columns, tuple)
        assert [type(column) for column in columns] == [np.ndarray, np.ndarray, list, list, list, list]
        assert columns[0].dtype == np.int64
        assert columns[1].tolist() == [2.5, 3.5]
        assert columns[5] == [{"d": 1}, {}]


def test_dictionaries_keep_the_first_samples_order():
    """The same order in every process, whatever the hash seed."""
    batch = default_collation_fn([{"z": 1, "a": "x", "m": 2.0}, {"a": "y", "m": 3.0, "z": 2}])
    assert list(batch) == ["z", "a", "m"]
    assert batch["z"].tolist() == [1, 2]
    assert batch["a"] == ["x", "y"]


def test_arrays_of_one_shape_are_stacked():
    """[N, ...], with their dtype."""
    (column,) = default_collation_fn([(np.zeros((2, 3), np.uint8),)] * 4)
    assert (column.shape, column.dtype) == ((4, 2, 3), np.uint8)
    (column,) = default_collation_fn([(np.array(1),), (np.array(2),)])
    assert column.tolist() == [1, 2]


def test_plain_values_make_one_column():
    """Samples need not be tuples."""
    assert default_collation_fn([1, 2]).tolist() == [1, 2]
    assert default_collation_fn(["a", "b"]) == ["a", "b"]
    assert default_collation_fn([np.zeros(2)] * 3).shape == (3, 2)


def test_combining_can_be_switched_off():
    """Scalars and tensors apart."""
    samples = [(1, np.zeros(2)), (2, np.ones(2))]
    numbers, arrays = default_collation_fn(samples, combine_scalars=False)
    assert (numbers, arrays.shape) == ([1, 2], (2, 2))
    numbers, arrays = default_collation_fn(samples, combine_tensors=False)
    assert (numbers.tolist(), type(arrays)) == ([1, 2], list)


def test_nested_samples_stay_lists():
    """A decoded JSON document is not taken apart: documents need not have the same keys."""
    batch = default_collation_fn([{"json": {"a": 1}, "pair": (1, 2)}, {"json": {"b": 2}, "pair": (3, 4)}])
    assert batch == {"json": [{"a": 1}, {"b": 2}], "pair": [(1, 2), (3, 4)]}


def test_unlike_samples_are_told():
    """Keys, lengths, shapes: an error that names them and what to do."""
    with pytest.raises(SampleError, match=r"\['a'\] and \['b'\].*to_tuple") as caught:
        default_collation_fn([{"a": 1}, {"b": 2}])
    assert caught.value.key is None
    with pytest.raises(SampleError, match=r"lengths.*\[1, 2\]"):
        default_collation_fn([(1, 2), (3,)])
    with pytest.raises(SampleError, match=r"\(2,\), \(3,\).*collation_fn=None"):
        default_collation_fn([(np.zeros(2),), (np.zeros(3),)])
    with pytest.raises(SampleError, match="int"):
        default_collation_fn([(np.zeros(2),), (3,)])
    with pytest.raises(UsageError, match="empty"):
        default_collation_fn([])


@pytest.mark.torch
def test_tensors_are_stacked():
    """Where torch is loaded; of one shape only."""
    torch = pytest.importorskip("torch")
    (column,) = default_collation_fn([(torch.zeros(2, 3),)] * 4)
    assert column.shape == (4, 2, 3)
    assert isinstance(column, torch.Tensor)
    with pytest.raises(SampleError, match="shapes"):
        default_collation_fn([(torch.zeros(2),), (torch.zeros(3),)])


def test_collation_loads_no_torch():
    """Batches of arrays are made without it."""
    code = (
        "import sys; from webdataset.filters import default_collation_fn as c; assert 'numpy' not in sys.modules; "
        "import numpy; c([(1, numpy.zeros(2))]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
