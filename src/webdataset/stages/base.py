"""The base of all stages: a frozen description, a small state, and a generator.

Theory. A pipeline is a value; a run of it makes one *state* per stage and chains one generator per stage. While the
consumer holds an item, every generator is parked at a ``yield``, so the states together are one consistent snapshot.
A state holds the *addresses* of the items in a buffer, never their data; a restored stage fetches them from upstream.

An address is a JSON value that names one item of a stage's output, by three rules: a *transparent* stage (one output
for one input, in order) passes addresses through; a stage with a state says the address of its last item
(``state.address``); outputs of anything else are numbered. Addresses cost nothing unless the run is tracked.

A stage never keeps anything of a run in itself.
"""

import functools
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from webdataset.core.distributed import RunContext, StreamNumber, WorkerContext, worker_context
from webdataset.core.error_handlers import Handler, make_handler_error, should_continue, with_location
from webdataset.core.errors import FlowError
from webdataset.core.json_types import Address as JsonAddress
from webdataset.core.json_types import JsonValue, SplitJson
from webdataset.core.json_types import normalize_json as normalize_json  # noqa: PLC0414  passed on
from webdataset.core.seeds import hash_seed, make_rng, random_seed

if TYPE_CHECKING:
    import typing_extensions

    from webdataset.samples.shared_reader import SharedReaders
    from webdataset.shards.shard_walk import ShardWalks

    State = typing_extensions.TypeVar("State", bound="StageState | None", default=Any)
    Output = typing_extensions.TypeVar("Output", default=Any)
else:
    Output = TypeVar("Output")
    """What a run gives: items of any type, where it is not named."""
    State = TypeVar("State")
    """What a stage remembers: what its ``begin`` returns and its ``flow`` takes; None for a stage without a state."""

P = ParamSpec("P")
Item = TypeVar("Item")
"""One item of a stream, for functions that pass items on as they are: a sample, a batch, or anything else."""
Result = TypeVar("Result")
"""What is made of an item."""
Sample: TypeAlias = dict[str, Any]
"""A sample that is a dictionary: fields by extension, and what is known about it under names such as ``__key__``."""
Fetch = Callable[[list[JsonAddress]], list[Any]]
"""Gives the items at some addresses of the stage before, in the same order."""
# for the folders that have not changed to core.json_types yet
Json = Any
Address = Any


class RunMeter(Protocol):
    """What times the stages of a run; see :mod:`webdataset.flow.timing`."""

    @property
    def inside(self) -> "RunMeter":
        """What a pipeline inside a stage of this run is timed by."""

    def attach(self, runners: list[Any]) -> None:
        """Take up the stages of a run that is not open yet."""


class OutcomeSink(Protocol):
    """What takes note of what became of the samples of a run; see :mod:`webdataset.flow.outcomes`."""

    def take(self, runners: list[Any], *, resumed: bool) -> None:
        """Take note of a run that has ended or was given up."""


