"""Mixes several datasets into one: at random, evenly, in turn, or one after another.

A mix is a source: it can be iterated alone or stand first in a pipeline. Its state holds the state of each of its
sources, and of its generator. The plain functions of the compatibility module ``mix`` stand here too.

Theory of even mixes. Drawing a source at random for each sample is off by one percent in 10 000 samples one time in
twenty. Here the n-th draw is ``u = (start + n * g) mod 1``, with the golden section g and a start that the run's seed
gives: the points of such a sequence fill every interval evenly, so that after N samples each share is off by no more
than about log(N) / N, wherever the count begins, and the state is n alone.
"""

import random
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, SupportsIndex

from webdataset.core.errors import FlowError, StateMismatch, UsageError
from webdataset.core.fork_safety import epoch_lock
from webdataset.core.json_types import Address, JsonValue, as_count, as_object, as_object_of_numbers, as_pair
from webdataset.core.optional_imports import IterableDataset
from webdataset.core.seeds import CounterRng, Seed, make_rng, read_seed
from webdataset.core.upstream_utils import check_flags
from webdataset.stages import randomness
from webdataset.stages.base import Fetch, Item, Run, Stage, StageState
from webdataset.stages.mix_sources import SourceFlow, start_source


class MixState(StageState):
    """What a mix remembers: its sources' flows, which of them still give, whose turn it is, and its generator."""

    def __init__(self, datasets: Sequence[Any], run: Run, rng: random.Random | CounterRng | None = None) -> None:
        self.datasets = datasets
        self.run = run
        self.rng = rng
        self.live = list(range(len(datasets)))
        self.turn = 0
        self.flows: dict[int, SourceFlow] = {}
        self.states: dict[int, JsonValue] = {}
        # the last states of sources that have ended, once they were asked for
        self.ended: dict[int, JsonValue] = {}

    def flow(self, number: int) -> SourceFlow:
        """Return the flow of one source, started where it is not yet."""
        if number not in self.flows:
            self.flows[number] = start_source(self.datasets[number], self.run, number, self.states.pop(number, None))
        return self.flows[number]

    def snapshot(self) -> JsonValue:
        """Return turn, generator and the states of the sources that still give, and of some that have ended."""
        parts = {
            "turn": self.turn,
            "random": None if self.rng is None else randomness.rng_state(self.rng),
            "live": {str(number): self.flow(number).snapshot() for number in self.live},
        }
        left = (number for number in range(len(self.datasets)) if number not in self.live)
        ended = {str(number): state for number in left if (state := self.ended_state(number)) is not None}
        return {**parts, "ended": ended} if ended else parts

    def ended_state(self, number: int) -> JsonValue:
        """Return the last state of a source that has ended; None where its items are made again without.

        Its items may wait in buffers: what users' generators were when it drew them stands in its state, and whether
        they came out of memory.
        """
        if number not in self.ended:
            flow = self.flows.get(number)
            if flow is None or not randomness.depends_on_past(self.datasets[number]):
                return None
            self.ended[number] = flow.snapshot()
        return self.ended[number]

    def present_url(self) -> str:
        """Return the url of a shard that one of the sources reads."""
        known = (getattr(flow, "present_url", None) for flow in self.flows.values())
        return next((url for tell in known if tell is not None and (url := tell())), "")

    def trace(self) -> JsonValue:
        """Return how far the sources that still give have been read, where they can tell."""
        live = [(number, getattr(self.flows.get(number), "trace", None)) for number in self.live]
        return {str(number): trace() for number, trace in live if trace is not None}

    def restore(self, state: JsonValue, fetch: Fetch) -> None:  # noqa: ARG002
        """Take up a snapshot; the sources start from it when they are first asked."""
        parts = as_object(state)
        self.states, self.ended = as_object_of_numbers(parts["live"]), as_object_of_numbers(parts.get("ended", {}))
        # the order of the run, whatever order the keys were saved in
        self.live = sorted(self.states)
        self.turn = as_count(parts["turn"])
        if any(number >= len(self.datasets) for number in self.live + list(self.ended)):
            raise StateMismatch(f"the snapshot mixes more sources than the {len(self.datasets)} that are here")
        if self.rng is not None:
            randomness.restore_rng(self.rng, parts["random"])

    def close(self) -> None:
        """Close all sources."""
        for flow in self.flows.values():
            flow.close()


