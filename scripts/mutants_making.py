"""The mutants of a source file: small changes, each of which some test should notice.

A mutant replaces one expression or statement. Left alone are docstrings, type annotations, decorators, prose (messages
of logs and errors), ``TYPE_CHECKING`` blocks, ``__all__`` and ``__repr__``.
"""

import ast
import copy
import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

OPPOSITE = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
LOGGERS = {"log", "logger", "_log", "_logger", "logging"}
SYMMETRIC = {"min", "max"}  # the order of whose arguments says nothing
LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log"}
# what these are given says nothing about what the code does
TYPE_CALLS = {"cast", "TypeVar", "isinstance", "issubclass", "NewType", "ParamSpec", "getLogger"}


class Mutant(NamedTuple):
    """One change of one file.

    Args:
        path: of the file, relative to the repository.
        line: where the change begins.
        kind: which operator made it.
        before: the text that is replaced.
        after: what stands there instead.
        begin: of the text, in bytes.
        end: of the text, in bytes.
    """

    path: str
    line: int
    kind: str
    before: str
    after: str
    begin: int
    end: int

    @property
    def name(self) -> str:
        """What tells it from all others, also after lines above it have moved."""
        digest = hashlib.sha256(f"{self.before}\0{self.after}".encode()).hexdigest()[:8]
        return f"{self.path}:{self.line}:{self.kind}:{digest}"

    def apply_to(self, source: bytes) -> bytes:
        """Return the mutated file."""
        return source[: self.begin] + self.after.encode() + source[self.end :]


def is_log(node: ast.AST) -> bool:
    """Tell whether a node is a call of a logger."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in LOGGING:
        return False
    owner = node.func.value
    return getattr(owner, "id", getattr(owner, "attr", "")) in LOGGERS


def is_text(node: ast.AST) -> bool:
    """Tell whether a node is text, so that adding to it is no arithmetic."""
    if isinstance(node, ast.BinOp):
        return is_text(node.left) or is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def skipped_fields(node: ast.AST) -> set[str]:
    """Return the fields of a node that are left alone."""
    fields = {"annotation", "returns", "decorator_list", "type_params", "bases"}
    return fields | {"keywords"} if isinstance(node, ast.ClassDef) else fields


def is_left_alone(node: ast.AST) -> bool:
    """Tell whether neither a node nor what is in it is mutated."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        overloaded = any(ast.unparse(each).endswith("overload") for each in node.decorator_list)
        return node.name == "__repr__" or overloaded
    if isinstance(node, ast.If):
        return ast.unparse(node.test).endswith("TYPE_CHECKING")
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id in ("__all__", "__slots__") for target in targets):
            return True
    if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in TYPE_CALLS:
        return True
    return is_log(node) or isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom))


