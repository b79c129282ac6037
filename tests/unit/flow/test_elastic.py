"""An elastic dataset gives one order under every topology, and goes on from a state under any other."""

import itertools
import json
import pickle
import zlib

import pytest

import webdataset as wds
from support.garbage import no_collector
from webdataset.core.distributed import StreamNumber, WorkerContext, use_stream, worker_context
from webdataset.core.errors import FlowError, NoSamples, StateMismatch, UsageError
from webdataset.flow.elastic_state import ReceivedState
from webdataset.stages.base import Stage, StageState

ALONE = WorkerContext(0, 1, 0, 1)
TOPOLOGIES = [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (4, 2), (6, 4)]


def key(sample):
    """Tell a sample by its key alone."""
    return sample["__key__"]


def tokenized(sample):
    """Return a sample with up to 40 tokens."""
    return {**sample, "input_ids": list(range(zlib.crc32(sample["__key__"].encode()) % 41))}


def packed_keys(row):
    """Tell a row by the keys and tokens of its pieces."""
    return [*row["__keys__"], *row["input_ids"].tolist()]


def doubled(source):
    """A user's stage: each sample twice."""
    for sample in source:
        yield sample
        yield sample


def keyed(dataset, streams=6):
    """Return an elastic dataset of keys."""
    return dataset.map(key).elastic(streams)


PIPELINES = {
    "plain": lambda urls: keyed(wds.WebDataset(urls, shardshuffle=False, seed=1)),
    "shuffled": lambda urls: keyed(wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(20)),
    "seeded stages": lambda urls: keyed(wds.WebDataset(urls, seed=1).compose(wds.shuffle(12, seed=7))),
    "detshuffle": lambda urls: keyed(
        wds.WebDataset(urls, shardshuffle=9, detshuffle=True, seed=1).compose(wds.detshuffle(12))
    ),
    "bound in bytes": lambda urls: keyed(wds.WebDataset(urls, seed=1).shuffle(30, max_bytes=30_000)),
    "block shuffle": lambda urls: keyed(wds.WebDataset(urls, seed=1).compose(wds.block_shuffle(12))),
    "batched": lambda urls: (
        wds.WebDataset(urls, shardshuffle=10, seed=1)
        .shuffle(12)
        .map(key)
        .batched(2, collation_fn=None)
        .map(tuple)
        .elastic(6)
    ),
    "packed": lambda urls: (
        wds.WebDataset(urls, seed=1)
        .shuffle(6)
        .map(tokenized)
        .pack(16, window=40)
        .shuffle(9)
        .map(packed_keys)
        .elastic(6)
    ),
    "packed in a row": lambda urls: (
        wds.WebDataset(urls, seed=1).shuffle(6).map(tokenized).pack(16, "concat").map(packed_keys).elastic(6)
    ),
    "unbatched": lambda urls: keyed(wds.WebDataset(urls, seed=1).shuffle(6).listed(3).unlisted().shuffle(12)),
    "filtered": lambda urls: keyed(
        wds.WebDataset(urls, shardshuffle=10, seed=1).select(lambda s: s["__key__"][-1] in "02468").shuffle(12)
    ),
    "thinned": lambda urls: keyed(wds.WebDataset(urls, seed=1).rsample(0.6).shuffle(12)),
    "sliced": lambda urls: keyed(wds.WebDataset(urls, seed=1).slice(3, 40).shuffle(12)),
    "sliced in steps": lambda urls: keyed(wds.WebDataset(urls, seed=1).slice(1, 44, 4)),
    "epoch": lambda urls: keyed(wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(12).repeat(nbatches=70)),
    "repeat": lambda urls: keyed(wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(12).repeat(2)),
    "repeat up to": lambda urls: keyed(wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(12).repeat(3, 61)),
    "resampled": lambda urls: keyed(wds.WebDataset(urls, resampled=True, seed=1).shuffle(12).repeat(nbatches=60)),
    "user's stage": lambda urls: keyed(wds.WebDataset(urls, shardshuffle=10, seed=1).compose(doubled).shuffle(12)),
    "random mix": lambda urls: wds.DataPipeline(
        wds.RandomMix(
            [wds.WebDataset(urls, shardshuffle=5).shuffle(6), wds.WebDataset(urls.replace("{0..3}", "{0..1}"))],
            [2, 1],
            longest=True,
        ),
        wds.map(key),
        wds.shuffle(8),
    ).elastic(6),
    "seeded mix": lambda urls: wds.DataPipeline(
        wds.RandomMix([wds.WebDataset(urls).shuffle(6), wds.WebDataset(urls)], [2, 1], seed=5), wds.map(key)
    ).elastic(6),
    "round robin": lambda urls: wds.DataPipeline(
        wds.RoundRobin([wds.WebDataset(urls).repeat(2), wds.WebDataset(urls).with_epoch(20)], longest=True),
        wds.map(key),
    ).elastic(6),
    "specification": lambda urls: keyed(
        wds.WebDataset(
            {"version": 1, "mix": "exhaust", "sources": [{"shards": urls}, {"shards": urls, "shuffle": 9}]},
            seed=1,
        ).shuffle(12)
    ),
    "pipeline in a pipeline": lambda urls: wds.DataPipeline(
        wds.WebDataset(urls, shardshuffle=10).shuffle(6), wds.map(key), wds.shuffle(5)
    ).elastic(6),
    "list": lambda urls: wds.DataPipeline([list(range(50))], wds.shuffle(12)).elastic(6),  # noqa: ARG005
    "mix of lists": lambda urls: wds.DataPipeline(  # noqa: ARG005
        wds.RandomMix([list(range(50)), list(range(50, 80))], longest=True)
    ).elastic(6),
    "explicit splitters": lambda urls: wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.shuffle(10),
        wds.split_by_node,
        wds.split_by_worker,
        wds.tarfile_samples,
        wds.shuffle(12),
        wds.map(key),
    ).elastic(6),
}
SEED = {"seed": 11}


