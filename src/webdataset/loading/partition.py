"""Divides the samples of a dataset between the workers of a loader.

Each worker gets a share: its samples by rising index, each index once in all workers together.

* An *elastic* dataset is made of virtual streams, of which each worker owns some: order and state do not depend on the
  number of workers.
* Another *pipeline* (or a mix) is run by each worker with its part of the shards; the workers take turns, as in a torch
  DataLoader.
* Of what can be *indexed*, worker ``w`` of ``W`` takes the items ``w, w + W, …``.
* All else that can be *iterated*, and a pipeline that splits nothing, is left to the first worker: if each kept every
  W-th sample, all would do the whole work, and samples would be lost where something inside splits all the same.
"""

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from webdataset.core.distributed import SINGLE_WORKER, WorkerContext, thread_context, worker_context
from webdataset.core.errors import StateMismatch, UsageError
from webdataset.flow.epochs import choose_seeds
from webdataset.flow.outcomes import Outcomes
from webdataset.flow.pipeline import DataPipeline
from webdataset.flow.run import expand_stages
from webdataset.flow.timing import StageMeter
from webdataset.flow.virtual_stream import END
from webdataset.loading.worker import NEVER, WorkerShare
from webdataset.shards.lists import ResampledShards
from webdataset.shards.split import split_by_node
from webdataset.stages.base import Json, Run
from webdataset.stages.mix import Mixture

if TYPE_CHECKING:
    from webdataset.flow.elastic import ElasticRun
    from webdataset.flow.elastic_pipeline import ElasticPipeline

DatasetType = TypeVar("DatasetType")


@dataclass(frozen=True)
class EpochStart:
    """Where an epoch begins; small, and can be pickled.

    Args:
        epoch: its number.
        start: the index that the first sample can have.
        state: where an elastic dataset continues, or what it begins with.
        run: seed and epoch of another pipeline.
        place: rank and number of ranks.
        seed: of the global generators in worker processes, together with epoch, rank and worker.
        timed: whether to time the stages.
        stepwise: an elastic dataset's shares note their states at each sample.
    """

    epoch: int
    start: int = 0
    state: Json = None
    run: Run | None = None
    place: WorkerContext = SINGLE_WORKER
    seed: int = 0
    timed: bool = False
    stepwise: bool = False


class DatasetAdapter(Protocol):
    """A dataset as a loader sees it."""

    elastic: bool

    def begin(self, epoch: int, state: Json) -> EpochStart:
        """Return where an epoch begins."""

    def pending(self) -> Json:
        """Return the state that the dataset itself was told to continue from, if it was."""

    def chosen(self) -> bool:
        """Tell whether ``dataset.set_epoch`` named that state's epoch."""

    def forget(self) -> None:
        """Take note that the dataset's own state is used, or not wanted."""

    def over(self, state: Json, beginning: EpochStart) -> bool:
        """Tell, of a state after which this rank has nothing, whether its epoch is over on all ranks."""

    def share(self, beginning: EpochStart, worker: int, workers: int) -> WorkerShare:
        """Return a worker's share of the epoch."""

    def check(self, beginning: EpochStart) -> None:
        """Raise what a run of one process raises where it gives nothing; called where no sample came."""


class StridedShare:
    """A share whose samples have the indices ``worker + k · workers``.

    Args:
        samples: the worker's samples; or all samples, of which it keeps its own.
        worker: its number.
        workers: how many there are.
        meter: times the stages that give the samples.
        outcomes: is told what became of their samples.
    """

    stepwise = False

    def __init__(
        self,
        samples: Iterator[object],
        worker: int,
        workers: int,
        *,
        meter: StageMeter | None = None,
        outcomes: Outcomes | None = None,
    ) -> None:
        self.following = worker
        self.turn = 1
        self.meter = meter
        self.outcomes = outcomes
        self._samples = samples
        self._workers = workers

    def __iter__(self) -> Iterator[tuple[object, int]]:
        """Yield (sample, index of the next one)."""
        return zip(self._samples, itertools.count(self.following + self._workers, self._workers), strict=False)

    def reading(self) -> str:
        """Return nothing: what is read is not known."""
        return ""

    def progress(self) -> None:
        """Return None: there is no state."""

    def take_steps(self) -> list[Json]:
        """Return nothing: there is no state."""
        return []

    def close(self) -> None:
        """Close the samples' iterator."""
        close = getattr(self._samples, "close", None)
        if close is not None:
            close()


