"""What a loader says about its dataset's stages: seconds, samples, what handlers let pass; all workers together."""

import re

import pytest

import webdataset as wds
from webdataset.loading import LoaderStats, worker
from webdataset.loading.partition import StridedShare
from webdataset.loading.worker import MetricsRecorder, RowCounts, WindowPart, WorkerMetrics

MODES = [
    {"workers": 0},
    {"workers": 2},
    {"workers": 2, "mode": "processes", "start_method": "fork"},
    {"workers": 2, "mode": "processes", "start_method": "forkserver"},
    {"workers": 2, "mode": "processes", "start_method": "spawn"},
]


def picky():
    """Return a function that fails at every tenth class, and is pickled as it is."""

    def picky(sample):
        if sample["cls"] % 10 == 3:
            raise ValueError("a three")
        return sample

    return picky


def dataset(urls, **options):
    """Return a dataset that steps over every tenth sample."""
    made = wds.WebDataset(urls, shardshuffle=100, seed=7, **options).shuffle(10).decode()
    return made.map(picky(), handler=wds.ignore_and_continue).to_tuple("npy", "cls")


@pytest.mark.parametrize(
    ("kind", "mode"), [*(("plain", mode) for mode in MODES[:4]), *(("elastic", mode) for mode in MODES[1::3])], ids=str
)
def test_stages_and_skips_of_all_workers(numbered, kind, mode):
    """Every stage is told, all workers together; what a handler let pass is counted exactly, where it happened."""
    made = dataset(numbered) if kind == "plain" else dataset(numbered).elastic(streams=12)
    with wds.Loader(made, 8, **mode) as loader:
        for epochs in (1, 2):
            count = sum(len(classes) for _, classes in loader)
            found = loader.stats()
            assert found.skipped == epochs * (140 - count) == epochs * 14
    reading, shuffle, decode, mapped, fields = found.stages
    assert [reading.name, shuffle.name, decode.name, fields.name] == ["reading", "shuffle", "decode", "to_tuple"]
    assert re.fullmatch(r"map\(picky at test_statistics_stages\.py:\d+\)", mapped.name)
    assert [stage.skipped for stage in found.stages] == [0, 0, 0, 28, 0]
    assert found.skips == {mapped.name: 28}
    assert all(stage.seconds >= 0 and stage.samples > 0 for stage in found.stages)
    assert sum(stage.share for stage in found.stages) == pytest.approx(1.0)
    assert fields.samples == pytest.approx(found.samples, abs=12)


@pytest.mark.parametrize("mode", MODES[:3], ids=str)
def test_batches_and_states_are_as_without(elastic, mode):
    """The same batches, and after each the same state, with timings and without; one goes on where the other was."""

    def told(loader):
        return [([int(number) for number in classes], loader.state_dict()) for _, classes in loader]

    with wds.Loader(elastic, 8, timings=False, **mode) as loader:
        loader.set_epoch(0)
        without = told(loader)
        assert loader.stats().stages == []
    with wds.Loader(elastic, 8, **mode) as loader:
        loader.set_epoch(0)
        assert told(loader) == without
        assert [stage.name for stage in loader.stats().stages] == ["reading", "shuffle", "decode", "to_tuple"]
        loader.load_state_dict(without[6][1])
        assert told(loader) == without[7:]


def test_the_report_is_live(numbered, monkeypatch):
    """Figures come while the epoch runs, and a snapshot of them stays as it is."""
    monkeypatch.setattr(worker, "_OFTEN_SECONDS", 0.0)
    with wds.Loader(dataset(numbered), 8) as loader:
        batches = iter(loader)
        next(batches)
        first = loader.stats()
        before = repr(first)
        seconds = [stage.seconds for stage in first.stages]
        assert len(seconds) == 5
        list(batches)
        assert repr(first) == before
        later = [stage.seconds for stage in loader.stats().stages]
    assert all(after >= begun for after, begun in zip(later, seconds, strict=True))


