"""Lets a pipeline read in virtual streams, so that it resumes under any number of ranks and workers.

:class:`~webdataset.flow.elastic_pipeline.ElasticPipeline` is what ``DataPipeline.elastic()`` returns; its runs are
:class:`~webdataset.flow.elastic.ElasticRun`, and can be saved at any item. The state of a run is in the run; the
pipeline keeps which run is the present one, and a state to resume from.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import index
from typing import Any, Protocol, Self, SupportsIndex

from webdataset.core.distributed import WorkerContext, process_context, worker_info
from webdataset.core.errors import FlowError, UsageError
from webdataset.core.fork_safety import epoch_lock
from webdataset.core.seeds import read_epoch
from webdataset.core.tracebacks import TrimmedTracebacks
from webdataset.flow import stream_stages  # noqa: F401  loaded here, before workers are forked that need it
from webdataset.flow.elastic import ElasticPlan, ElasticRun, make_plan
from webdataset.flow.elastic_state import check_same_dataset, check_state, has_progress, warn_other_functions
from webdataset.flow.epochs import EpochCounter, choose_seeds
from webdataset.flow.fingerprint import defer_description, describe_functions
from webdataset.flow.pipeline import DataPipeline, add_length_method, find_plain_class
from webdataset.flow.run import STREAMS, Bounds
from webdataset.flow.virtual_stream import is_epoch_over, rewind_state, warn_of_other_epoch
from webdataset.stages.base import Json, Run
from webdataset.stages.mix_sources import refuse_unrepeatable


class StatefulReader(Protocol):
    """A loader over a dataset, which knows what its consumer has received."""

    def state_dict(self) -> dict[str, Json]:
        """Return the state after the batch received last."""


class CurrentRun:
    """The run that a dataset gave last, and the state that its next run begins with; neither travels in a pickle."""

    def __init__(self, state: Json = None, *, chosen: bool = False) -> None:
        self.run: ElasticRun | None = None
        # a loader that reads the dataset from now on, whose state is that of the dataset
        self.reader: weakref.ref[StatefulReader] | None = None
        self.state = state
        # set_epoch has named the state's epoch: its rest is given, though nothing be left of it
        self.chosen = chosen
        self.shift = 0 if state is None else None  # from a loader's epochs to ours; None: not known yet

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_current_run, (self.state, self.chosen)


def _restore_current_run(state: Json, chosen: bool) -> CurrentRun:  # noqa: FBT001  what a pickle calls
    return CurrentRun(state, chosen=chosen)


class RunPlanner:
    """Makes the plans of one run of a pipeline.

    The pipeline keeps its present run, and a run whose first plan is made keeps the pipeline no longer: the two are in
    no cycle, so that what is open is closed as soon as both are dropped, and not when the collector comes.

    Args:
        pipeline: the pipeline.
        place: whose streams to read; None is this process's own.
        state: where to continue, or None.
        continue_epochs: continue with the next epoch after that of a state.
    """

    def __init__(
        self, pipeline: "ElasticMixin", place: WorkerContext | None, state: Json, *, continue_epochs: bool
    ) -> None:
        self._pipeline = weakref.ref(pipeline)
        self._twin = pipeline  # all that it holds but for its present run; before the first plan, the pipeline itself
        self._place, self._state, self._continue_epochs = place, state, continue_epochs

    def prepare(self, loaded: Json) -> ElasticPlan:
        """Return what the run reads that starts now.

        Args:
            loaded: a state that was loaded into the run, or None. Such a run is one epoch, as any iterator is.
        """
        pipeline = self._pipeline() or self._twin
        if loaded is None:
            plan = pipeline._prepare_plan(self._state, self._place, self._continue_epochs)  # noqa: SLF001  its other half
        else:
            plan = pipeline._prepare_plan(loaded, self._place, False)  # noqa: SLF001
        if self._twin is pipeline:
            self._twin = object.__new__(type(pipeline))
            self._twin.__dict__.update(pipeline.__dict__, _present=CurrentRun())
        return plan

    def follow(self, plan: ElasticPlan) -> ElasticPlan:
        """Return what the run reads where nothing is left of its epoch: the next one.

        Args:
            plan: of the epoch before.
        """
        return (self._pipeline() or self._twin)._following(plan, self._place)  # noqa: SLF001  its other half


class ElasticMixin:
    """What a pipeline is more where it is read in virtual streams; mixed into :class:`~webdataset.flow.pipeline`'s.

    Attributes:
        streams: number of virtual streams.
    """

    pipeline: list[Any]
    seed: int | None
    epoch: int
    chosen_epoch: int | None
    repetitions: int
    nsamples: int
    _count: EpochCounter | None
    _lent: tuple[int, int] | None

    streams: int = STREAMS
    _present: CurrentRun
    # whether workers of a DataLoader have begun a run, since an epoch was chosen or a state was loaded
    _worker_epochs: EpochCounter
    _begin: Callable[[], Run]  # seed and epoch of the next run
    _entries: Callable[[Run], list[Any]]
    _stream_limits: Callable[[int, WorkerContext | None], Bounds]

    def in_streams(self, streams: int) -> None:
        """Take up a number of streams.

        Args:
            streams: at least 1.

        Raises:
            UsageError: a number below 1, or a seed that is no number.
        """
        if not isinstance(self.seed, int | None):
            raise UsageError(
                f"seed={self.seed!r:.60}: states name the seed of an elastic dataset, a whole number: seed=0"
            )
        if isinstance(streams, bool) or not isinstance(streams, SupportsIndex) or index(streams) < 1:
            raise UsageError(f"streams={streams!r}: a dataset has at least one stream")
        self.streams = index(streams)
        self._present, self._worker_epochs = CurrentRun(), EpochCounter()

    # -- runs

    def elastic_run(
        self, place: WorkerContext | None = None, state: Json = None, *, continue_epochs: bool | None = None
    ) -> ElasticRun:
        """Return the run of one worker.

        Args:
            place: rank, world size, worker, number of workers; None is this process's own.
            state: where to continue; None begins this dataset's next epoch (or continues a loaded state).
            continue_epochs: continue with the next epoch after the last item of a state's epoch; False ends there. None
                ends there where a place is named: a program that drives several workers begins epochs itself.

        Raises:
            StateMismatch: the state belongs to another dataset (when the run starts).
        """
        given = None if state is None else check_state(state)
        further = place is None if continue_epochs is None else continue_epochs
        planner = RunPlanner(self, place, given, continue_epochs=further)
        return ElasticRun(planner.prepare, place, planner.follow)

    def __iter__(self) -> ElasticRun:
        """Return the run of this rank and worker; each is a new epoch."""
        present = self._present
        present.run, present.reader = self.elastic_run(), None
        return present.run

    def _prepare_plan(self, state: Json, place: WorkerContext | None, continue_epochs: bool) -> ElasticPlan:  # noqa: FBT001  passed on
        """Return what a run reads that starts now."""
        if not self.pipeline:
            raise UsageError("this pipeline has no stages, or was closed")
        given = state is not None
        with epoch_lock.lock:
            present = self._present
            pending, present.state = present.state, None
            chosen, present.chosen = present.chosen, False
            if state is None:
                drawn = self._begin()
                seed, epoch = drawn.seed if drawn.common is None else drawn.common, drawn.epoch
                if pending is not None and pending["epoch"] == epoch:
                    state, continue_epochs = pending, continue_epochs and not chosen
            if state is not None:
                seed, epoch = state["seed"], state["epoch"]
            self._record_epoch(epoch + 1)
        # a state that load_state_dict took up was compared there
        plan = self._make_plan(Run(seed=seed, common=seed, epoch=epoch), state, place, given=given)
        return replace(plan, continue_epochs=continue_epochs)

    def _following(self, plan: ElasticPlan, place: WorkerContext | None) -> ElasticPlan:
        """Return what a run reads that finds nothing left of its epoch: the next one."""
        epoch = plan.run.epoch + 1
        self._record_epoch(epoch + 1, further=True)
        return self._make_plan(Run(seed=plan.run.seed, common=plan.run.common, epoch=epoch), None, place)

    def _record_epoch(self, epoch: int, *, further: bool = False) -> None:
        """Take note of the number of the next epoch."""
        self.epoch = epoch
        self._worker_epochs.record_epoch(epoch, further=False)
        if self._count is not None:
            self._count.record_epoch(epoch, further=further)

    def _make_plan(
        self, run: Run, state: Json, place: WorkerContext | None = None, *, given: bool = True
    ) -> ElasticPlan:
        bounds = self._stream_limits(self.streams, place)
        describe = defer_description(self.pipeline, bounds)
        functions = describe_functions(self.pipeline)
        plan = make_plan(self._entries(run), self.streams, bounds, run, describe, functions, state)
        if state is not None and self.seed is not None:
            check_same_dataset(state, {**plan.header(), "seed": self.seed})
        if state is not None and given:
            warn_other_functions(state, plan.header())
        return plan

    def shift_epoch(self, epoch: int) -> int:
        """Return the epoch that a loader's epoch is here: the first one after a state is that of the state.

        Args:
            epoch: number of the loader's epoch.
        """
        present = self._present
        if present.shift is None:
            present.shift = present.state["epoch"] - epoch if present.state is not None else 0
        return epoch + present.shift

    @property
    def pending(self) -> Json:
        """The state that the next iteration begins with, if one was loaded."""
        return self._present.state

    @property
    def chosen(self) -> bool:
        """True where ``set_epoch`` has named the epoch of that state."""
        return self._present.chosen

    @property
    def present(self) -> ElasticRun | None:
        """The run that ``iter()`` gave last."""
        return self._present.run

    def choose_epoch(self, epoch: int, *, stacklevel: int = 4) -> None:
        """Keep a state that was loaded, where it is of the epoch that ``set_epoch`` names; else leave it.

        Args:
            epoch: number of the next epoch.
            stacklevel: of the warning that a state was left.
        """
        present = self._present
        # after the end of an epoch, the state is the beginning of the chosen one from now on
        if present.run is not None and present.run.ended:
            present.run = None
        reader = None if present.reader is None else present.reader()
        if reader is None or is_epoch_over(reader.state_dict(), process_context()):
            present.reader = None
        if self._worker_epochs.began:
            self._worker_epochs = EpochCounter()
        if present.state is None:
            return
        if present.state["epoch"] == epoch:
            present.chosen = True
            return
        state, present.state = present.state, None
        if not present.chosen and (self._count is None or not self._count.began):
            warn_of_other_epoch(state, epoch, process_context(), stacklevel=stacklevel)

    def continues_state(self) -> bool:
        """Tell whether the next iteration continues after a state."""
        return self._present.state is not None and has_progress(self._present.state)

    def forget(self) -> None:
        """Forget a state that was loaded: other code begins with it."""
        self._present.state = None

    def choose_seed(self) -> None:
        """Choose the seed of a dataset that has none: what is begun next has the seed that a state told before."""
        if self.seed is None and self._lent is None:
            self._lent = choose_seeds(None)

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run that ``iter()`` gave last, or that the next one will begin with.

        Where a ``Loader`` or ``WebLoader`` reads this dataset, it is the state of the loader that began last: what was
        received from it. Within a DataLoader's worker, whose iterator has a state of its own, it is empty.

        Raises:
            FlowError: a stream of that run has failed; or workers of a plain torch DataLoader read this dataset.
        """
        if worker_info() is not None:
            return {}
        present = self._present
        if present.reader is not None:
            reader = present.reader()
            return self.begin_state() if reader is None else reader.state_dict()
        if present.run is not None:
            return present.run.state_dict()
        if present.state is not None:
            return dict(present.state)
        if self._worker_epochs.began:
            raise FlowError(
                "the workers of a torch DataLoader read this dataset, and how much of that was received is not known "
                "here: a state of this dataset would lose or repeat samples. Make the loader a wds.WebLoader (or "
                "torchdata's StatefulDataLoader) and save loader.state_dict()"
            )
        return self.begin_state()

    def begin_state(self) -> dict[str, Json]:
        """Return the state at the beginning of the next epoch, whatever is being read."""
        self.choose_seed()
        begins = replace(self._begin(), stream=None)
        seed = begins.seed if begins.common is None else begins.common
        plan = self._make_plan(replace(begins, seed=seed), None)
        return rewind_state(plan.header(), begins.epoch, process_context())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue after a state, here or in the workers of a DataLoader.

        Args:
            state: of this rank, or the merged one of all; an empty one changes nothing.

        Raises:
            StateMismatch: it belongs to another dataset; the message says what differs.
        """
        if state is None or state == {}:
            return
        with TrimmedTracebacks():
            self._take_up(check_state(state))

    def load_for_one_epoch(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration give the rest of a state's epoch, and end there though it be nothing.

        For a caller that begins epochs itself: a loader, a graph of nodes.

        Args:
            state: as for ``load_state_dict``.

        Raises:
            StateMismatch: as there.
        """
        self._take_up(check_state(state), chosen=True)

    def _take_up(self, given: dict[str, Any], *, chosen: bool = False) -> None:
        here = Run(seed=given["seed"] if self.seed is None else self.seed, epoch=given["epoch"])
        self._make_plan(here, given)
        self._present = CurrentRun(given, chosen=chosen)
        self.epoch = given["epoch"] + (not chosen and is_epoch_over(given, process_context()))
        self._count, self._worker_epochs = EpochCounter(first=self.epoch, resumed=True), EpochCounter()
        if self.seed is None:
            self._lent = given["seed"], given["seed"]

    def close_run(self) -> None:
        """Close the present run."""
        if self._present.run is not None:
            self._present.run.close()


