"""What a stage is: a frozen description, a small memory, and a generator that flows.

Theory. A pipeline is a value; running it makes one *memory* per stage and chains one generator per stage. While the
consumer holds an item, every generator is parked at a ``yield``, so the memories together are one consistent
picture of the run: a snapshot. Buffers in a memory are remembered by the *addresses* of their items, never by their
data, and are filled again on restore by asking upstream to fetch those addresses.

An address is a JSON value that names one item of a stage's output. Three rules make all addresses:

* a *transparent* stage (each output item is made from one input item, in order) passes addresses through;
* a stage with a memory says the address of the item it yielded last (``memory.address``);
* anything else (a user's generator function) is numbered: the address is the output's ordinal.

Addresses cost nothing unless the run is tracked.
"""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from webdataset.ground.errors import FlowError
from webdataset.ground.seeds import fold, fresh, generator
from webdataset.ground.topology import Stream, place

P = ParamSpec("P")
Json = Any
Address = Any
Fetch = Callable[[list[Address]], list[Any]]
Item = TypeVar("Item")


def normalize_json(value: Json) -> Json:
    """Return a JSON value with lists for tuples, and with the keys of dictionaries sorted.

    Args:
        value: a JSON value.
    """
    if isinstance(value, list | tuple):
        return [normalize_json(part) for part in value]
    return {name: normalize_json(value[name]) for name in sorted(value)} if isinstance(value, dict) else value


@dataclass(frozen=True)
class Run:
    """What a running pipeline tells its stages.

    Args:
        seed: entropy of this run; every unseeded generator of the run derives from it.
        common: entropy that all ranks and workers of the job have in common, for shared stages; None: ``seed``.
        epoch: number of this pass over the source, from 0.
        shared: True for stages before the split over workers, whose generators must agree between workers.
        tracked: True where the run keeps addresses, so that it can be snapshot.
        position: index of the stage in its pipeline.
        stream: which virtual stream of an elastic dataset this run is; None for a run of a plain one.
        meter: what times the stages of this run (:mod:`webdataset.flow.timing`); None: nobody does.
        told: what this run has warned of already, in all of its streams and sources.
        outcomes: who is told what became of the samples of stages that may drop some
            (:mod:`webdataset.flow.outcomes`); None: whoever runs the pipeline judges by itself.
    """

    seed: int = field(default_factory=fresh)
    common: int | None = None
    epoch: int = 0
    shared: bool = False
    tracked: bool = False
    position: int = 0
    stream: Stream | None = None
    meter: Any = field(default=None, compare=False, repr=False)
    told: set[str] = field(default_factory=set, compare=False, repr=False)
    outcomes: Any = field(default=None, compare=False, repr=False)

    def random(self, *names: int | str) -> Any:
        """Return a generator of this stage's own, fixed by seed, epoch, position and (unless shared) by who runs it.

        That is a virtual stream, or else rank and worker.

        Args:
            *names: further things that the generator depends on.
        """
        if self.shared:
            seed = self.seed if self.common is None else self.common
            return generator("shared", seed, self.epoch, self.position, *names)
        if self.stream is not None:
            return generator("stream", self.seed, self.epoch, self.position, *self.stream, *names)
        where = place()
        return generator("own", self.seed, self.epoch, self.position, where.rank, where.worker, *names)

    def entropy(self) -> int:
        """Return one number that the run's seed and epoch determine, for generators of other kinds."""
        return fold("entropy", self.seed, self.epoch, self.position)


class Outcome:
    """What became of the samples in one run of a stage that may drop some; never saved.

    Attributes:
        ended: its input came to an end.
        gave: it gave some.
        dropped: samples that it did not give, where it gave none.
    """

    ended = False
    gave = False
    dropped = 0

    def end(self, dropped: int, *, gave: bool) -> None:
        """Take note of the end of its input."""
        self.ended, self.gave, self.dropped = True, gave, 0 if gave else dropped


class Memory:
    """What a stage remembers between items.

    Attributes:
        run_context: the run it belongs to, where a pipeline runs the stage; else None.
        origin: in a tracked run, a function giving the address of the item that upstream yielded last; else None.
            What a stage gives never depends on it.
        address: address of the item that this stage yielded last (tracked runs only).
        plain: snapshots have no tuples, and the keys of dictionaries are sorted.
        outcome: of a run whose samples are watched; not part of a snapshot.
    """

    run_context: Run | None = None
    origin: Callable[[], Address] | None = None
    address: Address = None
    plain: bool = False
    outcome: Outcome | None = None

    def snapshot(self) -> Json:
        """Return this memory as a JSON value; buffers as addresses."""
        return None

    def trace(self) -> Json:
        """Return what has been read so far as a JSON value, for a replay to compare; None for what reads nothing."""
        return None

    def present_url(self) -> str:
        """Return the url of the shard that is being read, for messages; nothing where none is known."""
        return ""

    def restore(self, state: Json, fetch: Fetch) -> None:
        """Take up a snapshot before the flow starts.

        Args:
            state: what ``snapshot`` returned.
            fetch: gives the upstream items that stand at the given addresses, in the same order.
        """


