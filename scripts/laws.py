"""The rules that no linter knows: sizes, compatibility modules, and what may be named where.

``laws.py [ROOT]`` reads the sources under ROOT (default: this repository), prints one line a breach as
``file:line: message``, then the figures of the structure, and fails if there was a breach.
"""

import ast
import contextlib
import functools
import io
import re
import statistics
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CODE_LINES = 400
MODULE_LINES = 600
FUNCTION_LINES = 60
LATE_BOUND = {"tariterators", "gopen", "filters", "cache", "pipeline", "compat", "autodecode", "utils", "writer"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
CLOCK = re.compile(
    r"(.*\.)?((monotonic|perf_counter|process_time|thread_time)(_ns)?|default_timer)|(time\.)?time(_ns)?|(datetime\.)+(utc)?now"
)
NAMES_A_CLOCK = re.compile(r"monotonic|perf_counter|process_time|thread_time|default_timer|\btime(_ns)?\(|now\(")
REASON = re.compile(r"#\s*noqa: BLE001\s+\S|#\s*(?!noqa)\S+\s+\S")


class Breach(NamedTuple):
    """One place where a law is broken."""

    path: Path
    line: int
    message: str


class Module:
    """One source file, parsed.

    Args:
        root: the repository.
        path: the file.
    """

    def __init__(self, root: Path, path: Path) -> None:
        self.source = path
        self.path = path.relative_to(root)
        self.text = path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text, str(path))
        within = self.path.parts
        self.inside = within[2:] if within[:2] == ("src", "webdataset") else None

    def breach(self, node: ast.AST | int, message: str) -> Breach:
        """Return a breach at a node or line."""
        return Breach(self.path, node if isinstance(node, int) else getattr(node, "lineno", 1), message)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree."""
        return list(ast.walk(self.tree))

    @functools.cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function, methods and nested ones included."""
        return [node for node in self.nodes if isinstance(node, FUNCTIONS)]


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the numbers of the lines of docstrings."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            found.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return found