class Mixture(Stage[MixState], IterableDataset):
    """Several datasets as one; the subclasses say in which order.

    Args:
        datasets: datasets or other iterables, each read from its start in every epoch.
        longest: continue until all sources have ended; otherwise end with the first that ends.
    """

    rewinds = True
    epoch = 0  # number of the next epoch of a mix that is iterated by itself

    def __init__(self, datasets: Iterable[Any], longest: bool) -> None:  # noqa: FBT001
        if isinstance(datasets, Mapping):
            raise UsageError("a mix takes a list of datasets, and this is a dictionary: pass list(datasets.values())")
        if isinstance(datasets, str | bytes) or not isinstance(datasets, Iterable):
            raise UsageError(f"a mix takes a list of datasets, and this is {datasets!r:.60}: write [a, b]")
        self.datasets = list(datasets)
        for each in self.datasets:
            named = isinstance(each, str) and ".tar" in each
            if named or not (hasattr(each, "__iter__") or hasattr(each, "__getitem__")):
                raise UsageError(f"a mix takes datasets, and {each!r:.60} is none: write wds.WebDataset(url)")
        check_flags(longest=longest)
        self.longest = longest

    @property
    def reorders(self) -> bool:
        """Whether the items of several datasets alternate; see :mod:`webdataset.flow.whole_shards`."""
        return len(self.datasets) > 1

    def begin(self, run: Run) -> MixState:
        """Return the sources of one run, none of them started yet."""
        return MixState(self.datasets, run)

    def _places(self, state: MixState) -> Iterator[int]:
        """Yield, as long as sources give, the place in ``state.live`` of the one that gives next."""
        raise NotImplementedError

    def _end_source(self, state: MixState, place: int) -> None:
        """Take note that the source at ``place`` has ended."""
        del state.live[place]

    def flow(self, upstream: Iterator[object], state: MixState) -> Iterator[Any]:  # noqa: ARG002
        """Yield the items of all sources; nothing is taken from ``upstream``."""
        gives = [iter(state.flow(number)) for number in state.live]
        live, tracked = state.live, state.run.tracked
        try:
            for place in self._places(state):
                try:
                    item = next(gives[place])
                except StopIteration:
                    if not self.longest:
                        live.clear()  # a restored run must not continue with the others
                        return
                    del gives[place]
                    self._end_source(state, place)
                    continue
                if tracked:
                    number = live[place]
                    state.address = [number, state.flows[number].address()]
                yield item
        finally:
            state.close()

    def refetch(self, addresses: list[Address], fetch: Fetch, state: MixState | None = None) -> list[object]:  # noqa: ARG002
        """Ask each source for its items.

        Raises:
            FlowError: without the state of the run, the sources are not known.
        """
        if not isinstance(state, MixState):
            raise FlowError(f"{self!r} makes items again only in its own run")
        found: dict[int, Iterator[object]] = {}
        places = [(as_count(number), inner) for number, inner in map(as_pair, addresses)]
        for number in {number for number, _ in places}:
            ended = number not in state.live
            last = state.ended_state(number) if ended else None
            source = start_source(self.datasets[number], state.run, number, last) if ended else state.flow(number)
            found[number] = iter(source.fetch([inner for n, inner in places if n == number]))
            if ended:
                source.close()
        return [next(found[number]) for number, _ in places]

    def start(self, run: Run, state: JsonValue = None, *, tracked: bool = True) -> "MixFlow":
        """Start reading as a source of another mix."""
        return MixFlow(self, replace(run, tracked=tracked), state)

    def __iter__(self) -> Iterator[Any]:
        # without a seed the global generator decides, as upstream: random.seed(...) makes a bare mix reproducible
        seed = getattr(self, "seed", None)
        with epoch_lock.lock:
            run = Run(seed=seed if isinstance(seed, int) else random.getrandbits(63), epoch=self.epoch)
            self.epoch += 1
        return self.flow(iter(()), self.begin(run))

    def __call__(self, source: Iterable[Any] = ()) -> Iterator[Any]:
        """Return an iterator over the mix.

        Raises:
            UsageError: there is a source: a mix stands first in a pipeline.
        """
        if source != ():
            raise UsageError(f"{type(self).__name__} is a source: it stands first in a pipeline")
        return iter(self)

    __eq__ = object.__eq__  # a mix is itself: its datasets are not to be compared item by item
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.datasets)} sources{', longest=True' if self.longest else ''})"


