"""Servers for tests: started on this machine, shared by the processes of one test run, gone when they are.

Users are not counted: each holds a shared file lock, which the kernel takes back however a process ends; a watcher
beside the server waits for the exclusive one, and then ends itself and the server's whole process group. So nothing is
left behind by tests that are killed, either.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from webdataset.core import settings
from webdataset.core.errors import NotFound, SourceError

PATIENCE_SECONDS = 90.0
SERVERS = Path(__file__).parents[2] / ".servers"
"""Where ``scripts/servers.sh`` puts servers that no Python package brings."""

_children: dict[int, subprocess.Popen[bytes]] = {}
_WATCHER = """
import fcntl, os, signal, subprocess, sys, threading
folder, words = sys.argv[1], sys.argv[2:]
alive, users = open(os.path.join(folder, "alive")), open(os.path.join(folder, "users"))
fcntl.flock(alive, fcntl.LOCK_EX)
server = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL)
def watch():
    fcntl.flock(users, fcntl.LOCK_EX)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
status = server.wait()
os._exit(status if status >= 0 else 1)
"""


class Running(NamedTuple):
    """A running server.

    Args:
        endpoint: ``http://127.0.0.1:port``, or whatever else its users need.
        pid: the process that leads its group.
    """

    endpoint: str
    pid: int


@dataclass(frozen=True)
class Launch:
    """How a server is started.

    Args:
        words: program and arguments; it must stay in the foreground. It runs in its folder.
        endpoint: what its users are told.
        ready: tells whether it answers.
        environment: variables beside those of this process.
        patience_seconds: how long it may take to answer.
    """

    words: list[str]
    endpoint: str
    ready: Callable[[], bool]
    environment: dict[str, str] = field(default_factory=dict)
    patience_seconds: float = PATIENCE_SECONDS


def program(name: str, hint: str) -> str:
    """Return the path of a program: of this Python environment, of ``.servers``, or of the system.

    Args:
        name: the program.
        hint: how it is installed.

    Raises:
        NotFound: it is not installed.
    """
    folders = (sysconfig.get_path("scripts"), str(SERVERS / "node_modules" / ".bin"), None, "/usr/sbin:/usr/local/sbin")
    found = next(filter(None, (shutil.which(name, path=folder) for folder in folders)), None)
    if found is None:
        raise NotFound(f"{name} is not installed: {hint}")
    return found


@contextlib.contextmanager
def shared(folder: Path, launch: Callable[[Path], Launch]) -> Iterator[Running]:
    """Run a server, or share the one that another process of this test run started in the same folder.

    Args:
        folder: where it keeps its files; made where it is absent.
        launch: called with the folder, where the server is to be started: writes its configuration, says its words.

    Yields:
        The server.

    Raises:
        NotFound: it is not installed.
        SourceError: it does not start; what it said is quoted.
    """
    import fcntl  # noqa: PLC0415  absent on Windows

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("alive", "users"):
        (folder / name).touch()
    with (folder / "lock").open("w") as lock, (folder / "users").open() as users:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)  # waits for a watcher that is about to end the server
        running = Running(*json.loads((folder / "state.json").read_text())) if _is_alive(folder) else None
        if running is None:
            running = _started(folder, launch(folder))
            (folder / "state.json").write_text(json.dumps(running))
        fcntl.flock(lock, fcntl.LOCK_UN)
        try:
            yield running
        finally:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                _leave(folder, users, running.pid)
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # closing does not, where a child forked meanwhile lives on


def _is_alive(folder: Path) -> bool:
    import fcntl  # noqa: PLC0415  absent on Windows

    with (folder / "alive").open() as alive:
        try:
            fcntl.flock(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _started(folder: Path, launch: Launch) -> Running:
    watched = [sys.executable, "-I", "-S", "-c", _WATCHER, str(folder), *launch.words]
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(  # noqa: S603  our own words
            watched, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=settings.child_environment(**launch.environment),
        )  # fmt: skip
    _children[child.pid] = child
    until = time.monotonic() + launch.patience_seconds
    while child.poll() is None and time.monotonic() < until:
        if launch.ready():
            return Running(launch.endpoint, child.pid)
        time.sleep(0.1)
    _end(child.pid)
    raise SourceError(f"{Path(launch.words[0]).name} does not start; it says: {(folder / 'log').read_text()[-1000:]}")


def _leave(folder: Path, users: Any, pid: int) -> None:
    """Let go; where nobody else uses the server, wait until it is gone. The lock of the folder is held."""
    import fcntl  # noqa: PLC0415  absent on Windows

    fcntl.flock(users, fcntl.LOCK_UN)
    for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(users, kind | fcntl.LOCK_NB)
            break
    else:
        kind = fcntl.LOCK_EX  # the watcher has it, and is ending the server
    if kind == fcntl.LOCK_EX:
        _end(pid)
        until = time.monotonic() + PATIENCE_SECONDS
        while _is_alive(folder) and time.monotonic() < until:
            time.sleep(0.01)
    elif pid in _children:
        _children.pop(pid).returncode = 0  # others use it still; it ends with the last of them


def _end(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)  # its files are of no more use
    if pid in _children:
        _children.pop(pid).wait()


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
    return port


def listens(port: int) -> bool:
    """Tell whether something accepts connections at a loopback port.

    Args:
        port: its number.
    """
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(port: int, path: str = "/", statuses: Container[int] = range(200, 500)) -> bool:
    """Tell whether a web server answers at a loopback port.

    Args:
        port: its number.
        path: what is asked for.
        statuses: answers that count.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        return connection.getresponse().status in statuses
    return False