class ElasticPipeline(ElasticMixin, DataPipeline):
    """A pipeline in virtual streams.

    ``iter()`` gives an :class:`~webdataset.flow.elastic.ElasticRun`: the items of the streams that this rank and worker
    own, by rising position. ``with_epoch(n)`` and ``repeat(nbatches=n)`` count the items of all streams together.
    """

    __module__ = "webdataset.flow.pipeline"  # where it is imported from, and what pickles say

    @classmethod
    def of(cls, pipeline: DataPipeline, streams: int) -> Self:
        """Return a pipeline with the stages, seed, epoch and bounds of another.

        Args:
            pipeline: the other one.
            streams: number of virtual streams, at least 1.

        Raises:
            UsageError: a number below 1, or a pipeline whose class has an iterator of its own.
        """
        if pipeline.unrepeatable:
            refuse_unrepeatable(pipeline)
        result = cls.__new__(cls)
        result.__dict__.update(pipeline._copy().__dict__)  # noqa: SLF001  the same class
        result.in_streams(streams)
        return add_length_method(result) if type(pipeline) is not find_plain_class(type(pipeline)) else result

    def _copy(self) -> Self:
        result = super()._copy()
        result.in_streams(self.streams)
        return result

    __copy__ = _copy

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch, which with the seed decides every order.

        Of the epoch of a state that was loaded, the rest comes. Any other one begins at its start, and a warning says
        that the state is not used, unless its epoch is over and the next one was named.

        Args:
            epoch: from 0.

        Raises:
            UsageError: no such epoch.
        """
        if not isinstance(epoch, int) or epoch < 0:
            epoch = read_epoch(epoch)
        self.choose_epoch(epoch)
        super().set_epoch(epoch)

    def adopt(self, run: Run, *, persistent: bool = False) -> None:
        """Take part in the run of a pipeline that reads this one through a loader; see ``DataPipeline.adopt``.

        Args:
            run: its run. The first one after a state that was loaded is in that state's epoch.
            persistent: the loader's workers live on, and would not hear of it.
        """
        chosen = self._present.chosen  # by the user, and not by the loader's run
        super().adopt(replace(run, epoch=self.shift_epoch(run.epoch)), persistent=persistent)
        self._present.chosen = chosen

    def close(self) -> None:
        """Close the present run, and the stages that can be closed; forget all of them."""
        self.close_run()
        super().close()
