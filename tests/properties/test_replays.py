"""A replay does what the first run did: every stage, before and after stages that are not ours, with long buffers."""

import collections
import itertools
import json
import random

import pytest

import webdataset as wds
from webdataset import filters
from webdataset.core.distributed import StreamNumber, WorkerContext
from webdataset.core.errors import FlowError, UsageError
from webdataset.flow.run import Flow
from webdataset.stages.base import Run

SHARDS, SAMPLES = 24, 250
TOTAL = SHARDS * SAMPLES


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Shards with more samples than a border of any buffer has."""
    path = tmp_path_factory.mktemp("replays")
    for number in range(SHARDS):
        with wds.TarWriter(str(path / f"{number:02d}.tar")) as sink:
            for index in range(SAMPLES):
                sink.write({"__key__": f"{number:02d}-{index:03d}", "cls": index})
    return str(path / "{00..23}.tar")


def passed_on(source):
    """Give every item: a stage that is not ours."""
    yield from source


def held_back(source, length=37):
    """Give every item later, the newest first: a stage that is not ours, with a buffer."""
    waiting = []
    for item in source:
        waiting.append(item)
        if len(waiting) > length:
            yield waiting.pop(0 if len(waiting) % 2 else -1)
    yield from reversed(waiting)


SHUFFLES = {
    "shuffle": lambda size: filters.shuffle(size),
    "shuffle with a seed": lambda size: filters.shuffle(size, seed=3),
    "shuffle of bytes": lambda size: filters.shuffle(size, max_bytes=size * 40),
    "detshuffle": lambda size: filters.detshuffle(size),
    "block_shuffle": lambda size: wds.block_shuffle(size),
}
BETWEEN = {
    "foreign": lambda ds: ds.compose(passed_on),
    "buffering": lambda ds: ds.compose(held_back),
    "foreign lists": lambda ds: ds.compose(passed_on).listed(7).unlisted(),
    "lists": lambda ds: ds.listed(7).compose(passed_on).unlisted(),
    "selected": lambda ds: ds.compose(passed_on).rsample(0.9).compose(passed_on).slice(5000),
}


def dataset(urls, first, between, second, streams):
    """Return keys behind two shuffles with something between."""
    made = wds.WebDataset(urls, shardshuffle=100, seed=1).compose(SHUFFLES[first](3000))
    return BETWEEN[between](made).compose(SHUFFLES[second](2000)).map(lambda sample: sample["__key__"]).elastic(streams)


@pytest.mark.repeats
@pytest.mark.parametrize("second", SHUFFLES)
@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("first", ["shuffle", "shuffle of bytes", "detshuffle"])
def test_a_run_goes_on_behind_a_replayed_shuffle(urls, first, between, second):
    """Twice, the second time under another topology, at epoch 1: no sample lost, none twice, in the same order."""
    streams = 3

    def make():
        return dataset(urls, first, between, second, streams)

    whole = make()
    whole.set_epoch(1)
    run = iter(whole)
    given = [next(run) for _ in range(1900)]
    state = json.loads(json.dumps(run.state_dict()))
    rest = list(run)
    again = make().elastic_run(state=state)
    given_again = [next(again) for _ in range(1300)]
    assert given_again == rest[:1300]
    state = json.loads(json.dumps(again.state_dict()))
    runs = [make().elastic_run(WorkerContext(rank, 3, 0, 1), state) for rank in range(3)]
    pairs = sorted(pair for rank_run in runs for pair in rank_run.positions())
    assert [key for _, key in pairs] == rest[1300:]
    counts = collections.Counter(given + given_again + [key for _, key in pairs])
    assert max(counts.values()) == 1
    assert between == "selected" or len(counts) == TOTAL


STAGES = {
    "shuffle": lambda: filters.shuffle(700),
    "seeded": lambda: filters.shuffle(700, seed=4),
    "bytes": lambda: filters.shuffle(700, max_bytes=90_000),
    "detshuffle": lambda: filters.detshuffle(700),
    "block_shuffle": lambda: wds.block_shuffle(300),
    "listed": lambda: filters.listed(7),
    "listed, unlisted": lambda: [filters.listed(7), filters.unlisted()],
    "rsample": lambda: filters.rsample(0.5),
    "slice": lambda: filters.slice(3, 1500, 2),
    "map": lambda: filters.map(lambda item: {**item, "more": 1}),
    "map with rng": lambda: wds.map_with_rng(lambda item, rng: {**item, "drawn": rng.random()}, True),
    "select": lambda: filters.select(lambda item: item["n"] % 3),
    "foreign": lambda: held_back,
}


def source():
    """Give 2 000 samples."""
    for number in range(2000):
        yield {"__key__": f"{number:05d}", "n": number}


def levels_of(name, run):
    """Return a flow over one stage behind the source."""
    made = STAGES[name]()
    return Flow([source, *(made if isinstance(made, list) else [made])], run)


@pytest.mark.parametrize("stream", [None, StreamNumber(1, 2)])
@pytest.mark.parametrize("name", STAGES)
def test_a_copy_of_a_level_gives_what_the_level_gave(name, stream):
    """Also where snapshots are taken of the first run, which the copy does not see."""
    for epoch in (0, 1):
        run = Run(seed=5, common=5, epoch=epoch, tracked=True, stream=stream)
        flow = levels_of(name, run)
        given = []
        for item in flow:
            given.append(item)
            if len(given) % 61 == 0:
                flow.snapshot()
        with flow.runners[-1].replay() as items:
            assert list(items) == given
        assert list(levels_of(name, run)) == given
        untracked = Run(seed=5, common=5, epoch=epoch, stream=stream)
        assert list(levels_of(name, untracked)) == given


@pytest.mark.parametrize("mix", [wds.RoundRobin, wds.RandomMix])
def test_a_mix_of_more_than_ten_sources_goes_on_in_order(mix):
    """The states of sources are saved under names, whose order as text is not that of the sources."""

    def make():
        sources = [list(range(1000 * number, 1000 * number + 250 + number)) for number in range(23)]
        return wds.DataPipeline(mix(sources, longest=True)).elastic(2)

    run = make().elastic_run(state=None)
    seed_state = run.header()
    whole = list(make().elastic_run(state=seed_state))
    given = [next(run) for _ in range(2000)]
    state = json.loads(json.dumps(run.state_dict(), sort_keys=True))
    assert given + list(make().elastic_run(state=state)) == whole


@pytest.mark.parametrize("shards", [300])
def test_more_shards_than_a_border_of_their_shuffle(tmp_path, shards):
    """The list of shards is replayed as it ran: samples come back from the shards that they were in."""
    for number in range(shards):
        with wds.TarWriter(str(tmp_path / f"{number:03d}.tar")) as sink:
            for index in range(10):
                sink.write({"__key__": f"{number:03d}-{index}", "cls": index})

    def make(size):
        made = wds.WebDataset(str(tmp_path / "{000..299}.tar"), shardshuffle=size, seed=1).shuffle(100)
        return made.map(lambda sample: sample["__key__"]).elastic(1)

    for size in (100, 1000):
        run = iter(make(size))
        given = [next(run) for _ in range(2000)]
        state = run.state_dict()
        rest = list(make(size).elastic_run(state=state))
        assert rest == list(run)
        assert len(set(given + rest)) == shards * 10


def test_a_replay_does_not_move_a_users_generator():
    """Of a plain run: the replayed shuffle draws what it drew, at epoch 1 too, and in a new process."""

    def make(rng):
        return wds.DataPipeline(source, filters.shuffle(100, rng=rng), passed_on, filters.shuffle(100))

    rng = random.Random(3)
    pipeline = make(rng)
    list(pipeline.start())
    run = pipeline.start(Run(seed=1, epoch=1))
    given = [next(run) for _ in range(700)]
    state = json.loads(json.dumps(run.snapshot()))
    rest = list(run)
    assert sorted(item["n"] for item in given + rest) == list(range(2000))
    assert list(pipeline.start(state)) == rest
    assert list(make(random.Random(99)).start(state)) == rest


def test_a_replay_does_not_move_the_generators_of_mixed_sources():
    """Of sources of a mix, and of mixes in it: behind it stand a stage that is not ours and a buffer."""

    def make(*rngs):
        sources = [wds.DataPipeline(source, filters.shuffle(100, rng=rng)) for rng in rngs[:2]]
        inner = wds.RoundRobin([sources[1], wds.DataPipeline(source, filters.shuffle(50, rng=rngs[2]), passed_on)])
        mix = wds.RandomMix([sources[0], inner], longest=True, seed=5)
        return wds.DataPipeline(mix, passed_on, filters.shuffle(300), held_back, filters.shuffle(100))

    rngs = [random.Random(number) for number in range(3)]
    pipeline = make(*rngs)
    list(pipeline.start())
    run = pipeline.start(Run(seed=1, epoch=1))
    given = [next(run) for _ in range(2500)]
    state = json.loads(json.dumps(run.snapshot()))
    rest = list(run)
    assert sorted(item["n"] for item in given + rest) == sorted([*range(2000)] * 3)
    assert list(pipeline.start(state)) == rest
    assert list(make(*map(random.Random, range(7, 10))).start(state)) == rest
    third = make(*map(random.Random, range(3))).start(state)
    assert [next(third) for _ in range(500)] == rest[:500]
    assert list(make(*map(random.Random, range(3))).start(json.loads(json.dumps(third.snapshot())))) == rest[500:]


def make_passes(passes, rng, length=60):
    """Items of several passes, in the order of a user's generator, which pass a stage that is not ours, and wait."""

    def short():
        return iter([{"n": number} for number in range(length)])

    inner = wds.DataPipeline(short, filters.shuffle(20, rng=rng), passed_on).repeat(nepochs=passes)
    return wds.DataPipeline(inner, filters.shuffle(150))


