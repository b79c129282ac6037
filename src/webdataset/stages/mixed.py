"""Mixes as plain functions, as the door ``mix`` has always had them.

Flows in: iterables. Flows out: their items, by chance or in turn.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .mixing import RandomMix, RoundRobin


def random_samples(
    sources: Sequence[Iterable[Any]],
    probs: Sequence[float] | None = None,
    longest: bool = False,  # noqa: FBT001, FBT002  upstream's signature
) -> Iterator[Any]:
    """Yield items of randomly chosen sources.

    Args:
        sources: iterables.
        probs: how likely each is; None for all alike.
        longest: go on until all have ended; otherwise end with the first that ends.

    Yields:
        Items.

    Raises:
        UsageError: probabilities that fit no source, or are all zero.
    """
    return iter(RandomMix(sources, probs, longest))


def round_robin_shortest(*sources: Iterable[Any]) -> Iterator[Any]:
    """Yield one item of each source in turn, up to the first that has ended.

    Args:
        *sources: iterables.

    Yields:
        Items.
    """
    return iter(RoundRobin(sources))


def round_robin_longest(*sources: Iterable[Any]) -> Iterator[Any]:
    """Yield one item of each source in turn, until all have ended.

    Args:
        *sources: iterables.

    Yields:
        Items.
    """
    return iter(RoundRobin(sources, longest=True))
