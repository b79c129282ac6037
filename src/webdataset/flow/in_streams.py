"""A pipeline that is read in virtual streams, so that it can be resumed under any number of ranks and workers.

Flows in: stages. Flows out: runs, which are :class:`~webdataset.flow.elastic.ElasticRun`.
What a run remembers is in the run; the pipeline keeps which run is the present one, and a state to go on from.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.ground.topology import Place, worker_info
from webdataset.stages.base import Json, Run

from .describing import description
from .elastic import ElasticRun, Plan, planned
from .elastic_state import checked, compare
from .epochs import EpochCount
from .looping import STREAMS, Bounds


class Present:
    """The run that a dataset gave last, and the state that its next run begins with; neither travels in a pickle."""

    def __init__(self, state: Json = None) -> None:
        self.run: ElasticRun | None = None
        self.state = state
        self.shift = 0 if state is None else None  # from a loader's epochs to ours; None: not known yet

    def __reduce__(self) -> tuple[Any, ...]:
        return Present, (self.state,)


class InStreams:
    """What a pipeline is more where it is read in virtual streams; mixed into :class:`~webdataset.flow.pipeline`'s.

    Attributes:
        streams: number of virtual streams.
    """

    pipeline: list[Any]
    seed: int | None
    epoch: int
    repetitions: int
    nsamples: int | None
    _count: EpochCount | None

    streams: int = STREAMS
    _present: Present
    _begin: Callable[[], Run]  # seed and epoch of the next run
    _entries: Callable[[Run], list[Any]]
    _stream_limits: Callable[[int, Place | None], Bounds]

    def in_streams(self, streams: int) -> None:
        """Take up a number of streams.

        Args:
            streams: at least 1.

        Raises:
            UsageError: a number below 1.
        """
        if type(streams) is not int or streams < 1:
            raise UsageError(f"streams={streams!r}: a dataset has at least one stream")
        self.streams = streams
        self._present = Present()

    # -- runs

    def elastic_run(self, place: Place | None = None, state: Json = None) -> ElasticRun:
        """Return the run of one worker.

        Args:
            place: rank, world size, worker, number of workers; None is this process's own.
            state: where to go on; None begins this dataset's next epoch (or goes on where ``load_state_dict`` said).

        Raises:
            StateMismatch: the state belongs to another dataset (when the run starts).
        """
        given = None if state is None else checked(state)
        return ElasticRun(lambda loaded: self._prepared(given if loaded is None else loaded, place), place)

    def __iter__(self) -> ElasticRun:
        """Return the run of this rank and worker; each is a new epoch."""
        self._present.run = run = self.elastic_run()
        return run

    def _prepared(self, state: Json, place: Place | None) -> Plan:
        """Return what a run reads that starts now."""
        if not self.pipeline:
            raise UsageError("this pipeline has no stages, or was closed")
        pending, self._present.state = self._present.state, None
        if state is None:
            drawn = self._begin()
            seed, epoch = drawn.seed if drawn.common is None else drawn.common, drawn.epoch
            state = pending if pending is not None and pending["epoch"] == epoch else None
        if state is not None:
            seed, epoch = state["seed"], state["epoch"]
        run = Run(seed=seed, common=seed, epoch=epoch)
        self.epoch = epoch + 1
        if self._count is not None:
            self._count.reached(self.epoch)
        return self._planned(run, state, place)

    def _planned(self, run: Run, state: Json, place: Place | None = None) -> Plan:
        bounds = self._stream_limits(self.streams, place)
        described = description(self.pipeline, bounds)
        plan = planned(self._entries(run), self.streams, bounds, run, described, state)
        if state is not None and self.seed is not None:
            compare(state, {**plan.header(), "seed": self.seed})
        return plan

    def shifted(self, epoch: int) -> int:
        """Return the epoch that a loader's epoch is here: the first one behind a state is that of the state.

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
    def present(self) -> ElasticRun | None:
        """The run that ``iter()`` gave last."""
        return self._present.run

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run that ``iter()`` gave last, or that the next one will begin with.

        Within a DataLoader's worker, whose iterator has a state of its own, it is empty.

        Raises:
            FlowError: a stream of that run has failed.
        """
        if worker_info() is not None:
            return {}
        if self._present.run is not None:
            return self._present.run.state_dict()
        if self._present.state is not None:
            return dict(self._present.state)
        return self._planned(replace(self._begin(), stream=None), None).header()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on behind a state, here or in the workers of a DataLoader.

        Args:
            state: of this rank, or the merged one of all; an empty one changes nothing.

        Raises:
            StateMismatch: it belongs to another dataset; the message says what differs.
        """
        if state is None or state == {}:
            return
        given = checked(state)
        here = Run(seed=given["seed"] if self.seed is None else self.seed, epoch=given["epoch"])
        self._planned(here, given)
        self._present = Present(given)
        self.epoch = given["epoch"]
        if self._count is not None:
            self._count = EpochCount(first=self.epoch)

    def close_run(self) -> None:
        """Close the present run."""
        if self._present.run is not None:
            self._present.run.close()
