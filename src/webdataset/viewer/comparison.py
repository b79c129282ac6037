"""Two shards side by side: their samples by position or by key, and which fields differ.

By key, the samples of the first shard come in their order, each with the one of the second that has its key; those of
the second alone come after them. The keys of both shards are needed for that: without an index their headers are
walked, for as long as a request may take, and what is not known yet is said. Fields of other sizes differ without being
read; of the others the bytes are compared, piece by piece.
"""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webdataset.index.entries import FieldEntry, SampleEntry

if TYPE_CHECKING:
    from webdataset.viewer.search import Budget
    from webdataset.viewer.session import DatasetView
    from webdataset.viewer.shard_pages import ShardView

_PIECE_BYTES: Final = 1 << 20
_MOST_KEYS: Final = 2_000_000


class ComparedSample(NamedTuple):
    """A row of a comparison.

    Args:
        first: number and place of the sample in the first shard, or None.
        second: those in the second shard, or None.
        differs: names of the fields that differ, those that one alone has included.
        unread: names of fields that were not compared, since the request has read enough.
    """

    first: tuple[int, SampleEntry] | None
    second: tuple[int, SampleEntry] | None
    differs: list[str]
    unread: list[str]


@dataclass
class Comparison:
    """A page of rows.

    Args:
        rows: from the first one that was asked for.
        end: no row comes after them.
        total: number of rows, where it is known.
        complete: the keys of both shards are known; else a sample without a counterpart may have one.
    """

    rows: list[ComparedSample] = field(default_factory=list)
    end: bool = False
    total: int | None = None
    complete: bool = True


class _KeyTable:
    """The keys of a shard, as far as they were walked."""

    def __init__(self, shard: "ShardView") -> None:
        self.shard = shard
        self.keys: list[str] = []
        self.places: dict[str, array[int]] = {}
        self.done = False

    def walk(self, budget: "Budget") -> None:
        """Walk on until the shard ends, or the budget is spent."""
        if self.done:
            return
        for ordinal, entry in self.shard.samples(len(self.keys)):
            self.places.setdefault(entry.key, array("Q")).append(ordinal)
            self.keys.append(entry.key)
            if ordinal % 64 == 63 and budget.is_spent(0):
                return
        self.done = True

    def rank(self, ordinal: int) -> int:
        """Return how many samples of the same key stand before one."""
        return self.places[self.keys[ordinal]].index(ordinal)

    def find(self, key: str, rank: int) -> int | None:
        """Return the number of the sample of a key, of those with as many of this key before them."""
        places = self.places.get(key, ())
        return places[rank] if rank < len(places) else None


