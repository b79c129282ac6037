"""The whole grid of ranks {1, 2, 3, 4, 8} and workers {0, 1, 2, 4}, from each to each, over mixes."""

import functools
import itertools
import json

import pytest

import webdataset as wds
from webdataset.core.distributed import WorkerContext

RANKS, WORKERS, STREAMS, BATCH = (1, 2, 3, 4, 8), (0, 1, 2, 4), 24, 24
GRID = list(itertools.product(RANKS, WORKERS))


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Five shards of unequal size."""
    folder = tmp_path_factory.mktemp("grid")
    for number in range(5):
        with wds.TarWriter(str(folder / f"{number}.tar")) as sink:
            for index in range(9 + 7 * number):
                sink.write({"__key__": f"{number}-{index:02d}", "txt": "x"})
    return [str(folder / f"{number}.tar") for number in range(5)]


def key(sample):
    """Tell a sample by its key alone."""
    return sample["__key__"]


def mixed(kind, *sources):
    """Return an elastic dataset over a mix."""
    made = wds.DataPipeline(kind(sources), wds.shuffle(7)).elastic(STREAMS)
    made.seed = 4
    return made


def lists(shift=0):
    """Return two sources in memory."""
    return list(range(shift, shift + 61)), list(range(shift + 100, shift + 177))


MIXES = {
    "random mix": lambda urls: mixed(  # noqa: ARG005  one shape for all
        functools.partial(wds.RandomMix, probs=[2, 1], longest=True), *lists()
    ),
    "round robin": lambda urls: mixed(functools.partial(wds.RoundRobin, longest=True), *lists()),  # noqa: ARG005  same
    "mix of shards": lambda urls: mixed(
        functools.partial(wds.RandomMix, probs=[1, 3], longest=True),
        wds.WebDataset(urls[:2], shardshuffle=5).map(key).shuffle(5),
        wds.WebDataset(urls[2:], shardshuffle=False).map(key),
    ),
    "no mix": lambda urls: wds.WebDataset(urls, shardshuffle=9, seed=4).map(key).shuffle(9).elastic(STREAMS),
}


def items_of(name, urls):
    """Return the epoch's items, sorted, from what the sources hold."""
    if "shards" in name or name == "no mix":
        return sorted(key(sample) for sample in wds.WebDataset(urls, shardshuffle=False))
    return sorted(itertools.chain(*lists()))


def runs_of(dataset, ranks, workers, state):
    """Return the runs of a job; no workers is the one process of a rank."""
    count = max(workers, 1)
    return [dataset.elastic_run(WorkerContext(r, ranks, w, count), state) for r in range(ranks) for w in range(count)]


def by_position(runs):
    """Return what runs give, by position."""
    return sorted(pair for run in runs for pair in run.positions())


