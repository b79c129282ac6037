"""Local copies of shards: what they are called, and how they are made.

Flows in: urls. Flows out: paths. A copy appears under its name when it is whole.
"""

import base64
import hashlib
import os
import tempfile
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from webdataset.caching.names import pipe_cleaner
from webdataset.ground import settings
from webdataset.ground.errors import UsageError

from .nearby import copied


def default_folder() -> str:
    """Return ``WIDS_CACHE``, or a folder of this user's among the temporary files."""
    chosen = settings.WIDS_CACHE.get()
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return chosen or os.path.join(tempfile.gettempdir(), f"_wids_cache-{user}")  # noqa: PTH118


@dataclass
class DefaultLocalname:
    """Names copies by the whole url, percent-quoted, so that no two shards share one.

    Args:
        dldir: their folder; by default ``WIDS_CACHE``, or a folder of this user's among the temporary files.
    """

    dldir: str = field(default_factory=default_folder)

    def __call__(self, shard: str) -> str:
        """Return the path of the copy of a shard."""
        return os.path.join(self.dldir, urllib.parse.quote(shard, safe=""))  # noqa: PTH118


@dataclass
class CacheLocalname:
    """Names copies as the shards are named; two shards of one name in different folders share it.

    Args:
        cachedir: their folder.
    """

    cachedir: str

    def __call__(self, shard: str) -> str:
        """Return the path of the copy of a shard."""
        path = urllib.parse.urlparse(pipe_cleaner(shard)).path
        return os.path.join(self.cachedir, os.path.basename(path))  # noqa: PTH118, PTH119


def default_localname(dldir: str | None = None) -> Callable[[str], str]:
    """Return the naming of :class:`DefaultLocalname`, as wids 0.2.86 spells it.

    Args:
        dldir: the folder.
    """
    return DefaultLocalname() if dldir is None else DefaultLocalname(dldir)


def cache_localname(cachedir: str) -> Callable[[str], str]:
    """Return the naming of :class:`CacheLocalname`, as wids 0.2.86 spells it.

    Args:
        cachedir: the folder.
    """
    return CacheLocalname(cachedir)


def hash_localname(dldir: str | None = None) -> Callable[[str], str]:
    """Return a naming by hashes of urls.

    Args:
        dldir: the folder of the copies.
    """
    return _HashLocalname(default_folder() if dldir is None else dldir)


@dataclass
class _HashLocalname:
    dldir: str

    def __call__(self, shard: str) -> str:
        if shard.startswith("pipe:"):
            return os.path.join(self.dldir, f"pipe__{_hashed(shard)[:32]}")  # noqa: PTH118
        path, mark, query = shard.partition("?")
        folder, _, name = path.rpartition("/")
        return os.path.join(self.dldir, f"data__{_hashed(folder + mark + query)[:16]}__{name}")  # noqa: PTH118


def _hashed(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()).decode("ascii")


def download_file(
    remote: str,
    local: str,
    handlers: Mapping[str, Callable[[str, str], Any]] | None = None,
    verbose: bool = False,  # noqa: ARG001, FBT001, FBT002  upstream's signature
) -> str:
    """Copy a shard, unless the copy is there already.

    Args:
        remote: url or path.
        local: path of the copy.
        handlers: scheme (``"s3"``, ``"posixpath"``) to a function of (remote, local) that makes the copy.
        verbose: not used; ``WIDS_VERBOSE`` logs downloads.

    Returns:
        The path of the copy.

    Raises:
        UsageError: a handler that is no function.
        SourceError: it cannot be read or written.
        FormatError: it is no shard.
    """
    scheme = remote.partition(":")[0] if ":" in remote else "posixpath"
    handler = (handlers or {}).get(scheme)
    if handler is None:
        return copied(remote, local)
    if not callable(handler):
        raise UsageError(f"handlers[{scheme!r}] is a function of (remote, local), not {handler!r}", url=remote)
    if not Path(local).exists():
        partial = f"{local}.{os.getpid()}.part"
        handler(remote, partial)
        Path(partial).replace(local)
    return local


def download_and_open(
    remote: str,
    local: str,
    mode: str = "rb",
    handlers: Mapping[str, Callable[[str, str], Any]] | None = None,
    verbose: bool = False,  # noqa: FBT001, FBT002  upstream's signature
) -> BinaryIO:
    """Copy a shard, unless the copy is there already, and open the copy.

    Args:
        remote: url or path.
        local: path of the copy.
        mode: how to open it.
        handlers: as for :func:`download_file`.
        verbose: not used.

    Raises:
        SourceError: it cannot be read or written.
    """
    path = download_file(remote, local, handlers, verbose)
    return open(path, mode)  # type: ignore[return-value]  # noqa: PTH123  the caller closes


def pipe_download(remote: str, local: str) -> str:
    """Copy what a ``pipe:`` command writes.

    Args:
        remote: the command, with or without ``pipe:``.
        local: path of the copy.

    Raises:
        CommandFailed: it ended with an error status.
    """
    return copied(remote if remote.startswith("pipe:") else "pipe:" + remote, local)


def copy_file(remote: str, local: str) -> str:
    """Copy a local shard.

    Args:
        remote: its path or ``file:`` url.
        local: path of the copy.

    Raises:
        NotFound: no such file.
    """
    return copied(remote, local)


class SimpleDownloader:
    """Makes copies of shards one by one, as wids 0.2.86 spells it.

    Args:
        **kw: accepted and not used.
    """

    def __init__(self, **kw: Any) -> None:
        self.options = kw

    def download(self, remote: str, local: str) -> str:
        """Copy a shard, unless the copy is there already; return its path."""
        return copied(remote, local)

    def release(self, local: str) -> None:
        """Give a copy back: it is kept."""
