"""A loader of processes where the system has no room left, or waits in its own way."""

import multiprocessing
import os
import resource
import signal
import socket
import threading
import time

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import FlowError, WorkerDied

AHEAD = 3  # batches


class Arrays:
    """Numbered arrays, of one shape or of several, and a number of files that a worker may open."""

    def __init__(self, count=100, *, ragged=False, files=None):
        self.count = count
        self.ragged = ragged
        self.files = files

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if self.files is not None and number in (0, 1):  # the first of each worker
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, self.files))
        return np.full((64, 64 + self.ragged * (number % 3)), number), number


def processes(dataset, batch_size=8, **arguments):
    """Return a loader with two processes: forks, since a server of forks keeps the limit that it was started with."""
    return wds.Loader(dataset, batch_size, workers=2, mode="processes", **{"start_method": "fork", **arguments})


@pytest.fixture
def files():
    """Return a function that lets this process open so many files more; undone at the end."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def allow(more):
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        # the limit is a bound on numbers, of which lower ones may be free; the listing's own is, by now
        taken = {int(number) for number in os.listdir("/proc/self/fd")}
        taken = {number for number in taken if os.path.lexists(f"/proc/self/fd/{number}")}  # noqa: PTH110
        limit, left = 0, more
        while limit in taken or left:
            left -= limit not in taken
            limit += 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))

    yield allow
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("more", range(0, 10, 3))
@pytest.mark.parametrize("ragged", [False, True])
def test_a_program_that_can_open_no_more_files_is_told(files, ragged, more):
    """It does not hang, no worker is blamed for it, none is left behind, and later the loader goes on."""
    loader = processes(Arrays(320, ragged=ragged))
    batches = iter(loader)
    kept = [next(batches)]
    files(more)
    with pytest.raises(FlowError, match="no file descriptors left.*ulimit -n") as caught:
        kept.extend(batches)
    assert not isinstance(caught.value, WorkerDied)
    files(200)
    assert len(list(loader)) == 40
    loader.close()
    assert not multiprocessing.active_children()
    for number, (_, numbers) in enumerate(kept):
        assert numbers.tolist() == list(range(number * 8, number * 8 + 8))


@pytest.mark.parametrize("more", [0, 4, 8, 9, 10, 12])
def test_a_loader_that_cannot_start_for_want_of_files_is_told(files, more):
    """Whatever there is no room for, the program goes on with an error, and can start it later."""
    with processes(Arrays()) as loader:
        files(more)
        with pytest.raises((OSError, FlowError), match="Too many open files|no file descriptors left"):
            list(loader)
        loader.close()  # workers that were forked have the limit, too
        assert not multiprocessing.active_children()
        files(200)
        assert len(list(loader)) == 13


@pytest.mark.parametrize("ragged", [False, True])
def test_a_worker_that_can_open_no_more_files_says_so(ragged):
    """The error comes from the worker, as an exception, and not as its death."""
    loader = processes(Arrays(ragged=ragged, files=3))
    with pytest.raises(FlowError, match="no file descriptors left") as caught:
        list(loader)
    assert not isinstance(caught.value, WorkerDied)
    assert any(note.startswith("in worker") for note in caught.value.__notes__)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_default_timeout_of_sockets_does_not_matter(ragged, start_method):
    """Programs set one for the sake of downloads; pipes to workers go on waiting."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30.0)
    try:
        samples = [(np.zeros((64, 64 + ragged * (n % 3))), n) for n in range(400)]
        with processes(samples, start_method=start_method) as loader:
            assert sum(len(numbers) for _, numbers in loader) == 400
    finally:
        socket.setdefaulttimeout(before)


def test_many_workers_share_the_descriptors_of_a_program():
    """A consumer that keeps all samples of many workers stays far below the usual limit of 1024 files."""
    before = len(os.listdir("/proc/self/fd"))
    with wds.Loader(Arrays(640, ragged=True), workers=16, mode="processes") as loader:
        kept = list(loader)
        assert len(kept) == 640
        assert len(os.listdir("/proc/self/fd")) - before < 300


def test_the_death_of_a_worker_is_reported_soon():
    """No more batches come than workers were ahead by, of the thousands that the other worker could give."""
    with processes(Arrays(100_000), prefetch=AHEAD) as loader:
        batches = iter(loader)
        next(batches)
        victim = multiprocessing.active_children()[0].pid
        os.kill(victim, signal.SIGKILL)
        followed = []
        with pytest.raises(WorkerDied, match="SIGKILL"):
            followed.extend(len(numbers) for _, numbers in batches)
        assert len(followed) <= AHEAD


def test_a_stopped_worker_goes_on_where_it_was():
    """A worker that the system has stopped costs time, and nothing else."""
    with processes(Arrays(400)) as loader:
        batches = iter(loader)
        numbers = next(batches)[1].tolist()
        victim = multiprocessing.active_children()[0].pid
        os.kill(victim, signal.SIGSTOP)
        timer = threading.Timer(0.5, os.kill, (victim, signal.SIGCONT))
        timer.start()
        for _, more in batches:
            numbers.extend(more.tolist())
        timer.join()
    assert numbers == list(range(400))


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_the_log_says_whom_a_program_waits_for(monkeypatch, caplog, mode):
    """Where a worker gives nothing for long, its number is named, and what it read last."""
    monkeypatch.setattr("webdataset.loading.windows.SILENCE_SECONDS", 0.3)

    class Stuck(Arrays):
        def __getitem__(self, number):
            if number == 15:
                # the consumer looks at its watch every second
                time.sleep(3)
            return {"__key__": f"key {number}", "__url__": "http://user:secret@host/a.tar"}

    with wds.Loader(Stuck(16), 8, workers=2, mode=mode) as loader, caplog.at_level("WARNING"):
        assert len(list(loader)) == 2
    # on a busy machine, each worker is late with its first sample, too
    told = [record.getMessage() for record in caplog.records]
    (*_, last) = [each for each in told if "nothing came from worker 1 of 2" in each]
    assert "secret" not in caplog.text
    assert ("'key 13' of http" in last and "after the sample of index 13" in last) == (mode == "processes")


def test_a_stopped_worker_does_not_keep_the_loader_from_closing():
    """It is killed where it does not listen."""
    loader = processes(Arrays(100_000))
    next(iter(loader))
    workers = multiprocessing.active_children()
    os.kill(workers[0].pid, signal.SIGSTOP)
    loader.close()
    assert not multiprocessing.active_children()
