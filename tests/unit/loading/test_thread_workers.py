"""What threads keep of what they sent, so that it is released by the thread that made it."""

import gc
import threading
import time
from itertools import accumulate

import pytest

import webdataset as wds
from webdataset.loading import thread_workers

PREFETCH, BATCH, COUNT = 2, 8, 400
# a free-threaded Python hands every object back to its thread
LOCKED = not thread_workers.FREE_THREADED


class Watch:
    """What became of the witnesses of one run, in the order of time.

    It takes no lock: an object may be released while its thread holds one.
    """

    def __init__(self):
        self.events = []

    @property
    def living(self):
        """How many witnesses live."""
        events = list(self.events)
        return 2 * events.count("made") - len(events)

    @property
    def most(self):
        """How many lived at one time, at most."""
        return max(accumulate(1 if event == "made" else -1 for event in self.events))

    def wait(self):
        """Wait until no witness lives."""
        patience = time.monotonic() + 20
        while self.living and time.monotonic() < patience:
            gc.collect()
            time.sleep(0.01)
        assert self.living == 0


class Witness:
    """A value that tells which thread releases it."""

    def __init__(self, watch, nbytes):
        self.watch, self.nbytes = watch, nbytes
        watch.events.append("made")

    def __del__(self):
        maker = threading.current_thread().name.startswith("webdataset-loader-")
        self.watch.events.append("maker" if maker else "consumer")


class Made:
    """Samples that are made when they are asked for; the one of ``fails`` is not."""

    def __init__(self, nbytes=8, fails=-1):
        self.watch, self.nbytes, self.fails = Watch(), nbytes, fails

    def __len__(self):
        return COUNT

    def __getitem__(self, number):
        if number == self.fails:
            raise ValueError("this one is not made")
        return number, Witness(self.watch, self.nbytes)


def load(made, workers=2, **options):
    """Return a loader in threads."""
    return wds.Loader(made, BATCH, workers=workers, prefetch=PREFETCH, **options)


@pytest.fixture(params=[True, False] if LOCKED else [True], ids=lambda kept: "kept" if kept else "not kept")
def kept(request, monkeypatch):
    """Threads keep what they sent, as where Python has no global lock, or do not."""
    monkeypatch.setattr(thread_workers, "FREE_THREADED", request.param)
    return request.param


@pytest.mark.parametrize("options", [{}, {"collate": list}], ids=["columns", "samples"])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_maker_releases(kept, workers, options):
    """The program drops one batch when it gets the next: the threads that made the samples release them after it."""
    made = Made()
    with load(made, workers, **options) as loader:
        for batch in loader:
            assert len(batch) in (2, BATCH)
            del batch
    made.watch.wait()
    # at the end, either may be the last to refer to what was sent
    unsure = (PREFETCH + 3) * BATCH
    assert (made.watch.events.count("maker") >= COUNT - unsure) is kept
    assert made.watch.events.count("made") == COUNT


@pytest.mark.parametrize("workers", [1, 3])
def test_few_samples_live(kept, workers):
    """Kept parts are those of three windows at most; what is large is not kept."""
    for nbytes, more in ((8, 3 if kept else 1), (1 << 20, 1)):
        made = Made(nbytes)
        with load(made, workers) as loader:
            for batch in loader:
                assert len(batch) == 2
                del batch
        # those ahead, the one that is needed, the one that is being made, and what workers still hold
        assert made.watch.most <= (PREFETCH + 2 + more) * BATCH


@pytest.mark.usefixtures("kept")
def test_nothing_is_kept_by_idle_threads():
    """An epoch that ended, one that was given up, one that failed, and a loader that is closed leave no sample."""
    made = Made()
    with load(made) as loader:
        for _ in range(2):
            assert sum(len(batch[0]) for batch in loader) == COUNT
            made.watch.wait()
        epoch = iter(loader)
        for _ in range(5):
            assert len(next(epoch)) == 2
        loader._give_up("of the test")
        made.watch.wait()
        next(iter(loader))
    made.watch.wait()
    failing = Made(fails=100)
    with load(failing) as loader:
        with pytest.raises(ValueError, match="this one is not made"):
            list(loader)
        failing.watch.wait()


def test_a_program_may_keep_all(kept):
    """Batches that the program keeps are whole, whoever refers to them last."""
    made = Made()
    with load(made) as loader:
        batches = list(loader)
    assert [number for numbers, _ in batches for number in numbers.tolist()] == list(range(COUNT))
    assert made.watch.living == COUNT
    del batches
    made.watch.wait()
    assert (made.watch.events.count("consumer") == COUNT) or kept
