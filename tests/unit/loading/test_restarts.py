"""Worker processes that die or hang, and are started again."""

import contextlib
import errno
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import webdataset as wds
from support.garbage import no_collector
from webdataset.core.errors import UsageError, WorkerDied, WorkerTimeout
from webdataset.core.logs import log
from webdataset.loading import process_workers, windows
from webdataset.loading.message_pipe import MessagePipe, frame_message
from webdataset.loading.partition import adapt_dataset
from webdataset.loading.worker import WindowCredit

COUNT = 140


class Trouble:
    """A stage's function that does something to its process at some samples, each time or once.

    Args:
        folder: remembers what was done.
        deeds: what to do at which number: ``die`` or ``hang``.
        times: how often at each.
    """

    def __init__(self, folder, deeds, times=1):
        self.folder, self.deeds, self.times = Path(folder), deeds, times

    def __call__(self, sample):
        deed = self.deeds.get(int(sample["cls"]))
        if deed is not None and self._is_due(int(sample["cls"])):
            if deed == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return sample

    def _is_due(self, number):
        for turn in range(self.times):
            try:
                os.close(os.open(self.folder / f"{number}-{turn}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return True
        return False


NONE = Trouble("", {})


def drop_some(sample):
    """Drop one of seven samples."""
    return None if int(sample["cls"]) % 7 == 3 else sample


def make(urls, trouble=NONE):
    """Return an elastic pipeline with shuffles, dropped samples and trouble."""
    dataset = wds.WebDataset(urls, shardshuffle=True, seed=3).shuffle(30).decode()
    return dataset.map(trouble).map(drop_some).to_tuple("__key__", "npy", "cls").shuffle(10).elastic(streams=6)


def load(dataset, batch_size=8, **arguments):
    """Return a loader with two processes."""
    start = {"start_method": "fork", "workers": 2, "mode": "processes", "max_restarts": 2}
    return wds.Loader(dataset, batch_size, **{**start, **arguments})


def plain(batch):
    """Return a batch, or a sample, as lists."""
    return [part.tolist() if isinstance(part, np.ndarray | np.generic) else part for part in batch]


def epochs(loader, count=2):
    """Return the batches of some epochs."""
    return [[plain(batch) for batch in loader] for _ in range(count)]


def check_states(dataset, batch_size, states, expected, **more):
    """Check that each state continues with the batches behind it."""
    for place, state in states.items():
        with wds.Loader(dataset, batch_size, workers=0, **more) as loader:
            loader.load_state_dict(json.loads(state))
            assert epochs(loader, 1) == [expected[place + 1 :]]


@pytest.fixture(scope="module")
def undisturbed(numbered):
    """Return the batches of two epochs in which nothing happens, by batch size, drop_last and exact."""
    found = {}
    for case in ((8, False, False), (8, True, False), (8, False, True), (None, False, False)):
        size, drop_last, exact = case
        with wds.Loader(make(numbered), size, drop_last=drop_last, exact=exact) as loader:
            found[case] = epochs(loader)
    return found


@pytest.mark.parametrize("case", [(8, False, False), (8, True, False), (8, False, True), (None, False, False)])
def test_samples_at_which_workers_die_once_change_nothing(numbered, undisturbed, tmp_path, case):
    """Batches, states and counts of two epochs are those of a run in which no worker dies."""
    size, drop_last, exact = case
    more = {} if size is None else {"drop_last": drop_last, "exact": exact}
    numbers = random.Random(repr(case)).sample(range(COUNT), 5)  # noqa: S311  which samples
    trouble = Trouble(tmp_path, dict.fromkeys(numbers, "die"))
    with load(make(numbered, trouble), size, **more) as loader:
        found, states = [], {}
        for place, batch in enumerate(loader):
            found.append(plain(batch))
            if place % 4 == 2 and place < 12:
                states[place] = json.dumps(loader.state_dict())
        assert [found, *epochs(loader, 1)] == undisturbed[case]
        stats = loader.stats()
    # two can die before a batch comes
    assert 1 <= stats.restarts <= len(numbers)
    assert (stats.failures, stats.dropped, stats.epochs) == (0, 40, 2)
    assert f"restarts {stats.restarts}," in stats.report()
    assert f"webdataset_loader_restarts_total {stats.restarts}\n" in stats.prometheus()
    check_states(make(numbered), size, states, undisturbed[case][0], **more)


@pytest.mark.parametrize(("start_method", "most", "seconds"), [("fork", 12, 0.05), ("spawn", 3, 1.5)])
def test_workers_that_are_killed_at_any_time_change_nothing(numbered, undisturbed, start_method, most, seconds):
    """A thread kills workers while they start, work, wait and end."""
    ending, chance = threading.Event(), random.Random(start_method)  # noqa: S311  when to kill

    def kill_workers():
        longest = seconds
        while not ending.wait(chance.uniform(0, longest)):
            # on a busy machine, too, workers come to give batches
            longest *= 1.2
            children = multiprocessing.active_children()
            if children:
                # one that has ended since
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(children).pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_workers, daemon=True)
    try:
        with load(make(numbered), start_method=start_method, max_restarts=50) as loader:
            killer.start()
            until = time.monotonic() + 120
            while loader.stats().restarts < most and time.monotonic() < until:
                loader.set_epoch(0)
                assert epochs(loader) == undisturbed[8, False, False]
            assert loader.stats().restarts >= most
    finally:
        ending.set()
        killer.join()


def test_a_sample_at_which_workers_always_die_is_named(numbered, undisturbed, tmp_path, caplog):
    """All batches before it come; then, after the restarts in a row that were allowed, the error."""
    dataset = make(numbered, Trouble(tmp_path, {77: "die"}, times=100))
    received = []
    with load(dataset, prefetch=1) as loader, pytest.raises(WorkerDied, match="SIGKILL") as caught:
        received.extend(plain(batch) for batch in loader)
    expected = undisturbed[8, False, False][0]
    assert received == expected[: len(received)]
    assert caught.value.exit_code == -signal.SIGKILL
    # of the last sample before it
    assert caught.value.url in numbered
    told = [record.getMessage() for record in caplog.records if "Workers start again" in record.getMessage()]
    assert told[-1].endswith(f"Workers start again after batch {len(received)} (restart 2 of at most 2 in a row)")
    assert "iterate again" not in told[-1]
    assert f"last read a sample of {caught.value.url})" in told[-1]
    assert loader.stats().restarts == len(told)
    assert loader.stats().failures == 1


def test_each_batch_allows_for_restarts_again(numbered, undisturbed, tmp_path):
    """A run of weeks may lose a worker now and then, more often in all than in a row."""
    dataset = make(numbered, Trouble(tmp_path, dict.fromkeys(range(0, COUNT, 14), "die")))
    with load(dataset, max_restarts=3, workers=1, prefetch=0) as loader:
        assert epochs(loader, 1) == undisturbed[8, False, False][:1]
        assert loader.stats().restarts > 3


def test_a_worker_that_hangs_is_killed_and_its_work_done_again(numbered, undisturbed, tmp_path):
    """After the timeout the epoch goes on as if nothing had happened."""
    dataset = make(numbered, Trouble(tmp_path, {50: "hang"}))
    with load(dataset, timeout=1.5) as loader:
        assert epochs(loader, 1) == undisturbed[8, False, False][:1]
        assert loader.stats().restarts == 1


def test_a_worker_that_hangs_is_named(numbered, tmp_path):
    """Without restarts the error says which worker, and what it read last; no process is left."""
    dataset = make(numbered, Trouble(tmp_path, {50: "hang"}))
    with load(dataset, timeout=1, max_restarts=0) as loader:
        with pytest.raises(WorkerTimeout, match=r"made no sample for 1 seconds \(timeout=\) and was killed") as caught:
            list(loader)
        assert isinstance(caught.value, WorkerDied | TimeoutError)
        assert caught.value.url in numbered
        assert not multiprocessing.active_children()
        # the one sample has hung once
        assert len(list(loader)) == 15


def slow(sample):
    """Take a while."""
    time.sleep(0.3)
    return sample


def test_a_worker_that_is_slow_is_not_killed():
    """The timeout is of a sample, not of a batch."""
    dataset = wds.DataPipeline(lambda: [{"n": number} for number in range(8)], wds.map(slow))
    with wds.Loader(dataset, 8, workers=1, mode="processes", start_method="fork", timeout=1) as loader:
        assert [batch["n"].tolist() for batch in loader] == [list(range(8))]


def test_a_worker_that_waits_for_its_program_is_not_killed(numbered):
    """Time in which the program takes no batch does not count."""
    with load(make(numbered), timeout=1, max_restarts=0, prefetch=0) as loader:
        count = 0
        for _ in loader:
            count += 1
            if count in (1, 5):
                time.sleep(2.5)
    assert count == 15


@pytest.mark.parametrize("when", ["begin", "end"])
def test_a_resumed_epoch_in_which_a_worker_dies(numbered, undisturbed, tmp_path, when):
    """A state is continued once, also where a worker dies before the first batch, or nothing was left of its epoch."""
    expected = undisturbed[8, False, False]
    place = 0 if when == "begin" else len(expected[0]) - 1
    with load(make(numbered)) as loader:
        for step, _ in enumerate(loader):
            if step == place:
                state = loader.state_dict()
                break
    following = expected[0][place + 1 :] or expected[1]
    numbers = following[0][2]
    dataset = make(numbered, Trouble(tmp_path, {numbers[0]: "die", numbers[-1]: "die"}))
    with load(dataset) as loader:
        loader.load_state_dict(state)
        assert epochs(loader, 1) == [following]
        assert loader.stats().restarts >= 1


def test_a_worker_that_dies_behind_the_last_batch_begins_no_other_epoch(numbered, undisturbed, tmp_path):
    """The end of an epoch is lost with a worker that dies there, and is found again."""
    dropped = [number for number in range(COUNT) if number % 7 == 3]
    # samples that are dropped can be the last ones of their streams
    dataset = make(numbered, Trouble(tmp_path, dict.fromkeys(dropped, "die")))
    with load(dataset, max_restarts=30, batch_size=None) as loader:
        assert epochs(loader) == undisturbed[None, False, False]


class NoteProcess:
    """A stage's function that notes in which process it runs."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def __call__(self, sample):
        (self.folder / f"process-{os.getpid()}").touch()
        return sample


@pytest.mark.parametrize("batch_size", [8, 5, None])
def test_the_program_itself_makes_no_samples_for_a_restart(numbered, tmp_path, batch_size):
    """A sample that ends a worker could end the program; so workers make again what is behind the last state."""
    trouble = Trouble(tmp_path, dict.fromkeys(range(0, COUNT, 11), "die"))
    dataset = wds.WebDataset(numbered, shardshuffle=True, seed=3).shuffle(30).decode()
    dataset = dataset.map(NoteProcess(tmp_path)).map(drop_some)
    with wds.Loader(dataset.map(NONE).to_tuple("cls").elastic(streams=6), batch_size) as loader:
        expected = [plain(batch) for batch in loader]
    (tmp_path / f"process-{os.getpid()}").unlink()
    with load(dataset.map(trouble).to_tuple("cls").elastic(streams=6), batch_size, max_restarts=20) as loader:
        assert [plain(batch) for batch in loader] == expected
        assert loader.stats().restarts >= 3
        assert loader.stats().dropped == 20
    assert not (tmp_path / f"process-{os.getpid()}").exists()


def test_a_state_that_is_saved_after_the_last_restart_holds_all_that_came(numbered, undisturbed, tmp_path):
    """Whoever saves a state when restarts are used up continues after the batch received last, in any loader."""
    dataset = make(numbered, Trouble(tmp_path, {77: "die"}, times=100))
    received = []
    with load(dataset, prefetch=0) as loader:
        with pytest.raises(WorkerDied):
            received.extend(plain(batch) for batch in loader)
        state = json.loads(json.dumps(loader.state_dict()))
    expected = undisturbed[8, False, False][0]
    check_states(make(numbered), 8, {len(received) - 1: json.dumps(state)}, expected)


class DieBehind:
    """A stage that ends its process once, behind its last sample."""

    def __init__(self, path):
        self.path = Path(path)

    def __call__(self, samples):
        yield from samples
        if not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_behind_its_last_sample(numbered, tmp_path, workers):
    """All has come, and the end of the epoch follows: no second epoch, and no error that nothing came."""
    dataset = wds.WebDataset(numbered, shardshuffle=True, seed=3).decode().to_tuple("cls")
    dataset = dataset.compose(DieBehind(tmp_path / "died")).elastic(streams=2)
    with load(dataset, batch_size=None, workers=workers, prefetch=0) as loader:
        assert sorted(number for (number,) in loader) == list(range(COUNT))
        assert loader.stats().restarts == 1
        assert len(list(loader)) == COUNT


def test_an_epoch_that_was_chosen_before_a_worker_died_follows(numbered, undisturbed, tmp_path):
    """What set_epoch has named in the midst of an epoch is kept."""
    dataset = make(numbered, Trouble(tmp_path, dict.fromkeys(range(0, COUNT, 9), "die")))
    with load(dataset, max_restarts=20) as loader:
        found = []
        for batch in loader:
            found.append(plain(batch))
            if len(found) == 1:
                loader.set_epoch(0)
        assert loader.stats().restarts
        assert [found, *epochs(loader, 1)] == [undisturbed[8, False, False][0]] * 2


def test_an_error_leaves_all_restarts_to_the_next_iteration(numbered, tmp_path):
    """Who catches the error and iterates again has as many restarts as before."""
    dataset = make(numbered, Trouble(tmp_path, {77: "die"}, times=5))
    with load(dataset, max_restarts=2, workers=1, prefetch=0) as loader:
        with pytest.raises(WorkerDied):
            list(loader)
        assert loader.stats().restarts == 2
        assert list(loader)
        assert loader.stats().restarts == 4


def test_a_shared_loader_goes_on(numbered, undisturbed, tmp_path):
    """Trainers of a shared loader see nothing of a worker that dies."""
    dataset = make(numbered, Trouble(tmp_path, {20: "die", 90: "die"}))
    expected = undisturbed[8, False, False][0]
    with load(dataset) as inner, wds.SharedLoader(inner, tmp_path / "socket") as shared:
        found = [plain(batch) for batch in shared]
    assert found == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "threads"}, "max_restarts= is for worker processes"),
        ({"workers": 0}, "max_restarts= is for worker processes"),
        ({"workers": 0, "max_restarts": 0, "timeout": 3}, "timeout= is for worker processes"),
        ({"max_restarts": -1}, "max_restarts=-1: how often"),
        ({"max_restarts": "2"}, "max_restarts='2': how often"),
        ({"timeout": 0}, "timeout=0: seconds"),
        ({"timeout": "60"}, "timeout='60': seconds"),
        ({"timeout": float("nan")}, "timeout=nan: seconds"),
    ],
)
def test_arguments_that_cannot_be_kept_are_refused(numbered, arguments, words):
    """The error says what to write."""
    with pytest.raises(UsageError, match=words):
        load(make(numbered), **arguments)


def test_restarts_of_what_has_no_state_are_refused(numbered):
    """Samples would be lost, or come twice."""
    with pytest.raises(UsageError, match=r"elastic dataset, wds.WebDataset\(urls\).elastic\(\)"):
        load(wds.WebDataset(numbered, shardshuffle=False))
    load(wds.WebDataset(numbered, shardshuffle=False), max_restarts=0, timeout=5).close()


def count_descriptors():
    """Return how many are open."""
    return len(os.listdir("/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd"))


def test_restarts_leave_no_memory_and_no_descriptors(numbered, tmp_path):
    """Nothing waits for Python's garbage collection, which programs switch off."""
    dataset = make(numbered, Trouble(tmp_path, dict.fromkeys(range(0, COUNT, 9), "die")))
    counts = {}
    with no_collector():
        with load(dataset, max_restarts=5, prefetch=2) as loader:
            for _ in loader:
                counts[loader.stats().restarts] = count_descriptors()
    assert len(counts) > 4
    # blocks and segments of the workers of the moment
    assert max(counts.values()) < counts[min(counts)] + 10


class Stop:
    """Does something to the first worker process that sends something of a kind, in the midst of it.

    Args:
        path: remembers that it was done.
        deed: ``SIGSTOP`` or ``SIGKILL``.
    """

    def __init__(self, path, deed):
        self.path, self.deed = path, deed

    def strike(self):
        """Do it, in a worker, once."""
        if multiprocessing.parent_process() is not None and not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), self.deed)

    def send(self, pipe, *pieces):
        """Send a message in two halves."""
        frame = frame_message(*pieces)
        pipe._socket.sendall(frame[: len(frame) // 2])
        self.strike()
        pipe._socket.sendall(frame[len(frame) // 2 :])

    def send_descriptor(self, pipe, descriptor):
        """Send the descriptor, after what was announced."""
        self.strike()
        socket.send_fds(pipe._socket, [b"\0"], [descriptor])


def enlarge(sample):
    """Make a sample that comes through memory of its own."""
    return sample["__key__"], np.full(10_000 + int(sample["cls"]), int(sample["cls"]))


@pytest.mark.parametrize("deed", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("kind", ["send", "send_descriptor"])
def test_a_worker_that_stops_or_dies_in_the_midst_of_a_message(numbered, tmp_path, monkeypatch, kind, deed):
    """Its rest is not waited for longer than any sample."""
    stop = Stop(tmp_path / "struck", deed)
    monkeypatch.setattr(MessagePipe, kind, lambda *arguments: getattr(stop, kind)(*arguments))
    dataset = wds.WebDataset(numbered[:3], shardshuffle=False).decode().map(enlarge).elastic(streams=3)
    expected = [str(batch) for batch in wds.Loader(dataset, 8)]
    with load(dataset, timeout=1) as loader:
        assert [str(batch) for batch in loader] == expected
        assert loader.stats().restarts == 1


@pytest.mark.parametrize("order", ["exact", "ready"])
@pytest.mark.parametrize("kind", ["send", "send_descriptor"])
def test_a_worker_that_is_stopped_in_the_midst_of_a_message_is_named(
    numbered, tmp_path, monkeypatch, caplog, kind, order
):
    """Without a timeout, too: the log says so while the program waits; when the worker goes on, nothing is lost."""
    monkeypatch.setattr(windows, "SILENCE_SECONDS", 1.0)
    stop = Stop(tmp_path / "struck", signal.SIGSTOP)
    monkeypatch.setattr(MessagePipe, kind, lambda *arguments: getattr(stop, kind)(*arguments))
    warn = log.warning

    def let_go_on(text, *values):
        warn(text, *values)
        for child in multiprocessing.active_children():
            os.kill(child.pid, signal.SIGCONT)

    monkeypatch.setattr(log, "warning", let_go_on)
    dataset = wds.WebDataset(numbered[:3], shardshuffle=False).decode().map(enlarge).elastic(streams=3)
    expected = sorted(int(array[0]) for batch in wds.Loader(dataset, 8) for array in batch[1])
    with load(dataset, max_restarts=0, order=order) as loader:
        assert sorted(int(array[0]) for batch in loader for array in batch[1]) == expected
    assert re.search(r"nothing came from worker \d of 2 for 1 seconds \(process \d+", caplog.text)


def test_a_worker_that_dies_while_another_is_stopped_in_the_midst_of_a_message(numbered, tmp_path, monkeypatch):
    """The program hears of it, and does not wait for the rest of the message."""
    stop = Stop(tmp_path / "struck", signal.SIGSTOP)
    monkeypatch.setattr(MessagePipe, "send", lambda *arguments: stop.send(*arguments))
    dataset = wds.WebDataset(numbered[:3], shardshuffle=False).decode().map(enlarge).elastic(streams=3)
    with load(dataset, max_restarts=0) as loader:

        def kill_the_other():
            while not stop.path.exists():
                time.sleep(0.01)
            time.sleep(0.5)
            for child in multiprocessing.active_children():
                if Path(f"/proc/{child.pid}/stat").read_text().split()[2] != "T":
                    os.kill(child.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill_the_other)
        killer.start()
        with pytest.raises(WorkerDied, match="SIGKILL"):
            list(loader)
        killer.join()


def test_an_order_that_a_stopped_worker_does_not_take_is_told(elastic, monkeypatch, caplog):
    """Who waits for room in its pipe, without a timeout, says so."""
    monkeypatch.setattr(windows, "SILENCE_SECONDS", 0.3)
    pool = process_workers.ProcessWorkers(adapt_dataset(elastic), 8, 1, "fork")
    (child,) = multiprocessing.active_children()
    warn = log.warning

    def end(text, *values):
        warn(text, *values)
        child.kill()

    monkeypatch.setattr(log, "warning", end)
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(WorkerDied, match="worker 0 of 1"):
        list(map(pool.grant, [[WindowCredit(number) for number in range(1000)]] * 1000))
    assert "no order was taken by worker 0 of 1 for 0 seconds (process" in caplog.text


def test_a_worker_that_is_stopped_while_its_pipe_is_full(elastic):
    """The program waits for room in the pipe no longer than for a sample."""
    pool = process_workers.ProcessWorkers(adapt_dataset(elastic), 8, 1, "fork", 1)
    (child,) = multiprocessing.active_children()
    os.kill(child.pid, signal.SIGSTOP)
    grants = [WindowCredit(number) for number in range(1000)]
    with pytest.raises(WorkerTimeout, match="worker 0 of 1"):
        # more bytes than a pipe holds
        list(map(pool.grant, [grants] * 1000))
    assert not multiprocessing.active_children()


def test_time_in_which_all_processes_were_stopped_does_not_count(monkeypatch):
    """Ctrl-Z and batch systems stop a program with its workers; none of them hangs."""
    # each second of waiting is like a hundred
    clock = SimpleNamespace(monotonic=lambda: 100 * time.monotonic())
    monkeypatch.setattr(process_workers, "time", clock)

    def wait(sample):
        time.sleep(2.5)
        return sample

    dataset = wds.DataPipeline(lambda: [{"n": 1}], wds.map(wait))
    with wds.Loader(dataset, 1, workers=1, mode="processes", start_method="fork", timeout=50) as loader:
        assert [batch["n"].tolist() for batch in loader] == [[1]]


def test_an_interrupt_while_stopped_workers_are_ended_leaves_none(numbered):
    """A second Ctrl-C, or one during a restart, comes while the program waits for workers to end."""
    loader = load(make(numbered))
    iterator = iter(loader)
    next(iterator)
    children = multiprocessing.active_children()
    for child in children:
        os.kill(child.pid, signal.SIGSTOP)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            loader._pool.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    for child in children:
        # one that was closed is gone
        with contextlib.suppress(ValueError):
            child.join(10)
            assert not child.is_alive()


@pytest.mark.parametrize("failures", [1, 100])
def test_workers_that_cannot_be_started_again(numbered, undisturbed, tmp_path, monkeypatch, failures):
    """What the system refuses for a moment is tried again, and the state is kept where it refuses for longer."""
    usual, left = os.fork, []

    def refuse():
        if left and left.pop():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return usual()

    monkeypatch.setattr(os, "fork", refuse)
    expected = undisturbed[8, False, False][0]
    with load(make(numbered, Trouble(tmp_path, {20: "die", 90: "die"}))) as loader:
        iterator = iter(loader)
        found = [plain(next(iterator))]
        left += [True] * failures + [False]
        if failures > loader.max_restarts:
            with pytest.raises(WorkerDied, match=r"could not be started .*ulimit -u"):
                found.extend(plain(batch) for batch in iterator)
            left.clear()
            iterator = iter(loader)
        found += [plain(batch) for batch in iterator]
        assert found == expected
        assert not multiprocessing.active_children() or loader._pool.living


def test_what_the_error_says_continues_the_epoch(numbered, undisturbed, tmp_path):
    """Without restarts, the state that the loader has after the error is that after the last batch."""
    expected = undisturbed[8, False, False]
    with load(make(numbered, Trouble(tmp_path, {20: "die", 90: "die"})), max_restarts=0, prefetch=0) as loader:
        found = []
        for _ in range(2):
            with pytest.raises(WorkerDied, match=r"first load_state_dict\(loader.state_dict\(\)\): then the epoch"):
                found.extend(plain(batch) for batch in loader)
            loader.load_state_dict(loader.state_dict())
        assert [*found, *epochs(loader, 1)[0]] == expected[0]
        assert epochs(loader, 1) == expected[1:]


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("deeds", [{20: "die", 90: "die"}, {139: "die"}], ids=str)
def test_an_epoch_that_was_chosen_before_the_last_restart_follows(numbered, undisturbed, tmp_path, restarts, deeds):
    """What set_epoch has named in the midst of an epoch is kept by who continues it after the error."""
    dataset = make(numbered, Trouble(tmp_path, deeds, times=2))
    with load(dataset, max_restarts=restarts, prefetch=0) as loader:
        found, failures = [], 0
        while True:
            try:
                for batch in loader:
                    found.append(plain(batch))
                    if len(found) == 1:
                        loader.set_epoch(0)
                break
            except WorkerDied:
                failures += 1
                loader.load_state_dict(loader.state_dict())
        assert failures
        assert [found, *epochs(loader, 2)] == [undisturbed[8, False, False][0]] * 2 + [undisturbed[8, False, False][1]]


@pytest.mark.parametrize(("then", "following"), [("load", 3), ("choose", 3), ("iterate", 8)])
def test_an_epoch_that_failed_and_is_not_continued(numbered, tmp_path, then, following):
    """What was chosen in it holds for its own states, and not for those of other epochs, nor after another choice."""
    with load(make(numbered, Trouble(tmp_path, {20: "die"})), max_restarts=0, prefetch=0) as loader:
        loader.set_epoch(2)
        other = loader.state_dict()
        loader.set_epoch(0)
        with pytest.raises(WorkerDied):
            list(map(lambda _: loader.set_epoch(7), loader))
        if then == "load":
            loader.load_state_dict(other)
        elif then == "choose":
            loader.set_epoch(2)
        next(iter(loader))
        assert loader.epoch == following


@pytest.mark.parametrize("longest", [False, True])
def test_a_mix_in_which_workers_die(numbered, tmp_path, longest):
    """Each source continues where it was, in the same turns."""

    def make_mix(trouble):
        sources = [wds.WebDataset(urls, shardshuffle=True, seed=1) for urls in (numbered[:4], numbered[4:])]
        mix = wds.RandomMix([source.shuffle(20).decode() for source in sources], [0.7, 0.3], longest, seed=5)
        dataset = mix.map(trouble).map(drop_some).to_tuple("__key__", "cls")
        dataset.seed = 7
        return dataset.elastic(streams=6)

    with wds.Loader(make_mix(NONE), 8) as loader:
        expected = epochs(loader)
    trouble = Trouble(tmp_path, dict.fromkeys(range(0, COUNT, 9), "die"))
    with load(make_mix(trouble), max_restarts=20) as loader:
        assert epochs(loader) == expected
        assert loader.stats().restarts >= 3
