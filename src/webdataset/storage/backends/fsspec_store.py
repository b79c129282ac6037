"""Every other scheme, through fsspec: reads, uploads and lists ``oci:``, ``hdfs:``, ``smb:``, ``github:`` and more.

It serves a url whose scheme an installed fsspec knows and no other backend serves, with ``storage_options={"fsspec":
{...}}`` for its file system. What fsspec says of an object (ETag, version, checksum, time) identifies it; where that
is its length alone, a connection that drops cannot be resumed.

File systems keep their connections, also dead ones, and few of them have a bound on waiting: after a failure the file
system is made anew, and a call that takes longer than five minutes has failed.

It never serves what leads to this machine: local file systems, and chains (``::``) of one within another, since a
remote url could name any file by them.
"""

import contextlib
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from webdataset.core.errors import ConfigError, MissingExtra, NotFound, SourceError, UsageError
from webdataset.core.fork_safety import ForkSafeLock, skip_finalizer_in_children
from webdataset.core.optional_imports import import_if_available, require
from webdataset.core.redaction import redact
from webdataset.storage.object_store import ObjectResponse, ObjectVersion, object_changed_error
from webdataset.storage.retries import ATTEMPTS, RetryableError, retry
from webdataset.storage.s3_profile import Secret
from webdataset.storage.storage_options import OpaqueOption, StorageOptions, options_for
from webdataset.storage.uploads import SinglePutUpload

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

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
    """Tell whether an installed fsspec knows a scheme, and may serve it here."""
    name = scheme.lower()
    if name in NEVER or import_if_available("fsspec") is None:
        return False
    known = require("fsspec.registry", extra="fsspec", purpose="opening urls through fsspec")
    return name in known.registry or name in known.known_implementations


def import_fsspec() -> ModuleType:
    """Import fsspec.

    Raises:
        MissingExtra: it is not installed.
    """
    return require("fsspec", extra="fsspec", purpose="opening urls through fsspec")


def _filesystem_options(storage_options: object, url: str) -> StorageOptions:
    """Return the options of the file system.

    Raises:
        ConfigError: they are no mapping.
    """
    given = options_for("fsspec", storage_options, url).get("fsspec", StorageOptions(()))
    if not isinstance(given, StorageOptions):
        raise ConfigError("storage_options: fsspec is a mapping of options for its file system", url=url)
    return given


def _reveal(value: object) -> object:
    if isinstance(value, StorageOptions):
        return {name: _reveal(part) for name, part in value.options}
    if isinstance(value, OpaqueOption):
        return value.value
    return value.reveal() if isinstance(value, Secret) else value


def _find_secrets(value: object) -> Iterator[Secret]:
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, StorageOptions):
        for _, part in value.options:
            yield from _find_secrets(part)


def _public_text(value: object) -> str:
    """Return what tells options apart, without secrets."""
    if isinstance(value, StorageOptions):
        return " ".join(sorted(f"{name}={_public_text(part)}" for name, part in value.options))
    if isinstance(value, OpaqueOption):
        return ""
    return value.reference or "" if isinstance(value, Secret) else str(value)


def filesystem_lock(filesystem: object) -> contextlib.AbstractContextManager[object]:
    """Return what to hold during a call to a file system: a lock, unless it is made for several threads at once.

    fsspec gives equal file systems as one object, also to several threads, while clients of SFTP or FTP take each
    other's responses. Asynchronous ones work in a thread of their own.
    """
    if getattr(filesystem, "async_impl", False):
        return contextlib.nullcontext()
    kept = vars(filesystem)
    if "_webdataset_turn" not in kept:
        skip_finalizer_in_children(filesystem)
        kept.setdefault("_webdataset_turn", ForkSafeLock())
    lock: ForkSafeLock = kept["_webdataset_turn"]
    return lock


