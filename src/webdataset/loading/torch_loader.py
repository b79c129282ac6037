"""torch's DataLoader over an elastic dataset, with a state: what its consumer received, not what workers read.

Theory. A worker calls ``collate_fn`` once for each batch, right after taking its items from the dataset. There the
batch is wrapped with the states of the streams that moved; the consumer unwraps it and keeps the states, whatever
waits in queues. Workers learn where to begin from ``worker_init_fn``, before they ask the dataset for its iterator.

torch asks its workers in turn, the first one first, also after a resume. The turn of the stopped loader is kept by
renumbering: the first worker reads the streams of the worker whose turn it is. Batches are those of
``torch.utils.data.DataLoader``, unchanged.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import torch
from torch.utils.data import DataLoader, get_worker_info

from webdataset.core.distributed import WorkerContext, process_context, thread_context
from webdataset.core.errors import FlowError
from webdataset.flow.elastic import ElasticRun
from webdataset.flow.elastic_state import (
    ReceivedState,
    check_state,
    check_turn,
    has_progress,
    held_states,
    next_positions,
)
from webdataset.flow.epochs import choose_seeds
from webdataset.loading.loader_stage import LoaderStage, hold
from webdataset.stages.base import Address, Json, Run, Stage

if TYPE_CHECKING:
    from webdataset.flow.elastic_pipeline import ElasticPipeline

Batch = TypeVar("Batch")


class BatchWithState:
    """A batch on its way from a worker, and how far the streams that gave it have moved.

    Args:
        batch: what ``collate_fn`` made.
        position: of its last item.
        progress: states of the streams that moved.
        run: seed and epoch of the worker's run, for the check that all read the same.
        address: of the item, where it was asked for.
    """

    __slots__ = ("address", "batch", "position", "progress", "run")

    def __init__(self, batch: object, position: int, progress: Json, run: tuple[int, int], address: Address) -> None:
        self.batch = batch
        self.position = position
        self.progress = progress
        self.run = run
        self.address = address

    def pin_memory(self) -> Self:
        """Copy the batch's tensors to page-locked memory; called by torch's thread for that."""
        from torch.utils.data._utils.pin_memory import pin_memory  # noqa: PLC0415  torch's own, where CUDA is

        self.batch = pin_memory(self.batch)
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return BatchWithState, (self.batch, self.position, self.progress, self.run, self.address)


class StatefulCollate:
    """A collate function that sends progress along with each batch, in workers only.

    Attributes:
        addresses: send the address of each item too.
    """

    def __init__(self, collate: Callable[[Any], object]) -> None:
        self.collate = collate
        self.addresses = False

    def __call__(self, items: object) -> object:
        """Return the batch, in a worker together with its state."""
        batch = self.collate(items)
        worker = get_worker_info()
        if worker is None:
            return batch
        run = cast("ElasticPipeline", worker.dataset).present
        if run is None or run.position is None:
            raise FlowError("a worker collates items of a run, and the dataset has begun none")
        address = run.address() if self.addresses else None
        return BatchWithState(batch, run.position, run.progress(), (run.seed, run.epoch), address)


class WorkerStart:
    """What a worker does first: it learns where to begin, and whose streams it reads.

    Args:
        own: the user's ``worker_init_fn``, or None.

    Attributes:
        state: where to begin.
        turn: number of the worker whose streams the first one reads.
    """

    def __init__(self, own: Callable[[int], object] | None) -> None:
        self.own = own
        self.state: Json = None
        self.turn = 0

    def __call__(self, number: int) -> None:
        """Begin."""
        if self.own is not None:
            self.own(number)
        worker = get_worker_info()
        if worker is None or self.state is None:
            return
        if self.turn:
            thread_context.worker = ((number + self.turn) % worker.num_workers, worker.num_workers)
        cast("ElasticPipeline", worker.dataset).load_for_one_epoch(self.state)


class LoaderRun(Generic[Batch]):
    """One epoch of a loader: an iterator over batches with a state.

    Args:
        loader: the loader.
        addresses: keep the addresses of items, for stages after the loader.
    """

    def __init__(self, loader: "StateLoader", *, addresses: bool) -> None:
        # continues with the next epoch where nothing is left of a state's; a pipeline over the loader does that itself
        self.continue_epochs = False
        self._loader, self._addresses = loader, addresses
        self._open(loader, addresses=addresses)

    def _open(self, loader: "StateLoader", *, addresses: bool) -> None:
        here = process_context()
        self._place = WorkerContext(here.rank, here.world_size, 0, max(1, loader.num_workers))
        alone = WorkerContext(here.rank, here.world_size, 0, 1)
        self._plain: ElasticRun = loader.dataset.elastic_run(alone, continue_epochs=True)
        # asks the dataset for seed and epoch, and opens nothing
        self.begun = self._plain.state_dict()
        self._known = (self.begun["seed"], self.begun["epoch"])
        self._workers = loader.num_workers
        self._turn = self._first(loader.turned)
        self._collate = loader.collating
        self._received = ReceivedState(self.begun)
        self._address: Address = None
        self.over = self._gave = False
        self._batches: Iterator[Any] = loader.start_batches(self.begun, self._turn, self._known, addresses=addresses)
        self._own: ElasticRun | None = None if self._workers else loader.dataset.present
        self._release = hold(self._batches, self)

    def _first(self, turned: Json) -> int:
        """Return the number of the worker whose turn it is."""
        if not self._workers or not any(self.begun["memories"].values()):
            return 0
        if turned is not None and turned[:3] == [self._place.rank, self._place.world_size, self._workers]:
            return int(turned[3])
        waiting = next_positions(self.begun["memories"], self.begun["streams"])
        return self._owner(min(waiting)) if waiting else 0

    def _owner(self, position: int) -> int:
        return int(position % self.begun["streams"] // self._place.world_size % max(1, self._workers))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        try:
            tagged = next(self._batches)
        except StopIteration:
            self._end()
            if not (self.continue_epochs and self.exhausted):
                raise
            self._open(self._loader, addresses=self._addresses)
            return next(self)
        self._gave = True
        if type(tagged) is not BatchWithState:
            return cast("Batch", tagged)
        if tagged.run != self._known:
            raise FlowError(
                f"a worker reads seed and epoch {tagged.run}, the loader {self._known}: the dataset was changed in the "
                "worker, where no state knows of it"
            )
        self._received.take(tagged.progress)
        self._turn = (self._owner(tagged.position) + 1) % self._workers
        self._address = tagged.address
        return cast("Batch", tagged.batch)

    def _end(self) -> None:
        """Take note that all streams are over."""
        known = self._received.state_dict()["memories"]
        self._received.take(
            {name: [0 if stream_state is None else stream_state[0]] for name, stream_state in known.items()}
        )
        self.over = True
        if (
            self._workers
            and not has_progress(self.begun)
            and not any(stream_state and stream_state[0] for stream_state in known.values())
        ):
            # raises NoSamples where there are none: no worker alone can know
            next(self._plain, None)
        self.close()

    @property
    def exhausted(self) -> bool:
        """True where nothing was left of a state's epoch, on any rank: then comes the next epoch."""
        return self.over and not self._gave and self._plain.is_epoch_done()

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch given last, of this epoch."""
        state = self._received.state_dict() if self._own is None else self._own.state_dict()
        if self._workers:
            state["turn"] = [*self._place[:2], self._workers, self._turn]
        return state

    def address(self) -> Address:
        """Return the address of the item given last."""
        return self._address if self._own is None else self._own.address()

    def fetch(self, addresses: list[Address]) -> list[object]:
        """Make the items at some addresses once more."""
        return [self._collate(item) for item in self._plain.fetch(addresses)]

    def close(self) -> None:
        """Let go of the workers, unless they are persistent; the state can still be read."""
        self._batches = iter(())
        self._release()
        self._plain.close()


class StateLoader(DataLoader[Any]):
    """torch's DataLoader over an elastic dataset, with ``state_dict`` and ``load_state_dict``.

    Batches, their order, and everything else are torch's; persistent workers are started anew where they would not
    hear of a state that was loaded or an epoch that was set.
    """

    # an ElasticPipeline, which torch's declarations do not know
    dataset: Any

    def __init__(self, dataset: "ElasticPipeline", *args: object, **kw: object) -> None:
        super().__init__(dataset, *args, **kw)  # type: ignore[arg-type]  # torch checks its own arguments
        # those of a StateLoader, where a trainer makes it again
        given, begin = self.collate_fn, self.worker_init_fn
        self.collate_fn = self._sending = StatefulCollate(
            given.collate if isinstance(given, StatefulCollate) else given
        )
        self.worker_init_fn = self._beginning = WorkerStart(begin.own if isinstance(begin, WorkerStart) else begin)
        # whose turn it is after a state that was loaded
        self.turned: Json = None
        self._present: LoaderRun[Any] | None = None
        # of persistent workers
        self._release: Callable[[], object] | None = None
        # seed and epoch that living workers would read next
        self._heard: tuple[int, int] | None = None

    def adopt(self, run: Run) -> None:
        """Take part in the run of a pipeline whose source this is."""
        self.dataset.adopt(run)

    @property
    def collating(self) -> Callable[[Any], object]:
        """The collate function, as it was given or chosen by torch."""
        return self._sending.collate

    def as_stage(self) -> Stage:
        """Return this loader as the source of a pipeline."""
        return LoaderStage(self)

    def begin(self, *, addresses: bool = False) -> LoaderRun[Any]:
        """Begin the next epoch, or continue where ``load_state_dict`` said.

        Args:
            addresses: keep the addresses of items, where the loader's batches are the dataset's (``batch_size=None``).
        """
        dataset: ElasticPipeline = self.dataset
        if dataset.seed is None and dataset._lent is None:  # noqa: SLF001  one seed for all epochs: living workers know it
            seed, common = choose_seeds(None)
            dataset.adopt(Run(seed=seed, common=common, epoch=dataset.epoch, tracked=True))
        run: LoaderRun[Any] = LoaderRun(self, addresses=addresses)
        self._present, self.turned = run, None
        if self.num_workers:
            dataset._present.reader = weakref.ref(self)  # noqa: SLF001  its state is ours
        return run

    def __iter__(self) -> LoaderRun[Any]:  # type: ignore[override]  # torch names its own class
        """Return an iterator over the batches of the next epoch; it has ``state_dict``."""
        run = self.begin()
        run.continue_epochs = True
        return run

    def start_batches(self, state: Json, turn: int, known: tuple[int, int], *, addresses: bool) -> Iterator[object]:
        """Return torch's iterator, its workers told where to begin."""
        fresh = not any(state["memories"].values()) and not turn and addresses == self._sending.addresses
        if self._iterator is not None and not (fresh and known == self._heard):
            # torch ends persistent workers with their iterator
            self._iterator = None
            self._held(iter(()))
        self._heard = None if turn else (known[0], known[1] + 1)
        self._sending.addresses = addresses
        self._beginning.state, self._beginning.turn = state, turn
        if not self.num_workers:
            self._to_dataset(state, stay=True)
        if not any(state["memories"].values()):
            return self._held(iter(super().__iter__()))
        before = self.generator.get_state() if self.generator is not None else torch.get_rng_state()
        # it draws a seed, which the epoch that continues had drawn when it began
        batches = super().__iter__()
        if self.generator is not None:
            self.generator.set_state(before)
        else:
            torch.set_rng_state(before)
        return self._held(batches)

    def _held(self, batches: Iterator[object]) -> Iterator[object]:
        """Hold torch's iterator where its workers are persistent, and let go of the one before."""
        if self._release is not None:
            self._release()
        self._release = hold(batches, self) if self.persistent_workers else None
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch received last: a JSON value, to be loaded under any topology.

        After the last batch of an epoch comes the next epoch.

        Raises:
            FlowError: a stage's state cannot be written down.
        """
        if (ask := held_states.get(self)) is not None:
            return ask()
        if self._present is not None:
            return self._present.state_dict()
        return {**self.dataset.state_dict(), **({} if self.turned is None else {"turn": self.turned})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue after a state, under any number of ranks and workers.

        Args:
            state: of this rank, or the merged one of all ranks.

        Raises:
            StateMismatch: it belongs to another dataset; the message says what differs.
        """
        self._take_up(state, stay=False)

    def load_for_one_epoch(self, state: Mapping[str, Any]) -> None:
        """Continue after a state as ``load_state_dict`` does, and end with its epoch though nothing be left of it."""
        self._take_up(state, stay=True)

    def _take_up(self, state: Mapping[str, Any], *, stay: bool) -> None:
        given = check_state(state)
        turn = check_turn(given.get("turn"))
        self._to_dataset(given, stay=stay)
        self.turned, self._present = turn, None

    @property
    def exhausted(self) -> bool:
        """True where the present run found nothing left of a state's epoch."""
        return self._present is not None and self._present.exhausted

    def forget(self) -> None:
        """Forget a state that was loaded and has not been begun with."""
        self.dataset.forget()
        self.turned = None

    def _to_dataset(self, state: Json, *, stay: bool = False) -> None:
        """Let the dataset begin with a state, its epochs numbered against ours as before."""
        dataset: ElasticPipeline = self.dataset
        shift = dataset._present.shift  # noqa: SLF001  see ElasticPipeline.adopt
        (dataset.load_for_one_epoch if stay else dataset.load_state_dict)(state)
        dataset._present.shift = shift  # noqa: SLF001

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None, "_present": None, "_heard": None, "_release": None}