@dataclass(frozen=True)
class Run:
    """What a running pipeline tells its stages.

    Args:
        seed: entropy of this run; every unseeded generator of the run derives from it.
        common: entropy that all ranks and workers of the job have in common, for shared stages; None: ``seed``.
        epoch: number of this pass over the source, from 0.
        shared: True for stages before the split over workers, whose generators must agree between workers.
        tracked: True where the run keeps addresses, so that it can be snapshot.
        traced: a later stage may ask how far this one has read (``StageState.trace``).
        position: index of the stage in its pipeline.
        stream: which virtual stream of an elastic dataset this run is; None for a run of a plain one.
        whole_shards: a later stage joins neighbouring samples, so that no shard may be shared out by samples.
        context: rank, worker and settings, filled when the run begins.
        meter: what times the stages of this run (:mod:`webdataset.flow.timing`); None: nothing does.
        warned: what this run has warned of already, in all of its streams and sources.
        outcomes: takes note of what became of the samples of stages that may drop some
            (:mod:`webdataset.flow.outcomes`); None: the run judges by itself.
        readers: of shards that several streams of a worker share; None: each stream reads alone.
        walks: over lists of shards, for all streams of a worker; None: each stream goes through its list alone.
    """

    seed: int = field(default_factory=random_seed)
    common: int | None = None
    epoch: int = 0
    shared: bool = False
    tracked: bool = False
    traced: bool = field(default=True, compare=False, repr=False)
    position: int = 0
    stream: StreamNumber | None = None
    whole_shards: bool = False
    context: RunContext | None = field(default=None, compare=False, repr=False)
    meter: RunMeter | None = field(default=None, compare=False, repr=False)
    warned: set[str] = field(default_factory=set, compare=False, repr=False)
    outcomes: OutcomeSink | None = field(default=None, compare=False, repr=False)
    readers: "SharedReaders | None" = field(default=None, compare=False, repr=False)
    walks: "ShardWalks | None" = field(default=None, compare=False, repr=False)

    def random(self, *names: int | str) -> Random:
        """Return a generator of this stage's own, fixed by seed, epoch, position and, unless shared, stream or worker.

        That is a virtual stream, or else rank and worker.

        Args:
            *names: further things that the generator depends on.
        """
        if self.shared:
            seed = self.seed if self.common is None else self.common
            return make_rng("shared", seed, self.epoch, self.position, *names)
        if self.stream is not None:
            return make_rng("stream", self.seed, self.epoch, self.position, *self.stream, *names)
        where = self.worker()
        return make_rng("own", self.seed, self.epoch, self.position, where.rank, where.worker, *names)

    def worker(self) -> WorkerContext:
        """Return the rank and worker that run it; 0 of 1 within a virtual stream."""
        return worker_context() if self.context is None else self.context.worker()

    def entropy(self) -> int:
        """Return one number that the run's seed and epoch determine, for generators of other kinds."""
        return hash_seed("entropy", self.seed, self.epoch, self.position)


class Outcome:
    """What became of the samples in one run of a stage that may drop some; never saved.

    Attributes:
        ended: its input came to an end.
        gave: it gave some.
        dropped: samples that it did not give before the first that it gave.
    """

    ended = False
    gave = False
    dropped = 0

    def end(self, dropped: int, *, gave: bool) -> None:
        """Take note of the end of its input."""
        self.ended, self.gave, self.dropped = True, gave, dropped


class StageState:
    """What a stage remembers between items.

    Attributes:
        run_context: the run it belongs to, where a pipeline runs the stage; else None.
        origin: in a tracked run, a function giving the address of the item that upstream yielded last; else None.
            What a stage gives never depends on it.
        address: address of the item that this stage yielded last (tracked runs only).
        plain: what ``split_snapshot`` returns has no tuples within, and the keys of dictionaries are sorted.
        outcome: of a run whose samples are watched; not part of a snapshot.
    """

    run_context: Run | None = None
    origin: Callable[[], JsonAddress] | None = None
    address: Any = None  # a JsonAddress; Any lets subclasses make it a property
    plain: bool = False
    outcome: Outcome | None = None

    @property
    def first_input(self) -> int:
        """Number of the first input item that a restored run looks at, from 0."""
        return 0

    def snapshot(self) -> JsonValue:
        """Return this state as a JSON value; buffers as addresses."""
        return None

    def split_snapshot(self) -> SplitJson:
        """Return the snapshot in two parts, which ``join_snapshot`` puts together.

        Returns:
            What changes with nearly every item; and a list or dictionary of what is mostly the same, not changed in
            place once it was returned, or None. The second part is summed only where it is another one.
        """
        return [self.snapshot(), None]

    def writer(self) -> Callable[[], SplitJson]:
        """Return ``split_snapshot``, or what does the same with fewer calls, for calls at every step."""
        return self.split_snapshot

    def trace(self) -> JsonValue:
        """Return what has been read so far as a JSON value, for a replay to compare; None for what reads nothing."""
        return None

    def present_url(self) -> str:
        """Return the url of the shard that is being read, for messages; nothing where none is known."""
        return ""

    def restore(self, state: JsonValue, fetch: Fetch) -> None:
        """Take up a snapshot before the flow starts.

        Args:
            state: what ``snapshot`` returned.
            fetch: gives the upstream items that stand at the given addresses, in the same order.
        """


