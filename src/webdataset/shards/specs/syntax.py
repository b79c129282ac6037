"""Parses YAML, JSON or Python values to a tree of values, each with its place.

A place is ``file:line:column`` (for Python values the path to them). The tree comes with every mistake that was found
in it, at once; text that is not YAML or JSON at all gives one error with line and column. The standard library reads
JSON; where its keys and values begin is found afterwards, in a text that is known to be right.

Of YAML, only plain scalars, lists and mappings are built: a tag that names anything else is refused, and so are
duplicate keys, values that contain themselves, and aliases that multiply beyond 300 000 values. No constructor runs
but YAML's safe scalars.
"""

import difflib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from webdataset.core import settings
from webdataset.core.errors import SpecError, UnsafeSpec, UsageError

if TYPE_CHECKING:
    import yaml

MAX_NODES = 300_000
MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class SpecTree:
    """One value of a specification.

    Args:
        value: a scalar, a list of trees, or a dict from name to tree.
        place: where it stands.
        keys: for a dict, where each name stands.
        filled: the text was filled in from the environment, so that it may stand for a number.
        document: of a shard index, the index itself: the tree holds only its keys.
    """

    value: Any
    place: str
    keys: dict[str, str] = field(default_factory=dict)
    filled: bool = False
    document: Mapping[str, object] | None = None

    def plain(self) -> Any:
        """Return the value without places."""
        if isinstance(self.value, dict):
            return {name: tree.plain() for name, tree in self.value.items()}
        if isinstance(self.value, list):
            return [tree.plain() for tree in self.value]
        return self.value

    def get(self, name: str) -> "SpecTree | None":
        """Return a member of a mapping, or None."""
        return self.value.get(name) if isinstance(self.value, dict) else None


@dataclass
class SpecProblems:
    """Every mistake of one specification, collected so that one error names all."""

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
            raise spec_error(self.found, unsafe=self.unsafe)


def spec_error(problems: Iterable[str], *, unsafe: bool = False) -> SpecError:
    """Return the error for some mistakes."""
    listed = tuple(problems)
    error = (UnsafeSpec if unsafe else SpecError)("\n".join(listed))
    error.problems = listed
    return error


# what programs and people call our keys, beside misspellings; one that is a key itself here is none of these
_OTHER_NAMES = {
    "shards": "url urls path paths file files tar tars shard data uri location glob src",
    "sources": "source dataset datasets sets members",
    "weight": "probability prob probs proportion ratio share p weights",
    "mix": "how mode strategy method type kind",
    "repeat": "repeats epochs times passes",
    "transforms": "transform map maps stages pipeline steps",
    "keep": "fields columns only",
    "subsample": "rsample sample fraction",
    "subset": "range part",
    "where": "filter select condition",
    "shuffle": "shuffle_buffer shuffle_size buffer bufsize buffer_size",
    "shardshuffle": "shuffle_shards shard_shuffle",
    "cache": "cache_dir",
    "nsamples": "samples num_samples length size count",
    "nbytes": "bytes num_bytes filesize",
    "tags": "tag labels metadata",
    "exhausted": "on_end stopping_strategy",
    "decode": "decoder decoders",
    "extensions": "extension ext",
    "splits": "split train training val valid validation test dev",
}


def meant_name(name: str, known: Iterable[str]) -> str | None:
    """Return the key that a name stands for which is none: another word for it, or a misspelling; None for neither."""
    names = sorted(known)
    plain = name.lower().replace("-", "_")
    for key in (plain, *_OTHER_NAMES):
        if key in names and (key == plain or plain in _OTHER_NAMES[key].split()):
            return key
    return next(iter(difflib.get_close_matches(name, names, 1)), None)


def unknown_name_message(name: str, known: Iterable[str]) -> str:
    """Return the message for a name that is none of the known ones."""
    names = sorted(known)
    meant = meant_name(name, names)
    if meant == "splits" and name != "split":
        return f"unknown key {name!r}; a split stands under 'splits', as splits: {{{name}: {{sources: […]}}}}"
    hint = f"; known are {', '.join(names)}" if meant is None else f", did you mean {meant!r}?"
    return f"unknown key {name!r}{hint}"


