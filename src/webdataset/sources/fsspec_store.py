"""Every other scheme, through fsspec: ``oci:``, ``hdfs:``, ``smb:``, ``github:`` … A store; see ``stores``.

Flows in: a url whose scheme an installed fsspec knows and nobody else here serves, and ``storage_options={"fsspec":
{…}}`` for its file system. Flows out: objects, uploads, lists. Who an object is, is told by what fsspec says of it
(ETag, version, checksum, time); where that is its length alone, a connection that drops cannot be taken up again.

File systems keep their connections, also dead ones, and few of them have a bound on waiting: after a failure the file
system is made anew, and a call that takes longer than five minutes has failed.

What leads to this machine is not served, whoever wrote it: file systems that are local, and chains (``::``) of one
within another, since a url from afar could name any file by them.
"""

import contextlib
import io
from collections.abc import Iterator, Mapping
from typing import Any

from webdataset.ground.errors import UsageError

from .forks import left_to_its_process
from .fsspec_places import Place, bounded, fsspec, serves, service_of, turn
from .objects import Answer, Identity, changed
from .patience import ATTEMPTS
from .rest import patiently
from .spooling import SpooledUpload

BY_FOLDER = True
"""Lists are made by walking through folders: ``keys`` takes the depth beyond which nothing can match."""

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
    """One object, as the resuming reader asks for it.

    Args:
        url: the url.
        storage_options: options of this store.

    Raises:
        UsageError: the url names no object.
        ConfigError: options that make no sense.
    """

    def __init__(self, url: str, storage_options: Any = None) -> None:
        self.url = url
        self.place = Place(url, storage_options)
        if url.endswith("/"):
            raise UsageError("names no object: it ends with a slash", url=url)

    def failures(self) -> tuple[type[Exception], ...]:
        """Return everything: file systems raise what they like."""
        return (Exception,)

    def refresh(self) -> None:
        """Nothing is kept between two requests that fsspec does not keep itself."""

    def open_at(self, offset: int, known: Identity | None, size: int | None = None) -> Answer:
        """Ask who the object is, and for its bytes; see :class:`~webdataset.sources.objects.ObjectSource`.

        Args:
            offset: the first byte wanted.
            known: who the object was at first.
            size: bytes wanted; None for all.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it is another object by now.
            SourceError: the file system refuses.
            MissingExtra: a package is not installed.
        """
        filesystem, path = self.place.filesystem()
        try:
            identity = bounded(lambda: _identity(filesystem, path), filesystem)
            if known is None or not known.contradicts(identity):
                return bounded(lambda: self._answer(filesystem, path, (offset, size), identity), filesystem)
        except Exception as error:  # noqa: BLE001  file systems raise what they like
            failure = self.place.translated(error)
        else:
            failure = changed(self.url, offset)
        raise failure

    def _answer(self, filesystem: Any, path: str, span: tuple[int, int | None], identity: Identity) -> Answer:
        offset, size = span
        length = identity.length
        if size is not None:
            end = offset + size if length is None else min(length, offset + size)
            content = filesystem.cat_file(path, offset, end) if end > offset else b""
            return Answer(io.BytesIO(content), offset, identity, len(content))
        body = _Body(filesystem, path, identity)
        body.seek(offset)
        return Answer(body, offset, identity, None if length is None else length - offset)