def seeded(name, urls):
    """Return the dataset of a name; those without a seed get one."""
    dataset = PIPELINES[name](urls)
    dataset.seed = 1
    return dataset


def world(dataset, ranks, workers, state=None):
    """Return the runs of all workers of a job."""
    state = state or dataset.elastic_run(ALONE).header()
    places = [WorkerContext(rank, ranks, worker, workers) for rank in range(ranks) for worker in range(workers)]
    return [dataset.elastic_run(place, state) for place in places]


def order(dataset, ranks=1, workers=1, state=None):
    """Return all positions and items of a job, by position."""
    return sorted(pair for run in world(dataset, ranks, workers, state) for pair in run.positions())


@pytest.mark.parametrize("name", PIPELINES)
def test_one_order_under_every_topology(urls, name):
    """Positions and items are the same for every number of ranks and workers."""
    whole = order(seeded(name, urls))
    assert len(whole) > 8
    assert len({position for position, _ in whole}) == len(whole)
    for ranks, workers in TOPOLOGIES[1:]:
        assert order(seeded(name, urls), ranks, workers) == whole, (ranks, workers)


@pytest.mark.repeats
@pytest.mark.parametrize("name", PIPELINES)
def test_stopped_anywhere(urls, name):
    """At every step, the restored run continues exactly; the state is JSON and small."""
    run = seeded(name, urls).elastic_run(ALONE)
    seen, states = [], [json.dumps(run.state_dict())]
    for pair in run.positions():
        seen.append(pair)
        states.append(json.dumps(run.state_dict()))
    assert max(map(len, states)) < 9_000
    for step, state in enumerate([*states, json.dumps(run.state_dict())]):
        again = seeded(name, urls).elastic_run(ALONE, json.loads(state))
        far = None if step % 9 == 0 else 7
        assert list(itertools.islice(again.positions(), far)) == seen[step:][:far], step
        again.close()