@pytest.mark.parametrize("cut", [70, 130, 300, 411, 599])
def test_items_of_earlier_passes_that_wait_are_made_again(cut):
    """By the draws of their pass, of a generator that has gone on since; after a second and a third resume, too."""
    run = make_passes(10, random.Random(3)).start(Run(seed=1))
    given = [next(run) for _ in range(cut)]
    state = json.loads(json.dumps(run.snapshot()))
    rest = [item["n"] for item in run]
    assert sorted([item["n"] for item in given] + rest) == sorted([*range(60)] * 10)
    for steps in (0, 25, 90):
        again = make_passes(10, random.Random(99)).start(state)
        found = [item["n"] for item in itertools.islice(again, steps)]
        assert found == rest[:steps]
        state, rest = json.loads(json.dumps(again.snapshot())), rest[steps:]
        again.close()
    assert [item["n"] for item in make_passes(10, random.Random(99)).start(state)] == rest


def test_items_of_passes_that_are_too_far_back_are_refused():
    """What a generator was before each of the last 32 passes is known; an item that is older is never another one."""
    refused = 0
    for cut in range(20, 720, 35):
        run = make_passes(70, random.Random(3), length=12).start(Run(seed=1))
        for _ in range(cut):
            next(run)
        state = json.loads(json.dumps(run.snapshot()))
        rest = [item["n"] for item in run]
        try:
            assert [item["n"] for item in make_passes(70, random.Random(9), length=12).start(state)] == rest
        except FlowError as error:
            refused += 1
            assert "seed=" in str(error)  # noqa: PT017  only some of them
    assert 0 < refused < 20


