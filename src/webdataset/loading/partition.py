"""Divides the samples of a dataset between the workers of a loader, and says in which order they come together.

Each worker gets a share: its samples by rising index, where all workers together have each index once. What a share
is depends on the dataset:

* an *elastic* dataset is made of virtual streams, of which each worker owns some: the order, and the state, do not
  depend on the number of workers;
* another *pipeline* (or a mix of such) is run by each worker with its part of the shards, and the workers take turns,
  as in a torch DataLoader;
* of what can be *indexed* worker ``w`` of ``W`` takes the items ``w, w + W, …``;
* whatever else can be *iterated*, and a pipeline that splits nothing, is left to the first worker: if each kept every
  W-th sample, all would do the whole work, and samples would be lost where something inside splits all the same, or
  where the order is another one in each worker.
"""

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from webdataset.core.distributed import SINGLE_WORKER, WorkerContext, thread_context, worker_context
from webdataset.core.errors import StateMismatch, UsageError
from webdataset.flow.epochs import choose_seeds
from webdataset.flow.outcomes import Outcomes
from webdataset.flow.pipeline import DataPipeline
from webdataset.flow.run import expand_stages
from webdataset.flow.timing import StageMeter
from webdataset.loading.worker import NEVER, WorkerShare
from webdataset.shards.lists import ResampledShards
from webdataset.shards.split import split_by_node
from webdataset.stages.base import Json, Run
from webdataset.stages.mix import Mixture


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
    """

    epoch: int
    start: int = 0
    state: Json = None
    run: Run | None = None
    place: WorkerContext = SINGLE_WORKER
    seed: int = 0
    timed: bool = False


class DatasetAdapter(Protocol):
    """A dataset as a loader sees it."""

    elastic: bool

    def begin(self, epoch: int, state: Json) -> EpochStart:
        """Return where an epoch begins."""

    def pending(self) -> Json:
        """Return the state that the dataset itself was told to go on from, if it was."""

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

    def __init__(
        self,
        samples: Iterator[Any],
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

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield (sample, index of the next one)."""
        return zip(self._samples, itertools.count(self.following + self._workers, self._workers), strict=False)

    def reading(self) -> str:
        """Return nothing: what is read is not known."""
        return ""

    def progress(self) -> None:
        """Return None: there is no state."""

    def close(self) -> None:
        """Close the samples' iterator."""
        close = getattr(self._samples, "close", None)
        if close is not None:
            close()


class _StatelessAdapter:
    """A dataset whose runs cannot be continued."""

    elastic = False

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def begin(self, epoch: int, state: Json) -> EpochStart:
        """Return where an epoch begins.

        Raises:
            StateMismatch: it is to be continued.
        """
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


class PipelineAdapter(_StatelessAdapter):
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
        dataset.silent = True  # the loader compares lengths
        return StridedShare(iter(dataset), worker, workers, meter=meter, outcomes=outcomes)


def is_split(dataset: Any) -> bool:
    """Tell whether a dataset gives every worker something else: a share of its own, or draws of its own.

    Args:
        dataset: anything.
    """
    return isinstance(dataset, DataPipeline) and any(map(_is_splitter, expand_stages(dataset.pipeline)))


def _is_splitter(stage: Any) -> bool:
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


class IndexedAdapter(_StatelessAdapter):
    """A list, an indexed dataset: anything with ``len()`` and ``[n]``."""

    def share(self, beginning: EpochStart, worker: int, workers: int) -> StridedShare:  # noqa: ARG002
        """Return every W-th item."""
        numbers = range(worker, len(self.dataset), workers)
        return StridedShare((self.dataset[number] for number in numbers), worker, workers)


class IterableAdapter(_StatelessAdapter):
    """Anything that can be iterated again and again."""

    def share(self, beginning: EpochStart, worker: int, workers: int) -> StridedShare:
        """Return all items for the first worker, nothing for the others.

        Raises:
            UsageError: an iterator, which can be iterated once only, and several workers.
        """
        if worker:
            return _make_empty_share()
        if workers > 1:
            _act_alone()
        set_epoch = getattr(self.dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(beginning.epoch)
        iterator = iter(self.dataset)
        if workers > 1 and iterator is self.dataset:
            raise UsageError(
                f"{type(self.dataset).__name__} is an iterator, which several workers cannot share: "
                "pass what it iterates over, or workers=1"
            )
        return StridedShare(iterator, 0, 1)
