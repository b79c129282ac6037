"""SFTP locations and logins, sessions of asyncssh, the event loop that runs them, and error translation.

A url is ``ssh://[user[:password]@]host[:port]/path``. Hosts and users are words: a name that begins with ``-``, or
holds what a shell understands, is refused, since the user's own ``~/.ssh/config`` may hand both to a command
(``ProxyCommand``, ``Match exec``). The path is taken as it stands: nothing in it is decoded; ``/~/`` at its beginning
is the home folder on that machine.

There is one session per process and account, shared by all files there. The 64 that were used last are kept; one that
is dropped is closed when no open file, and no request, uses it any more. Names, ports, users, keys, jump hosts and
known hosts are found as the ``ssh`` program finds them: ``~/.ssh/config``, the agent, ``~/.ssh/known_hosts``. A host
that is not known is refused.

One event loop in one thread runs all sessions: asyncssh needs a loop, and readers must not wait. The first coroutine
starts the thread. A forked child begins anew: what it inherited is kept untouched, since closing it would close the
connection of its parent.

"""

import asyncio
import atexit
import contextlib
import logging
import os
import re
import threading
import urllib.parse
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.core.optional_imports import require
from webdataset.core.process_limits import open_with_raised_limit
from webdataset.core.redaction import redact
from webdataset.storage.retries import RetryableError
from webdataset.storage.s3_profile import Secret
from webdataset.storage.storage_options import options_for

if TYPE_CHECKING:
    from asyncssh import SFTPClient, SSHClientConnection

_URL = re.compile(r"(?P<stem>(?:ssh|sftp|scp)://(?P<netloc>[^/?#]*)/)(?P<path>.*)", re.IGNORECASE | re.DOTALL)
_NETLOC = re.compile(r"(?:(?P<login>.*)@)?(?P<host>\[[^]]+\]|[^:@]*)(?::(?P<port>\d{1,5}))?", re.DOTALL)
_HOST = re.compile(r"(?!-)[\w.-]{1,253}")
_ADDRESS = re.compile(r"\[(?P<address>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]")
_USER = re.compile(r"(?!-)[\w.@+-]{1,255}")


class SshLogin(NamedTuple):
    """One account on one machine. A password is hidden, here and in everything made from this.

    Args:
        host: name, alias of ``~/.ssh/config``, or address.
        port: None for what the configuration says, or 22.
        username: None for what the configuration says, or the user's own name.
        password: for password logins.
        key_filename: paths of private keys, in place of those of the configuration and the agent.
        passphrase: of the private keys.
        known_hosts: path of a file of known hosts; None for the usual ones; False for no check.
    """

    host: str
    port: int | None = None
    username: str | None = None
    password: Secret | None = None
    key_filename: tuple[str, ...] | None = None
    passphrase: Secret | None = None
    known_hosts: str | bool | None = None


class SftpLocation(NamedTuple):
    """A file on another machine.

    Args:
        login: where, and as which user.
        path: absolute, or relative to the home folder there.
    """

    login: SshLogin
    path: str


def split(url: str) -> tuple[str, str]:
    """Return a url up to its path, and the path without the slash before it."""
    match = _URL.fullmatch(url)
    if match is None:
        raise UsageError("a url of a file on another machine is ssh://host/path, or ssh://host:port/path", url=url)
    return match["stem"], match["path"]


def server_path(key: str) -> str:
    """Return the path on the server that a url's key means.

    Args:
        key: what follows the slash after the host.
    """
    return (key[2:] or ".") if key.startswith("~/") else f"/{key}"


def parse_url(url: str, storage_options: object = None) -> SftpLocation:
    """Return the file that a url names.

    Raises:
        UsageError: no such url, or a host or user that is no word.
        ConfigError: options that make no sense.
    """
    stem, key = split(url)
    if "\0" in key:
        raise UsageError("no file can have this name", url=url)
    return SftpLocation(parse_login(stem, storage_options), server_path(key))


def parse_login(stem: str, storage_options: object = None) -> SshLogin:
    """Return the account that a url's beginning names.

    Raises:
        UsageError: a host, port or user that is none.
        ConfigError: options that make no sense.
    """
    found = options_for("ssh", storage_options, stem)
    match = _NETLOC.fullmatch(stem.partition("://")[2].rstrip("/"))
    if match is None:
        raise UsageError("a url of a file on another machine is ssh://host/path, or ssh://host:port/path", url=stem)
    bracketed = _ADDRESS.fullmatch(match["host"])
    host = bracketed["address"] if bracketed else match["host"]
    if bracketed is None and not _HOST.fullmatch(host):
        raise UsageError(f"{host!r} is no name of a host", url=stem)
    username, password = _split_login(match["login"])
    username = username or found.get("username")
    if username is not None and not _USER.fullmatch(str(username)):
        raise UsageError("the name of the user holds characters that no name has", url=stem)
    port = int(match["port"] or found.get("port") or 0)
    if port > 65535:
        raise UsageError(f"{port} is no port", url=stem)
    keys = found.get("key_filename")
    keys = None if keys is None else (str(keys),) if not isinstance(keys, list | tuple) else tuple(map(str, keys))
    hosts = found.get("known_hosts")
    return SshLogin(
        host,
        port or None,
        username,
        password or found.get("password"),
        keys,
        found.get("passphrase"),
        hosts if hosts is None or hosts is False else str(hosts),
    )


