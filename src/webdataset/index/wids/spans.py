"""Ranges of indices, and walks through them.

Flows in: lengths, ranges ``(start, stop)``. Flows out: ranges, or the indices in them in a shuffled order.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

Range = tuple[int, int]


def lengths_to_ranges(lengths: Iterable[int]) -> list[Range]:
    """Return consecutive ranges ``(start, stop)`` of these lengths, from 0 on.

    Args:
        lengths: numbers of samples.
    """
    stops = list(itertools.accumulate(map(int, lengths)))
    return list(zip([0, *stops], stops, strict=False))


def intersect_range(a: Range, b: Range) -> Range | None:
    """Return what two ranges have in common, or None.

    Args:
        a: ``(start, stop)``.
        b: ``(start, stop)``.
    """
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None


def intersect_ranges(rangelist: Iterable[Range], r: Range) -> list[Range]:
    """Return what each range of a list has in common with one range, empty ones left out.

    Args:
        rangelist: ``(start, stop)`` each.
        r: ``(start, stop)``.
    """
    return [common for each in rangelist if (common := intersect_range(each, r)) is not None]


def iterate_ranges(
    ranges: Sequence[Range],
    rng: random.Random,
    indexshuffle: bool = True,  # noqa: FBT001, FBT002  upstream's signature, here and below
    shardshuffle: bool = True,  # noqa: FBT001, FBT002
) -> Iterator[int]:
    """Yield the indices of ranges, one range after another.

    Args:
        ranges: ``(start, stop)`` each.
        rng: what to draw from.
        indexshuffle: shuffle the indices of each range.
        shardshuffle: shuffle the ranges.
    """
    order = list(range(len(ranges)))
    if shardshuffle:
        rng.shuffle(order)
    for number in order:
        if not indexshuffle:
            yield from range(*ranges[number])
            continue
        indices = list(range(*ranges[number]))
        rng.shuffle(indices)
        yield from indices


def chunks_of(start: int, stop: int, size: int) -> list[Range]:
    """Return a range cut into ranges of one size, the last one shorter.

    Args:
        start: first index.
        stop: index after the last.
        size: of a chunk.
    """
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]
