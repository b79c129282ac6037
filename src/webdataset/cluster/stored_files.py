"""Small files and identities of stored objects, in one way for local paths and every store.

An identity is what changes when an object is replaced: size with the ETag, version or date of a store, or with the time
of the last change of a local file. It costs one request. Nothing is deleted in stores.
"""

import contextlib
import functools
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from webdataset.core.durable_files import make_durable_folder, replace_and_sync, write_and_sync
from webdataset.core.errors import NoRandomAccess, NotFound, SourceError
from webdataset.storage.open_url import local_path, resolve_url
from webdataset.storage.path_errors import translate_os_error
from webdataset.storage.streams import stream_identity
from webdataset.writing.local_file import list_partial_files, name_partial, remove_orphans
from webdataset.writing.outputs import open_output

Record: TypeAlias = dict[str, Any]
"""A JSON object."""

DIGEST_BYTES = 16
_PIECE_BYTES = 1 << 20
_LISTED_SECONDS = 30.0
_LARGEST_BYTES = 256 << 20


class StoredIdentity(NamedTuple):
    """Which version of an object or file is stored.

    Args:
        size: its bytes, or None where it is unknown.
        etag: of a store.
        version: a version or generation of a store.
        modified: the date that a server gives.
        mtime_ns: time of the last change of a local file, in nanoseconds.
    """

    size: int | None = None
    etag: str | None = None
    version: str | None = None
    modified: str | None = None
    mtime_ns: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether a replaced object would show."""
        return self.size is not None and any(part is not None for part in self[1:])

    def to_json(self) -> Record:
        """Return what is known, by name."""
        return {name: part for name, part in self._asdict().items() if part is not None}

    @classmethod
    def from_json(cls, record: Record) -> "StoredIdentity":
        """Return what :meth:`to_json` described."""
        return cls(**{name: record[name] for name in cls._fields if name in record})


def identify_object(url: str, storage_options: object = None) -> StoredIdentity:
    """Return which version of an object is stored; nothing known for commands and openers of the user's.

    Args:
        url: a path or url.
        storage_options: what it is opened with.

    Raises:
        NotFound: nothing is there.
        SourceError: the store refuses, or does not answer.
    """
    path = local_path(url)
    if path is not None:
        try:
            status = os.stat(path)  # noqa: PTH116  bytes of names stay
        except OSError as error:
            raise translate_os_error(error, path, "look at") from error
        return StoredIdentity(status.st_size, mtime_ns=status.st_mtime_ns)
    resolved = resolve_url(url, storage_options=storage_options)
    source = resolved.remote_object()
    if source is None:
        return StoredIdentity()
    from webdataset.storage.random_access import ObjectRanges  # noqa: PLC0415  for stores alone

    try:
        ranges = ObjectRanges(source, head=1)
    except NoRandomAccess:
        stream = resolved.open_stream()
        stream.close()
        size, validator = stream_identity(stream)
        return StoredIdentity(size, modified=validator)
    found = ranges.identity
    if found is None:
        return StoredIdentity(ranges.length)
    return StoredIdentity(
        ranges.length, found.etag, found.version, None if found.validator() is None else found.modified
    )


def read_small_file(url: str, storage_options: object = None) -> bytes:
    """Return the bytes of a small file.

    Args:
        url: a path or url.
        storage_options: what it is opened with.

    Raises:
        NotFound: nothing is there.
        SourceError: it cannot be read, or is far too large.
    """
    stream = resolve_url(url, storage_options=storage_options).open_stream()
    with contextlib.closing(stream):
        pieces, size = [], 0
        while piece := stream.read(_PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > _LARGEST_BYTES:
                raise SourceError("the file is too large to be one of a job's records", url=url)
    return b"".join(pieces)


def write_small_file(url: str, content: bytes) -> None:
    """Write a small file, whole or not at all, also after a power failure; what was there is replaced.

    Args:
        url: a path or url.
        content: its bytes.

    Raises:
        SourceError: it cannot be written.
    """
    path = local_path(url)
    if path is None:
        output = open_output(url)
        try:
            output.write((content,), len(content))
            output.commit()
        except BaseException:  # whatever it is: nothing may be left over
            output.abort()
            raise
        return
    temporary = name_partial(path)
    try:
        make_durable_folder(os.path.dirname(path))  # noqa: PTH120
        write_and_sync(temporary, content)
        replace_and_sync(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(temporary).unlink(missing_ok=True)
        raise translate_os_error(error, path, "write") from error


def hash_object(url: str, storage_options: object = None) -> str:
    """Return the BLAKE2b-128 digest of a stored object.

    Args:
        url: a path or url.
        storage_options: what it is opened with.

    Raises:
        NotFound: nothing is there.
        SourceError: it cannot be read.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    stream = resolve_url(url, storage_options=storage_options).open_stream()
    with contextlib.closing(stream):
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def make_folder(url: str) -> None:
    """Make the folder of a local file; stores need none.

    Raises:
        SourceError: the system refuses.
    """
    path = local_path(url)
    if path is not None:
        try:
            make_durable_folder(os.path.dirname(path))  # noqa: PTH120
        except OSError as error:
            raise translate_os_error(error, path, "make the folder of") from error


def remove_partial_files(url: str, *, again: bool = False, grace_seconds: float | None = None) -> int:
    """Remove what tasks that were killed on this host left of a local file; return how many files.

    A folder is listed twice a minute at most, since it may hold 100 000 outputs.

    Args:
        url: of the file.
        again: list the folder anew: a task of this run was killed.
        grace_seconds: remove those of other hosts, too, which have not been written to for so long.
    """
    path = local_path(url)
    if path is None:
        return 0
    path = os.path.realpath(path)
    if again:
        forget_listings()
    names = _list_once(os.path.dirname(path), os.getpid(), int(time.monotonic() / _LISTED_SECONDS))  # noqa: PTH120
    return remove_orphans(path, names, grace_seconds)


def forget_listings() -> None:
    """List folders anew when they are looked at next: a run begins, or a task of it was killed."""
    _list_once.cache_clear()


@functools.lru_cache(maxsize=16)
def _list_once(folder: str, _process: int, _time: int) -> list[str]:
    return list_partial_files(folder)


def remove_local_file(url: str) -> None:
    """Remove a local file where there is one; objects of stores stay."""
    path = local_path(url)
    if path is not None:
        with contextlib.suppress(OSError):
            Path(path).unlink(missing_ok=True)


def format_record(record: object) -> bytes:
    """Return the one text of a JSON value: sorted names, no spaces, ASCII."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_record(record: object) -> str:
    """Return the BLAKE2b-128 digest of a JSON value."""
    return hashlib.blake2b(format_record(record), digest_size=DIGEST_BYTES).hexdigest()


def read_record(url: str, storage_options: object = None) -> Record | None:
    """Return the JSON object in a file; None where there is no file, or something else is in it.

    Raises:
        SourceError: it cannot be read.
    """
    try:
        found = json.loads(read_small_file(url, storage_options))
    except NotFound:
        return None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def file_name(url: str) -> str:
    """Return the last part of a path or url, without a query."""
    return (url if "://" not in url else url.partition("?")[0]).rstrip("/").rpartition("/")[2]
