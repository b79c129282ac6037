"""Properties of the orders of this library: permutations, bounded memory, exact continuation, whatever the numbers."""

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from webdataset import filters
from webdataset.core.seeds import CounterRng
from webdataset.flow.run import Flow
from webdataset.stages.base import Run
from webdataset.stages.open_shards import OpenShards
from webdataset.stages.read_shards import ReadShards

seeds = st.integers(0, 2**64 - 1)
lengths = st.integers(0, 60)


class Numbers(ReadShards):
    """A reader of shards that hold numbers, which counts how many shards it has open."""

    def __init__(self):
        super().__init__()
        self.open = []

    def flow(self, upstream, state):
        for shard in upstream:
            number, size = shard["url"]
            yield from ((number, ordinal) for ordinal in range(size))


def shuffles():
    """Any shuffle of this library."""
    sizes = st.integers(1, 30)
    return st.one_of(
        st.builds(filters.shuffle, sizes, st.integers(0, 30)),
        st.builds(lambda size, most: filters.shuffle(size, max_bytes=most), sizes, st.integers(1, 200)),
        st.builds(filters.block_shuffle, sizes),
        st.builds(lambda size, seed: filters.block_shuffle(size, seed=seed), sizes, seeds),
        st.builds(lambda size, seed: filters.shuffle(size, seed=seed), sizes, seeds),
        st.builds(lambda size, seed: filters.detshuffle(size, seed=seed), sizes, st.integers(0, 2**31)),
    )


def under(stage, items, **run):
    """What a run gives."""
    run = Run(**run)
    return list(stage.flow(iter(items), stage.begin(run)))


@given(shuffles(), lengths, seeds, st.integers(0, 5))
def test_every_shuffle_is_a_permutation_that_seed_and_epoch_decide(stage, length, seed, epoch):
    """Each item exactly once; the same again in an equal run."""
    items = [b"x" * (n % 50) + str(n).encode() for n in range(length)]
    order = under(stage, items, seed=seed, epoch=epoch)
    assert sorted(order) == sorted(items)
    assert order == under(stage, items, seed=seed, epoch=epoch)


@given(shuffles(), lengths, seeds)
def test_no_shuffle_holds_more_than_it_says(stage, length, seed):
    """What was read and not given: at most the buffer, and at most its bytes besides the newest sample."""
    size = getattr(stage, "bufsize", None) or stage.size
    most = getattr(stage, "max_bytes", None)
    waiting = {}

    def source():
        for n in range(length):
            waiting[n] = n % 40 + 1
            yield b"x" * waiting[n] + str(n).encode()

    for item in stage.flow(source(), stage.begin(Run(seed=seed))):
        del waiting[int(item.lstrip(b"x"))]
        assert len(waiting) <= size
        if most is not None:
            assert sum(waiting.values()) <= most + max(waiting.values(), default=0)
    assert not waiting


@settings(max_examples=60)
@given(shuffles(), st.integers(0, 25), seeds)
def test_every_shuffle_continues_behind_every_output(stage, length, seed):
    """Through JSON, at every step."""
    items = [f"{'x' * (n % 30)}{n}" for n in range(length)]
    with Flow([items, stage], Run(seed=seed, tracked=True)) as flow:
        whole, states = [], [flow.snapshot()]
        for item in flow:
            whole.append(item)
            states.append(flow.snapshot())
    assert whole == under(stage, items, seed=seed, position=1)
    for number, state in enumerate(states):
        with Flow([items, stage], Run(), json.loads(json.dumps(state))) as flow:
            assert list(flow) == whole[number:]


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 5))
def test_shards_side_by_side_lose_nothing(sizes, count):
    """Every sample once, those of one shard in order, and as evenly as the shards allow."""
    shards = [{"url": (number, size)} for number, size in enumerate(sizes)]
    found = under(OpenShards(Numbers(), count), shards) if count > 1 else under(Numbers(), shards)
    assert sorted(found) == [(number, n) for number, size in enumerate(sizes) for n in range(size)]
    for number, size in enumerate(sizes):
        assert [n for shard, n in found if shard == number] == list(range(size))
    begun = [number for number, n in found if n == 0]
    ended = {number: place for place, (number, n) in enumerate(found) if n == sizes[number] - 1}
    for place, (number, n) in enumerate(found):
        if n == 0:
            still = [other for other in begun[: begun.index(number)] if ended[other] > place]
            assert len(still) < count


@given(seeds, st.integers(0, 5000), st.integers(1, 50))
def test_draws_continue_from_any_position(key, position, count):
    """One number is the whole state."""
    draws = CounterRng(key, position)
    words = [draws.word() for _ in range(count)]
    assert draws.position == position + count
    again = CounterRng(key)
    again.position = position
    assert [again.word() for _ in range(count)] == words


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), seeds)
def test_draws_of_samples_do_not_depend_on_the_order(sizes, seed):
    """Whatever comes before, a sample draws what it draws."""
    samples = [
        {"__key__": f"{shard}-{n}", "__url__": f"s-{shard}"} for shard, size in enumerate(sizes) for n in range(size)
    ]
    stage = filters.map_with_rng(lambda sample, generator: (sample["__key__"], generator.random()))
    shuffled = samples.copy()
    random.Random(seed).shuffle(shuffled)
    first = dict(under(stage, samples, seed=seed))
    assert dict(under(stage, shuffled[: len(shuffled) // 2 + 1], seed=seed)).items() <= first.items()
