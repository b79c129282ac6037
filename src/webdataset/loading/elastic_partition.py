"""Divides the virtual streams of an elastic dataset between the workers of a loader.

See :mod:`webdataset.loading.partition` for other datasets.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from webdataset.core.distributed import WorkerContext, worker_context
from webdataset.core.errors import UsageError
from webdataset.flow.outcomes import Outcomes
from webdataset.flow.pipeline import DataPipeline
from webdataset.flow.timing import StageMeter
from webdataset.loading.partition import DatasetAdapter, EpochStart, IndexedAdapter, IterableAdapter, PipelineAdapter
from webdataset.loading.worker import NEVER
from webdataset.stages.base import Json
from webdataset.stages.mix import Mixture


class ElasticShare:
    """The share of a worker that owns some of a rank's virtual streams.

    Args:
        run: of an elastic dataset, in this worker's place.
        state: where it begins.
        of_rank: numbers of the streams that the rank owns, rising.
        meter: times the stages.
    """

    def __init__(self, run: Any, state: Json, of_rank: list[int], meter: StageMeter | None = None) -> None:
        self._run = run
        self.meter = run.meter = meter
        self.outcomes = run.outcomes = Outcomes()
        self._of_rank = of_rank
        self.turn = max(1, len(run.owned))
        first = find_next_position(state, run.owned)
        self.following = NEVER if first is None else count_indices_before(first, int(state["streams"]), of_rank)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield (sample, or END of a stream; the lowest index that the next one can have)."""
        turns: Iterator[tuple[Any, int]] = self._run.turns(self._of_rank, NEVER)
        return turns

    def reading(self) -> str:
        """Return the url of the shard that the present stream reads; nothing where that is not known."""
        return str(self._run.reading())

    def progress(self) -> Json:
        """Return the states of the streams that moved."""
        return self._run.progress()

    def close(self) -> None:
        """Close the run."""
        self._run.close()


class ElasticAdapter:
    """A dataset of virtual streams."""

    elastic = True

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def begin(self, epoch: int, state: Json) -> EpochStart:
        """Return where an epoch begins, or continues."""
        here = worker_context()
        self.dataset.choose_seed()  # one seed for all epochs: a state of the first one is that of what follows
        dataset = copy.copy(self.dataset)
        dataset.set_epoch(epoch)
        alone = WorkerContext(here.rank, here.world_size, 0, 1)
        with dataset.elastic_run(place=alone, state=state) as run:
            begun, mine = run.state_dict(), run.owned
        first = find_next_position(begun, mine)
        start = 0 if first is None else count_indices_before(first, int(begun["streams"]), mine)
        return EpochStart(int(begun["epoch"]), start, begun, place=alone, seed=int(begun["seed"]))

    def pending(self) -> Json:
        """Return what ``dataset.load_state_dict`` was given, if no iteration has used it yet."""
        return self.dataset.pending

    def chosen(self) -> bool:
        """Tell whether ``dataset.set_epoch`` named the epoch of that state."""
        return bool(self.dataset.chosen)

    def forget(self) -> None:
        """Let the dataset forget it: the loader's workers begin with it, and not once more."""
        self.dataset.forget()

    def over(self, state: Json, beginning: EpochStart) -> bool:
        """Tell whether no other rank has anything left behind a state, where it knows them."""
        with copy.copy(self.dataset).elastic_run(place=beginning.place, state=state, continue_epochs=True) as run:
            return bool(run.is_epoch_done())

    def check(self, beginning: EpochStart) -> None:
        """Raise NoSamples where the dataset is empty, and may not be."""
        with self.dataset.elastic_run(place=beginning.place, state=beginning.state, continue_epochs=False) as run:
            next(run, None)

    def advance_state(self, state: Json, beginning: EpochStart, until: int) -> Json:
        """Return the state of a rank further on; the samples in between are made once more for it.

        Args:
            state: a state.
            beginning: of the epoch.
            until: the first index that has not been received; ends of streams have an index too.
        """
        with self.dataset.elastic_run(place=beginning.place, state=state, continue_epochs=False) as run:
            share = ElasticShare(run, state, _streams_of_rank(state, beginning.place))
            following, turns = share.following, iter(share)
            while following < min(until, NEVER):
                _, following = next(turns)
            return run.state_dict()

    def share(self, beginning: EpochStart, worker: int, workers: int) -> ElasticShare:
        """Return the samples of the streams that this worker owns."""
        where = beginning.place._replace(worker=worker, num_workers=workers)
        state = beginning.state
        run = self.dataset.elastic_run(place=where, state=state, continue_epochs=False)
        return ElasticShare(run, state, _streams_of_rank(state, where), StageMeter() if beginning.timed else None)


def _streams_of_rank(state: Json, where: WorkerContext) -> list[int]:
    """Return the numbers of the streams that a rank owns."""
    return list(range(where.rank, int(state["streams"]), where.world_size))


def find_next_position(state: Json, mine: Iterable[int]) -> int | None:
    """Return the lowest position that some streams can give next; None where all of them are over.

    Args:
        state: of an elastic dataset.
        mine: numbers of the streams.
    """
    streams, stream_states = int(state["streams"]), state["memories"]
    positions = []
    for stream in mine:
        stream_state = stream_states.get(str(stream))
        if stream_state is None or len(stream_state) > 1:  # the state of a stream that is over is its count alone
            positions.append((stream_state[0] if stream_state else 0) * streams + stream)
    return min(positions, default=None)


def count_indices_before(position: int, streams: int, mine: list[int]) -> int:
    """Return how many positions of a rank are below one.

    Args:
        position: any.
        streams: how many streams there are.
        mine: those that the rank owns.
    """
    turn, stream = divmod(position, streams)
    return turn * len(mine) + sum(1 for own in mine if own < stream)


def adapt_dataset(dataset: Any) -> DatasetAdapter:
    """Return a dataset as a loader sees it.

    Args:
        dataset: a pipeline, a sequence, an iterable.

    Raises:
        UsageError: nothing of these.
    """
    if getattr(dataset, "streams", None):
        return ElasticAdapter(dataset)
    if isinstance(dataset, DataPipeline | Mixture):
        return PipelineAdapter(dataset if isinstance(dataset, DataPipeline) else DataPipeline(dataset))
    if callable(getattr(dataset, "__getitem__", None)) and callable(getattr(dataset, "__len__", None)):
        return IndexedAdapter(dataset)
    if isinstance(dataset, Iterable):
        return IterableAdapter(dataset)
    raise UsageError(f"a loader reads a dataset, a sequence or an iterable, and {type(dataset).__name__} is none")