def test_shards_that_are_stepped_over(numbered, tmp_path):
    """A shard that cannot be opened, and one that breaks off, are counted with reading."""
    broken = tmp_path / "broken.tar"
    with open(numbered[0], "rb") as whole:
        broken.write_bytes(whole.read()[:3000])
    urls = [numbered[1], str(tmp_path / "none.tar"), str(broken)]
    made = wds.WebDataset(urls, shardshuffle=False, handler=wds.ignore_and_continue).decode().to_tuple("cls")
    with wds.Loader(made, 4) as loader:
        list(loader)
        found = loader.stats()
    assert found.skips == {"opening": 1, "reading": 1}
    assert (found.stages[0].name, found.stages[0].skipped, found.skipped) == ("reading", 2, 2)


def test_skips_are_counted_without_timings_and_when_a_worker_fails(numbered):
    """What was let pass before a failure is not forgotten."""

    def fails(sample):
        if sample[1] == 60:
            raise RuntimeError("sixty")
        return sample

    made = wds.WebDataset(numbered, shardshuffle=False).decode().map(picky(), handler=wds.ignore_and_continue)
    with wds.Loader(made.to_tuple("npy", "cls").map(fails), 8, timings=False) as loader:
        with pytest.raises(RuntimeError, match="sixty"):
            list(loader)
        found = loader.stats()
    assert (found.skipped, found.failures) == (6, 1)
    assert [(stage.skipped, stage.samples) for stage in found.stages] == [(6, 0)]


def test_a_resumed_loader_counts_what_a_failed_one_has_not(numbered):
    """A failure is a cut like any other: what is made again after the last state is counted then, and once."""
    broken = [True]

    def breaks(sample):
        if sample["cls"] == 60 and broken:
            raise RuntimeError("sixty")
        return sample

    made = wds.WebDataset(numbered, shardshuffle=False, seed=1).decode().map(picky(), handler=wds.ignore_and_continue)
    made = made.map(breaks).to_tuple("npy", "cls").elastic(4)
    with wds.Loader(made, 8, workers=2) as loader:
        states = [loader.state_dict()]
        with pytest.raises(RuntimeError, match="sixty"):
            states.extend(loader.state_dict() for _ in loader)
        first = loader.stats().skipped
    broken.clear()
    with wds.Loader(made, 8) as loader:
        loader.load_state_dict(states[-1])
        list(loader)
        assert 0 < first < 14
        assert first + loader.stats().skipped == 14


@pytest.mark.parametrize("mode", [MODES[0], MODES[2]], ids=str)
def test_samples_that_are_dropped(numbered, mode):
    """None drops a sample: counted by function, apart from failures, and told where there are any."""

    def choosy(sample):
        return sample if sample["cls"] % 4 else None

    made = wds.WebDataset(numbered, shardshuffle=False).decode().map(choosy)
    with wds.Loader(made.map(picky(), handler=wds.ignore_and_continue).to_tuple("cls"), 8, **mode) as loader:
        list(loader)
        found = loader.stats()
    assert (found.dropped, found.skipped, found.samples) == (35, 14, 140 - 35 - 14)
    assert [(stage.dropped, stage.skipped) for stage in found.stages] == [(0, 0), (0, 0), (35, 0), (0, 14), (0, 0)]
    lines = found.report().splitlines()
    assert lines[0].split()[-2:] == ["skipped", "dropped"]
    assert lines[3].split()[-2:] == ["0", "35"]
    assert lines[-1] == "failures 0, skipped 14, dropped 35"


def test_a_pipeline_that_shares_nothing_out():
    """One worker does all of its work, and what the others say adds nothing."""
    made = wds.DataPipeline([list(range(40))], wds.map(int))
    with wds.Loader(made, 4, workers=2) as loader:
        assert sum(len(batch) for batch in loader) == 40
        assert [stage.samples for stage in loader.stats().stages] == pytest.approx([40, 40], abs=4)


def test_datasets_without_stages():
    """A list has no stages; the report says the rest."""
    with wds.Loader(list(range(10)), 4) as loader:
        list(loader)
        assert loader.stats().stages == []
        lines = loader.stats().report().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("10 samples in ")
    assert lines[2] == "failures 0, skipped 0"


