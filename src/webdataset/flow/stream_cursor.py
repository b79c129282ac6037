"""The streams of one worker, read by rising position: what is read, and how far it has been.

Flows in: a plan, a place. Flows out: positions and items, and the memories of the streams. See
:mod:`webdataset.flow.elastic` for the theory.
"""

import heapq
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from webdataset.ground.errors import NoSamples, UsageError
from webdataset.ground.topology import Place, Stream
from webdataset.stages.base import Json, Run
from webdataset.stages.checking import CheckSamples

from .elastic_checks import Sums
from .elastic_state import KIND, VERSION, checked, compare, memories_for
from .elastic_stream import END, VirtualStream
from .epoch_ends import over
from .lengths import tell
from .looping import Bounds
from .outcomes import Outcomes, judge
from .running import steps


@dataclass(frozen=True)
class Plan:
    """What is read: a dataset in one epoch.

    Args:
        stages: of the dataset.
        streams: how many virtual streams it has.
        bounds: how long it runs, all streams together.
        run: seed and epoch.
        description: what a state must agree with.
        functions: names of the stages, and digests of what a user gave them; another one in a state is warned of.
        state: where to go on, or None for the start of the epoch.
        continue_epochs: behind the last item of the state's epoch comes the next epoch.
    """

    stages: Sequence[Any]
    streams: int
    bounds: Bounds
    run: Run
    description: dict[str, Any]
    functions: list[list[Any]]
    state: Json = None
    continue_epochs: bool = False

    def header(self) -> dict[str, Any]:
        """Return the state of this epoch before its first item."""
        return {
            "version": VERSION,
            "kind": KIND,
            "seed": self.run.seed,
            "epoch": self.run.epoch,
            "streams": self.streams,
            "description": self.description,
            "functions": self.functions,
            "received": 0,
            "memories": {},
        }

    def stream(self, number: int, memory: Json) -> VirtualStream:
        """Return one stream, behind what it gave already."""
        run = Run(**{**self.run.__dict__, "stream": Stream(number, self.streams), "tracked": True})
        return VirtualStream(self.stages, run, self.bounds, memory)


def planned(  # noqa: PLR0917  one value each
    stages: Sequence[Any],
    streams: int,
    bounds: Bounds,
    run: Run,
    described: dict[str, Any],
    functions: list[list[Any]],
    state: Json,
) -> Plan:
    """Return the plan of a run that may go on behind a state.

    Args:
        stages: of the dataset.
        streams: how many it has.
        bounds: how long it runs.
        run: seed and epoch.
        described: the dataset's description.
        functions: names of its stages, and digests of what a user gave them.
        state: where to go on, or None.

    Raises:
        StateMismatch: the state belongs to another dataset.
    """
    plan = Plan(stages, streams, bounds, run, described, functions, state)
    if state is not None:
        compare(checked(state), plan.header())
    return plan


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


def check_equal_ranks(streams: int, items: int, ranks: int) -> None:
    """Refuse an epoch of a fixed length whose items cannot be shared out equally between the ranks.

    Items belong to streams, and a stream to one rank, so that all ranks give equally many (or one more, where ``items``
    is no multiple of their number) exactly where the number of ranks divides the number of streams.

    Args:
        streams: how many the dataset has.
        items: length of the epoch, all ranks together.
        ranks: how many there are.

    Raises:
        UsageError: the ranks would give different numbers of items; the message names numbers that fit.
    """
    if not streams % ranks:
        return
    fitting = ", ".join(str(number) for number in range(1, streams + 1) if not streams % number)
    raise UsageError(
        f"with_epoch({items}) cannot give {ranks} ranks equally many items: of {streams} streams some would have "
        f"{streams // ranks}, others {streams // ranks + 1}. Write elastic(streams={-(-streams // ranks) * ranks}), or "
        f"another multiple of {ranks}; or run on as many ranks as divide {streams} ({fitting}), as a saved state has "
        f"to; or write repeat(nbatches={items}) where the ranks need not be equal"
    )


class StreamCursor:
    """The streams of one worker, and how far they have been read."""

    def __init__(self, plan: Plan, place: Place) -> None:
        own = owned(plan.streams, place)
        self.plan = plan
        self.place = place
        memories = {} if plan.state is None else memories_for(plan.state, own)
        self.streams = {number: plan.stream(number, memories.get(number)) for number in own}
        self.memories: dict[str, Json] = {str(number): memories.get(number) for number in own}
        self.position: int | None = None
        self.turn: int | None = None  # the stream that was asked last
        self.stale: set[int] = set()  # streams that moved since their memory was read
        self.unsent = set(self.memories)  # streams whose memory was read since progress was told: at first all
        self.sums: Sums = {}  # of the memories, see elastic_checks
        self.outcomes: Outcomes | None = None  # where nobody else judges
        self.declared: tuple[Any, int] | None = None

    def pairs(self) -> Generator[tuple[int, Any]]:
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
        if self.outcomes is not None:
            judge(self.outcomes.told(), whole=len(streams) == every)
        if self.declared is not None and len(streams) == every:
            holder, length = self.declared
            tell(holder, length, sum(stream.count for stream in streams.values()))

    def over(self) -> bool:
        """Tell, of streams that gave nothing behind a state, whether its epoch is over on all ranks that it knows."""
        return self.plan.state is not None and over(self.plan.state, self.place, self.streams, self.plan.stream)

    def turns(self, among: Sequence[int], beyond: int) -> Iterator[tuple[Any, int]]:
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
            yield item, heap[0][0] if heap else beyond

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
    if any(isinstance(stage, CheckSamples) for stage in steps(plan.stages)):
        raise NoSamples(
            "no samples found in this pass: the shards are empty, were stepped over by the handler, or hold no "
            "selected member with an extension. Pass empty_check=False to allow it"
        )
