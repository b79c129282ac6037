"""Compares two datasets sample by sample: which keys are in one alone, and which fields differ.

Theory. Datasets that hold the same samples in the same order are compared as they are read, with no memory. Where the
order differs, samples wait for their counterpart as digests (key, field names and a 16-byte hash of each payload,
about 100 bytes a sample), never as payloads; so that two datasets that have nothing in common take that much for each
sample.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from webdataset.samples.raw_samples import RawSample


class SampleDifference(NamedTuple):
    """One sample that differs.

    Args:
        key: its key.
        kind: ``removed`` (in the first dataset alone), ``added`` (in the second alone), or ``changed``.
        fields: of a changed sample, what differs: each field with ``removed``, ``added`` or ``changed``.
    """

    key: str
    kind: str
    fields: dict[str, str]


class _Digest(NamedTuple):
    fields: tuple[str, ...]
    hashes: tuple[bytes, ...]


def _digest_sample(sample: RawSample) -> _Digest:
    hashes = tuple(
        hashlib.blake2b(member.payload, digest_size=16, usedforsecurity=False).digest() for member in sample.members
    )
    return _Digest(sample.fields, hashes)


def compare_samples(first: Iterable[RawSample], second: Iterable[RawSample]) -> Iterator[SampleDifference]:
    """Yield how the samples of two datasets differ; samples of the same key are compared in their order.

    Args:
        first: the samples of one dataset.
        second: those of the other.

    Yields:
        Changed samples as they are met; at the end those without a counterpart, in their order.
    """
    waiting = _WaitingSamples(), _WaitingSamples()
    for pair in zip_longest(first, second):
        left, right = pair
        if left is not None and right is not None and left.key == right.key and not any(left.key in w for w in waiting):
            yield from _compare(left.key, left, right)
            continue
        for side, sample in enumerate(pair):
            if sample is None:
                continue
            digest, other = _digest_sample(sample), waiting[1 - side].take(sample.key)
            if other is None:
                waiting[side].add(sample.key, digest)
            else:
                yield from _compare_digests(sample.key, *((other, digest) if side else (digest, other)))
    for kind, rest in zip(("removed", "added"), waiting, strict=True):
        for key, digests in rest.items():
            for _ in digests:
                yield SampleDifference(key, kind, {})


class _WaitingSamples(dict[str, deque[_Digest]]):
    """The samples of one side that have not met their counterpart."""

    def add(self, key: str, digest: _Digest) -> None:
        self.setdefault(key, deque()).append(digest)

    def take(self, key: str) -> _Digest | None:
        """Return the first sample of a key and forget it, or None."""
        digests = self.get(key)
        if digests is None:
            return None
        digest = digests.popleft()
        if not digests:
            del self[key]
        return digest


def _compare(key: str, left: RawSample, right: RawSample) -> Iterator[SampleDifference]:
    """Compare payloads as they are, without digests."""
    mine = tuple(member.payload for member in left.members)
    theirs = tuple(member.payload for member in right.members)
    if left.fields == right.fields and mine == theirs:
        return
    yield from _compare_digests(key, _Digest(left.fields, mine), _Digest(right.fields, theirs))


def _compare_digests(key: str, left: _Digest, right: _Digest) -> Iterator[SampleDifference]:
    mine, theirs = dict(zip(*left, strict=True)), dict(zip(*right, strict=True))
    fields = {name: "removed" for name in mine if name not in theirs}
    fields |= {name: "changed" for name in mine if name in theirs and mine[name] != theirs[name]}
    fields |= {name: "added" for name in theirs if name not in mine}
    if fields:
        yield SampleDifference(key, "changed", fields)