def test_the_table(numbered):
    """One line for each stage, then speed, waiting and failures."""
    with wds.Loader(dataset(numbered), 8) as loader:
        list(loader)
        lines = loader.stats().report().splitlines()
    assert lines[0].split() == ["stage", "~samples", "ms/sample", "share", "skipped"]
    assert [re.split(r"[( ]", line)[0] for line in lines[1:6]] == ["reading", "shuffle", "decode", "map", "to_tuple"]
    assert "samples/s" in lines[6]
    assert lines[7].startswith("waited for batches")
    assert lines[8] == "failures 0, skipped 14"


def test_prometheus_labels_stages():
    """Stages are labels of counters whose names stay."""
    found = LoaderStats(workers=2)
    rows = [("reading", 10, 1.5), ('map("f" at x.py:1)', 8, 0.5)]
    for number in (0, 1):
        found.count(WindowPart(number, 0, findings=WorkerMetrics(rows)))
        found.receive([RowCounts(0, {"opening": 1}, {}), RowCounts(3, {"map": 3}, {"map": 2})])
    text = found.prometheus(rank="0")
    assert "webdataset_loader_skipped_total" + '{rank="0"} 8' in text
    assert 'webdataset_loader_stage_seconds_total{rank="0",stage="reading"} 3.0' in text
    assert 'webdataset_loader_stage_samples_total{rank="0",stage="map(\\"f\\" at x.py:1)"} 16' in text
    assert 'webdataset_loader_stage_skipped_total{rank="0",stage="reading"} 2' in text
    assert "webdataset_loader_dropped_total" + '{rank="0"} 4' in text
    assert 'webdataset_loader_stage_dropped_total{rank="0",stage="map(\\"f\\" at x.py:1)"} 4' in text
    assert text.count("# TYPE webdataset_loader_stage_seconds_total counter") == 1
    names = [line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    assert "stage_rows" not in text


def test_notes_are_told_now_and_then():
    """A worker says what stages took at most four times a second, and at its end; what it counted, once."""
    notes = MetricsRecorder(StridedShare(iter(()), 0, 1, meter=None))
    assert notes.report(4, over=True) is None
    notes = MetricsRecorder(StridedShare(iter(()), 0, 1, meter=_Rows()))  # type: ignore[arg-type]
    assert notes.report(4, over=False) is None
    assert notes.report(0, over=True) == WorkerMetrics([("decode", 4, 1.0)])
    notes.skips["decode"] += 2
    notes.drops["map"] += 1
    assert notes.count_row(7) == RowCounts(7, {"decode": 2}, {"map": 1})
    assert not notes.skips
    assert not notes.drops


class _Rows:
    """A meter with one row."""

    def estimate(self, delivered):
        """Return it."""
        return [("decode", delivered, 1.0)]


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize(("mode", "workers"), [("threads", 0), ("threads", 2), ("processes", 2)])
def test_a_rest_that_makes_no_batch_is_counted(tmp_path, mode, workers, elastic):
    """partial=False: what is given and what is dropped are all samples, by worker and by stream."""
    urls = [str(tmp_path / f"{number}.tar") for number in range(2)]
    for number, url in enumerate(urls):
        with wds.TarWriter(url) as sink:
            for index in range(5):
                sink.write({"__key__": f"{number}-{index}", "txt": "x"})
    for stage, name in ((wds.listed(3, partial=False), "listed"), (wds.batched(3, len, partial=False), "batched")):
        dataset = wds.WebDataset(urls, shardshuffle=False).compose(stage)
        with wds.Loader(dataset.elastic(2) if elastic else dataset, None, workers=workers, mode=mode) as loader:
            batches = len(list(loader))
            stats = loader.stats()
        assert 3 * batches + stats.dropped == 10
        assert stats.dropped > 0
        assert stats.drops == {name: stats.dropped}
    timed = wds.WebDataset(urls, shardshuffle=False).compose(wds.listed(3, partial=False)).timed()
    assert len(list(timed)) == 3
    assert sum(stage.dropped for stage in timed.stages) == 1
