"""A specification as it was written: values, each with the place it stands in.

Flows in: YAML, JSON or a Python value. Flows out: a tree of values with ``file:line:column`` (for Python values the
path to them), and every mistake that was found in it, at once. Runs no constructor but YAML's safe scalars.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import SpecError, UnsafeSpec, UsageError

MAX_NODES = 300_000
MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Tree:
    """One value of a specification.

    Args:
        value: a scalar, a list of trees, or a dict from name to tree.
        place: where it stands.
        keys: for a dict, where each name stands.
        filled: the text was filled in from the environment, so that it may stand for a number.
    """

    value: Any
    place: str
    keys: dict[str, str] = field(default_factory=dict)
    filled: bool = False

    def plain(self) -> Any:
        """Return the value without places."""
        if isinstance(self.value, dict):
            return {name: tree.plain() for name, tree in self.value.items()}
        if isinstance(self.value, list):
            return [tree.plain() for tree in self.value]
        return self.value

    def get(self, name: str) -> "Tree | None":
        """Return a member of a mapping, or None."""
        return self.value.get(name) if isinstance(self.value, dict) else None


@dataclass
class Problems:
    """Every mistake of one specification, collected so that all can be told at once."""

    found: list[str] = field(default_factory=list)
    unsafe: bool = False

    def add(self, place: str, message: str, *, unsafe: bool = False) -> None:
        """Note a mistake.

        Args:
            place: where.
            message: what is wrong, and what to write.
            unsafe: the specification came from the network and asks for what such a one may not have.
        """
        text = f"{place}: {message}"
        if text not in self.found:
            self.found.append(text)
        self.unsafe = self.unsafe or unsafe

    def raise_any(self) -> None:
        """Raise if there is any.

        Raises:
            SpecError: with all mistakes; UnsafeSpec where one of them is a matter of security.
        """
        if self.found:
            raise refused(self.found, unsafe=self.unsafe)


def refused(problems: Iterable[str], *, unsafe: bool = False) -> SpecError:
    """Return the error for some mistakes."""
    told = tuple(problems)
    error = (UnsafeSpec if unsafe else SpecError)("\n".join(told))
    error.problems = told
    return error


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the message for a name that is none of the known ones."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    hint = f", did you mean {near[0]!r}?" if near else f"; known are {', '.join(names)}"
    return f"unknown key {name!r}{hint}"


def from_python(value: Any, place: str = "specification", depth: int = 0) -> Tree:
    """Return the tree of a dictionary that a program made.

    Args:
        value: mappings, lists and scalars.
        place: what to call it in messages.
        depth: of the nesting so far.

    Raises:
        SpecError: a structure that contains itself.
    """
    if depth > MAX_DEPTH:
        raise refused([f"{place}: more than {MAX_DEPTH} levels deep"])
    if isinstance(value, Mapping):
        members = {str(name): from_python(part, f"{place}.{name}", depth + 1) for name, part in value.items()}
        return Tree(members, place, {name: part.place for name, part in members.items()})
    if isinstance(value, list | tuple):
        return Tree([from_python(part, f"{place}[{n}]", depth + 1) for n, part in enumerate(value)], place)
    return Tree(value, place)


def filled_in(tree: Tree, problems: Problems, *, allowed: bool) -> Tree:
    """Return the tree with ``${NAME}`` and ``${NAME:-default}`` replaced in every text.

    Args:
        tree: as it was written.
        problems: where a variable that is not set is noted.
        allowed: false for a specification from the network, which may not read the environment.
    """
    value = tree.value
    if isinstance(value, dict):
        return replace(tree, value={name: filled_in(part, problems, allowed=allowed) for name, part in value.items()})
    if isinstance(value, list):
        return replace(tree, value=[filled_in(part, problems, allowed=allowed) for part in value])
    if not isinstance(value, str) or "$" not in value:
        return tree
    if not allowed:
        if "${" in value:
            problems.add(
                tree.place, f"a specification from the network cannot read the environment: {value!r}", unsafe=True
            )
        return replace(tree, value=value.replace("$$", "$"))
    try:
        text = settings.interpolated(value)
    except UsageError as error:
        problems.add(tree.place, error.message)
        return tree
    return replace(tree, value=text, filled=text != value)