@pytest.mark.repeats
@pytest.mark.parametrize("name", PIPELINES)
def test_stopped_and_changed(urls, name):
    """Behind a global batch, the states of all workers go on under another topology: nothing lost, nothing twice."""
    whole = dict(order(seeded(name, urls)))
    batch, cuts = 5, itertools.count()
    for (ranks, workers), (after, workers_after) in zip(TOPOLOGIES, TOPOLOGIES[3:] + TOPOLOGIES[:3], strict=True):
        cut = next(cuts) * 2 % (max(whole) // batch + 2) * batch
        runs, got = world(seeded(name, urls), ranks, workers), {}
        for run in runs:
            count = sum(1 for position in whole if position < cut and position % run.streams in run.owned)
            got.update(itertools.islice(run.positions(), count))
        state = json.loads(json.dumps(wds.merge_states(run.state_dict() for run in runs)))
        assert got == {position: item for position, item in whole.items() if position < cut}
        assert state["received"] == len(got)
        rest = order(seeded(name, urls), after, workers_after, state)
        assert rest == sorted((position, item) for position, item in whole.items() if position >= cut)


@pytest.mark.parametrize("streams", [1, 2, 3, 4, 7, 24, 100])
def test_every_sample_once(urls, streams):
    """Whatever the number of streams, fewer or more than shards or samples, each sample comes once."""
    whole = order(wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(5).map(key).elastic(streams))
    assert sorted(item for _, item in whole) == sorted(map(key, wds.WebDataset(urls, shardshuffle=False)))


def test_what_splits_by_itself_is_not_split_twice(urls):
    """A user's splitter that asks who it is, and nodesplitter=None, lose and repeat nothing."""

    def own(shards):
        rank, world_size, worker, num_workers = wds.utils.pytorch_worker_info()
        return itertools.islice(shards, rank * num_workers + worker, None, world_size * num_workers)

    everything = sorted(map(key, wds.WebDataset(urls, shardshuffle=False)))
    for splitters in ({"nodesplitter": own}, {"nodesplitter": None, "workersplitter": None}):
        dataset = wds.WebDataset(urls, shardshuffle=4, seed=1, **splitters).map(key).elastic(3)
        assert sorted(item for _, item in order(dataset, 3, 2)) == everything


def test_epochs(urls):
    """Each iteration is an epoch with an order of its own; set_epoch chooses; the state brings its epoch along."""
    dataset = PIPELINES["shuffled"](urls)
    first, second = list(dataset), list(dataset)
    assert first != second
    assert sorted(first) == sorted(second)
    dataset.set_epoch(0)
    assert list(dataset) == first
    run = iter(dataset)
    head = list(itertools.islice(run, 9))
    fresh = PIPELINES["shuffled"](urls)
    fresh.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
    assert fresh.state_dict()["epoch"] == 1
    assert head + list(fresh) == second
    assert list(fresh) == list(PIPELINES["shuffled"](urls).elastic_run(state={**run.header(), "epoch": 2}))


@pytest.mark.parametrize("epoch", [2**31, 2**53, 1_800_000_000_000_000_000, 10**30])
def test_a_state_of_any_epoch_can_be_loaded(urls, epoch):
    """Whatever number a program gave its epoch, a time in nanoseconds too."""
    dataset = PIPELINES["shuffled"](urls)
    dataset.set_epoch(epoch)
    run = iter(dataset)
    list(itertools.islice(run, 9))
    fresh = PIPELINES["shuffled"](urls)
    fresh.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
    assert list(fresh) == list(run)
    assert list(fresh) == list(dataset)
    assert fresh.state_dict()["epoch"] == epoch + 1


def test_no_epoch_is_negative(urls):
    """It is refused when it is chosen, not when its state is to be loaded."""
    with pytest.raises(UsageError, match="numbered from 0"):
        PIPELINES["shuffled"](urls).set_epoch(-1)


def test_state_of_the_dataset(urls):
    """The dataset's own state is that of its present run; before, during, behind a break, and at the end."""
    dataset = PIPELINES["shuffled"](urls)
    whole = list(PIPELINES["shuffled"](urls))
    assert dataset.state_dict()["memories"] == {}
    for step, _ in enumerate(dataset, 1):
        state = dataset.state_dict()
        assert state["received"] == step
        if step == 20:
            break
    assert dataset.state_dict() == state
    other = PIPELINES["shuffled"](urls)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert list(other) == whole[20:]
    ended = other.state_dict()
    third = PIPELINES["shuffled"](urls)
    third.load_state_dict(ended)
    second = list(other)
    assert sorted(second) == sorted(whole) != second
    assert list(third) == second, "behind the end of an epoch comes the next one"


def test_loading_into_an_iterator(urls):
    """An iterator that runs already goes where the state says."""
    dataset = PIPELINES["shuffled"](urls)
    run = iter(dataset)
    head = list(itertools.islice(run, 7))
    state = run.state_dict()
    rest = list(run)
    other = iter(PIPELINES["shuffled"](urls))
    next(other)
    other.load_state_dict(state)
    assert list(other) == rest
    assert len(head) + len(rest) == 46


def test_unseeded_runs_continue_too(urls):
    """A run without a seed draws one; the state keeps it."""
    make = lambda: wds.WebDataset(urls, shardshuffle=10).shuffle(12).map(key).elastic(4)
    run = iter(make())
    list(itertools.islice(run, 10))
    state = run.state_dict()
    rest = list(run)
    assert list(make().elastic_run(state=state)) == rest
    assert list(make()) != list(make())


def test_progress_of_workers_that_run_ahead(urls):
    """What a consumer has received is its state, however far workers have run ahead."""
    dataset = seeded("shuffled", urls)
    whole = order(seeded("shuffled", urls))
    header = dataset.elastic_run(ALONE).header()
    sent = []
    for run in world(dataset, 1, 3, header):
        sent += [(pair, run.progress()) for pair in run.positions()]
    sent.sort(key=lambda message: message[0])
    received = ReceivedState(header)
    for step, (pair, progress) in enumerate(sent, 1):
        assert pair == whole[step - 1]
        assert [name for name, memory in progress.items() if memory is not None and len(memory) > 1] == [
            str(pair[0] % 6)
        ], "what moved"
        received.take(progress)
        if step % 7 == 0:
            state = json.loads(json.dumps(received.state_dict()))
            assert state["received"] == step
            assert order(seeded("shuffled", urls), 2, 2, state) == whole[step:]


def test_refusals_name_the_difference(urls):
    """A state of another dataset is refused, and the message says what differs."""
    dataset = PIPELINES["shuffled"](urls)
    run = iter(dataset)
    next(run)
    state = run.state_dict()
    base = lambda **kw: wds.WebDataset(kw.pop("urls", urls), **{"shardshuffle": 10, "seed": 1, **kw})
    others = {
        "seed 1 .here 2.": base(seed=2).shuffle(20).map(key).elastic(6),
        "streams 6 .here 12.": base().shuffle(20).map(key).elastic(12),
        "shards 4 .here 3.": base(urls=urls.replace("{0..3}", "{0..2}")).shuffle(20).map(key).elastic(6),
        "urls ": base(urls=urls.replace("{0..3}", "{3..0}")).shuffle(20).map(key).elastic(6),
        "bufsize=20.*here.*bufsize=21": base().shuffle(21).map(key).elastic(6),
        "stages .*here": base().map(key).elastic(6),
        "items None .here 30.": base().shuffle(20).map(key).with_epoch(30).elastic(6),
    }
    for message, other in others.items():
        with pytest.raises(StateMismatch, match=message):
            other.load_state_dict(state)
        with pytest.raises(StateMismatch, match=message):
            next(other.elastic_run(state=state))
    with pytest.raises(StateMismatch, match="seed 1 .here 2."):
        wds.merge_states([state, {**state, "seed": 2}][::-1])
    with pytest.raises(StateMismatch, match="epochs 0 and 1"):
        wds.merge_states([state, {**state, "epoch": 1}])


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"max_tokens": 128}, r"Pack\(…, max_tokens=512, .* \(here Pack\(…, max_tokens=128, "),
        ({"window": 64}, r"Pack\(…, window=1536\) \(here Pack\(…, window=64\)\)"),
        ({"output": "flat"}, r"Pack\(…, output='padded', .* \(here Pack\(…, output='flat', "),
    ],
)
def test_refusals_name_the_argument_of_a_long_stage(urls, change, shown):
    """A stage with many arguments is shown from the first other one on, and not cut before it."""
    make = lambda **kw: wds.WebDataset(urls, seed=1).map(tokenized).pack(**{"max_tokens": 512, **kw}).elastic(6)
    run = iter(make())
    next(run)
    state = run.state_dict()
    run.close()
    with pytest.raises(StateMismatch, match=shown):
        make(**change).load_state_dict(state)