class Stage(ABC):
    """One step of a pipeline: called with an iterable, it returns an iterator over the results.

    Attributes:
        transparent: each output item is made from one input item, in input order, and depends on nothing else.
        rewinds: the stage restores itself from a *fresh* upstream (the reader does, by skipping whole shards).
        drops: the stage may drop every sample that it is given, and has a ``name`` and a user's ``function``. Its flow
            says in ``memory.outcome`` how that ended; where it has no memory, ``memory`` is a plain one for that.
    """

    transparent: bool = False
    rewinds: bool = False
    drops: bool = False

    def begin(self, run: Run) -> Memory | None:  # noqa: ARG002
        """Return a new memory for one run, or None for a stage that remembers nothing.

        Args:
            run: seed, epoch and place of the run.
        """
        return None

    @abstractmethod
    def flow(self, upstream: Iterator[Any], memory: Any) -> Iterator[Any]:
        """Yield results.

        Args:
            upstream: the items.
            memory: what ``begin`` returned, possibly restored.
        """

    def refetch(self, addresses: list[Address], fetch: Fetch, memory: Any = None) -> list[Any]:
        """Make the output items that stand at ``addresses`` once more.

        Args:
            addresses: addresses of this stage's output.
            fetch: gives the upstream items at upstream's addresses.
            memory: this stage's memory in the present run; sources that hold other sources find them there.

        Returns:
            The items, in the order of ``addresses``. The default serves transparent stages.

        Raises:
            FlowError: the stage gave another number of items than it gave in the run that is restored.
        """
        known = None if memory is None else memory.run_context
        remade = list(self.flow(iter(fetch(addresses)), self.begin(Run() if known is None else known)))
        if len(remade) != len(addresses):
            raise FlowError(
                f"{self!r} made {len(remade)} of {len(addresses)} buffered items again: it does not depend on the "
                f"item alone, so the run cannot be restored; move it behind the shuffle",
                stage=repr(self),
            )
        return remade

    def divided(self, stream: Stream) -> "Stage":  # noqa: ARG002
        """Return this stage as one virtual stream has it; bounds that hold for all streams together are shared out.

        Args:
            stream: which stream, of how many.
        """
        return self

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        """Run this stage alone over ``source``."""
        return self.flow(iter(source), self.begin(Run()))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


class FilterFunction(Stage):
    """A generator function with its arguments fixed: ``function(source, *args, **kw)`` gives the results.

    Args:
        function: takes an iterator first.
        *args: further positional arguments.
        **kw: keyword arguments.
    """

    def __init__(self, function: Callable[..., Iterable[Any]], /, *args: Any, **kw: Any) -> None:
        self.f = function
        self.args = args
        self.kw = kw

    def flow(self, upstream: Iterator[Any], memory: Any) -> Iterator[Any]:  # noqa: ARG002
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

    def refetch(self, addresses: list[Address], fetch: Fetch, memory: Any = None) -> list[Any]:  # noqa: ARG002
        """Return the input items: whoever let them pass once is not asked again."""
        return fetch(addresses)


class Passage(Memory):
    """Memory of a stage whose last output item is upstream's last item: the address is upstream's."""

    @property
    def address(self) -> Address:
        """Address of the item that upstream yielded last."""
        return self.origin() if self.origin is not None else None


class Passing(Stage):
    """A stage with a memory whose output items *are* input items: it drops some, or gives them in another order."""

    def refetch(self, addresses: list[Address], fetch: Fetch, memory: Any = None) -> list[Any]:  # noqa: ARG002
        """Return the input items."""
        return fetch(addresses)


def transform(
    function: Callable[Concatenate[Iterator[Any], P], Iterator[Any]],
    kind: type[TransparentFunction] = TransparentFunction,
) -> Callable[P, TransparentFunction]:
    """Make a stage maker of a generator function whose every output item is made from one input item, in order.

    Args:
        function: ``function(source, *args, **kw)`` yields results. Its first parameter is left out of the maker's.
        kind: of the stages.

    Returns:
        ``maker(*args, **kw)``, which checks its arguments and returns the stage.
    """
    return _maker(function, kind)


def observation(
    function: Callable[Concatenate[Iterator[Any], P], Iterator[Any]],
    kind: type[ObservingFunction] = ObservingFunction,
) -> Callable[P, ObservingFunction]:
    """Make a stage maker of a generator function whose output items are input items, in order."""
    return _maker(function, kind)


def expansion(
    function: Callable[Concatenate[Iterator[Any], P], Iterator[Any]],
) -> Callable[P, FilterFunction]:
    """Make a stage maker of a generator function that is resumed by replay (1 to n, reordering, or foreign)."""
    return _maker(function, FilterFunction)


def _maker(function: Callable[..., Iterator[Any]], kind: type[Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)
    own = signature.replace(parameters=list(signature.parameters.values())[1:], return_annotation=kind)

    @functools.wraps(function)
    def maker(*args: Any, **kw: Any) -> Any:
        own.bind(*args, **kw)
        return kind(function, *args, **kw)

    maker.__signature__ = own  # type: ignore[attr-defined]
    maker.__name__ = maker.__qualname__ = function.__name__.lstrip("_")
    return maker


class RestCurried:
    """A function whose call fixes all arguments but the first (upstream's ``pipelinefilter`` objects).

    Args:
        f: takes an iterator first.
    """

    def __init__(self, f: Callable[..., Iterable[Any]]) -> None:
        self.f = f
        functools.update_wrapper(self, f)

    def __call__(self, /, *args: Any, **kw: Any) -> FilterFunction:
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


def paired(upstream: Iterator[Item], origin: Callable[[], Address]) -> Iterator[tuple[Address, Item]]:
    """Pair each item with its address, for a buffer in a tracked run."""
    for item in upstream:
        yield origin(), item


@overload
def delivered(pairs: Iterator[tuple[Address, Item]], memory: Memory) -> Iterator[Item]: ...
@overload
def delivered(pairs: Iterator[Any], memory: Memory) -> Iterator[Any]: ...
def delivered(pairs: Iterator[Any], memory: Memory) -> Iterator[Any]:
    """Yield the items of ``pairs``, keeping the address of the last one in ``memory``."""
    for address, item in pairs:
        memory.address = address
        yield item