@pytest.mark.parametrize("longest", [True, False])
@pytest.mark.parametrize("nested", [False, True])
def test_items_of_ended_sources_of_a_mix_are_made_again(longest, nested):
    """Those that wait in a buffer: with what the generators of each source were, which has ended or was left."""

    def make(salt):
        def source(number, length):
            items = [{"n": (number, index)} for index in range(length)]
            drawn = filters.shuffle(30, rng=random.Random(number + salt))
            return wds.DataPipeline(lambda: iter(items), drawn, passed_on)

        mix = wds.RoundRobin([source(1, 100), source(2, 420), source(3, 200)], longest=longest)
        if nested:
            mix = wds.RandomMix([mix, source(4, 150)], longest=longest, seed=1)
        return wds.DataPipeline(mix, filters.shuffle(200))

    whole = [item["n"] for item in make(0).start(Run(seed=1))]
    for cut in range(5, len(whole), 47):
        run = make(0).start(Run(seed=1))
        assert [next(run)["n"] for _ in range(cut)] == whole[:cut]
        state = json.loads(json.dumps(run.snapshot(), sort_keys=True))
        again = make(50).start(state)
        assert [next(again)["n"] for _ in range(3)] == whole[cut : cut + 3]
        state = json.loads(json.dumps(again.snapshot(), sort_keys=True))
        assert [item["n"] for item in make(70).start(state)] == whole[cut + 3 :]


