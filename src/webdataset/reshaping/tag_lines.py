r"""Lines of keys and tags: the format of the viewer's file of tags, and a list of keys for the commands.

A line is a key, a tab and a tag, in UTF-8; names that are not UTF-8 keep their bytes. Control characters, tabs, line
ends and backslashes are written as C does (``\t``, ``\n``, ``\\``, ``\033``), so that every key fits in a line and is
read back exactly.
"""

import re
from collections.abc import Iterator
from typing import Final

from webdataset.core.errors import UsageError

_NAMED: Final = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", "\\": "\\"}
_LETTERS: Final = {letter: sign for sign, letter in _NAMED.items()}
CONTROL: Final = re.compile(r"[\x00-\x1f\\\x7f-\x9f\u2028\u2029]")
"""What is escaped; no tag holds it."""
# also what the commands escape where they print keys
_ESCAPE: Final = re.compile(r"\\(?:([abtnvfr\\])|([0-3][0-7]{2})|u(200b|202[89a-e]|206[6-9]|dc[89][0-9a-f])|)")


def escape_key(key: str) -> str:
    """Return a key or tag without tabs and line ends; :func:`restore_key` gives it back.

    Args:
        key: any text.
    """
    return CONTROL.sub(_write_escape, key)


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
