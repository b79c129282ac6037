"""Starts the server of a scheme, and describes it; see :mod:`support.schemes`."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

from support import schemes_cloud, schemes_local
from support.ais_server import ais_server
from support.azure_server import shared_azure
from support.gcs_server import create_bucket, shared_gcs
from support.hf_server import hf_server
from support.s3_server import shared_s3
from support.schemes import Folder, Scheme
from support.ssh_server import shared_ssh
from support.web_server import shared_web

NAMES = ("http", "https", "s3", "gs", "az", "hf", "ais", "ssh", "fsspec", "memory")
"""Every scheme of the matrix."""


def certified(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for this machine; needs trustme.

    Args:
        folder: where the files go.

    Returns:
        Certificate and key in PEM, and who signed it.
    """
    authority = importlib.import_module("trustme").CA()
    made = authority.issue_cert("127.0.0.1", "localhost")
    certificate, trusted = folder / "server.pem", folder / "authority.pem"
    certificate.write_bytes(made.private_key_pem.bytes() + b"".join(blob.bytes() for blob in made.cert_chain_pems))
    authority.cert_pem.write_to_path(str(trusted))
    return certificate, trusted


@contextlib.contextmanager
def running(name: str, folder: Folder, worker: str) -> Iterator[Scheme]:
    """Run the server of a scheme.

    Args:
        name: one of :data:`NAMES`.
        folder: where it may keep files.
        worker: distinguishes the objects of processes that share a server.

    Yields:
        The scheme.

    Raises:
        NotFound: a server is not installed.
        MissingExtra: a package is not installed.
    """
    with contextlib.ExitStack() as stack:
        yield _STARTS[name](stack, folder, worker)


def _web(stack: contextlib.ExitStack, folder: Folder, worker: str, kind: type[schemes_local.Http]) -> Scheme:
    server = stack.enter_context(shared_web(folder.own / "nginx", folder.certificate.read_bytes()))
    return kind(folder, worker, server)


def _s3(stack: contextlib.ExitStack, folder: Folder, worker: str) -> Scheme:
    return schemes_cloud.S3(folder, worker, stack.enter_context(shared_s3(folder.shared / "s3")))


def _gs(stack: contextlib.ExitStack, folder: Folder, worker: str) -> Scheme:
    server = stack.enter_context(shared_gcs(folder.shared / "gcs"))
    create_bucket(server.endpoint, "shards")
    return schemes_cloud.Gs(folder, worker, server)


def _az(stack: contextlib.ExitStack, folder: Folder, worker: str) -> Scheme:
    made = schemes_cloud.Az(folder, worker, stack.enter_context(shared_azure(folder.shared / "azure")))
    stack.callback(made.close)
    return made


def _ssh(stack: contextlib.ExitStack, folder: Folder, worker: str, kind: type[schemes_local.Ssh]) -> Scheme:
    return kind(folder, worker, stack.enter_context(shared_ssh(folder.shared / "ssh")))


_STARTS: dict[str, Callable[[contextlib.ExitStack, Folder, str], Scheme]] = {
    "http": lambda stack, folder, worker: _web(stack, folder, worker, schemes_local.Http),
    "https": lambda stack, folder, worker: _web(stack, folder, worker, schemes_local.Https),
    "s3": _s3,
    "gs": _gs,
    "az": _az,
    "hf": lambda stack, folder, worker: schemes_cloud.Hf(folder, worker, stack.enter_context(hf_server())),
    "ais": lambda stack, folder, worker: schemes_cloud.Ais(
        folder,
        worker,
        stack.enter_context(ais_server(token="of-the-cluster", strict=False)),  # noqa: S106  opens nothing but this
    ),
    "ssh": lambda stack, folder, worker: _ssh(stack, folder, worker, schemes_local.Ssh),
    "fsspec": lambda stack, folder, worker: _ssh(stack, folder, worker, schemes_local.Far),
    "memory": lambda _stack, folder, worker: schemes_local.Memory(folder, worker),
}
