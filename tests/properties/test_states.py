"""States that were damaged or edited: the error that says so, or the run that would have been; never another run."""

import copy
import functools
import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import StateMismatch

ALONE = WorkerContext(0, 1, 0, 1)
NUMBERS = st.one_of(
    st.integers(-3, 3), st.sampled_from([-(1 << 70), 1 << 31, 1 << 53, 1 << 64, 10**4000]), st.integers(0, 4000)
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), st.text(max_size=5))
GARBAGE = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=4), inner, max_size=4)),
    max_leaves=8,
)
CHANGES = st.sampled_from(["replace", "delete", "add", "step", "double", "swap"])


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Three shards."""
    folder = tmp_path_factory.mktemp("states")
    for number in range(3):
        with wds.TarWriter(str(folder / f"{number}.tar")) as sink:
            for index in range(7 + number):
                sink.write({"__key__": f"{number}-{index}", "txt": "x" * (index * 200)})
    return str(folder / "{0..2}.tar")


def key(sample):
    """Tell a sample by its key alone."""
    return sample["__key__"]


def shuffled(urls):
    """Return samples in random order, through a buffer."""
    return wds.WebDataset(urls, shardshuffle=9, seed=3).map(key).shuffle(6, initial=3).elastic(3)


def mixed(urls):
    """Return a mix with chance in it."""
    sources = [wds.WebDataset(urls, shardshuffle=5).shuffle(4), wds.WebDataset(urls).rsample(0.8)]
    made = wds.DataPipeline(wds.RandomMix(sources, [2, 1], longest=True), wds.map(key), wds.listed(2), wds.map(tuple))
    made.seed = 5
    return made.repeat(2).elastic(2)


def bounded(urls):
    """Return an epoch of fixed length, with several shards open and slices."""
    made = wds.WebDataset(urls, resampled=True, seed=8).map(key).compose(wds.block_shuffle(5))
    return made.with_epoch(22).elastic(2)


DATASETS = {"shuffled": shuffled, "mixed": mixed, "bounded": bounded}


class Run:
    """Something with a state: it is begun, read, asked for its state, and told another one.

    Args:
        made: a dataset or a loader.
    """

    def __init__(self, made):
        self.made = made
        self.items = None

    def read(self, count=None):
        """Return the next items, or the rest."""
        self.items = iter(self.made) if self.items is None else self.items
        return list(itertools.islice(self.items, count))

    def state(self):
        """Return the state."""
        return json.loads(json.dumps(self.made.state_dict()))

    def load(self, state):
        """Go on behind a state."""
        self.made.load_state_dict(state)


class NodeRun(Run):
    """A node of torchdata.nodes."""

    def read(self, count=None):
        """Return the next items, or the rest."""
        if self.items is None:
            self.made.reset()
        return super().read(count)

    def load(self, state):
        """Go on behind a state."""
        self.made.reset(state)
        self.items = self.made

    def state(self):
        """Return the state."""
        if self.items is None:
            self.made.reset()
            self.items = self.made
        return json.loads(json.dumps(self.made.get_state()))


def node(dataset):
    """Return a run of a node."""
    pytest.importorskip("torchdata.nodes")
    return NodeRun(wds.DatasetNode(dataset))


def web_loader(dataset, *, stages):
    """Return a run of a WebLoader."""
    pytest.importorskip("torch")
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=0)
    return Run(loader.shuffle(4).batched(2, collation_fn=tuple) if stages else loader)


WAYS: dict[str, Any] = {
    "dataset": Run,
    "Loader": lambda dataset: Run(wds.Loader(dataset, 3, collate=tuple)),
    "WebLoader": functools.partial(web_loader, stages=False),
    "WebLoader with stages": functools.partial(web_loader, stages=True),
    "DatasetNode": node,
}


@functools.cache
def known(way, name, urls, cut):
    """Return a state after some items, and the items that follow."""
    run = WAYS[way](DATASETS[name](urls))
    if cut:
        run.read(cut)
    state = run.state()
    if way == "WebLoader":
        state["turn"] = [0, 1, 2, 1]
    return state, run.read()


@functools.cache
def epoch_of(way, name, urls, epoch):
    """Return all items of an epoch."""
    dataset = DATASETS[name](urls)
    dataset.set_epoch(epoch)
    run = WAYS[way](dataset)
    if hasattr(run.made, "set_epoch"):
        run.made.set_epoch(epoch)
    return run.read()


def places(value, path=()):
    """Yield the paths of all parts of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield (*path, name)
        yield from places(part, (*path, name))


