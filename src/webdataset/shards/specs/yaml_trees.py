"""YAML text to a tree with places.

Flows in: text. Flows out: a tree; or one error that says where the text is not YAML. Only YAML's plain scalars, lists
and mappings are built: a tag that names anything else is refused, and so are duplicate keys, values that contain
themselves, and aliases that multiply beyond 300 000 values.
"""

from typing import Any

from webdataset.ground.errors import SpecError

from .trees import MAX_DEPTH, MAX_NODES, Problems, Tree, refused

_MERGE = "tag:yaml.org,2002:merge"
_LISTS = ("tag:yaml.org,2002:seq",)
_MAPPINGS = ("tag:yaml.org,2002:map",)


def yaml_tree(text: bytes | str, file: str, problems: Problems) -> Tree:
    """Read YAML.

    Args:
        text: the whole file.
        file: its name, for messages.
        problems: where duplicate keys are noted.

    Raises:
        SpecError: it is not YAML, or not one that is read here.
    """
    import yaml  # noqa: PLC0415  only specifications need it

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        try:
            node = loader.get_single_node()
            return _Builder(loader, file, problems).built(node) if node is not None else Tree(None, f"{file}:1:1")
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _wrong(error, file) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        raise refused([f"{file}:1:1: not YAML: {error}"]) from error


def _wrong(error: Any, file: str) -> SpecError:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    return refused([f"{file}:{line}:{column}: not YAML: {error.problem or error.context}"])


class _Builder:
    """Builds the tree of one document.

    Args:
        loader: gives the scalars.
        file: name for messages.
        problems: where mistakes are noted.
    """

    def __init__(self, loader: Any, file: str, problems: Problems) -> None:
        self.loader = loader
        self.file = file
        self.problems = problems
        self.nodes = 0

    def place(self, node: Any) -> str:
        """Return where a node stands."""
        mark = node.start_mark
        return f"{self.file}:{mark.line + 1}:{mark.column + 1}"

    def built(self, node: Any, depth: int = 0) -> Tree:
        """Return the tree of a node.

        Raises:
            SpecError: too deep or too many values, as where it contains itself, or a tag that is not read.
        """
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise refused([f"{self.place(node)}: more than {MAX_NODES} values or {MAX_DEPTH} levels, counting aliases"])
        if node.id == "scalar":
            return Tree(self.loader.construct_object(node), self.place(node))
        if node.tag not in (_LISTS if node.id == "sequence" else _MAPPINGS):
            raise refused([f"{self.place(node)}: the tag {node.tag!r} is not read here"])
        if node.id == "sequence":
            return Tree([self.built(part, depth + 1) for part in node.value], self.place(node))
        return self._mapping(node, depth)

    def _mapping(self, node: Any, depth: int) -> Tree:
        members: dict[str, Tree] = {}
        merged: dict[str, Tree] = {}
        keys: dict[str, str] = {}
        for name_node, part in node.value:
            if name_node.tag == _MERGE:
                merged = {**self._merged(part, depth + 1), **merged}
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
            members[name] = self.built(part, depth + 1)
        inherited = {name: tree for name, tree in merged.items() if name not in members}
        return Tree({**inherited, **members}, self.place(node), {**{n: t.place for n, t in inherited.items()}, **keys})

    def _merged(self, node: Any, depth: int) -> dict[str, Tree]:
        trees = [self.built(node, depth)]
        if isinstance(trees[0].value, list):
            trees = trees[0].value
        members: dict[str, Tree] = {}
        for tree in trees:
            if not isinstance(tree.value, dict):
                raise refused([f"{tree.place}: '<<' takes a mapping or a list of mappings"])
            members = {**tree.value, **members}
        return members
