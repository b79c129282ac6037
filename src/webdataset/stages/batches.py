"""Samples out of an AIStore cluster, many by one request, in any order: a source for pipelines.

Flows in: a list of objects and of members of archives. Flows out: samples in that order. The cluster gathers what lies
scattered, so that a random order costs few requests instead of one for each field.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.ground.policies import Handler, located, reraise_exception
from webdataset.ground.skips import goes_on
from webdataset.ground.topology import place
from webdataset.ground.torchlike import IterableDataset
from webdataset.samples.batches import Field, batch_samples, sampled
from webdataset.samples.grouping import Keys, Sample
from webdataset.samples.names import base_plus_ext
from webdataset.sources.ais.batch import entry_of
from webdataset.sources.carrying import CarriesProfiles
from webdataset.sources.profiles import storage_options as checked


class AISBatch(CarriesProfiles, IterableDataset):
    """Samples by AIStore's GetBatch.

    ::

        DataPipeline(AISBatch([("ais://bucket/a.tar", "007.jpg"), ("ais://bucket/a.tar", "007.cls"), …]), decode())

    Entries in a row whose names differ in nothing but the extension are one sample. Its ``__key__`` is the name without
    the extension (of a member: within its archive), its ``__url__`` the object's.

    Flow: in the order of ``entries``; memory: one sample and the pieces of a stream; each rank and worker asks for a
    share of its own.

    Args:
        entries: ``ais://bucket/object``, ``bucket/object``, either with ``?archpath=member``, or a pair of one of these
            and a member's path; ``s3://`` and the like name buckets behind AIStore.
        at_once: entries in one request, about.
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``.
        handler: asked about samples of which something does not exist (``NotFound``, with url and key), and about
            requests that fail; true goes on with the next sample or request.
        keys: splits a name into key and extension.
        split: give each rank and worker every n-th sample; False gives everybody all of them.

    Raises:
        UsageError: entries that make no sense (when iterated), fewer than one at once.
    """

    def __init__(
        self,
        entries: Iterable[str | os.PathLike[str] | tuple[str, str]],
        *,
        at_once: int = 256,
        storage_options: Any = None,
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
        self.storage_options = checked(storage_options)
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

        def asked(error: Exception) -> bool:
            answers.append(goes_on(self.handler, located(error, stage="AISBatch"), "reading"))
            return answers[-1]

        for samples in self._requests():
            try:
                yield from batch_samples(samples, self.storage_options, asked)
            except Exception as error:  # noqa: BLE001  the handler decides
                if not answers[-1] or not asked(error):
                    return
            if not answers[-1]:
                return

    def _requests(self) -> Iterator[list[list[Field]]]:
        """Give the samples of one request after the other."""
        provider = None if self.storage_options is None else self.storage_options.as_mapping().get("provider")
        samples = sampled((entry_of(entry, provider) for entry in self.entries), self.keys)
        if self.split:
            here = place()
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
