"""Where a file on another machine lies, and how one logs in there.

Flows in: ``ssh://[user[:password]@]host[:port]/path`` and storage options. Flows out: the same, checked. Hosts and
users are words: a name that begins with ``-``, or holds what a shell understands, is refused here, since the user's
own ``~/.ssh/config`` may hand both to a command (``ProxyCommand``, ``Match exec``). The path is taken as it stands:
nothing in it is decoded; ``/~/`` at its beginning is the home folder there.
"""

import re
import urllib.parse
from typing import Any, NamedTuple

from webdataset.ground.errors import UsageError
from webdataset.sources.profiles.options import options_for
from webdataset.sources.profiles.secret import Secret

_URL = re.compile(r"(?P<stem>(?:ssh|sftp|scp)://(?P<netloc>[^/?#]*)/)(?P<path>.*)", re.IGNORECASE | re.DOTALL)
_NETLOC = re.compile(r"(?:(?P<login>.*)@)?(?P<host>\[[^]]+\]|[^:@]*)(?::(?P<port>\d{1,5}))?", re.DOTALL)
_HOST = re.compile(r"(?!-)[\w.-]{1,253}")
_ADDRESS = re.compile(r"\[(?P<address>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]")
_USER = re.compile(r"(?!-)[\w.@+-]{1,255}")


class Login(NamedTuple):
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


class Place(NamedTuple):
    """A file on another machine.

    Args:
        login: where, and as whom.
        path: absolute, or relative to the home folder there.
    """

    login: Login
    path: str


def split(url: str) -> tuple[str, str]:
    """Return a url up to its path, and the path without the slash before it; see :mod:`webdataset.sources.stores`."""
    match = _URL.fullmatch(url)
    if match is None:
        raise UsageError("a url of a file on another machine is ssh://[user@]host[:port]/path", url=url)
    return match["stem"], match["path"]


def path_of(key: str) -> str:
    """Return the path on the server that a url's key means.

    Args:
        key: what follows the slash after the host.
    """
    return (key[2:] or ".") if key.startswith("~/") else f"/{key}"


def place_of(url: str, storage_options: Any = None) -> Place:
    """Return the file that a url names.

    Args:
        url: the url.
        storage_options: options of this store.

    Raises:
        UsageError: no such url, or a host or user that is no word.
        ConfigError: options that make no sense.
    """
    stem, key = split(url)
    if "\0" in key:
        raise UsageError("no file can have this name", url=url)
    return Place(login_of(stem, storage_options), path_of(key))


def login_of(stem: str, storage_options: Any = None) -> Login:
    """Return the account that a url's beginning names.

    Args:
        stem: a url up to its path.
        storage_options: options of this store.

    Raises:
        UsageError: a host, port or user that is none.
        ConfigError: options that make no sense.
    """
    found = options_for("ssh", storage_options, stem)
    match = _NETLOC.fullmatch(stem.partition("://")[2].rstrip("/"))
    if match is None:
        raise UsageError("a url of a file on another machine is ssh://[user@]host[:port]/path", url=stem)
    bracketed = _ADDRESS.fullmatch(match["host"])
    host = bracketed["address"] if bracketed else match["host"]
    if bracketed is None and not _HOST.fullmatch(host):
        raise UsageError(f"{host!r} is no name of a host", url=stem)
    username, password = _login(match["login"])
    username = username or found.get("username")
    if username is not None and not _USER.fullmatch(str(username)):
        raise UsageError("the name of the user holds characters that no name has", url=stem)
    port = int(match["port"] or found.get("port") or 0)
    if port > 65535:
        raise UsageError(f"{port} is no port", url=stem)
    keys = found.get("key_filename")
    keys = None if keys is None else (str(keys),) if not isinstance(keys, list | tuple) else tuple(map(str, keys))
    hosts = found.get("known_hosts")
    return Login(
        host,
        port or None,
        username,
        password or found.get("password"),
        keys,
        found.get("passphrase"),
        hosts if hosts is None or hosts is False else str(hosts),
    )


def _login(text: str | None) -> tuple[str | None, Secret | None]:
    name, colon, password = (text or "").partition(":")
    hidden = Secret.literal(urllib.parse.unquote(password)) if colon else None
    return urllib.parse.unquote(name) or None, hidden


def service_of(url: str, storage_options: Any = None) -> str:
    """Return whose files a url is about: user, host and port; see :mod:`webdataset.sources.stores`."""
    login = login_of(split(url)[0], storage_options)
    return f"{login.username or ''}@{login.host}:{login.port or ''}"
