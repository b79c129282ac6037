"""A file of tags: the only thing that the viewer writes (:mod:`webdataset.reshaping.tag_lines` is its format).

A change reads the file, changes it and replaces it, under a lock beside it: two viewers can share a file, nothing is
lost, and a process that is killed leaves the file of before or the one after. A file that holds something else is
refused, and never replaced.
"""

import os
import threading
from typing import Final

from webdataset.caching.locks import wait_for_lock
from webdataset.core.errors import SourceError, UsageError
from webdataset.core.redaction import redact
from webdataset.index.publish import publish_file
from webdataset.reshaping.tag_lines import CONTROL, escape_key, parse_tags

MOST_BYTES: Final = 256 << 20
_MOST_TAG: Final = 100
_MOST_KEY: Final = 1 << 14
_LOCK_SECONDS: Final = 30.0


class TagFile:
    """A file of tags that is read and changed.

    Args:
        path: of the file; it need not be there yet.

    Attributes:
        path: where it is, links followed.

    Raises:
        UsageError: it is no file of tags, or no file of this machine.
        SourceError: it cannot be read.
    """

    def __init__(self, path: str) -> None:
        if "://" in path or os.path.isdir(path):  # noqa: PTH112  bytes of names stay
            raise UsageError("tags are written to a file of this machine: name one", url=redact(path))
        # a link stays a link
        self.path = os.path.realpath(path)
        folder, name = os.path.split(self.path)
        self._lock_path = os.path.join(folder, f".{name[:100]}.lock")  # noqa: PTH118
        self._turn = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._tags: dict[str, list[str]] = {}
        if not os.path.isdir(folder):  # noqa: PTH112
            raise UsageError("the folder of the file of tags does not exist", url=redact(path))
        self._read()

    def of(self, key: str) -> list[str]:
        """Return the tags of a key, oldest first.

        Args:
            key: of a sample.
        """
        return self.all().get(key, [])

    def all(self) -> dict[str, list[str]]:
        """Return the tags of every key that has some; another program's changes are seen.

        Raises:
            UsageError: it has become no file of tags.
            SourceError: it cannot be read.
        """
        with self._turn:
            if self._find_stamp() != self._stamp:
                self._read()
            return self._tags

    def change(self, key: str, tag: str, *, on: bool) -> dict[str, list[str]]:
        """Give a key a tag or take it away, and return the tags of every key.

        Args:
            key: of a sample.
            tag: at most 100 characters, no control characters.
            on: give it, or take it away.

        Raises:
            UsageError: a key or tag that cannot be written; the file has become no file of tags.
            SourceError: the file cannot be written, or another process holds its lock.
        """
        if not tag.strip() or len(tag) > _MOST_TAG or CONTROL.search(tag) is not None:
            raise UsageError(f"a tag has 1 to {_MOST_TAG} characters, without control characters and backslashes")
        if len(key) > _MOST_KEY:
            raise UsageError(f"a key that is tagged has at most {_MOST_KEY} characters")
        try:
            (key + tag).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise UsageError("the key or tag holds half of a surrogate pair, which no sample has") from None
        with self._turn:
            try:
                lock = wait_for_lock(self._lock_path, _LOCK_SECONDS)
            except OSError as error:
                raise SourceError(f"cannot lock the file of tags: {error.strerror}", url=self.path) from error
            if lock is None:
                raise SourceError("another process holds the lock of the file of tags: try again", url=self.path)
            try:
                self._read()
                self._apply(key, tag, on=on)
            finally:
                lock.release()
            return self._tags

    def _apply(self, key: str, tag: str, *, on: bool) -> None:
        tags = {name: list(given) for name, given in self._tags.items()}
        given = tags.get(key, [])
        if on is (tag in given):
            return
        rest = [*given, tag] if on else [each for each in given if each != tag]
        if rest:
            tags[key] = rest
        else:
            tags.pop(key, None)
        lines = [f"{escape_key(name)}\t{escape_key(each)}\n" for name, each_of in tags.items() for each in each_of]
        content = "".join(lines).encode("utf-8", "surrogateescape")
        if len(content) > MOST_BYTES:
            raise UsageError(f"the file of tags would have more than {MOST_BYTES} bytes", url=self.path)
        publish_file(self.path, content)
        self._tags, self._stamp = tags, self._find_stamp()

    def _find_stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.path)  # noqa: PTH116
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> None:
        # before the content: a change between them is read again
        self._stamp = self._find_stamp()
        if self._stamp is None:
            self._tags = {}
            return
        try:
            if self._stamp[2] > MOST_BYTES:
                raise UsageError(f"a file of tags has at most {MOST_BYTES} bytes", url=self.path)
            with open(self.path, "rb") as stream:  # noqa: PTH123
                content = stream.read()
        except OSError as error:
            raise SourceError(f"cannot read the file of tags: {error.strerror}", url=self.path) from error
        tags: dict[str, list[str]] = {}
        for key, tag in parse_tags(content, self.path):
            given = tags.setdefault(key, [])
            if tag not in given:
                given.append(tag)
        self._tags = tags