class _StatelessAdapter(Generic[DatasetType]):
    """A dataset whose runs cannot be continued."""

    elastic = False

    def __init__(self, dataset: DatasetType) -> None:
        self.dataset = dataset

    def begin(self, epoch: int, state: Json) -> EpochStart:
        """Return where an epoch begins."""
        if state is not None:
            raise StateMismatch(
                f"only a loader over an elastic dataset can be continued, and this is one over a "
                f"{type(self.dataset).__name__}: write dataset.elastic()"
            )
        return EpochStart(epoch, seed=choose_seeds(None)[0], place=worker_context())

    def pending(self) -> Json:
        """Return None: there is no state."""
        return None

    def chosen(self) -> bool:
        """Return False: there is no state."""
        return False

    def forget(self) -> None:
        """Do nothing: there is no state."""

    def over(self, state: Json, beginning: EpochStart) -> bool:  # noqa: ARG002
        """Return False: there is no state."""
        return False

    def check(self, beginning: EpochStart) -> None:
        """Raise nothing: each worker's run has raised what there was to be raised."""


class PipelineAdapter(_StatelessAdapter[DataPipeline]):
    """A pipeline that shares out its shards itself (``split_by_worker``)."""

    def begin(self, epoch: int, state: Json) -> EpochStart:
        """Return where an epoch begins: its seed, which all workers must have in common."""
        beginning = super().begin(epoch, state)
        seed, common = choose_seeds(self.dataset.seed)
        run = Run(seed=seed, common=common, epoch=epoch, tracked=True)
        return replace(beginning, run=run, seed=seed)

    def share(self, beginning: EpochStart, worker: int, workers: int) -> StridedShare:
        """Return the samples that the pipeline gives this worker: all to the first, where it does not split."""
        if workers > 1 and not is_split(self.dataset):
            if worker:
                return _make_empty_share()
            workers = _act_alone()
        dataset = copy.copy(self.dataset)
        if beginning.run is not None:
            dataset.adopt(beginning.run)
        dataset.meter = meter = StageMeter() if beginning.timed else None
        dataset.outcomes = outcomes = Outcomes()
        # the loader compares lengths
        dataset.silent = True
        return StridedShare(iter(dataset), worker, workers, meter=meter, outcomes=outcomes)


def is_split(dataset: object) -> bool:
    """Tell whether a dataset gives every worker something else: a share of its own, or draws of its own.

    Args:
        dataset: anything.
    """
    return isinstance(dataset, DataPipeline) and any(map(_is_splitter, expand_stages(dataset.pipeline)))


def _is_splitter(stage: object) -> bool:
    if isinstance(stage, Mixture):
        return all(is_split(source) or _is_splitter(source) for source in stage.datasets)
    if isinstance(stage, ResampledShards) or is_split(stage):
        return True
    # split_by_node, and a stage that shares out between ranks alone, give the same to all workers of a rank
    return bool(getattr(stage, "splits", False)) and stage is not split_by_node and getattr(stage, "workers", True)


def _act_alone() -> int:
    """Let this worker see itself as the only one, and return how many there are then."""
    thread_context.worker = 0, 1
    return 1


def _make_empty_share() -> StridedShare:
    """Return the share of a worker that has nothing to do."""
    share = StridedShare(iter(()), 0, 1)
    share.following = NEVER
    return share


class IndexedAdapter(_StatelessAdapter[Sequence[object]]):
    """A list, an indexed dataset: anything with ``len()`` and ``[n]``."""

    def share(self, beginning: EpochStart, worker: int, workers: int) -> StridedShare:  # noqa: ARG002
        """Return every W-th item."""
        numbers = range(worker, len(self.dataset), workers)
        return StridedShare((self.dataset[number] for number in numbers), worker, workers)


