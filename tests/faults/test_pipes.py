"""Commands that fail, hang, or are no longer wanted: nothing is lost quietly, nothing is left behind."""

import gc
import os
import time
from pathlib import Path

import pytest

from webdataset.core.errors import CommandFailed
from webdataset.storage.open_url import open_stream, open_url

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts processes in /proc")


def children():
    """List the processes that this one has started and not reaped, zombies included."""
    found = []
    for listing in Path("/proc/self/task").glob("*/children"):
        found += listing.read_text().split()
    return found


def descriptors():
    """Count open descriptors."""
    return len(os.listdir("/proc/self/fd"))


def drain(stream, size):
    """Read to the end."""
    while stream.read(size):
        pass


def flood(stream):
    """Write much more than a pipe holds."""
    for _ in range(100):
        stream.write(b"x" * 100_000)


def gone(pid, seconds=10):
    """Wait until a process of another program has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    "command", ["exit 3", "printf abc; exit 3", "head -c 1000000 /dev/zero; exit 3", "false | cat"]
)
@pytest.mark.parametrize("size", [1, 4096, 1 << 18, -1])
def test_a_failing_command_never_ends_quietly(command, size):
    """The end is an error where the status is one, however the stream is read."""
    if size == 1 and "000000" in command:
        size = 999
    with open_stream(f"pipe:{command}") as stream, pytest.raises(CommandFailed, match="exit status"):
        drain(stream, size)


def test_the_status_is_waited_for():
    """A child that closes its output long before it fails is found out."""
    with open_stream("pipe:printf abc; exec >&-; sleep 0.3; exit 7") as stream:
        assert stream.read(3) == b"abc"
        with pytest.raises(CommandFailed, match="status 7"):
            stream.read(1)
        with pytest.raises(CommandFailed, match="status 7"):
            stream.read(1)


def test_no_race_between_end_and_status():
    """Four hundred commands that fail right at the end of their output: all are found out."""
    missed = 0
    for _ in range(400):
        with open_stream("pipe:printf abc; exit 1") as stream:
            try:
                drain(stream, 100)
                missed += 1
            except CommandFailed:
                pass
    assert missed == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["yes", "head -c 100000000 /dev/zero | cat"])
def test_a_thousand_early_closes_leave_nothing(command, capfd):
    """Streams that are closed after one read leave no child and no descriptor, raise nothing and say nothing."""
    with open_stream(f"pipe:{command}") as stream:
        stream.read(10)
    gc.collect()
    before, open_before = children(), descriptors()
    for _ in range(1000):
        with open_stream(f"pipe:{command}") as stream:
            assert stream.read(10)
    assert children() == before
    assert descriptors() == open_before
    assert capfd.readouterr() == ("", "")


def test_forgotten_streams_leave_nothing():
    """Streams that are dropped without close are closed by the garbage collector."""
    gc.collect()
    before, open_before = children(), descriptors()
    for _ in range(20):
        open_stream("pipe:yes").read(10)
    gc.collect()
    assert children() == before
    assert descriptors() == open_before


def test_a_silent_command_is_ended_with_all_it_started(tmp_path):
    """A pipeline that would never notice the closed pipe is ended at once, every process of it."""
    sleepers = f"(echo $BASHPID > {tmp_path}/one; exec sleep 1000) | (echo $BASHPID; exec sleep 1000)"
    with open_stream(f"pipe:{sleepers}") as stream:
        second = int(stream.readline())
        while not (tmp_path / "one").exists() or not (tmp_path / "one").read_text().strip():
            time.sleep(0.01)
        first = int((tmp_path / "one").read_text())
    assert gone(first)
    assert gone(second)


def test_a_stubborn_command_is_killed():
    """A command that ignores SIGTERM is killed."""
    with open_stream("pipe:trap '' TERM PIPE; echo ready; while true; do sleep 1; done") as stream:
        assert stream.readline() == b"ready\n"
        pid = stream.proc.pid
    assert gone(pid)
    assert not Path(f"/proc/{pid}").exists()


def test_a_writer_whose_command_died():
    """Writing to a command that has failed raises CommandFailed, for much and for little."""
    before = children()
    stream = open_url("pipe:exit 3", "wb")
    with pytest.raises(CommandFailed, match="status 3"):
        flood(stream)
    with pytest.raises(CommandFailed):
        stream.close()
    stream = open_url("pipe:exit 3", "wb")
    stream.write(b"x")
    with pytest.raises(CommandFailed, match="status 3"):
        stream.close()
    assert stream.closed
    assert children() == before


def test_a_writer_whose_command_stopped_reading():
    """A command that ends well before it has read everything is an error at the next write."""
    before = children()
    stream = open_url("pipe:head -c 10 > /dev/null", "wb")
    with pytest.raises(BrokenPipeError):
        flood(stream)
    stream.abort()
    assert children() == before
