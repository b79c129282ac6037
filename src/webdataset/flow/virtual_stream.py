"""Runs one virtual stream, and finds out where the epoch of a state ends.

A virtual stream is a run of the whole pipeline over the stream's share. It gives items, and a state from which an
equal stream continues. Nothing in it depends on rank or worker.

Theory of epoch ends. A state after the last item of an epoch resumes with the next epoch. Some states tell so by
themselves: all streams have ended, or have given what ``with_epoch(n)`` allows. For the others it shows when no
further item comes; then the streams that other ranks and workers read are asked too, so that all of them come to the
same answer. A state that lacks a stream of its rank is that of one worker: it tells nothing about the epoch.
"""

import warnings
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from operator import call
from typing import Any, Generic, cast

from webdataset.core.distributed import WorkerContext, thread_context, use_stream
from webdataset.core.errors import FlowError, StateMismatch
from webdataset.flow.elastic_state import (
    build_state,
    check_state,
    find_running_streams,
    has_progress,
    is_stream_state,
    join_memories,
)
from webdataset.flow.run import END as END  # noqa: PLC0414  passed on
from webdataset.flow.run import ENDLESS, NO_POSITION, Bounds, Loop, build_runners
from webdataset.flow.snapshot_checks import VERSION
from webdataset.stages.base import Address, Json, Output, Run
from webdataset.stages.read_shards import ReadShards


