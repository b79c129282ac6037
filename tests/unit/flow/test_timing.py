"""Where the time goes: the seconds that each stage takes for itself."""

import gc
import threading
import weakref

import pytest

import webdataset as wds
from webdataset.flow.run import Flow
from webdataset.flow.timing import StageMeter, StageTime, format_table, stage_times
from webdataset.stages.base import Run


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds, result):
        """Let some time go by."""
        self.now += seconds
        return result


def passed(dataset, meter):
    """Return the items of a run with a meter, and what it says: name to (samples, seconds)."""
    dataset.meter = meter
    items = list(dataset)
    return items, {name: (samples, seconds) for name, samples, seconds in meter.rows()}


def spending(clock, count):
    """Return a pipeline whose stages take 3, 2 and 1 seconds for an item."""
    return wds.DataPipeline(
        lambda: (clock.spend(3.0, n) for n in range(count)),
        wds.map(lambda n: clock.spend(2.0, n)),
        wds.select(lambda n: clock.spend(1.0, n % 2 == 0)),
        wds.batched(4, collation_fn=lambda batch: clock.spend(10.0, batch)),
    )


def test_each_stage_is_told_what_it_took_itself():
    """Seconds are a stage's own, without those of the stages before it; samples are those it gave."""
    clock = Clock()
    items, found = passed(spending(clock, 16), StageMeter(1.0, clock, cost=0.0))
    assert items == [[0, 2, 4, 6], [8, 10, 12, 14]]
    (source, *rest), (told, *figures) = found, found.values()
    assert source == "function"
    assert [name.partition("(")[0] for name in rest] == ["map", "select", "batched"]
    assert (told, *figures) == ((16, 48.0), (16, 32.0), (8, 16.0), (2, 20.0))


def test_steps_that_were_not_timed_are_estimated():
    """With a small budget few steps are timed, and the estimate for all of them is right where all are alike."""
    clock = Clock()
    meter = StageMeter(1e-13, clock, cost=1e-9)
    dataset = wds.DataPipeline(
        lambda: (clock.spend(3.0, n) for n in range(5000)), wds.map(lambda n: clock.spend(2.0, n))
    )
    timed = []
    dataset.meter = meter
    step = meter.step
    meter.step = lambda *given, **more: timed.append(1) or step(*given, **more)
    assert list(dataset) == list(range(5000))
    assert 5 < len(timed) < 100
    (_, first, source), (_, second, mapped) = meter.estimate(5000)
    assert (first, second) == (5000, 5000)
    assert source == pytest.approx(15000, rel=1e-3)
    assert mapped == pytest.approx(10000, rel=1e-3)
    assert [(samples, seconds) for _, samples, seconds in meter.estimate(5000)] == [(0, 0.0), (0, 0.0)]


def test_a_first_step_that_fills_a_buffer_stands_for_itself():
    """A step that opens shards or fills buffers is timed, and not taken for one of many."""
    clock = Clock()

    def late(source):
        clock.spend(1000.0, None)
        yield from source

    meter = StageMeter(1e-13, clock, cost=1e-9)
    dataset = wds.DataPipeline(lambda: iter(range(2000)), late)
    dataset.meter = meter
    assert len(list(dataset)) == 2000
    assert meter.estimate(2000)[1][2] == pytest.approx(1000.0)


def test_what_reading_the_clock_takes_is_taken_off():
    """The cost of a gate is not counted as the time of the stage behind it."""
    clock = Clock()

    class Slow(StageMeter):
        def time_step(self, items, row):
            item = super().time_step(items, row)
            clock.now += 0.5
            return item

    _, found = passed(wds.DataPipeline(lambda: iter(range(8)), wds.map(abs)), Slow(1.0, clock, cost=0.5))
    assert [seconds for _, seconds in found.values()] == [0.0, 0.0]


