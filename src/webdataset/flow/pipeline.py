"""The pipeline as callers hold it: a list of stages, how long it runs, and its runs.

The state of a run is in the run; the pipeline keeps only its description and the number of the next epoch. Equal
epochs on all ranks are planned in :mod:`webdataset.flow.equal_epochs`.
"""

import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from webdataset.core import distributed
from webdataset.core.distributed import RunContext, WorkerContext, is_single_worker, process_context, worker_context
from webdataset.core.errors import FlowError, UsageError, WebDatasetError
from webdataset.core.fork_safety import epoch_lock
from webdataset.core.lazy_modules import lazy_attributes
from webdataset.core.optional_imports import IterableDataset
from webdataset.core.seeds import read_epoch
from webdataset.core.tracebacks import trim_traceback
from webdataset.core.upstream_utils import PipelineStage
from webdataset.flow.epochs import EpochCounter, choose_seeds
from webdataset.flow.outcomes import Outcomes, judge_outcomes
from webdataset.flow.run import (
    END,
    ENDLESS,
    STATE_METHODS,
    STREAMS,
    Bounds,
    Flow,
    Loop,
    PipelineIterator,
    item_bound,
    missing_state_error,
)
from webdataset.stages.argument_checks import read_bound
from webdataset.stages.base import Json, OutcomeSink, Run, RunMeter
from webdataset.stages.mix_sources import refuse_unrepeatable

if TYPE_CHECKING:
    from webdataset.flow.elastic_pipeline import ElasticPipeline
    from webdataset.flow.equal_epochs import EqualEpochPlan
    from webdataset.flow.timing import TimedDataset
    from webdataset.index.lookup import GivenCounts


# methods of other libraries
_INSTEAD = {
    "apply": ".compose(stage)",
    "batch": ".batched(n)",
    "cache": ".mcached() to keep samples in memory, or WebDataset(urls, cache_dir=folder) to keep shards on a disk",
    "collate": ".batched(n, collation_fn=function)",
    "filter": ".select(function): it keeps the samples for which the function returns true",
    "flat_map": ".compose(generator), a generator function of the iterator of samples",
    "interleave": "wds.RandomMix([dataset, other]), or WebDataset(urls, open_shards=n)",
    "limit": ".slice(n)",
    "prefetch": "wds.Loader(dataset, n, workers=4), whose workers read ahead",
    "shard": "WebDataset(urls, nodesplitter=wds.split_by_node), which shares shards out between ranks",
    "skip": ".slice(n, None)",
    "take": ".slice(n)",
    "transform": ".map(function)",
    "with_transform": ".map(function)",
}


class EqualEpochsMixin:
    """The equal epochs of a pipeline.

    Attributes:
        evenness: what was chosen; None: every rank gives what its shards hold.
    """

    pipeline: list[Any]
    repetitions: int
    nsamples: int
    fixed_epoch: bool
    _copy: Callable[[], Self]

    evenness: "EqualEpochPlan | None" = None

    def equal_epochs(self, how: str = "drop", *, steps: int | None = None, counts: "GivenCounts" = None) -> Self:
        """Give equally many items on every rank, so that none waits for others that have ended; see docs/multinode.md.

        It shares the shards out itself, in the place of the splitters, cutting shards where a share ends.

        Args:
            how: ``drop`` leaves out the last samples of a pass that cannot be shared out (fewer than there are ranks;
                than streams, where the dataset is elastic); ``pad`` repeats samples instead, whose ``__pad__`` is true;
                ``resample`` gives ``steps`` items, beginning the source again as often as that takes.
            steps: items (batches, where the pipeline makes them) for each rank in an epoch. Needed by ``resample``, and
                where a stage such as ``select`` makes their number unknown.
            counts: for ``drop`` and ``pad``: url (or file name) to number of samples; or a JSON file of that, or of a
                wids index; True reads the shards' headers, now. None looks for ``sizes.json`` and indexes beside the
                shards.

        Returns:
            A copy. Stages may be added after it.

        Raises:
            UsageError: the numbers of samples are not known, or the pipeline reads no list of shards; the message says
                what to write.
        """
        from webdataset.flow.equal_epochs import equalize  # noqa: PLC0415  knows indexes and most stages, and is seldom asked

        result = self._copy()
        result.pipeline, result.evenness = equalize(self.pipeline, how, steps, counts)
        return result

    def _entries(self, run: Run) -> list[Any]:
        """Return the stages of a run."""
        if self.evenness is None:
            return self.pipeline
        return self.evenness.entries(self.pipeline, run.epoch, self.repetitions)

    def _limits(self) -> Bounds:
        """Return how long this worker runs."""
        if self.evenness is None:
            return Bounds(self.repetitions, item_bound(self))
        return self.evenness.bounds(self.pipeline, worker_context(), self.repetitions, item_bound(self))

    def _stream_limits(self, streams: int, where: WorkerContext | None) -> Bounds:
        """Return how long all virtual streams together run."""
        if self.evenness is None:
            return Bounds(self.repetitions, item_bound(self), fixed=self.fixed_epoch)
        world = (where or process_context()).world_size
        return self.evenness.in_streams(self.pipeline, streams, world, self.repetitions, item_bound(self))


