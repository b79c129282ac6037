"""Tells which samples a run delivers, and changes saved states, without decoding where the pipeline allows it.

:func:`describe` says what a state is. :func:`trace` yields the keys of each batch that a rank receives, from a state or
from the start of an epoch. :func:`advance` returns the state after some batches, :func:`change_weights` one that
continues with other weights of a mix. All are ``wds.states``.

Theory. The order of an elastic dataset follows from its positions (:mod:`webdataset.flow.elastic`); that of another one
from seed, epoch, rank and worker. A loader of this library gives the items of all workers by rising index, a torch
loader one of each worker in turn, until each has ended. Here the same pipeline runs, in one process and one thread,
rewritten so that it gives keys (:mod:`webdataset.flow.key_tracing`); its items are then put into that order.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, islice
from typing import Any

from webdataset.core import settings
from webdataset.core.distributed import StreamNumber, WorkerContext, use_place
from webdataset.core.errors import StateMismatch, UsageError
from webdataset.core.optional_imports import loaded_module
from webdataset.flow.elastic_pipeline import ElasticMixin
from webdataset.flow.elastic_state import (
    LOADER_KIND,
    check_same_dataset,
    check_state,
    check_turn,
    has_progress,
    merge_states,
    next_positions,
)
from webdataset.flow.key_tracing import TracedItem, trace_dataset, trace_stages
from webdataset.flow.pipeline import DataPipeline
from webdataset.flow.run import build_runners
from webdataset.flow.state_description import StateDescription, describe_state, find_state
from webdataset.flow.virtual_stream import is_epoch_over, rewind_state
from webdataset.loading.loader_checks import EXACT
from webdataset.loading.partition import is_split
from webdataset.stages.base import Json, Run, describe_function
from webdataset.stages.mix import Mixture, RoundRobin

__all__ = [
    "Delivery", "StateDescription", "TracedBatch", "advance", "change_weights", "describe", "find_state",
    "plan_delivery", "trace",
]  # fmt: skip

LOADER, TORCH = "loader", "torch"
_NEVER = 1 << 62
# the weights of a mix, as a state describes it
_WEIGHTS = re.compile(r"(?<=\bprobs=)\[[^\]]*\]")


@dataclass(frozen=True)
class TracedBatch:
    """A batch, or a single sample where none are made, as a rank receives it.

    Args:
        batch: its number, counted from where the trace begins.
        epoch: that it is of.
        rank: that receives it.
        worker: that made it; None where several did.
        keys: of its samples, in their order.
        shards: urls of the shards that they stand in.
    """

    batch: int
    epoch: int
    rank: int
    worker: int | None
    keys: list[str]
    shards: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return asdict(self)


@dataclass(frozen=True)
class Delivery:
    """What is delivered, and how.

    Args:
        dataset: a pipeline, elastic or not, or a mix.
        workers: of each rank; 0: the items are made where they are asked for.
        batch_size: items in a batch that the loader makes; None: each item of the dataset is one.
        order: ``loader`` (all workers' items by rising index) or ``torch`` (one batch of each worker in turn).
        drop_last: a last batch that is smaller is left out.
        exact: of a loader of this library: a batch is smaller where streams have ended.
    """

    dataset: Any
    workers: int = 0
    batch_size: int | None = None
    order: str = LOADER
    drop_last: bool = False
    exact: bool = False

    @property
    def elastic(self) -> bool:
        """True where the dataset is elastic."""
        return isinstance(self.dataset, ElasticMixin)

    def deciding_stages(self) -> list[str]:
        """Return the stages that look at values, as text: where there are any, samples are decoded to be traced.

        Raises:
            UsageError: a stage whose items cannot be followed.
        """
        return trace_dataset(self.dataset)[1]


def describe(state: Mapping[str, Any]) -> StateDescription:
    """Return what a state is: of which dataset, in which epoch, and how far each of its streams is.

    Args:
        state: what ``state_dict()`` of an elastic dataset, a ``Loader`` or a ``WebLoader`` returned.

    Raises:
        StateMismatch: it is no state, or was changed since it was saved.
    """
    return describe_state(state)


def plan_delivery(
    source: Any,
    *,
    workers: int | None = None,
    batch_size: int | None = None,
    order: str | None = None,
    drop_last: bool | None = None,
) -> Delivery:
    """Return how a dataset or a loader delivers.

    Args:
        source: a dataset; or a ``Loader``, ``WebLoader`` or torch ``DataLoader``, whose own settings hold.
        workers: of each rank, in the place of the loader's.
        batch_size: items in a batch, in the place of the loader's.
        order: ``loader`` or ``torch``, of a dataset; by default ``loader``.
        drop_last: leave out a smaller last batch, in the place of the loader's.

    Raises:
        UsageError: something that cannot be traced.
    """
    kind = getattr(loaded_module("webdataset.loading.loader"), "Loader", None)
    if kind is not None and isinstance(source, kind):
        if source.order != EXACT:
            raise UsageError(
                f"order={source.order!r} gives samples as they become ready, so that no trace knows the batches: trace "
                "what they are taken from, wds.states.trace(loader.dataset, workers=…, batch_size=…)"
            )
        making = source.batching
        dataset, found = source.dataset, [source.workers, source.batch_size, LOADER, making.drop_last, making.exact]
    else:
        loader = _find_torch_loader(source)
        if loader is None:
            dataset, found = source, [0, None, LOADER, False, False]
        else:
            dataset = loader.dataset
            found = [loader.num_workers, loader.batch_size, TORCH, bool(loader.drop_last), False]
    given = [workers, batch_size, order, drop_last, None]
    settings_found: list[Any] = [own if each is None else each for own, each in zip(found, given, strict=True)]
    if settings_found[2] not in (LOADER, TORCH):
        raise UsageError(f"order={order!r}: the order is 'loader' or 'torch'")
    if settings_found[0] < 0 or (settings_found[1] is not None and settings_found[1] < 1):
        raise UsageError("a loader has 0 or more workers, and batches of at least one item")
    if not isinstance(dataset, DataPipeline | Mixture):
        raise UsageError(
            f"only datasets of this library can be traced, and this is a {type(dataset).__name__}: return the "
            "WebDataset, or a loader over it"
        )
    return Delivery(dataset if isinstance(dataset, DataPipeline) else DataPipeline(dataset), *settings_found)


def _find_torch_loader(source: Any) -> Any:
    """Return the torch loader that this is, or holds; None where there is none."""
    if not isinstance(source, DataPipeline):
        return source if hasattr(source, "dataset") and hasattr(source, "num_workers") else None
    first = source.pipeline[0] if source.pipeline else None
    if not (hasattr(first, "dataset") and hasattr(first, "num_workers")):
        return None
    if len(source.pipeline) > 1 or source.repetitions != 1 or source.nsamples > 0:
        raise UsageError(
            "stages after a loader cannot be traced: put them into the dataset, in front of elastic(), or trace the "
            "loader alone"
        )
    return first


def trace(
    source: Any,
    state: Mapping[str, Any] | None = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    worker: int | None = None,
    epoch: int | None = None,
    seed: int | None = None,
    start: int = 0,
    stop: int | None = None,
    **how: Any,
) -> Iterator[TracedBatch]:
    """Yield what a rank receives, as keys: from a state, or from the start of an epoch, to the end of that epoch.

    Nothing is decoded, unless stages of the dataset look at values: see :meth:`Delivery.deciding_stages`.

    Args:
        source: a dataset; or a ``Loader``, ``WebLoader`` or torch ``DataLoader`` over one.
        state: where the run begins, of this rank or merged from all; None: at the start of an epoch.
        rank: that receives.
        world_size: number of ranks.
        worker: only what this worker made.
        epoch: number of the epoch, where no state tells it; by default that of the source's next one.
        seed: of the run, where neither the dataset nor a state has one.
        start: number of the first batch to yield, counted from where the run begins.
        stop: number of the batch to stop before; None: to the end of the epoch.
        **how: ``workers``, ``batch_size``, ``order``, ``drop_last``; see :func:`plan_delivery`.

    Raises:
        UsageError: a seed that is not known, a topology that cannot be, or a stage that cannot be followed.
        StateMismatch: the state belongs to another dataset.
    """
    delivery = plan_delivery(source, **how)
    _check_place(delivery, rank, world_size, worker)
    given = _take_state(delivery, state, epoch)
    chosen = _next_epoch(source, delivery) if epoch is None else epoch
    begins = _Beginning(delivery, given, chosen, seed, (rank, world_size))
    numbered = enumerate(begins.batches())
    for number, (pieces, made_by) in islice(numbered, start, stop):
        if worker is None or made_by == worker:
            sources = [source for piece in pieces for source in piece.sources]
            keys, shards = [each.key for each in sources], [each.url for each in sources]
            yield TracedBatch(number, begins.epoch, rank, made_by, keys, shards)


def _next_epoch(source: Any, delivery: Delivery) -> int:
    """Return the number of the epoch that a dataset or loader would begin with."""
    if delivery.order == TORCH and delivery.workers and not delivery.elastic:
        # torch's workers count epochs by themselves, from 0, unless one was named
        return int(delivery.dataset.chosen_epoch or 0)
    own = getattr(source, "epoch", None)
    return int(delivery.dataset.epoch if own is None else own)


def _check_place(delivery: Delivery, rank: int, world_size: int, worker: int | None) -> None:
    if not 0 <= rank < world_size:
        raise UsageError(f"there is no rank {rank} of {world_size}: ranks are numbered from 0")
    if worker is None:
        return
    if not 0 <= worker < max(1, delivery.workers):
        raise UsageError(f"there is no worker {worker} of {delivery.workers}: workers are numbered from 0")
    if delivery.order == LOADER and delivery.batch_size and delivery.workers > 1:
        raise UsageError(
            "a batch of wds.Loader has samples of several workers: leave the worker out, or trace with order='torch'"
        )


def _take_state(delivery: Delivery, state: Mapping[str, Any] | None, epoch: int | None) -> Json:
    """Return the dataset's state in a state."""
    if state is None:
        return None
    if not delivery.elastic:
        raise UsageError(
            "only an elastic dataset can begin at a state: write dataset.elastic(), or leave the state out"
        )
    if epoch is not None:
        raise UsageError("the state says which epoch it is of: leave the epoch out")
    if isinstance(state, Mapping) and state.get("kind") == LOADER_KIND:
        if state.get("loop") is not None:
            raise UsageError("the state is of a loader with stages after it, which cannot be traced")
        state = state["begin"]
    return check_state(state)


Batch = tuple[list[TracedItem], int | None]
"""The items of a batch, and the worker that made it, or None."""


class _Beginning:
    """A run of one rank.

    Args:
        delivery: what is delivered.
        state: where it begins, or None.
        epoch: without a state.
        seed: without a state, where the dataset has none.
        here: rank and number of ranks.
    """

    def __init__(self, delivery: Delivery, state: Json, epoch: int, seed: int | None, here: tuple[int, int]) -> None:
        self.delivery = delivery
        self.state = state
        self.epoch = epoch if state is None else int(state["epoch"])
        self.here = here
        self.runs: list[Any] = []  # of an elastic dataset: of each worker
        self.dataset = copy.copy(delivery.dataset)
        if state is None:
            self._choose_seed(seed)

    def _choose_seed(self, given: int | None) -> None:
        dataset = self.dataset
        if given is not None:
            dataset.seed = given
        elif dataset.seed is None and settings.SEED.get() is None:
            raise UsageError(
                "the dataset has no seed, so that its order is not known: pass the seed that the run had (any, where "
                "nothing is shuffled), or a state that it saved"
            )
        dataset.set_epoch(self.epoch)

    def _place(self, worker: int = 0, workers: int = 1) -> WorkerContext:
        return WorkerContext(*self.here, worker, max(1, workers))

    def batches(self) -> Iterator[Batch]:
        """Yield batches, and who made each; where nothing is left of a state's epoch, those of the next one."""
        if self.state is not None and is_epoch_over(self.state, self._place()):
            self._move_on()
        nothing = True
        for batch in self._epoch():
            nothing = False
            yield batch
        if nothing and self.state is not None and self._is_over():
            self._move_on()
            yield from self._epoch()

    def _is_over(self) -> bool:
        with self.dataset.elastic_run(self._place(), self.state, continue_epochs=True) as run:
            return bool(run.is_epoch_done())

    def _move_on(self) -> None:
        self.epoch += 1
        self.runs = []
        self.state = rewind_state(self.state, self.epoch, self._place())

    def _epoch(self) -> Iterator[Batch]:
        delivery = self.delivery
        if delivery.order == TORCH and delivery.workers:
            return self._take_turns()
        pieces = self._by_position() if delivery.elastic else self._by_index()
        return _group(pieces, delivery)

    def _by_position(self) -> Iterator[tuple[int, TracedItem, int | None]]:
        """Yield index, item and worker, in the order of positions."""
        run = self._start(self._place())
        rank, ranks = self.here
        workers = self.delivery.workers
        for position, item in run.positions():
            turn, stream = divmod(position, run.streams)
            index = turn * len(range(rank, run.streams, ranks)) + (stream - rank) // ranks
            yield index, item, stream // ranks % workers if workers else None

    def _start(self, place: WorkerContext) -> Any:
        if self.state is None:
            self.dataset.set_epoch(self.epoch)
        run = self.dataset.elastic_run(place, self.state, continue_epochs=False)
        run.rewrite = lambda stages: trace_stages(stages).stages
        self.runs.append(run)
        # asks the dataset for seed and epoch, of which it will have moved on
        self.epoch = run.epoch
        return run

    def state_dict(self, last: int | None) -> dict[str, Any]:
        """Return the state after the batch yielded last.

        Args:
            last: the worker that made it.
        """
        if not self.runs:
            self._start(self._place())
        state = merge_states([run.state_dict() for run in self.runs])
        if self.delivery.order == TORCH and self.delivery.workers:
            following = self._first_turn() if last is None else (last + 1) % self.delivery.workers
            state["turn"] = [*self.here, self.delivery.workers, following]
        return state

    def _by_index(self) -> Iterator[tuple[int, TracedItem, int | None]]:
        """Yield index, item and worker of a dataset that is not elastic, in the order of a loader of this library."""
        workers = self.delivery.workers
        if not workers:
            yield from ((index, item, None) for index, item in enumerate(self._iterate(0, 1)))
        elif workers > 1 and not is_split(self.delivery.dataset):
            yield from ((index, item, 0) for index, item in enumerate(self._iterate(0, 1)))
        else:
            parts = [self._iterate(worker, workers) for worker in range(workers)]
            for index, (item, worker) in enumerate(_rotate(parts, 0)):
                yield index, item, worker

    def _iterate(self, worker: int, workers: int) -> Iterator[TracedItem]:
        dataset, _ = trace_dataset(self.dataset)
        dataset.set_epoch(self.epoch)
        in_loader = self.delivery.order == LOADER and self.delivery.workers > 0
        return iterate_in_place(dataset, self._place(worker, workers), in_loader=in_loader)

    def _take_turns(self) -> Iterator[Batch]:
        """Yield batches of torch's workers, one of each in turn."""
        workers, parts = self.delivery.workers, []
        turn = self._first_turn() if self.delivery.elastic else 0
        for worker in range(workers):
            if self.delivery.elastic:
                found: Iterator[Any] = (item for _, item in self._start(self._place(worker, workers)).positions())
            else:
                found = self._iterate(worker, workers)
            parts.append(_cut(found, self.delivery))
        yield from _rotate(parts, turn)

    def _first_turn(self) -> int:
        """Return the worker that is asked first, as :mod:`webdataset.loading.torch_loader` does."""
        state, workers = self.state, self.delivery.workers
        if state is None or not has_progress(state):
            return 0
        turn = check_turn(state.get("turn"))
        if turn is not None and turn[:3] == [*self.here, workers]:
            return int(turn[3])
        waiting = next_positions(state["memories"], state["streams"])
        return int(min(waiting) % state["streams"] // self.here[1] % workers) if waiting else 0


def _rotate(parts: Sequence[Iterator[Any]], first: int) -> Iterator[tuple[Any, int]]:
    """Yield what iterators give, one of each in turn, and the number of each; those that have ended are left out."""
    live = [(worker, parts[worker]) for worker in (*range(first, len(parts)), *range(first))]
    while live:
        rest = []
        for worker, part in live:
            item = next(part, None)
            if item is not None:
                rest.append((worker, part))
                yield item, worker
        live = rest


def _cut(items: Iterator[TracedItem], delivery: Delivery) -> Iterator[list[TracedItem]]:
    """Yield the items of each batch that a torch worker makes."""
    size = delivery.batch_size or 1
    while batch := list(islice(items, size)):
        if len(batch) < size and delivery.drop_last:
            return
        yield batch


def _group(pieces: Iterator[tuple[int, TracedItem, int | None]], delivery: Delivery) -> Iterator[Batch]:
    """Yield the batches that a loader of this library makes of items by rising index."""
    size = delivery.batch_size or 1
    if delivery.exact:
        for _, window in groupby(pieces, lambda piece: piece[0] // size):
            yield _join(list(window))
        return
    while batch := list(islice(pieces, size)):
        if len(batch) < size and delivery.drop_last:
            return
        yield _join(batch)


def _join(pieces: list[tuple[int, TracedItem, int | None]]) -> Batch:
    workers = {worker for _, _, worker in pieces}
    return [item for _, item, _ in pieces], workers.pop() if len(workers) == 1 else None


def iterate_in_place(dataset: Any, place: WorkerContext, *, in_loader: bool = False) -> Iterator[Any]:
    """Yield what a dataset gives to a worker of a rank.

    Args:
        dataset: anything that can be iterated.
        place: of the worker.
        in_loader: it is a worker of a loader of this library.
    """
    with use_place(place, in_loader=in_loader):
        items = iter(dataset)
    while True:
        with use_place(place, in_loader=in_loader):
            item = next(items, items)
        if item is items:
            return
        yield item


def advance(
    source: Any,
    state: Mapping[str, Any] | None = None,
    *,
    batches: int | None = None,
    samples: int | None = None,
    rank: int | None = None,
    world_size: int = 1,
    seed: int | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Return the state of a run that has received more batches, within the epoch of a state.

    Args:
        source: an elastic dataset, or a ``Loader``, ``WebLoader`` or torch ``DataLoader`` over one.
        state: where the run stands; None: at the start of the source's next epoch.
        batches: how many more each rank has received; or
        samples: how many more samples each rank has received; it has to end with a batch.
        rank: whose state to return; None: the merged state of all ranks.
        world_size: number of ranks.
        seed: of the run, where neither the dataset nor the state has one.
        **how: ``workers``, ``batch_size``, ``order``, ``drop_last``; see :func:`plan_delivery`.

    Returns:
        A new state; the given one stays as it is.

    Raises:
        UsageError: the dataset is not elastic, the epoch ends before, or the samples end within a batch.
        StateMismatch: the state belongs to another dataset.
    """
    delivery = plan_delivery(source, **how)
    if not delivery.elastic:
        raise UsageError("only an elastic dataset has a state: write dataset.elastic()")
    if (batches is None) == (samples is None):
        raise UsageError("say either how many batches to skip, or how many samples")
    given = _take_state(delivery, state, None)
    epoch = _next_epoch(source, delivery)
    found = []
    for each in range(world_size) if rank is None else [rank]:
        _check_place(delivery, each, world_size, None)
        begins = _Beginning(delivery, given, epoch, seed, (each, world_size))
        items, last = _skip(begins, batches, samples)
        if delivery.exact:  # to know that a window is over, one item more was read
            begins = _Beginning(replace(delivery, exact=False, batch_size=1), given, epoch, seed, (each, world_size))
            _skip(begins, items, None)
        found.append(begins.state_dict(last))
    return found[0] if len(found) == 1 else merge_states(found)


def change_weights(state: Mapping[str, Json], source: object) -> dict[str, Json]:
    """Return a state from which a run continues with other weights: those of the mixes of another dataset.

    Each source of a mix continues where it was; what is drawn from here on, in later epochs too, is drawn by the new
    weights. A source that is to come later is in the mix from the start, with weight 0.

    Args:
        state: of an elastic dataset, or of a loader over it; of one rank, or merged.
        source: the dataset (or a loader over it) that is to continue, which has the new weights.

    Returns:
        A new state; the given one stays as it is.

    Raises:
        UsageError: the dataset is not elastic.
        StateMismatch: it differs in more than weights; or the state is in the midst of an epoch, and a stage after the
            mix is resumed by reading what the mix gave once more.
    """
    delivery = plan_delivery(source)
    if not delivery.elastic:
        raise UsageError("only an elastic dataset has a state: write dataset.elastic()")
    given = _take_state(delivery, state, None)
    header = delivery.dataset.elastic_run(WorkerContext(0, 1, 0, 1)).header()
    saved, here = given["description"], header["description"]
    stages = saved["stages"]
    if len(stages) == len(here["stages"]):
        pairs = zip(stages, here["stages"], strict=True)
        stages = [now if _WEIGHTS.sub("", now) == _WEIGHTS.sub("", before) else before for before, now in pairs]
    changed = {**given, "description": {**saved, "stages": stages}}
    check_same_dataset(changed, {**header, "seed": delivery.dataset.seed})
    begun = any(isinstance(memory, list) and len(memory) > 1 for memory in given["memories"].values())
    if begun and stages != saved["stages"] and (replaying := _find_replaying(delivery.dataset)):
        raise StateMismatch(
            f"weights cannot change in the midst of an epoch here: {replaying} is resumed by reading once more what "
            "the mix has given since the epoch began, and other weights give something else. Change them at the end of "
            "an epoch, or apply the stage to each source, before the mix"
        )
    return changed


def _find_replaying(dataset: DataPipeline) -> str | None:
    """Return the stage that is resumed by reading what a mix gave once more; None where there is none."""
    first, runners = build_runners(dataset.pipeline, Run(tracked=True, stream=StreamNumber(0, 1)))
    source = runners[0].stage if runners else None
    if not isinstance(source, Mixture):
        return None
    inner = [each for each in source.datasets if isinstance(each, DataPipeline)]
    if first and (type(source) is not RoundRobin or any(map(_has_mix, inner))):
        return describe_function(getattr(runners[first], "foreign", runners[first].stage))
    return next(filter(None, map(_find_replaying, inner)), None)


def _has_mix(dataset: object) -> bool:
    """Tell whether a dataset draws from a mix."""
    inner = dataset.pipeline[:1] if isinstance(dataset, DataPipeline) else ()
    return any(isinstance(each, Mixture) or _has_mix(each) for each in inner)


def _skip(begins: _Beginning, batches: int | None, samples: int | None) -> tuple[int, int | None]:
    """Receive batches; return how many items they had, and the worker that made the last one."""
    wanted = _NEVER if batches is None else batches
    target = _NEVER if samples is None else samples
    skipped = given = size = items = 0
    last: int | None = None
    found = begins.batches()
    while skipped < wanted and given < target:
        batch = next(found, None)
        if batch is None:
            what = f"{skipped} batches" if samples is None else f"{given} samples"
            raise UsageError(f"rank {begins.here[0]} has only {what} left in epoch {begins.epoch}")
        size = sum(len(item.sources) for item in batch[0])
        skipped, given, items, last = skipped + 1, given + size, items + len(batch[0]), batch[1]
    if samples is not None and given != samples:
        raise UsageError(f"{samples} samples end within a batch: take {given - size} or {given}")
    return items, last