class MixFlow:
    """A mix that is being read as a source of another mix.

    Args:
        mix: what is read.
        run: seed and epoch.
        state: what ``snapshot`` gave, or None.
    """

    def __init__(self, mix: Mixture, run: Run, state: JsonValue) -> None:
        self.mix = mix
        self.state = mix.begin(run)
        if state is not None:
            self.state.restore(state, _fetch_nothing)
        self.items = mix.flow(iter(()), self.state)

    def __iter__(self) -> Iterator[Any]:
        return self.items

    def snapshot(self) -> JsonValue:
        """Return the state after the item given last."""
        return self.state.snapshot()

    def trace(self) -> JsonValue:
        """Return how far the sources have been read."""
        return self.state.trace()

    def present_url(self) -> str:
        """Return the url of a shard that one of the sources reads."""
        return self.state.present_url()

    def address(self) -> Address:
        """Return the address of the item given last."""
        address: Address = self.state.address
        return address

    def fetch(self, addresses: list[Address]) -> list[object]:
        """Make items once more."""
        return self.mix.refetch(addresses, _fetch_nothing, self.state)

    def close(self) -> None:
        """Close all sources."""
        self.state.close()


def _fetch_nothing(addresses: list[Address]) -> list[object]:
    raise FlowError(f"nothing stands before a mix that could give {len(addresses)} items")


class RandomMix(Mixture):
    """Mix datasets by chance.

    Args:
        datasets: datasets or other iterables.
        probs: weight of each dataset, at least 0; all alike where it is None. They need not add up to 1.
        longest: drop a dataset that has ended and continue with the others; otherwise end with the first that ends.
        seed: seed of the draws of the first epoch, from which those of later epochs derive; a number is the seed of the
            run, too, for sources and stages that have none. None leaves it to the run (or, iterated alone, to Python's
            global generator).

    Raises:
        UsageError: not one weight for each dataset, a negative weight, no weight above 0, or a seed that is none.

    Flow: random order, each source in its own order; holds nothing; resumes exactly where its sources do.
    """

    state_name = "RandomMix"
    # its seed is that of a pipeline that begins with it
    seeds_run = True

    def __init__(
        self,
        datasets: Iterable[Any],
        probs: Sequence[float] | None = None,
        longest: bool = False,  # noqa: FBT001, FBT002  positional upstream
        seed: Seed | SupportsIndex = None,
    ) -> None:
        super().__init__(datasets, longest)
        try:
            self.probs = [1.0] * len(self.datasets) if probs is None else [float(weight) for weight in probs]
        except (TypeError, ValueError) as error:
            raise UsageError(f"weights {probs!r:.60} are no numbers: give one for each dataset, [0.7, 0.3]") from error
        self.seed = read_seed(seed)
        if len(self.probs) != len(self.datasets):
            raise UsageError(f"{len(self.probs)} weights for {len(self.datasets)} datasets: give one for each")
        if self.probs and (min(self.probs) < 0 or not sum(self.probs) > 0):
            raise UsageError(f"weights {self.probs} must not be negative, and at least one must be above 0")

    def begin(self, run: Run) -> MixState:
        """Return the sources and the generator of one run."""
        if self.seed is None:
            return MixState(self.datasets, run, randomness.run_rng(run, "mix"))
        if run.stream is not None:
            return MixState(self.datasets, run, randomness.run_rng(run, "mix", self.seed))  # type: ignore[arg-type]  # any seed has a text
        later = make_rng("mix", self.seed, run.epoch) if run.epoch else None  # type: ignore[arg-type]  # likewise
        return MixState(self.datasets, run, later or random.Random(self.seed))  # noqa: S311  not cryptography

    def _places(self, state: MixState) -> Iterator[int]:
        if state.rng is None:
            raise FlowError(f"{self!r} draws at random, and its state holds no generator")
        draw, live, last = state.rng.random, state.live, -1
        while live:
            if last != len(live) - 1:  # at the start, and when a source has ended
                weights = list(accumulate(self.probs[number] for number in live))
                total, last = weights[-1], len(live) - 1
            yield min(bisect(weights, draw() * total), last)


