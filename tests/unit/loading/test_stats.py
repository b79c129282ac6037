"""What a loader says about itself."""

import itertools
import re

import numpy as np
import pytest

import webdataset as wds
from webdataset.loading import LoaderStats
from webdataset.loading.worker import WindowPart


@pytest.mark.parametrize(("workers", "mode"), [(0, "threads"), (2, "threads"), (2, "processes")])
def test_counters_agree_with_what_was_delivered(workers, mode, monkeypatch):
    """Epochs, batches, samples and bytes are counted; times are of the right parties."""
    readings = itertools.count()  # a clock that moves on by being read
    monkeypatch.setattr("time.perf_counter", lambda: float(next(readings)))
    samples = [(np.zeros((10, 10)), n) for n in range(50)]
    start_method = "fork" if mode == "processes" else None
    with wds.Loader(samples, 8, workers=workers, mode=mode, start_method=start_method) as loader:
        assert loader.stats() == LoaderStats(workers=workers)
        delivered = 0
        for _ in range(2):
            for pixels, numbers in loader:
                delivered += pixels.nbytes + numbers.nbytes
                found = loader.stats()
                assert found.bytes == delivered
        found = loader.stats()
    assert (found.epochs, found.batches, found.samples, found.failures) == (2, 14, 100, 0)
    assert len(found.worker_busy_seconds) == max(workers, 1)
    assert all(seconds > 0 for seconds in found.worker_busy_seconds)
    assert 0 < found.waiting_seconds <= found.running_seconds < next(readings)
    assert 0 < found.waiting_share <= 1
    assert found.samples_per_second > 0
    assert found.memory_bytes > 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, list])
def test_samples_that_drop_last_leaves_out_are_counted(workers, collate):
    """At the end of each epoch, as what a stage drops is; a run that was stopped and resumed counts them once."""
    dataset = wds.DataPipeline([list(range(50))]).elastic(streams=4)
    with wds.Loader(dataset, 8, workers=workers, drop_last=True, collate=collate) as loader:
        for number, _ in enumerate(loader, 1):
            if number == 6:
                state = loader.state_dict()
        assert loader.stats().drops == {"drop_last": 2}
        for _ in loader:
            pass
        found = loader.stats()
        assert (found.samples, found.dropped, found.drops) == (96, 4, {"drop_last": 4})
        assert [stage.dropped for stage in found.stages if stage.name == "drop_last"] == [4]
    with wds.Loader(dataset, 8, workers=workers, drop_last=True, collate=collate) as again:
        again.load_state_dict(state)
        again.set_epoch(state["epoch"])
        assert list(again) == []
        assert again.stats().drops == {"drop_last": 2}
    with wds.Loader(dataset, 8, workers=workers, collate=collate) as whole:
        assert sum(1 for _ in whole) == 7
        assert whole.stats().dropped == 0
    with wds.Loader(dataset, 10, workers=workers, drop_last=True, collate=collate) as even:
        assert sum(1 for _ in even) == 5
        assert even.stats().dropped == 0


def test_seconds_of_workers_are_added_up():
    """Those of each worker by themselves, work and waits apart, in whatever order the parts come."""
    found = LoaderStats(workers=3)
    for worker, busy, waiting in ((2, 1.0, 10.0), (0, 2.0, 20.0), (2, 4.0, 40.0)):
        found.count(WindowPart(worker, 0, timings=(busy, waiting)))
    assert found.worker_busy_seconds == [2.0, 0.0, 5.0]
    assert found.worker_waiting_seconds == [20.0, 0.0, 50.0]


def test_a_snapshot_does_not_change():
    """What stats() returned stays as it was."""
    with wds.Loader(list(range(10)), 2, workers=1) as loader:
        batches = iter(loader)
        next(batches)
        first = loader.stats()
        before = repr(first)
        list(batches)
        assert repr(first) == before
        assert loader.stats().batches == 5


def test_prometheus_text():
    """Each metric has help, type and a value; counters end in _total; labels are escaped."""
    found = LoaderStats(epochs=1, batches=3, workers=2)
    found.count(WindowPart(1, 0, timings=(0.5, 0.25)))
    text = found.prometheus(rank="0", job='a "b"\\\n')
    for line in text.splitlines():
        assert re.fullmatch(
            r'# (HELP|TYPE) \w+ .+|webdataset_loader_\w+(\{(\w+="([^"\\]|\\.)*",?)+\})? [\d.e+-]+', line
        )
    assert 'webdataset_loader_batches_total{rank="0",job="a \\"b\\"\\\\\\n"} 3' in text
    assert re.search(r'worker_busy_seconds_total\{.*worker="1"\} 0\.5', text)
    assert "# TYPE webdataset_loader_workers gauge" in text
    assert LoaderStats().prometheus("x").startswith("# HELP x_epochs_total")


def test_a_few_words_for_a_progress_bar():
    """A bar of tqdm takes them as they are."""
    tqdm = pytest.importorskip("tqdm")
    with wds.Loader(list(range(10)), 2) as loader, tqdm.tqdm(loader, disable=True) as bar:
        for _ in bar:
            bar.set_postfix(loader.stats().postfix())
    assert set(loader.stats().postfix()) == {"samples/s", "MB/s", "wait"}
    assert LoaderStats().postfix() == {"samples/s": "0", "MB/s": "0", "wait": "0%"}