Pipeline = TypeVar("Pipeline", bound="DataPipeline")


class DataPipeline(EqualEpochsMixin, IterableDataset):
    """A chain of stages.

    Args:
        *args: first a source (an iterable, a ``PipelineStage``, a callable without arguments), then callables from an
            iterator to an iterator. A list stands for its elements; None is left out.
        **kwargs: ignored, as ever.
    """

    seed: int | None = None
    epoch: int = 0
    chosen_epoch: int | None = None  # an epoch that the user chose, until a loader over this pipeline has heard of it
    repetitions: int = 1
    nsamples: int = -1  # items of one iteration; none of 0 or less is a bound
    length: int = -1  # upstream's, for programs that set it and read it in a __len__ of their own
    fixed_epoch: bool = False  # the bound is that of with_epoch
    size: int | None = None
    silent: bool = False  # about a pass that has another length
    _count: EpochCounter | None = None
    _lent: tuple[int, int] | None = None
    # times the stages of the next runs
    meter: RunMeter | None = None
    # is told what became of the samples of the next runs
    outcomes: OutcomeSink | None = None
    # why its runs have no state
    unrepeatable: str | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Take note of a class with an ``iterator`` of its own."""
        super().__init_subclass__(**kwargs)
        if cls.iterator is not DataPipeline.iterator or cls.iterator1 is not DataPipeline.iterator1:
            cls.unrepeatable = f"{cls.__name__}.iterator has no state: write a stage in its place (see compose)"

    def __init__(self, *args: object, **kwargs: object) -> None:  # noqa: ARG002
        self.pipeline: list[Any] = []
        self._count = EpochCounter()
        for arg in args:
            if arg is None:
                continue
            if isinstance(arg, list):
                self.pipeline.extend(arg)
            else:
                self.pipeline.append(arg)
        for stage in self.pipeline:
            if getattr(stage, "needs_whole_shards", False):
                self._check_whole_shards()
        if self.pipeline and getattr(type(self.pipeline[0]), "seeds_run", False):
            self._take_seed(self.pipeline[0].seed)

    if TYPE_CHECKING:

        def __len__(self) -> int:
            """Return the length that was declared; a pipeline without one has no such method."""

    else:  # a checker would take every name for one of ours

        def __getattr__(self, name: str) -> object:
            """Say what has a state; libraries that ask whether this pipeline has one are told that it has none."""
            if name in STATE_METHODS:
                raise missing_state_error(self, name)
            if name in _INSTEAD:
                words = f"{type(self).__name__!r} object has no attribute {name!r}; write {_INSTEAD[name]}"
                raise AttributeError(words, name=name, obj=self)
            return object.__getattribute__(self, name)  # fails once more, in Python's own words, or a property's

    # -- description

    def explain(self) -> str:
        """Describe the pipeline in words: stages, memory, seeds, what is resumed how; see docs/shuffling.md."""
        from webdataset.flow.explain import explain  # noqa: PLC0415  it knows all stages, and is seldom asked

        return explain(self)

    def __repr__(self) -> str:
        from webdataset.flow.explain import summarize  # noqa: PLC0415  as above

        return summarize(self)

    def timed(self) -> "TimedDataset":
        """Iterate over the same items and time each stage: ``report()``, ``stages``, ``skipped`` (docs/statistics.md).

        Returns:
            An iterable; each iteration over it is an epoch.
        """
        from webdataset.flow.timing import TimedDataset  # noqa: PLC0415  seldom asked

        return TimedDataset(self)

    def append(self, f: object) -> None:
        """Add a stage at the end, in place.

        Args:
            f: the stage.

        Raises:
            UsageError: a text or number, which is no stage.
        """
        if isinstance(f, str | bytes | int | float):
            raise UsageError(f"{f!r:.60} is no stage: a stage is what wds.map(function), wds.shuffle(1000) … return")
        self.pipeline.append(f)
        if getattr(f, "needs_whole_shards", False):
            self._check_whole_shards()
        if len(self.pipeline) == 1 and getattr(type(f), "seeds_run", False):
            self._take_seed(self.pipeline[0].seed)

    def _check_whole_shards(self) -> None:
        from webdataset.flow.whole_shards import check_whole_shards  # noqa: PLC0415  only for pipelines of documents

        check_whole_shards(self.pipeline)

    def _take_seed(self, seed: object) -> None:
        """Take the seed of a mix that stands first, where this pipeline has none."""
        if self.seed is None and isinstance(seed, int):
            self.seed = seed

    def compose(self, *args: object) -> Self:
        """Return a copy with more stages.

        Args:
            *args: stages; None is left out.
        """
        result = self._copy()
        for arg in args:
            if arg is not None:
                result.append(arg)
        return result

    def stage(self, i: int) -> object:
        """Return the i-th stage."""
        return self.pipeline[i]

    def repeat(self, nepochs: int | None = None, nbatches: int | None = None) -> Self:
        """Run several passes, each in an order of its own.

        Args:
            nepochs: number of passes; None, 0 or negative for no end.
            nbatches: end one iteration after this many items, over all passes; 0, negative or None for no bound.

        Returns:
            A copy with these bounds. (They hold for this pipeline too, as code written for upstream expects.)

        Raises:
            UsageError: something that is no number.
        """
        passes = read_bound("repeat", 0 if nepochs is None else nepochs, "nepochs")
        bound = read_bound("repeat", -1 if nbatches is None else nbatches, "nbatches")
        passes = ENDLESS if passes < 1 else passes
        return self._copy_with(repetitions=passes, nsamples=bound, fixed_epoch=False)

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

        Raises:
            UsageError: something that is no number.
        """
        bound = max(read_bound("with_epoch", nsamples, "nsamples"), read_bound("with_epoch", nbatches, "nbatches"))
        return self._copy_with(repetitions=ENDLESS, nsamples=bound, fixed_epoch=bound > 0)

    def with_length(self, n: int, silent: bool = False) -> Self:  # noqa: FBT001, FBT002  upstream's signature
        """Give the pipeline a length, for code that asks for one; it changes nothing else.

        Where a pass turns out to have another length, one warning says both numbers: at its end, or where a trainer
        stops at the length and there was more. Only a process that sees all of the pass can tell.

        Args:
            n: what ``len()`` returns.
            silent: do not warn.

        Returns:
            A copy with this length. (This pipeline has it too, as code written for upstream expects.)

        Raises:
            UsageError: something that is no number.
        """
        # None is a length that is not known, in published versions
        read_bound("with_length", 0 if n is None else n, "n")
        self.__dict__.pop("_length_told", None)
        result = self._copy_with(size=n, silent=silent)
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
        from webdataset.flow.elastic_pipeline import ElasticPipeline  # noqa: PLC0415  only for datasets in streams

        return ElasticPipeline.of(self, streams)

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch, which with the seed decides every order.

        Args:
            epoch: from 0.

        Raises:
            UsageError: no such epoch.
        """
        # each epoch of a loader passes here
        if not isinstance(epoch, int) or epoch < 0:
            epoch = read_epoch(epoch)
        self.epoch = self.chosen_epoch = epoch
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
        self.chosen_epoch = None
        self._lent = (run.seed, run.seed if run.common is None else run.common) if run.tracked else None

    def resumes(self) -> bool:
        """Tell whether the next iteration continues after a state, and so gives a part of a pass."""
        return False

    def _copy_with(self, **changes: object) -> Self:
        self.__dict__.update(changes)
        return self._copy()

    def _copy(self) -> Self:
        result = type(self).__new__(type(self))
        result.__dict__.update(self.__dict__)
        result.pipeline = list(self.pipeline)
        result.__dict__["_count"] = EpochCounter() if self._count is not None else None
        return result

    __copy__ = _copy

    def invoke(
        self, f: Callable[..., Any] | Iterable[Any] | PipelineStage, *args: object, **kwargs: object
    ) -> Iterator[Any]:
        """Run one thing as a stage of a pipeline: ``f`` with a source, or as a source.

        Args:
            f: a list or another iterable, a ``PipelineStage``, or a callable.
            *args: the iterator before it; nothing for a source.
            **kwargs: further arguments of a callable.

        Returns:
            An iterator over its results.
        """
        stage = functools.partial(f, **kwargs) if kwargs and callable(f) else f
        return iter(DataPipeline(*([source] for source in args), [stage]))

    # -- runs

    def _begin(self) -> Run:
        seed, common = choose_seeds(self.seed) if self.seed is not None or self._lent is None else self._lent
        epoch = self.epoch if self._count is None else self._count.epoch(self.epoch)
        return Run(seed=seed, common=common, epoch=epoch, meter=self.meter, outcomes=self.outcomes)

    def start(self, run: Run | dict[str, Any] | None = None, state: Json = None, *, tracked: bool = True) -> Loop:
        """Start a run that can be snapshot.

        Args:
            run: seed and epoch; by default this pipeline's own next epoch.
            state: what ``snapshot()`` of an earlier run returned, to continue after it.
            tracked: keep addresses, so that ``snapshot()`` works.

        Returns:
            The run: an iterator with ``snapshot()`` and ``close()``.
        """
        if self.unrepeatable:
            refuse_unrepeatable(self)
        if isinstance(run, dict):  # start(state) is what one would write
            run, state = None, run
        if run is None:
            run = self._begin()
        if tracked and not run.tracked:
            run = Run(**{**run.__dict__, "tracked": True})
        bounds = self._limits()
        return Loop(self._entries(run), run, bounds if run.stream is None else bounds.share_for(run.stream), state)

    def __iter__(self) -> Iterator[Any]:
        """Run the pipeline; each iteration is a new epoch.

        Where a class has an ``iterator`` or ``iterator1`` of its own, the items are what these give, as upstream.
        """
        return PipelineIterator(self._iterate_by_methods() if self.unrepeatable else self._iterate())

    def _iterate_by_methods(self) -> Generator[object]:
        # a worker counts what it begins, so that nothing is begun here
        begun = self.epoch
        items = iter(self.iterator())
        try:
            yield from items if self.nsamples <= 0 else itertools.islice(items, self.nsamples)
        finally:
            self.epoch = max(self.epoch, begun + 1)
            if isinstance(items, Generator):
                items.close()

    def _iterate(self) -> Generator[Any]:
        if not self.pipeline:
            raise UsageError("this pipeline has no stages, or was closed")
        context = RunContext()
        with context:
            with epoch_lock.lock:
                run = replace(self._begin(), context=context)
                self.epoch = run.epoch + 1
            bounds = self._limits()
        try:
            if bounds == Bounds():
                outcomes = Outcomes() if run.outcomes is None else None
                run = run if outcomes is None else replace(run, outcomes=outcomes)
                with Flow(self.pipeline, run) as flow:
                    first = flow.first()
                    if first is not END:
                        yield first
                    del first
                    yield from flow.items
                if outcomes is not None:
                    judge_outcomes(outcomes.summarize(), whole=is_single_worker())
            else:
                with Loop(self._entries(run), run, bounds) as loop:
                    try:
                        yield from loop.iterate_fast()
                    finally:
                        with epoch_lock.lock:
                            self.epoch = max(self.epoch, run.epoch + loop.passed)
        except WebDatasetError as error:
            trim_traceback(error)
            raise
        except Exception as error:  # of the user's code: it is raised again
            distributed.raise_portable(error)
            raise

    def iterator(self) -> Iterator[Any]:
        """Run all passes, without the bound on items."""
        if type(self).iterator1 is not DataPipeline.iterator1:
            yield from self._repeat_pass()
            return
        with Loop(self.pipeline, self._begin(), Bounds(self.repetitions)) as loop:
            yield from loop.iterate_fast()

    def iterator1(self) -> Iterator[Any]:
        """Run one pass."""
        with Loop(self.pipeline, self._begin()) as loop:
            yield from loop.iterate_fast()

    def _repeat_pass(self) -> Iterator[object]:
        """Run ``iterator1``, which is a class's own, for each pass; a pass without items is the last one."""
        passes, empty = 0, False
        while passes < self.repetitions and not empty:
            begun, empty = self.epoch, True
            for item in self.iterator1():
                empty = False
                yield item
            self.epoch = max(self.epoch, begun + 1)
            passes += 1

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

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Pickle with lambdas and local functions, for workers started by spawn and forkserver."""
        from webdataset.flow.pickling import pickle_by_value  # noqa: PLC0415  only travellers pay for it

        kind = type(self)
        return _rebuild, (
            pickle_by_value(
                (
                    find_plain_class(kind),
                    kind is not find_plain_class(kind),
                    self.__dict__,
                    distributed.describe_parent(),
                )
            ),
        )


def _rebuild(pickled: bytes) -> object:
    import cloudpickle  # noqa: PLC0415  only travellers pay for it

    kind, sized, attributes, parent = cloudpickle.loads(pickled)
    distributed.accept_parent(parent)
    result = kind.__new__(_make_sized_class(kind) if sized else kind)
    result.__dict__.update(attributes)
    return result


def add_length_method(obj: Pipeline) -> Pipeline:
    """Give a pipeline a ``len()``: its ``size``. Changes it in place.

    Args:
        obj: a pipeline whose ``size`` is set.

    Returns:
        The pipeline.
    """
    kind: Any = find_plain_class(type(obj))
    obj.__class__ = _make_sized_class(kind)
    return obj


@functools.cache
def _make_sized_class(kind: type[Pipeline]) -> type[Pipeline]:
    """Return the subclass of ``kind`` whose instances have a length: their ``size``."""
    members = {
        "__len__": _get_length,
        "__iter__": _iterate_with_length,
        "_plain": kind,
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
    }
    return type(kind.__name__, (kind,), members)


def _get_length(self: DataPipeline) -> int:
    return int(self.size or 0)


def _iterate_with_length(self: DataPipeline) -> Iterator[Any]:
    from webdataset.flow.pass_checks import iterate_pipeline  # noqa: PLC0415  only for pipelines with a length

    return iterate_pipeline(self, find_plain_class(type(self)).__iter__)


def find_plain_class(kind: type[Pipeline]) -> type[Pipeline]:
    """Return the class that ``kind`` was before its instances were given a length."""
    plain: type[Pipeline] = kind.__dict__.get("_plain", kind)
    return plain


__getattr__ = lazy_attributes(__name__, homes={"flow.elastic_pipeline": "ElasticPipeline"})
