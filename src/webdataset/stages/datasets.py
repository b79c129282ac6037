"""Small sources: a mock, a dataset in epochs, a dataset with a length, and samples of an AIStore cluster.

An AIStore source names objects and members of archives, and gives their samples in that order, many by one request.
The cluster gathers what lies scattered, so that a random order costs few requests instead of one for each field.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import islice

from webdataset.core.distributed import worker_context
from webdataset.core.error_handlers import Handler, reraise_exception, should_continue, with_location
from webdataset.core.errors import NoSamples, UsageError
from webdataset.core.optional_imports import IterableDataset
from webdataset.samples.aistore_batches import Field, batch_samples, group_entries
from webdataset.samples.grouping import Keys, Sample, base_plus_ext
from webdataset.storage.backends.aistore import parse_entry
from webdataset.storage.profile_pickling import PicklesProfiles
from webdataset.storage.storage_options import check_storage_options


class AISBatch(PicklesProfiles, IterableDataset):
    """Samples by AIStore's GetBatch.

    ::

        DataPipeline(AISBatch([("ais://bucket/a.tar", "007.jpg"), ("ais://bucket/a.tar", "007.cls"), …]), decode())

    Entries in a row whose names differ in nothing but the extension are one sample. Its ``__key__`` is the name without
    the extension (of a member: within its archive), its ``__url__`` the object's.

    Flow: in the order of ``entries``; memory: one sample and the pieces of a stream; each rank and worker asks for a
    share of its own.

    Args:
        entries: ``ais://bucket/object``, ``bucket/object``, either with ``?archpath=member``, or a pair of one of these
            and a member's path; ``s3://`` and the like name buckets that AIStore serves.
        at_once: entries in one request, about.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.
        handler: asked about samples of which something does not exist (``NotFound``, with url and key), and about
            requests that fail; true continues with the next sample or request.
        keys: splits a name into key and extension.
        split: give each rank and worker every n-th sample; False gives each all of them.

    Raises:
        UsageError: entries that make no sense (when iterated), fewer than one at once.
    """

    def __init__(
        self,
        entries: Iterable[str | os.PathLike[str] | tuple[str, str]],
        *,
        at_once: int = 256,
        storage_options: object = None,
        handler: Handler = reraise_exception,
        keys: Keys = base_plus_ext,
        split: bool = True,
    ) -> None:
        if at_once < 1:
            raise UsageError(f"at_once={at_once!r}: a request asks for one entry at least")
        if isinstance(entries, str) or iter(entries) is entries:
            raise UsageError("entries are a list, which can be gone through again, not one url or an iterator")
        self.entries = entries
        self.at_once = at_once
        self.storage_options = check_storage_options(storage_options)
        self.handler = handler
        self.keys = keys
        self.split = split

    def __iter__(self) -> Iterator[Sample]:
        """Yield samples.

        Raises:
            NotFound: something does not exist, and the handler does not step over it.
            SourceError: the cluster refuses, or does not answer.
            UsageError: entries that make no sense.
        """
        answers = [True]

        def ask_handler(error: Exception) -> bool:
            answers.append(should_continue(self.handler, with_location(error, stage="AISBatch"), "reading"))
            return answers[-1]

        for samples in self._requests():
            try:
                yield from batch_samples(samples, self.storage_options, ask_handler)
            except Exception as error:  # noqa: BLE001  the handler decides
                if not answers[-1] or not ask_handler(error):
                    return
            if not answers[-1]:
                return

    def _requests(self) -> Iterator[list[list[Field]]]:
        """Give the samples of one request after the other."""
        provider = None if self.storage_options is None else self.storage_options.as_mapping().get("provider")
        samples = group_entries((parse_entry(entry, provider) for entry in self.entries), self.keys)
        if self.split:
            here = worker_context()
            share = here.rank * here.num_workers + here.worker
            samples = islice(samples, share, None, here.world_size * here.num_workers)
        request: list[list[Field]] = []
        for sample in samples:
            if request and sum(map(len, request)) + len(sample) > self.at_once:
                yield request
                request = []
            request.append(sample)
        if request:
            yield request

    def __repr__(self) -> str:
        return f"AISBatch(at_once={self.at_once})"


class MockDataset(IterableDataset):
    """The same sample over and over, for tests and for timing what comes after it.

    Args:
        sample: given each time, the same object.
        length: how often.
    """

    def __init__(self, sample: object, length: int) -> None:
        self.sample = sample
        self.length = length

    def __iter__(self) -> Iterator[object]:
        for _ in range(self.length):
            yield self.sample


class with_epoch(IterableDataset):  # noqa: N801  upstream's name
    """A dataset in epochs of a fixed length: each epoch continues where the last one ended.

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
        "each of its epochs continues where the one before ended, so that none can be read again; write "
        "wds.DataPipeline(dataset).with_epoch(n) in its place"
    )

    def __init__(self, dataset: Iterable[object], length: int) -> None:
        if length < 1:
            raise UsageError(f"length={length!r}: an epoch holds at least one sample")
        self.dataset = dataset
        self.length = length
        self._items: Iterator[object] | None = None

    def _cycle(self) -> Iterator[object]:
        while True:
            empty = True
            for sample in self.dataset:
                empty = False
                yield sample
            if empty:
                raise NoSamples(f"with_epoch({self.dataset!r}): the dataset is empty")

    def __iter__(self) -> Iterator[object]:
        if self._items is None:
            self._items = self._cycle()
        for _ in range(self.length):
            yield next(self._items)

    def __getstate__(self) -> dict[str, object]:
        """Pickle without the iterator: a copy begins at the start of the dataset."""
        return {**self.__dict__, "_items": None}


class with_length(IterableDataset):  # noqa: N801  upstream's name
    """A dataset that says how long it is.

    Args:
        dataset: read as it is.
        length: what ``len`` returns.
    """

    def __init__(self, dataset: Iterable[object], length: int) -> None:
        self.dataset = dataset
        self.length = length

    def __iter__(self) -> Iterator[object]:
        return iter(self.dataset)

    def __len__(self) -> int:
        return self.length