def code_lines(text: str, tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that are neither blank, nor comments, nor docstrings."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            found.update(range(token.start[0], token.end[0] + 1))
    return found - docstring_lines(tree)


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return a function's lines, its docstring and signature included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def sizes(module: Module) -> Iterator[Breach]:
    """No module over 400 lines of code or 600 in all, no function over 60."""
    count = len(module.lines)
    code = len(code_lines(module.text, module.tree))
    if code > CODE_LINES:
        yield module.breach(1, f"module of {code} lines of code; at most {CODE_LINES}")
    if count > MODULE_LINES:
        yield module.breach(MODULE_LINES + 1, f"module of {count} lines; at most {MODULE_LINES}")
    for function in module.functions:
        if length(function) > FUNCTION_LINES:
            message = f"function {function.name} of {length(function)} lines; at most {FUNCTION_LINES}"
            yield module.breach(function, message)


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` for a chain of attributes, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def words(module: Module) -> Iterator[Breach]:
    """No assert; no print outside cli; the environment is read in core/settings.py only."""
    inside = module.inside or ()
    for node in module.nodes:
        if isinstance(node, ast.Assert):
            yield module.breach(node, "assert: raise an error of core/errors.py instead")
        elif isinstance(node, ast.Call) and dotted(node.func) == "print" and inside[:1] != ("cli",):
            yield module.breach(node, "print outside cli: log, or return the text")
        elif inside != ("core", "settings.py") and reads_environment(node):
            yield module.breach(node, "environment read outside core/settings.py: declare a Variable there")


def reads_environment(node: ast.AST) -> bool:
    """Tell whether a node names the process's environment."""
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return any(alias.name in ("environ", "environb", "getenv") for alias in node.names)
    return dotted(node) in ("os.environ", "os.environb", "os.getenv", "os.path.expandvars")


def excepts(module: Module) -> Iterator[Breach]:
    """A broad except says why, in a comment on its line."""
    for node in module.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        broad = any(kind is None or dotted(kind) in ("Exception", "BaseException") for kind in kinds)
        if broad and not REASON.search(module.lines[node.lineno - 1]):
            yield module.breach(node, "broad except without a reason comment on its line")


def is_overload(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function is one of typing's overloads."""
    return any(dotted(decorator).endswith("overload") for decorator in function.decorator_list)


def is_setter(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function sets or deletes a property, which its getter documents."""
    return any(dotted(decorator).endswith((".setter", ".deleter")) for decorator in function.decorator_list)


def docstrings(module: Module) -> Iterator[Breach]:
    """Every module, public class, public function and public method says what it is."""
    if not ast.get_docstring(module.tree):
        yield module.breach(1, "module without a docstring")
    yield from undocumented(module, module.tree)


def undocumented(module: Module, scope: ast.Module | ast.ClassDef) -> Iterator[Breach]:
    """Breaches among the definitions of one module or class."""
    for node in definitions(scope):
        if node.name.startswith("_"):
            continue
        exempt = isinstance(node, FUNCTIONS) and (is_overload(node) or is_setter(node))
        if not exempt and not ast.get_docstring(node):
            yield module.breach(node, f"{node.name} without a docstring")
        if isinstance(node, ast.ClassDef):
            yield from undocumented(module, node)


def definitions(scope: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes and functions defined in a scope, also under its ``if`` and ``try``."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
            yield node
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from definitions(node)


def indexes(module: Module) -> Iterator[Breach]:
    """The head of a folder names each of its modules and folders, as its index."""
    inside = module.inside or ()
    if len(inside) < 2 or inside[-1] != "__init__.py":
        return
    head = ast.get_docstring(module.tree) or ""
    folder = module.source.parent
    names = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    for name in sorted(names - {"__init__"}):
        if f"``{name}``" not in head:
            yield module.breach(1, f"the folder's head does not name ``{name}``")


def compatibility(module: Module) -> Iterator[Breach]:
    """A file at the package root only re-exports; those that bind late may also compose."""
    inside = module.inside or ()
    if len(inside) != 1 or inside[0] in ("__init__.py", "__main__.py") or inside[0][:-3] in LATE_BOUND:
        return
    for node in module.tree.body:
        if not is_reexport(node):
            yield module.breach(node, "a compatibility module only re-exports: move this to a layer")


def is_reexport(node: ast.stmt) -> bool:
    """Tell whether a statement is a docstring, an import, ``__all__``, ``_LAZY_NAMES``, or a name bound in one line."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    if isinstance(node, ast.If):
        return all(map(is_reexport, node.body + node.orelse))
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    one_line = node.lineno == node.end_lineno and not any(isinstance(part, ast.Lambda) for part in ast.walk(node))
    if names in (["__all__"], ["_LAZY_NAMES"]):
        return True
    return isinstance(node, (ast.Assign, ast.AnnAssign)) and bool(names) and one_line


def torch_imports(module: Module) -> Iterator[Breach]:
    """Torch is imported in loading/torch* and codecs/torch* only."""
    inside = module.inside or ()
    if len(inside) > 1 and inside[0] in ("loading", "codecs") and inside[1].startswith("torch"):
        return
    for node in module.nodes:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        if any(name.split(".")[0] == "torch" for name in names):
            yield module.breach(node, "torch imported outside loading/torch* and codecs/torch*")


def test_docstrings(module: Module) -> Iterator[Breach]:
    """Every test says in one line what it shows."""
    for function in module.functions:
        if function.name.startswith("test") and not ast.get_docstring(function):
            yield module.breach(function, f"test {function.name} without a docstring")


def is_lone_return(node: ast.AST) -> bool:
    """Tell whether a node is an ``if`` that does nothing but return."""
    return isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Return)


def asserts(node: ast.AST) -> bool:
    """Tell whether a node checks something, by itself or by pytest."""
    return isinstance(node, ast.Assert) or (
        isinstance(node, ast.Call) and dotted(node.func) in ("pytest.raises", "pytest.warns")
    )


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Walk the nodes of a function, but not of the functions in it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, (*FUNCTIONS, ast.Lambda)):
            yield node
            yield from own_nodes(node)


def line_of(node: ast.AST) -> int:
    """Return the line on which a node begins."""
    return int(getattr(node, "lineno", 1))


def early_returns(module: Module) -> Iterator[Breach]:
    """No test passes by returning: what it cannot show it skips, with a reason."""
    for function in module.functions:
        nodes = list(own_nodes(function)) if function.name.startswith("test") else []
        asserted = [line_of(node) for node in nodes if asserts(node)]
        for node in filter(is_lone_return, nodes):
            if line_of(node) < min(asserted, default=line_of(node) + 1):
                yield module.breach(
                    node, f"{function.name} returns before it has asserted: assert, or skip with a reason"
                )


def durations(module: Module) -> Iterator[Breach]:
    """No test asserts a duration; waiting for an event, with a limit, is no such assertion."""
    if module.path.parts[:2] == ("tests", "support") or not NAMES_A_CLOCK.search(module.text):
        return
    for begin, tree in [(0, module.tree), *programs(module)]:
        scopes = [tree, *(node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))]
        for line in sorted({line for scope in scopes for line in measured_lines(scope)}):
            message = "a duration decides whether a test passes: wait for an event, count, or compare orders"
            yield module.breach(begin or line, message)


def programs(module: Module) -> Iterator[tuple[int, ast.Module]]:
    """Yield (line, tree) of the programs that stand in a module as texts."""
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            with contextlib.suppress(SyntaxError, ValueError):
                tree = ast.parse(textwrap.dedent(node.value))
                if any(isinstance(line, ast.Import | ast.ImportFrom) for line in tree.body):
                    yield node.lineno, tree


def measured_lines(scope: ast.AST) -> Iterator[int]:
    """Yield the lines of a function that subtract an earlier time from a later one, or assert that it is not late."""
    nodes = list(own_nodes(scope))
    times = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and is_clock(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    loops = [node for node in nodes if isinstance(node, ast.While)]
    conditions = {part for loop in loops for part in ast.walk(loop.test)}
    waiting = {part for loop in loops for line in loop.body for part in ast.walk(line)}
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and node not in conditions:
            measured = tells_time(node.left, times) and tells_time(node.right, times)
        else:
            measured = isinstance(node, ast.Assert) and node not in waiting and tells_time(node.test, times)
        if measured:
            yield line_of(node)


def is_clock(node: ast.AST) -> bool:
    """Tell whether an expression reads a clock."""
    return isinstance(node, ast.Call) and bool(CLOCK.fullmatch(dotted(node.func)))


def tells_time(node: ast.AST, times: set[str]) -> bool:
    """Tell whether an expression reads a clock, or names what was read from one.

    Args:
        node: the expression.
        times: names of what was read.
    """
    return any(is_clock(part) or (isinstance(part, ast.Name) and part.id in times) for part in ast.walk(node))


LAWS = {
    "src/webdataset": [sizes, words, excepts, docstrings, indexes, compatibility, torch_imports],
    "src/wids": [sizes, words, excepts, docstrings, torch_imports],
    "tests": [test_docstrings, early_returns, durations],
    "bench": [sizes],
    "scripts": [sizes, docstrings],
    "examples": [sizes, docstrings],
    "fuzz": [sizes, docstrings],
}


def modules(root: Path, folder: str) -> Iterator[Module]:
    """Yield the parsed Python files under a folder of the repository, in order of their paths."""
    return (Module(root, path) for path in sorted((root / folder).rglob("*.py")))


def breaches(root: Path) -> list[Breach]:
    """Return every breach of every law under a repository.

    Args:
        root: the repository.
    """
    return [
        breach
        for folder, laws in LAWS.items()
        for module in modules(root, folder)
        for law in laws
        for breach in law(module)
    ]


def figures(root: Path) -> str:
    """Return one line with the sizes of the package's modules and functions and the share of tests."""
    lines: list[int] = []
    lengths: list[int] = []
    for module in modules(root, "src"):
        lines += [len(module.lines)] if module.lines else []
        lengths += [length(function) for function in module.functions]
    if not lines:
        return "no sources"
    lengths = sorted(lengths) or [0]
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / "tests").rglob("*.py"))
    return (
        f"{len(lines)} modules: median {statistics.median(lines):.0f} lines, longest {max(lines)}; "
        f"{len(lengths)} functions: median {statistics.median(lengths):.0f}, "
        f"p95 {lengths[int(len(lengths) * 0.95)]}, longest {lengths[-1]}; "
        f"test lines / source lines {tests / sum(lines):.2f}"
    )


def main() -> None:
    """Print the breaches and the figures; fail if there are breaches."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    broken = breaches(root)
    for breach in broken:
        print(f"{breach.path}:{breach.line}: {breach.message}")
    print(figures(root))
    sys.exit(f"{len(broken)} breaches of the laws" if broken else 0)


if __name__ == "__main__":
    main()
