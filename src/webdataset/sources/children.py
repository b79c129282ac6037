"""Child processes: started, ended and always reaped.

Flows in: a command. Flows out: a running child and, in the end, its exit status. A child that is no longer wanted is
ended with everything that it started: a shell that dies alone leaves its pipeline behind. The child keeps our
process group and terminal, so that ``ssh`` may ask for a password and Ctrl-C reaches it.
"""

import contextlib
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from webdataset.ground.errors import NotFound, SourceError
from webdataset.ground.redaction import redacted

PATIENCE_SECONDS = 1.0
_PIPE_BYTES = 1 << 20
_SET_PIPE_SIZE = 1031
_SIGNALS = (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM))
_STOP = getattr(signal, "SIGSTOP", 0)
_CONTINUE = getattr(signal, "SIGCONT", 0)

Child = subprocess.Popen[bytes]


@functools.cache
def _bash() -> str | None:
    return shutil.which("bash")


def start(command: Any, *, writing: bool, shell: bool = False, **options: Any) -> Child:
    """Start a child process with one pipe to or from it.

    Args:
        command: one line for the shell, or a list of words.
        writing: we write to its stdin; else we read its stdout.
        shell: run ``command`` by the shell. Where bash exists it is used, with ``pipefail``: the status of
            ``curl … | gunzip`` then tells that curl failed.
        **options: passed to ``subprocess.Popen``.

    Raises:
        NotFound: the program does not exist.
        SourceError: the child cannot be started.
    """
    if shell and isinstance(command, str) and "executable" not in options and (bash := _bash()) is not None:
        command, shell = [bash, "-o", "pipefail", "-c", command], False
    options["stdin" if writing else "stdout"] = subprocess.PIPE
    try:
        child = subprocess.Popen(command, shell=shell, **options)  # noqa: S603  the user's own command
    except OSError as error:
        kind = NotFound if isinstance(error, FileNotFoundError) else SourceError
        raise kind(f"cannot start the command {shown(command)}: {error.strerror or error}") from error
    if not writing:
        _widen(child.stdout)
    return child


def _widen(stream: Any) -> None:
    with contextlib.suppress(OSError, ImportError, ValueError):
        import fcntl  # noqa: PLC0415  absent on Windows

        fcntl.fcntl(stream.fileno(), _SET_PIPE_SIZE, _PIPE_BYTES)


def waiting_bytes(number: int) -> int:
    """Return how many bytes can be read from a pipe at once, as far as the system tells.

    Args:
        number: the descriptor of our end.
    """
    try:
        import fcntl  # noqa: PLC0415  absent on Windows
        import termios  # noqa: PLC0415  likewise

        return int.from_bytes(fcntl.ioctl(number, termios.FIONREAD, bytes(4)), sys.byteorder)
    except (OSError, ImportError):
        return _PIPE_BYTES


def ended(number: int) -> bool:
    """Tell whether nobody writes to a pipe any more.

    Args:
        number: the descriptor of our end.
    """
    poll = getattr(select, "poll", None)
    if poll is None:
        return False
    watch = poll()
    watch.register(number, 0)
    return bool(watch.poll(0))


def status_of(code: int | None) -> int | None:
    """Return an exit status as a shell would report it: death by signal n is 128 + n."""
    return 128 - code if code is not None and code < 0 else code


def end(child: Child) -> int:
    """End a child that is no longer wanted, with all that it started, and reap it.

    Theory. The family is frozen from the top while it is listed, so that nobody starts another process, reaps one (its
    number could be given away), or takes the death of a neighbour for the end of its input and completes half an
    upload. The signal reaches all of them before anyone wakes; the parents wake first, so that no shell is left to
    report the deaths of its children.

    Args:
        child: the process; it may have ended already.

    Returns:
        Its exit status.
    """
    for number in _SIGNALS:
        if child.poll() is None:
            family = _frozen(child.pid)
            _signal(reversed(family), number)
            _signal(family, _CONTINUE)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(PATIENCE_SECONDS)
    return child.wait()


def _frozen(pid: int) -> list[int]:
    """Stop a process and its descendants; return them, parents first (without descendants where there is no /proc)."""
    family = [pid]
    for member in family:
        _signal((member,), _STOP)
        with contextlib.suppress(OSError):
            for listing in Path(f"/proc/{member}/task").glob("*/children"):
                family.extend(map(int, listing.read_text().split()))
    return family


def _signal(family: Iterable[int], number: int) -> None:
    for pid in family if number else ():
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def shown(command: Any) -> str:
    """Return a command as it may be shown: secrets removed, cut to 300 characters."""
    text = command if isinstance(command, str) else " ".join(map(str, command)) if command else repr(command)
    text = redacted(text)
    return repr(text if len(text) <= 300 else f"{text[:297]}...")
