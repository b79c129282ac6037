"""torch's DataLoader with the chainable methods, and the wrapper that gives them to any iterable.

``WebLoader`` takes what ``torch.utils.data.DataLoader`` takes, and is a pipeline over its batches.
``wds.Processor(wds.map, f)(dataset)`` is the form that upstream's documentation shows and no version had.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from webdataset.core.distributed import process_context
from webdataset.core.errors import StateMismatch, UsageError
from webdataset.core.optional_imports import require
from webdataset.core.seeds import read_epoch
from webdataset.flow.elastic_pipeline import ElasticMixin
from webdataset.flow.elastic_state import (
    LOADER_KIND,
    SUM_KEY,
    check_state,
    has_progress,
    held_states,
    quote_value,
    sum_json,
)
from webdataset.flow.epochs import choose_seeds
from webdataset.flow.pass_checks import iterate_loader
from webdataset.flow.pipeline import DataPipeline
from webdataset.flow.run import STREAMS, Bounds, Loop, item_bound
from webdataset.flow.virtual_stream import is_epoch_over, rewind_state, warn_of_other_epoch
from webdataset.fluent.elastic_dataset import ElasticDataset
from webdataset.fluent.interface import FluidInterface
from webdataset.stages.base import Json, Run

VERSION = 1
KIND = LOADER_KIND


def add_sum(state: dict[str, Json]) -> dict[str, Json]:
    """Return a state with its sum."""
    return {**state, SUM_KEY: sum_json(state)}


def copy_mapping(state: object) -> dict[str, Json]:
    """Return a copy of a state. Raises StateMismatch: it is no dictionary."""
    if not isinstance(state, Mapping):
        raise StateMismatch(f"this is not the state of a loader: {quote_value(state)!r}")
    return dict(state)


def check_loader_state(state: Mapping[str, Json]) -> None:
    """Refuse a state that lacks something, or is not the one that was saved.

    Raises:
        StateMismatch: it names the entry.
    """
    begin, loop = state.get("begin"), state.get("loop")
    for name, part in (("begin", begin), ("loop", loop)):
        if part is not None and not isinstance(part, dict):
            raise StateMismatch(f"the state is malformed: {name!r} is {quote_value(part)}")
    if (begin is None) == (loop is None):
        raise StateMismatch("the state is incomplete: it has one of 'begin' and 'loop'")
    if state.get(SUM_KEY) != sum_json({name: part for name, part in state.items() if name != SUM_KEY}):
        raise StateMismatch(
            f"the state was changed or damaged since it was saved: {SUM_KEY!r} is {quote_value(state.get(SUM_KEY))}, "
            "and does not agree with the rest. Load another one"
        )


def data_loader(*args: Any, **kw: Any) -> Any:
    """Return a ``torch.utils.data.DataLoader``; over an elastic dataset, one with a state.

    Raises:
        MissingExtra: torch is not installed.
    """
    if "workers" in kw:
        raise TypeError(
            "WebLoader() takes the arguments of torch's DataLoader: write num_workers= in place of workers="
        )
    torch_data = require("torch.utils.data", extra="torch", purpose="WebLoader")
    from webdataset.loading.loader_checks import check_data_loader  # noqa: PLC0415  only for programs that load batches

    check_data_loader(torch_data.DataLoader, torch_data.IterableDataset, args, kw)
    if isinstance(args[0] if args else kw.get("dataset"), ElasticMixin):
        from webdataset.loading.torch_loader import StateLoader  # noqa: PLC0415  it imports torch

        return StateLoader(*args, **kw)
    return torch_data.DataLoader(*args, **kw)


class LoaderPipelineRun:
    """The present run of a loader with stages after it, or the state that its next run begins with."""

    def __init__(self, pending: Json = None) -> None:
        self.loop: Loop | None = None
        self.pending = pending
        # a state, within an epoch, with which nothing was begun yet
        self.loaded = False

    def __reduce__(self) -> tuple[object, ...]:
        return LoaderPipelineRun, (self.pending,)


class FluidWrapper(DataPipeline, FluidInterface):
    """A pipeline whose first stage is given.

    Args:
        initial: an iterable (a list of samples, a dataset, a loader) or a callable without arguments.
    """

    def __init__(self, initial: object) -> None:
        super().__init__()
        self.append(initial)

    def elastic(self, streams: int = STREAMS) -> ElasticDataset:
        """Read in virtual streams, to be resumed under any number of ranks and workers.

        Args:
            streams: how many; see :meth:`webdataset.flow.pipeline.DataPipeline.elastic`.
        """
        return ElasticDataset.of(self, streams)


class WebLoader(DataPipeline, FluidInterface):
    """torch's DataLoader with the chainable methods. Stages after it draw from the seed of its dataset.

    Over an elastic dataset it has a state: what its consumer has received, not what workers ran ahead. See
    docs/resume-loaders.md.

    Args:
        *args: passed on to ``torch.utils.data.DataLoader``.
        **kw: passed on to it.

    Raises:
        MissingExtra: torch is not installed.
    """

    def __init__(self, *args: object, **kw: object) -> None:
        loader = data_loader(*args, **kw)
        super().__init__(loader)
        self._running = LoaderPipelineRun()
        if isinstance(loader.dataset, DataPipeline):
            self.seed = loader.dataset.seed
        if isinstance(loader.dataset, ElasticMixin):
            kind: Any = type(self)
            kind = _choose_class(kind)
            self.__class__ = kind

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch; a state that was loaded into this epoch is still continued.

        Another epoch begins at its start, and a warning says that the state is not used.

        Args:
            epoch: from 0.

        Raises:
            UsageError: no such epoch.
        """
        self._choose(read_epoch(epoch))
        super().set_epoch(epoch)
        before, self._running = (
            self._running,
            LoaderPipelineRun(self._running.pending),
            # the run before has no say any more
        )
        self._running.loaded = before.loaded

    def _choose(self, epoch: int) -> None:
        """Keep a state that was loaded, where it is of this epoch; else leave it, with a warning."""
        loader: Any = self.pipeline[0] if self.pipeline else None
        dataset, loop = getattr(loader, "dataset", None), self._running.pending
        if not isinstance(dataset, ElasticMixin) or dataset.pending is None:
            return
        if loop is None:
            # who says numbers says those of the dataset
            dataset.shift_epoch(dataset.pending["epoch"])
            dataset.choose_epoch(dataset.shift_epoch(epoch), stacklevel=5)
        elif epoch != loop["flow"]["epoch"] - loop["passed"]:
            state = {"epoch": loop["flow"]["epoch"] - loop["passed"], "received": loop["count"], "memories": {}}
            warn_of_other_epoch(state, epoch, process_context(), stacklevel=4)
            dataset.forget()
        if dataset.pending is None:
            loader.forget()
            self._running = LoaderPipelineRun()

    def _begin(self) -> Run:
        """Begin an epoch: the next one, or the one that the dataset was given by ``set_epoch``."""
        dataset = getattr(self.pipeline[0], "dataset", None) if self.pipeline else None
        if isinstance(dataset, DataPipeline) and dataset.chosen_epoch is not None:
            super().set_epoch(dataset.chosen_epoch)
            dataset.chosen_epoch = None
        if self.seed is None and self._lent is None and isinstance(dataset, ElasticMixin):
            # one seed for all epochs of this loader: a state names it, and may have named it before
            self._lent = dataset._lent or choose_seeds(None)  # noqa: SLF001  the seed that its state named
        run = super()._begin()
        self.chosen_epoch = None
        return run

    def _copy(self) -> Self:
        result = super()._copy()
        result.__dict__["_running"] = LoaderPipelineRun()
        return result

    __copy__ = _copy

    def _is_bare(self) -> bool:
        """Tell whether this is the loader alone, so that its state is its dataset's."""
        return len(self.pipeline) == 1 and Bounds(self.repetitions, item_bound(self)) == Bounds()

    def __iter__(self) -> Iterator[Any]:
        """Run the loader, and the stages after it; each iteration is a new epoch, or the rest of a loaded one."""
        first: Any = self.pipeline[0] if self.pipeline else None
        dataset = getattr(first, "dataset", None)
        loaded, self._running.loaded = self._running.loaded, False
        whole = not loaded and not self.resumes()
        if isinstance(dataset, ElasticMixin) and self.chosen_epoch is None and dataset.chosen_epoch is None:
            behind = loaded or (dataset.pending is not None and has_progress(dataset.pending))
            if behind:
                return self._iterate_onward(first, self._running.pending is not None)
        return iterate_loader(self, self._epoch()) if whole and hasattr(first, "dataset") else self._epoch()

    def resumes(self) -> bool:
        """Tell whether the next iteration continues from a state, loaded here or into the dataset."""
        dataset = getattr(self.pipeline[0], "dataset", None) if self.pipeline else None
        pending = isinstance(dataset, ElasticMixin) and bool(dataset.pending and dataset.pending["memories"])
        return self._running.loaded or pending or self._running.pending is not None

    def _epoch(self) -> Iterator[object]:
        first: Any = self.pipeline[0] if self.pipeline else None
        elastic = isinstance(getattr(first, "dataset", None), ElasticMixin)
        if not elastic or self._is_bare() or first.batch_size is not None:
            return super().__iter__()
        return self._iterate_run()

    def _iterate_onward(self, loader: Any, stages: bool) -> Iterator[object]:  # noqa: FBT001  whether the state is of stages too
        """Yield the rest of a loaded epoch; where nothing was left of it, the next one."""
        nothing = True
        for batch in self._epoch():
            nothing = False
            yield batch
        if nothing and (stages or loader.exhausted):
            yield from self._epoch()

    def _iterate_run(self) -> Iterator[object]:
        """Yield items, and keep the run, so that it can be asked for its state."""
        running = self._running
        pending, running.pending = running.pending, None
        run = self._begin()
        self.epoch = run.epoch + 1
        with self.start(run, pending) as loop:
            running.loop = loop
            try:
                yield from loop.iterate_fast()
                running.loop = None if running.loop is loop else running.loop
            finally:
                # no other state was loaded meanwhile
                if self._running is running:
                    self.epoch = max(self.epoch, run.epoch + loop.passed)
                    self.pipeline[0].forget()

    if TYPE_CHECKING:

        def state_dict(self) -> dict[str, Json]:
            """See :class:`ElasticWebLoader`; a loader over another dataset has no such method."""

        def load_state_dict(self, state: Mapping[str, Json]) -> None:
            """See :class:`ElasticWebLoader`; a loader over another dataset has no such method."""


