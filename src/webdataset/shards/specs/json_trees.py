"""JSON text to a tree with places.

Flows in: text. Flows out: a tree; or one error with line and column. The scalars are read by the standard library; only
the structure is walked here, because nothing else says where a value stands.
"""

import json
import re
from bisect import bisect_right
from typing import Any

from webdataset.ground.errors import SpecError

from .trees import MAX_DEPTH, Problems, Tree, refused

_SPACE = re.compile(r"[ \t\n\r]*")
_STRANGE = re.compile(r"-?(?:NaN|Infinity)")


def json_tree(text: bytes | str, file: str, problems: Problems) -> Tree:
    """Read JSON.

    Args:
        text: the whole file, UTF-8.
        file: its name, for messages.
        problems: where duplicate keys are noted.

    Raises:
        SpecError: it is not JSON.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise refused([f"{file}:1:1: not JSON: {error}"]) from error
    walker = _Walker(text, file, problems)
    tree, end = walker.value(walker.skipped(0), 0)
    if walker.skipped(end) != len(text):
        raise walker.wrong(walker.skipped(end), "something stands behind the value")
    return tree


class _Walker:
    """Walks one text.

    Args:
        text: the whole file.
        file: name for messages.
        problems: where duplicate keys are noted.
    """

    def __init__(self, text: str, file: str, problems: Problems) -> None:
        self.text = text
        self.file = file
        self.problems = problems
        self.lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.scalar = json.JSONDecoder().raw_decode

    def place(self, at: int) -> str:
        """Return ``file:line:column`` of a position."""
        line = bisect_right(self.lines, at)
        return f"{self.file}:{line}:{at - self.lines[line - 1] + 1}"

    def wrong(self, at: int, message: str) -> SpecError:
        """Return the error for a position."""
        return refused([f"{self.place(at)}: not JSON: {message}"])

    def skipped(self, at: int) -> int:
        """Return the position of the next character that is no space."""
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def value(self, at: int, depth: int) -> tuple[Tree, int]:
        """Return the tree of the value at a position, and the position behind it."""
        if depth > MAX_DEPTH:
            raise self.wrong(at, f"more than {MAX_DEPTH} levels deep")
        opening = self.text[at : at + 1]
        if opening == "{":
            return self._mapping(at, depth)
        if opening == "[":
            return self._list(at, depth)
        scalar, end = self._scalar(at)
        return Tree(scalar, self.place(at)), end

    def _scalar(self, at: int) -> tuple[Any, int]:
        if _STRANGE.match(self.text, at):
            raise self.wrong(at, "NaN and Infinity are no JSON")
        try:
            return self.scalar(self.text, at)
        except json.JSONDecodeError as error:
            raise self.wrong(error.pos, error.msg) from error
        except ValueError as error:  # a number of thousands of digits
            raise self.wrong(at, str(error)) from error

    def _list(self, at: int, depth: int) -> tuple[Tree, int]:
        parts: list[Tree] = []
        here = self.skipped(at + 1)
        while self.text[here : here + 1] != "]":
            if parts:
                here = self._over(here, ",")
            part, here = self.value(here, depth + 1)
            parts.append(part)
            here = self.skipped(here)
        return Tree(parts, self.place(at)), here + 1

    def _mapping(self, at: int, depth: int) -> tuple[Tree, int]:
        members: dict[str, Tree] = {}
        keys: dict[str, str] = {}
        here, first = self.skipped(at + 1), True
        while self.text[here : here + 1] != "}":
            if not first:
                here = self._over(here, ",")
            first = False
            if self.text[here : here + 1] != '"':
                raise self.wrong(here, "a key in double quotes was expected")
            name, end = self._scalar(here)
            if name in members:
                self.problems.add(self.place(here), f"duplicate key {name!r}: it stands at {keys[name]} already")
            keys.setdefault(name, self.place(here))
            part, end = self.value(self._over(self.skipped(end), ":"), depth + 1)
            members.setdefault(name, part)
            here = self.skipped(end)
        return Tree(members, self.place(at), keys), here + 1

    def _over(self, at: int, mark: str) -> int:
        if self.text[at : at + 1] != mark:
            raise self.wrong(at, f"{mark!r} was expected")
        return self.skipped(at + 1)