@pytest.mark.parametrize("budget", [1.0, 1e-9])
@pytest.mark.parametrize("streams", [None, 6])
def test_order_and_state_are_as_without(urls, budget, streams):
    """Items, and the state after each of them, are the same with and without a meter; states go on in each other."""

    def started(meter, state=None):
        dataset = wds.WebDataset(urls, shardshuffle=10, seed=3, empty_check=False).shuffle(8).decode().map(dict)
        dataset = dataset.select(lambda sample: sample["cls"] % 3 > 0).to_tuple("__key__", "cls").batched(3)
        if streams is None:
            dataset.meter = meter
            return dataset.start(state)
        run = dataset.elastic(streams).elastic_run(state=state)
        run.meter = meter
        return run

    def states(run):
        told = run.snapshot if streams is None else run.state_dict
        return [(repr(item), told()) for item in run]

    whole = states(started(None))
    assert states(started(StageMeter(budget, cost=1e-6))) == whole
    for step in (0, 2, len(whole) - 2):
        assert states(started(StageMeter(budget, cost=1e-6), whole[step][1])) == whole[step + 1 :]


def test_of_a_workers_streams_every_fourth_has_gates(urls):
    """Streams are alike: the others cost nothing, and count with the estimate."""
    meter = StageMeter(1e-9, cost=1e-6)
    run = wds.WebDataset(urls, shardshuffle=False).to_tuple("cls").elastic(4).elastic_run()
    run.meter = meter
    count = len(list(run))
    assert count == 46
    gates = [
        level.gate for stream in run._started.streams.values() if stream.loop for level in stream.loop.flow.runners
    ]
    assert not any(gates)  # streams that are over are let go of
    (name, read, _), (_, given, _) = meter.estimate(count)
    assert name == "reading"
    assert read == given == 46


def test_nothing_is_asked_where_there_is_no_meter():
    """A run without a meter has no gates: the consumer draws from the last stage itself."""
    flow = Flow([[1, 2], wds.map(abs)], Run())
    assert [level.gate for level in flow.runners] == [None, None]
    assert flow.items is flow.runners[-1].items


def test_no_sample_is_kept():
    """When a run is over, nothing refers to its samples; while it waits, to the last one at most, as any stage does."""

    class Sample:
        pass

    seen = []

    def made():
        for _ in range(20):
            sample = Sample()
            seen.append(weakref.ref(sample))
            yield sample
            del sample

    meter = StageMeter(1.0)
    dataset = wds.DataPipeline(made, wds.map(lambda sample: sample))
    dataset.meter = meter
    items = iter(dataset)
    for _ in range(10):
        next(items)
    gc.collect()
    assert sum(each() is not None for each in seen) <= 1
    for _ in items:
        pass
    gc.collect()
    assert len(seen) == 20
    assert not any(each() is not None for each in seen[:-1])


def test_the_stages_of_a_mixs_sources_are_told():
    """A pipeline within a stage has rows of its own; what a mix took is only the mixing."""
    clock = Clock()
    sources = [wds.DataPipeline(lambda: iter(range(6)), wds.map(lambda n: clock.spend(5.0, n))) for _ in range(2)]
    mixed = wds.DataPipeline(wds.RoundRobin(sources), wds.map(lambda n: clock.spend(1.0, n)))
    items, found = passed(mixed, StageMeter(1.0, clock, cost=0.0))
    assert sorted(items) == sorted([*range(6)] * 2)
    assert found["RoundRobin"] == (12, 0.0)
    assert sorted(figures for figures in found.values() if figures[1]) == [(12, 12.0), (12, 60.0)]


def test_a_stage_that_draws_in_a_thread_of_its_own():
    """Its items come all the same; what another thread takes is not counted as the stage's."""

    def ahead(source):
        found = []
        thread = threading.Thread(target=lambda: found.extend(source))
        thread.start()
        thread.join()
        yield from found

    items, found = passed(wds.DataPipeline(lambda: iter(range(5)), ahead, wds.map(abs)), StageMeter(1.0))
    assert items == list(range(5))
    assert all(seconds >= 0 for _, seconds in found.values())


def test_errors_pass_and_generators_are_closed():
    """A stage's error arrives as it is; giving a run up closes its source."""
    closed = []

    def source():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    dataset = wds.DataPipeline(source, wds.map(lambda n: 1 / (4 - n)))
    dataset.meter = meter = StageMeter(1.0)
    with pytest.raises(ZeroDivisionError):
        list(dataset)
    assert [samples for _, samples, _ in meter.rows()] == [5, 4]
    dataset = wds.DataPipeline(source, wds.map(abs))
    dataset.meter = StageMeter()
    items = iter(dataset)
    next(items)
    items.close()
    assert closed == [True, True]


