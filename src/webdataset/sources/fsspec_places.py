"""Where an object of fsspec lies: its file system, its options, what its errors mean.

Flows in: a url and ``storage_options={"fsspec": {…}}``. Flows out: a :class:`Place`. What leads to this machine is not
served, whoever wrote it: file systems that are local, and chains (``::``) of one within another, since a url from afar
could name any file by them.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

from webdataset.ground.errors import ConfigError, MissingExtra, NotFound, SourceError, UsageError
from webdataset.ground.extras import available, require
from webdataset.ground.locks import ForkSafeLock
from webdataset.ground.redaction import redacted

from .forks import left_to_its_process
from .objects import Again
from .profiles.options import Held, StorageOptions, options_for
from .profiles.secret import Secret

NEVER = frozenset(
    (
        "file", "local", "asynclocal", "dir", "data", "memory", "reference", "simplecache", "filecache", "blockcache",
        "cached", "zip", "tar", "libarchive", "git", "dvc", "generic", "async_wrapper", "asyncwrapper", "dask", "root",
        "pyscript", "jlab", "jupyter", "http", "https", "pipe",
    )
)  # fmt: skip
"""Protocols of fsspec that are local, stand for others, or are served by this library alone."""

_FINAL = (
    UsageError,
    ValueError,
    TypeError,
    NotImplementedError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)


READ_SECONDS = 300.0

T = TypeVar("T")


def serves(scheme: str) -> bool:
    """Tell whether an installed fsspec knows a scheme, and may serve it here.

    Args:
        scheme: without the colon.
    """
    name = scheme.lower()
    if name in NEVER or available("fsspec") is None:
        return False
    known = require("fsspec.registry", extra="fsspec", purpose="opening urls through fsspec")
    return name in known.registry or name in known.known_implementations


def fsspec() -> ModuleType:
    """Import fsspec.

    Raises:
        MissingExtra: it is not installed.
    """
    return require("fsspec", extra="fsspec", purpose="opening urls through fsspec")


def _options(storage_options: Any, url: str) -> StorageOptions:
    """Return the options of the file system.

    Raises:
        ConfigError: they are no mapping.
    """
    given = options_for("fsspec", storage_options, url).get("fsspec", StorageOptions(()))
    if not isinstance(given, StorageOptions):
        raise ConfigError("storage_options: fsspec is a mapping of options for its file system", url=url)
    return given


def _revealed(value: Any) -> Any:
    if isinstance(value, StorageOptions):
        return {name: _revealed(part) for name, part in value.options}
    if isinstance(value, Held):
        return value.value
    return value.reveal() if isinstance(value, Secret) else value


def _secrets(value: Any) -> Iterator[Secret]:
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, StorageOptions):
        for _, part in value.options:
            yield from _secrets(part)


def _shown(value: Any) -> str:
    """Return what tells options apart, without secrets."""
    if isinstance(value, StorageOptions):
        return " ".join(sorted(f"{name}={_shown(part)}" for name, part in value.options))
    if isinstance(value, Held):
        return ""
    return value.reference or "" if isinstance(value, Secret) else str(value)


def turn(filesystem: Any) -> Any:
    """Return what is held while a file system is asked: a lock, where it is not made for several threads at once.

    fsspec gives equal file systems as one object, also to several threads, while clients of SFTP or FTP take each
    other's answers. Asynchronous ones ask in a thread of their own.

    Args:
        filesystem: the file system.
    """
    if getattr(filesystem, "async_impl", False):
        return contextlib.nullcontext()
    kept = vars(filesystem)
    if "_webdataset_turn" not in kept:
        left_to_its_process(filesystem)
        kept.setdefault("_webdataset_turn", ForkSafeLock())
    return kept["_webdataset_turn"]


def bounded(call: Callable[[], T], filesystem: Any = None) -> T:
    """Call a file system, which may wait for ever, and wait for it no longer than :data:`READ_SECONDS`.

    Args:
        call: what to do.
        filesystem: asked by it; None where there is none yet. Others wait for their turn.

    Raises:
        TimeoutError: it took longer; its thread is left alone.
        Exception: what it raises.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with contextlib.nullcontext() if filesystem is None else turn(filesystem):
                found.append(call())
        except BaseException as error:  # noqa: BLE001  raised in the thread that asked
            failed.append(error)

    thread = threading.Thread(target=run, name="webdataset-fsspec", daemon=True)
    thread.start()
    thread.join(READ_SECONDS)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(f"the file system gave no answer within {READ_SECONDS:g} s")
    return found[0]


class Place:
    """A path in a file system of fsspec.

    Args:
        url: the url.
        storage_options: options of this store.

    Raises:
        UsageError: a chain, or a file system of this machine.
        ConfigError: options that make no sense.
    """

    def __init__(self, url: str, storage_options: Any = None) -> None:
        self.url = url
        self._scheme = url.partition("://")[0].lower()
        if "::" in url or self._scheme in NEVER:
            raise UsageError(
                "fsspec's local and chained file systems are not opened by url: open it with fsspec yourself, and "
                "pass the stream, or set gopen_schemes[…] = f(url, mode, bufsize, **kw)",
                url=url,
            )
        self._options = _options(storage_options, url)

    def filesystem(self) -> tuple[Any, str]:
        """Return the file system, and the path in it; made by fsspec, once for each process.

        Raises:
            MissingExtra: fsspec, or what this file system needs, is not installed.
            Again: it cannot be reached.
            SourceError: it refuses.
        """
        options = {name: _revealed(value) for name, value in self._options.options}
        try:
            found = bounded(lambda: fsspec().core.url_to_fs(self.url, **options))
        except MissingExtra:
            raise
        except ImportError as error:
            failure: Exception = MissingExtra(f"fsspec serves this scheme, and says: {error}", url=self.url)
        except Exception as error:  # noqa: BLE001  file systems raise what they like
            failure = self.translated(error)
        else:
            filesystem, path = found
            return filesystem, path
        raise failure

    def translated(self, error: Exception) -> Again | SourceError:
        """Return the error to raise in place of one of a file system; it may quote its options.

        Args:
            error: the error.
        """
        said = f"{type(error).__name__}: {error}"
        for secret in _secrets(self._options):
            said = said.replace(secret.reveal() or "\0", "***")
        if isinstance(error, FileNotFoundError):
            return NotFound("nothing is there", url=self.url)
        if isinstance(error, _FINAL):
            return SourceError(f"fsspec cannot open this: {redacted(said)}", url=self.url)
        with contextlib.suppress(Exception):  # what fails may have lost its connection for good
            fsspec().core.get_filesystem_class(self._scheme).clear_instance_cache()
        return Again(redacted(said))


def service_of(url: str, storage_options: Any = None) -> str:
    """Return which account a url is opened with, without secrets; see :mod:`webdataset.sources.stores`."""
    return _shown(_options(storage_options, url))
