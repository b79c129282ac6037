"""Joins datasets by key: each sample of the first gets the fields that the others have under the same key.

Theory. All datasets are sorted by key with bounded memory (:mod:`webdataset.reshaping.external_sort`), merged, and put
back into the order of the first. Datasets that fit into the memory limit never touch the disk.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Literal

from webdataset.core.errors import DuplicateField, MissingField, SampleError, UsageError
from webdataset.reshaping.external_sort import MEMORY_BYTES, sort_samples
from webdataset.samples.raw_samples import RawMember, RawSample

Missing = Literal["error", "skip", "keep"]
Conflict = Literal["error", "first", "last"]


def join_samples(
    datasets: Iterable[Iterable[RawSample]],
    *,
    missing: Missing = "error",
    conflict: Conflict = "error",
    memory_bytes: int = MEMORY_BYTES,
    folder: str | None = None,
) -> Iterator[RawSample]:
    """Yield the samples of the first dataset in their order, with the fields that the others add.

    Args:
        datasets: two or more; keys are unique within each.
        missing: a key that the first or another dataset lacks: ``error``, ``skip`` the sample, or ``keep`` what there
            is of it (samples that the first dataset lacks come last, sorted by key).
        conflict: a field that two datasets have: ``error``, or that of the ``first`` or the ``last``.
        memory_bytes: about how much may be gathered for each dataset and for the result.
        folder: of temporary files; the system's by default.

    Raises:
        MissingField: a dataset lacks a key, and ``missing`` is ``error``.
        DuplicateField: two datasets have a field, and ``conflict`` is ``error``.
        SampleError: a key stands twice in a dataset.
        UsageError: fewer than two datasets.
    """
    options: dict[str, Any] = {"memory_bytes": memory_bytes, "folder": folder}
    sources = list(datasets)
    if len(sources) < 2:
        raise UsageError("a join is of two datasets or more")
    streams = [_sort_by_key(number, source, options) for number, source in enumerate(sources)]
    merged = heapq.merge(*streams, key=lambda entry: entry[:2])
    return _restore_order(_join_groups(merged, len(sources), missing, conflict), options)


def _sort_by_key(
    number: int, source: Iterable[RawSample], options: dict[str, Any]
) -> Iterator[tuple[str, int, int, RawSample]]:
    """Yield key, number of the dataset, place in it, and sample, sorted by key."""
    # the place travels in the offset, which nothing reads here
    placed = (sample._replace(offset=place) for place, sample in enumerate(source))
    for sample in sort_samples(placed, lambda sample: sample.key, **options):
        yield sample.key, number, sample.offset, sample


def _restore_order(joined: Iterable[RawSample], options: dict[str, Any]) -> Iterator[RawSample]:
    return sort_samples(joined, lambda sample: sample.offset, **options)


def _join_groups(
    merged: Iterable[tuple[str, int, int, RawSample]], count: int, missing: Missing, conflict: Conflict
) -> Iterator[RawSample]:
    last = 1 << 62  # samples that the first dataset lacks come after all others, in the order of their keys
    for key, group in groupby(merged, key=lambda entry: entry[0]):
        parts = [(number, order, sample) for _, number, order, sample in group]
        numbers = [number for number, _, _ in parts]
        if len(set(numbers)) < len(numbers):
            raise SampleError("the key stands twice in a dataset", key=key, url=parts[-1][2].url)
        if len(parts) < count and missing != "keep":
            if missing == "skip":
                continue
            lacking = next(number for number in range(count) if number not in numbers)
            raise MissingField(f"dataset {lacking + 1} of the join has no sample of this key", key=key)
        if numbers[0] == 0:
            order = parts[0][1]
        else:
            order, last = last, last + 1
        yield _join_parts([sample for _, _, sample in parts], conflict)._replace(offset=order)


def _join_parts(samples: list[RawSample], conflict: Conflict) -> RawSample:
    first = samples[0]
    members: dict[str, RawMember] = {}
    for sample in samples:
        for field, member in zip(sample.fields, sample.members, strict=True):
            if field in members:
                if conflict == "error":
                    raise DuplicateField(
                        f"two datasets have the field {field!r}: say which one stays (--conflict first, or last)",
                        key=first.key,
                        url=sample.url,
                        field=field,
                    )
                if conflict == "first":
                    continue
            members[field] = member
    return first._replace(members=tuple(members.values()), fields=tuple(members))