@pytest.mark.parametrize(
    "broken",
    [
        3,
        "text",
        {"kind": "other"},
        {"version": 1},
        {"functions": 3},
        {"functions": [["map", 3]]},
        {"memories": 3},
        {"memories": {"6": None}},
        {"memories": {"x": None}},
        {"memories": {"0": 3}},
        {"memories": {"0": [-1]}},
        {"memories": {"0": [1, 2]}},
        {"streams": "6"},
        *(
            {"memories": {str(number): [1, 0, 1, None, memories] for number in range(6)}}
            for memories in ([{"wrong": 1}] * 3, [[{"wrong": 1}, None]] * 3, [[[1], {"wrong": 1}]] * 3, [[None]] * 3, 3)
        ),
    ],
)
def test_what_is_no_state(urls, broken):
    """Anything else is a StateMismatch, never a KeyError from within."""
    dataset = PIPELINES["shuffled"](urls)
    state = {**dataset.state_dict(), **broken} if isinstance(broken, dict) else broken
    if isinstance(broken, dict) and broken.get("memories", 3) != 3:
        state["memories"] = {**dict.fromkeys(map(str, range(6))), **broken["memories"]}
    with pytest.raises(StateMismatch):
        list(dataset.elastic_run(state=state))


def test_a_state_of_one_rank_is_not_enough_for_others(urls):
    """A worker that owns streams of which the state knows nothing says so, and how to mend it."""
    dataset = PIPELINES["shuffled"](urls)
    runs = world(dataset, 2, 1)
    for run in runs:
        next(run)
    states = [run.state_dict() for run in runs]
    with pytest.raises(StateMismatch, match="no memory of streams 1, 3, 5.*merge_states"):
        next(dataset.elastic_run(ALONE, states[0]))
    assert next(dataset.elastic_run(WorkerContext(0, 2, 0, 1), states[0])) is not None
    assert next(dataset.elastic_run(ALONE, wds.merge_states(states))) is not None
    with pytest.raises(StateMismatch, match="no states"):
        wds.merge_states([])
    for other in (states[0], None):
        with pytest.raises(UsageError, match="takes a list of states"):
            wds.merge_states(other)


