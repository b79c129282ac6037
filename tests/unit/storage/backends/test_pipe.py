"""Pipe objects: upstream's names, and a file object that works."""

import gzip
import io
import os
import subprocess
import sys
import threading

import pytest

from webdataset.core.errors import CommandFailed, NotFound, UsageError
from webdataset.storage.backends.pipe import Pipe, gopen_pipe, set_options


def test_reading_in_every_way():
    """read, read1, readinto, readline and iteration give the command's output."""
    command = "pipe:printf 'a\\nbb\\nccc'"
    with gopen_pipe(command) as pipe:
        assert pipe.read(2) == b"a\n"
        assert pipe.read() == b"bb\nccc"
    with gopen_pipe(command) as pipe:
        assert list(pipe) == [b"a\n", b"bb\n", b"ccc"]
    with gopen_pipe(command) as pipe:
        assert (pipe.readline(), pipe.readLine(), pipe.readline(2), pipe.read(0)) == (b"a\n", b"bb\n", b"cc", b"")
    for name in ("readinto", "readinto1"):
        with gopen_pipe(command) as pipe:
            buffer, received = bytearray(3), b""
            while count := getattr(pipe, name)(buffer):
                received += buffer[:count]
            assert received == b"a\nbb\nccc"
    with gopen_pipe(command) as pipe:
        assert b"".join(iter(lambda: pipe.read1(4), b"")) == b"a\nbb\nccc"


@pytest.mark.parametrize(
    "read",
    [
        lambda pipe: pipe.read(),
        lambda pipe: [pipe.read(2) for _ in range(3)],
        lambda pipe: [pipe.read1(9) for _ in range(3)],
        lambda pipe: [pipe.readinto(bytearray(9)) for _ in range(3)],
        lambda pipe: [pipe.readinto1(bytearray(9)) for _ in range(3)],
        lambda pipe: [pipe.readline() for _ in range(3)],
        list,
    ],
    ids=["read", "read of some", "read1", "readinto", "readinto1", "readline", "iteration"],
)
def test_a_failure_is_told_at_the_end_of_what_is_read(read):
    """In whatever way it is read: before the stream is closed."""
    with gopen_pipe("pipe:printf abc; exit 3") as pipe:
        with pytest.raises(CommandFailed, match="status 3"):
            read(pipe)
        pipe.ignore_errors = True


def test_read_fills_what_is_asked():
    """read(n) returns n bytes as long as there are as many, however slowly they come."""
    with gopen_pipe("pipe:printf abc; sleep 0.1; printf def") as pipe:
        assert pipe.read(5) == b"abcde"


def test_writing(tmp_path):
    """Bytes reach the command; closing waits until it has ended."""
    pipe = gopen_pipe(f"pipe:sleep 0.1; cat > {tmp_path}/x", "wb")
    assert pipe.write(b"hello") == 5
    pipe.close()
    pipe.close()
    assert (tmp_path / "x").read_bytes() == b"hello"
    assert pipe.status == 0


def test_it_is_a_file_object():
    """Other libraries can wrap it."""
    with gopen_pipe("pipe:printf 'a\\nb\\n' | gzip") as pipe, gzip.open(pipe) as lines:
        assert lines.read() == b"a\nb\n"
    with gopen_pipe("pipe:printf 'a\\nb\\n'") as pipe:
        assert list(io.TextIOWrapper(pipe)) == ["a\n", "b\n"]
    with gopen_pipe("pipe:true") as pipe:
        assert (pipe.readable(), pipe.writable(), pipe.seekable()) == (True, False, False)
        assert pipe.fileno() > 2


def test_a_list_of_words_needs_no_shell():
    """Popen's arguments are taken."""
    with Pipe(["printf", "%s", "$HOME"], mode="r", bufsize=100) as pipe:
        assert pipe.read() == b"$HOME"
        assert pipe.args == ((["printf", "%s", "$HOME"],), {"bufsize": 100})


@pytest.mark.parametrize("mode", [None, "a", "rw", ""])
def test_modes(mode):
    """Only reading and writing are modes."""
    with pytest.raises(UsageError):
        Pipe("true", mode=mode, shell=True)


def test_a_program_that_does_not_exist():
    """NotFound names it."""
    with pytest.raises(NotFound, match="no-such-program"):
        Pipe(["no-such-program"], mode="rb")


def test_statuses_that_are_accepted():
    """ignore_status and ignore_errors, given at once or later."""
    assert Pipe("exit 5", mode="r", shell=True, ignore_status=[5]).read() == b""
    assert Pipe("exit 5", mode="r", shell=True, ignore_errors=True).read() == b""
    with Pipe("exit 5", mode="r", shell=True) as pipe:
        assert set_options(pipe, ignore_status=[5], timeout=3, ignore_errors=False, handler=print)
        assert pipe.read() == b""
        assert (pipe.timeout, pipe.handler, pipe.status) == (3, print, 5)
    assert not set_options(io.BytesIO(), timeout=3)


def test_status_141_is_the_early_end_of_a_pipeline():
    """A command in the middle that dies of a closed pipe is no error for ``pipe:`` urls."""
    with gopen_pipe("pipe:head -c 10000000 /dev/zero | head -c 10") as pipe:
        assert len(pipe.read()) == 10