def _split_login(text: str | None) -> tuple[str | None, Secret | None]:
    name, colon, password = (text or "").partition(":")
    hidden = Secret.literal(urllib.parse.unquote(password)) if colon else None
    return urllib.parse.unquote(name) or None, hidden


def service_id(url: str, storage_options: object = None) -> str:
    """Return whose files a url is about: user, host and port."""
    login = parse_login(split(url)[0], storage_options)
    return f"{login.username or ''}@{login.host}:{login.port or ''}"


_WAYS_OUT = {
    "PermissionDenied": "the server refuses these credentials: check the user's name, load the key into "
    "the agent, or give key_filename (and passphrase), or password, in storage_options",
    "KeyImportError": "a private key cannot be read: give its passphrase in storage_options, or load it into the agent",
    "KeyEncryptionError": "a private key cannot be decrypted: the passphrase is wrong",
    "ConfigParseError": "~/.ssh/config, or a file of known hosts, cannot be read",
    "ChannelOpenError": "the server offers no SFTP (Subsystem sftp in its sshd_config)",
    "SFTPPermissionDenied": "the server denies this: check the permissions of the file and its folders",
    "SFTPWriteProtect": "the file system there is read-only",
    "SFTPNoSpaceOnFilesystem": "no space is left there",
    "SFTPQuotaExceeded": "the quota there is used up",
    "SFTPFileIsADirectory": "this is a folder: write a slash at its end to list it",
}
_ABSENT = frozenset(("SFTPNoSuchFile", "SFTPNoSuchPath", "SFTPNotADirectory"))
_REFUSED = frozenset(("SFTPFailure", "SFTPOpUnsupported", "SFTPBadMessage", "SFTPError", "ProtocolError"))
_LOCAL = frozenset(("FileNotFoundError", "PermissionError", "IsADirectoryError"))  # of this machine: keys, known hosts
_LATER = (2, 4)  # RFC 4254, 5.1: connect failed, resource shortage


def translate_error(error: Exception, url: str, login: SshLogin) -> RetryableError | SourceError:
    """Return the error to raise in place of another."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    reason = redact(f"{type(error).__name__}: {error}".rstrip(": "))
    if "HostKeyNotVerifiable" in kinds:
        port = f"-p {login.port} " if login.port else ""
        return SourceError(
            f"the server's key is not among the known hosts ({reason}): compare its fingerprint with what its "
            f"administrator says, then add it, as the ssh program does, or by: ssh-keyscan {port}{login.host} >> "
            "~/.ssh/known_hosts; known_hosts in storage_options names another file",
            url=url,
        )
    if kinds & _ABSENT:
        return NotFound("nothing is there", url=url)
    later = "ChannelOpenError" in kinds and getattr(error, "code", None) in _LATER
    hint = None if later else next((text for name, text in _WAYS_OUT.items() if name in kinds), None)
    if hint is not None:
        return SourceError(f"{hint} ({reason})", url=url)
    if kinds & _LOCAL and not kinds & {"ConnectionError"}:
        return SourceError(f"a key or a file of known hosts cannot be read ({reason})", url=url)
    if type(error).__name__ in _REFUSED or "ValueError" in kinds:
        return SourceError(f"the server refuses ({reason})", url=url)
    return RetryableError(reason or "no answer within the time allowed")


log = logging.getLogger("webdataset")
T = TypeVar("T")

_inherited_loops: list[object] = []
_running: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_lock = threading.Lock()


def _forget_loop() -> None:
    global _lock, _running, _thread  # a child has neither this thread nor its lock
    _inherited_loops.append(_running)
    _lock, _running, _thread = threading.Lock(), None, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loop)


def event_loop() -> asyncio.AbstractEventLoop:
    """Return this process's loop, running.

    Raises:
        RuntimeError: the system allows this process no more threads.
        OSError: it allows no more files.
    """
    global _running, _thread
    with _lock:
        if _running is None:
            loop = open_with_raised_limit(asyncio.new_event_loop)
            loop.set_exception_handler(_log_exception)
            thread = threading.Thread(target=loop.run_forever, name="webdataset-ssh", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # what is given to a loop that does not run is waited for forever
                loop.close()
                raise
            _running, _thread = loop, thread
        return _running


def _log_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncssh's own tasks raise when a connection is lost: their reader knows it already."""
    error = context.get("exception")
    log.debug("ssh: %s", redact(f"{context.get('message')}: {type(error).__name__}: {error}"))


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine; return its future."""
    try:
        loop = event_loop()
    except BaseException:  # whatever it is: Python warns of a coroutine that was never awaited
        work.close()
        raise
    return asyncio.run_coroutine_threadsafe(work, loop)


def run_coroutine(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Run a coroutine to its end.

    Raises:
        TimeoutError: it took longer, and was stopped.
        Exception: what it raises.
    """
    future = submit(work)
    try:
        return future.result(seconds)
    except BaseException:  # an interrupt, too, must not leave it running
        future.cancel()
        raise


