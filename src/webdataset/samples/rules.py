"""What all readers of shards have in common, whatever the shards are made of."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from webdataset.ground.policies import Handler
from webdataset.tar.header import Limits

from .address import Address
from .grouping import Grouper


class Reader(Protocol):
    """One shard being read."""

    def lists(self) -> Iterator[tuple[list[Any], list[int]]]:
        """Yield lists of samples, and where each starts."""
        ...

    def explained(self, error: Exception) -> Exception:
        """Say where an error struck."""
        ...

    def close(self) -> None:
        """Close the stream."""
        ...


class Rules(Protocol):
    """How shards are read."""

    @property
    def handler(self) -> Handler:
        """Asked when a shard or sample fails; true goes on with the next shard."""
        ...

    @property
    def addresses(self) -> bool:
        """Whether to add ``__address__`` to every sample."""
        ...

    def reader(self, shard: dict[str, Any], start: Address | None = None) -> Reader:
        """Return the reader of one shard, which begins at the sample at ``start``."""
        ...


class Watch(Protocol):
    """What looks on while one shard is read."""

    def feed(self, piece: bytes, offset: int) -> None:
        """Take bytes of the tar stream, and where they start; bytes that nobody read are left out."""
        ...

    def finish(self, length: int | None, compression: str | None) -> None:
        """Take note that the shard has been read to its end, without fault.

        Args:
            length: bytes of the shard as it is stored, or None where nobody knows.
            compression: how it is compressed, or None.
        """
        ...


class TarRules(Rules, Protocol):
    """How tar shards are read; see :class:`webdataset.samples.reading.Reading`."""

    @property
    def limits(self) -> Limits:
        """Bounds on headers and sparse members."""
        ...

    @property
    def split_samples(self) -> str:
        """What to do about parts of samples."""
        ...

    @property
    def keys(self) -> Any:
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
