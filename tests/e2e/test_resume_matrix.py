"""Random pipelines, stopped anywhere and again and again, through every loader, against the run that never stopped.

Four mistakes are looked for that other resumable loaders were found to make: a resume of a resume, a state that is
loaded into what has begun already, the order of a later epoch behind a resume, and a state at the end of an epoch. Each
case is drawn from a number; ``WDS_MATRIX=200`` tries so many of them, ``WDS_MATRIX=100:200`` these.
"""

import itertools
import json
import multiprocessing
import os
import random
from dataclasses import dataclass
from typing import Any

import numpy.random  # noqa: F401, ICN001  loaded before workers are forked, which would load it each
import pytest

import webdataset as wds
from webdataset.core.distributed import WorkerContext

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*os.fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

EPOCHS = 3
LENGTHS = (150, 263, 91, 310, 7, 222, 180, 133, 201)  # of shards; 1 557 samples


def cases(few):
    """Return the numbers of the cases to try."""
    first, colon, last = os.environ.get("WDS_MATRIX", str(few)).partition(":")
    return range(int(first), int(last)) if colon else range(int(first))


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Shards of unequal length."""
    folder = tmp_path_factory.mktemp("matrix")
    for number, length in enumerate(LENGTHS):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(length):
                sink.write({"__key__": f"{number}-{index:03d}", "txt": "x"})
    return str(folder / f"s-{{0..{len(LENGTHS) - 1}}}.tar")


# -- pipelines: each stage gives every sample once


def passed(samples):
    """A generator of the user's that remembers nothing."""
    yield from samples


def swapped(samples):
    """One that holds a sample back."""
    held = []
    for sample in samples:
        held.append(sample)
        if len(held) > 1:
            yield held.pop(0) if len(held) % 2 else held.pop()
    yield from held


def reversed_in_groups(samples):
    """One that holds many."""
    samples = iter(samples)
    while group := list(itertools.islice(samples, 17)):
        yield from reversed(group)


FOREIGN = (passed, swapped, reversed_in_groups)


def stages_of(draw):
    """Return some stages that keep every key."""
    stages: list[Any] = [wds.shuffle(draw.choice([300, 500, 900]), initial=draw.choice([1, 100, 250]))] * draw.choice(
        [1, 1, 0]
    )
    stages += [draw.choice(FOREIGN)] * draw.choice([1, 1, 1, 0])
    if draw.random() < 0.3:
        stages += [wds.listed(draw.choice([2, 5])), wds.unlisted()]
    stages += draw.choice([[], [wds.shuffle(draw.choice([200, 700]))], [wds.detshuffle(400)]])
    stages += [draw.choice(FOREIGN)] * draw.choice([1, 0, 0])
    return stages


@dataclass
class Case:
    """A dataset that is made again and again, alike."""

    urls: str
    number: int

    def __post_init__(self):
        draw = random.Random(self.number)
        self.seed, self.streams = draw.randrange(1000), draw.choice([4, 6, 12])
        self.batch = draw.choice([None, None, 5, 8])
        self.bound = draw.choice([None, None, None, 900 if self.batch is None else 120])
        self.stages = draw.randrange(1 << 30)
        self.draw = draw

    def dataset(self):
        """Return the dataset of this case: of keys, or of lists of keys."""
        keys = lambda sample: sample["__key__"]  # travels by value
        made = wds.WebDataset(self.urls, shardshuffle=20, seed=self.seed).map(keys)
        made = made.compose(*stages_of(random.Random(self.stages)))
        if self.batch is not None:
            made = made.batched(self.batch, collation_fn=list)
        return (made if self.bound is None else made.with_epoch(self.bound)).elastic(self.streams)

    def __str__(self):
        return f"case {self.number}: {self.dataset().explain()}"


def flat(items):
    """Return keys from items that are keys, or lists of them, of any depth."""
    for item in items:
        if isinstance(item, str):
            yield item
        else:
            yield from flat(item)


def checked_epochs(case, epochs):
    """Return the epochs of a run that never stopped, once they are found to be what they must be."""
    assert len({tuple(flat(epoch)) for epoch in epochs}) == len(epochs), "each epoch has an order of its own"
    for epoch in epochs:
        keys = list(flat(epoch))
        assert len(keys) >= 500
        if case.bound is None:
            assert len(keys) == len(set(keys)) == sum(LENGTHS)
    return epochs


# -- ways to read: from a dataset and a number of workers to something with a state


def loaded(dataset, workers, **options):
    """Return our loader."""
    return wds.Loader(dataset, workers=workers, **options)


def web(dataset, workers):
    """Return torch's loader with a state."""
    pytest.importorskip("torch")
    return wds.WebLoader(dataset, batch_size=None, num_workers=workers)


def staged(dataset, workers):
    """Return one with stages behind it."""
    return web(dataset, workers).shuffle(60).batched(4, collation_fn=list)


