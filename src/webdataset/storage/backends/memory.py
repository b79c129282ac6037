"""Objects in the memory of this process, ``memory://name/key``: for tests, demos and small shards; needs no package.

Nothing is shared between processes, and nothing outlives this one; a forked child begins with a copy.
"""

import io
import os
import re
import threading
from collections.abc import Iterator
from typing import NamedTuple, Self

from webdataset.core.errors import NotFound, UsageError
from webdataset.storage.object_store import ObjectResponse, ObjectVersion, object_changed_error
from webdataset.storage.storage_options import options_for

_URL = re.compile(r"(memory://[^/]+/)(.*)", re.IGNORECASE | re.DOTALL)


class _MemoryEntry(NamedTuple):
    content: bytes
    generation: int


_objects: dict[str, dict[str, _MemoryEntry]] = {}
_lock = threading.Lock()
_count = 0


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  a lock held by another thread at the fork stays locked forever
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class _MemoryBody:
    """A part of an object, read front to back; nothing is copied before it is read."""

    def __init__(self, content: bytes, start: int, end: int) -> None:
        self._content, self._place, self._end = content, start, end

    def read(self, size: int) -> bytes:
        start = self._place
        self._place = min(start + size, self._end)
        return self._content[start : self._place]

    def close(self) -> None:
        self._end = self._place


class MemoryObject:
    """One object in memory.

    Args:
        url: ``memory://name/key``.

    Raises:
        UsageError: the url names no object.
    """

    latency_bytes = 0

    def __init__(self, url: str) -> None:
        self.url = url
        self._stem, self._key = _split_name(url)

    def open_at(self, offset: int, known: ObjectVersion | None, size: int | None = None) -> ObjectResponse:
        """Return the object from ``offset`` on; see :class:`~webdataset.storage.object_store.RemoteObject`."""
        with _lock:
            kept = _objects.get(self._stem, {}).get(self._key)
        if kept is None:
            raise NotFound("nothing is there: objects in memory belong to the process that wrote them", url=self.url)
        length = len(kept.content)
        identity = ObjectVersion(version=str(kept.generation), length=length)
        if known is not None and known.contradicts(identity):
            raise object_changed_error(self.url, offset)
        end = length if size is None else min(length, offset + size)
        return ObjectResponse(
            _MemoryBody(kept.content, offset, max(offset, end)), offset, identity, max(0, end - offset)
        )

    def refresh(self) -> None:
        """Nothing can expire."""

    def failures(self) -> tuple[type[Exception], ...]:
        """Return nothing: memory does not fail."""
        return ()


class MemoryUpload(io.BytesIO):
    """A stream to a new object, which exists once the stream is closed.

    Args:
        url: ``memory://name/key``.

    Raises:
        UsageError: the url names no object.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.name = url
        self._stem, self._key = _split_name(url)

    def close(self) -> None:
        """Publish the object."""
        global _count  # noqa: PLW0603  each publication is another generation
        if self.closed:
            return
        with _lock:
            _count += 1
            _objects.setdefault(self._stem, {})[self._key] = _MemoryEntry(self.getvalue(), _count)
        super().close()

    def abort(self) -> None:
        """Publish nothing."""
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            self.abort()
        else:
            self.close()

    def __del__(self) -> None:
        """Publish nothing: a forgotten stream may hold half of an object."""
        self.abort()


def _split_name(url: str) -> tuple[str, str]:
    stem, key = split(url)
    if not key or key.endswith("/"):
        raise UsageError("names no object: a url in memory is memory://name/key", url=url)
    return stem, key


def split(url: str) -> tuple[str, str]:
    """Return a url up to its key, and the key."""
    match = _URL.match(url)
    if match is None:
        raise UsageError("a url in memory is memory://name/key", url=url)
    return "memory" + match[1][len("memory") :], match[2]


def list_keys(stem: str, prefix: str, storage_options: object = None) -> Iterator[str]:
    """Give the keys under a name that begin with a text."""
    options_for("memory", storage_options, stem)
    with _lock:
        found = [key for key in _objects.get(stem, ()) if key.startswith(prefix)]
    return iter(found)


def remote_object(url: str, storage_options: object = None) -> MemoryObject:
    """Return the object of a url."""
    options_for("memory", storage_options, url)
    return MemoryObject(url)


def create_upload(url: str, storage_options: object = None, **_options: object) -> MemoryUpload:
    """Return a stream to a new object."""
    options_for("memory", storage_options, url)
    return MemoryUpload(url)


def service_id(url: str, storage_options: object = None) -> str:
    """Return nothing: the url determines the object."""
    options_for("memory", storage_options, url)
    return ""


def clear(name: str | None = None) -> None:
    """Remove objects.

    Args:
        name: those under ``memory://name/``; None for all.
    """
    with _lock:
        if name is None:
            _objects.clear()
        else:
            _objects.pop(f"memory://{name}/", None)
