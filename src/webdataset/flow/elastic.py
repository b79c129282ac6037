"""An elastic dataset being read by one worker: the streams that it owns, in the order of positions.

Theory. A dataset has V virtual streams, V being part of its description. Item k of stream v has the position
``t = k * V + v``. Rank r of R, worker w of W, owns the streams ``{v : v mod R = r, (v div R) mod W = w}`` and gives
their items by rising position; a stream that is over leaves holes. Nothing about a stream, and so nothing about a
position, depends on who owns it: the order of all items is the same for every number of ranks and workers, each item is
given once, and a state taken under one topology can go on under any other. Nobody communicates, nobody counts samples.

Flows in: a dataset, a place, perhaps a state. Flows out: items, and the state behind any of them.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from webdataset.ground.errors import NoSamples, UsageError
from webdataset.ground.topology import Place, Stream, physical
from webdataset.stages.base import Address, Json, Run

from .elastic_checks import Sums
from .elastic_state import KIND, VERSION, checked, compare, memories_for, whole
from .elastic_stream import END, VirtualStream
from .looping import Bounds


@dataclass(frozen=True)
class Plan:
    """What is read: a dataset in one epoch.

    Args:
        stages: of the dataset.
        streams: how many virtual streams it has.
        bounds: how long it runs, all streams together.
        run: seed and epoch.
        description: what a state must agree with.
        state: where to go on, or None for the start of the epoch.
    """

    stages: Sequence[Any]
    streams: int
    bounds: Bounds
    run: Run
    description: dict[str, Any]
    state: Json = None

    def header(self) -> dict[str, Any]:
        """Return the state of this epoch before its first item."""
        return {
            "version": VERSION,
            "kind": KIND,
            "seed": self.run.seed,
            "epoch": self.run.epoch,
            "streams": self.streams,
            "description": self.description,
            "received": 0,
            "memories": {},
        }

    def stream(self, number: int, memory: Json) -> VirtualStream:
        """Return one stream, behind what it gave already."""
        run = Run(**{**self.run.__dict__, "stream": Stream(number, self.streams), "tracked": True})
        return VirtualStream(self.stages, run, self.bounds, memory)


def owned(streams: int, place: Place) -> list[int]:
    """Return the numbers of the streams that a worker owns.

    Args:
        streams: how many there are.
        place: the worker.

    Raises:
        UsageError: there are fewer streams than ranks, so that some ranks would have nothing.
    """
    if place.world_size > streams:
        raise UsageError(
            f"{streams} streams cannot be shared out between {place.world_size} ranks, some would have nothing: make "
            f"the dataset with elastic(streams=n), n a multiple of {place.world_size}"
        )
    own = range(place.rank, streams, place.world_size)
    return [number for index, number in enumerate(own) if index % place.num_workers == place.worker]


class _Cursor:
    """The streams of one worker, and how far they have been read."""

    def __init__(self, plan: Plan, own: list[int]) -> None:
        self.plan = plan
        memories = {} if plan.state is None else memories_for(plan.state, own)
        self.streams = {number: plan.stream(number, memories.get(number)) for number in own}
        self.memories: dict[str, Json] = {str(number): memories.get(number) for number in own}
        self.position: int | None = None
        self.turn: int | None = None  # the stream that was asked last
        self.stale: set[int] = set()  # streams that moved since their memory was read
        self.unsent: set[str] = set()  # streams whose memory was read since progress was told
        self.sums: Sums = {}  # of the memories, see elastic_checks

    def pairs(self) -> Iterator[tuple[int, Any]]:
        """Yield positions and items."""
        streams, stale, every = self.streams, self.stale, self.plan.streams
        heap = [(stream.count * every + number, number) for number, stream in streams.items() if not stream.over]
        heapq.heapify(heap)
        while heap:
            position, number = heap[0]
            item = streams[number].advance()
            stale.add(number)
            if item is END:
                heapq.heappop(heap)
                continue
            heapq.heapreplace(heap, (position + every, number))
            self.position = position
            yield position, item
        if len(streams) == every and all(stream.barren for stream in streams.values()):
            _nothing(self.plan)

    def turns(self, among: Sequence[int], over: int) -> Iterator[tuple[Any, int]]:
        """Yield what streams give in their turns, ``END`` too, and the lowest index that can follow."""
        streams, moved, every = self.streams, self.stale.add, len(among)
        place = {number: place for place, number in enumerate(among)}
        heap = [(s.count * every + place[number], number, s.advance) for number, s in streams.items() if not s.over]
        heapq.heapify(heap)  # no two indices are equal, so nothing else is compared
        while heap:
            index, number, advance = heap[0]
            self.turn = number
            item = advance()
            moved(number)
            if item is END:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (index + every, number, advance))
            yield item, heap[0][0] if heap else over

    def refresh(self) -> None:
        """Read the memories of the streams that moved."""
        memories, streams = self.memories, self.streams
        for number in self.stale:
            name = str(number)
            memories[name] = streams[number].memory()
            self.unsent.add(name)
        self.stale.clear()

    def close(self) -> None:
        """Close all streams."""
        for stream in self.streams.values():
            stream.close()


def _nothing(plan: Plan) -> None:
    checks = [stage for stage in plan.stages if type(stage).__name__ == "CheckSamples"]
    if checks:
        raise NoSamples(
            "no samples found in this pass: the shards are empty, were stepped over by the handler, or hold no "
            "selected member with an extension. Pass empty_check=False to allow it"
        )


class ElasticRun:
    """One worker's run of an elastic dataset: an iterator over items, by rising position.

    Nothing is opened before the first item is asked for.

    Args:
        prepare: makes the plan; called once, with the state that was loaded into this run, or None.
        place: whose streams to read; None is this process's place.
    """

    def __init__(self, prepare: Callable[[Json], Plan], place: Place | None = None) -> None:
        self._prepare = prepare
        self._place = place
        self._started: _Cursor | None = None
        self._pairs: Iterator[tuple[int, Any]] = iter(())
        self.meter: Any = None  # times the stages, where it is given before the first item

    def _cursor(self) -> _Cursor:
        return self._started or self._begin(None)

    def _begin(self, state: Json) -> _Cursor:
        plan = self._prepare(state)
        if self.meter is not None:
            plan = replace(plan, run=replace(plan.run, meter=self.meter))
        self._started = cursor = _Cursor(plan, owned(plan.streams, self._place or physical()))
        self._pairs = cursor.pairs()
        return cursor

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._started is None:
            self._begin(None)
        return next(self._pairs)[1]

    def positions(self) -> Iterator[tuple[int, Any]]:
        """Return an iterator over ``(position, item)``; it moves together with this one."""
        self._cursor()
        return self._pairs

    def turns(self, among: Sequence[int], over: int) -> Iterator[tuple[Any, int]]:
        """Return an iterator over what streams give, for a caller who passes over streams that are over himself.

        Used in place of this iterator and of ``positions()``, not together with them; ``position`` does not move.

        Args:
            among: numbers of the streams whose items are counted, rising: item k of its n-th stream (of N, from 0) has
                the index ``k * N + n``. This worker's streams are among them.
            over: what to give for the next index after the last item.

        Yields:
            An item, or ``END`` of a stream; and the lowest index that the next item can have.
        """
        return self._cursor().turns(among, over)

    def reading(self) -> str:
        """Return the url of the shard that ``turns()`` reads; nothing where that is not known."""
        cursor = self._started
        return "" if cursor is None or cursor.turn is None else cursor.streams[cursor.turn].reading()

    @property
    def position(self) -> int | None:
        """Position of the item given last; None before the first one of this run."""
        return self._cursor().position

    @property
    def streams(self) -> int:
        """Number of virtual streams of the dataset."""
        return self._cursor().plan.streams

    @property
    def owned(self) -> list[int]:
        """Numbers of the streams that this worker reads."""
        return list(self._cursor().streams)

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self._cursor().plan.run.seed

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._cursor().plan.run.epoch

    def header(self) -> dict[str, Any]:
        """Return the state of this epoch at its start: for workers that are to agree on seed and epoch."""
        return self._cursor().plan.header()

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the item given last: a JSON value with the memories of the streams of this worker.

        Raises:
            FlowError: a stream has failed; or it holds something whose state cannot be written down.
        """
        cursor = self._cursor()
        cursor.refresh()
        return whole(cursor.plan.header(), cursor.memories, cursor.sums)

    def progress(self) -> dict[str, Json]:
        """Return the memories of the streams that moved since the last call, for a consumer in another process.

        See :class:`webdataset.flow.elastic_state.Received`.

        Raises:
            FlowError: as ``state_dict`` does.
        """
        cursor = self._cursor()
        cursor.refresh()
        moved = {name: cursor.memories[name] for name in cursor.unsent}
        cursor.unsent.clear()
        return moved

    def address(self) -> Address:
        """Return the address of the item given last: its stream, and its address there."""
        cursor = self._cursor()
        if cursor.position is None:
            return None
        number = cursor.position % cursor.plan.streams
        return [number, cursor.streams[number].address()]

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Make items of this epoch once more, those of any stream, whoever owns it.

        Args:
            addresses: of the items; each stream's are made in one pass.
        """
        plan = self._cursor().plan
        found: dict[int, Iterator[Any]] = {}
        for number in {number for number, _ in addresses}:
            stream = plan.stream(number, None)
            found[number] = iter(stream.fetch([address for owner, address in addresses if owner == number]))
            stream.close()
        return [next(found[number]) for number, _ in addresses]

    def load_state_dict(self, state: Json) -> None:
        """Go on behind a state, whatever this run has given.

        Args:
            state: of this rank and worker, or the merged one of all.

        Raises:
            StateMismatch: it belongs to another dataset, or lacks streams that are owned here; the message says what
                differs.
        """
        self.close()
        self._begin(checked(state))

    def close(self) -> None:
        """Close all streams; the state can still be read."""
        if self._started is not None:
            self._started.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def planned(  # noqa: PLR0917  one value each
    stages: Sequence[Any], streams: int, bounds: Bounds, run: Run, described: dict[str, Any], state: Json
) -> Plan:
    """Return the plan of a run that may go on behind a state.

    Args:
        stages: of the dataset.
        streams: how many it has.
        bounds: how long it runs.
        run: seed and epoch.
        described: the dataset's description.
        state: where to go on, or None.

    Raises:
        StateMismatch: the state belongs to another dataset.
    """
    plan = Plan(stages, streams, bounds, run, described, state)
    if state is not None:
        compare(checked(state), plan.header())
    return plan
