"""What readers of shards have in common, as protocols: the rules, what is read, and what looks on."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from webdataset.core.error_handlers import Handler
from webdataset.samples.address import Address
from webdataset.samples.grouping import Grouper, Keys, Shard
from webdataset.tar.header import Limits


class SampleListReader(Protocol):
    """One shard being read."""

    def lists(self) -> Iterator[tuple[list[Any], list[int]]]:
        """Yield lists of samples, and where each starts."""
        ...

    def explain_error(self, error: Exception) -> Exception:
        """Say where an error struck."""
        ...

    def close(self) -> None:
        """Close the stream."""
        ...


class ReadingRules(Protocol):
    """How shards are read."""

    @property
    def handler(self) -> Handler:
        """Asked when a shard or sample fails; true continues with the next shard."""
        ...

    @property
    def addresses(self) -> bool:
        """Whether to add ``__address__`` to every sample."""
        ...

    def reader(self, shard: Shard, start: Address | None = None) -> SampleListReader:
        """Return the reader of one shard, which begins at the sample at ``start``."""
        ...


class Watch(Protocol):
    """What looks on while one shard is read."""

    def feed(self, piece: bytes, offset: int) -> None:
        """Take bytes of the tar stream, and where they start; bytes that were not read are left out."""
        ...

    def finish(self, length: int | None, compression: str | None) -> None:
        """Note that the shard was read to its end without fault: its stored bytes, where known, and its compression."""
        ...


class TarReadingRules(ReadingRules, Protocol):
    """How tar shards are read; see :class:`webdataset.samples.sample_reader.Reading`."""

    @property
    def limits(self) -> Limits:
        """Bounds on headers and sparse members."""
        ...

    @property
    def split_samples(self) -> str:
        """What to do about parts of samples."""
        ...

    @property
    def keys(self) -> Keys:
        """Splits a name into key and extension."""
        ...

    @property
    def missing_end(self) -> str | None:
        """What to do about a stream without its end mark."""
        ...

    @property
    def observer(self) -> Callable[[str, Any], Watch] | None:
        """Called with the url and these rules for each shard that is read from its start."""
        ...

    def admit(self) -> Callable[[str], str | None] | None:
        """Return the rule that names or leaves out a member."""
        ...

    def grouper(self) -> Grouper:
        """Return a grouper under these rules."""
        ...