class Stage(ABC, Generic[State]):
    """One step of a pipeline: called with an iterable, it returns an iterator over the results.

    Attributes:
        state_name: what states call the stages of this very class, so that it can be renamed; a subclass that has none
            of its own goes by its qualified name. States of a stage with another name are refused.
        transparent: each output item is made from one input item, in input order, and depends on nothing else.
        rewinds: the stage restores itself from a *fresh* upstream (the reader does, by skipping whole shards).
        drops: the stage may drop every sample that it is given, and has a ``name`` and a user's ``function``. Its flow
            says in ``state.outcome`` how that ended; without a state of its own, ``state`` is a plain one for that.
    """

    state_name: ClassVar[str]
    transparent: bool = False
    rewinds: bool = False
    drops: bool = False

    def begin(self, run: Run) -> State:  # noqa: ARG002
        """Return a new state for one run, or None for a stage that remembers nothing.

        Args:
            run: seed, epoch and place of the run.
        """
        return cast("State", None)

    @abstractmethod
    def flow(self, upstream: Iterator[Any], state: State) -> Iterator[Any]:
        """Yield results.

        Args:
            upstream: the items.
            state: what ``begin`` returned, possibly restored.
        """

    def refetch(self, addresses: list[JsonAddress], fetch: Fetch, state: "State | None" = None) -> list[Any]:
        """Make the output items that stand at ``addresses`` once more.

        Args:
            addresses: addresses of this stage's output.
            fetch: gives the upstream items at upstream's addresses.
            state: this stage's state in the present run; sources that hold other sources find them there.

        Returns:
            The items, in the order of ``addresses``. The default serves transparent stages.

        Raises:
            FlowError: the stage gave another number of items than it gave in the run that is restored.
        """
        known = None if state is None else state.run_context
        remade = list(self.flow(iter(fetch(addresses)), self.begin(Run() if known is None else known)))
        if len(remade) != len(addresses):
            raise FlowError(
                f"{self!r} made {len(remade)} of {len(addresses)} buffered items again: it does not depend on the "
                f"item alone, so the run cannot be restored; move it after the shuffle",
                stage=repr(self),
            )
        return remade

    def for_stream(self, stream: StreamNumber) -> "Stage":  # noqa: ARG002
        """Return this stage as one virtual stream has it; bounds that hold for all streams together are shared out."""
        return self

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        """Run this stage alone over ``source``."""
        return self.flow(iter(source), self.begin(Run()))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


class FilterFunction(Stage["StageState | None"]):
    """A generator function with its arguments fixed: ``function(source, *args, **kw)`` gives the results.

    Args:
        function: takes an iterator first.
        *args: further positional arguments.
        **kw: keyword arguments.
    """

    args: tuple[Any, ...]
    kw: dict[str, Any]

    def __init__(self, function: Callable[..., Iterable[Any]], /, *args: object, **kw: object) -> None:
        self.f = function
        self.args = args
        self.kw = kw

    def flow(self, upstream: Iterator[Any], state: StageState | None) -> Iterator[Any]:  # noqa: ARG002
        """Yield what the function yields."""
        return iter(self.f(upstream, *self.args, **self.kw))

    def __repr__(self) -> str:
        shown = [repr(value) for value in self.args] + [f"{name}={value!r}" for name, value in self.kw.items()]
        name = getattr(self.f, "__name__", None) or repr(self.f)
        return f"{name.lstrip('_')}({', '.join(shown)})"


class TransparentFunction(FilterFunction):
    """A generator function that makes each output item from one input item, in order."""

    transparent = True


class ObservingFunction(TransparentFunction):
    """A generator function whose output items *are* input items, in order: it drops some, or only looks at them."""

    def refetch(self, addresses: list[JsonAddress], fetch: Fetch, state: object = None) -> list[Any]:  # noqa: ARG002
        """Return the input items, without a second check."""
        return fetch(addresses)


class PassThroughState(StageState):
    """Memory of a stage whose last output item is upstream's last item: the address is upstream's."""

    @property
    def address(self) -> JsonAddress:
        """Address of the item that upstream yielded last."""
        return self.origin() if self.origin is not None else None


class PassThroughStage(Stage):
    """A stage with a state whose output items *are* input items: it drops some, or gives them in another order."""

    def refetch(self, addresses: list[JsonAddress], fetch: Fetch, state: object = None) -> list[Any]:  # noqa: ARG002
        """Return the input items."""
        return fetch(addresses)