class _Body:
    """An open file of fsspec; at its end it is asked whether it is still the same."""

    def __init__(self, filesystem: Any, path: str, identity: Identity) -> None:
        self._filesystem, self._path, self._identity = filesystem, path, identity
        self._left = identity.length
        self._stream = filesystem.open(path, "rb") if identity.length != 0 else io.BytesIO()
        left_to_its_process(self)

    def seek(self, offset: int) -> None:
        """Go to where reading begins."""
        if offset:
            self._stream.seek(offset)
        if self._left is not None:
            self._left -= offset

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, ``b""`` at the end."""
        content: bytes = bounded(lambda: self._stream.read(min(size, _PIECE)), self._filesystem)
        if self._left is not None:
            self._left -= len(content)
            if not self._left and self._now() != self._identity:
                raise ConnectionError("the object changed while it was being read")  # the reader asks again
        return content

    def close(self) -> None:
        """Let go of the file."""
        with contextlib.suppress(Exception):  # file systems raise what they like, and nothing depends on it
            bounded(self._stream.close, self._filesystem)

    def _now(self) -> Identity:
        return bounded(lambda: _identity(self._filesystem, self._path), self._filesystem)


def _identity(filesystem: Any, path: str) -> Identity:
    """Return who an object is, as its file system says now: lists that fsspec remembers are forgotten before."""
    filesystem.invalidate_cache(path)
    facts = filesystem.info(path)
    if facts.get("type") == "directory":
        raise IsADirectoryError("this is a folder: write a slash at its end to list it")
    return identity_in(facts)


def identity_in(facts: Mapping[str, Any]) -> Identity:
    """Return who an object is, by what its file system says of it.

    Args:
        facts: what ``info`` returned.
    """
    size = facts.get("size")
    return Identity(
        _fact(facts, _ETAGS), _fact(facts, _VERSIONS), _fact(facts, _TIMES), None if size is None else int(size)
    )


def _fact(facts: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    found = next((facts[name] for name in names if facts.get(name) not in (None, "")), None)
    return None if found is None else str(found)


class FsspecUpload(SpooledUpload):
    """A stream to a new object.

    Args:
        url: the url.
        storage_options: options of this store.
        attempts: failures after which the upload is given up.

    Raises:
        UsageError: the url names no object.
        MissingExtra: a package is not installed.
    """

    def __init__(self, url: str, storage_options: Any = None, *, attempts: int = ATTEMPTS) -> None:
        if url.endswith("/"):
            raise UsageError("names no object: it ends with a slash", url=url)
        self._place = Place(url, storage_options)
        super().__init__(url, attempts)

    def _sent(self) -> None:
        filesystem, path = self._place.filesystem()
        try:
            with turn(filesystem):
                self._placed(filesystem, path)
        except Exception as error:  # noqa: BLE001  file systems raise what they like
            failure = self._place.translated(error)
        else:
            return
        raise failure

    def _placed(self, filesystem: Any, path: str) -> None:
        try:
            self._written(filesystem, path)
        except FileNotFoundError:  # some want their folders made before
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._written(filesystem, path)

    def _written(self, filesystem: Any, path: str) -> None:
        self._kept.seek(0)
        stream = filesystem.open(path, "wb")
        try:
            while content := self._kept.read(_PIECE):
                stream.write(content)
            stream.close()
        except BaseException:  # an interrupt, too, must not publish a part
            _given_up(stream, filesystem, path)
            raise


def _given_up(stream: Any, filesystem: Any, path: str) -> None:
    """Let go of a file that is written in part, so that nobody takes it for the whole."""
    if isinstance(stream, fsspec().spec.AbstractBufferedFile):
        with contextlib.suppress(Exception):  # the first failure is the one to tell
            stream.discard()
        stream.closed = True  # closing publishes, and a finaliser closes
        return
    with contextlib.suppress(Exception):  # the first failure is the one to tell
        stream.close()
    with contextlib.suppress(Exception):  # what was there before is gone since the file was opened
        filesystem.rm_file(path)


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key; see :mod:`webdataset.sources.stores`."""
    scheme, _, rest = url.partition("://")
    host, slash, key = rest.partition("/")
    return f"{scheme}://{host}{slash or '/'}", key


def keys(stem: str, prefix: str, storage_options: Any = None, *, depth: int | None = None) -> Iterator[str]:
    """Give the keys that begin with a text; see :mod:`webdataset.sources.stores`."""
    place = Place(stem + prefix, storage_options)
    folder = Place(stem + prefix.rpartition("/")[0], storage_options)

    def find() -> list[str]:
        filesystem, inside = folder.filesystem()
        root = str(Place(stem, storage_options).filesystem()[1]).rstrip("/")
        try:
            with turn(filesystem):
                filesystem.invalidate_cache()
                found = filesystem.find(inside, maxdepth=None if depth is None else depth + 1)
        except Exception as error:  # noqa: BLE001  file systems raise what they like
            failure = place.translated(error)
        else:
            return [name[len(root) :].lstrip("/") for name in found if name.startswith(root)]
        raise failure

    return (name for name in patiently(find, stem + prefix, lambda: None) if name.startswith(prefix))


def object_of(url: str, storage_options: Any = None) -> FsspecObject:
    """Return the object of a url; see :mod:`webdataset.sources.stores`."""
    return FsspecObject(url, storage_options)


def upload_to(url: str, storage_options: Any = None, **options: Any) -> FsspecUpload:
    """Return a stream to a new object; see :mod:`webdataset.sources.stores`."""
    return FsspecUpload(url, storage_options, **options)


__all__ = [
    "BY_FOLDER",
    "FsspecObject",
    "FsspecUpload",
    "identity_in",
    "keys",
    "object_of",
    "serves",
    "service_of",
    "split",
    "upload_to",
]
