"""RandomMix and RoundRobin."""

import pickle
import random
from collections import Counter

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import FlowError, StateMismatch, UsageError
from webdataset.flow.pipeline import DataPipeline
from webdataset.stages.base import Run
from webdataset.stages.mix import RandomMix, RoundRobin
from webdataset.stages.mix_sources import NumberedFlow, start_source
from webdataset.stages.shuffle import shuffle


def test_round_robin_takes_turns():
    """Ends with the first that ends, or drops it."""
    assert list(RoundRobin([[1, 1, 1], [2], [3, 3]])) == [1, 2, 3, 1]
    assert list(RoundRobin([[1, 1, 1], [2], [3, 3]], longest=True)) == [1, 2, 3, 1, 3, 1]
    assert list(RoundRobin([])) == []


def test_random_mix_keeps_each_sources_order():
    """And with longest every item of every source."""
    items = list(RandomMix(["abcdef", range(100)], longest=True))
    assert Counter(items) == Counter([*"abcdef", *range(100)])
    assert [item for item in items if isinstance(item, str)] == list("abcdef")
    assert [item for item in items if isinstance(item, int)] == list(range(100))


def test_random_mix_follows_the_weights():
    """They need not add up to 1."""
    drawn = Counter(RandomMix([["a"] * 5000, ["b"] * 5000, ["c"] * 5000], [3, 1, 0]))
    assert drawn["c"] == 0
    assert 2.5 < drawn["a"] / drawn["b"] < 3.6


def test_a_seed_fixes_the_draws_of_every_epoch():
    """Another order in each, the same in each program."""

    def epochs():
        mix = RandomMix([range(20), range(100, 120)], longest=True, seed=4)
        return [list(mix), list(mix)]

    first = epochs()
    assert first == epochs()
    assert first[0] != first[1]


def test_a_bare_mix_follows_the_global_generator():
    """As upstream's does, if not number for number."""

    def drawn():
        random.seed(8)
        return list(RandomMix([range(20), range(100, 120)]))

    assert drawn() == drawn()


def test_in_a_pipeline_the_run_decides():
    """Its seed and epoch."""

    def epochs(seed):
        pipeline = DataPipeline(RandomMix([range(20), range(100, 120)], longest=True))
        pipeline.seed = seed
        return [list(pipeline), list(pipeline)]

    assert epochs(1) == epochs(1)
    assert epochs(1)[0] != epochs(1)[1]
    assert epochs(1)[0] != epochs(2)[0]


def test_sources_follow_the_runs_epoch():
    """A shuffling pipeline within a mix has another order in each epoch."""
    inner = DataPipeline(lambda: iter(range(30)), shuffle(30, initial=30))
    mix = RandomMix([inner], seed=1)
    first, second = list(mix), list(mix)
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second


def test_a_sources_own_seed_is_kept():
    """Whoever seeds a dataset gets its order, in a mix too."""
    inner = DataPipeline(lambda: iter(range(30)), shuffle(30, initial=30))
    inner.seed = 3
    assert list(RandomMix([inner])) == list(RoundRobin([inner]))


@pytest.mark.parametrize("probs", [[1], [1, 1, 1], [-1, 2], [0, 0]])
def test_weights_are_checked(probs):
    """One for each source, none negative, one above 0."""
    with pytest.raises(UsageError, match="weights"):
        RandomMix([[1], [2]], probs)


def test_a_mix_is_a_source():
    """It stands first; a mix called with a source says so."""
    mix = RoundRobin([[1], [2]])
    assert list(mix()) == [1, 2]
    with pytest.raises(UsageError, match="first"):
        mix([1])


def test_a_mix_is_itself():
    """It can be hashed, and is not compared item by item."""
    mix = RoundRobin([[1]])
    assert mix in {mix}
    assert mix != RoundRobin([[1]])
    assert list(pickle.loads(pickle.dumps(mix))) == [1]
    assert repr(RandomMix([[1], [2]], longest=True)) == "RandomMix(2 sources, longest=True)"


def test_all_sources_are_closed():
    """When the mix is broken off, and when it ends with the first."""
    closed = []

    class Source:
        def __init__(self, name):
            self.name = name

        def __iter__(self):
            try:
                yield from range(3)
            finally:
                closed.append(self.name)

    flow = iter(RoundRobin([Source("a"), Source("b")]))
    next(flow), next(flow)
    flow.close()
    assert sorted(closed) == ["a", "b"]
    closed.clear()
    list(RoundRobin([Source("a"), Source("b"), []]))
    assert sorted(closed) == ["a", "b"]


@pytest.mark.torch
def test_a_mix_is_an_iterable_dataset():
    """So that a DataLoader takes it."""
    torch = pytest.importorskip("torch")
    mix = RoundRobin([[1, 2], [3, 4]])
    assert isinstance(mix, torch.utils.data.IterableDataset)
    assert list(torch.utils.data.DataLoader(mix, batch_size=None)) == [1, 3, 2, 4]


def test_a_snapshot_of_more_sources_is_refused():
    """It belongs to another mix."""
    memory = RoundRobin([[1], [2], [3]]).begin(Run(tracked=True))
    with pytest.raises(StateMismatch, match="1 that are here"):
        RoundRobin([[1]]).begin(Run()).restore(memory.snapshot(), list)


def test_items_are_made_again_in_their_run_only():
    """Without the run's memory the sources are unknown."""
    with pytest.raises(FlowError, match="its own run"):
        RoundRobin([[1]]).refetch([[0, 0]], list)


