"""Servers for tests end with the processes that use them, however those end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import services
from support.after_forks import ended, forked
from support.services import Launch
from webdataset.core.errors import NotFound, SourceError

USER = """
import sys, time
from pathlib import Path
from support import services
def launch(folder):
    port = services.free_port()
    words = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    return services.Launch(words, f"http://127.0.0.1:{port}", lambda: services.answers(port))
with services.shared(Path(sys.argv[1]), launch) as running:
    print(running.endpoint, running.pid, flush=True)
    sys.stdin.read(1)
"""


def user(folder):
    """Start a process that uses the server of a folder; return it, the server's endpoint and process group."""
    words = [sys.executable, "-c", USER, str(folder)]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    endpoint, pid = child.stdout.readline().split()
    return child, endpoint, int(pid)


def members(group):
    """Return the processes of a group that are no zombies."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(pid))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_server_is_shared_and_ends_with_its_last_user(tmp_path):
    """Two processes share one server; it survives the first, even if that is killed, and ends with the second."""
    first, endpoint, group = user(tmp_path / "s")
    second, *same = user(tmp_path / "s")
    try:
        assert same == [endpoint, group]
        assert len(members(group)) == 2
        first.kill()
        first.wait()
        assert services.answers(int(endpoint.rpartition(":")[2]))
        second.communicate("x")
        assert members(group) == []
        again, _, other = user(tmp_path / "s")
        assert other != group
        again.send_signal(signal.SIGKILL)
        again.wait()
        until = time.monotonic() + 30
        while members(other) and time.monotonic() < until:
            time.sleep(0.05)
        assert members(other) == []
    finally:
        for child in (first, second, again):
            child.kill()
            child.communicate()


def test_a_server_that_does_not_start(tmp_path):
    """What it says is quoted; the next attempt starts anew."""

    def launch(_folder):
        return Launch([sys.executable, "-c", "import sys; sys.exit('no port for me')"], "", lambda: False)

    for _ in range(2):
        with pytest.raises(SourceError, match="no port for me"), services.shared(tmp_path, launch):
            pass


def test_a_program_that_is_not_installed():
    """The error says how to install it."""
    with pytest.raises(NotFound, match="no-such-server is not installed: ask your doctor"):
        services.program("no-such-server", "ask your doctor")


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_a_child_that_outlives_its_test_locks_nobody_out(tmp_path):
    """It has inherited the folder's lock, and keeps it open: the lock is let go of all the same."""
    import fcntl

    def launch(_folder):
        port = services.free_port()
        words = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
        return Launch(words, f"http://127.0.0.1:{port}", lambda: services.answers(port))

    with services.shared(tmp_path / "s", launch):
        child = forked(lambda: time.sleep(60))
    try:
        with (tmp_path / "s" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        assert ended(child) == -signal.SIGKILL
