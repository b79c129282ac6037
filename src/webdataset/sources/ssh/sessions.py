"""Connections to other machines: one per process and account, made by asyncssh, shared by all files there.

Flows in: an account. Flows out: its SFTP session, within the loop. Names, ports, users, keys, jump hosts and known
hosts are found as the ``ssh`` program finds them: ``~/.ssh/config``, the agent, ``~/.ssh/known_hosts``. A host that is
not known is refused.
"""

import asyncio
import os
from concurrent.futures import CancelledError
from types import ModuleType
from typing import Any

from webdataset.ground.extras import require

from .places import Login

CONNECT_SECONDS = 20.0
READ_SECONDS = 60.0
ALIVE_SECONDS = 15.0
WINDOW_BYTES = 16 << 20
PACKET_BYTES = 1 << 17

_sessions: dict[Login, "asyncio.Task[Session]"] = {}
_inherited: list[Any] = []


def _forget() -> None:
    _inherited.append(dict(_sessions))  # kept untouched: they belong to the parent
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Session:
    """A connection, and the SFTP client on it.

    Args:
        connection: of asyncssh.
        files: its SFTP client.
    """

    def __init__(self, connection: Any, files: Any) -> None:
        self.connection = connection
        self.files = files

    def is_open(self) -> bool:
        """Tell whether the connection is still there."""
        return not self.connection.is_closed()


def asyncssh() -> ModuleType:
    """Import asyncssh.

    Raises:
        MissingExtra: it is not installed.
    """
    return require("asyncssh", extra="ssh", purpose="reading and writing ssh://, sftp:// and scp:// urls")


def failures() -> tuple[type[Exception], ...]:
    """Return the errors that a request raises."""
    known = asyncssh()
    keys = (known.KeyImportError, known.KeyEncryptionError, known.ConfigParseError)
    return (known.Error, OSError, CancelledError, *keys)


async def session_for(login: Login) -> Session:
    """Return this process's session for an account; made where there is none that works.

    Args:
        login: the account.

    Raises:
        Exception: one of :func:`failures`.
    """
    task = _sessions.get(login)
    if task is not None and task.done() and (task.cancelled() or task.exception() or not task.result().is_open()):
        task = None
    if task is None:
        task = _sessions[login] = asyncio.get_running_loop().create_task(_opened(login))
    return await asyncio.shield(task)


async def dropped(login: Login, session: Session | None = None) -> None:
    """Let go of a session that does not answer.

    Args:
        login: the account.
        session: the one concerned; another that has taken its place stays. None for any.
    """
    task = _sessions.get(login)
    if task is None or not task.done() or task.cancelled() or task.exception() is not None:
        return
    if session is None or task.result() is session:
        del _sessions[login]
    (session or task.result()).connection.abort()


async def _opened(login: Login) -> Session:
    wanted = {
        "port": login.port,
        "username": login.username,
        "password": None if login.password is None else login.password.reveal(),
        "client_keys": None if login.key_filename is None else list(login.key_filename),
        "passphrase": None if login.passphrase is None else login.passphrase.reveal(),
        "known_hosts": login.known_hosts or None,
    }
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if login.known_hosts is False:
        given["known_hosts"] = None
    connection = await asyncssh().connect(
        login.host,
        connect_timeout=CONNECT_SECONDS,
        login_timeout=CONNECT_SECONDS,
        keepalive_interval=ALIVE_SECONDS,
        window=WINDOW_BYTES,
        max_pktsize=PACKET_BYTES,
        **given,
    )
    try:
        files = await connection.start_sftp_client(path_encoding="utf-8", path_errors="surrogateescape")
    except BaseException:  # also where it was cancelled
        connection.abort()
        raise
    return Session(connection, files)