class VirtualStream(Generic[Output]):
    """One stream, started when it is first asked.

    Attributes:
        barren: it ran from its start to its end here, and not one sample was read.
        loop: what runs; None before the first item and after the last.
        told: items given when its state was asked for last; a number below 0 where that is to be asked for again.

    Raises:
        StateMismatch: ``stream_state`` is not the state of a stream.
    """

    def __init__(self, stages: Sequence[object], run: Run, bounds: Bounds, stream_state: Json = None) -> None:
        if run.stream is None:
            raise FlowError("a virtual stream needs its number")
        self.stream = run.stream
        self._stages = stages
        self._run = run if run.tracked else replace(run, tracked=True)
        self._bounds = bounds.share_for(run.stream)
        self._stream_state = stream_state
        self.loop: Loop | None = None
        self.told = -1
        self._given, self.over = _parse_stream_state(stream_state)  # before the loop begins, and when it is over
        # its kind alone: an error holds the frames that it passed, and so this stream with its open shards
        self.failed: type[BaseException] | None = None
        self.barren = False

    @property
    def count(self) -> int:
        """Number of items given."""
        return self._given if self.loop is None else self.loop.count

    def advance(self) -> Output:
        """Return the next item, or ``END``."""
        loop, context = self.loop, thread_context
        item: Output = END
        if loop is not None and loop.count < loop.bound and (pending := loop.flow.position.pending):
            loop.count += 1
            return cast("Output", pending.pop())
        before = context.stream
        context.stream = self.stream
        try:
            if loop is None:
                if self.over:
                    return item
                loop = self._start()
            if loop.count < loop.bound:
                item = next(loop.flow.items, END)
            if item is END:
                item = next(loop, END)  # of another pass
            else:  # what the loop does itself where it is asked: a call less
                loop.count += 1
        except BaseException as error:  # whatever it is: there is no state after it
            self.failed = type(error)
            if self.loop is not None:
                self.loop.flow.position = NO_POSITION
            raise
        finally:
            context.stream = before
        if item is END:
            self._end()
        return item

    def read_ahead(self) -> "tuple[Loop | None, list[Any]]":
        """Return the loop, and what it has read: items that come next whatever is read then, the next one last.

        Who pops them counts them in the loop, and pops no more than its bound allows.
        """
        loop = self.loop
        return loop, [] if loop is None else loop.flow.position.pending

    def refill(self) -> bool:
        """Tell whether items have been read ahead, or could be now, without running the pipeline."""
        loop = self.loop
        if loop is None or loop.count >= loop.bound:
            return False
        position = loop.flow.position
        if position.pending:
            return True
        refill = getattr(position.reader, "refill", None)
        if refill is None:
            return False
        context = thread_context
        before = context.stream
        context.stream = self.stream
        try:
            return bool(refill(position))
        except BaseException as error:  # as in advance
            self.failed = type(error)
            loop.flow.position = NO_POSITION
            raise
        finally:
            context.stream = before

    def _start(self) -> Loop:
        self.loop = loop = Loop(self._stages, self._run, self._bounds, self._make_snapshot())
        self._stream_state = None
        return loop

    def _make_snapshot(self) -> Json:
        """Return the state as the snapshot of a loop."""
        if self._stream_state is None:
            return None
        count, passed, given, ended = self._stream_state[:4]
        stage_states = join_memories(self._stream_state)
        run = self._run
        first, runners = build_runners(self._stages, run)
        names = [runner.name for runner in runners[first:]]
        inner = {"version": VERSION, "seed": run.seed, "common": run.common, "epoch": run.epoch + passed}
        flow = {**inner, "stages": names, "first": first, "ended": ended, "memories": stage_states}
        return {"count": count, "passed": passed, "given": given, "flow": flow}

    def _end(self) -> None:
        if self.loop is not None and not self.count:
            readers = [runner for runner in self.loop.flow.runners if isinstance(runner.stage, ReadShards)]
            self.barren = all(runner.state is None or runner.state.address is None for runner in readers) and not any(
                runner.outcome is not None and runner.outcome.dropped for runner in readers
            )
        self.close()
        self.over = True
        self._given = self.count
        self.loop, self._stream_state = None, [self._given]
        self.told = -1

    def stream_state(self) -> Json:
        """Return what is to be remembered after the item given last: None before the first one.

        Raises:
            FlowError: the stream has failed: there is no state after a failure.
        """
        if self.failed is not None:
            raise FlowError(
                f"stream {self.stream.number} failed ({self.failed.__name__}), and there is no state after a "
                "failure: use the one that was saved last"
            )
        return self._stream_state if self.loop is None else self.loop.split_snapshot()

    def reading(self) -> str:
        """Return the url of the shard that is being read; nothing where that is not known."""
        return "" if self.loop is None else self.loop.present_url()

    def address(self) -> Address:
        """Return the address of the item given last, within this stream."""
        if self.loop is None:
            return None
        with use_stream(self.stream):
            return self.loop.address()

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Make the items at some addresses once more."""
        with use_stream(self.stream):
            return (self.loop or self._start()).fetch(addresses)

    def close(self) -> None:
        """Close everything that is open; the state can still be read."""
        if self.loop is not None:
            with use_stream(self.stream):
                self.loop.close()


class ReadAhead:
    """Whole rounds of items that the streams of a worker have read already: they are given without asking a stream.

    What was given follows from what is left in the streams' lists, so that nothing is counted for each item.
    """

    def __init__(self) -> None:
        # a stream, its loop, what it has read, and how much that was
        self._lists: list[tuple[VirtualStream, Loop, list[Any], int]] = []
        self._counts: list[tuple[Loop, list[object], int]] = []  # and the loop's count once all of it is given
        self._pops: list[Callable[[], Any]] = []

    def take(self, order: list[VirtualStream]) -> Iterator[Any] | None:
        """Return an iterator over the rounds that all streams have read, or None where one has nothing left.

        Args:
            order: the streams, in the order of their turns.
        """
        # first of all: what one stream reads may be handed out to others
        for stream in order:
            if not stream.refill():
                return None
        lists, rounds = [], ENDLESS
        for stream in order:
            loop, items = stream.read_ahead()
            if loop is None or not items:
                return None
            lists.append((stream, loop, items, len(items)))
            rounds = min(rounds, len(items), loop.bound - loop.count)
        if rounds < 1 or not lists:
            return None
        self._lists = lists
        self._counts = [(loop, items, loop.count + length) for _, loop, items, length in lists]
        self._pops = [items.pop for _, _, items, _ in lists]
        return map(call, chain.from_iterable(repeat(self._pops, rounds)))

    def count(self) -> None:
        """Bring the counts of the streams up to date."""
        for loop, items, count in self._counts:
            loop.count = count - len(items)

    def last(self) -> VirtualStream | None:
        """Return the stream that gave an item last, with its count up to date; None before the first item."""
        lists = self._lists
        _, _, items, length = lists[0] if lists else (None, None, (), 0)
        most = length - len(items)
        if not most:
            return None
        # those that gave as many as the first one come before those that are to give one more
        given = bisect_left(lists, 1, key=lambda entry: entry[3] - len(entry[2]) < most)
        stream, loop, items, _ = lists[given - 1]
        loop.count = self._counts[given - 1][2] - len(items)
        return stream

    def end(self) -> None:
        """Give nothing more of these rounds."""
        self.count()
        self._pops.clear()
        self._lists, self._counts = [], []


def _parse_stream_state(stream_state: Json) -> tuple[int, bool]:
    """Return how many items a state says were given, and whether the stream was over."""
    if stream_state is None:
        return 0, False
    if not is_stream_state(stream_state):
        raise StateMismatch(f"this is not the memory of a stream: {str(stream_state)[:80]}")
    return stream_state[0], len(stream_state) == 1


def find_place(stream_state: Json, epoch: int) -> tuple[int, int]:
    """Return the epoch that a stream's state is in, and how many shards of it come before the present one.

    Of readers that are not ours nothing is known: 0 shards.

    Args:
        stream_state: of a stream, or None.
        epoch: of the run.
    """
    if stream_state is None or len(stream_state) == 1:
        return epoch, 0
    memories = join_memories(stream_state)
    reader = memories[0] if memories else None
    shards = 0
    if isinstance(reader, list) and len(reader) == 8:
        shards = reader[0]
    elif isinstance(reader, dict) and isinstance(reader.get("slots"), list):
        # what is no slot is refused when the stream starts
        slots = [slot for slot in reader["slots"] if isinstance(slot, list) and len(slot) == 2]
        shards = min((slot[0] for slot in slots if type(slot[0]) is int), default=0)
    return epoch + stream_state[1], shards if type(shards) is int and shards > 0 else 0


def covers_rank(state: Mapping[str, Any], place: WorkerContext) -> bool:
    """Tell whether a state knows all streams of a rank."""
    return all(str(number) in state["memories"] for number in range(place.rank, state["streams"], place.world_size))


def is_epoch_over(state: Mapping[str, Any], place: WorkerContext) -> bool:
    """Tell whether a state says by itself that its epoch is over."""
    return has_progress(state) and covers_rank(state, place) and not find_running_streams(state)


def is_epoch_over_everywhere(
    state: Mapping[str, Any], place: WorkerContext, own: Container[int], stream: Callable[[int, Json], VirtualStream]
) -> bool:
    """Tell, of a worker that has nothing left of a state's epoch, whether that is over on all ranks that it knows.

    Args:
        state: of an elastic dataset.
        place: of the worker.
        own: numbers of its streams; the others are asked for one item.
        stream: returns one of them, from its number and state.
    """
    left = find_running_streams(state)
    if not has_progress(state) or not covers_rank(state, place) or (left and not state["received"]):
        return False  # the last: nothing was given yet, so this epoch is empty, and comes before the next
    return not any(
        _has_items(stream(number, stream_state)) for number, stream_state in left.items() if number not in own
    )


def _has_items(stream: VirtualStream) -> bool:
    try:
        return stream.advance() is not END
    finally:
        stream.close()


def rewind_state(state: Mapping[str, Any], epoch: int, place: WorkerContext) -> dict[str, Any]:
    """Return the state of a rank at the start of an epoch: no stream has moved.

    Where there are several ranks it names the rank's own streams, so that merged states lack none in silence.
    """
    own = range(place.rank, state["streams"], place.world_size) if place.world_size > 1 else ()
    header = {name: part for name, part in state.items() if name not in ("received", "memories", "check", "turn")}
    start = build_state({**header, "epoch": epoch}, {str(number): None for number in own})
    return check_state(start)


def warn_of_other_epoch(state: Mapping[str, Any], epoch: int, place: WorkerContext, *, stacklevel: int = 3) -> None:
    """Warn that ``set_epoch`` leaves a state that was loaded; not where the epoch of that state is over.

    Args:
        state: which was loaded, and not used.
        epoch: what was set.
        place: of the rank.
        stacklevel: of the warning; 3 is the caller of the caller.
    """
    saved = state["epoch"]
    if epoch == saved + 1 and is_epoch_over(state, place):
        return
    warnings.warn(
        f"set_epoch({epoch}) begins epoch {epoch}, and leaves the state that was loaded: it stands after "
        f"{state['received']} items of epoch {saved}. To continue after it, write set_epoch({saved}), or load it again",
        stacklevel=stacklevel,
    )