def visited(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node, and all in it that may be mutated."""
    if is_left_alone(node):
        return
    yield node
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    for field, value in ast.iter_fields(node):
        if field in skipped_fields(node):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            if child is first and isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                # a docstring
                continue
            if isinstance(node, ast.Raise) and isinstance(child, ast.Call):
                # what an error says is prose; which error it is, a removed statement asks
                continue
            yield from visited(child)


def changed(node: Any, **fields: Any) -> Any:
    """Return a copy of a node with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def comparisons(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield comparisons turned round, and with their boundary moved."""
    if not isinstance(node, ast.Compare):
        return
    for place, operator in enumerate(node.ops):
        for kind, table in (("comparison", OPPOSITE), ("boundary", BOUNDARY)):
            if type(operator) in table:
                ops = [*node.ops[:place], table[type(operator)](), *node.ops[place + 1 :]]
                yield kind, changed(node, ops=ops)


def connectives(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield ``and`` for ``or``, ``or`` for ``and``, and what stood behind a ``not``."""
    if isinstance(node, ast.BoolOp):
        yield "and/or", changed(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.operand


def arithmetic(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield other operators between numbers, bits and sets."""
    if not isinstance(node, (ast.BinOp, ast.AugAssign)) or type(node.op) not in ARITHMETIC:
        return
    if not is_text(node if isinstance(node, ast.BinOp) else node.value):
        yield "arithmetic", changed(node, op=ARITHMETIC[type(node.op)]())


def constants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield other constants: a number and its neighbours, a switch the other way, a word that is another word."""
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, (int, float)):
        yield "constant", ast.Constant(value + 1)
        if isinstance(value, int) and value:
            yield "constant", ast.Constant(value - 1)
    elif isinstance(value, (str, bytes)) and value:
        # with a space in it, it is prose
        if isinstance(value, str) and " " not in value:
            yield "constant", ast.Constant(f"x{value}x")
        elif isinstance(value, bytes):
            yield "constant", ast.Constant(b"x" + value)


def calls(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield calls whose first two arguments are swapped."""
    if not isinstance(node, ast.Call) or len(node.args) < 2 or getattr(node.func, "id", "") in SYMMETRIC:
        return
    if not any(isinstance(each, ast.Starred) for each in node.args[:2]):
        first, second, *more = node.args
        if ast.dump(first) != ast.dump(second):
            yield "swapped arguments", changed(node, args=[second, first, *more])


def statements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield statements removed, loops that end or go on where they did not, and functions that return nothing."""
    if isinstance(node, ast.Return) and node.value is not None and not is_plain(node.value):
        yield "return", changed(node, value=ast.Constant(None))
    elif isinstance(node, ast.Break):
        yield "break", ast.Continue()
    elif isinstance(node, ast.Continue):
        yield "continue", ast.Break()
    elif is_removable(node):
        yield "removed", ast.Pass()


def is_plain(node: ast.AST) -> bool:
    """Tell whether a node is ``None``, or a truth value, which has a mutant of its own."""
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def is_removable(node: ast.AST) -> bool:
    """Tell whether the code still runs without a statement: a call, a raise, or an assignment into something."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, (ast.Call, ast.Yield, ast.YieldFrom, ast.Await)) and not is_log(node.value)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return node.value is not None and not any(isinstance(target, (ast.Name, ast.Tuple)) for target in targets)
    return isinstance(node, (ast.Raise, ast.AugAssign, ast.Delete))


OPERATORS: list[Callable[[ast.AST], Iterator[tuple[str, ast.AST]]]] = [
    comparisons,
    connectives,
    arithmetic,
    constants,
    calls,
    statements,
]


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """Return every mutant of a file, in order of their places.

    Args:
        path: the file.
        root: the repository, which names of mutants are relative to.
    """
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []

    def add(kind: str, place: Any, after: str) -> None:
        begin = starts[place.lineno - 1] + place.col_offset
        end = starts[place.end_lineno - 1] + place.end_col_offset
        before = source[begin:end].decode()
        name = path.relative_to(root).as_posix()
        found.append(Mutant(name, place.lineno, kind, before, after, begin, end))

    for node in visited(ast.parse(source, str(path))):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            # a handler for no exception at all
            add("except", node.type, "()")
        for operator in OPERATORS:
            for kind, other in operator(node):
                text = ast.unparse(ast.fix_missing_locations(other))
                add(kind, node, f"({text})" if isinstance(node, ast.expr) else text)
    return sorted(set(found), key=lambda mutant: (mutant.begin, mutant.end, mutant.kind, mutant.after))


def sampled(root: Path, source: str, count: int, seed: int) -> list[Mutant]:
    """Return mutants of a package, chosen by a seed; a line gives one at most.

    Args:
        root: the repository.
        source: a folder in it, a file, or a file and a line: ``a.py:17``.
        count: how many, or fewer where there are fewer lines.
        seed: of the choice.
    """
    name, _, only = source.partition(":")
    files = [root / name] if name.endswith(".py") else sorted((root / name).rglob("*.py"))
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for path in files:
        for mutant in mutants_of(path, root):
            if not only or mutant.line == int(only):
                lines.setdefault((mutant.path, mutant.line), []).append(mutant)
    if only:
        return [mutant for each in lines.values() for mutant in each]
    chosen = random.Random(f"{seed} {name}").sample(sorted(lines), min(count, len(lines)))
    return [random.Random(f"{seed} {line}").choice(lines[line]) for line in chosen]