def test_check_status_does_not_wait():
    """check_status raises for a child that failed, and returns for one that runs."""
    with gopen_pipe("pipe:sleep 5") as pipe:
        pipe.check_status()
    pipe = gopen_pipe("pipe:exit 3")
    pipe.proc.wait()
    with pytest.raises(CommandFailed):
        pipe.check_status()
    pipe.close()


def test_a_child_that_does_not_end():
    """After its output ended, a child has ``timeout`` seconds to end."""
    with gopen_pipe("pipe:exec >&-; sleep 20", timeout=0.1) as pipe, pytest.raises(CommandFailed, match="did not end"):
        pipe.read()
    assert pipe.proc.returncode is not None


def test_secrets_are_not_shown():
    """Neither repr nor error shows a token of the command."""
    with gopen_pipe("pipe:false 'http://u:hidden@h/?token=hidden'") as pipe:
        assert "hidden" not in repr(pipe)
        with pytest.raises(CommandFailed) as caught:
            pipe.read()
    assert "hidden" not in str(caught.value)


def test_a_forgotten_writer_completes_and_warns(tmp_path):
    """A writer that is dropped without close is completed, with a ResourceWarning."""
    pipe = gopen_pipe(f"pipe:cat > {tmp_path}/x", "wb")
    pipe.write(b"hello")
    with pytest.warns(ResourceWarning, match="unclosed"):
        del pipe
    assert (tmp_path / "x").read_bytes() == b"hello"


def test_a_forgotten_failing_writer_logs(caplog):
    """A failure in a finaliser is logged."""
    pipe = gopen_pipe("pipe:exit 3", "wb")
    with pytest.warns(ResourceWarning):
        del pipe
    assert "exit status 3" in caplog.text


def test_abort_does_not_let_the_command_complete(tmp_path):
    """A command that is aborted, or left by an exception, never sees the end of its input."""
    command = f"pipe:cat > {tmp_path}/part | cat; touch {tmp_path}/complete"
    pipe = gopen_pipe(command, "wb")
    pipe.write(b"hello")
    pipe.abort()
    pipe = gopen_pipe(command, "wb")
    pipe.write(b"hello")
    pipe.__exit__(KeyError, KeyError(), None)
    assert not (tmp_path / "complete").exists()
    assert pipe.closed


def test_a_copy_in_a_forked_child_leaves_the_command_alone(tmp_path):
    """Closing or dropping the inherited pipe in a forked process neither kills nor feeds the command."""
    reader = gopen_pipe("pipe:printf abc; sleep 0.3; printf def")
    writer = gopen_pipe(f"pipe:cat > {tmp_path}/x", "wb")
    writer.write(b"once")
    assert reader.read(3) == b"abc"
    child = os.fork()
    if child == 0:
        try:
            reader.close()
            writer.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert reader.read() == b"def"
    writer.close()
    reader.close()
    assert (tmp_path / "x").read_bytes() == b"once"


def test_without_bash(monkeypatch):
    """Where there is no bash, the plain shell serves."""
    from webdataset.storage.backends import pipe as children

    monkeypatch.setattr(children, "_find_bash", lambda: None)
    with gopen_pipe("pipe:printf hello") as pipe:
        assert pipe.read() == b"hello"


def test_nothing_is_left_at_exit():
    """A process that ends with an open pipe is quiet."""
    code = "from webdataset.storage.backends.pipe import gopen_pipe\np = gopen_pipe('pipe:yes'); p.read(10)"
    shown = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, check=True)
    assert shown.stderr == ""


def test_what_a_slow_command_has_written_comes_at_once(tmp_path):
    """Bytes are not held back until a chunk is full; those of a fast command come in full chunks."""
    with gopen_pipe("pipe:printf abc; read _ < /dev/tty || sleep 600") as pipe:
        assert pipe.read_some(300_000) == b"abc"
    with gopen_pipe("pipe:head -c 3000000 /dev/zero") as pipe:
        sizes = []
        while piece := pipe.read_some(300_000):
            sizes.append(len(piece))
        assert sum(sizes) == 3_000_000
    os.mkfifo(tmp_path / "go")
    with gopen_pipe(f"pipe:printf abc; read _ < '{tmp_path}/go'; printf def; exit 3") as pipe:
        assert pipe.read_some(2) + pipe.read_some(300_000) == b"abc"
        (tmp_path / "go").write_text("\n")
        assert pipe.read_some(300_000) == b"def"
        with pytest.raises(CommandFailed):
            pipe.read_some(300_000)
    with gopen_pipe("pipe:head -c 1000000 /dev/zero", bufsize=0) as pipe:
        assert len(pipe.read_some(500_000)) <= 500_000
        assert pipe.read_some(0) == b""


def test_a_read_in_another_thread_is_interrupted():
    """A thread that waits for a silent command is woken by the end of the command."""
    pipe, errors = gopen_pipe("pipe:sleep 600"), []

    def read():
        try:
            pipe.read_some(100)
        except CommandFailed as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    pipe.interrupt()
    thread.join()
    pipe.close()
    assert len(errors) == 1
