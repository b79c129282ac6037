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
from .elastic import STREAMS, ElasticRun, Plan, planned
from .elastic_state import checked, compare
from .epochs import EpochCount
from .looping import Bounds


class Present:
    """The run that a dataset gave last, and the state that its next run begins with; neither travels in a pickle."""

    def __init__(self, state: Json = None) -> None:
        self.run: ElasticRun | None = None
        self.state = state

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
        if state is None:
            return ElasticRun(self._prepared, place)
        given = checked(state)
        return ElasticRun(lambda loaded: self._prepared(given if loaded is None else loaded), place)

    def __iter__(self) -> ElasticRun:
        """Return the run of this rank and worker; each is a new epoch."""
        self._present.run = run = self.elastic_run()
        return run

    def _prepared(self, state: Json) -> Plan:
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
        return self._planned(run, state)

    def _planned(self, run: Run, state: Json) -> Plan:
        bounds = Bounds(self.repetitions, self.nsamples)
        plan = planned(self.pipeline, self.streams, bounds, run, self._description(), state)
        if state is not None and self.seed is not None:
            compare(state, {**plan.header(), "seed": self.seed})
        return plan

    def _description(self) -> dict[str, Any]:
        return description(self.pipeline, Bounds(self.repetitions, self.nsamples))

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
        if not state:
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