def at(value, path):
    """Return a part of a JSON value."""
    return functools.reduce(lambda part, name: part[name], path, value)


def replace(holder, name, garbage, _):
    """Put something else there."""
    holder[name] = garbage


def delete(holder, name, *_):
    """Leave it out."""
    del holder[name]


def add(holder, name, garbage, _):
    """Put something beside it."""
    if isinstance(holder, list):
        holder.insert(name, garbage)
    else:
        holder[f"{name}0"] = garbage


def step(holder, name, *_):
    """Put the next number there, or other text."""
    value = holder[name]
    holder[name] = value + 1 if isinstance(value, int) else f"{value}A"


def double(holder, name, *_):
    """Put it there twice."""
    holder[name] = [holder[name], copy.deepcopy(holder[name])]


def swap(holder, name, _, other):
    """Put another part of the state there."""
    holder[name] = copy.deepcopy(other)


@st.composite
def changed(draw, state):
    """Return a state with one to three changes in it."""
    state = copy.deepcopy(state)
    for _ in range(draw(st.integers(1, 3))):
        paths = list(places(state))
        if not paths:
            break
        *above, name = draw(st.sampled_from(paths))
        other = at(state, draw(st.sampled_from(paths)))
        globals()[draw(CHANGES)](at(state, above), name, draw(GARBAGE), other)
    return state


def same(one, other):
    """Tell whether two JSON values are the same; a number is not the same as one of another kind."""
    return repr(one) == repr(other)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(sorted(DATASETS)), cut=st.sampled_from([0, 1, 4]))
def test_a_changed_state_is_refused_or_changes_nothing(urls, way, data, name, cut):
    """Whatever was changed: a StateMismatch, or the run behind the state that was saved."""
    saved, rest = known(way, name, urls, cut)
    state = data.draw(changed(saved))
    run = WAYS[way](DATASETS[name](urls))
    try:
        run.load(state)
        items = run.read()
    except StateMismatch:
        items = None
    if items is None:
        assert not same(state, saved), "the state that was saved is not refused"
        return
    epochs = {state.get(part, {}).get("epoch") for part in ("begin",) if isinstance(state.get(part), dict)}
    if not cut and isinstance(state.get("epoch", 0), int):
        epochs.add(state.get("epoch"))
    others = [epoch_of(way, name, urls, epoch) for epoch in epochs if epoch is not None] if not cut else []
    assert items == rest or items in others, "another run than the one that was saved"


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=GARBAGE)
def test_garbage_is_refused(urls, way, state):
    """What is no state at all is a StateMismatch; a dataset's ``{}`` or None, no state yet, changes nothing."""
    run = WAYS[way](shuffled(urls))
    try:
        run.load(state)
    except StateMismatch:
        return
    assert state is None or state == {}
    assert run.read() == epoch_of(way, "shuffled", urls, 0)


