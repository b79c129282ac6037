"""A run that is stopped anywhere and restored continues as if it had not been stopped."""

import json
import os
from pathlib import Path

import pytest

import webdataset as wds
from support.garbage import no_collector
from webdataset.core.errors import FlowError, StateMismatch


def doubled(source):
    """A user's stage: each sample twice."""
    for sample in source:
        yield sample
        yield sample


PIPELINES = {
    "plain": lambda urls: wds.WebDataset(urls, shardshuffle=False),
    "shards shuffled": lambda urls: wds.WebDataset(urls, shardshuffle=True),
    "seeded": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=3).shuffle(10),
    "detshuffle": lambda urls: wds.WebDataset(urls, shardshuffle=10, detshuffle=True).compose(wds.detshuffle(6)),
    "shuffled": lambda urls: (
        wds.WebDataset(urls, shardshuffle=10).shuffle(10, initial=4).decode().map(lambda s: (s["txt"], s["cls"]))
    ),
    "batched": lambda urls: wds.WebDataset(urls, shardshuffle=9).shuffle(10).decode().to_tuple("txt", "cls").batched(4),
    "whole batches": lambda urls: wds.WebDataset(urls, shardshuffle=False).shuffle(5).batched(4, partial=False),
    "filtered": lambda urls: (
        wds.WebDataset(urls, shardshuffle=10)
        .decode()
        .select(lambda s: s["cls"] % 3)
        .shuffle(5)
        .slice(3, 20)
        .batched(3)
        .unbatched()
        .shuffle(6)
    ),
    "sliced with steps": lambda urls: wds.WebDataset(urls, shardshuffle=10).slice(1, 40, 3).shuffle(4),
    "listed": lambda urls: wds.WebDataset(urls, shardshuffle=10).shuffle(5).listed(4).unlisted().shuffle(3),
    "user's stage": lambda urls: wds.WebDataset(urls, shardshuffle=10).decode().compose(doubled).shuffle(8).batched(5),
    "resampled": lambda urls: wds.WebDataset(urls, resampled=True).shuffle(8).slice(40),
    "epoch": lambda urls: wds.WebDataset(urls, shardshuffle=10).shuffle(8).with_epoch(70),
    "repeat": lambda urls: wds.WebDataset(urls, shardshuffle=10).shuffle(8).repeat(2),
    "repeat up to": lambda urls: wds.WebDataset(urls, shardshuffle=10).shuffle(8).repeat(3, 60),
    "thinned": lambda urls: wds.WebDataset(urls, shardshuffle=10).rsample(0.5).shuffle(5),
    "explicit": lambda urls: wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.shuffle(100),
        wds.split_by_worker,
        wds.tarfile_samples,
        wds.shuffle(20),
        wds.decode(),
        wds.to_tuple("txt", "cls"),
        wds.batched(4),
    ),
    "random mix": lambda urls: wds.DataPipeline(
        wds.RandomMix(
            [wds.WebDataset(urls, shardshuffle=5).shuffle(5), wds.WebDataset(urls, shardshuffle=False)],
            [1, 2],
            longest=True,
        ),
        wds.shuffle(10),
        wds.batched(3, collation_fn=None),
    ),
    "round robin": lambda urls: wds.DataPipeline(
        wds.RoundRobin(
            [wds.WebDataset(urls, shardshuffle=5).shuffle(5).repeat(2), wds.WebDataset(urls, shardshuffle=False)],
            longest=True,
        ),
        wds.shuffle(4),
    ),
    "pipeline in a pipeline": lambda urls: wds.DataPipeline(
        wds.WebDataset(urls, shardshuffle=10).shuffle(6), wds.decode(), wds.shuffle(5)
    ),
    "composed stages": lambda urls: wds.DataPipeline(
        wds.SimpleShardList(urls), wds.tarfile_to_samples(), wds.compose(wds.shuffle(5), wds.decode(), wds.batched(3))
    ),
    "mix that ends early": lambda urls: wds.DataPipeline(
        wds.RandomMix([wds.WebDataset(urls), wds.WebDataset(urls, seed=1)]), wds.shuffle(4)
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_stopped_anywhere(urls, name):
    """At every step, the restored run continues exactly; the state is JSON and smaller than 64 KB."""
    make = PIPELINES[name]
    run = make(urls).start()
    seen, states = [], [json.dumps(run.snapshot())]
    for item in run:
        seen.append(repr(item))
        states.append(json.dumps(run.snapshot()))
    assert len(seen) > 9
    assert max(map(len, states)) < 64_000
    for step, state in enumerate(states):
        assert [repr(item) for item in make(urls).start(state=json.loads(state))] == seen[step:], step


def test_a_stage_that_stopped_stays_stopped(urls):
    """Where a handler ended a stage, a run restored while later stages drain does not go on past the failure."""

    def failing(sample):
        if sample["__key__"] == "1-004":
            raise ValueError(sample["__key__"])
        return sample

    make = lambda: wds.WebDataset(urls, shardshuffle=False).map(failing, handler=wds.ignore_and_stop).shuffle(30)
    run = make().start()
    whole = []
    states = []
    for sample in run:
        whole.append(sample["__key__"])
        states.append(json.dumps(run.snapshot()))
    assert len(whole) == 11
    for step, state in enumerate(states, 1):
        assert [sample["__key__"] for sample in make().start(state=json.loads(state))] == whole[step:]


def test_restored_again_and_again(urls):
    """A run of many short lives gives what one long life gives."""
    make = PIPELINES["filtered"]
    run = make(urls).start()
    state = run.snapshot()
    whole = [repr(item) for item in run]
    lives = []
    while True:
        run = make(urls).start(state=json.loads(json.dumps(state)))
        item = next(run, None)
        if item is None:
            break
        lives.append(repr(item))
        state = run.snapshot()
        run.close()
    assert lives == whole


def test_restoring_reads_little(urls, monkeypatch):
    """A restored plain run opens only the shards from its place on."""
    from webdataset import tariterators

    make = PIPELINES["plain"]
    run = make(urls).start()
    for _ in range(20):
        next(run)
    state = run.snapshot()
    opened = []

    def counting(shards, **kw):
        for shard in original(shards, **kw):
            opened.append(shard["url"])
            yield shard

    original = tariterators.url_opener
    monkeypatch.setattr(tariterators, "url_opener", counting)
    assert len(list(make(urls).start(state=state))) == 26
    assert [url[-5] for url in opened] == ["2", "3"]


def test_untracked_runs_have_no_snapshot(urls):
    """Asking an untracked run is an error that says what to do."""
    run = PIPELINES["plain"](urls).start(tracked=False)
    next(run)
    with pytest.raises(StateMismatch, match="tracked"):
        run.snapshot()


def test_states_of_other_pipelines_are_refused(urls):
    """A state that does not fit names both sides."""
    state = PIPELINES["shuffled"](urls).start().snapshot()
    with pytest.raises(StateMismatch, match="stages"):
        PIPELINES["plain"](urls).start(state=state)
    with pytest.raises(StateMismatch, match="snapshot of a pipeline"):
        PIPELINES["plain"](urls).start(state={"step": 3})
    assert state["flow"]["version"] == 1  # states that were written with it are read
    state["flow"]["version"] = 99
    with pytest.raises(StateMismatch, match="version 99"):
        PIPELINES["shuffled"](urls).start(state=state)


@pytest.mark.parametrize("state", [None, 3, [], {}, {"flow": {}}, {"count": 1, "passed": 0, "given": 1, "flow": {}}])
def test_what_is_no_state(urls, state):
    """Anything else is a StateMismatch, never a KeyError from within."""
    whole = PIPELINES["shuffled"](urls).start().snapshot()
    broken = {**whole, "flow": {**whole["flow"], "memories": [{"wrong": 1}] * len(whole["flow"]["memories"])}}
    for candidate in (state, broken) if state is not None else (broken,):
        with pytest.raises(StateMismatch):
            PIPELINES["shuffled"](urls).start(state=candidate)


def test_other_stages_of_the_same_number_are_refused(urls):
    """Stages are compared by name, not counted."""
    state = wds.WebDataset(urls).shuffle(5).start().snapshot()
    with pytest.raises(StateMismatch, match="Shuffle"):
        wds.WebDataset(urls).batched(5).start(state=state)


def test_other_shards_are_refused(urls):
    """A state restored on another list of shards names what stands there."""
    run = PIPELINES["plain"](urls).start()
    for _ in range(20):
        next(run)
    state = run.snapshot()
    assert len(list(PIPELINES["plain"](urls).start(state))) == 26, "a state may come first"
    with pytest.raises(StateMismatch, match="another list of shards"):
        list(PIPELINES["plain"](urls.replace("{0..3}", "{3..0}")).start(state=state))


def test_snapshots_after_a_break(urls):
    """Leaving a loop does not end the run: it can be snapshot, and goes on."""
    make = PIPELINES["shuffled"]
    run = make(urls).start()
    for number, _ in enumerate(run):
        if number == 9:
            break
    state = json.dumps(run.snapshot())
    rest = [repr(item) for item in run]
    assert len(rest) == 36
    assert [repr(item) for item in make(urls).start(state=json.loads(state))] == rest
    closed = make(urls).start(state=json.loads(state))
    next(closed)
    before = closed.snapshot()
    closed.close()
    assert closed.snapshot() == before


def test_abandoned_runs_leave_nothing_open(urls):
    """Without the collector's help: a run that nobody holds is closed."""
    import os

    with no_collector():
        before = len(os.listdir("/proc/self/fd"))
        dataset = PIPELINES["shuffled"](urls)
        for begin in (dataset.start, dataset.iterator, dataset.iterator1, dataset.with_epoch(100).__iter__):
            for _ in range(3):
                for _ in begin():
                    break
        assert len(os.listdir("/proc/self/fd")) == before


def test_kept_samples_in_a_later_pass(urls):
    """A snapshot taken while samples come from memory is refused where that memory is gone."""
    make = lambda: wds.WebDataset(urls, shardshuffle=10).shuffle(10).mcached().repeat(2)
    dataset = make()
    run = dataset.start()
    for _ in range(60):
        next(run)
    state = json.loads(json.dumps(run.snapshot()))
    rest = [s["__key__"] for s in run]
    assert [s["__key__"] for s in dataset.start(state=state)] == rest
    with pytest.raises(FlowError, match="mcached"):
        list(make().start(state=state))


def test_changed_shards_are_noticed(tmp_path):
    """A shard that no longer holds the sample at an address is an error, not another sample."""
    name = str(tmp_path / "a.tar")

    def write(count):
        with wds.TarWriter(name) as sink:
            for index in range(count):
                sink.write({"__key__": f"{index}", "txt": "x" * 1000})

    write(20)
    make = lambda: wds.WebDataset(name, shardshuffle=False).shuffle(5)
    run = make().start()
    for _ in range(10):
        next(run)
    state = run.snapshot()
    write(3)
    with pytest.raises((FlowError, ValueError, OSError)):
        list(make().start(state=state))


def test_another_sample_in_a_buffer_is_named_as_it_is(tmp_path):
    """A shard of the same size with other keys: the message says so once, and not that it cannot be read."""
    name = str(tmp_path / "a.tar")

    def write(first):
        with wds.TarWriter(name, mtime=1) as sink:
            for index in range(20):
                sink.write({"__key__": f"{first + index}", "txt": "x" * 100})
        os.utime(name, (1, 1))

    write(100)
    make = lambda: wds.WebDataset(name, shardshuffle=False).shuffle(5)
    run = make().start()
    for _ in range(10):
        next(run)
    state = run.snapshot()
    run.close()
    write(500)
    with pytest.raises(StateMismatch, match=r"the sample at byte \d+ has another key") as caught:
        list(make().start(state=state))
    assert str(caught.value).count("was replaced since the state was saved") == 1
    assert "cannot be read any more" not in str(caught.value)


def test_closing_closes_streams(urls):
    """A run that is left closes what it holds."""
    import os

    before = len(os.listdir("/proc/self/fd"))
    with PIPELINES["shuffled"](urls).start() as run:
        next(run)
        assert len(os.listdir("/proc/self/fd")) > before
    assert len(os.listdir("/proc/self/fd")) == before


def test_shards_that_were_stepped_over(urls, tmp_path):
    """A shard that cannot be opened, and one that is damaged, are stepped over in a restored run as before."""
    expanded = wds.expand_urls(urls)
    (tmp_path / "damaged.tar").write_bytes(Path(expanded[3]).read_bytes()[:6000])
    mixed = [
        str(tmp_path / "none.tar"),
        expanded[0],
        str(tmp_path / "damaged.tar"),
        str(tmp_path / "no.tar"),
        *expanded[1:],
    ]
    for make in (
        lambda: wds.WebDataset(mixed, shardshuffle=False, seed=1, handler=wds.ignore_and_continue).shuffle(4),
        lambda: wds.WebDataset(mixed, shardshuffle=9, seed=1, handler=wds.ignore_and_continue).shuffle(9).elastic(2),
    ):
        elastic = hasattr(make(), "elastic_run")
        begin = (
            (lambda state: make().elastic_run(state=state)) if elastic else (lambda state: make().start(state=state))
        )
        run = begin(None)
        seen, states = [], []
        for sample in run:
            seen.append(sample["__key__"])
            states.append(json.dumps(run.state_dict() if elastic else run.snapshot()))
        assert len(seen) > 46
        for step in range(1, len(states) + 1, 3):
            assert [sample["__key__"] for sample in begin(json.loads(states[step - 1]))] == seen[step:], step
