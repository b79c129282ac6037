"""The samples of one batch of a training run, by rank, worker and step: from a state, or from the start of an epoch.

The batch is what :func:`webdataset.loading.states.trace` says of the dataset that the command line names, or of the
shards themselves. The order of a run follows from its shards' keys. Where an index of every shard is there, they are
known without payloads (:mod:`webdataset.flow.index_tracing`); else the trace reads the shards up to the batch, and a
request has to confirm that.

A trace is kept with what it has yielded, so that the batch after one that was shown costs one batch.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from webdataset.core.errors import FlowError, NoSuchSample, UsageError, WebDatasetError
from webdataset.core.redaction import redact
from webdataset.loading.states import TracedBatch, describe, plan_delivery, trace
from webdataset.storage.open_url import local_path

if TYPE_CHECKING:
    from webdataset.viewer.search import Budget
    from webdataset.viewer.session import DatasetView, SavedState, Session

MOST_RUNS: Final = 8
"""Traces that are kept."""

_MOST_BATCHES: Final = 4096
_MOST_KEYS: Final = 2_000_000
_LOOKED_AT: Final = 64


@dataclass(frozen=True)
class BatchRequest:
    """Which batch of which run.

    Args:
        step: number of the batch, from 0, counted from where the run begins; with a worker, among the batches of it.
        rank: that receives it.
        world_size: number of ranks.
        worker: only batches that it made; None for all.
        workers: of each rank; None: what the loader says, or 0.
        batch_size: of the loader; None: what it says.
        order: ``loader`` or ``torch``; None: the loader's own.
        state: number of the state among those of the command line; None: the start of an epoch.
        epoch: without a state; None: the dataset's next one.
        seed: of the run, where neither dataset nor state has one.
    """

    step: int = 0
    rank: int = 0
    world_size: int = 1
    worker: int | None = None
    workers: int | None = None
    batch_size: int | None = None
    order: str | None = None
    state: int | None = None
    epoch: int | None = None
    seed: int | None = None


@dataclass
class LocatedSample:
    """A sample of a batch, and where it is.

    Args:
        key: of the sample.
        shard: number of its shard in the session; None where it is none of them.
        ordinal: its number in the shard, or None.
        repeated: several samples of the shard have the key; the ordinal is that of the first.
    """

    key: str
    shard: int | None = None
    ordinal: int | None = None
    repeated: bool = False


@dataclass
class NeededReading:
    """What has to be read before a batch is known.

    Args:
        shards: without an index.
        size_bytes: of these; None where a store does not tell.
        deciding: stages of the dataset that look at values, as text: samples are decoded for them.
    """

    shards: int
    size_bytes: int | None
    deciding: list[str] = field(default_factory=list)

    @property
    def message(self) -> str:
        """What is needed, and why."""
        size = "an unknown number of bytes" if self.size_bytes is None else f"up to {_format_size(self.size_bytes)}"
        if self.deciding:
            return (
                f"Which samples are in the batch depends on what is in them ({'; '.join(self.deciding)}): {size} of "
                f"{self.shards} shards are read and decoded."
            )
        return (
            f"The order of the samples follows from the keys in {self.shards} shards without an index: {size} are "
            "read. With indexes beside the shards, only these are read."
        )


def _format_size(size_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB"


class _Run:
    """A trace, as far as it has come."""

    def __init__(self, batches: Generator[TracedBatch, None, None]) -> None:
        self.lock = threading.Lock()
        self.batches = batches
        self.passed = 0
        self.recent: OrderedDict[int, TracedBatch] = OrderedDict()
        self.ended = False
        self.closed = False

    def find(self, step: int, budget: "Budget") -> TracedBatch | None:
        """Return a batch; None where the run ends before, or the budget is spent."""
        while self.passed <= step and not self.ended and not budget.is_spent(0):
            batch = next(self.batches, None)
            if batch is None:
                self.ended = True
                break
            self.recent[self.passed] = batch
            self.passed += 1
            if len(self.recent) > _MOST_BATCHES:
                self.recent.popitem(last=False)
        return self.recent.get(step)

    def close(self) -> None:
        """End the trace where it stands, unless a request is at work on it."""
        if self.lock.acquire(blocking=False):
            try:
                self.closed = True
                self.batches.close()
            finally:
                self.lock.release()


class Batches:
    """The run of a session, whose batches can be looked at.

    Args:
        session: what is shown.
    """

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._lock = threading.Lock()
        self._source: Any = None
        self._runs: OrderedDict[BatchRequest, _Run] = OrderedDict()
        self._keys: OrderedDict[tuple[str, int], dict[str, int | list[int]]] = OrderedDict()

    def close(self) -> None:
        """Let go of the traces, and of the shards that they have open."""
        with self._lock:
            runs, self._runs = list(self._runs.values()), OrderedDict()
        for run in runs:
            run.close()

    def source(self) -> object:
        """Return the dataset, or the loader over it; made once.

        Raises:
            UsageError: the command line names none.
            FlowError: the user's function failed.
        """
        load = self._session.dataset_arguments.load
        if load is None:
            raise UsageError("no dataset is known whose batches could be shown: start 'wds view' with --dataset")
        with self._lock:
            if self._source is None:
                self._source = load()
            return self._source

    def describe_options(self) -> dict[str, Any]:
        """Return the states and what is known of the run, as ``/api/batch/options`` has them."""
        given = self._session.dataset_arguments
        found: dict[str, Any] = {"error": None, "workers": 0, "batch_size": given.batch_size, "seed": given.seed}
        if given.load is not None:
            try:
                source = self.source()
                delivery = plan_delivery(source)
                found["workers"] = delivery.workers
                found["batch_size"] = delivery.batch_size or given.batch_size
                found["order"], found["elastic"] = delivery.order, delivery.elastic
                if found["seed"] is None:
                    found["seed"] = delivery.dataset.seed
            except (WebDatasetError, OSError) as error:
                found["error"] = redact(str(error))
        states = [_describe_state(number, state) for number, state in enumerate(given.states)]
        return {"states": states, "dataset": given.name, **found}

    def find_needs(self, side: str, wanted: BatchRequest) -> NeededReading | None:
        """Return what has to be read before a batch is known; None where indexes tell.

        Args:
            side: whose shards are read.
            wanted: the batch.

        Raises:
            UsageError: a dataset that cannot be traced.
        """
        view = self._session.side(side)
        deciding = plan_delivery(self.source(), **_list_settings(wanted)).deciding_stages()
        without, total = 0, 0
        known = True
        for number in range(len(view)):
            shard = view.shard(number)
            shard.await_index()
            if deciding or not shard.indexed:
                without += 1
                known = known and shard.size_bytes is not None
                total += shard.size_bytes or 0
            if without and number >= _LOOKED_AT:
                # more requests would be sent to say how many bytes than the answer is worth
                return NeededReading(len(view), None, deciding)
        return NeededReading(without, total if known else None, deciding) if without else None

    def find_batch(self, wanted: BatchRequest, budget: "Budget") -> TracedBatch:
        """Return a batch of the run, as keys and shards.

        Args:
            wanted: which.
            budget: time for it; a later request continues where this one ended.

        Raises:
            NoSuchSample: the epoch ends before.
            UsageError: a topology that cannot be, a seed that is not known, a stage that cannot be followed.
            StateMismatch: the state belongs to another dataset.
            FlowError: the time is over.
        """
        run = self._find_run(wanted)
        while not run.lock.acquire(timeout=0.1):
            if budget.is_spent(0):
                raise FlowError("another request traces this run: ask again")
        try:
            if run.closed:
                return self.find_batch(wanted, budget)
            batch = run.find(wanted.step, budget)
        except BaseException:  # also one that ends the thread
            # a trace that failed yields nothing more
            with self._lock:
                self._runs.pop(_name_run(wanted), None)
            raise
        finally:
            run.lock.release()
        if batch is not None:
            return batch
        if run.ended:
            raise NoSuchSample(f"the epoch has {run.passed} batches here: there is no batch {wanted.step}")
        if wanted.step < run.passed:
            # it was let go of
            with self._lock:
                self._runs.pop(_name_run(wanted), None)
            return self.find_batch(wanted, budget)
        raise FlowError(f"the time is over at batch {run.passed} of {wanted.step}: ask again, and the trace continues")

    def _find_run(self, wanted: BatchRequest) -> _Run:
        name = _name_run(wanted)
        source = self.source()
        with self._lock:
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = _Run(self._start(source, wanted))
            self._runs.move_to_end(name)
            if len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)[1].close()
            return run

    def _start(self, source: object, wanted: BatchRequest) -> Generator[TracedBatch, None, None]:
        given = self._session.dataset_arguments
        state = None
        if wanted.state is not None:
            if wanted.state >= len(given.states):
                raise NoSuchSample(f"there is no state {wanted.state}: there are {len(given.states)}")
            state = given.states[wanted.state].content
        traced: Any = trace(
            source,
            state,
            rank=wanted.rank,
            world_size=wanted.world_size,
            worker=wanted.worker,
            epoch=None if state is not None else wanted.epoch,
            seed=given.seed if wanted.seed is None else wanted.seed,
            **_list_settings(wanted),
        )
        return traced  # type: ignore[no-any-return]  # a generator

    def locate(self, side: str, batch: TracedBatch) -> list[LocatedSample]:
        """Return where the samples of a batch lie.

        Args:
            side: whose shards are looked at.
            batch: as it was traced.
        """
        view = self._session.side(side)
        numbers: dict[str, int] = {}
        for place, url in enumerate(view.urls):
            numbers.setdefault(_name_place(url), place)
        found = []
        for key, url in zip(batch.keys, batch.shards, strict=True):
            number = numbers.get(_name_place(url))
            places = None if number is None else self._find_keys(side, view, number).get(key)
            if isinstance(places, list):
                found.append(LocatedSample(key, number, places[0], repeated=True))
            else:
                found.append(LocatedSample(key, number, places))
        return found

    def _find_keys(self, side: str, view: "DatasetView", number: int) -> dict[str, int | list[int]]:
        """Return the ordinals of the samples of each key of a shard; headers are walked where no index is there."""
        with self._lock:
            known = self._keys.get((side, number))
        if known is not None:
            return known
        places: dict[str, int | list[int]] = {}
        shard = view.shard(number)
        for ordinal, entry in shard.samples():
            before = places.get(entry.key)
            if before is None:
                places[entry.key] = ordinal
            elif isinstance(before, list):
                before.append(ordinal)
            else:
                places[entry.key] = [before, ordinal]
        with self._lock:
            self._keys[side, number] = places
            while len(self._keys) > 1 and sum(map(len, self._keys.values())) > _MOST_KEYS:
                self._keys.popitem(last=False)
        return places


def _name_place(url: str) -> str:
    """Return what is equal for the names of one shard: the path of a file, else the url."""
    path = local_path(url)
    return url if path is None else os.path.realpath(path)


def _name_run(wanted: BatchRequest) -> BatchRequest:
    """Return what two requests for batches of one run have in common."""
    return BatchRequest(**{**wanted.__dict__, "step": 0})


def _list_settings(wanted: BatchRequest) -> dict[str, Any]:
    return {"workers": wanted.workers, "batch_size": wanted.batch_size, "order": wanted.order}


def _describe_state(number: int, state: "SavedState") -> dict[str, Any]:
    found = describe(state.content)
    over = " (over)" if found.over else ""
    ranks = "" if found.ranks is None else f", rank {found.ranks[0]} of {found.ranks[1]}"
    text = f"epoch {found.epoch}{over}, {found.received} items received, {found.streams} streams{ranks}"
    return {"state": str(number), "name": state.name, "description": text, "epoch": found.epoch, "seed": found.seed}
