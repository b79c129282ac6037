"""Reads an elastic dataset in one worker: the worker's virtual streams, by rising position.

Theory. A dataset has V virtual streams, V being part of its fingerprint. Item k of stream v has the position ``t = k
* V + v``. Rank r of R, worker w of W, owns the streams ``{v : v mod R = r, (v div R) mod W = w}`` and gives their
items by rising position; a stream that has ended leaves holes. Nothing about a stream, and so nothing about a
position, depends on its owner: the order of all items is the same for every number of ranks and workers, each item is
given once, and a state taken under one topology resumes under any other. Ranks and workers do not communicate, and
samples are not counted.

:class:`~webdataset.flow.elastic.ElasticPlan` says what is read, :class:`~webdataset.flow.elastic.StreamCursor` holds
the streams of one worker and how far each has been read, and :class:`~webdataset.flow.elastic.ElasticRun` is the
iterator with the state after each item.
"""

import heapq
import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self

from webdataset.core.distributed import StreamNumber, WorkerContext, process_context, raise_portable
from webdataset.core.errors import NoSamples, UsageError, WebDatasetError
from webdataset.core.tracebacks import trim_traceback
from webdataset.flow.elastic_state import (
    KIND,
    VERSION,
    Sums,
    build_state,
    check_same_dataset,
    check_state,
    select_stream_states,
)
from webdataset.flow.outcomes import Outcomes, judge_outcomes
from webdataset.flow.pass_checks import warn_of_length
from webdataset.flow.run import Bounds, ExpandedStages, expand_stages
from webdataset.flow.virtual_stream import END, ReadAhead, VirtualStream, find_place, is_epoch_over_everywhere
from webdataset.samples.shared_reader import SharedReaders
from webdataset.shards.shard_walk import ShardWalks
from webdataset.stages.base import Address, Json, OutcomeSink, Output, Run, RunMeter
from webdataset.stages.checks import CheckSamples


@dataclass(frozen=True)
class ElasticPlan:
    """What is read: a dataset in one epoch.

    Args:
        stages: of the dataset.
        streams: how many virtual streams it has.
        bounds: how long it runs, all streams together.
        run: seed and epoch.
        describe: returns what a state must agree with.
        functions: names of the stages, and digests of what a user gave them; another one in a state is warned of.
        state: where to continue, or None for the start of the epoch.
        continue_epochs: after the last item of the state's epoch comes the next epoch.
    """

    stages: Sequence[object]
    streams: int
    bounds: Bounds
    run: Run
    describe: Callable[[], dict[str, Any]]
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
            "description": self.describe(),
            "functions": self.functions,
            "received": 0,
            "memories": {},
        }

    def stream(
        self,
        number: int,
        stream_state: Json,
        readers: SharedReaders | None = None,
        walks: ShardWalks | None = None,
    ) -> VirtualStream:
        """Return one stream, after what it gave already.

        Args:
            number: of the stream.
            stream_state: after which it continues.
            readers: the shards that it reads together with other streams of the worker; None: none.
            walks: the lists of shards that it goes through together with them; None: none.
        """
        mark = StreamNumber(number, self.streams)
        run = replace(self.run, readers=readers, walks=walks, stream=mark, tracked=True, traced=False)
        return VirtualStream(self.stages, run, self.bounds, stream_state)


def make_plan(  # noqa: PLR0917  one value each
    stages: Sequence[object],
    streams: int,
    bounds: Bounds,
    run: Run,
    describe: Callable[[], dict[str, Any]],
    functions: list[list[Any]],
    state: Json,
) -> ElasticPlan:
    """Return the plan of a run that may continue after a state.

    Args:
        stages: of the dataset.
        streams: how many it has.
        bounds: how long it runs.
        run: seed and epoch.
        describe: returns the dataset's description.
        functions: names of its stages, and digests of what a user gave them.
        state: where to continue, or None.

    Raises:
        StateMismatch: the state belongs to another dataset.
    """
    plan = ElasticPlan(stages, streams, bounds, run, describe, functions, state)
    if state is not None:
        check_same_dataset(check_state(state), plan.header())
    return plan


