"""One budget of requests for each service, shared by the processes of a host."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from support.bucket_server import BucketServer
from webdataset.core.errors import SourceError
from webdataset.storage import rate_limit
from webdataset.storage.open_url import open_url
from webdataset.storage.prefetch_worker import PrefetchBudget, PrefetchTask
from webdataset.storage.rate_limit import RequestBudget, note_refusal, take_turn

ADDRESS = "http://service.test/path"


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    """Begin without budgets, in a folder of one's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("WDS_REQUESTS_PER_SECOND", raising=False)
    monkeypatch.setattr(rate_limit, "_budgets", {})
    return tmp_path / "webdataset"


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self):
        self.now = 1000.0
        self.slept = 0.0

    def sleep(self, seconds):
        """Let time pass."""
        self.now += seconds
        self.slept += seconds


@pytest.fixture
def clock(monkeypatch):
    """No real time passes."""
    clock = Clock()
    monkeypatch.setattr(rate_limit, "clock", lambda: clock.now)
    monkeypatch.setattr(rate_limit, "sleep", clock.sleep)
    return clock


def fleet(count, function, *words):
    """Run a fleet; return what its processes returned."""
    program = [sys.executable, "-m", "support.fleet", str(count), f"support.fleet:{function}", *map(str, words)]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_fleet_is_not_refused_again_and_again():
    """Sixteen processes read 160 objects from a service that bears 100 requests a second: all come, few are refused."""
    with BucketServer(rate=100) as server:
        sizes = fleet(16, "fetch", f"{server.root}/object", 10)
    assert sizes == [[100] * 10] * 16
    assert server.served >= 160
    assert server.refused <= 30


def test_the_bound_holds_for_the_fleet(monkeypatch):
    """A service that refuses above 60 requests a second refuses none where the user allows 10 to all together."""
    monkeypatch.setenv("WDS_REQUESTS_PER_SECOND", "10")
    with BucketServer(rate=60) as server:
        assert fleet(4, "fetch", f"{server.root}/object", 5) == [[100] * 5] * 4
    assert (server.served, server.refused) == (20, 0)


def test_a_refusal_slows_down_other_processes(clock):
    """What one process is told, another knows before its next request."""
    turn = take_turn(ADDRESS)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: note_refusal(turn, 30))
    child.start()
    child.join()
    assert child.exitcode == 0
    take_turn(ADDRESS)
    assert clock.slept == pytest.approx(30)