def tree_from_python(value: object, place: str = "specification", depth: int = 0) -> SpecTree:
    """Return the tree of a dictionary that a program made. Raises SpecError: a structure that contains itself."""
    if depth > MAX_DEPTH:
        raise spec_error([f"{place}: more than {MAX_DEPTH} levels deep"])
    if isinstance(value, Mapping):
        members = {str(name): tree_from_python(part, f"{place}.{name}", depth + 1) for name, part in value.items()}
        return SpecTree(members, place, {name: part.place for name, part in members.items()})
    if isinstance(value, list | tuple):
        return SpecTree([tree_from_python(part, f"{place}[{n}]", depth + 1) for n, part in enumerate(value)], place)
    return SpecTree(value, place)


def substitute_tree(tree: SpecTree, problems: SpecProblems, *, allowed: bool) -> SpecTree:
    """Return the tree with ``${NAME}`` and ``${NAME:-default}`` replaced in every text.

    Args:
        tree: as it was written.
        problems: where a variable that is not set is noted.
        allowed: false for a specification from the network, which may not read the environment.
    """
    value = tree.value
    if isinstance(value, dict):
        return replace(
            tree, value={name: substitute_tree(part, problems, allowed=allowed) for name, part in value.items()}
        )
    if isinstance(value, list):
        return replace(tree, value=[substitute_tree(part, problems, allowed=allowed) for part in value])
    if not isinstance(value, str) or "$" not in value:
        return tree
    if not allowed:
        if "${" in value:
            problems.add(
                tree.place, f"a specification from the network cannot read the environment: {value!r}", unsafe=True
            )
        return replace(tree, value=value.replace("$$", "$"))
    try:
        text = settings.interpolate(value)
    except UsageError as error:
        problems.add(tree.place, error.message)
        return tree
    return replace(tree, value=text, filled=text != value)


# where keys and values of a JSON text begin, in its order
_BEGINNING = re.compile(r'"(?:[^"\\]|\\.)*"|[{\[]|[^\s{}\[\],:"]+')


class _Members(list[tuple[str, object]]):
    """The members of a JSON object, duplicates included."""


@dataclass(frozen=True)
class _Refused:
    """A number of a JSON text that is not read."""

    reason: str


def parse_json(text: bytes | str, file: str, problems: SpecProblems) -> SpecTree:
    """Read JSON. Raises SpecError: it is not JSON."""
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(
            text, object_pairs_hook=_Members, parse_int=_parse_integer,
            parse_constant=lambda _: _Refused("NaN and Infinity are no JSON"),
        )  # fmt: skip
    except UnicodeDecodeError as error:
        raise spec_error([f"{file}:1:1: not JSON: {error}"]) from error
    except json.JSONDecodeError as error:
        raise spec_error([f"{file}:{error.lineno}:{error.colno}: not JSON: {error.msg}"]) from error
    except RecursionError as error:
        raise spec_error([f"{file}:1:1: not JSON: more than {MAX_DEPTH} levels deep"]) from error
    lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def places() -> Iterator[str]:
        for match in _BEGINNING.finditer(text):
            line = bisect_right(lines, match.start())
            yield f"{file}:{line}:{match.start() - lines[line - 1] + 1}"

    return _locate_json(value, places(), problems, 0)


def _parse_integer(digits: str) -> "int | _Refused":
    try:
        return int(digits)
    except ValueError as error:  # thousands of digits
        return _Refused(str(error))


def _locate_json(value: object, places: Iterator[str], problems: SpecProblems, depth: int) -> SpecTree:
    """Return the tree of a value that was read from JSON; the first member of a name counts."""
    place = next(places)
    if isinstance(value, _Refused) or depth > MAX_DEPTH:
        reason = value.reason if isinstance(value, _Refused) else f"more than {MAX_DEPTH} levels deep"
        raise spec_error([f"{place}: not JSON: {reason}"])
    if isinstance(value, _Members):
        members: dict[str, SpecTree] = {}
        keys: dict[str, str] = {}
        for name, part in value:
            here = next(places)
            if name in keys:
                problems.add(here, f"duplicate key {name!r}: it stands at {keys[name]} already")
            keys.setdefault(name, here)
            members.setdefault(name, _locate_json(part, places, problems, depth + 1))
        return SpecTree(members, place, keys)
    if isinstance(value, list):
        return SpecTree([_locate_json(part, places, problems, depth + 1) for part in value], place)
    return SpecTree(value, place)


_MERGE = "tag:yaml.org,2002:merge"
_LISTS = ("tag:yaml.org,2002:seq",)
_MAPPINGS = ("tag:yaml.org,2002:map",)
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# no number that is meant is as long, and sums of sixties (1:1:1:…) take quadratic time
_LONGEST_NUMBER = 1000