def transform(
    function: Callable[Concatenate[Iterator[Any], P], Iterator[Any]],
    kind: type[TransparentFunction] = TransparentFunction,
    *,
    state_name: str | None = None,
    **checks: Callable[[object], None],
) -> Callable[P, TransparentFunction]:
    """Make a stage maker of a generator function whose every output item is made from one input item, in order.

    Args:
        function: ``function(source, *args, **kw)`` yields results. Its first parameter is left out of the maker's.
        kind: of the stages.
        state_name: what states call the stages; None is the function's qualified name.
        **checks: by parameter, what raises where its value, if it is not the default, cannot mean anything.

    Returns:
        ``maker(*args, **kw)``, which checks its arguments and returns the stage.
    """
    return _maker(function, kind, state_name, checks)


def observation(
    function: Callable[Concatenate[Iterator[Any], P], Iterator[Any]],
    kind: type[ObservingFunction] = ObservingFunction,
    *,
    state_name: str | None = None,
    **checks: Callable[[object], None],
) -> Callable[P, ObservingFunction]:
    """Make a stage maker of a generator function whose output items are input items, in order; see `transform`."""
    return _maker(function, kind, state_name, checks)


def expansion(
    function: Callable[Concatenate[Iterator[Any], P], Iterator[Any]], *, state_name: str | None = None
) -> Callable[P, FilterFunction]:
    """Make a stage maker of a generator function that is resumed by replay (1 to n, reordering, or foreign)."""
    return _maker(function, FilterFunction, state_name, {})


FilterKind = TypeVar("FilterKind", bound=FilterFunction)


def _maker(
    function: Callable[Concatenate[Iterator[Any], P], Iterator[Any]],
    kind: type[FilterKind],
    state_name: str | None,
    checks: Mapping[str, Callable[[object], None]],
) -> Callable[P, FilterKind]:
    signature = inspect.signature(function)
    own = signature.replace(parameters=list(signature.parameters.values())[1:], return_annotation=kind)

    @functools.wraps(function)
    def maker(*args: P.args, **kw: P.kwargs) -> FilterKind:
        given = own.bind(*args, **kw).arguments
        for name, check in checks.items():
            if name in given and given[name] is not own.parameters[name].default:
                check(given[name])
        handler = given.get("handler")
        if handler is not None and not callable(handler):
            raise make_handler_error(handler)
        return kind(function, *args, **kw)

    vars(maker)["__signature__"] = own
    maker.__name__ = maker.__qualname__ = function.__name__.lstrip("_")
    # after wraps: the maker itself, used uncalled, goes by its own name
    if state_name is not None:
        vars(function)["state_name"] = state_name
    return maker


class RestCurried:
    """A function ``f`` whose call fixes all arguments but the first (upstream's ``pipelinefilter`` objects)."""

    def __init__(self, f: Callable[..., Iterable[Any]]) -> None:
        self.f = f
        functools.update_wrapper(self, f)

    def __call__(self, /, *args: object, **kw: object) -> FilterFunction:
        """Return the stage that calls the function with the source first and these arguments after it."""
        return FilterFunction(self.f, *args, **kw)


def pipelinefilter(f: Callable[..., Iterable[Any]]) -> RestCurried:
    """Turn ``f(source, *args, **kw)`` into a maker of pipeline stages.

    Args:
        f: takes an iterator first and returns an iterable.

    Returns:
        A maker: ``maker(*args, **kw)`` is a stage, picklable where its parts are.
    """
    return RestCurried(f)


def pair_addresses(upstream: Iterator[Item], origin: Callable[[], JsonAddress]) -> Iterator[tuple[JsonAddress, Item]]:
    """Pair each item with its address, for a buffer in a tracked run."""
    for item in upstream:
        yield origin(), item


def deliver_pairs(pairs: Iterator[tuple[JsonAddress, Item]], state: StageState) -> Iterator[Item]:
    """Yield the items of ``pairs``, keeping the address of the last one in ``state``."""
    for address, item in pairs:
        state.address = address
        yield item


def describe_function(function: object) -> str:
    """Return a function's name and where it is written, as ``name (file.py:12)``."""
    name = getattr(function, "__qualname__", None) or repr(function)
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else str(name)


