"""Properties of stages, for any input, size and seed."""

import json
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from webdataset import filters
from webdataset.flow.run import Flow
from webdataset.stages.base import Run
from webdataset.stages.mix import RandomMix, RoundRobin
from webdataset.stages.randomness import restore_rng, rng_state

sizes = st.integers(1, 12)
seeds = st.integers(0, 2**64 - 1)
lengths = st.integers(0, 40)


@given(lengths, st.integers(-2, 50), st.integers(-2, 50), seeds)
def test_a_shuffle_is_a_permutation(length, bufsize, initial, seed):
    """Nothing is lost and nothing repeated."""
    shuffled = list(filters.shuffle(bufsize, initial, seed=seed)(range(length)))
    assert sorted(shuffled) == list(range(length))


@given(lengths, st.integers(1, 20), seeds)
def test_a_shuffle_gives_nothing_long_before_its_turn(length, bufsize, seed):
    """Whatever comes out as the k-th was read by then: at most bufsize items wait."""
    for place, value in enumerate(filters.shuffle(bufsize, seed=seed)(range(length))):
        assert value <= place + bufsize


@given(st.lists(st.tuples(st.integers(-(2**40), 2**40), st.text(max_size=3))), sizes)
def test_unbatched_reverses_batched(samples, size):
    """Values, order and number."""
    back = list(filters.unbatched()(filters.batched(size)(samples)))
    assert [(int(number), text) for number, text in back] == samples


@given(st.lists(st.fixed_dictionaries({"a": st.floats(allow_nan=False), "b": st.binary(max_size=3)})), sizes)
def test_unbatched_reverses_batched_dictionaries(samples, size):
    """All fields."""
    assert list(filters.unbatched()(filters.batched(size)(samples))) == samples


@given(st.lists(st.integers()), sizes, st.booleans())
def test_listed_cuts_without_loss(values, size, partial):
    """Full lists, and the rest in the last one if it is wanted."""
    lists = list(filters.listed(size, partial)(values))
    whole = len(values) if partial else len(values) // size * size
    assert list(filters.unlisted()(lists)) == values[:whole]
    assert all(len(part) == size for part in lists[:-1])


@given(st.lists(lengths, max_size=5), seeds)
def test_mixes_to_the_end_lose_nothing(source_lengths, seed):
    """Every item of every source once, each source in its order."""
    sources = [[(number, n) for n in range(length)] for number, length in enumerate(source_lengths)]
    for mix in (RandomMix(sources, longest=True, seed=seed), RoundRobin(sources, longest=True)):
        items = list(mix)
        assert [[item for item in items if item[0] == number] for number in range(len(sources))] == sources


def stages():
    """Any few stages behind one another that fit together."""
    steps = [
        st.builds(filters.shuffle, st.integers(0, 9), st.integers(0, 9)),
        st.builds(filters.rsample, st.floats(0, 1)),
        st.builds(filters.slice, st.integers(0, 3), st.integers(4, 40), st.integers(1, 3)),
        st.just(filters.map(lambda value: value)),
        st.just(filters.select(lambda value: repr(value)[-2] in "0123456")),
        st.builds(lambda size: [filters.listed(size), filters.unlisted()], sizes),
        st.builds(lambda size: [filters.listed(size), filters.shuffle(3), filters.unlisted()], sizes),
        st.just(filters.compose(filters.map(lambda value: [value]), filters.unlisted())),
    ]
    return st.lists(st.one_of(steps), max_size=4).map(
        lambda parts: [stage for part in parts for stage in (part if isinstance(part, list) else [part])]
    )


@given(stages(), lengths, seeds, st.data())
def test_any_chain_continues_behind_any_output(chain, length, seed, data):
    """Through JSON, the restored run gives exactly what the uninterrupted one would have."""
    source = [f"item {n}" for n in range(length)]
    with Flow([source, *chain], Run(seed=seed, tracked=True)) as flow:
        whole = list(flow)
    given_so_far = data.draw(st.integers(0, len(whole)))
    with Flow([source, *chain], Run(seed=seed, tracked=True)) as flow:
        items = iter(flow)
        first = [next(items) for _ in range(given_so_far)]
        state = json.loads(json.dumps(flow.snapshot()))
    with Flow([source, *chain], Run(), state) as flow:
        assert first + list(flow) == whole


@given(st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=1))
def test_collation_is_numpys(samples):
    """Columns of numbers are the columns of the matrix."""
    columns = filters.default_collation_fn(samples)
    assert np.array_equal(np.stack(columns, 1), np.array(samples))


@given(seeds, st.integers(0, 700))
def test_generators_continue_from_their_states(seed, used):
    """Any state, however far in."""
    rng, other = random.Random(seed), random.Random(0)
    for _ in range(used):
        rng.random()
    restore_rng(other, json.loads(json.dumps(rng_state(rng))))
    assert [rng.random() for _ in range(5)] == [other.random() for _ in range(5)]