def streams_of_worker(streams: int, place: WorkerContext) -> list[int]:
    """Return the numbers of the streams that a worker owns.

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

    readers: SharedReaders | None = None
    walks: ShardWalks | None = None

    def __init__(self, plan: ElasticPlan, place: WorkerContext) -> None:
        self.streams: dict[int, VirtualStream] = {}  # one that cannot be made is closed, too
        self.ahead = ReadAhead()
        self._last: VirtualStream | None = None  # the stream that gave an item last, before what is read ahead
        own = streams_of_worker(plan.streams, place)
        self.plan = plan
        self.place = place
        stream_states = {} if plan.state is None else select_stream_states(plan.state, own)
        self.readers = readers = SharedReaders(own)
        epoch = plan.run.epoch
        places = {number: find_place(stream_states.get(number), epoch) for number in own}
        self.walks = walks = ShardWalks(places)
        self.streams = {number: plan.stream(number, stream_states.get(number), readers, walks) for number in own}
        for number, stream in self.streams.items():
            if stream.over:
                readers.leave(number)
                walks.leave(number)
        self.stream_states: dict[str, Json] = {str(number): stream_states.get(number) for number in own}
        self.turn: int | None = None  # the stream that was asked last
        for stream in self.streams.values():
            stream.told = stream.count
        self._named = [(str(number), stream) for number, stream in self.streams.items()]
        self.unsent = set(self.stream_states)  # streams whose state was read since progress was told: at first all
        self.sums = Sums()  # of the states of streams, see elastic_state
        self.outcomes: Outcomes | None = None  # where no other part judges
        self.declared: tuple[Any, int] | None = None

    @property
    def position(self) -> int | None:
        """Position of the item given last; None before the first one."""
        last = self.ahead.last() or self._last
        if last is None:
            return None
        return (last.count - 1) * self.plan.streams + last.stream.number

    def items(self) -> Generator[Any]:
        """Yield items by rising position."""
        try:
            streams, every = self.streams, self.plan.streams
            heap = [(stream.count * every + number, stream) for number, stream in streams.items() if not stream.over]
            heapq.heapify(heap)  # no two positions are equal, so nothing else is compared
            furthest = max(heap, default=(0, None))[0]
            # of states that were merged, some streams catch up first
            while heap and furthest - heap[0][0] >= every:
                position, stream = heap[0]
                item = stream.advance()
                if item is END:
                    heapq.heappop(heap)
                    self._end_stream(stream)
                    continue
                heapq.heapreplace(heap, (position + every, stream))
                furthest = max(furthest, position + every)
                self._last = stream
                yield item
            # then positions rise from round to round
            order = [stream for _, stream in sorted(heap)]
            ahead = self.ahead
            while order:
                for stream in order:
                    item = stream.advance()
                    if item is END:
                        self._end_stream(stream)
                        continue
                    self._last = stream
                    yield item
                    del item
                order = [stream for stream in order if not stream.over]
                while rounds := ahead.take(order):
                    yield from rounds
                    self._end_rounds()
            self._judge()
        finally:
            # the frames of an error hold all that is open, perhaps for long
            self.close()

    def _end_rounds(self) -> None:
        """Take note of what was given of the rounds that streams have read ahead; give nothing more of them."""
        self._last = self.ahead.last() or self._last
        self.ahead.end()

    def _judge(self) -> None:
        """Judge, after the last item, what became of the samples."""
        streams, every = self.streams, self.plan.streams
        if len(streams) == every and all(stream.barren for stream in streams.values()):
            _check_not_empty(self.plan)
        if self.outcomes is not None:
            judge_outcomes(self.outcomes.summarize(), whole=len(streams) == every)
        if self.declared is not None and len(streams) == every:
            holder, length = self.declared
            warn_of_length(holder, length, sum(stream.count for stream in streams.values()))

    def _end_stream(self, stream: VirtualStream) -> None:
        """Take note of the end of a stream: shared readers need not keep anything for it."""
        for shared in (self.readers, self.walks):
            if shared is not None:
                shared.leave(stream.stream.number)

    def over(self) -> bool:
        """Tell, of streams that gave nothing after a state, whether its epoch is over on all ranks that it knows."""
        return self.plan.state is not None and is_epoch_over_everywhere(
            self.plan.state, self.place, self.streams, self.plan.stream
        )

    def turns(self, among: Sequence[int], beyond: int) -> Iterator[tuple[Any, int]]:
        """Yield what streams give in their turns, ``END`` too, and the lowest index that can follow."""
        streams, every = self.streams, len(among)
        place = {number: place for place, number in enumerate(among)}
        heap = [(s.count * every + place[number], number, s.advance) for number, s in streams.items() if not s.over]
        heapq.heapify(heap)  # no two indices are equal, so nothing else is compared
        while heap:
            index, number, advance = heap[0]
            self.turn = number
            item = advance()
            if item is END:
                heapq.heappop(heap)
                self._end_stream(streams[number])
            else:
                heapq.heapreplace(heap, (index + every, number, advance))
            yield item, heap[0][0] if heap else beyond

    def refresh(self) -> None:
        """Read the states of the streams that moved."""
        self.ahead.count()
        stream_states, unsent = self.stream_states, self.unsent
        for name, stream in self._named:
            loop = stream.loop
            count = stream.count if loop is None else loop.count
            if count != stream.told:
                stream_states[name] = stream.stream_state()
                stream.told = count
                unsent.add(name)

    def close(self) -> None:
        """Close all streams."""
        self._end_rounds()
        for stream in self.streams.values():
            stream.close()
        for shared in (self.readers, self.walks):
            if shared is not None:
                shared.close()

    def __del__(self) -> None:
        # other parts of a run may be in cycles, and what is open is not to wait for the collector
        self.close()


def _check_not_empty(plan: ElasticPlan) -> None:
    if any(isinstance(stage, CheckSamples) for stage in expand_stages(plan.stages)):
        raise NoSamples(
            "no samples found in this pass: the shards are empty, were stepped over by the handler, or hold no "
            "selected member with an extension. Pass empty_check=False to allow it"
        )


class ElasticRun(Generic[Output]):
    """One worker's run of an elastic dataset: an iterator over items, by rising position.

    Nothing is opened before the first item is asked for.

    Args:
        prepare: makes the plan; called once, with the state that was loaded into this run, or None.
        place: whose streams to read; None is this process's place.
        following: makes the plan of the epoch after that of another plan.
    """

    def __init__(
        self,
        prepare: Callable[[Json], ElasticPlan],
        place: WorkerContext | None = None,
        following: Callable[[ElasticPlan], ElasticPlan] | None = None,
    ) -> None:
        self._prepare = prepare
        self._following = following
        self._moved_on = False
        self._place = place
        self._started: StreamCursor | None = None
        self._items: Generator[Output] = _no_items()
        self.meter: RunMeter | None = None  # times the stages, where it is given before the first item
        self.outcomes: OutcomeSink | None = (
            None  # is told what became of the samples, where it is given before the first item
        )
        self.declared: tuple[Any, int] | None = None  # a pipeline and its length, to be compared with the pass
        # makes the stages that are run of those of the plan, where it is given before the first item
        self.rewrite: Callable[[Sequence[Any]], list[Any]] | None = None

    def _cursor(self) -> StreamCursor:
        return self._started or self._begin(None)

    def _begin(self, state: Json) -> StreamCursor:
        self._moved_on = False
        return self._take_up(self._prepare(state))

    def _take_up(self, plan: ElasticPlan) -> StreamCursor:
        own = Outcomes() if self.outcomes is None else None
        outcomes = own or self.outcomes
        plan = replace(plan, run=replace(plan.run, meter=self.meter, outcomes=outcomes))
        if self.rewrite is not None:
            plan = replace(plan, stages=self.rewrite(plan.stages))
        plan = replace(plan, stages=ExpandedStages(expand_stages(plan.stages)))
        place = self._place or process_context()
        if plan.bounds.fixed and plan.bounds.items is not None and place.world_size <= plan.streams:
            check_equal_ranks(plan.streams, plan.bounds.items, place.world_size)
        self._started = cursor = StreamCursor(plan, place)
        cursor.outcomes = None if any(cursor.stream_states.values()) else own
        cursor.declared = self.declared
        self._items = cursor.items()
        return cursor

    def _continue_epochs(self) -> bool:
        """Begin the next epoch where nothing was left of the state's; tell whether that was so."""
        cursor = self._cursor()
        if (
            cursor.position is not None
            or not cursor.plan.continue_epochs
            or self._following is None
            or not cursor.over()
        ):
            return False
        self._moved_on = True
        self._take_up(self._following(cursor.plan))
        return True

    def is_epoch_done(self) -> bool:
        """Tell, of a run that gave nothing after its state, whether that epoch is over, so that the next one comes.

        The streams of other ranks and workers, where the state knows them, are asked for one item: where one of them
        gives it, the epoch continues there, and this worker has nothing left of it.
        """
        cursor = self._cursor()
        return cursor.plan.continue_epochs and cursor.over()

    @property
    def ended(self) -> bool:
        """True after the last item, once more was asked for."""
        return self._started is not None and inspect.getgeneratorstate(self._items) == inspect.GEN_CLOSED

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Output:
        try:
            return next(self._items)
        except StopIteration:
            if self._started is not None and not self._continue_epochs():
                raise
        except WebDatasetError as error:
            trim_traceback(error)
            raise
        except Exception as error:  # of the user's code: it is raised again
            raise_portable(error)
            raise
        if self._started is None:
            self._begin(None)
            return next(self)
        return next(self._items)

    def positions(self) -> Iterator[tuple[int, Output]]:
        """Return an iterator over ``(position, item)``; it moves together with this one."""
        self._cursor()
        return iter(self._pair, None)

    def _pair(self) -> tuple[int, Output]:
        """Return the next position and item; raise StopIteration after the last."""
        item = next(self)
        return self._cursor().position or 0, item

    def turns(self, among: Sequence[int], over: int) -> Iterator[tuple[Output, int]]:
        """Return an iterator over what streams give, for a caller that skips ended streams itself.

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
        """Return the state after the item given last: a JSON value with the states of the streams of this worker.

        Raises:
            FlowError: a stream has failed; or it holds something whose state cannot be written down.
        """
        cursor = self._cursor()
        cursor.refresh()
        return build_state(cursor.plan.header(), cursor.stream_states, cursor.sums)

    def progress(self) -> dict[str, Json]:
        """Return the states of the streams that moved since the last call, for a consumer in another process.

        A run that continued with the next epoch tells its number too.
        See :class:`webdataset.flow.elastic_state.ReceivedState`.

        Raises:
            FlowError: as ``state_dict`` does.
        """
        cursor = self._cursor()
        cursor.refresh()
        moved = {name: cursor.stream_states[name] for name in cursor.unsent}
        cursor.unsent.clear()
        return {"epoch": self.epoch, **moved} if self._moved_on else moved

    def address(self) -> Address:
        """Return the address of the item given last: its stream, and its address there."""
        cursor = self._cursor()
        if cursor.position is None:
            return None
        number = cursor.position % cursor.plan.streams
        return [number, cursor.streams[number].address()]

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Make items of this epoch once more, those of any stream, whichever worker reads it.

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
        """Continue after a state, whatever this run has given.

        Args:
            state: of this rank and worker, or the merged one of all.

        Raises:
            StateMismatch: it belongs to another dataset, or lacks streams that are owned here; the message says what
                differs.
        """
        self.close()
        self._begin(check_state(state))

    def close(self) -> None:
        """Close all streams; the state can still be read."""
        if self._started is not None:
            self._started.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def _no_items() -> Generator[Any]:
    yield from ()