def test_items_that_an_ended_source_gave_from_memory():
    """In the order of its first pass, which another process does not know: there the state is refused."""

    def make():
        def short():
            return iter([{"n": number} for number in range(80)])

        kept = wds.DataPipeline(short, filters.shuffle(40), wds.Cached()).repeat(nepochs=3)
        mix = wds.RoundRobin([kept, wds.DataPipeline(short, passed_on).repeat(nepochs=9)], longest=True)
        return wds.DataPipeline(mix, filters.shuffle(300))

    pipeline = make()
    run = pipeline.start(Run(seed=1))
    given = [next(run)["n"] for _ in range(500)]
    state = json.loads(json.dumps(run.snapshot()))
    rest = [item["n"] for item in run]
    assert sorted(given + rest) == sorted([*range(80)] * 12)
    assert [item["n"] for item in pipeline.start(state)] == rest
    with pytest.raises(FlowError, match="memory is gone"):
        list(make().start(state))


def test_a_generator_that_two_stages_share_cannot_be_replayed():
    """It is refused where the state is taken."""
    rng = random.Random(3)
    run = wds.DataPipeline(source, filters.shuffle(9, rng=rng), passed_on, filters.shuffle(9, rng=rng)).start()
    next(run)
    with pytest.raises(wds.WebDatasetError, match="give each its own"):
        run.snapshot()


def test_a_source_that_gives_other_items_each_time_is_refused():
    """``with_epoch`` as a source goes on where its last epoch ended."""
    endless = wds.with_epoch([1, 2, 3], 5)
    for pipeline in (
        wds.DataPipeline(endless, passed_on).elastic(2),
        wds.DataPipeline(wds.RoundRobin([endless])).elastic(2),
    ):
        with pytest.raises(UsageError, match=r"DataPipeline\(dataset\).with_epoch"):
            next(iter(pipeline))
    with pytest.raises(UsageError, match="cannot be resumed"):
        wds.DataPipeline(endless, passed_on).start()
    assert list(wds.DataPipeline(endless)) == [1, 2, 3, 1, 2]


def test_addresses_of_several_open_shards(urls):
    """Each sample says which shard of the list it is of, also where it is made again."""

    def make():
        return wds.WebDataset(urls, shardshuffle=False, seed=1, open_shards=5, addresses=True).shuffle(300).elastic(1)

    run = iter(make())
    given = [next(run) for _ in range(900)]
    assert all(sample["__address__"].shard == int(sample["__key__"][:2]) for sample in given)
    assert list(make().elastic_run(state=run.state_dict())) == list(run)


def test_a_replay_closes_what_it_opened(urls):
    """The shards that a replay has open are closed when the items wanted have been found."""
    closed = []

    def watched(samples):
        try:
            yield from samples
        finally:
            closed.append(True)

    run = iter(wds.WebDataset(urls, seed=1, shardshuffle=False).compose(watched).shuffle(500).elastic(1))
    for _ in range(600):
        next(run)
    state = run.state_dict()
    run.close()
    assert len(closed) == 1
    again = (
        wds.WebDataset(urls, seed=1, shardshuffle=False)
        .compose(watched)
        .shuffle(500)
        .elastic(1)
        .elastic_run(None, state)
    )
    next(again)
    assert len(closed) == 2
    again.close()
    assert len(closed) == 3