def call_with_timeout(call: Callable[[], T], filesystem: object = None) -> T:
    """Call a file system, which may wait forever, and wait no longer than :data:`READ_SECONDS`.

    Args:
        call: calls it.
        filesystem: the file system, for its lock; None before there is one.

    Raises:
        TimeoutError: it took longer; its thread is left alone.
        Exception: what ``call`` raises.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with contextlib.nullcontext() if filesystem is None else filesystem_lock(filesystem):
                found.append(call())
        except BaseException as error:  # noqa: BLE001  raised in the calling thread
            failed.append(error)

    thread = threading.Thread(target=run, name="webdataset-fsspec", daemon=True)
    thread.start()
    thread.join(READ_SECONDS)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(f"the file system gave no answer within {READ_SECONDS:g} s")
    return found[0]


class FsspecLocation:
    """A path in a file system of fsspec.

    Args:
        url: the url.
        storage_options: ``fsspec``, a mapping of options for the file system.

    Raises:
        UsageError: a chain, or a file system of this machine.
        ConfigError: options that make no sense.
    """

    def __init__(self, url: str, storage_options: object = None) -> None:
        self.url = url
        self._scheme = url.partition("://")[0].lower()
        if "::" in url or self._scheme in NEVER:
            raise UsageError(
                "fsspec's local and chained file systems are not opened by url: open it with fsspec yourself, and "
                "pass the stream, or set gopen_schemes[…] = f(url, mode, bufsize, **kw)",
                url=url,
            )
        self._options = _filesystem_options(storage_options, url)

    def filesystem(self) -> tuple["AbstractFileSystem", str]:
        """Return the file system, which fsspec makes once for each process, and the path in it.

        Raises:
            MissingExtra: fsspec, or what this file system needs, is not installed.
            RetryableError: it cannot be reached.
            SourceError: it refuses.
        """
        options = {name: _reveal(value) for name, value in self._options.options}
        try:
            found = call_with_timeout(lambda: import_fsspec().core.url_to_fs(self.url, **options))
        except MissingExtra:
            raise
        except ImportError as error:
            failure: Exception = MissingExtra(f"fsspec serves this scheme, and says: {error}", url=self.url)
        except Exception as error:  # noqa: BLE001  file systems raise what they like
            failure = self.translate_error(error)
        else:
            filesystem, path = found
            return filesystem, path
        raise failure

    def translate_error(self, error: Exception) -> RetryableError | SourceError:
        """Return the error to raise in place of one of a file system; it may quote its options."""
        reason = f"{type(error).__name__}: {error}"
        for secret in _find_secrets(self._options):
            reason = reason.replace(secret.reveal() or "\0", "***")
        if isinstance(error, FileNotFoundError):
            return NotFound("nothing is there", url=self.url)
        if isinstance(error, _FINAL):
            return SourceError(f"fsspec cannot open this: {redact(reason)}", url=self.url)
        with contextlib.suppress(Exception):  # what fails may have lost its connection for good
            import_fsspec().core.get_filesystem_class(self._scheme).clear_instance_cache()
        return RetryableError(redact(reason))


def service_id(url: str, storage_options: object = None) -> str:
    """Return the options, without secrets."""
    return _public_text(_filesystem_options(storage_options, url))


BY_FOLDER = True

_ETAGS = ("ETag", "etag", "e_tag", "md5Hash", "md5", "content_md5", "checksum", "sha", "content_hash", "crc32c")
_VERSIONS = ("version_id", "VersionId", "versionId", "generation", "rev")
_TIMES = (
    "mtime",
    "LastModified",
    "last_modified",
    "modified",
    "updated",
    "modificationTime",
    "server_modified",
    "created",
)
_PIECE = 1 << 20


class FsspecObject:
    """One object.

    Args:
        url: the url.
        storage_options: ``fsspec``, a mapping of options for the file system.

    Raises:
        UsageError: the url names no object.
        ConfigError: options that make no sense.
    """

    def __init__(self, url: str, storage_options: object = None) -> None:
        self.url = url
        self.place = FsspecLocation(url, storage_options)
        if url.endswith("/"):
            raise UsageError("names no object: it ends with a slash", url=url)

    def failures(self) -> tuple[type[Exception], ...]:
        """Return everything: file systems raise what they like."""
        return (Exception,)

    def refresh(self) -> None:
        """Do nothing: nothing is kept between two requests that fsspec does not keep itself."""

    def open_at(self, offset: int, known: ObjectVersion | None, size: int | None = None) -> ObjectResponse:
        """Request the version of the object, then its bytes."""
        filesystem, path = self.place.filesystem()
        try:
            identity = call_with_timeout(lambda: _fetch_version(filesystem, path), filesystem)
            if known is None or not known.contradicts(identity):
                return call_with_timeout(lambda: self._answer(filesystem, path, (offset, size), identity), filesystem)
        except Exception as error:  # noqa: BLE001  file systems raise what they like
            failure = self.place.translate_error(error)
        else:
            failure = object_changed_error(self.url, offset)
        raise failure

    def _answer(
        self, filesystem: "AbstractFileSystem", path: str, span: tuple[int, int | None], identity: ObjectVersion
    ) -> ObjectResponse:
        offset, size = span
        length = identity.length
        if size is not None:
            end = offset + size if length is None else min(length, offset + size)
            content = filesystem.cat_file(path, offset, end) if end > offset else b""
            return ObjectResponse(io.BytesIO(content), offset, identity, len(content))
        body = _FsspecBody(filesystem, path, identity)
        body.seek(offset)
        return ObjectResponse(body, offset, identity, None if length is None else length - offset)


class _FsspecBody:
    """An open file of fsspec; at its end its version is compared."""

    def __init__(self, filesystem: "AbstractFileSystem", path: str, identity: ObjectVersion) -> None:
        self._filesystem, self._path, self._identity = filesystem, path, identity
        self._left = identity.length
        self._stream = filesystem.open(path, "rb") if identity.length != 0 else io.BytesIO()
        skip_finalizer_in_children(self)

    def seek(self, offset: int) -> None:
        """Go to where reading begins."""
        if offset:
            self._stream.seek(offset)
        if self._left is not None:
            self._left -= offset

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, ``b""`` at the end."""
        content: bytes = call_with_timeout(lambda: self._stream.read(min(size, _PIECE)), self._filesystem)
        if self._left is not None:
            self._left -= len(content)
            if not self._left and self._now() != self._identity:
                # the reader requests it again
                raise ConnectionError("the object changed while it was being read")
        return content

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(Exception):  # file systems raise what they like, and nothing depends on it
            call_with_timeout(self._stream.close, self._filesystem)

    def _now(self) -> ObjectVersion:
        return call_with_timeout(lambda: _fetch_version(self._filesystem, self._path), self._filesystem)