def global_batches(pairs):
    """Return the items of each global batch, in their order: with one batch size, batch k is positions [kB, kB + B)."""
    return [[item for _, item in group] for _, group in itertools.groupby(pairs, lambda pair: pair[0] // BATCH)]


def stopped(dataset, ranks, workers, whole, end):
    """Run a job up to a position, and return what it gave, and its state."""
    runs = runs_of(dataset, ranks, workers, dataset.state_dict())
    given = []
    for run in runs:
        mine = sum(1 for position, _ in whole if position < end and position % STREAMS in run.owned)
        given += itertools.islice(run.positions(), mine)
    state = json.loads(json.dumps(wds.merge_states(run.state_dict() for run in runs)))
    for run in runs:
        run.close()
    return sorted(given), state


def told(state, other):
    """Return what a state tells; of a stream that one of two knows to be over, only how many items it gave."""
    memories = {}
    for name, memory in state["memories"].items():
        over = memory is not None and 1 in (len(memory), len(other["memories"][name]))
        memories[name] = memory[:1] if over else memory
    return {**state, "memories": memories, "check": None}


@pytest.mark.repeats
@pytest.mark.parametrize("name", MIXES)
def test_from_each_topology_to_each(urls, name):
    """Multiset exact, global batches in one order, one state after each batch, and from it every way on.

    The state does not depend on the topology that it was taken under, which is checked for all of them: so one way from
    it to each topology is a way from each.
    """
    make = functools.partial(MIXES[name], urls)
    whole = by_position(runs_of(make(), 1, 0, make().state_dict()))
    assert sorted(item for _, item in whole) == items_of(name, urls)
    batches = global_batches(whole)
    known = None
    for ranks, workers in GRID:
        given, state = stopped(make(), ranks, workers, whole, 2 * BATCH)
        assert global_batches(given) == batches[:2], (ranks, workers)
        known = state if known is None else known
        assert told(state, known) == told(known, state), (ranks, workers)
    for ranks, workers in GRID:
        rest = by_position(runs_of(make(), ranks, workers, known))
        assert global_batches(rest) == batches[2:], (ranks, workers)


def each_pair(places):
    """Return a walk in which each place follows each, itself too, once."""
    walk = []
    for index, place in enumerate(places):
        walk.append(place)
        for other in places[index + 1 :]:
            walk += [place, other]
    return [*walk, places[0]]


def test_each_pair_of_topologies():
    """All 400 pairs, one after the other, with a global batch in each: nothing lost, nothing twice, nothing moved."""
    walk = each_pair(GRID)
    assert set(itertools.pairwise(walk)) == set(itertools.product(GRID, GRID))

    def make():
        mix = wds.RandomMix([list(range(31)), list(range(31, 70))], [2, 1], longest=True)
        made = wds.DataPipeline(mix, wds.shuffle(3)).repeat(1000, 8 * len(walk)).elastic(8)
        made.seed = 6
        return made

    state, seen = make().state_dict(), []
    for ranks, workers in walk:
        runs = runs_of(make(), ranks, workers, state)
        batch = [pair for run in runs for pair in itertools.islice(run.positions(), len(run.owned))]
        seen.append(sorted(batch))
        state = json.loads(json.dumps(wds.merge_states(run.state_dict() for run in runs)))
        for run in runs:
            run.close()
    whole = by_position(runs_of(make(), 1, 0, make().state_dict()))
    assert seen == [whole[start : start + 8] for start in range(0, len(whole), 8)]
    assert len(whole) == 8 * len(walk)


def rank_batches(dataset, ranks, workers, states, monkeypatch):
    """Return the iterators of all ranks' loaders, and the loaders; the process is each rank in turn."""
    loaders = []
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        loader = wds.Loader(dataset(), BATCH // ranks, workers=workers, collate=list, exact=True)
        if states is not None:
            loader.load_state_dict(states)
        loaders.append(loader)
    return loaders


def stepped(loaders, count, monkeypatch):
    """Return global batches, each rank giving one in its turn."""
    iterators, given = [iter(loader) for loader in loaders], []
    for _ in range(count):
        batch = []
        for rank, iterator in enumerate(iterators):
            monkeypatch.setenv("RANK", str(rank))
            batch += next(iterator, [])
        given.append(sorted(batch))
    return iterators, given


def test_loaders_of_each_topology(urls, monkeypatch):
    """Loaders with each number of workers on each number of ranks: equal global batches, also gone on elsewhere."""
    make = functools.partial(MIXES["random mix"], urls)
    batches = [sorted(batch) for batch in global_batches(by_position(runs_of(make(), 1, 0, make().state_dict())))]
    cut = len(batches) // 2
    for index, (ranks, workers) in enumerate(GRID):
        loaders = rank_batches(make, ranks, workers, None, monkeypatch)
        kept, given = stepped(loaders, cut, monkeypatch)
        assert given == batches[:cut], (ranks, workers)
        states = []
        for rank, loader in enumerate(loaders):
            monkeypatch.setenv("RANK", str(rank))
            states.append(loader.state_dict())
        del kept
        for loader in loaders:
            loader.close()
        after = GRID[(index + 7) % len(GRID)]
        others = rank_batches(make, *after, json.loads(json.dumps(wds.merge_states(states))), monkeypatch)
        _, rest = stepped(others, len(batches) - cut, monkeypatch)
        assert rest == batches[cut:], (ranks, workers, after)
        for loader in others:
            loader.close()
