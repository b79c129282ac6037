"""Selects samples: by a predicate, at random, or by position.

Samples pass unchanged and in order. The state of a random selection is its generator, that of a slice the number of
samples it gave.
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from operator import index
from random import Random

from webdataset.core.distributed import StreamNumber
from webdataset.core.errors import UsageError
from webdataset.core.json_types import JsonValue, as_count
from webdataset.core.seeds import CounterRng
from webdataset.stages import argument_checks, randomness
from webdataset.stages.base import (
    Fetch,
    Item,
    ObservingFunction,
    Outcome,
    PassThroughStage,
    PassThroughState,
    Run,
    StageState,
    observation,
    with_blame,
)


def _select(source: Iterator[Item], predicate: Callable[[Item], object]) -> Iterator[Item]:
    """Let those samples pass for which a predicate is true.

    Args:
        source: samples of any type.
        predicate: from a sample to anything that is true or false.

    Yields:
        The samples that pass.

    Raises:
        Exception: whatever the predicate raises; stage, function, key and url are noted on it.

    Flow: in order; holds nothing; resumes exactly.
    """
    return _select_with_outcome(source, predicate)


def _select_with_outcome(
    source: Iterator[Item], predicate: Callable[[Item], object], *, outcome: Outcome | None = None
) -> Iterator[Item]:
    """Do what ``_select`` does, and say whether a sample has passed."""
    outcome, gave = outcome or Outcome(), False
    for sample in source:
        try:
            passes = predicate(sample)
        except Exception as exn:  # user code: blamed, then raised
            with_blame(exn, "select", sample, predicate)
            raise
        if passes:
            if not gave:
                gave = outcome.gave = True
            yield sample
        elif not gave:
            outcome.dropped += 1
    outcome.ended = True


class Select(ObservingFunction):
    """A predicate that says which samples pass; see :func:`select`."""

    drops = True
    name = "select"

    @property
    def function(self) -> object:
        """The user's predicate."""
        return self.args[0] if self.args else self.kw.get("predicate")

    def flow(self, upstream: Iterator[Item], state: StageState | None) -> Iterator[Item]:
        """Yield the samples that pass."""
        return _select_with_outcome(upstream, *self.args, **self.kw, outcome=None if state is None else state.outcome)


def _check_predicate(predicate: object) -> None:
    """Raise UsageError where a predicate is no function; the name of a field is what is given most."""
    named = predicate if isinstance(predicate, str) and predicate else "jpg"
    argument_checks.make_function_check(
        "select takes a function of a sample that says whether to keep it",
        f"select(lambda sample: {named!r} in sample)",
    )(predicate)


select = observation(_select, Select, state_name="_select", predicate=_check_predicate)


class RsampleState(PassThroughState):
    """What a chance selection remembers: its generator."""

    def __init__(self, rng: Random | CounterRng) -> None:
        self.rng = rng

    def snapshot(self) -> JsonValue:
        """Return the state of the generator."""
        return randomness.rng_state(self.rng)

    def restore(self, state: JsonValue, fetch: Fetch) -> None:  # noqa: ARG002
        """Set the generator."""
        randomness.restore_rng(self.rng, state)


class Rsample(PassThroughStage):
    """Samples that pass by chance."""

    state_name = "Rsample"

    def __init__(self, p: float) -> None:
        self.p = p

    def begin(self, run: Run) -> RsampleState:
        """Return the generator of this run."""
        return RsampleState(run.random() if run.stream is None else randomness.run_rng(run))

    def flow(self, upstream: Iterator[Item], state: RsampleState) -> Iterator[Item]:
        """Yield a random part of the samples."""
        p, draw = self.p, state.rng.random
        for sample in upstream:
            if draw() < p:
                yield sample

    def __repr__(self) -> str:
        return f"rsample({self.p!r})"