def test_the_later_of_two_stream_states_holds(urls):
    """Merging an old state of a rank with a new one keeps the new one, in either order."""
    run = PIPELINES["shuffled"](urls).elastic_run(ALONE)
    list(itertools.islice(run, 6))
    old = run.state_dict()
    list(itertools.islice(run, 9))
    new = run.state_dict()
    assert wds.merge_states([old, new]) == wds.merge_states([new, old]) == new


def test_more_ranks_than_streams(urls):
    """Ranks that would have nothing are refused by number; workers may have nothing."""
    dataset = PIPELINES["plain"](urls)
    with pytest.raises(UsageError, match="6 streams.*7 ranks"):
        next(dataset.elastic_run(WorkerContext(0, 7, 0, 1)))
    assert list(dataset.elastic_run(WorkerContext(0, 6, 1, 2))) == []


@pytest.mark.parametrize("streams", [0, -1, 2.0, "4"])
def test_numbers_of_streams(urls, streams):
    """A number of streams is a whole number of at least 1."""
    with pytest.raises(UsageError, match="streams"):
        wds.WebDataset(urls).elastic(streams)


def test_stages_that_cannot_run_in_streams(urls, tmp_path):
    """What would share a buffer or a generator between streams is refused, with the way out."""
    import random

    for stage, message in (
        (wds.Cached(), "cache_dir"),
        (wds.shuffle(5, rng=random.Random(1)), "seed="),
        (wds.LMDBCached(str(tmp_path / "x")), "cache_dir"),
        (wds.resampled(10), "resampled=True"),
    ):
        with pytest.raises(UsageError, match=message):
            next(iter(wds.WebDataset(urls).compose(stage).elastic(2)))
    (tmp_path / "d").mkdir()
    with pytest.raises(UsageError, match="name the shards"):
        next(iter(wds.WebDataset(f"{tmp_path}/d/").elastic(2)))


