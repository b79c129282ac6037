"""Where a reader is.

Flows in: the lists of samples that a reader makes, and the offsets of their first headers. Flows out: the address of
the sample given last. Nothing is counted per sample.
"""

from webdataset.ground.seeds import fold

from .address import Address
from .grouping import Sample


class Position:
    """Where a reader is: the shard, and how far its present list of samples has been given.

    Attributes:
        shard: index of the present shard.
        ordinal: index in the shard of the first sample of the present list.
        offsets: where the samples of the present list start.
        pending: samples of the present list that have not been given, the next one last; how many are left tells which
            one was given last, so that nothing has to be counted. Given samples are let go at once.
        failures: errors that a handler stepped over so far.
    """

    def __init__(self) -> None:
        self.shard = 0
        self.ordinal = 0
        self.offsets: list[int] = []
        self.pending: list[Sample] = []
        self.failures = 0
        self._url = ""

    def address(self) -> Address:
        """Return the address of the sample given last."""
        index = len(self.offsets) - len(self.pending) - 1
        return Address(self.shard, self.ordinal + index, self.offsets[index])

    @property
    def url(self) -> int:
        """A hash of the present shard's url, for snapshots (a url may hold secrets)."""
        return url_hash(self._url)

    def begin(self, shard: int, url: str) -> None:
        """Enter a shard."""
        self._url = url
        self.shard, self.ordinal, self.offsets, self.pending = shard, 0, [], []

    def present(self, samples: list[Sample], offsets: list[int]) -> list[Sample]:
        """Take the next list of samples of the shard; return it in the order in which to pop them."""
        self.ordinal += len(self.offsets)
        self.offsets = offsets
        samples.reverse()
        self.pending = samples
        return samples


def url_hash(url: str) -> int:
    """Return a number that tells shards apart (53 bits, exact in JSON everywhere); signatures do not enter it."""
    return fold("url", url.partition("?")[0]) >> 11