def parse_yaml(text: bytes | str, file: str, problems: SpecProblems) -> SpecTree:
    """Read YAML. Raises SpecError: it is not YAML, or not one that is read here."""
    import yaml  # noqa: PLC0415  only specifications need it

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        try:
            node = loader.get_single_node()
            return (
                _YamlBuilder(loader, file, problems).build(node) if node is not None else SpecTree(None, f"{file}:1:1")
            )
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _yaml_error(error, file, text) from error
    except yaml.reader.ReaderError as error:
        reason = f"{error.reason}, at position {error.position}"
        text = f"this is no text ({reason}): a specification is a YAML or JSON file that names shards"
        raise spec_error([f"{file}:1:1: {text}"]) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        raise spec_error([f"{file}:1:1: not YAML: {error}"]) from error


def _yaml_error(error: "yaml.MarkedYAMLError", file: str, text: bytes | str) -> SpecError:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    problem = error.problem or error.context
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else text).splitlines()
    if line <= len(lines) and re.match(r" *\t", lines[line - 1]):
        problem = f"{problem}; indent with spaces, not with tabs"
    return spec_error([f"{file}:{line}:{column}: not YAML: {problem}"])


class _YamlBuilder:
    """Builds the tree of one document; ``loader`` gives the scalars."""

    def __init__(self, loader: "yaml.SafeLoader", file: str, problems: SpecProblems) -> None:
        self.loader = loader
        self.file = file
        self.problems = problems
        self.nodes = 0

    def place(self, node: "yaml.Node") -> str:
        """Return where a node stands."""
        mark = node.start_mark
        return f"{self.file}:{mark.line + 1}:{mark.column + 1}"

    def build(self, node: Any, depth: int = 0) -> SpecTree:
        """Return the tree of a node; refuse one that is too deep or too large (it may contain itself)."""
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise spec_error(
                [f"{self.place(node)}: more than {MAX_NODES} values or {MAX_DEPTH} levels, counting aliases"]
            )
        if node.id == "scalar":
            return SpecTree(self._scalar(node), self.place(node))
        if node.tag not in (_LISTS if node.id == "sequence" else _MAPPINGS):
            raise spec_error([f"{self.place(node)}: the tag {node.tag!r} is not read here"])
        if node.id == "sequence":
            return SpecTree([self.build(part, depth + 1) for part in node.value], self.place(node))
        return self._mapping(node, depth)

    def _scalar(self, node: "yaml.Node") -> object:
        """Return the value of a scalar. Raises SpecError: its text is no value of its tag, or a number too long."""
        problem = f"{node.value[:40]!r} is no value of the tag {node.tag!r}"
        if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
            problem = f"a number of {len(node.value)} characters is not read"
        else:
            try:
                return self.loader.construct_object(node)
            except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
                problem += f" ({error})" if isinstance(error, ValueError) else ""
        raise spec_error([f"{self.place(node)}: {problem}"])

    def _mapping(self, node: "yaml.Node", depth: int) -> SpecTree:
        members: dict[str, SpecTree] = {}
        merged: dict[str, SpecTree] = {}
        keys: dict[str, str] = {}
        for name_node, part in node.value:
            if name_node.tag == _MERGE:
                merged = {**self._merge_mappings(part, depth + 1), **merged}
                continue
            if name_node.id != "scalar":
                self.problems.add(self.place(name_node), "a key is a text")
                continue
            name = str(name_node.value)
            if name in members:
                first = keys[name].rpartition(":")[0].rpartition(":")[2]
                self.problems.add(self.place(name_node), f"duplicate key {name!r}: it stands in line {first} already")
                continue
            keys[name] = self.place(name_node)
            members[name] = self.build(part, depth + 1)
        inherited = {name: tree for name, tree in merged.items() if name not in members}
        return SpecTree(
            {**inherited, **members}, self.place(node), {**{n: t.place for n, t in inherited.items()}, **keys}
        )

    def _merge_mappings(self, node: "yaml.Node", depth: int) -> dict[str, SpecTree]:
        trees = [self.build(node, depth)]
        if isinstance(trees[0].value, list):
            trees = trees[0].value
        members: dict[str, SpecTree] = {}
        for tree in trees:
            if not isinstance(tree.value, dict):
                raise spec_error([f"{tree.place}: '<<' takes a mapping or a list of mappings"])
            members = {**tree.value, **members}
        return members
