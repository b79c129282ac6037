"""The pipeline as callers hold it: a list of stages, how long it runs, and its runs.

Flows in: stages. Flows out: on each iteration, a run of them. What a run remembers is in the run; the pipeline keeps
only its description and the number of the next epoch.
"""

import functools
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from webdataset.ground import environment
from webdataset.ground.doorways import served
from webdataset.ground.errors import FlowError, UsageError
from webdataset.ground.topology import alone
from webdataset.ground.torchlike import IterableDataset
from webdataset.ground.tracebacks import TrimmedTracebacks
from webdataset.stages.base import Json, Run

from .entropy import entropy
from .epochs import EpochCount
from .equally import EqualEpochs
from .looping import ENDLESS, STATE_METHODS, STREAMS, Bounds, Items, Loop, missing_state_error
from .outcomes import Outcomes, judge
from .running import Flow

if TYPE_CHECKING:
    from .pipeline_in_streams import ElasticPipeline as ElasticPipeline  # noqa: PLC0414  passed on
    from .timed import Timed

Pipeline = TypeVar("Pipeline", bound="DataPipeline")


class DataPipeline(EqualEpochs, IterableDataset):
    """A chain of stages.

    Args:
        *args: first a source (an iterable, a ``PipelineStage``, a callable without arguments), then callables from an
            iterator to an iterator. A list stands for its elements; None is left out.
        **kwargs: ignored, as ever.
    """

    seed: int | None = None
    epoch: int = 0
    told: int | None = None  # an epoch that somebody chose, until a loader over this pipeline has heard of it
    repetitions: int = 1
    nsamples: int = -1  # items of one iteration; none of 0 or less is a bound
    fixed_epoch: bool = False  # the bound is that of with_epoch
    size: int | None = None
    silent: bool = False  # about a pass that has another length
    _count: EpochCount | None = None
    _lent: tuple[int, int] | None = None
    meter: Any = None  # times the stages of the next runs
    outcomes: Any = None  # is told what became of the samples of the next runs

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.pipeline: list[Any] = []
        self._count = EpochCount()
        for arg in args:
            if arg is None:
                continue
            if isinstance(arg, list):
                self.pipeline.extend(arg)
            else:
                self.pipeline.append(arg)

    if TYPE_CHECKING:

        def __len__(self) -> int:
            """Return the length that was declared; a pipeline without one has no such method."""

    else:  # a checker would take every name for one of ours

        def __getattr__(self, name: str) -> Any:
            """Say what has a state; libraries that ask whether this pipeline has one are told that it has none."""
            if name not in STATE_METHODS:
                return object.__getattribute__(self, name)  # fails once more, in Python's own words, or a property's
            raise missing_state_error(self, name)

    # -- description

    def explain(self) -> str:
        """Describe the pipeline in words: stages, memory, seeds, what is resumed how; see docs/shuffling.md."""
        from .explaining import explain  # noqa: PLC0415  it knows all stages, and is seldom asked

        return explain(self)

    def __repr__(self) -> str:
        from .explaining import summarize  # noqa: PLC0415  as above

        return summarize(self)

    def timed(self) -> "Timed":
        """Iterate over the same items and time every stage: ``report()``, ``stages``, ``skipped``; see docs/loading.md.

        Returns:
            An iterable; each iteration over it is an epoch.
        """
        from .timed import Timed  # noqa: PLC0415  seldom asked

        return Timed(self)

    def append(self, f: Any) -> None:
        """Add a stage at the end, in place.

        Args:
            f: the stage.
        """
        self.pipeline.append(f)

    def compose(self, *args: Any) -> Self:
        """Return a copy with more stages.

        Args:
            *args: stages; None is left out.
        """
        result = self._copied()
        for arg in args:
            if arg is not None:
                result.append(arg)
        return result

    def stage(self, i: int) -> Any:
        """Return the i-th stage."""
        return self.pipeline[i]

    def repeat(self, nepochs: int | None = None, nbatches: int | None = None) -> Self:
        """Run several passes, each in an order of its own.

        Args:
            nepochs: number of passes; None, 0 or negative for no end.
            nbatches: end one iteration after this many items, over all passes; 0, negative or None for no bound.

        Returns:
            A copy with these bounds. (They hold for this pipeline too, as code written for upstream expects.)
        """
        passes = ENDLESS if nepochs is None or nepochs < 1 else nepochs
        bound = -1 if nbatches is None else nbatches
        return self._changed(repetitions=passes, nsamples=bound, fixed_epoch=False)

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> Self:
        """Let each iteration give exactly this many items, starting the source over as often as needed.

        Args:
            nsamples: number of items at the end of this pipeline (batches, where it batches); 0 for no end.
            nbatches: the same; the larger of the two holds. Under a DataLoader it counts in each worker. In an elastic
                dataset it counts the items of all ranks together. All ranks give equally many where it is a multiple of
                their number, which has to divide the number of streams (``repeat(nbatches=n)`` promises no such thing,
                and runs on any number of ranks).

        Returns:
            A copy with this bound. (It holds for this pipeline too, as code written for upstream expects.)
        """
        bound = max(nsamples, nbatches)
        return self._changed(repetitions=ENDLESS, nsamples=bound, fixed_epoch=bound > 0)

    def with_length(self, n: int, silent: bool = False) -> Self:  # noqa: FBT001, FBT002  upstream's signature
        """Give the pipeline a length, for code that asks for one; it changes nothing else.

        Where a pass turns out to have another length, one warning says both numbers: at its end, or where a trainer
        stops at the length and there was more. Only a process that sees all of the pass can tell.

        Args:
            n: what ``len()`` returns.
            silent: do not warn.

        Returns:
            A copy with this length. (This pipeline has it too, as code written for upstream expects.)
        """
        self.__dict__.pop("_length_told", None)
        result = self._changed(size=n, silent=silent)
        add_length_method(self)
        return add_length_method(result)

    def elastic(self, streams: int = STREAMS) -> "ElasticPipeline":
        """Read in virtual streams, to be resumed under any number of ranks and workers; see docs/resume.md.

        Args:
            streams: how many, at least as many as there will ever be ranks; best a multiple of ranks times workers.

        Returns:
            A pipeline with the same stages; its iterators have ``state_dict`` and ``load_state_dict``.

        Raises:
            UsageError: fewer than one stream.
        """
        from .pipeline_in_streams import ElasticPipeline  # noqa: PLC0415  only for datasets in streams

        return ElasticPipeline.of(self, streams)

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch, which with the seed decides every order.

        Args:
            epoch: from 0.
        """
        self.epoch = self.told = epoch
        self._count = None

    def adopt(self, run: Run, *, persistent: bool = False) -> None:
        """Take part in the run of a pipeline that reads this one through a loader.

        Args:
            run: its run: the epoch, and in a tracked run also the seed of a dataset that has none.
            persistent: the loader's workers live on, and would not hear of it.

        Raises:
            FlowError: a tracked run over persistent workers, which cannot be replayed.
        """
        if run.tracked and persistent:
            raise FlowError("a loader with persistent_workers=True cannot be replayed: start the run on one without")
        self.set_epoch(run.epoch)
        self.told = None
        self._lent = (run.seed, run.seed if run.common is None else run.common) if run.tracked else None

    def resumes(self) -> bool:
        """Tell whether the next iteration goes on behind a state, and so gives a part of a pass."""
        return False

    def _changed(self, **changes: Any) -> Self:
        self.__dict__.update(changes)
        return self._copied()

    def _copied(self) -> Self:
        result = type(self).__new__(type(self))
        result.__dict__.update(self.__dict__)
        result.pipeline = list(self.pipeline)
        result.__dict__["_count"] = EpochCount() if self._count is not None else None
        return result

    __copy__ = _copied

    def invoke(self, f: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Run one thing as a stage of a pipeline: ``f`` with a source, or as a source.

        Args:
            f: a list or another iterable, a ``PipelineStage``, or a callable.
            *args: the iterator before it; nothing for a source.
            **kwargs: further arguments of a callable.

        Returns:
            An iterator over its results.
        """
        stage = functools.partial(f, **kwargs) if kwargs else f
        return iter(DataPipeline(*([source] for source in args), [stage]))

    # -- runs

    def _begin(self) -> Run:
        seed, common = entropy(self.seed) if self.seed is not None or self._lent is None else self._lent
        epoch = self.epoch if self._count is None else self._count.epoch(self.epoch)
        return Run(seed=seed, common=common, epoch=epoch, meter=self.meter, outcomes=self.outcomes)

    def start(self, run: Run | dict[str, Any] | None = None, state: Json = None, *, tracked: bool = True) -> Loop:
        """Start a run that can be snapshot.

        Args:
            run: seed and epoch; by default this pipeline's own next epoch.
            state: what ``snapshot()`` of an earlier run returned, to continue behind it.
            tracked: keep addresses, so that ``snapshot()`` works.

        Returns:
            The run: an iterator with ``snapshot()`` and ``close()``.
        """
        if isinstance(run, dict):  # start(state) is what one would write
            run, state = None, run
        if run is None:
            run = self._begin()
        if tracked and not run.tracked:
            run = Run(**{**run.__dict__, "tracked": True})
        bounds = self._limits()
        return Loop(self._entries(run), run, bounds if run.stream is None else bounds.shared(run.stream), state)

    def __iter__(self) -> Iterator[Any]:
        """Run the pipeline; each iteration is a new epoch."""
        return Items(self._iterate())

    def _iterate(self) -> Generator[Any]:
        if not self.pipeline:
            raise UsageError("this pipeline has no stages, or was closed")
        run = self._begin()
        self.epoch = run.epoch + 1
        bounds = self._limits()
        if bounds == Bounds():
            outcomes = Outcomes() if run.outcomes is None else None
            run = run if outcomes is None else replace(run, outcomes=outcomes)
            with TrimmedTracebacks():
                with Flow(self.pipeline, run) as flow:
                    yield from flow
                if outcomes is not None:
                    judge(outcomes.told(), whole=alone())
        else:
            with TrimmedTracebacks(), Loop(self._entries(run), run, bounds) as loop:
                try:
                    yield from loop.quickly()
                finally:
                    self.epoch = max(self.epoch, run.epoch + loop.passed)

    def iterator(self) -> Iterator[Any]:
        """Run all passes, without the bound on items."""
        with Loop(self.pipeline, self._begin(), Bounds(self.repetitions)) as loop:
            yield from loop.quickly()

    def iterator1(self) -> Iterator[Any]:
        """Run one pass."""
        with Loop(self.pipeline, self._begin()) as loop:
            yield from loop.quickly()

    def close(self) -> None:
        """Close the stages that can be closed, and forget all of them. May be called twice."""
        for stage in self.pipeline:
            close = getattr(stage, "close", None)
            if callable(close):
                close()
        self.pipeline = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # -- travel

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle with lambdas and local functions, for workers started by spawn and forkserver."""
        from .travel import packed  # noqa: PLC0415  only travellers pay for it

        kind = type(self)
        return _rebuilt, (packed((unsized(kind), kind is not unsized(kind), self.__dict__, environment.parting())),)


def _rebuilt(parcel: bytes) -> Any:
    import cloudpickle  # noqa: PLC0415  only travellers pay for it

    kind, sized, attributes, rank = cloudpickle.loads(parcel)
    environment.arrive(rank)
    result = kind.__new__(_sized(kind) if sized else kind)
    result.__dict__.update(attributes)
    return result


def add_length_method(obj: Pipeline) -> Pipeline:
    """Give a pipeline a ``len()``: its ``size``. Changes it in place.

    Args:
        obj: a pipeline whose ``size`` is set.

    Returns:
        The pipeline.
    """
    obj.__class__ = _sized(unsized(type(obj)))
    return obj


@functools.cache
def _sized(kind: type[Any]) -> Any:
    """Return the subclass of ``kind`` whose instances have a length: their ``size``."""
    members = {
        "__len__": _length,
        "__iter__": _measured,
        "_plain": kind,
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
    }
    return type(kind.__name__, (kind,), members)


def _length(self: Any) -> int:
    return int(self.size)


def _measured(self: Any) -> Any:
    from .lengths import iterated  # noqa: PLC0415  only for pipelines with a length

    return iterated(self, unsized(type(self)).__iter__)


def unsized(kind: type[Any]) -> Any:
    """Return the class that ``kind`` was before its instances were given a length."""
    return kind.__dict__.get("_plain", kind)


__getattr__ = served(__name__, rooms={"flow.pipeline_in_streams": "ElasticPipeline"})