def stage_title(stage: str, *functions: object) -> str:
    """Return what a stage is called in reports, as ``map(augment at train.py:12)``.

    Args:
        stage: its name.
        *functions: the user's functions that it calls; functions of this library are not told.
    """
    shown = [
        _function_title(each)
        for each in functions
        if not str(getattr(each, "__module__", "")).startswith("webdataset.")
    ]
    return f"{stage}({', '.join(shown)})" if shown else stage


def _function_title(function: object) -> str:
    function = inspect.unwrap(function) if inspect.isroutine(function) else function
    if isinstance(function, functools.partial):
        return _function_title(function.func)
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__).rpartition(".<locals>.")[2]
    return name if code is None else f"{name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"  # noqa: PTH119


def with_blame(exn: Exception, stage: str, sample: object, function: object = None) -> Exception:
    """Say on an error which stage, function and sample it came from.

    Returns:
        The same error.
    """
    where = stage if function is None else f"{stage}: {describe_function(function)}"
    known = sample if isinstance(sample, dict) else {}
    key, url, path = known.get("__key__"), known.get("__url__"), known.get("__local_path__")
    found = with_location(exn, stage=where, key=key, url=None if url is None else str(url), path=path)
    if type(exn) is KeyError and known and exn.args and exn.args[0] not in known:
        exn.add_note(f"the sample has {', '.join(map(str, known))}")
    return found


def collate_batch(collate: Callable[[list[Item]], Result], samples: list[Item], stage: str) -> Result:
    """Return one batch; a failure says the stage, the function, and the key and url of the batch's first sample.

    Raises:
        Exception: whatever ``collate`` raises.
    """
    try:
        return collate(samples)
    except Exception as exn:  # user code: located and raised again
        with_blame(exn, stage, samples[0] if samples else None, collate)
        raise


def map_items(source: Iterator[Item], f: Callable[[Item], Result], handler: Handler, stage: str) -> Iterator[Result]:
    """Yield ``f(sample)`` for each sample; a failure goes to the handler.

    Args:
        source: the samples.
        f: any function of one sample.
        handler: what to do when ``f`` fails: true skips the sample, false ends the stage.
        stage: name of the stage, for the error.
    """
    for sample in source:
        try:
            value = f(sample)
        except Exception as exn:  # noqa: BLE001  user code: the handler decides
            if should_continue(handler, with_blame(exn, stage, sample), stage):
                continue
            return
        yield value


Step = Callable[[Any], Any]


class Composed(Stage):
    """Steps applied from left to right, to a value or to an iterator alike.

    Args:
        *steps: functions of one argument, or stages. A pipeline may take ``steps`` apart and run each by itself.
    """

    state_name = "Composed"

    def __init__(self, *steps: Step) -> None:
        self.steps: tuple[Step, ...] = tuple(
            inner for step in steps for inner in (step.steps if isinstance(step, Composed) else (step,))
        )
        self.transparent = all(isinstance(step, TransparentFunction) for step in self.steps)
        self.needs_whole_shards = any(getattr(step, "needs_whole_shards", False) for step in self.steps)

    def flow(self, upstream: Iterator[Any], state: object) -> Iterator[Any]:  # noqa: ARG002
        """Yield what the last step yields."""
        return iter(self(upstream))

    def __call__(self, source: Any) -> Any:
        """Apply all steps; ``source`` may be any value where the steps are plain functions."""
        for step in self.steps:
            source = step(source)
        return source

    def __repr__(self) -> str:
        return f"compose({', '.join(str(step) for step in self.steps)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Composed) and self.steps == other.steps

    __hash__ = None


def compose(*args: Step) -> Composed:
    """Join functions or stages into one: ``compose(f, g)(x)`` is ``g(f(x))``.

    Args:
        *args: functions of one argument, applied from left to right; none at all is the identity.

    Returns:
        A stage.

    Flow: that of its steps; resumes exactly where they are maps or selections, by replay otherwise.
    """
    return Composed(*args)


def compose2(f: Step, g: Step) -> Composed:
    """Join two functions: ``compose2(f, g)(x)`` is ``g(f(x))``."""
    return Composed(f, g)


def pipeline(source: Iterable[Any], *args: Step) -> Any:
    """Run ``source`` through the steps.

    Args:
        source: anything that the first step takes.
        *args: steps, from left to right.

    Returns:
        What the last step returns.
    """
    return Composed(*args)(source)