def test_names(urls):
    """Stages are called by their name and the user's functions, with file and line; equal names are told apart."""

    def twice(n):
        return n

    def passing(source):
        yield from source

    def own(sample):
        return sample

    dataset = wds.WebDataset(urls, shardshuffle=False).decode().map(own, handler=wds.ignore_and_continue).map(own)
    dataset = dataset.shuffle(2).map_dict(cls=twice).rename(label="cls").compose(passing)
    _, found = passed(dataset, StageMeter(1.0))
    names = [name.replace(f":{own.__code__.co_firstlineno}", ":1") for name in found]
    names = [name.replace(f":{twice.__code__.co_firstlineno}", ":2") for name in names]
    names = [name.replace(f":{passing.__code__.co_firstlineno}", ":3") for name in names]
    assert names == [
        "reading",
        "decode",
        "map(own at test_timing.py:1)",
        "map(own at test_timing.py:1) #2",
        "shuffle",
        "map_dict(twice at test_timing.py:2)",
        "rename",
        "stage(passing at test_timing.py:3)",
    ]


def test_a_timed_dataset(urls):
    """timed() gives the dataset's items, epoch after epoch, and says what each stage took and what was stepped over."""

    def picky(sample):
        if sample["cls"] % 5 == 0:
            raise ValueError("five")
        return sample

    dataset = wds.WebDataset(urls, shardshuffle=False).decode().map(picky, handler=wds.ignore_and_continue)
    expected = [sample["__key__"] for sample in dataset]
    timed = dataset.timed()
    for epoch in (1, 2):
        assert [sample["__key__"] for sample in timed] == expected
        assert timed.samples == epoch * len(expected)
    lost = 2 * (46 - len(expected))
    assert timed.skipped == lost > 0
    reading, decode, mapped = timed.stages
    assert (reading.name, decode.name) == ("reading", "decode")
    assert (reading.samples, decode.samples, mapped.samples) == (92, 92, 92 - lost)
    assert (reading.skipped, decode.skipped, mapped.skipped) == (0, 0, lost)
    assert sum(stage.share for stage in timed.stages) == pytest.approx(1.0)
    assert 0 < sum(stage.seconds for stage in timed.stages) <= timed.seconds
    lines = timed.report().splitlines()
    assert lines[0].split() == ["stage", "samples", "ms/sample", "share", "skipped"]
    assert lines[3].startswith("map(")
    assert f"skipped {lost}" in lines[-1]
    assert dataset.meter is None


def test_a_timed_elastic_dataset(urls):
    """Every stream's stages are timed."""
    dataset = wds.WebDataset(urls, shardshuffle=False).decode().elastic(5)
    timed = dataset.timed()
    assert len(list(timed)) == 46
    assert [(stage.name, stage.samples) for stage in timed.stages] == [("reading", 46), ("decode", 46)]


def test_a_timed_dataset_that_is_given_up(urls):
    """Figures stay; what other pipelines step over in between is not counted."""

    def fails(sample):
        raise ValueError("always")

    timed = wds.WebDataset(urls, shardshuffle=False).decode().timed()
    items = iter(timed)
    next(items)
    assert not list(wds.WebDataset(urls, shardshuffle=False).map(fails, handler=wds.ignore_and_continue))
    next(items)
    items.close()
    assert (timed.samples, timed.skipped) == (2, 0)


def test_failures_under_a_name_without_a_row():
    """Nothing that was counted is left out of the list; what was stepped over while opening belongs to reading."""
    rows = [("reading", 10, 3.0), ("map(f at x.py:1)", 10, 1.0)]
    found = stage_times(rows, {"opening": 1, "reading": 2, "map(f at x.py:1)": 4, "other": 5})
    assert found == [
        StageTime("reading", 10, 3.0, 0.75, 3),
        StageTime("map(f at x.py:1)", 10, 1.0, 0.25, 4),
        StageTime("other", 0, 0.0, 0.0, 5),
    ]
    assert format_table([], "only this") == "only this"
    assert format_table([StageTime("x" * 80, 1, 0.001, 1.0)], "last").splitlines()[1].split()[1:] == [
        "1",
        "1.000",
        "100.0%",
        "0",
    ]
