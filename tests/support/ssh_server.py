"""A real ssh server on this machine: OpenSSH, as an ordinary process of the user who runs the tests.

Its home folder has the right keys, ``~/.ssh/config`` and ``known_hosts``. Listens on the loopback only, lets one key
in, and serves the whole file system as any sshd does.
"""

import contextlib
import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support import services
from support.services import Launch
from webdataset.core.errors import NotFound


class SshServer(NamedTuple):
    """A running server.

    Args:
        port: where it listens, at 127.0.0.1.
        user: who may log in.
        home: a folder with ``.ssh/config`` (host ``shards``, and ``far`` by way of ``shards``), ``.ssh/known_hosts``
            and ``.ssh/id_ed25519``.
        files: an empty folder, for shards.
        pid: the process that leads its group.
    """

    port: int
    user: str
    home: Path
    files: Path
    pid: int


def programs() -> tuple[str, str]:
    """Return the paths of ``sshd`` and ``ssh-keygen``.

    Raises:
        NotFound: they are not installed.
    """
    hint = "apt-get install openssh-server"
    return services.program("sshd", hint), services.program("ssh-keygen", hint)


@contextlib.contextmanager
def shared_ssh(folder: Path) -> Iterator[SshServer]:
    """Run a server, or share the one that another process of this test run started in the same folder.

    Args:
        folder: where it keeps its files.

    Yields:
        The server.

    Raises:
        NotFound: sshd is not installed, or this account may not run it.
        SourceError: it does not start.
    """
    with services.shared(folder, _launch) as running:
        yield SshServer(int(running.endpoint), getpass.getuser(), folder / "home", folder / "files", running.pid)


def _launch(folder: Path) -> Launch:
    sshd, keygen = programs()
    if os.geteuid() == 0:  # it wants an empty folder of its own then, and stops without it
        try:
            Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise NotFound(f"sshd cannot run here: {error}") from error
    home = folder / "home" / ".ssh"
    for made in (home, folder / "files"):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
    home.chmod(0o700)
    for key in (folder / "host_key", home / "id_ed25519"):
        key.unlink(missing_ok=True)
        words = [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(key)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)  # noqa: S603  our own words
    port = services.free_port()
    public = (folder / "host_key.pub").read_text().split()
    (home / "known_hosts").write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")
    user = getpass.getuser()
    (home / "config").write_text(
        f"Host shards far\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {home}/id_ed25519\n"
        f"  UserKnownHostsFile {home}/known_hosts\nHost far\n  ProxyJump shards\n"
    )
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nAuthorizedKeysFile {home}/id_ed25519.pub\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPidFile none\n"
        "PermitRootLogin prohibit-password\nMaxStartups 200\nMaxSessions 100\nSubsystem sftp internal-sftp\n"
    )
    words = [sshd, "-D", "-e", "-f", str(folder / "sshd_config")]
    return Launch(words, str(port), lambda: services.listens(port))
