"""A program that loads with processes, and ends in every way there is: nothing of it may be left."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
import numpy as np
import webdataset as wds

how, method, folder = sys.argv[1:]

class Source:
    def __len__(self):
        return 100_000
    def __getitem__(self, n):
        return np.zeros((50, 50 + n % 2 * (how == "ragged"))), n

def main():
    loader = wds.Loader(Source(), 8, workers=2, mode="processes", start_method=method)
    batches = iter(loader)
    next(batches)
    with open(folder + "/pids", "w") as file:
        file.write(" ".join(str(child.pid) for child in loader._pool._processes))
    os.rename(folder + "/pids", folder + "/ready")
    if how == "end":
        return
    if how == "error":
        raise SystemExit(5)
    try:
        for batch in batches:
            if how == "idle":
                threading.Event().wait()
    except KeyboardInterrupt:
        raise SystemExit(6)

if __name__ == "__main__":
    main()
"""

GRACE_SECONDS = 30.0  # on a busy machine; on an idle one it takes less than two


def is_alive(pid):
    """Tell whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition, seconds):
    """Wait for a condition; return whether it came true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


@pytest.fixture
def temporary():
    """Return a folder for temporary files with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="l-") as folder:
        yield Path(folder)


@pytest.fixture
def started(tmp_path, temporary):
    """Start the program and wait for its first batch; give it and the ids of its workers."""
    programs = []

    def start(how, method="fork"):
        script = tmp_path / "program.py"
        script.write_text(PROGRAM)
        environment = {**os.environ, "TMPDIR": str(temporary)}
        program = subprocess.Popen(
            [sys.executable, str(script), how, method, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        programs.append(program)
        assert until((tmp_path / "ready").exists, 60)
        workers = list(map(int, (tmp_path / "ready").read_text().split()))
        return program, workers

    yield start
    for program in programs:
        with program:
            program.kill()


def named_memory(pid):
    """Return the files in /dev/shm that a process maps or has open: what it could leave behind."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    files = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            files.append(str(link.readlink()))
    return [line for line in [*maps.splitlines(), *files] if "/dev/shm/" in line]


def check_nothing_is_left(program, workers, folder):
    """Workers are gone, and so is everything that they could have left; nobody said anything."""
    assert until(lambda: not any(map(is_alive, workers)), GRACE_SECONDS)
    left = [path for path in folder.iterdir() if not path.name.startswith("pymp-")]
    assert left == []
    assert program.stdout.read() == ""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("how", ["busy", "idle"])
def test_workers_end_when_their_parent_is_killed(started, temporary, method, how):
    """SIGKILL of the program, in the middle of a batch or while it waits: its workers notice by themselves."""
    program, workers = started(how, method)
    assert all(map(is_alive, workers))
    assert [named_memory(pid) for pid in (program.pid, *workers)] == [[], [], []]
    program.kill()
    program.wait()
    check_nothing_is_left(program, workers, temporary)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 6)])
@pytest.mark.parametrize("how", ["busy", "ragged", "idle"])
def test_signals_end_the_program_and_its_workers(started, temporary, how, number, code):
    """SIGTERM and Ctrl-C (which the whole group gets) end everything in time, without a word."""
    program, workers = started(how)
    if number == signal.SIGINT:
        os.killpg(program.pid, number)
    else:
        program.send_signal(number)
    assert program.wait(GRACE_SECONDS) == code
    check_nothing_is_left(program, workers, temporary)


@pytest.mark.parametrize(("how", "code"), [("end", 0), ("error", 5)])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_program_that_ends_in_the_middle_of_an_epoch(started, temporary, method, how, code):
    """Ending with a loader open, by the end of the program or by an exit, is clean."""
    program, workers = started(how, method)
    assert program.wait(GRACE_SECONDS) == code
    check_nothing_is_left(program, workers, temporary)


def test_all_processes_killed_at_once(started, temporary):
    """SIGKILL of the whole group, as where memory is short, leaves nothing in shared memory."""
    program, workers = started("busy")
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    check_nothing_is_left(program, workers, temporary)
