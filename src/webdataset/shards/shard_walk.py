"""Goes through a list of shards once for all virtual streams of a worker.

Each stream of an elastic dataset takes its shards from a list that all streams see alike (see
:mod:`webdataset.shards.split`). Shards before a stream's present one are passed, not opened; with many shards, and
after a resume, passing them is most of the work. A :class:`ShardWalk` does it once: it draws round after round, and
keeps the rounds that a stream has still to take.

Theory. Who draws is never what is drawn: the list follows from the stages before the split, seed and epoch, and these
name a walk. What is kept is bounded: beyond ``WDS_SHARED_BYTES`` the oldest rounds are let go, and a stream that needs
one of them goes through the list alone, as does every stream after an error. So no stream waits for another.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Final

from webdataset.core import settings
from webdataset.core.distributed import StreamNumber
from webdataset.shards.split import Shard, StreamShare

SHARD_BYTES: Final = 512
"""What a shard that waits counts, beside ``WDS_SHARED_BYTES``: about what its dict and its url take."""
HISTORY: Final = 4096
"""How many shards before the present ones are kept, where so many are allowed: those in restored shuffle buffers."""

OpenList = tuple[Iterator[Shard], Callable[[], None]]
"""The shards of a pass, and what closes them; may be called again."""


@dataclass(frozen=True)
class WalkName:
    """What a list of shards follows from.

    Args:
        stages: before the split, compared by identity.
        seed: of the run.
        common: seed of stages before the split.
        epoch: of the pass.
    """

    stages: tuple[object, ...]
    seed: int
    common: int | None
    epoch: int

    def is_same(self, other: "WalkName") -> bool:
        """Tell whether another list is equal to this one."""
        alike = (self.seed, self.common, self.epoch) == (other.seed, other.common, other.epoch)
        return alike and list(map(id, self.stages)) == list(map(id, other.stages))


class ShardWalks:
    """The walks of one worker. Used by one thread at a time.

    Args:
        streams: numbers of the worker's streams, and what their states tell: the epoch that the stream is in, and how
            many shards of it come before the one in which it continues.
        limit_bytes: how many bytes of shards may wait; None is ``WDS_SHARED_BYTES``; 0 shares nothing.
    """

    def __init__(self, streams: Mapping[int, tuple[int, int]], limit_bytes: int | None = None) -> None:
        limit = settings.SHARED_BYTES.get() if limit_bytes is None else limit_bytes
        self.most_shards = limit // SHARD_BYTES
        self._streams = dict(streams)
        self._walks: list[ShardWalk] = []

    def join(self, name: WalkName, stream: StreamNumber, open_list: Callable[[], OpenList]) -> "ShardWalk | None":
        """Return the walk that a stream takes its shards from, or None where it goes through the list alone.

        Args:
            name: of the list.
            stream: of the worker.
            open_list: returns the list, where this stream is the first to come.
        """
        if self.most_shards < 2 * stream.of or len(self._streams) < 2 or stream.number not in self._streams:
            return None
        self._walks = [walk for walk in self._walks if walk.has_takers]
        for walk in self._walks:
            if walk.name.is_same(name):
                return walk
        # a stream that is in a later epoch does not come
        coming = {each: passed * (at == name.epoch) for each, (at, passed) in self._streams.items() if at <= name.epoch}
        walk = ShardWalk(name, stream.of, {stream.number: 0, **coming}, open_list(), self.most_shards)
        self._walks.append(walk)
        # those of epochs that are long over
        for old in [each for each in self._walks if each.name.epoch < name.epoch - 1]:
            old.close()
            self._walks.remove(old)
        return walk

    def leave(self, stream: int) -> None:
        """Keep nothing for a stream any more: it has ended."""
        self._streams.pop(stream, None)
        for walk in list(self._walks):
            walk.leave(stream)

    def close(self) -> None:
        """Close all walks."""
        for walk in self._walks:
            walk.close()
        self._walks.clear()


class ShardWalk:
    """One pass over a list of shards, in rounds of as many as there are streams.

    Args:
        name: of the list.
        among: number of all streams.
        coming: streams that take shards, and how many each passes before its first.
        listed: the list, and what closes it.
        most: number of shards that may be kept.
    """

    def __init__(self, name: WalkName, among: int, coming: dict[int, int], listed: OpenList, most: int) -> None:
        self.name = name
        self._among = among
        self._next = coming
        self._history = min(HISTORY, most // 2) // among
        self._most = most // among
        self._rounds: deque[list[Shard]] = deque()
        self._first = 0  # number of the first round that is kept
        self._source, self._close = listed
        self._begun = False
        self._over = False  # all have been drawn
        self.failed = False  # or none is drawn any more: the streams go alone

    @property
    def has_takers(self) -> bool:
        """Whether streams are to take shards from it."""
        return bool(self._next)

    def __len__(self) -> int:
        """Return how many shards are kept."""
        return sum(map(len, self._rounds))

    def __bool__(self) -> bool:
        return True

    def shards(
        self, stream: StreamNumber, passed: int, alone: Callable[[], Iterator[Shard]], *, whole: bool = False
    ) -> Iterator[Shard | None]:
        """Yield a stream's shards, with None in the place of those that it passes.

        Args:
            stream: which.
            passed: how many shards are not asked for.
            alone: goes through the list for this stream alone.
            whole: as for ``StreamShare``.
        """
        try:
            yield from self._take(StreamShare(stream, whole=whole), passed, alone, taken=True)
        finally:
            self.leave(stream.number)

    def look_up(
        self, stream: StreamNumber, first: int, alone: Callable[[], Iterator[Shard]], *, whole: bool = False
    ) -> Iterator[Shard | None]:
        """Yield a stream's shards from one on, once more, with None in the place of those before.

        Args:
            stream: which.
            first: number of the first one that is asked for, among the stream's.
            alone: goes through the list for this stream alone.
            whole: as for ``StreamShare``.
        """
        return self._take(StreamShare(stream, whole=whole), first, alone, taken=False)

    def _take(
        self, share: StreamShare, first: int, alone: Callable[[], Iterator[Shard]], *, taken: bool
    ) -> Iterator[Shard | None]:
        stream, number = share.stream, first
        # how many are passed is read in a state: of a list that is shorter, nothing is given
        if first and self._round(first) is not None:
            yield from repeat(None, first)
        elif first:
            yield from alone() if self.failed or first < self._first else ()
            return
        while (together := self._round(number)) is not None:
            number += 1
            if taken and stream.number in self._next:
                self._next[stream.number] = number
            if len(together) < self._among:
                yield from share(together)
                return
            yield together[stream.number]
            del together
        if self.failed or number < self._first:
            yield from islice(alone(), number, None)

    def _round(self, number: int) -> list[Shard] | None:
        """Return one round, or None where it is not kept, or where there is none."""
        if self.failed or number < self._first:
            return None
        while number >= self._first + len(self._rounds):
            if self._over or self._draw() is None:
                return None
        return None if number < self._first else self._rounds[number - self._first]

    def _draw(self) -> list[Shard] | None:
        """Draw the next round and keep it; let those go that no stream needs, or that are too many."""
        try:
            if not self._begun:
                self._begin()
            together = list(islice(self._source, self._among))
        except BaseException:  # whatever it is: the others meet it where they go alone
            self.close()
            raise
        if len(together) < self._among:
            self._over = True
            self._close()
        if not together:
            return None
        rounds = self._rounds
        rounds.append(together)
        needed = min(self._next.values(), default=self._first) - self._history
        while self._first < needed or len(rounds) > self._most:
            rounds.popleft()
            self._first += 1
        return together

    def _begin(self) -> None:
        """Pass the shards that no stream needs."""
        self._begun = True
        first = self._first = max(0, min(self._next.values(), default=0) - self._history)
        if first and next(islice(self._source, first * self._among - 1, None), None) is None:
            # a shorter list than before: the streams that are to pass it all go alone, and say so
            self._source = iter(())

    def leave(self, stream: int) -> None:
        """Keep nothing for a stream any more; draw nothing more once none is left."""
        if self._next.pop(stream, None) is not None and not self._next:
            self.close()

    def close(self) -> None:
        """Draw nothing more, and keep nothing: streams that come go alone."""
        self.failed = True
        self._rounds.clear()
        self._close()
