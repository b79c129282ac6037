"""MockDataset, with_epoch, with_length."""

import pickle

import pytest

from webdataset.core.errors import NoSamples, UsageError
from webdataset.stages.datasets import MockDataset, with_epoch, with_length


def test_mock_dataset_gives_the_same_object():
    """As often as told, in every pass."""
    sample = {"a": 1}
    mock = MockDataset(sample, 3)
    assert [value is sample for value in mock] == [True] * 3
    assert len(list(mock)) == 3


def test_with_epoch_goes_on_where_it_ended():
    """Epochs of one length over a dataset of another."""
    epochs = with_epoch([1, 2, 3], 4)
    assert [list(epochs), list(epochs)] == [[1, 2, 3, 1], [2, 3, 1, 2]]
    assert list(pickle.loads(pickle.dumps(epochs))) == [1, 2, 3, 1]


def test_with_epoch_tells_what_cannot_be():
    """An empty dataset, an empty epoch."""
    with pytest.raises(NoSamples, match="empty"):
        list(with_epoch([], 4))
    with pytest.raises(UsageError):
        with_epoch([1], 0)


def test_with_length_has_a_length():
    """And is otherwise the dataset."""
    dataset = with_length([1, 2, 3], 7)
    assert (len(dataset), list(dataset)) == (7, [1, 2, 3])


@pytest.mark.torch
def test_all_are_iterable_datasets():
    """A DataLoader takes them."""
    torch = pytest.importorskip("torch")
    for dataset in (MockDataset(1, 1), with_epoch([1], 1), with_length([1], 1)):
        assert isinstance(dataset, torch.utils.data.IterableDataset)
        assert list(torch.utils.data.DataLoader(dataset, batch_size=None)) == [1]
