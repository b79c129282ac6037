"""A service that speaks like Azure Blob Storage on this machine: azurite, which checks signatures.

Started for tests and stopped after them; several test processes of one run share one service (see
:mod:`support.services`).
"""

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

from support import services
from support.services import Launch, Running

ACCOUNT = "testaccount"
KEY = base64.b64encode(b"key-of-the-test-account").decode()


def program() -> str:
    """Return the program.

    Raises:
        NotFound: it is not installed (``npm install azurite``).
    """
    return services.program("azurite-blob", "npm install azurite")


@contextlib.contextmanager
def shared_azure(folder: Path) -> Iterator[Running]:
    """Run a service, or share the one that another process of this test run started in the same folder.

    Args:
        folder: where it keeps its log; blobs are kept in memory.

    Yields:
        The service, its endpoint with :data:`ACCOUNT` in it; :data:`KEY` is the account's.

    Raises:
        NotFound: it is not installed.
        SourceError: it does not start.
    """
    with services.shared(folder, _launch) as running:
        yield running


def _launch(_folder: Path) -> Launch:
    port = services.free_port()
    words = [
        program(), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--disableTelemetry",
        "--silent", "--skipApiVersionCheck",
    ]  # fmt: skip
    return Launch(
        words,
        f"http://127.0.0.1:{port}/{ACCOUNT}",
        lambda: services.answers(port),
        {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
    )


def connection_string(endpoint: str) -> str:
    """Return what Azure's own clients are given.

    Args:
        endpoint: of the service, or of a proxy before it.
    """
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint}"