def test_failures(urls):
    """An error in a stream is raised; there is no state after it, and the one before still holds."""

    def failing(sample):
        if sample["__key__"] == "2-004" and not healed:
            raise ValueError(sample["__key__"])
        return sample

    healed = []
    make = lambda: wds.WebDataset(urls, seed=1).map(failing).map(key).elastic(4)
    run = iter(make())
    seen, states = [], [run.state_dict()]
    with pytest.raises(ValueError, match="2-004"):
        seen.extend(states.append(run.state_dict()) or item for item in run)
    state = states[-1]
    assert run.state_dict() == state
    run = iter(make())
    with pytest.raises(ValueError, match="2-004"):
        list(run)
    with pytest.raises(FlowError, match="no state after a failure"):
        run.state_dict()
    healed.append(True)
    assert seen + list(make().elastic_run(state=state)) == list(make())


def test_no_samples_at_all(tmp_path):
    """A dataset without any sample is an error, unless it was allowed; a stream without samples is none."""
    with wds.TarWriter(str(tmp_path / "empty.tar")):
        pass
    with pytest.raises(NoSamples, match="empty_check"):
        list(wds.WebDataset(str(tmp_path / "empty.tar")).elastic(3))
    assert list(wds.WebDataset(str(tmp_path / "empty.tar"), empty_check=False).elastic(3)) == []


def test_samples_that_a_filter_drops_are_samples(urls):
    """A filter that lets nothing pass gives an empty epoch, as it does in a plain dataset, and a state after it."""
    make = lambda: wds.WebDataset(urls, seed=1).select(lambda sample: False).elastic(6)
    run = iter(make())
    with pytest.warns(UserWarning, match="kept none of the 46 samples of this pass"):
        assert list(run) == []
    with pytest.warns(UserWarning, match="kept none of the 46 samples"):  # of the next epoch
        assert list(make().elastic_run(state=json.loads(json.dumps(run.state_dict())))) == []
    with pytest.warns(UserWarning, match="listed: all 46 samples of this pass were dropped"):
        assert list(keyed(wds.WebDataset(urls, seed=1).listed(1000, partial=False).unlisted())) == []


def test_an_endless_stream_without_samples(tmp_path):
    """Positions that nobody can fill are an error, not a hang and not a hole."""
    with wds.TarWriter(str(tmp_path / "small.tar")) as sink:
        for index in range(3):
            sink.write({"__key__": str(index), "txt": "x"})
    dataset = wds.WebDataset(str(tmp_path / "small.tar"), seed=1).with_epoch(20).elastic(4)
    with pytest.raises(NoSamples, match="fewer workers .or streams"):
        list(dataset)


