r"""A file of tags: the only thing that the viewer writes, and a list of keys for the commands.

A line is a key, a tab and a tag, in UTF-8; names that are not UTF-8 keep their bytes. Control characters, tabs, line
ends and backslashes are written as C does (``\t``, ``\n``, ``\\``, ``\033``), so that every key fits in a line and is
read back exactly.

A change reads the file, changes it and replaces it, under a lock beside it: two viewers can share a file, nothing is
lost, and a process that is killed leaves the file of before or the one after. A file that holds something else is
refused, and never replaced.
"""

import os
import re
import threading
from collections.abc import Iterator
from typing import Final

from webdataset.caching.locks import wait_for_lock
from webdataset.core.errors import SourceError, UsageError
from webdataset.core.redaction import redact
from webdataset.index.publish import publish_file

MOST_BYTES: Final = 256 << 20
_MOST_TAG: Final = 100
_MOST_KEY: Final = 1 << 14
_LOCK_SECONDS: Final = 30.0
_NAMED: Final = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", "\\": "\\"}
_LETTERS: Final = {letter: sign for sign, letter in _NAMED.items()}
_CONTROL: Final = re.compile(r"[\x00-\x1f\\\x7f-\x9f\u2028\u2029]")
_ESCAPE: Final = re.compile(r"\\(?:([abtnvfr\\])|([0-3][0-7]{2})|u(202[89])|)")


def escape_key(key: str) -> str:
    """Return a key or tag without tabs and line ends; :func:`restore_key` gives it back.

    Args:
        key: any text.
    """
    return _CONTROL.sub(_write_escape, key)


def _write_escape(found: re.Match[str]) -> str:
    sign = found[0]
    if sign in _NAMED:
        return "\\" + _NAMED[sign]
    return f"\\{ord(sign):03o}" if ord(sign) < 256 else f"\\u{ord(sign):x}"


def restore_key(text: str) -> str:
    """Return the key or tag that was escaped.

    Args:
        text: see :func:`escape_key`; a backslash that begins no escape stays.
    """
    return _ESCAPE.sub(_read_escape, text)


def _read_escape(found: re.Match[str]) -> str:
    letter, octal, wide = found.groups()
    if letter is not None:
        return _LETTERS[letter]
    if octal is not None:
        return chr(int(octal, 8))
    return "\\" if wide is None else chr(int(wide, 16))


def parse_tags(content: bytes, name: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the tag of each line.

    Args:
        content: of the file.
        name: of the file, for messages.

    Raises:
        UsageError: it is no file of tags.
    """
    for number, line in enumerate(content.decode("utf-8", "surrogateescape").split("\n"), 1):
        if not line:
            continue
        key, tab, tag = line.removesuffix("\r").partition("\t")
        if not tab or not tag or "\t" in tag or "\0" in line:
            raise UsageError(
                f"line {number} is not a key, a tab and a tag: this is no file of tags, and stays as it is; name a new "
                "file, or remove the line",
                url=name,
            )
        yield restore_key(key), restore_key(tag)


def choose_keys(content: bytes, name: str, tag: str | None = None) -> frozenset[str]:
    """Return the keys of a file of tags.

    Args:
        content: of the file.
        name: of the file, for messages.
        tag: only keys with this tag; None where the file has one tag alone.

    Raises:
        UsageError: it is no file of tags, or has several tags and none was chosen.
    """
    pairs = list(parse_tags(content, name))
    tags = sorted({each for _, each in pairs})
    if tag is None and len(tags) > 1:
        shown = ", ".join(map(escape_key, tags[:5])) + (", ..." if len(tags) > 5 else "")
        raise UsageError(f"the file has several tags ({shown}): choose one with --tag", url=name)
    return frozenset(key for key, each in pairs if tag is None or each == tag)


class TagFile:
    """A file of tags that is read and changed.

    Args:
        path: of the file; it need not be there yet.

    Attributes:
        path: where it lies, links followed.

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
        if not tag.strip() or len(tag) > _MOST_TAG or _CONTROL.search(tag) is not None:
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
