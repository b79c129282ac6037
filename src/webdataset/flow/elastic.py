"""An elastic dataset being read by one worker: the streams that it owns, in the order of positions.

Theory. A dataset has V virtual streams, V being part of its description. Item k of stream v has the position
``t = k * V + v``. Rank r of R, worker w of W, owns the streams ``{v : v mod R = r, (v div R) mod W = w}`` and gives
their items by rising position; a stream that is over leaves holes. Nothing about a stream, and so nothing about a
position, depends on who owns it: the order of all items is the same for every number of ranks and workers, each item is
given once, and a state taken under one topology can go on under any other. Nobody communicates, nobody counts samples.

Flows in: a dataset, a place, perhaps a state. Flows out: items, and the state behind any of them.
"""

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

from webdataset.ground.errors import WebDatasetError
from webdataset.ground.topology import Place, physical
from webdataset.ground.tracebacks import trim
from webdataset.stages.base import Address, Json

from .elastic_state import checked, whole
from .elastic_stream import END
from .outcomes import Outcomes
from .stream_cursor import Plan, StreamCursor, check_equal_ranks, owned, planned

__all__ = ["END", "ElasticRun", "Plan", "owned", "planned"]


class ElasticRun:
    """One worker's run of an elastic dataset: an iterator over items, by rising position.

    Nothing is opened before the first item is asked for.

    Args:
        prepare: makes the plan; called once, with the state that was loaded into this run, or None.
        place: whose streams to read; None is this process's place.
        following: makes the plan of the epoch behind that of another plan.
    """

    def __init__(
        self,
        prepare: Callable[[Json], Plan],
        place: Place | None = None,
        following: Callable[[Plan], Plan] | None = None,
    ) -> None:
        self._prepare = prepare
        self._following = following
        self._moved_on = False
        self._place = place
        self._started: StreamCursor | None = None
        self._pairs: Generator[tuple[int, Any]] = _no_pairs()
        self.meter: Any = None  # times the stages, where it is given before the first item
        self.outcomes: Any = None  # is told what became of the samples, where it is given before the first item
        self.declared: tuple[Any, int] | None = None  # a pipeline and its length, to be compared with the pass

    def _cursor(self) -> StreamCursor:
        return self._started or self._begin(None)

    def _begin(self, state: Json) -> StreamCursor:
        self._moved_on = False
        return self._taken_up(self._prepare(state))

    def _taken_up(self, plan: Plan) -> StreamCursor:
        outcomes = Outcomes() if self.outcomes is None else self.outcomes
        plan = replace(plan, run=replace(plan.run, meter=self.meter, outcomes=outcomes))
        place = self._place or physical()
        if plan.bounds.fixed and plan.bounds.items is not None and place.world_size <= plan.streams:
            check_equal_ranks(plan.streams, plan.bounds.items, place.world_size)
        self._started = cursor = StreamCursor(plan, place)
        cursor.outcomes = outcomes if self.outcomes is None and not any(cursor.memories.values()) else None
        cursor.declared = self.declared
        self._pairs = cursor.pairs()
        return cursor

    def _goes_on(self) -> bool:
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
        self._taken_up(self._following(cursor.plan))
        return True

    def epoch_over(self) -> bool:
        """Tell, of a run that gave nothing behind its state, whether that epoch is over, so that the next one comes.

        The streams of other ranks and workers, where the state knows them, are asked for one item: where one of them
        gives it, the epoch goes on there, and this worker has nothing left of it.
        """
        cursor = self._cursor()
        return cursor.plan.continue_epochs and cursor.over()

    @property
    def ended(self) -> bool:
        """True behind the last item, once more was asked for."""
        return self._started is not None and inspect.getgeneratorstate(self._pairs) == inspect.GEN_CLOSED

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._started is None:
            self._begin(None)
        try:
            return next(self._pairs)[1]
        except StopIteration:
            if not self._goes_on():
                raise
        except WebDatasetError as error:
            trim(error)
            raise
        return next(self._pairs)[1]

    def positions(self) -> Iterator[tuple[int, Any]]:
        """Return an iterator over ``(position, item)``; it moves together with this one."""
        self._cursor()
        return iter(self._pair, None)

    def _pair(self) -> tuple[int, Any]:
        """Return the next position and item; raise StopIteration behind the last."""
        pair = next(self._pairs, None)
        if pair is None and self._goes_on():
            pair = next(self._pairs, None)
        if pair is None:
            raise StopIteration
        return pair

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

        A run that went on with the next epoch tells its number too.
        See :class:`webdataset.flow.elastic_state.Received`.

        Raises:
            FlowError: as ``state_dict`` does.
        """
        cursor = self._cursor()
        cursor.refresh()
        moved = {name: cursor.memories[name] for name in cursor.unsent}
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


def _no_pairs() -> Generator[tuple[int, Any]]:
    yield from ()