class ElasticWebLoader(WebLoader):
    """The class of every ``WebLoader`` over an elastic dataset: it has a state.

    Lightning saves the state of each loader that has these methods, be it that they fail. So other loaders have none.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the item received last: a JSON value.

        Of a loader alone, it is that of its dataset, to be merged and loaded under any number of ranks and workers.
        With stages after the loader, it belongs to one rank among as many ranks, with any number of workers. At
        the end of an epoch, it is the beginning of the next one.

        Raises:
            UsageError: the dataset is not elastic, or a function of yours after the loader may hold items.
            FlowError: a stage's state cannot be written down.
        """
        loader = self._loader()
        if (ask := held_states.get(self)) is not None:
            return ask()
        if self._is_bare():
            return self._make_loader_state(dict(loader.state_dict()))
        here, running = process_context(), self._running
        loop = running.pending if running.loop is None else running.loop.snapshot()
        if loop is not None and loop["flow"]["first"]:
            raise UsageError(
                "a function from an iterator to an iterator after a loader holds items that no state can name: compose "
                "it into the dataset, in front of elastic()"
            )
        fresh = None if loop is not None else self._fresh(loader.state_dict(), self.epoch)
        return add_sum(
            {
                "version": VERSION,
                "kind": KIND,
                "ranks": [here.rank, here.world_size],
                "items": item_bound(self),
                "begin": fresh,
                "loop": loop,
            }
        )

    def _make_loader_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a loader alone: where another epoch was set since, the beginning of that one."""
        if self.chosen_epoch is None or self._running.loaded:
            return state
        return self._fresh(state, self.chosen_epoch)

    def _fresh(self, state: dict[str, Any], epoch: int) -> dict[str, Any]:
        """Return the state of the dataset at the beginning of one of our epochs."""
        return rewind_state(state, self._loader().dataset.shift_epoch(epoch), process_context())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state in the next iteration.

        Args:
            state: what ``state_dict`` of an equal loader returned; of a loader alone also one of its dataset, or the
                merged one of all ranks.

        Raises:
            UsageError: the dataset is not elastic.
            StateMismatch: it belongs to another dataset, to other stages, or to another rank; the message says what
                differs.
        """
        loader, given, before = self._loader(), copy_mapping(state), self._running
        try:
            self._take_up(loader, given)
        except StateMismatch:
            self._running = before
            raise

    def _take_up(self, loader: Any, given: dict[str, Any]) -> None:
        self._running = LoaderPipelineRun()
        if given.get("kind") == KIND:
            given = self._inner(given)
        elif not self._is_bare() and any((given.get("memories") or {}).values()):
            raise StateMismatch(
                "the state is that of a dataset, and this loader has stages after it, which would begin empty: load "
                "it into the loader alone, or save the state of this loader"
            )
        loop, given = self._running.pending, check_state(given)
        first, passed = (given["epoch"], 0) if loop is None else (loop["flow"]["epoch"], loop["passed"])
        (loader.load_state_dict if loop is None else loader.load_for_one_epoch)(given)
        self._running.loaded = loop is not None or has_progress(given)
        # which of our epochs is the state's
        loader.dataset.shift_epoch(first)
        self.epoch = first - passed + (loop is None and is_epoch_over(given, process_context()))
        self.chosen_epoch = self._count = None
        if self.seed is None:
            self._lent = (given["seed"], given["seed"])

    def _inner(self, given: dict[str, Any]) -> dict[str, Any]:
        """Take up a state of loader and stages, and return that of the loader."""
        here = process_context()
        expected = {"version": VERSION, "ranks": [here.rank, here.world_size], "items": item_bound(self)}
        differing = [
            f"{name} {given.get(name)} (here {own})" for name, own in expected.items() if given.get(name) != own
        ]
        if self._is_bare():
            differing.append("stages after the loader (here none)")
        if differing:
            raise StateMismatch(
                f"the state belongs to another loader; it has {'; '.join(differing)}. Stages after a loader hold "
                "items of one rank: put them into the dataset, in front of elastic(), to resume on other ranks"
            )
        check_loader_state(given)
        loop = given["loop"]
        if loop is None:
            return dict(given["begin"])
        self._running.pending = loop
        return dict(loop["flow"]["memories"][0])

    def _loader(self) -> Any:
        loader: Any = self.pipeline[0] if self.pipeline else None
        if not isinstance(getattr(loader, "dataset", None), ElasticMixin):
            raise UsageError(
                "the state of a WebLoader is that of its dataset: make it elastic, WebDataset(...).elastic()"
            )
        if loader.batch_size is not None and not self._is_bare():
            raise UsageError(
                "stages after a loader can be resumed where the loader's batches are the dataset's: use "
                "batch_size=None, and .batched(n) in the dataset or after the loader"
            )
        return loader


@functools.cache
def _choose_class(kind: type[WebLoader]) -> type[WebLoader]:
    """Return the class for loaders with a state in the place of a class for loaders: its subclass, or ours."""
    if issubclass(kind, ElasticWebLoader):
        return kind
    if kind is WebLoader:
        return ElasticWebLoader
    members = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind, ElasticWebLoader), members)


class Processor:
    """A stage to be put after a dataset.

    Args:
        maker: makes the stage, such as ``wds.map``.
        *args: its arguments.
        **kw: its arguments.
    """

    def __init__(self, maker: Callable[..., Any], *args: Any, **kw: Any) -> None:
        self.stage = maker(*args, **kw)

    def __call__(self, dataset: Iterable[object]) -> DataPipeline:
        """Return the dataset with the stage after it.

        Args:
            dataset: a pipeline, or anything that can be iterated.
        """
        pipeline = dataset if isinstance(dataset, DataPipeline) else FluidWrapper(dataset)
        return pipeline.compose(self.stage)
