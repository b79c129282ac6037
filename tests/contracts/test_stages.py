"""Every stage keeps the contract of stages: repr, pickle, early close, snapshots after every output."""

import random
from typing import Any

import numpy as np
import pytest

from webdataset import filters
from webdataset.core.error_handlers import ignore_and_continue
from webdataset.flow.pipeline import DataPipeline
from webdataset.stages.base import PassThroughState, Stage
from webdataset.stages.mix import RandomMix, RoundRobin
from webdataset.testing.stages import BrokenContract, Samples, check_resume, check_stage

NUMBERS = list(range(17))
SAMPLES = [{"__key__": f"k{n}", "a": n, "b": f"text {n}"} for n in range(13)]
ENCODED = [{"__key__": f"k{n}", "cls": str(n).encode(), "txt": b"text"} for n in range(13)]
PAIRS = [(n, np.full(3, n)) for n in range(11)]
BATCHES = [(list(range(n, n + 3)), ["x"] * 3) for n in range(6)]


def double(value):
    """Twice the value."""
    return value * 2


def odd_only(value):
    """The value, or None where it is even."""
    return value if value % 2 else None


def drawn(sample, generator):
    """The sample with a draw."""
    return {**sample, "drawn": generator.random()}


def is_odd(value):
    """Tell whether it is odd."""
    return value % 2 == 1


def inverse(value):
    """Fails at 0."""
    return 1 / value


def read(stream):
    """The bytes of a stream."""
    return stream.read()


def about(key):
    """A field made of the key."""
    return {"about": key}


STAGES: dict[str, Any] = {
    "map": (lambda: filters.map(double), NUMBERS),
    "map dropping": (lambda: filters.map(odd_only), NUMBERS),
    "map with handler": (lambda: filters.map(inverse, handler=ignore_and_continue), NUMBERS),
    "map_dict": (lambda: filters.map_dict(a=double), SAMPLES),
    "map_tuple": (lambda: filters.map_tuple(double, None), PAIRS),
    "select": (lambda: filters.select(is_odd), NUMBERS),
    "rsample": (lambda: filters.rsample(0.5), NUMBERS),
    "slice stop": (lambda: filters.slice(7), NUMBERS),
    "slice step": (lambda: filters.slice(2, None, 3), NUMBERS),
    "slice all": (lambda: filters.slice(1, 15, 4), NUMBERS),
    "to_tuple": (lambda: filters.to_tuple("a", "b;c"), SAMPLES),
    "rename": (lambda: filters.rename(x="a", y="a;b"), SAMPLES),
    "rename_keys": (lambda: filters.rename_keys(x="a*", keep_unselected=True), SAMPLES),
    "extract_keys": (lambda: filters.extract_keys("*.a", "b"), SAMPLES),
    "associate": (lambda: filters.associate(about), SAMPLES),
    "decode": (lambda: filters.decode(), ENCODED),
    "xdecode": (lambda: filters.xdecode(cls=read), ENCODED),
    "batched": (lambda: filters.batched(4), PAIRS),
    "batched whole": (lambda: filters.batched(4, partial=False), PAIRS),
    "batched dicts": (lambda: filters.batched(3), SAMPLES),
    "listed": (lambda: filters.listed(5), NUMBERS),
    "unbatched": (lambda: filters.unbatched(), BATCHES),
    "unlisted": (lambda: filters.unlisted(), [[1, 2, 3], [4], [], [5, 6]]),
    "shuffle": (lambda: filters.shuffle(6, initial=3), NUMBERS),
    "shuffle seeded": (lambda: filters.shuffle(4, seed=3), NUMBERS),
    "shuffle larger than the data": (lambda: filters.shuffle(100), NUMBERS),
    "shuffle nothing": (lambda: filters.shuffle(0), NUMBERS),
    "detshuffle": (lambda: filters.detshuffle(5, 2, 7), NUMBERS),
    "shuffle with a bound in bytes": (lambda: filters.shuffle(6, initial=3, max_bytes=40), NUMBERS),
    "block_shuffle": (lambda: filters.block_shuffle(6), NUMBERS),
    "block_shuffle seeded": (lambda: filters.block_shuffle(4, seed=3), NUMBERS),
    "map_with_rng": (lambda: filters.map_with_rng(drawn), SAMPLES),
    "info": (lambda: filters.info(n=0), NUMBERS),
    "log_keys": (lambda: filters.log_keys(), SAMPLES),
    "compose": (lambda: filters.compose(filters.map(double), filters.map(odd_only)), NUMBERS),
    "compose opaque": (lambda: filters.compose(filters.map(double), filters.listed(2)), NUMBERS),
    "Cached": (lambda: filters.Cached(), NUMBERS),
}


