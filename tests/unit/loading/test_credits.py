"""How windows are granted to workers: all that may be ahead, and several at a time where each grant is dear."""

import multiprocessing
import time
from itertools import count, repeat

import numpy as np
import pytest

import webdataset as wds
from webdataset.loading import windows
from webdataset.loading.partition import adapt_dataset
from webdataset.loading.process_workers import ProcessWorkers
from webdataset.loading.thread_workers import InlineWorkers, ThreadWorkers
from webdataset.loading.windows import AheadLimits, WindowAssembler

SPAN, AHEAD = 4, 3


def test_only_processes_are_granted_windows_together():
    """A thread that is woken late loses more than the wake-up costs."""
    assert ProcessWorkers.groups_credits
    assert not ThreadWorkers.groups_credits


class RecordingWorkers(InlineWorkers):
    """Workers of this thread; each list of windows that they were granted is kept."""

    def __init__(self, *, groups):
        self.origin = adapt_dataset(list(range(60)))
        super().__init__(self.origin, SPAN)
        self.groups_credits = groups
        self.granted = []

    def grant(self, grants, worker=None):
        self.granted.append([each.window for each in grants])
        super().grant(grants, worker)


@pytest.mark.parametrize(
    ("groups", "clock", "grants"),
    [
        (True, repeat(5.0), [[0, 1, 2, 3], [4, 5], [6, 7]]),
        (True, count(), [[0, 1, 2, 3], [4], [5], [6], [7]]),
        (False, repeat(5.0), [[0, 1, 2, 3], [4], [5], [6], [7]]),
    ],
    ids=["windows-that-come-fast", "slow-windows", "cheap-grants"],
)
def test_windows_that_come_fast_are_granted_two_at_a_time(monkeypatch, groups, clock, grants):
    """Never is one withheld that is needed next, nor where the last grant was long ago."""
    workers = RecordingWorkers(groups=groups)
    assembler = WindowAssembler(workers, span=SPAN, ahead=AheadLimits(AHEAD, AHEAD, 1 << 30), placing=False)
    monkeypatch.setattr(windows.time, "monotonic", lambda: float(next(clock)))
    workers.begin(workers.origin.begin(0, None))
    found = [sample for window in assembler.epoch() for sample in window.samples()]
    assert found == list(range(60))
    assert workers.granted[: len(grants)] == grants


@pytest.mark.parametrize("ahead", [0, 1, 2, 3, 4, 7])
def test_no_more_windows_are_granted_than_may_be_ahead(monkeypatch, ahead):
    """The one that is needed is granted, whatever is withheld."""
    monkeypatch.setattr(windows.time, "monotonic", lambda: 5.0)
    workers = RecordingWorkers(groups=True)
    assembler = WindowAssembler(workers, span=SPAN, ahead=AheadLimits(ahead, ahead, 1 << 30), placing=False)
    workers.begin(workers.origin.begin(0, None))
    for number, _ in enumerate(assembler.epoch()):
        assert number <= max(max(each) for each in workers.granted) <= number + ahead
    assert sum(workers.granted, []) == sorted(sum(workers.granted, []))


@pytest.mark.parametrize(
    ("limits", "window_bytes", "windows"),
    [
        ((3, 16, 1 << 30), 0, 3),
        ((3, 16, 1 << 30), 1000, 16),
        ((3, 16, 1 << 30), 1 << 20, 15),
        ((3, 16, 1 << 30), 1 << 22, 3),
        ((3, 16, 1 << 30), 1 << 28, 3),
        ((3, 16, 1 << 30), 1 << 30, 0),
        ((3, 16, 1 << 30), 1 << 31, -1),
        ((3, 16, 5000), 1000, 4),
        ((5, 5, 1 << 30), 1, 5),
        ((0, 0, 1 << 30), 1, 0),
    ],
)
def test_more_windows_may_be_ahead_where_they_are_small(limits, window_bytes, windows):
    """As many as take 16 MiB, between the two numbers; and never more than the bytes that are allowed."""
    assert AheadLimits(*limits).count_windows(window_bytes) == windows


@pytest.mark.parametrize(("prefetch", "many", "large"), [(None, 16, 3), (2, 2, 2)])
@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_workers_are_ahead_by_more_small_batches_than_large_ones(prefetch, many, large, mode):
    """By default; a number that is given holds for all."""
    for size, most in ((8, many), (1 << 20, large)):
        started = multiprocessing.get_context("fork").Value("i", 0)

        def make(n, started=started, size=size):
            with started.get_lock():
                started.value += 1
            return np.full(size, n % 100, np.uint8)

        dataset = wds.DataPipeline(lambda: iter(range(200)), wds.map(make))
        with wds.Loader(dataset, 4, workers=1, mode=mode, prefetch=prefetch, start_method="fork") as loader:
            batches = iter(loader)
            for _ in range(3):
                next(batches)
            # the third window is with the program: those after it are made
            until, expected = time.monotonic() + 20, 4 * (3 + most)
            while started.value < expected and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.1)
            assert expected <= started.value <= expected + 4


def test_windows_that_grow_beside_their_block_are_weighed():
    """Fields beside arrays of one shape, which become larger later in the epoch, count among what is ahead."""
    samples = [{"x": np.zeros(4), "b": bytes(10 if n < 40 else 1 << 20)} for n in range(80)]
    with wds.Loader(samples, 4, workers=1) as loader:
        assert sum(len(batch["b"]) for batch in loader) == 80
        assert loader._windows.window_bytes > 4 << 20