def rsample(p: float = 0.5) -> Rsample:
    """Let each sample pass with probability ``p``; the run's seed and epoch decide which.

    Args:
        p: probability in [0, 1].

    Returns:
        A stage.

    Raises:
        UsageError: ``p`` is no probability.

    Flow: in order; holds nothing; resumes exactly.
    """
    try:
        if 0 <= p <= 1:
            return Rsample(p)
    except TypeError:
        # no number
        pass
    raise UsageError(f"rsample({p!r:.60}): the probability with which a sample is kept is from 0 to 1")


def _rsample(data: Iterator[Item], p: float = 0.5) -> Iterator[Item]:
    """Yield a random part of ``data``; the plain function of :func:`rsample`."""
    return Rsample(p)(data)


class SliceState(PassThroughState):
    """What a slice remembers: how many samples it gave."""

    count = 0

    def snapshot(self) -> JsonValue:
        """Return the number of samples given."""
        return self.count

    def restore(self, state: JsonValue, fetch: Fetch) -> None:  # noqa: ARG002
        """Continue after this many."""
        self.count = as_count(state)


class Slice(PassThroughStage):
    """Samples by position, as ``itertools.islice`` gives them."""

    state_name = "Slice"

    def __init__(self, *args: int | None) -> None:
        try:
            # the check of arguments is its own
            islice((), *args)
        except ValueError as error:
            shown = ", ".join(map(repr, args))
            raise UsageError(
                f"slice({shown:.60}): positions are whole numbers from 0, or None, and the step is at least 1: "
                "slice(stop), slice(start, stop) or slice(start, stop, step)"
            ) from error
        self.args = tuple(None if bound is None else index(bound) for bound in args)

    def begin(self, run: Run) -> SliceState:  # noqa: ARG002
        """Return a count of zero."""
        return SliceState()

    def flow(self, upstream: Iterator[Item], state: SliceState) -> Iterator[Item]:
        """Yield the samples of the slice."""
        rest = islice(upstream, *(_remaining_slice(state.count, *self._bounds()) if state.count else self.args))
        return rest if state.origin is None else _count_given_samples(rest, state)

    def for_stream(self, stream: StreamNumber) -> "Slice":
        """Return the slice of one stream: its n-th sample has the position ``n * streams + number`` among all."""
        number, count = stream
        start, stop, step = self._bounds()
        first = max(-(-(start - number) // count), 0)
        found = next((n for n in range(first, first + step) if (n * count + number - start) % step == 0), None)
        if found is None:
            return Slice(0)
        end = None if stop is None else max(-(-(stop - number) // count), 0)
        return Slice(found, end, step // math.gcd(step, count))

    def _bounds(self) -> tuple[int, int | None, int]:
        start, stop, step = (0, *self.args, 1) if len(self.args) == 1 else (*self.args, 1)[:3]
        return start or 0, stop, step or 1

    def __repr__(self) -> str:
        return f"slice({', '.join(map(repr, self.args))})"


def _remaining_slice(given: int, start: int, stop: int | None, step: int) -> tuple[int, int | None, int]:
    """Return the slice of what is left of the input after ``given`` samples of ``start:stop:step`` were taken."""
    used = start + (given - 1) * step + 1
    left = None if stop is None else max(stop - used, 0)
    return step - 1 if left is None else min(step - 1, left), left, step


def _count_given_samples(samples: Iterator[Item], state: SliceState) -> Iterator[Item]:
    for sample in samples:
        state.count += 1
        yield sample


def slice(*args: int | None) -> Slice:  # noqa: A001  upstream's name
    """Take samples by position, as ``itertools.islice`` does.

    Args:
        *args: stop; or start, stop; or start, stop, step. None means to the end.

    Returns:
        A stage.

    Raises:
        UsageError: negative positions, a step below 1, or something that is no number.
        TypeError: no arguments, or more than three.

    Flow: in order; holds nothing; resumes exactly.
    """
    return Slice(*args)
