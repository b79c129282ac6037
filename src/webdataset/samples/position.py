"""Where a reader is.

Flows in: the lists of samples that a reader makes, and the offsets of their first headers. Flows out: the address of
the sample given last, and what tells whether the shard is still the same when the address is used. Nothing is counted
per sample.
"""

import zlib
from collections.abc import Iterator
from typing import Any

from webdataset.ground.errors import StaleIndex
from webdataset.ground.seeds import fold
from webdataset.sources.stream import identity_of

from .address import CheckedAddress
from .grouping import Sample
from .identity import CHECK, ShardIdentity, sum_size, sum_text


class Position:
    """Where a reader is: the shard, and how far its present list of samples has been given.

    Args:
        tracked: addresses are asked for, so that keys are remembered as long as their list of samples.

    Attributes:
        shard: index of the present shard.
        ordinal: index in the shard of the first sample of the present list.
        offsets: where the samples of the present list start.
        pending: samples of the present list that have not been given, the next one last; how many are left tells which
            one was given last, so that nothing has to be counted. Given samples are let go at once.
        failures: errors that a handler stepped over so far.
        reader: of the present shard, whose ``stream`` tells which object is read; None before the first.
    """

    def __init__(self, *, tracked: bool = False) -> None:
        self.shard = 0
        self.ordinal = 0
        self.offsets: list[int] = []
        self.pending: list[Sample] = []
        self.failures = 0
        self.reader: Any = None
        self.tracked = tracked
        self._keys: list[str | None] = []  # of the present list, None for a sample without one
        self._chain = 0  # sum of the keys before the present list, of all shards of the run
        self._identity: ShardIdentity | None = None
        self._size_sum: int | None = None
        self._url = ""
        self._url_hash: int | None = None

    def address(self) -> CheckedAddress:
        """Return the address of the sample given last."""
        index = len(self.offsets) - len(self.pending) - 1
        offset = self.offsets[index]
        key = self._keys[index] if self._keys else None
        if key is None:
            return CheckedAddress(self.shard, self.ordinal + index, offset)
        size_sum = self._size_sum
        if size_sum is None:
            size_sum = self._size_sum = sum_size(self.identity().size)
        return CheckedAddress(self.shard, self.ordinal + index, offset, (sum_text(str(key)) ^ size_sum) & CHECK)

    def key_sum(self) -> int:
        """Return the sum of the key of the sample given last; 0 where it has none."""
        key = self._keys[len(self.offsets) - len(self.pending) - 1] if self._keys else None
        return 0 if key is None else sum_text(str(key))

    def chain(self) -> int:
        """Return a sum of the keys of all samples given so far, in their order."""
        return _chained(self._chain, self._keys[: len(self.offsets) - len(self.pending)])

    def identity(self) -> ShardIdentity:
        """Return which object the present shard is read from."""
        if self._identity is None:
            found = ShardIdentity.of(*identity_of(getattr(self.reader, "stream", None)))
            if found.size is None:
                return found
            self._identity = found
        return self._identity

    @property
    def present_url(self) -> str:
        """The present shard's url, for messages about this process; nothing before the first shard."""
        return self._url

    @property
    def rising(self) -> bool:
        """Whether the keys of the present shard rise so far; a state keeps it, see ``ShardReader.rising``."""
        return bool(getattr(self.reader, "rising", True))

    @property
    def url(self) -> int:
        """A hash of the present shard's url, for snapshots (a url may hold secrets)."""
        if self._url_hash is None:
            self._url_hash = url_hash(self._url)
        return self._url_hash

    def begin(self, shard: int, url: str) -> None:
        """Enter a shard."""
        self._url, self._url_hash = url, None
        self._close_list()
        self.reader = self._identity = self._size_sum = None
        self.shard, self.ordinal, self.offsets, self.pending = shard, 0, [], []

    def present(self, samples: list[Sample], offsets: list[int]) -> list[Sample]:
        """Take the next list of samples of the shard; return it in the order in which to pop them."""
        self.ordinal += len(self.offsets)
        self.offsets = offsets
        if self.tracked:
            self._close_list()
            self._keys = _keys_of(samples)
        samples.reverse()
        self.pending = samples
        return samples

    def _close_list(self) -> None:
        self._chain, self._keys = _chained(self._chain, self._keys), []


def _keys_of(samples: list[Any]) -> list[str | None]:
    try:
        return [sample["__key__"] for sample in samples]
    except (KeyError, TypeError, IndexError):  # records need not be samples
        return [sample.get("__key__") if isinstance(sample, dict) else None for sample in samples]


def _chained(chain: int, keys: list[str | None]) -> int:
    if not keys:
        return chain
    return zlib.crc32("".join(f"{key}\0" for key in keys).encode("utf-8", "surrogatepass"), chain)


def shared_out(
    lists: Iterator[tuple[list[Any], list[int]]], shard: dict[str, Any], resumed: int | None
) -> Iterator[tuple[list[Any], list[int]]]:
    """Return the lists of samples that a reader makes, without those that belong to other streams or workers.

    Args:
        lists: samples and where they start.
        shard: ``share``, where the shard is shared by sample: (number of the first sample, step to the next); or
            ``part``, where it is cut: (number of the first sample, number behind the last, samples in the shard).
        resumed: the lists begin with this sample of the share; None: with the shard's first.
    """
    if "part" in shard:
        start, stop, count = shard["part"]
        return _between(lists, start, stop, count, resumed)
    share = shard.get("share")
    return lists if share is None else _every(lists, share[0] if resumed is None else 0, share[1])


def _between(
    lists: Iterator[tuple[list[Any], list[int]]], start: int, stop: int, count: int, resumed: int | None
) -> Iterator[tuple[list[Any], list[int]]]:
    """Yield the samples ``[start, stop)`` of a shard that is said to hold ``count``.

    Whoever reads the shard's last samples sees whether that is so, before the last of them are given: behind these,
    nobody may ask for more.

    Raises:
        StaleIndex: it holds another number.
    """
    here = 0 if resumed is None else start + resumed
    held: list[tuple[list[Any], list[int]]] = []
    try:
        for samples, offsets in lists:
            low, high = max(start - here, 0), max(stop - here, 0)
            here += len(samples)
            kept = samples[low:high], offsets[low:high]
            del samples
            if here > count:
                break
            if here == count:
                held += [kept] if kept[0] else []
            elif kept[0]:
                yield kept
            if here >= stop and stop < count:
                return
    except Exception:  # whatever the shard's end is like, its samples are good
        yield from held
        raise
    if here != count:
        holds = "more" if here > count else f"{here}"
        raise StaleIndex(f"the shard is said to hold {count} samples, and holds {holds}: count them again")
    yield from held


def _every(
    lists: Iterator[tuple[list[Any], list[int]]], first: int, step: int
) -> Iterator[tuple[list[Any], list[int]]]:
    for samples, offsets in lists:
        kept = samples[first::step]
        starts = offsets[first::step]
        first = (first - len(samples)) % step
        del samples
        if kept:
            yield kept, starts


def url_hash(url: str) -> int:
    """Return a number that tells shards apart (53 bits, exact in JSON everywhere); signatures do not enter it."""
    from webdataset.caching.identity import same_object  # noqa: PLC0415  most runs keep no addresses

    return fold("url", same_object(url)) >> 11