class IterableAdapter(_StatelessAdapter[Iterable[object]]):
    """Anything that can be iterated again and again."""

    def share(self, beginning: EpochStart, worker: int, workers: int) -> StridedShare:
        """Return all items for the first worker, nothing for the others."""
        if worker:
            return _make_empty_share()
        if workers > 1:
            _act_alone()
        set_epoch = getattr(self.dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(beginning.epoch)
        return StridedShare(iter(self.dataset), 0, 1)


class ElasticShare:
    """The share of a worker that owns some of a rank's virtual streams.

    Args:
        run: of an elastic dataset, in this worker's place.
        state: where it begins.
        of_rank: numbers of the streams that the rank owns, rising.
        meter: times the stages.
        stepwise: note the state at each sample.
    """

    def __init__(
        self,
        run: "ElasticRun",
        state: Json,
        of_rank: list[int],
        meter: StageMeter | None = None,
        *,
        stepwise: bool = False,
    ) -> None:
        self._run = run
        self.stepwise = stepwise
        self._steps: list[Json] = []
        self.meter = run.meter = meter
        self.outcomes = run.outcomes = Outcomes()
        self._of_rank = of_rank
        self.turn = max(1, len(run.owned))
        first = find_next_position(state, run.owned)
        self.following = NEVER if first is None else count_indices_before(first, int(state["streams"]), of_rank)

    def __iter__(self) -> Iterator[tuple[object, int]]:
        """Yield (sample, or END of a stream; the lowest index that the next one can have)."""
        turns = self._run.turns(self._of_rank, NEVER)
        return self._note_steps(turns) if self.stepwise else turns

    def _note_steps(self, turns: Iterator[tuple[object, int]]) -> Iterator[tuple[object, int]]:
        for sample, following in turns:
            if sample is not END:
                self._steps.append(self._run.progress())
            yield sample, following
            # what the pipeline does not keep is gone before the next sample is made
            del sample

    def take_steps(self) -> list[Json]:
        """Return the states of the streams that moved, at each sample since the last call."""
        steps, self._steps = self._steps, []
        return steps

    def reading(self) -> str:
        """Return the url of the shard that the present stream reads; nothing where that is not known."""
        return self._run.reading()

    def progress(self) -> Json:
        """Return the states of the streams that moved."""
        return self._run.progress()

    def close(self) -> None:
        """Close the run."""
        self._run.close()


class ElasticAdapter:
    """A dataset of virtual streams."""

    elastic = True

    def __init__(self, dataset: "ElasticPipeline") -> None:
        self.dataset = dataset

    def begin(self, epoch: int, state: Json) -> EpochStart:
        """Return where an epoch begins, or continues."""
        here = worker_context()
        # one seed for all epochs: a state of the first one is that of what follows, and of what is resumed from it
        if state is not None and self.dataset.seed is None:
            self.dataset._lent = state["seed"], state["seed"]  # noqa: SLF001  as where the dataset itself takes it up
        self.dataset.choose_seed()
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
        """Tell whether no other rank has anything left after a state, where it knows them."""
        with copy.copy(self.dataset).elastic_run(place=beginning.place, state=state, continue_epochs=True) as run:
            return bool(run.is_epoch_done())

    def check(self, beginning: EpochStart) -> None:
        """Raise NoSamples where the dataset is empty, and may not be."""
        with self.dataset.elastic_run(place=beginning.place, state=beginning.state, continue_epochs=False) as run:
            next(run, None)

    def advance_state(self, state: Json, beginning: EpochStart, until: int) -> dict[str, Json]:
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
        meter = StageMeter() if beginning.timed else None
        return ElasticShare(run, state, _streams_of_rank(state, where), meter, stepwise=beginning.stepwise)


def _streams_of_rank(state: Json, where: WorkerContext) -> list[int]:
    """Return the numbers of the streams that a rank owns."""
    return list(range(where.rank, int(state["streams"]), where.world_size))


def find_next_position(state: Json, mine: Iterable[int]) -> int | None:
    """Return the lowest position that some streams can give next; None where all of them are over."""
    streams, stream_states = int(state["streams"]), state["memories"]
    positions = []
    for stream in mine:
        stream_state = stream_states.get(str(stream))
        # the state of a stream that is over is its count alone
        if stream_state is None or len(stream_state) > 1:
            positions.append((stream_state[0] if stream_state else 0) * streams + stream)
    return min(positions, default=None)


def count_indices_before(position: int, streams: int, mine: list[int]) -> int:
    """Return how many positions of a rank are below one."""
    turn, stream = divmod(position, streams)
    return turn * len(mine) + sum(1 for own in mine if own < stream)


def adapt_dataset(dataset: object) -> DatasetAdapter:
    """Return a dataset as a loader sees it.

    Raises:
        UsageError: nothing of these.
    """
    if isinstance(dataset, ElasticAdapter):
        return dataset
    if getattr(dataset, "streams", None):
        return ElasticAdapter(cast("ElasticPipeline", dataset))
    if isinstance(dataset, DataPipeline | Mixture):
        return PipelineAdapter(dataset if isinstance(dataset, DataPipeline) else DataPipeline(dataset))
    if callable(getattr(dataset, "__getitem__", None)) and callable(getattr(dataset, "__len__", None)):
        return IndexedAdapter(cast("Sequence[object]", dataset))
    if isinstance(dataset, Iterable):
        return IterableAdapter(dataset)
    raise UsageError(f"a loader reads a dataset, a sequence or an iterable, and {type(dataset).__name__} is none")
