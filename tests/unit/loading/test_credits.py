"""How windows are granted to workers: all that may be ahead, and several at a time where each grant is dear."""

from itertools import count, repeat

import pytest

from webdataset.loading import windows
from webdataset.loading.partition import adapt_dataset
from webdataset.loading.process_workers import ProcessWorkers
from webdataset.loading.thread_workers import InlineWorkers, ThreadWorkers
from webdataset.loading.windows import WindowAssembler

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

    def grant(self, grants):
        self.granted.append([each.window for each in grants])
        super().grant(grants)


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
    assembler = WindowAssembler(workers, span=SPAN, ahead=AHEAD, ahead_bytes=1 << 30, placing=False)
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
    assembler = WindowAssembler(workers, span=SPAN, ahead=ahead, ahead_bytes=1 << 30, placing=False)
    workers.begin(workers.origin.begin(0, None))
    for number, _ in enumerate(assembler.epoch()):
        assert number <= max(max(each) for each in workers.granted) <= number + ahead
    assert sum(workers.granted, []) == sorted(sum(workers.granted, []))