class RoundRobin(Mixture):
    """Mix datasets in turn.

    Args:
        datasets: datasets or other iterables.
        longest: drop a dataset that has ended and continue with the others; otherwise end with the first that ends.

    Flow: in turn, each source in its own order; holds nothing; resumes exactly where its sources do.
    """

    state_name = "RoundRobin"

    def __init__(self, datasets: Iterable[Any], longest: bool = False) -> None:  # noqa: FBT001, FBT002  positional upstream
        super().__init__(datasets, longest)

    def _places(self, state: MixState) -> Iterator[int]:
        live = state.live
        while live:
            place = state.turn
            if place >= len(live):
                place = 0
            state.turn = place + 1
            yield place

    def _end_source(self, state: MixState, place: int) -> None:
        super()._end_source(state, place)
        state.turn = place


_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 times the golden section
_MASK = (1 << 64) - 1


class EvenMix(RandomMix):
    """Mix datasets by weight, evenly: the realised shares follow the weights within about log(N) / N.

    Args:
        datasets: datasets or other iterables.
        probs: weight of each dataset, at least 0; all alike where it is None. They need not add up to 1.
        longest: drop a dataset that has ended and continue with the others; otherwise end with the first that ends.

    Raises:
        UsageError: not one weight for each dataset, a negative weight, or no weight above 0.

    Flow: in an order fixed by seed and epoch, each source in its own order; holds nothing; resumes exactly where its
    sources do.
    """

    state_name = "EvenMix"

    def __init__(self, datasets: Iterable[Any], probs: Sequence[float] | None = None, *, longest: bool = False) -> None:
        super().__init__(datasets, probs, longest)

    def begin(self, run: Run) -> MixState:
        """Return the sources of one run."""
        return MixState(self.datasets, run)

    def _places(self, state: MixState) -> Iterator[int]:
        start, live = state.run.random("evenly").getrandbits(64), state.live
        bounds: list[int] = []
        while live:
            if len(bounds) != len(live):  # at the start, and when a source has ended
                bounds = _interval_bounds([self.probs[number] for number in live])
                if bounds[-1] == 0:  # what is left has no weight, and never comes
                    return
            point = (start + state.turn * _GOLDEN) & _MASK
            state.turn += 1
            place = 0
            while point >= bounds[place]:
                place += 1
            yield place


def _interval_bounds(weights: list[float]) -> list[int]:
    """Return the upper ends of the intervals that belong to the weights, in 2**64ths."""
    sums = list(accumulate(weights))
    total = sums[-1]
    if not total > 0:
        return [0] * len(sums)
    ends = [int(part / total * (_MASK + 1)) for part in sums]
    last = max(number for number, weight in enumerate(weights) if weight > 0)
    return [end if number < last else _MASK + 1 for number, end in enumerate(ends)]


class Concat(Mixture):
    """Datasets one after the other.

    Args:
        datasets: datasets or other iterables.

    Flow: each source in its own order; holds nothing; resumes exactly where its sources do.
    """

    state_name = "Concat"
    reorders = False

    def __init__(self, datasets: Iterable[Any]) -> None:
        super().__init__(datasets, True)

    def _places(self, state: MixState) -> Iterator[int]:
        while state.live:
            yield 0


def random_samples(
    sources: Sequence[Iterable[Item]],
    probs: Sequence[float] | None = None,
    longest: bool = False,  # noqa: FBT001, FBT002  upstream's signature
) -> Iterator[Item]:
    """Yield items of randomly chosen sources.

    Args:
        sources: iterables.
        probs: how likely each is; None for all alike.
        longest: continue until all have ended; otherwise end with the first that ends.

    Yields:
        Items.

    Raises:
        UsageError: probabilities that fit no source, or are all zero.
    """
    return iter(RandomMix(sources, probs, longest))


def round_robin_shortest(*sources: Iterable[Item]) -> Iterator[Item]:
    """Yield one item of each source in turn, up to the first that has ended.

    Args:
        *sources: iterables.

    Yields:
        Items.
    """
    return iter(RoundRobin(sources))


def round_robin_longest(*sources: Iterable[Item]) -> Iterator[Item]:
    """Yield one item of each source in turn, until all have ended.

    Args:
        *sources: iterables.

    Yields:
        Items.
    """
    return iter(RoundRobin(sources, longest=True))