def stateful(dataset, workers, **options):
    """Return torchdata's."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **options)


@dataclass
class Way:
    """How a dataset is read.

    Attributes:
        make: from dataset and number of workers.
        workers: numbers to draw from.
        moves: another number of workers may go on.
        rests: before its end was told, it goes on with the rest of the epoch, though that be nothing.
    """

    make: Any
    workers: tuple[int, ...] = (0,)
    moves: bool = True
    rests: bool = False


WAYS = {
    "dataset": Way(lambda dataset, _: dataset),
    "Loader inline": Way(loaded),
    "Loader threads": Way(loaded, (1, 2, 3, 4, 0)),
    "Loader processes": Way(
        lambda dataset, workers: loaded(dataset, workers, mode="processes", start_method="fork"), (1, 2, 3)
    ),
    "WebLoader inline": Way(web),
    "WebLoader": Way(web, (1, 2, 3), moves=False),
    "WebLoader persistent": Way(
        lambda dataset, workers: wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True),
        (2,),
        moves=False,
    ),
    "WebLoader with stages": Way(staged, (0, 2), moves=False),
    "StatefulDataLoader inline": Way(stateful, rests=True),
    "StatefulDataLoader": Way(stateful, (1, 2), moves=False, rests=True),
    "StatefulDataLoader persistent": Way(
        lambda dataset, workers: stateful(dataset, workers, persistent_workers=True), (2,), moves=False, rests=True
    ),
}
TORCH = tuple(name for name in WAYS if name.startswith(("WebLoader", "Stateful")))


class Walk:
    """A reader that is stopped and goes on, beside the run that never stopped."""

    def __init__(self, case, way):
        self.case, self.way, self.draw = case, way, random.Random(case.number)
        self.workers = self.draw.choice(way.workers)
        whole = self.fresh()
        self.epochs = checked_epochs(case, [list(whole) for _ in range(EPOCHS + 1)])
        self.close(whole)
        self.here, self.items = None, None
        self.epoch = self.given = 0

    def fresh(self):
        """Return a reader that stands at the beginning."""
        workers = self.draw.choice(self.way.workers) if self.way.moves else self.workers
        return self.way.make(self.case.dataset(), workers)

    @staticmethod
    def close(here):
        """Let go of one."""
        close = here.close_run if hasattr(here, "close_run") else getattr(here, "close", None)
        if close is not None:
            close()

    def take(self, count):
        """Take some items; those of the run that never stopped."""
        expected = self.epochs[self.epoch][self.given : self.given + count]
        taken = list(itertools.islice(self.items, len(expected)))
        assert taken == expected, self.told(taken, expected)
        self.given += len(expected)

    def told(self, taken, expected):
        """Say what differs."""
        lost, more = set(flat(expected)) - set(flat(taken)), set(flat(taken)) - set(flat(expected))
        return f"epoch {self.epoch} behind {self.given}: {len(lost)} lost, {len(more)} others; {self.case}"

    def end(self):
        """Come to the end of the epoch, and be told."""
        self.take(len(self.epochs[self.epoch]))
        assert next(self.items, None) is None, f"the epoch ends; {self.case}"
        self.epoch, self.given, self.items = self.epoch + 1, 0, None

    def move(self, state, epoch, given, *, begun):
        """Go on behind a state, perhaps in a reader that has begun, and stands elsewhere."""
        self.items = None
        self.here = self.fresh()
        if begun:
            items = iter(self.here)
            list(itertools.islice(items, begun))
        self.here.load_state_dict(json.loads(json.dumps(state)))
        self.epoch, self.given = epoch, given
        self.items = iter(self.here)
        if given == len(self.epochs[epoch]):  # what comes next is the next epoch; its number is its place in the order
            if self.way.rests:
                assert list(self.items) == []
                self.items = iter(self.here)
            self.epoch, self.given = epoch + 1, 0

    def walk(self):
        """Stop within epochs, behind their last items, and behind their ends; each time in a new reader."""
        self.here = self.fresh()
        saved = []
        while self.epoch < EPOCHS:
            self.items = iter(self.here) if self.items is None else self.items
            self.step()
            saved.append((json.dumps(self.here.state_dict()), self.epoch, self.given))
            state, epoch, given = saved[-1] if self.draw.random() < 0.8 else self.draw.choice(saved[-3:])
            if epoch >= EPOCHS:
                break
            old = self.here
            self.move(json.loads(state), epoch, given, begun=self.draw.choice([0, 0, 3, 40]))
            self.close(old)
        self.close(self.here)

    def step(self):
        """Take some items, all but a few, exactly all, or all and the end."""
        left = len(self.epochs[self.epoch]) - self.given
        where = self.draw.choice(["within", "within", "nearly", "all", "end"])
        if where == "end":
            self.end()
        else:
            counts = {"within": self.draw.randrange(left + 1), "nearly": max(0, left - self.draw.randrange(1, 9))}
            self.take(counts.get(where, left))


@pytest.mark.parametrize("name", [name for name in WAYS if name not in TORCH])
def test_stopped_again_and_again(urls, name):
    """Each sample of each epoch comes once, in the order of the run that never stopped."""
    for number in cases(3):
        Walk(Case(urls, number), WAYS[name]).walk()


@pytest.mark.torch
@pytest.mark.parametrize("name", TORCH)
def test_stopped_again_and_again_under_torch(urls, name):
    """The same through the loaders of torch and torchdata."""
    pytest.importorskip("torch")
    if name == "StatefulDataLoader" and multiprocessing.get_start_method() != "fork":
        pytest.xfail("torchdata does not tell the dataset of a state; what is sent to new workers is counted on")
    for number in cases(1):
        Walk(Case(urls, number), WAYS[name]).walk()


# -- ranks


def ranks_of(case, name, ranks, monkeypatch, state=None):
    """Return a reader for each rank, with what makes it believe that it is this rank."""
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        way = WAYS[name]
        here = way.make(case.dataset(), way.workers[-1])
        if state is not None:
            here.load_state_dict(state)
        yield here


@pytest.mark.parametrize("name", ["dataset", "Loader threads", pytest.param("WebLoader", marks=pytest.mark.torch)])
def test_ranks_stopped_again_and_again(urls, name, monkeypatch):
    """Some ranks at their end, others before it; other numbers of ranks go on: each sample of each epoch once."""
    for number in cases(2):
        case, draw = Case(urls, number), random.Random(number)
        monkeypatch.delenv("RANK", raising=False)
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        runs = case.dataset()
        epochs = [sorted(flat(epoch)) for epoch in checked_epochs(case, [list(runs) for _ in range(EPOCHS)])]
        state, received, epoch = None, [], 0
        while epoch < EPOCHS:
            states = []
            for here in ranks_of(case, name, draw.randrange(1, 5), monkeypatch, state):
                items = iter(here)
                # all; some; at least one, so that all are in the same epoch
                count = draw.choice([None, 1 + draw.randrange(30), 10_000])
                received += flat(items if count is None else itertools.islice(items, count))
                states.append(json.loads(json.dumps(here.state_dict())))
                Walk.close(here)
            state = json.loads(json.dumps(wds.merge_states(states)))
            assert state["epoch"] == epoch, case
            if len(received) == len(epochs[epoch]):
                assert sorted(received) == epochs[epoch], case
                epoch, received = epoch + 1, []


def test_ranks_beside_those_that_have_begun_the_next_epoch(urls, monkeypatch):
    """A rank after the end of its epoch stands at the start of the next, where others are already."""
    case = Case(urls, 1)
    whole = case.dataset()
    epochs = [sorted(flat(whole)), sorted(flat(whole))]
    states, received = [], []
    for rank, here in enumerate(ranks_of(case, "dataset", 2, monkeypatch)):
        list(here)
        received += flat(itertools.islice(iter(here), 9)) if rank else []
        states.append(json.loads(json.dumps(here.state_dict())))
    assert [state["epoch"] for state in states] == [0, 1]
    merged = wds.merge_states(states)
    for here in ranks_of(case, "dataset", 3, monkeypatch, merged):
        received += flat(here)
    assert sorted(received) == epochs[1]


@pytest.mark.parametrize("begun", [0, 1])
@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.torch
def test_untouched_loaders_are_merged(urls, monkeypatch, begun, stages):
    """The states of ranks that have not begun are merged with those that have: each sample comes once."""
    pytest.importorskip("torch")
    case, states, received = Case(urls, 3), [], []
    epoch = sorted(flat(case.dataset()))
    for rank, here in enumerate(ranks_of(case, "WebLoader inline", 2, monkeypatch)):
        loader = here.shuffle(10) if stages else here
        if rank < begun and not stages:
            received += flat(itertools.islice(iter(here), 20))
        states.append(json.loads(json.dumps(loader.state_dict())))
    merged = wds.merge_states(states)
    for here in ranks_of(case, "WebLoader inline", 3, monkeypatch, merged):
        received += flat(here)
    assert sorted(received) == epoch


@pytest.mark.parametrize("last", ["told", "taken"])
def test_a_rank_with_nothing_left_waits_for_the_others(urls, last):
    """The epoch of a merged state is over where it is over on all ranks; until then some have nothing in it."""
    case = Case(urls, 0)
    whole = case.dataset()
    epochs = [list(whole), list(whole)]
    runs = [case.dataset().elastic_run(WorkerContext(rank, 2, 0, 1)) for rank in range(2)]
    first = list(itertools.islice(runs[0], len(list(case.dataset().elastic_run(WorkerContext(0, 2, 0, 1))))))
    assert last == "taken" or next(runs[0], None) is None
    second = list(itertools.islice(runs[1], 20))
    state = wds.merge_states([run.state_dict() for run in runs])

    def goes_on(rank, state):
        dataset = case.dataset()
        return [
            list(dataset.elastic_run(WorkerContext(rank, 2, 0, 1), state, continue_epochs=True))
            for state in (state, None)
        ]

    nothing, following = goes_on(0, state)
    rest, other = goes_on(1, state)
    assert nothing == []
    assert sorted(flat(first + second + rest)) == sorted(flat(epochs[0]))
    assert sorted(flat(following + other)) == sorted(flat(epochs[1]))
    list(runs[1])
    state = wds.merge_states([run.state_dict() for run in runs])
    assert goes_on(0, state)[0] == following
    assert goes_on(1, state)[0] == other
