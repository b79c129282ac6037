"""What all readers of shards have in common, whatever the shards are made of."""

from collections.abc import Iterator
from typing import Any, Protocol

from webdataset.ground.policies import Handler

from .address import Address


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