@atexit.register
def _stop_loop() -> None:
    """Stop the thread before the interpreter goes away below it."""
    running, thread = _running, _thread
    if running is None or thread is None or running.is_closed():
        return
    with contextlib.suppress(Exception):  # nothing is left to tell it to
        asyncio.run_coroutine_threadsafe(_cancel_tasks(), running).result(2)
    running.call_soon_threadsafe(running.stop)
    thread.join(2)


async def _cancel_tasks() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=1) if tasks else None


CONNECT_SECONDS = 20.0
READ_SECONDS = 60.0
ALIVE_SECONDS = 15.0
WINDOW_BYTES = 16 << 20
PACKET_BYTES = 1 << 17

# a program that runs for weeks with passwords or keys that change names hundreds of accounts
MOST_SESSIONS = 64

# in the order of their last use; changed in the loop's thread alone
_sessions: dict[SshLogin, "asyncio.Task[SftpSession]"] = {}
_inherited_sessions: list[object] = []


def _forget_sessions() -> None:
    _inherited_sessions.append(dict(_sessions))  # kept untouched: they belong to the parent
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_sessions)


class SftpSession:
    """A connection, and the SFTP client on it; closed when nothing refers to it any more.

    Args:
        connection: of asyncssh.
        files: its SFTP client.
    """

    def __init__(self, connection: "SSHClientConnection", files: "SFTPClient") -> None:
        self.connection = connection
        self.files = files
        closing = weakref.finalize(self, _close_connection, connection, asyncio.get_running_loop(), os.getpid())
        # at its end the program stops the loop
        closing.atexit = False

    def is_open(self) -> bool:
        """Tell whether the connection is still there."""
        return not self.connection.is_closed()


def _close_connection(connection: "SSHClientConnection", running: asyncio.AbstractEventLoop, owner: int) -> None:
    """Close a connection that nothing uses, in its loop; called wherever its last user goes away."""
    # in a forked child it is the parent's
    if owner == os.getpid():
        with contextlib.suppress(RuntimeError):
            running.call_soon_threadsafe(connection.close)


def import_asyncssh() -> ModuleType:
    """Import asyncssh.

    Raises:
        MissingExtra: it is not installed.
    """
    return require("asyncssh", extra="ssh", purpose="reading and writing ssh://, sftp:// and scp:// urls")


def failures() -> tuple[type[Exception], ...]:
    """Return the errors that a request raises."""
    known = import_asyncssh()
    keys = (known.KeyImportError, known.KeyEncryptionError, known.ConfigParseError)
    return (known.Error, OSError, CancelledError, *keys)


async def session_for(login: SshLogin) -> SftpSession:
    """Return this process's session for an account; made where there is none that works.

    A caller that keeps a file of it open keeps the session, too: else it may be closed.

    Raises:
        Exception: one of :func:`failures`.
    """
    # the first one is that which was used longest ago
    task = _sessions.pop(login, None)
    if task is not None and task.done() and (task.cancelled() or task.exception() or not task.result().is_open()):
        task = None
    if task is None:
        task = asyncio.get_running_loop().create_task(_open_session(login))
    _sessions[login] = task
    ready = [each for each, opening in _sessions.items() if opening.done()] if len(_sessions) > MOST_SESSIONS else []
    for each in ready[: len(_sessions) - MOST_SESSIONS]:
        if each != login:
            del _sessions[each]
    return await asyncio.shield(task)


async def drop_session(login: SshLogin, session: SftpSession | None = None) -> None:
    """Discard a session that does not answer.

    Args:
        login: the account.
        session: the session; another that has replaced it stays. None for any.
    """
    task = _sessions.get(login)
    if task is None or not task.done() or task.cancelled() or task.exception() is not None:
        return
    if session is None or task.result() is session:
        del _sessions[login]
    (session or task.result()).connection.abort()


async def _open_session(login: SshLogin) -> SftpSession:
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
    connection = await import_asyncssh().connect(
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
    return SftpSession(connection, files)