def test_with_epoch_counts_all_streams_together(urls):
    """The positions of an epoch of n items are 0 to n - 1, without holes, under every topology."""
    for ranks, workers in TOPOLOGIES:
        found = order(seeded("epoch", urls), ranks, workers)
        assert [position for position, _ in found] == list(range(70))


def test_within_a_stream_nobody_is_a_rank(monkeypatch, urls):
    """Stages and functions of a stream see rank 0 of 1; outside, the environment holds again."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen = []
    run = iter(wds.WebDataset(urls, seed=1).map(lambda s: seen.append(worker_context()) or s).elastic(6))
    next(run)
    assert run.owned == [1, 3, 5]
    assert seen == [ALONE]
    assert worker_context().rank == 1
    with use_stream(StreamNumber(2, 6)):
        assert worker_context() == ALONE
    assert worker_context().rank == 1


class Placed(StageState):
    """A state that says where its snapshot was taken."""

    def snapshot(self):
        """Return the place."""
        return list(worker_context())


class Placing(Stage):
    """Passes everything on, and has such a state."""

    transparent = True

    def begin(self, run):
        """Return a state."""
        return Placed()

    def flow(self, upstream, state):
        """Pass everything on."""
        yield from upstream


def test_snapshots_are_taken_within_the_stream(monkeypatch, urls):
    """What a stage asks for while its state is read is what it is told while it runs; afterwards all is as before."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = iter(wds.WebDataset(urls, seed=1).compose(Placing()).elastic(6))
    next(run)
    assert run.state_dict()["memories"]["1"][4][-1] == [list(ALONE), None]
    assert worker_context().rank == 1


def test_what_lasts_is_the_same_object(urls):
    """The part of a memory that lasts is one object from state to state, in each shard another one."""
    run = iter(wds.WebDataset(urls, shardshuffle=False, seed=1).elastic(1))
    parts: list[list[object]] = []
    for _ in run:
        if run.state_dict()["memories"]["0"][4:]:
            parts.append(run.state_dict()["memories"]["0"][4][0][1])
    kept = [one is other for one, other in itertools.pairwise(parts)]
    assert len({part[0] for part in parts}) == 4
    assert 3 <= kept.count(False) < len(kept) // 4


def test_travel(urls):
    """Pickles and copies of an elastic dataset are elastic, start afresh, and take a loaded state along."""
    dataset = PIPELINES["filtered"](urls)
    run = iter(dataset)
    list(itertools.islice(run, 5))
    state = run.state_dict()
    copied = pickle.loads(pickle.dumps(dataset))
    assert copied.streams == 6
    assert copied.epoch == dataset.epoch
    dataset.load_state_dict(state)
    assert list(pickle.loads(pickle.dumps(dataset))) == list(run)
    assert list(dataset.compose()) != list(run)


def test_chaining_goes_on(urls):
    """Stages, bounds and lengths may stand behind elastic() as well as before it."""
    before = wds.WebDataset(urls, seed=1).shuffle(12).map(key).with_epoch(30).with_length(30).elastic(6)
    behind = wds.WebDataset(urls, seed=1).elastic(6).shuffle(12).map(key).with_epoch(30).with_length(30)
    assert list(before) == list(behind)
    assert len(before) == len(behind) == 30
    assert wds.DataPipeline([[1, 2, 3]]).elastic().streams == 24


def test_nothing_stays_open(urls):
    """A run that is left, closed or abandoned closes its streams without the collector's help."""
    import os

    with no_collector():
        before = len(os.listdir("/proc/self/fd"))
        dataset = PIPELINES["shuffled"](urls)
        for _ in range(3):
            next(iter(dataset))
        run = dataset.elastic_run()
        next(run)
        del run
        dataset.close()
        with PIPELINES["shuffled"](urls).elastic_run() as run:
            next(run)
        state = run.state_dict()
        assert state["received"] == 1, "a closed run still has its state"
        assert len(os.listdir("/proc/self/fd")) == before