@pytest.mark.parametrize("name", STAGES)
def test_stages_keep_the_contract(name):
    """Repr, pickle, early close, and exact continuation after every output, alone and before a shuffle."""
    make, samples = STAGES[name]
    check_stage(make(), samples)


def test_a_shuffle_with_a_generator_of_the_callers_resumes():
    """The state of a generator that was given is part of the snapshot."""
    check_resume(lambda: [Samples(NUMBERS), filters.shuffle(5, rng=random.Random(4))])


def squares():
    """A foreign source."""
    return (n * n for n in range(9))


MIXES = {
    "random": lambda: RandomMix([NUMBERS, "abcdefgh", range(100, 109)]),
    "random longest": lambda: RandomMix([NUMBERS, [], "abc", range(100, 109)], [3, 1, 1, 2], longest=True),
    "random seeded": lambda: RandomMix([NUMBERS, "abcdefgh"], seed=5),
    "round robin": lambda: RoundRobin([NUMBERS, "abcdefgh", range(100, 109)]),
    "round robin longest": lambda: RoundRobin([NUMBERS, "ab", Samples(range(100, 109))], longest=True),
    "mix of pipelines": lambda: RandomMix(
        [DataPipeline(squares, filters.shuffle(4)), DataPipeline(Samples(NUMBERS), filters.map(double))], longest=True
    ),
    "mix of mixes": lambda: RoundRobin([RandomMix([NUMBERS, "abcdef"]), RoundRobin(["uvw", "xyz"])], longest=True),
}


@pytest.mark.parametrize("name", MIXES)
def test_mixes_resume_exactly(name):
    """A mix continues after every output, by itself and before a shuffle that holds its items."""
    check_resume(lambda: [MIXES[name]()])
    check_resume(lambda: [MIXES[name](), filters.shuffle(5, initial=3), filters.listed(2)])


def test_the_contract_tells_stages_that_break_it():
    """A stage whose outputs depend on more than its input and the run's seed is found out."""
    drawn = iter(range(10**6))
    with pytest.raises(BrokenContract):
        check_stage(filters.map(lambda value: (value, next(drawn))), NUMBERS, travels=False)


def test_the_contract_tells_parts_that_are_not_the_snapshot():
    """A state whose two parts say something else than its snapshot is found out."""

    class Forgetful(PassThroughState):
        def snapshot(self):
            return [1, 2]

        def split_snapshot(self):
            return [[1], [3]]

    class Passing(Stage):
        transparent = True

        def begin(self, run):
            return Forgetful()

        def flow(self, upstream, state):
            yield from upstream

        def __repr__(self):
            return "Passing()"

    with pytest.raises(BrokenContract, match="parts"):
        check_stage(Passing(), NUMBERS, travels=False)
    Forgetful.split_snapshot = lambda self: [[1], [2]]
    check_stage(Passing(), NUMBERS, travels=False)


def test_the_contract_tells_sources_left_open():
    """A stage that holds on to its upstream is found out."""
    kept = []

    class Holding(filters.PipelineStage):
        def run(self, source):
            kept.append(source)
            return iter([next(source)])

        def __repr__(self):
            return "Holding()"

    with pytest.raises(BrokenContract):
        check_stage(filters.map(lambda value, seen=[]: seen.append(value) or len(seen)), NUMBERS, travels=False)  # type: ignore[misc]
    check_stage(Holding(), NUMBERS, travels=False)
    assert kept