class ShardComparison:
    """Compares the shards of two sides that have the same number.

    Args:
        first: one side.
        second: the other.
    """

    def __init__(self, first: "DatasetView", second: "DatasetView") -> None:
        self._sides = first, second
        self._lock = threading.Lock()
        self._tables: OrderedDict[tuple[int, int], _KeyTable] = OrderedDict()
        self._lone: dict[int, list[int]] = {}

    def compare(self, number: int, start: int, count: int, budget: "Budget", *, by_key: bool = True) -> Comparison:
        """Return some rows.

        Args:
            number: of the shard on both sides.
            start: number of the first row.
            count: how many.
            budget: time and bytes.
            by_key: rows have the samples of one key; else those of one position.

        Raises:
            NoSuchSample: neither side has such a shard.
            SourceError: a shard cannot be opened.
        """
        missing = [number >= len(side) for side in self._sides]
        if all(missing):
            self._sides[0].shard(number)
        shards = [None if lacks else side.shard(number) for side, lacks in zip(self._sides, missing, strict=True)]
        found = Comparison()
        pairs = self._pair_by_key(shards, start, count, budget, found) if by_key and None not in shards else (
            self._pair_by_position(shards, start, count, found)
        )  # fmt: skip
        before = _sum_read(shards)
        for left, right in pairs:
            differs, unread = _compare_fields(shards, left, right, budget, before)
            found.rows.append(ComparedSample(left, right, differs, unread))
        return found

    def _pair_by_position(
        self, shards: "list[ShardView | None]", start: int, count: int, found: Comparison
    ) -> Iterator[Any]:
        pages = [None if shard is None else shard.page(start, count) for shard in shards]
        found.end = all(page is None or page.end for page in pages)
        counts = [0 if shard is None else shard.count for shard in shards]
        found.total = None if None in counts else max(each for each in counts if each is not None)
        entries = [[] if page is None else page.entries for page in pages]
        for place in range(max(map(len, entries))):
            yield tuple((start + place, side[place]) if place < len(side) else None for side in entries)

    def _pair_by_key(
        self, shards: "list[ShardView | None]", start: int, count: int, budget: "Budget", found: Comparison
    ) -> Iterator[Any]:
        # one request at a time walks; the others wait for what it finds
        with self._lock:
            tables = [self._find_table(side, shard) for side, shard in enumerate(shards) if shard is not None]
            for table in tables:
                table.walk(budget)
            left, right = tables
            found.complete = left.done and right.done
            rows = [(left.shard.number, ordinal) for ordinal in range(start, min(start + count, len(left.keys)))]
            pairs: list[tuple[int | None, int | None]] = [
                (ordinal, right.find(left.keys[ordinal], left.rank(ordinal))) for _, ordinal in rows
            ]
            if found.complete:
                lone = [
                    each for each in range(len(right.keys)) if left.find(right.keys[each], right.rank(each)) is None
                ]
                found.total = len(left.keys) + len(lone)
                first = max(0, start - len(left.keys))
                pairs += [(None, each) for each in lone[first : first + count - len(pairs)]]
                found.end = start + count >= found.total
        for ordinal, other in pairs:
            yield (
                None if ordinal is None else (ordinal, left.shard.entry(ordinal)),
                None if other is None else (other, right.shard.entry(other)),
            )

    def _find_table(self, side: int, shard: "ShardView") -> _KeyTable:
        table = self._tables.get((side, shard.number))
        if table is None or table.shard is not shard:
            table = self._tables[side, shard.number] = _KeyTable(shard)
        self._tables.move_to_end((side, shard.number))
        while len(self._tables) > 2 and sum(len(each.keys) for each in self._tables.values()) > _MOST_KEYS:
            self._tables.popitem(last=False)
        return table


def _sum_read(shards: "list[ShardView | None]") -> int:
    return sum(shard.read_statistics.bytes for shard in shards if shard is not None)


def _compare_fields(
    shards: "list[ShardView | None]",
    left: tuple[int, SampleEntry] | None,
    right: tuple[int, SampleEntry] | None,
    budget: "Budget",
    before: int,
) -> tuple[list[str], list[str]]:
    """Return the names of the fields that differ, and of those that were not compared."""
    mine = {} if left is None else {each.name: each for each in left[1].fields}
    theirs = {} if right is None else {each.name: each for each in right[1].fields}
    differs: list[str] = []
    unread: list[str] = []
    for name in dict.fromkeys((*mine, *theirs)):
        one, other = mine.get(name), theirs.get(name)
        if one is None or other is None or one.size != other.size:
            differs.append(name)
        elif budget.is_spent(_sum_read(shards) - before):
            unread.append(name)
        elif not _is_equal(shards, one, other):
            differs.append(name)
    return differs, unread


def _is_equal(shards: "list[ShardView | None]", one: FieldEntry, other: FieldEntry) -> bool:
    first, second = shards
    if first is None or second is None:
        return False
    for start in range(0, one.size, _PIECE_BYTES):
        stop = min(one.size, start + _PIECE_BYTES)
        if first.read_field(one, start, stop) != second.read_field(other, start, stop):
            return False
    return True