def _fetch_version(filesystem: "AbstractFileSystem", path: str) -> ObjectVersion:
    """Return the version of an object, as its file system says now; discard the lists that fsspec remembers."""
    filesystem.invalidate_cache(path)
    facts = filesystem.info(path)
    if facts.get("type") == "directory":
        raise IsADirectoryError("this is a folder: write a slash at its end to list it")
    return parse_version(facts)


def parse_version(facts: Mapping[str, object]) -> ObjectVersion:
    """Return the version of an object."""
    size = facts.get("size")
    return ObjectVersion(
        _first_fact(facts, _ETAGS),
        _first_fact(facts, _VERSIONS),
        _first_fact(facts, _TIMES),
        int(size) if isinstance(size, int | float | str) else None,
    )


def _first_fact(facts: Mapping[str, object], names: tuple[str, ...]) -> str | None:
    found = next((facts[name] for name in names if facts.get(name) not in (None, "")), None)
    return None if found is None else str(found)


class FsspecUpload(SinglePutUpload):
    """A stream to a new object.

    Args:
        url: the url.
        storage_options: ``fsspec``, a mapping of options for the file system.
        attempts: failures after which to give up.

    Raises:
        UsageError: the url names no object.
        MissingExtra: a package is not installed.
    """

    def __init__(self, url: str, storage_options: object = None, *, attempts: int = ATTEMPTS) -> None:
        if url.endswith("/"):
            raise UsageError("names no object: it ends with a slash", url=url)
        self._place = FsspecLocation(url, storage_options)
        super().__init__(url, attempts)

    def _send_object(self) -> None:
        filesystem, path = self._place.filesystem()
        try:
            with filesystem_lock(filesystem):
                self._put_in_place(filesystem, path)
        except Exception as error:  # noqa: BLE001  file systems raise what they like
            failure = self._place.translate_error(error)
        else:
            return
        raise failure

    def _put_in_place(self, filesystem: "AbstractFileSystem", path: str) -> None:
        try:
            self._write_object(filesystem, path)
        # some want their folders made before
        except FileNotFoundError:
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._write_object(filesystem, path)

    def _write_object(self, filesystem: "AbstractFileSystem", path: str) -> None:
        self._kept.seek(0)
        stream = filesystem.open(path, "wb")
        try:
            while content := self._kept.read(_PIECE):
                stream.write(content)
            stream.close()
        except BaseException:  # an interrupt, too, must not publish a part
            _discard_stream(stream, filesystem, path)
            raise


def _discard_stream(stream: BinaryIO, filesystem: "AbstractFileSystem", path: str) -> None:
    """Discard a file that is written in part, so that it never passes for the whole."""
    buffered: Any = stream
    if isinstance(stream, import_fsspec().spec.AbstractBufferedFile):
        with contextlib.suppress(Exception):  # the first failure is the one to tell
            buffered.discard()
        # closing publishes, and a finaliser closes
        buffered.closed = True
        return
    with contextlib.suppress(Exception):  # the first failure is the one to tell
        stream.close()
    with contextlib.suppress(Exception):  # what was there before is gone since the file was opened
        filesystem.rm_file(path)


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key."""
    scheme, _, rest = url.partition("://")
    host, slash, key = rest.partition("/")
    return f"{scheme}://{host}{slash or '/'}", key


def list_keys(stem: str, prefix: str, storage_options: object = None, *, depth: int | None = None) -> Iterator[str]:
    """Yield the keys that begin with a prefix."""
    place = FsspecLocation(stem + prefix, storage_options)
    folder = FsspecLocation(stem + prefix.rpartition("/")[0], storage_options)

    def find() -> list[str]:
        filesystem, inside = folder.filesystem()
        root = str(FsspecLocation(stem, storage_options).filesystem()[1]).rstrip("/")
        try:
            with filesystem_lock(filesystem):
                filesystem.invalidate_cache()
                found = filesystem.find(inside, maxdepth=None if depth is None else depth + 1)
        except Exception as error:  # noqa: BLE001  file systems raise what they like
            failure = place.translate_error(error)
        else:
            return [name[len(root) :].lstrip("/") for name in found if name.startswith(root)]
        raise failure

    return (name for name in retry(find, stem + prefix, lambda: None) if name.startswith(prefix))


remote_object = FsspecObject
create_upload = FsspecUpload
