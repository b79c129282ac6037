"""Small sources: a mock, an endless dataset cut into epochs, a dataset with a length.

Flows in: a sample or a dataset. Flows out: an iterable that can stand first in a pipeline.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from webdataset.ground.errors import NoSamples, UsageError
from webdataset.ground.torchlike import IterableDataset


class MockDataset(IterableDataset):
    """The same sample over and over, for tests and for timing what comes after it.

    Args:
        sample: given each time, the same object.
        length: how often.
    """

    def __init__(self, sample: Any, length: int) -> None:
        self.sample = sample
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.length):
            yield self.sample


class with_epoch(IterableDataset):  # noqa: N801  upstream's name
    """A dataset in epochs of a fixed length: each epoch goes on where the last one ended.

    Args:
        dataset: read over and over.
        length: number of samples in an epoch, at least 1.

    Attributes:
        unrepeatable: why a run over this cannot be saved and resumed, and what to write instead.

    Raises:
        UsageError: a length below 1.
        NoSamples: the dataset is empty (when it is iterated).
    """

    unrepeatable = (
        "each of its epochs goes on where the one before ended, so that none can be read again; write "
        "wds.DataPipeline(dataset).with_epoch(n) in its place"
    )

    def __init__(self, dataset: Iterable[Any], length: int) -> None:
        if length < 1:
            raise UsageError(f"length={length!r}: an epoch holds at least one sample")
        self.dataset = dataset
        self.length = length
        self._items: Iterator[Any] | None = None

    def _cycle(self) -> Iterator[Any]:
        while True:
            empty = True
            for sample in self.dataset:
                empty = False
                yield sample
            if empty:
                raise NoSamples(f"with_epoch({self.dataset!r}): the dataset is empty")

    def __iter__(self) -> Iterator[Any]:
        if self._items is None:
            self._items = self._cycle()
        for _ in range(self.length):
            yield next(self._items)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the iterator: a copy begins at the start of the dataset."""
        return {**self.__dict__, "_items": None}


class with_length(IterableDataset):  # noqa: N801  upstream's name
    """A dataset that says how long it is.

    Args:
        dataset: read as it is.
        length: what ``len`` returns.
    """

    def __init__(self, dataset: Iterable[Any], length: int) -> None:
        self.dataset = dataset
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def __len__(self) -> int:
        return self.length