def test_numbered_sources_must_come_again():
    """A source that is shorter than it was cannot be resumed, and says so."""
    short = NumberedFlow(iter(range(3)), 5)
    with pytest.raises(FlowError, match="only 3 of 5"):
        next(iter(short))
    with pytest.raises(FlowError, match="fewer"):
        NumberedFlow(iter(range(3))).fetch([7])


def test_start_alone_does_not_make_a_dataset_startable():
    """Ranges have a start, and so have threads."""

    class Loader:
        def start(self):
            raise AssertionError("not to be called")

        def __iter__(self):
            return iter("ab")

    assert list(start_source(Loader(), Run(), 0)) == ["a", "b"]
    assert list(RoundRobin([range(2), Loader()])) == [0, "a", 1, "b"]


def test_mixes_are_chainable_as_datasets_are(tmp_path):
    """Stages, epochs, lengths, repetition and resuming: the methods of a dataset; the mix itself is not changed."""
    for mix in (
        wds.RandomMix([range(6), range(10, 16)], longest=True, seed=1),
        wds.RoundRobin([range(6), range(10, 16)]),
    ):
        assert sorted(mix.map(lambda number: -number)) == sorted(-number for number in [*range(6), *range(10, 16)])
        assert [len(batch) for batch in mix.select(lambda number: number % 2).batched(4)] == [4, 2]
        assert len(list(mix.with_epoch(50))) == 50
        assert len(list(mix.repeat(3))) == 36
        assert len(mix.with_length(12)) == 12
        elastic = mix.shuffle(5).elastic(4)
        run = iter(elastic)
        given = [next(run) for _ in range(5)]
        elastic.load_state_dict(run.state_dict())
        assert sorted(given + list(elastic)) == [*range(6), *range(10, 16)]
        assert sorted(mix) == [*range(6), *range(10, 16)]
        assert isinstance(mix, wds.FluidInterface)
        assert pickle.loads(pickle.dumps(mix)).longest == mix.longest
    methods = {
        name for name in dir(wds.WebDataset) if not name.startswith("_") and callable(getattr(wds.WebDataset, name))
    }
    own = {
        "adopt",
        "append",
        "close",
        "explain",
        "invoke",
        "iterator",
        "iterator1",
        "resumes",
        "set_epoch",
        "stage",
        "timed",
    }
    assert {name for name in methods - own if not hasattr(wds.RandomMix, name)} <= {
        "start",
        "equal_epochs",
    }


@pytest.mark.parametrize("nested", [False, True])
def test_a_replay_that_fails_names_the_shard_of_a_source(tmp_path, nested):
    """A stage without a state is replayed; of a mix, and of a mix within it, the shard that changed is named."""
    name = str(tmp_path / "a.tar")

    def write(count):
        with wds.TarWriter(name) as sink:
            for index in range(count):
                sink.write({"__key__": f"{index}", "txt": str(index)})

    def make():
        mix = RoundRobin([wds.WebDataset(name, shardshuffle=False, empty_check=False)])
        return DataPipeline(RoundRobin([mix]) if nested else mix, lambda items: (item["__key__"] for item in items))

    write(9)
    run = make().start()
    assert [next(run) for _ in range(7)] == [str(index) for index in range(7)]
    state = run.snapshot()
    run.close()
    assert list(make().start(state=state)) == ["7", "8"]
    write(3)
    with pytest.raises(StateMismatch) as refusal:
        list(make().start(state=state))
    assert refusal.value.url == name


def shuffled(first):
    """Return a source without a seed of its own."""
    return wds.DataPipeline([list(range(first, first + 40))], wds.shuffle(20))


SEEDED_MIXES = {
    "bare": lambda mix: mix,
    "with a stage": lambda mix: mix.shuffle(10),
    "passes": lambda mix: mix.repeat(2),
    "epochs": lambda mix: mix.with_epoch(100),
    "length": lambda mix: mix.with_length(80),
    "streams": lambda mix: mix.elastic(4),
    "pipeline": lambda mix: wds.DataPipeline(mix, wds.shuffle(10)),
    "wrapper": lambda mix: wds.FluidWrapper(mix).shuffle(10),
    "loader": lambda mix: wds.Loader(mix, None),
    "mix of mixes": lambda mix: wds.RandomMix([mix, shuffled(100)], seed=3, longest=True).shuffle(10),
}


@pytest.mark.parametrize("way", SEEDED_MIXES)
def test_the_seed_of_a_mix_is_that_of_the_run(way):
    """Sources and stages without a seed draw from it: the same order each time, another for another seed and epoch."""

    def made(seed):
        return SEEDED_MIXES[way](wds.RandomMix([shuffled(0), shuffled(50)], longest=True, seed=seed))

    dataset = made(np.int64(5))
    order, later = list(dataset), list(dataset)
    assert order == list(made(5))
    assert len({str(order), str(later), str(list(made(6)))}) == 3
    assert getattr(dataset, "seed", 5) in (5, 3)


def test_a_pipeline_keeps_the_seed_that_it_has():
    """A seed that was set counts, whatever the mix has; a text is a seed of the draws alone."""
    dataset = wds.RandomMix([range(3)], seed=5).elastic(2)
    dataset.seed = 7
    assert dataset.map(str).seed == 7
    assert wds.RandomMix([range(3)], seed="night").elastic(2).seed is None
    with pytest.raises(UsageError, match="seed="):
        wds.RandomMix([range(3)], seed=[5])  # type: ignore[arg-type]