def test_another_program_knows_too(clock, runtime):
    """Programs that share nothing but the user find the budget by its file; it names no service."""
    code = (
        "from webdataset.storage.rate_limit import *\n"
        "note_refusal(take_turn('http://user:canary@SERVICE.test/other?x=1'), 60)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    clock.now = time.monotonic()
    take_turn(ADDRESS)
    assert clock.slept > 1
    (file,) = runtime.iterdir()
    assert "service" not in file.name
    assert (len(file.read_bytes()), file.stat().st_mode & 0o777) == (64, 0o600)


def test_services_are_told_apart(clock):
    """A refusal is about one host and port."""
    note_refusal(take_turn(ADDRESS), 30)
    take_turn("http://service.test:81/path")
    take_turn("http://other.test/path")
    assert clock.slept == 0


def test_waiters_queue_anew_after_a_refusal(clock, monkeypatch):
    """A slot that was given out before a decrease is void: nothing is sent within the pause."""
    monkeypatch.setenv("WDS_REQUESTS_PER_SECOND", "2")
    turns = [take_turn(ADDRESS) for _ in range(2)]
    slept = []

    def sleep(seconds):
        clock.sleep(seconds)
        if not slept:
            note_refusal(turns[-1], 20)
        slept.append(seconds)

    monkeypatch.setattr(rate_limit, "sleep", sleep)
    before = clock.now
    take_turn(ADDRESS)
    assert clock.now - before >= 20


def test_zero_turns_it_off(clock, monkeypatch):
    """No bound, not even after refusals."""
    monkeypatch.setenv("WDS_REQUESTS_PER_SECOND", "0")
    note_refusal(take_turn(ADDRESS), 30)
    take_turn(ADDRESS)
    assert clock.slept == 0


def test_without_refusals_nothing_is_locked(clock, monkeypatch):
    """While nothing bounds requests, a turn calls no lock."""
    take_turn(ADDRESS)
    monkeypatch.setattr(RequestBudget, "_hold_lock", None)
    for _ in range(1000):
        take_turn(ADDRESS)
    assert clock.slept == 0


def test_any_number_of_services_is_asked(runtime):
    """Descriptors are closed: a program may read from thousands of web servers."""
    before = len(os.listdir("/proc/self/fd"))
    for number in range(300):
        take_turn(f"http://host{number}.test/")
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 64
    assert len(list(runtime.iterdir())) == 300


def test_threads_share_a_budget(monkeypatch):
    """No turn is lost or given twice between threads."""
    monkeypatch.setenv("WDS_REQUESTS_PER_SECOND", "100000")
    threads = [threading.Thread(target=lambda: [take_turn(ADDRESS) for _ in range(200)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (budget,) = rate_limit._budgets.values()
    state = budget._load()
    assert state.window_count + state.counted > 0


def test_a_fork_while_a_thread_holds_the_lock():
    """The lock is free in the child."""
    take_turn(ADDRESS)
    (budget,) = rate_limit._budgets.values()
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with budget._lock:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    child = multiprocessing.get_context("fork").Process(target=lambda: note_refusal(take_turn(ADDRESS)))
    child.start()
    child.join(60)
    leave.set()
    thread.join()
    assert child.exitcode == 0


def test_a_killed_holder_frees_the_lock(clock, runtime):
    """The system lets go of the lock of a process that died."""
    take_turn(ADDRESS)
    (file,) = runtime.iterdir()
    code = (
        "import fcntl, os, signal, sys\n"
        f"fcntl.lockf(os.open({str(file)!r}, os.O_RDWR), fcntl.LOCK_EX)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode < 0
    note_refusal(take_turn(ADDRESS), 5)
    take_turn(ADDRESS)
    assert clock.slept == pytest.approx(5)


@pytest.mark.parametrize("damage", [b"", b"garbage" * 20, b"wdsrate1" + b"\xff" * 56, b"\xff" * 64])
def test_damaged_files_begin_anew(clock, runtime, damage):
    """No bytes of the file stop requests or programs."""
    note_refusal(take_turn(ADDRESS), 100)
    (file,) = runtime.iterdir()
    file.write_bytes(damage)
    rate_limit._budgets.clear()
    for _ in range(3):
        take_turn(ADDRESS)
    assert clock.slept < 1
    note_refusal(take_turn(ADDRESS), 100)
    take_turn(ADDRESS)
    assert clock.slept > 99


def test_a_clock_that_goes_back(clock):
    """Budgets of before a restart of the machine are forgotten."""
    clock.now = 1e6
    note_refusal(take_turn(ADDRESS), 100)
    clock.now = 5.0
    take_turn(ADDRESS)
    assert clock.slept == 0


@pytest.mark.parametrize("what", ["mode", "owner", "link"])
def test_foreign_files_are_refused(clock, runtime, what, tmp_path, caplog):
    """A budget that another user could change is not used; the process has its own, and says so."""
    note_refusal(take_turn(ADDRESS), 100)
    (file,) = runtime.iterdir()
    if what == "mode":
        file.chmod(0o666)
    elif what == "owner":
        if os.geteuid():
            pytest.skip("only root gives files away")
        os.chown(file, 12345, -1)
    else:
        Path(tmp_path / "theirs").write_bytes(file.read_bytes())
        file.unlink()
        file.symlink_to(tmp_path / "theirs")
    rate_limit._budgets.clear()
    take_turn(ADDRESS)
    assert clock.slept == 0
    assert "in this process alone" in caplog.text


def test_s3_services_are_asked_within_the_budget(monkeypatch):
    """Requests of botocore wait for their turn, and what it is answered slows all down."""
    pytest.importorskip("botocore")
    monkeypatch.setattr(rate_limit, "sleep", lambda _: None)
    with BucketServer(rate=4) as server:
        options = {"anonymous": True, "endpoint_url": server.root}
        # the first is served by the one token of the service; the next is refused at first
        for number in range(2):
            with open_url(f"s3://bucket/{number}", storage_options=options) as stream:
                assert len(stream.read()) == 100
    (budget,) = rate_limit._budgets.values()
    assert server.refused >= 1
    assert budget._load().generation >= 1


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_a_thread_that_reads_ahead_is_woken_from_its_wait(monkeypatch, scheme):
    """Where its reader closes, a thread whose turn is minutes away ends, and sends nothing."""
    if scheme == "s3":
        pytest.importorskip("botocore")
    monkeypatch.setenv("WDS_REQUESTS_PER_SECOND", "0.001")
    with BucketServer() as server:
        url = f"{server.root}/object" if scheme == "http" else "s3://bucket/object"
        options = {} if scheme == "http" else {"anonymous": True, "endpoint_url": server.root}
        take_turn(server.root)
        waits, real = threading.Event(), time.sleep
        monkeypatch.setattr(rate_limit, "sleep", lambda seconds: (waits.set(), real(seconds)))
        budget = PrefetchBudget()
        task = PrefetchTask(lambda: open_url(url, storage_options=options), 100, budget.take(100))
        assert waits.wait(60)
        task.cancel()
        task._thread.join(60)
        assert not task.running
        assert isinstance(task.refused, SourceError)
        assert "its reader has left" in str(task.refused)
        assert server.served == 0
        task.close()


def test_an_interrupt_ends_a_wait(monkeypatch):
    """Ctrl-C in a program whose turn is minutes away is raised at once."""
    monkeypatch.setenv("WDS_REQUESTS_PER_SECOND", "0.001")
    take_turn(ADDRESS)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(seconds):
        assert 0 < seconds <= 0.1
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(rate_limit, "sleep", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            take_turn(ADDRESS)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_service_that_refuses_for_long_is_told_of_once_for_each_rate(clock, caplog):  # noqa: ARG001  no real time passes
    """The log names the service, and is not filled by one that refuses for hours."""
    caplog.set_level("INFO", "webdataset")
    for _ in range(60):
        note_refusal(take_turn(ADDRESS), None)
    told = [record.getMessage() for record in caplog.records if "too many requests" in record.getMessage()]
    assert 0 < len(told) < 20
    assert len(told) == len(set(told))
    assert all("service.test" in line for line in told)