NAMED: dict[str, dict[str, Any]] = {
    "'epoch' is -1": {"epoch": -1},
    "'epoch' is 1000000000": {"epoch": 10**1300},
    "'epoch' is 'nan'": {"epoch": math.nan},
    "'epoch' is 'True'": {"epoch": True},
    "'seed' is too long": {"seed": 1 << 5000},
    "'seed' is 'None'": {"seed": None},
    "'streams' is 0": {"streams": 0},
    "'streams' is -3": {"streams": -3},
    "'received' is -1": {"received": -1},
    "'received' is 5, and its streams gave 4": {"received": 5},
    "'description' is .*1: 2": {"description": {1: 2}},
    "version '1'": {"version": 1},
    "version 'True'": {"version": True},
    "'memories' is '.0.'": {"memories": [0]},
    "memory of stream '03'": {"memories": {"03": None}},
    "memory of stream '-1'": {"memories": {"-1": None}},
    "memory of stream '7'": {"memories": {7: None}},
    "for stream 1, .*-4": {"memories": {"1": [-4]}},
    "for stream 1, .*nan": {"memories": {"1": [math.nan]}},
    "for stream 1, .*True": {"memories": {"1": [True]}},
    "for stream 2, .*10, 0, 11": {"memories": {"2": [10, 0, 11, None, []]}},
    "for stream 2, .*x": {"memories": {"2": [1, 0, 1, None, "x"]}},
    "'check' is 1,": {"check": 1},
    "'check' is None,": {"check": None},
}


@pytest.mark.parametrize("message", NAMED)
def test_the_entry_is_named(urls, message):
    """The message says which entry is wrong, and what it is."""
    run = Run(shuffled(urls))
    run.read(4)
    state = {**run.state(), **NAMED[message]}
    with pytest.raises(StateMismatch, match=message):
        shuffled(urls).load_state_dict(state)
    with pytest.raises(StateMismatch, match=message):
        wds.merge_states([state])


def test_one_other_number_in_a_memory_is_noticed(urls):
    """Each number of each memory, changed by one: none is taken for a state."""
    run = Run(mixed(urls))
    run.read(5)
    saved = run.state()
    paths = [path for path in places(saved["memories"]) if type(at(saved["memories"], path)) is int]
    assert len(paths) > 20
    for *above, name in paths:
        state = copy.deepcopy(saved)
        at(state["memories"], above)[name] += 1
        with pytest.raises(StateMismatch):
            mixed(urls).load_state_dict(state)


def test_sums_of_states_that_are_saved_often(urls):
    """A sum that was carried on from state to state is that of the whole state, under merging too."""
    runs = [shuffled(urls).elastic_run(WorkerContext(rank, 2, 0, 1), shuffled(urls).state_dict()) for rank in range(2)]
    for _ in range(6):
        for run in runs:
            next(run)
            assert shuffled(urls).elastic_run(run._place, json.loads(json.dumps(run.state_dict()))).position is None
        merged = wds.merge_states(run.state_dict() for run in runs)
        shuffled(urls).load_state_dict(dict(reversed(json.loads(json.dumps(merged, sort_keys=True)).items())))


@pytest.mark.parametrize(
    "turn", [[0, 1, 2, 2], [0, 1, 2, -1], [1, 1, 2, 0], [0, 1, 0, 0], [0, 1, 2], 3, "x", [0, 1, 2, 0.0]]
)
def test_a_turn_that_no_worker_has(urls, turn):
    """Whose turn it is is checked, too."""
    run = web_loader(shuffled(urls), stages=False)
    run.read(4)
    with pytest.raises(StateMismatch, match="'turn' is"):
        run.load({**run.state(), "turn": turn})


def test_a_refused_state_leaves_the_loader_as_it_was(urls):
    """Behind an error a loader goes on from the state that it had."""
    run = web_loader(shuffled(urls), stages=True)
    run.read(2)
    saved = run.state()
    rest = run.read()
    other = web_loader(shuffled(urls), stages=True)
    other.load(saved)
    for broken in ({**saved, "check": 0}, {**saved, "items": 9}, {**saved, "loop": None}, {**saved, "kind": "x"}, 3):
        with pytest.raises(StateMismatch):
            other.load(broken)
    assert other.read() == rest
